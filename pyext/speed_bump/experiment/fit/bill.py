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

from speed_bump.experiment.fit.effects import MIN_CYCLES, Effects
from speed_bump.experiment.fit.interval import Interval, around
from speed_bump.experiment.record import Floats

# Standard errors below 0 at which the bill is false: 1% of sound bills are. During an
# experiment, with repeated looks, it takes more.
ALARM = 2.58
ALARM_LOOKING = 3.3
# A bill below this part of the delays in a block changes no verdict.
SMALL = 0.05
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
    """

    dose: float
    apart: bool
    cost: Interval
    delays: float
    alarm: bool
    late: bool
    doubt: bool = False
    beyond: bool = False


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
        found.append(
            Bill(
                key[0],
                key[1],
                around(value, error, effects.fit.df),
                delays,
                matters and not alone and value < 0,
                matters and not alone and value > 0,
                alone and not beyond,
                matters and beyond,
            )
        )
    return found


def _by_one(value: float, required: float, parts: Floats) -> bool:
    """Whether one cycle alone makes the bill false: other programs came or went.

    The rest without a cycle is found in one step (the infinitesimal jackknife).
    """
    if len(parts) < MIN_CYCLES:
        return False
    count = len(parts)
    left = value - parts * count / (count - 1)
    return bool((np.sign(value) * left < WITHOUT_ONE * required).any())
