# SPDX-License-Identifier: MIT
"""Between the tool and a program that runs already.

What is imported inside the program (``door``, ``visit``, ``message``, ``place``) needs
modules of C alone: the program may be in the middle of an import.
"""
