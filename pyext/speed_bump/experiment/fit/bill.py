# SPDX-License-Identifier: MIT
"""The bill: effects must add up to what all delays cost together.

Delays of others can move the bottleneck, and then every answer is wrong with confidence.
What blocks cost beyond the sum of the effects in them shows it: below 0, so much slack
was used up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from speed_bump.experiment.fit.effects import Effects
from speed_bump.experiment.fit.interval import Interval, around

# Standard errors below 0 at which the bill is false: 1% of sound ones are. While looking
# again and again it takes more.
ALARM = 2.58
ALARM_LOOKING = 3.3
# A bill below this part of the delays in a block changes no verdict.
SMALL = 0.03


@dataclass(frozen=True)
class Bill:
    """What blocks of a dose cost beyond the sum of their effects.

    ``cost`` and ``delays``, the mean of what was delivered in a slot, are in parts of the
    undelayed slot; ``alarm``: slack was used up; ``late``: delays cost more than arrives
    in the slot and in the one after it.
    """

    dose: float
    apart: bool
    cost: Interval
    delays: float
    alarm: bool
    late: bool


def bills(effects: Effects, alarm: float = ALARM) -> list[Bill]:
    """Of each dose, the greatest first."""
    found = []
    table = effects.table
    real = [k for k, column in enumerate(table.columns) if column.functions]
    total = table.x[:, real].sum(1)
    for key in sorted(table.on, reverse=True):
        bill = effects.bill(key)
        rows = (table.other[:, table.on[key]] > 0) & (table.age >= 0)
        if bill is None or not rows.any():
            continue
        value, error = bill
        delays = float(np.mean(total[rows]))
        matters = abs(value) > SMALL * delays
        found.append(
            Bill(
                key[0],
                key[1],
                around(value, error, effects.fit.df),
                delays,
                matters and value < -alarm * error,
                matters and value > alarm * error,
            )
        )
    return found
