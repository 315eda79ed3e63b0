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
from speed_bump.experiment.fit.effects import MIN_CYCLES, Effects
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
# How long a thread is blocked is not known from fewer slots than these.
MIN_REST = 20
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

    Slack of a unit is time for which the thread that reports it is blocked. ``hides``: as
    much of it as that thread has and ``cost`` does not exclude may have been used up; 0
    after an alarm, or if it is unknown how long the thread is blocked.
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


def bills(effects: Effects, alarm: float = ALARM) -> list[Bill]:
    """The bill of each dose, the greatest first."""
    found = []
    table = effects.table
    real = [k for k, column in enumerate(table.columns) if column.functions]
    total = table.x[:, real].sum(1)
    known = [k for k in real if effects.effects[k].known]
    unknown = [k for k in real if k not in known]
    c = np.array([effects.effects[k].c for k in known])
    se = np.array([effects.effects[k].se for k in known])
    blocked = _blocked(table)
    for key in sorted(table.on, reverse=True):
        bill = effects.bill(key)
        rows = (table.other[:, table.on[key]] > 0) & (table.age >= 0)
        if bill is None or not rows.any():
            continue
        value, error = bill
        delays = float(np.mean(total[rows]))
        matters = abs(value) > SMALL * delays and abs(value) > alarm * error
        alone = matters and _by_one(
            value, alarm * error, effects.fit.parts[table.on[key]]
        )
        mean = table.x[rows][:, known].mean(0)
        # The largest possible sum of effects: an unknown effect may be 1.
        most = float(mean @ np.maximum(c, 0) + table.x[rows][:, unknown].mean(0).sum())
        most += alarm * math.sqrt(float(np.sum((mean * se) ** 2)))
        beyond = value < 0 and -value - alarm * error > most
        alone = alone or (matters and beyond)
        cost = around(value, error, effects.fit.df)
        found.append(
            Bill(
                key[0],
                key[1],
                cost,
                delays,
                matters and not alone and value < 0,
                matters and not alone and value > 0,
                alone and not beyond,
                matters and beyond,
                0.0 if matters else max(min(-cost.low, blocked), 0.0),
            )
        )
    return found


def _blocked(table: Table) -> float:
    """How long the thread that reports units is blocked in a slot of a rest, on average;
    0 if that is unknown.

    Of the rest in which it is blocked for longest, because buffers that are full after
    delays make it wait less.
    """
    known = (table.age >= 0) & np.isfinite(table.blocked)
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
