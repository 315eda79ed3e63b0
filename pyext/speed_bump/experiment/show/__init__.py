# SPDX-License-Identifier: MIT
"""Showing the results of an experiment as text, pages, JSON and files."""
