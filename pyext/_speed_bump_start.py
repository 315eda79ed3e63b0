# SPDX-License-Identifier: MIT
"""What Python calls when it starts (speed_bump.start, PEP 829): as little as can be."""

import os


def start() -> None:
    """Do what the environment says, if it says anything."""
    if os.environ.get("SPEED_BUMP_TARGETS"):
        import speed_bump._activate  # noqa: F401
