# SPDX-License-Identifier: MIT
"""The connection between the tool and a program that is already running.

The modules that are imported inside the program (``door``, ``visit``, ``message``,
``place``) import only modules written in C: the program may be in the middle of an
import.
"""
