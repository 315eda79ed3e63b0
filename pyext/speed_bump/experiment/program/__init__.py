# SPDX-License-Identifier: MIT
"""Starting the program under test, and watching it."""
