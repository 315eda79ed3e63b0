# SPDX-License-Identifier: MIT
"""What is true when a block is decided: properties of the program, and the time left."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from speed_bump.experiment.fit.columns import base_time
from speed_bump.experiment.fit.contention import NEARLY_ALONE
from speed_bump.experiment.record import Record

# Fewer slots say too little.
MIN_SLOTS = 3
# Calls are those of the newest slots.
NEWEST = 4000
# A function that is called in a smaller part of the slots is drawn separately.
RARE = 0.25


@dataclass(frozen=True)
class Now:
    """Properties of the program according to the newest record.

    Args:
        slot_ns: the undelayed time of a slot
        calls: of each function in a slot, on average
        part: of each function the part of the slots in which it is called
        elapsed_s: since the first slot began
        left_s: of the budget
        given: all delays so far, in undelayed slots
        slots: that the record has
        seen: slots so far, of which the record may have forgotten the oldest
        is_shared: whether other programs, or its own threads, take CPUs from it
    """

    slot_ns: float
    calls: dict[str, float]
    part: dict[str, float]
    elapsed_s: float
    left_s: float
    given: float
    slots: int
    seen: int
    is_shared: bool = False

    @property
    def left_slots(self) -> float:
        return self.left_s * 1e9 / max(self.slot_ns, 1.0)

    @property
    def called(self) -> list[str]:
        return [name for name, calls in self.calls.items() if calls > 0]

    @property
    def often(self) -> list[str]:
        return [name for name, part in self.part.items() if part >= RARE]

    @property
    def seldom(self) -> list[str]:
        return [name for name, part in self.part.items() if 0 < part < RARE]

    def room(self, cap: float, count: int) -> float:
        """The delay, in undelayed slots, that the next slots may have.

        Args:
            cap: the ratio of delay to undelayed time over the whole run
            count: the number of the next slots
        """
        return cap * (self.slots + count) - self.given


class Clock:
    """Reads records, each of which continues the previous one.

    A record may forget its oldest slots.
    """

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self._begin_ns: float | None = None
        self._last_ns = -math.inf
        self._seen = 0

    def now(self, record: Record) -> Now | None:
        """None: there are too few slots."""
        slots = record.slots
        base = base_time(record)
        if len(slots) < MIN_SLOTS or base <= 0:
            return None
        if self._begin_ns is None:
            first = float(slots.time_ns[0])
            first = first if math.isfinite(first) and slots.good[0] else base
            self._begin_ns = float(slots.end_ns[0]) - first
        elapsed = (float(slots.end_ns[-1]) - self._begin_ns) / 1e9
        self._seen += int((slots.end_ns > self._last_ns).sum())
        self._last_ns = float(slots.end_ns[-1])
        recent = slots.calls[-NEWEST:][slots.good[-NEWEST:]]
        if not len(recent):
            recent = slots.calls[-NEWEST:]
        mean = np.nan_to_num(recent).mean(0)
        part = (np.nan_to_num(recent) > 0).mean(0)
        return Now(
            base,
            dict(zip(record.functions, (float(v) for v in mean), strict=True)),
            dict(zip(record.functions, (float(v) for v in part), strict=True)),
            elapsed,
            self.budget_s - elapsed,
            float(np.nansum(slots.delivered_ns)) / base,
            len(slots),
            self._seen,
            record.machine.share < NEARLY_ALONE,
        )
