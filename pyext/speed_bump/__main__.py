# SPDX-License-Identifier: MIT
"""``python -m speed_bump`` and the command ``speed-bump``."""

from __future__ import annotations

import sys

from speed_bump.command.main import main

if __name__ == "__main__":
    sys.exit(main())
