# SPDX-License-Identifier: MIT
"""How much time an experiment has."""

from __future__ import annotations

import time

# Fewer slots, in all, give no result.
FEWEST_SLOTS = 27
# Between two looks at a program that is waited for.
PAUSE_S = 0.05


class Budget:
    """The time of an experiment, s, which begins with the first unit of work."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.wait_for_work()

    def wait_for_work(self, patience_s: float = 0.0) -> None:
        """The program is started; its first unit is waited for, and so much longer."""
        self._began = time.monotonic()
        self._deadline = self._began + self.seconds + patience_s

    def first_unit(self) -> None:
        """It was seen: all of the time is left."""
        self._deadline = time.monotonic() + self.seconds

    @property
    def left_s(self) -> float:
        return self._deadline - time.monotonic()

    @property
    def spent_s(self) -> float:
        """Since the program was started."""
        return time.monotonic() - self._began
