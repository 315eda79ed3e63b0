# SPDX-License-Identifier: MIT
"""The beginning of a run: it is not measured before the program is at its work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from speed_bump.duration import human
from speed_bump.experiment.errors import RankError
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import why_nobody_reported
from speed_bump.experiment.program.workload import Workload
from speed_bump.experiment.slots.budget import PAUSE_S, Budget
from speed_bump.experiment.slots.candidates import Candidates
from speed_bump.experiment.slots.doubts import DOUBT_S, Doubts
from speed_bump.experiment.watcher import Watcher

# Units of work that are the program's beginning, in the first run and in later ones.
FIRST_UNITS, AGAIN_UNITS = 10, 5
# A warning is given if there was no unit of work for DOUBT_S plus this many times what
# the first one took in an earlier run.
LATE = 3.0


@dataclass
class Beginning:
    """Waits until a program is at its work.

    Args:
        check: raises if the program can't be measured after all
        is_first: no run of it was measured before
    """

    program: Workload
    progress: Progress
    candidates: Candidates
    budget: Budget
    watcher: Watcher
    doubts: Doubts
    check: Callable[[], None]
    is_first: bool = True

    def settle(self) -> bool:
        """Wait until the program works; False: it has ended, or time is up.

        Raises:
            RankError: time is up without any progress; it says what to do
        """
        program, budget = self.program, self.budget
        is_open = self.progress.is_open
        first = 0.0
        while program.is_running() and budget.left_s > 0:
            if is_open:
                is_open = not self._choose_point()
            self.check()
            program.look()
            units = program.plan.units
            if units and not first and self.is_at_its_work():
                first = time.monotonic()
            beginning = FIRST_UNITS if self.is_first else AGAIN_UNITS
            if first and (units > beginning or time.monotonic() > first + 1):
                if self.is_first:
                    budget.first_unit()
                return True
            what = "waiting for the first units of work"
            if program.meter:
                what = program.meter.state
            self.watcher.now(f"{what} | {human(budget.left_s * 1e9)} left")
            if self._is_late() and not first and self.is_first:
                self.doubts.say("unit", self._why_late())
            # In a short run there is no time to wait.
            time.sleep(PAUSE_S if self.is_first else PAUSE_S / 5)
        if budget.left_s <= 0 and not first and self.is_first:
            raise RankError(self._why_no_progress())
        return False

    def is_at_its_work(self) -> bool:
        """Whether enough of the functions are called that were found while it worked.

        Imports may also call what is counted as a unit. After some time, the answer is
        yes in any case.
        """
        if not self.candidates.search.found or not self.is_first:
            return True
        called = sum(n > 0 for n in self.program.calls().values())
        return 2 * called >= len(self.candidates.targets) or self._is_late()

    def _is_late(self) -> bool:
        return self.budget.spent_s > DOUBT_S + LATE * self.candidates.search.to_first_s

    def _choose_point(self) -> bool:
        points = {name: n for name, n in self.program.points().items() if n}
        if not points:
            return False
        name = "default" if "default" in points else max(points, key=lambda p: points[p])
        self.program.count(name)
        self.candidates.record.header["unit"] = f"progress point {name!r}"
        return True

    def _why_late(self) -> str:
        if self.program.meter:
            return self.program.meter.state
        return (
            f"no {self.progress.text or 'unit of work'} was seen so far (--progress says "
            "what one is)"
        )

    def _why_no_progress(self) -> str:
        program, seconds = self.program, self.budget.seconds
        if program.meter:
            return program.meter.why_nothing(self.budget.spent_s)
        if not self.progress.is_open:
            return f"no {self.progress.text} was seen in {seconds:.0f} s"
        text = (
            f"no progress was seen in {seconds:.0f} s, and the program did not end: say "
            "what a unit of work is, with --progress MODULE:FUNCTION or "
            "--progress-regex, or let the program call speed_bump.progress()"
        )
        calls = sorted(program.calls().items(), key=lambda item: -item[1])[:3]
        if calls:
            rates = ", ".join(f"{name} ({n / seconds:.0f} calls/s)" for name, n in calls)
            text += f"; called most: {rates}"
        elif not program.processes:
            text = why_nobody_reported(self.candidates.command)
        return text
