# SPDX-License-Identifier: MIT
"""Why nothing can be measured."""

from __future__ import annotations


class RankError(Exception):
    """Nothing can be measured; the message says why and what to do."""

    def __init__(self, text: str, status: int = 1, output: bytes = b"") -> None:
        """``output`` is what the program wrote, if it failed."""
        super().__init__(text)
        self.status = status
        self.output = output
