# SPDX-License-Identifier: MIT
"""What speaks against an experiment, said once, as soon as it is known."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from speed_bump.duration import human
from speed_bump.experiment.account import account
from speed_bump.experiment.program.workload import Workload
from speed_bump.experiment.record import Record
from speed_bump.experiment.slots.budget import FEWEST_SLOTS

# A warning is given if the program had less than this share of the CPU time that it
# wanted.
DOUBTFUL_SHARE = 0.6
# Or if all functions together take less of a unit's time, after this many samples.
IDLE_SHARE, MIN_LOOKS = 0.01, 300
# Or if no unit was seen for DOUBT_S and as long as this many units take, or no call of
# any function for DOUBT_S and this many slots. WATCH_S is the time between two checks.
DOUBT_S, WATCH_S = 5.0, 1.0
LATE_UNITS, IDLE_SLOTS = 30, 8


class Doubts:
    """Warns once about each problem.

    Args:
        event: tells the user
    """

    def __init__(self, event: Callable[[str], None]) -> None:
        self._event = event
        self._said: set[str] = set()

    def say(self, key: str, text: str) -> None:
        """A warning, unless there was one with this key."""
        if key not in self._said:
            self._said.add(key)
            self._event(f"warning: {text}")

    def about_share(self, share: float) -> None:
        """Warn if the program gets too little of the CPU time that it needs."""
        if share < DOUBTFUL_SHARE:
            self.say(
                "share",
                f"the program has {share:.0%} of the CPU time that it wants: others use "
                "this machine, or it has more threads than there are CPUs; answers take "
                "longer",
            )

    def about_units(self, unit_ns: float, budget_s: float) -> None:
        """Warn if there is time for too few units of work for any answer."""
        fit, need = budget_s * 1e9 / unit_ns, 2 * FEWEST_SLOTS
        if fit < need:
            self.say(
                "few",
                f"a unit of work takes {human(unit_ns)}: {fit:.0f} of them fit into the "
                f"budget, and an answer needs about {need}: give --budget "
                f"{math.ceil(need * unit_ns / 1e9)}s or more, or name a shorter unit "
                "with --progress",
            )

    def about_functions(self, record: Record) -> None:
        """Warn if all functions together take nearly nothing of the time."""
        native = [name for name in record.functions if name.startswith("/")]
        # Where perf events are refused none is seen.
        if native and not any(name in record.self_times for name in native):
            return
        taken = sum(own.share for own in record.self_times.values())
        spent = account(record.looks, record.functions)
        if record.metered or taken >= IDLE_SHARE or not spent or spent.looks < MIN_LOOKS:
            return
        most = spent.rows[0]
        where = most.parts[0][0] if most.parts else ""
        self.say(
            "share of all",
            f"all of the functions together take {taken:.1%} of the time: "
            f"{most.share:.0%} of a unit is "
            + ("waiting: " if most.is_wait else "")
            + most.what
            + (f" ({where})" if where else ""),
        )


class Vigil:
    """Looks once a second whether a run still works, while it is measured.

    Args:
        unit_ns: how long a unit of work takes
    """

    def __init__(
        self, program: Workload, record: Record, doubts: Doubts, unit_ns: float
    ) -> None:
        self._program, self._record, self._doubts = program, record, doubts
        self._unit_ns = unit_ns
        # Units and calls so far, and when they last changed.
        self._due = 0.0
        self._units, self._unit_at = -1, 0.0
        self._called, self._called_at, self._called_units = -1, 0.0, 0

    def is_due(self) -> bool:
        return time.monotonic() >= self._due

    def look(self) -> None:
        program, now = self._program, time.monotonic()
        self._due = now + WATCH_S
        units, calls = program.plan.units, program.calls()
        called = sum(calls.get(name, 0) for name in self._record.functions)
        if units != self._units:
            self._units, self._unit_at = units, now
        if called != self._called:
            self._called, self._called_at, self._called_units = called, now, units
        without_s, idle_s = now - self._unit_at, now - self._called_at
        if not program.meter and without_s > max(
            DOUBT_S, LATE_UNITS * self._unit_ns / 1e9
        ):
            self._doubts.say(
                "stopped",
                f"no unit of work was seen in the last {without_s:.0f} s, and before "
                f"that one every {human(self._unit_ns)}",
            )
        idle = units - self._called_units
        few = IDLE_SLOTS * self._record.slot_units
        if self._record.functions and idle_s > DOUBT_S and idle >= few:
            self._doubts.say(
                "idle",
                f"none of the functions was called in the last {idle:,} units of work: "
                "nothing is learnt of them meanwhile",
            )
