# SPDX-License-Identifier: MIT
"""For how long a program that is watched was at work, and with how much CPU time."""

from __future__ import annotations

import time

from speed_bump.experiment.program.machine import Reading
from speed_bump.experiment.program.workload import Workload

# The time between two readings of the CPU time that the program had.
READ_CPU_S = 0.4


class Work:
    """For how long a program was at work, in ``seconds`` by the clock."""

    def __init__(self, program: Workload) -> None:
        """It has not begun."""
        self._program = program
        self.forget()

    def forget(self) -> None:
        """Begin again: what was seen was not work."""
        self.seconds = 0.0
        # In s of the monotonic clock; 0: it has not begun.
        self.began = 0.0
        self._due = 0.0
        # When the first reading was, the first one, and the last one.
        self._read: tuple[float, Reading, Reading] | None = None
        self._read_s = 0.0

    def pause(self, seconds: float) -> None:
        """Leave out a time in which it did not work."""
        if self.began and self._read:
            self.began += seconds
            at, first, last = self._read
            self._read = at + seconds, first, last

    def goes_on(self, begin: float) -> None:
        """It is at work, at least since ``begin``, in s of the monotonic clock."""
        now = time.monotonic()
        self.began = self.began or begin
        self.seconds = now - self.began
        if self._read and now < self._due:
            return
        self._due = now + READ_CPU_S
        reading = self._program.machine.look(self._program.pids)
        at, first, _ = self._read or (now, reading, reading)
        self._read, self._read_s = (at, first, reading), now - at

    @property
    def fair_s(self) -> float:
        """Without the time that it waited for a CPU. If it has more threads than CPUs,
        they wait for each other, too.
        """
        if not self._read or self._read_s <= 0:
            return self.seconds
        _, first, last = self._read
        waited = (last.wait_ns - first.wait_ns) / 1e9 / self._read_s
        return self.seconds * max(1 - waited, last.share(first))

    @property
    def share(self) -> float:
        """The part of the wanted CPU time that the program had."""
        return self._read[2].share(self._read[1]) if self._read else 1.0
