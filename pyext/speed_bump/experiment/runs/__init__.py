# SPDX-License-Identifier: MIT
"""Alternating whole runs of the program."""
