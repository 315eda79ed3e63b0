# SPDX-License-Identifier: MIT
"""Noticing that a program that was taken for machine code starts Python after all."""

from __future__ import annotations

import time

from speed_bump.experiment.program.workload import Workload

# A Python process that ends sooner is a helper of the program.
LIVES_S = 1.0


class PythonStarted(Exception):
    """A Python process has reported in, ``seconds`` after the start."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"a Python process has started after {seconds:.1f} s")
        self.seconds = seconds


class Lookout:
    """Looks for Python processes in a run whose functions are all native."""

    def __init__(self, program: Workload) -> None:
        """The run has just begun."""
        self._program = program
        self._begin = time.monotonic()
        self._seen: dict[int, float] = {}

    def check(self) -> None:
        """To be called from time to time.

        Raises:
            PythonStarted: a Python process has been running for a while
        """
        now = time.monotonic()
        pids = self._program.pythons
        self._seen = {pid: self._seen.get(pid, now) for pid in pids}
        since = min(self._seen.values(), default=now)
        if now - since >= LIVES_S:
            raise PythonStarted(since - self._begin)
