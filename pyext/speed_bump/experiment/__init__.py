# SPDX-License-Identifier: MIT
"""Running a program with delays in force, and saying what they did to it."""
