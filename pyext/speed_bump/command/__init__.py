# SPDX-License-Identifier: MIT
"""The commands of ``speed-bump``."""
