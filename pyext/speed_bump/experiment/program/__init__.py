# SPDX-License-Identifier: MIT
"""Starting and watching the program under test."""
