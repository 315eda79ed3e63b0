# SPDX-License-Identifier: MIT
"""How much time an experiment has."""

from __future__ import annotations

import time


class Budget:
    """The time of an experiment, s, which begins with the first unit of work."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.start()

    def start(self, patience_s: float = 0.0) -> None:
        """The program is started; its first unit is waited for, and so much longer."""
        self._began = time.monotonic()
        self._deadline = self._began + self.seconds + patience_s

    def begin(self) -> None:
        """The first unit of work was seen."""
        self._deadline = time.monotonic() + self.seconds

    @property
    def left_s(self) -> float:
        return self._deadline - time.monotonic()

    @property
    def spent_s(self) -> float:
        """Since the program was started."""
        return time.monotonic() - self._began
