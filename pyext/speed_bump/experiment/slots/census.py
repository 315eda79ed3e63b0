# SPDX-License-Identifier: MIT
"""What is seen of a program while nothing is delayed: calls, stacks, and slots."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from speed_bump.experiment.slots import length, requests
from speed_bump.experiment.slots.budget import Budget
from speed_bump.experiment.slots.candidates import Candidates
from speed_bump.experiment.slots.ledger import Ledger
from speed_bump.experiment.slots.measure import Run
from speed_bump.experiment.slots.of_time import SlotsOfTime
from speed_bump.experiment.watcher import Watcher

# The minimal length of a slot: ending it costs a microsecond, and slots are read from
# outside.
SLOT_NS = 2_000_000
# The first census takes this part of the budget, within limits; in later runs less.
CENSUS_PART = 0.06
MIN_CENSUS_S, MAX_CENSUS_S = 0.6, 4.0
AGAIN_CENSUS_S, AGAIN_SLOTS = 0.2, 4
# Slots of the first census, unless it would take this part of the budget. If slots are
# long, fewer are enough after a smaller part: in simulations of 60 s with slots of 0.45 s
# and 11 functions, 20 instead of 33 gave an eighth more verdicts, as reliable; with 11
# slots (of 0.8 s) too many intervals missed the truth.
CENSUS_SLOTS, MAX_CENSUS_PART = 64, 0.25
ENOUGH_SLOTS, ENOUGH_PART = 20, 0.1
# The same for slots that outlast requests.
CENSUS_LONG_SLOTS = 16
# Later ones: how often, for how long, and when there may be one in a short run.
LATER_EVERY, LATER_S, LATER_SLOTS, LATER_AFTER_S = 0.2, 0.6, 8, 3.0


@dataclass
class Census:
    """Observes one run.

    Args:
        unit_ns: how long a unit of work takes, of each rank of a job (of the first run)
        began: when the run began to work, s of the monotonic clock
        ended: whether the run, or the experiment, is over
    """

    run: Run
    unit_ns: float
    began: float
    budget: Budget
    watcher: Watcher
    ledger: Ledger
    candidates: Candidates
    of_time: SlotsOfTime
    ended: Callable[[], bool]
    _last: float = 0.0

    def __post_init__(self) -> None:
        self._is_first = self.run.number == 1

    def first(self) -> bool:
        """Observe calls and where time is spent; False: there is no more to measure."""
        run, record = self.run, self.ledger.record
        slot_units = self._slot_units() if self._is_first else record.slot_units
        run.set_slot_units(slot_units)
        self.watcher.now("counting calls and looking at the stacks, nothing is delayed")
        self._take(self._seconds(), 0 if self._is_first else AGAIN_SLOTS)
        if self._is_first:
            slot_units = self._adjusted(slot_units)
        record.slot_units = slot_units
        if self._is_first:
            is_long = run.program.durations is not None
            slots = CENSUS_LONG_SLOTS if is_long else CENSUS_SLOTS
            begin, first = time.monotonic(), run.count()

            def is_enough() -> bool:
                part = (time.monotonic() - begin) / self.budget.seconds
                seen = run.count() - first
                return (
                    self.ended()
                    or part > MAX_CENSUS_PART
                    or (part > ENOUGH_PART and seen >= ENOUGH_SLOTS)
                )

            run.rest(0, slots, is_enough)
        return not self.ended()

    def again_if_due(self) -> None:
        """Observe once more, now and then, during the experiment."""
        # A short run has no time for more samples.
        last = max(self._last, self.began + LATER_AFTER_S)
        if last + LATER_EVERY * self.budget.seconds < time.monotonic():
            self._take(LATER_S, LATER_SLOTS)

    def _seconds(self) -> float:
        """How long the stacks are looked at first."""
        seconds = CENSUS_PART * self.budget.seconds
        most = max(self.budget.left_s, 0.1)
        seconds = min(max(seconds, MIN_CENSUS_S), MAX_CENSUS_S, most)
        if self._is_first:
            return seconds
        # A short program is measured in the rest of each run; the samples are those of
        # the beginnings of several runs.
        missing_s = seconds - self.ledger.samples.clock_ns / 1e9
        return min(max(missing_s, 0.0), AGAIN_CENSUS_S)

    def _slot_units(self) -> int:
        """How many units make a slot that is long enough."""
        run = self.run
        if run.slot_ns:
            return max(1, round(max(run.slot_ns, SLOT_NS) / self.unit_ns))
        least_ns: float = SLOT_NS
        if run.program.durations is not None:
            run.poll()
            took = np.concatenate(
                [np.zeros(0), *(r["duration_ns"] for r in run.requests)]
            )
            least_ns = requests.slot_ns(took, self.budget.seconds)
        return max(1, math.ceil(least_ns / self.unit_ns))

    def _adjusted(self, units: int) -> int:
        """The units of a slot after the first look at units; slots so far may go."""
        run = self.run
        # Read before slots have several units: later, the last unit of each slot could
        # always be that of one thread.
        self.ledger.record.side_by_side = run.side_by_side
        if run.reporters > units:
            # Units that overlap must fall mostly in a slot and its successor.
            units = run.reporters
            run.set_slot_units(units)
            run.forget()
        if run.slot_ns:
            return self.of_time.lengthen(run, units)
        if run.by_rank or run.program.durations is not None:
            return units
        return self._of_bursts(units)

    def _of_bursts(self, units: int) -> int:
        """Make slots longer if units end in bursts; returns the units per slot."""
        run = self.run
        run.poll()
        times = length.factor(run.slots(()), self.budget.left_s * 1e9)
        if times > 1:
            units *= times
            run.set_slot_units(units)
            run.forget()
        return units

    def _take(self, seconds: float, slots: int) -> None:
        run = self.run

        def meanwhile() -> None:
            run.poll()

        if seconds:
            found = run.program.sampler.sample(int(seconds * 1e9), meanwhile)
            self.ledger.sampled(found)
            self._last = time.monotonic()
        run.rest(0, slots, self.ended)
        if seconds:
            self.ledger.take_looks(run)
        self.candidates.rule(run)
        self.ledger.look_at_machine(run.program)
