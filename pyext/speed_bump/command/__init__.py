# SPDX-License-Identifier: MIT
"""The verbs of the command ``speed-bump``."""
