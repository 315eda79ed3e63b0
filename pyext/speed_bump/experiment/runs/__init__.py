# SPDX-License-Identifier: MIT
"""Whole runs of the program, in turns."""
