# SPDX-License-Identifier: MIT
"""Slots of time, for a metric: how long they are, and whether the metric counts."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from speed_bump.duration import human
from speed_bump.experiment.errors import RankError
from speed_bump.experiment.program.meter import CHANGES, Pace, slot_of
from speed_bump.experiment.program.metric import MetricError
from speed_bump.experiment.program.workload import Workload
from speed_bump.experiment.slots.budget import FEWEST_SLOTS, PAUSE_S, Budget
from speed_bump.experiment.slots.doubts import Doubts
from speed_bump.experiment.slots.measure import Run
from speed_bump.experiment.watcher import Watcher

# A metric is observed for this time, or for a part of the budget if it changes seldom.
LOOK_METRIC_S, LOOK_METRIC_PART = 1.0, 0.15
# If nothing was counted in a larger part of the slots of time, slots are made longer by
# this factor.
MAX_IDLE_PART, LENGTHENED = 0.1, 4


def check_meter(program: Workload) -> None:
    """Whether the metric can still be read.

    Raises:
        RankError: it was given up; why
    """
    if program.meter and program.meter.refused:
        raise RankError(program.meter.refused)


@dataclass
class SlotsOfTime:
    """Chooses their length, in the first run for all."""

    budget: Budget
    watcher: Watcher
    doubts: Doubts
    _slot_ns: int = 0

    def choose(self, program: Workload, run: Run) -> float:
        """Choose the length of slots of time; returns the time of a unit, ns.

        NaN: the program has ended, or time is up.

        Raises:
            RankError: the metric changes too seldom for the budget
        """
        pace = self._pace(program)
        if not pace:
            return math.nan
        assert program.meter
        if not self._slot_ns:
            try:
                self._slot_ns = slot_of(pace, self.budget.seconds, program.meter.series)
            except MetricError as error:
                raise RankError(str(error)) from None
        run.slot_ns = self._slot_ns
        if program.meter.is_histogram and not program.meter.bounds:
            self.doubts.say(
                "not time",
                f"{program.meter.series} counts work alone, without a latency: the "
                "name of a histogram of times ends in _seconds, _ms or _us",
            )
        return pace.unit_ns

    def _pace(self, program: Workload) -> Pace | None:
        """The observed pace of the metric; None: the program has ended, or time is up.

        Raises:
            RankError: the metric changes too seldom for the budget
        """
        meter = program.meter
        assert meter
        meter.begin_look()
        begin = time.monotonic()
        longest_s = max(LOOK_METRIC_PART * self.budget.seconds, LOOK_METRIC_S)
        while program.is_running() and self.budget.left_s > 0:
            self.watcher.now("looking at how often the metric is updated")
            time.sleep(PAUSE_S)
            check_meter(program)
            took, pace = time.monotonic() - begin, meter.pace()
            if pace and pace.changes >= CHANGES and took > LOOK_METRIC_S:
                return pace
            if took > longest_s:
                if pace:
                    return pace
                raise RankError(
                    meter.trouble
                    or f"{meter.series} counted less than twice in {took:.0f} s: give "
                    "the server work, more --budget, or a metric that is updated "
                    "more often"
                )
        return None

    def lengthen(self, run: Run, units: int) -> int:
        """Make slots of time longer if the metric counts nothing in many of them.

        Returns the units per slot.

        Raises:
            RankError: the budget is too short for that
        """
        run.poll()
        idle = run.idle_part
        if idle <= MAX_IDLE_PART:
            return units
        meter = run.program.meter
        assert meter
        least_s = LENGTHENED * run.slot_ns * FEWEST_SLOTS / 1e9
        if least_s > self.budget.seconds:
            raise RankError(
                f"{meter.series} counted nothing in {idle:.0%} of slots of "
                f"{human(run.slot_ns)}: give --budget {math.ceil(2 * least_s)}s or "
                "more, or a metric that is updated more often"
            )
        run.slot_ns = self._slot_ns = LENGTHENED * run.slot_ns
        self.watcher.event(
            f"{meter.series} counted nothing in {idle:.0%} of the slots: they are now of "
            f"{human(run.slot_ns)}"
        )
        run.set_slot_units(LENGTHENED * units)
        run.forget()
        return LENGTHENED * units

    def watch(self, program: Workload) -> None:
        """Report once if something is wrong with the metric.

        Raises:
            RankError: it was given up
        """
        meter = program.meter
        if meter and program.is_running():
            check_meter(program)
            if meter.trouble:
                self.doubts.say("metric", meter.trouble)
