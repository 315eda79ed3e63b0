# SPDX-License-Identifier: MIT
"""Experiments within one run of the program, slot by slot."""
