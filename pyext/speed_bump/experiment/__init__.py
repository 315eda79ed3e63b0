# SPDX-License-Identifier: MIT
"""Running a program with delays in force, and measuring their effect."""
