# SPDX-License-Identifier: MIT
"""The bill: effects must add up to what all delays cost together.

Delays of several functions can move the bottleneck; every answer is then wrong, however
narrow its interval. The bill shows it: what blocks cost beyond the sum of the effects in
them. A value below 0 is slack that was used up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from speed_bump.experiment.fit.columns import Table
from speed_bump.experiment.fit.effects import MIN_CYCLES, Effects, effects
from speed_bump.experiment.fit.interval import Interval, around
from speed_bump.experiment.record import Floats

# Standard errors below 0 at which the bill is false: 1% of sound bills are. During an
# experiment, with repeated looks, it takes more.
ALARM = 2.58
ALARM_LOOKING = 3.3
# A bill below this part of the delays in a block changes no verdict.
SMALL = 0.05
# Above this part of the delays, slack that may have been used up leaves no label.
VAGUE = 0.35
# How long a thread is blocked is not known from fewer slots of a rest than these, or if
# it is known of a smaller part of all slots.
MIN_REST, KNOWN = 20, 0.9
# Without any single cycle, this much of what is required must remain.
WITHOUT_ONE = 0.5


@dataclass(frozen=True)
class Bill:
    """What blocks of a dose cost beyond the sum of their effects.

    ``cost`` and ``delays``, the mean delay delivered in a slot, are in parts of the
    undelayed slot. ``alarm``: slack was used up. ``late``: delays cost more than arrives
    in the slot and in the next one. An alarm is not believed if a single cycle of blocks
    and a rest causes it (``doubt``), or if more slack was used up than effects were
    measured (``beyond``): hidden delays can't make a program faster than it is.

    Slack of a unit is time for which the thread that reports it is blocked. ``hides``: so
    much of it may have been used up, as neither ``cost`` nor the times for which it was
    blocked exclude; 0 after an alarm, or if that is unknown.
    """

    dose: float
    apart: bool
    cost: Interval
    delays: float
    alarm: bool
    late: bool
    doubt: bool = False
    beyond: bool = False
    hides: float = 0.0

    @property
    def vague(self) -> bool:
        """Whether it excludes too little for any label."""
        return self.hides > VAGUE * self.delays


def bills(found: Effects, alarm: float = ALARM, slack: bool = False) -> list[Bill]:
    """The bill of each dose, the greatest first.

    Args:
        alarm: standard errors below 0 at which a bill is false
        slack: also what slack may have hidden, which takes as long as ``found`` took
    """
    out = []
    table = found.table
    real = [k for k, column in enumerate(table.columns) if column.functions]
    total = table.x[:, real].sum(1)
    known = [k for k in real if found.effects[k].known]
    unknown = [k for k in real if k not in known]
    c = np.array([found.effects[k].c for k in known])
    se = np.array([found.effects[k].se for k in known])
    waits = _Waits(table) if slack else None
    for key in sorted(table.on, reverse=True):
        bill = found.bill(key)
        rows = (table.other[:, table.on[key]] > 0) & (table.age >= 0)
        if bill is None or not rows.any():
            continue
        value, error = bill
        delays = float(np.mean(total[rows]))
        matters = abs(value) > SMALL * delays and abs(value) > alarm * error
        alone = matters and _by_one(value, alarm * error, found.fit.parts[table.on[key]])
        mean = table.x[rows][:, known].mean(0)
        # The largest possible sum of effects: an unknown effect may be 1.
        most = float(mean @ np.maximum(c, 0) + table.x[rows][:, unknown].mean(0).sum())
        most += alarm * math.sqrt(float(np.sum((mean * se) ** 2)))
        beyond = value < 0 and -value - alarm * error > most
        alone = alone or (matters and beyond)
        cost = around(value, error, found.fit.df)
        out.append(
            Bill(
                key[0],
                key[1],
                cost,
                delays,
                matters and not alone and value < 0,
                matters and not alone and value > 0,
                alone and not beyond,
                matters and beyond,
                waits.hide(key, -cost.low, delays) if waits and not matters else 0.0,
            )
        )
    return out


class _Waits:
    """How long the thread that reports units is blocked, and how much less by delays."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._longest = _longest_wait(table)
        self._effects: Effects | None = None

    def hide(self, key: tuple[float, bool], most: float, delays: float) -> float:
        """The slack that blocks of a dose may have used up, in a slot.

        Args:
            most: according to the bill
            delays: the mean delay in a slot
        """
        most = min(most, self._longest)
        if most > VAGUE * delays:
            most = min(most, self._less_by_delays(key))
        return max(most, 0.0)

    def _less_by_delays(self, key: tuple[float, bool]) -> float:
        """By how much shorter waits may be in all slots of these blocks than in rests.

        A delay that the slack of its own slot hides is known to be hidden: it makes that
        slot's wait shorter.
        """
        if self._effects is None:
            self._effects = effects(self._table, self._table.blocked)
        found = self._effects
        if found is None or (change := found.bill(key)) is None:
            return math.inf
        return -around(*change, found.fit.df).low


def _longest_wait(table: Table) -> float:
    """How long the thread that reports units is blocked in a slot of a rest, on average;
    0 if that is unknown.

    Of the rest in which it is blocked for longest, because buffers that are full after
    delays make it wait less.
    """
    usable = table.age >= 0
    known = usable & np.isfinite(table.blocked)
    if known.sum() < KNOWN * usable.sum():
        return 0.0
    rests = known & ~table.x.any(1) & ~table.other.any(1)
    # A rest ends where there is a delay.
    which = np.cumsum(table.other.any(1))[rests]
    if not len(which):
        return 0.0
    _, which, slots = np.unique(which, return_inverse=True, return_counts=True)
    mean = np.bincount(which, table.blocked[rests]) / slots
    return float(mean[slots >= min(MIN_REST, slots.max())].max())


def _by_one(value: float, required: float, parts: Floats) -> bool:
    """Whether one cycle alone makes the bill false: other programs came or went.

    The rest without a cycle is found in one step (the infinitesimal jackknife).
    """
    if len(parts) < MIN_CYCLES:
        return False
    count = len(parts)
    left = value - parts * count / (count - 1)
    return bool((np.sign(value) * left < WITHOUT_ONE * required).any())
