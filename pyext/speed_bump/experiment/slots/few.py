# SPDX-License-Identifier: MIT
"""A block for so few slots that chance must not decide how often each arm is on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from speed_bump.experiment.record import MAX_ARMS, Block
from speed_bump.experiment.slots.arms import Delays
from speed_bump.experiment.slots.doses import DOSES
from speed_bump.experiment.slots.now import Now
from speed_bump.experiment.slots.plan import SHAM, balanced, chance_of_one, taken_in_turn

# If there are fewer slots in all the available time, columns are balanced.
FEW = 64


def few_slots(
    functions: Sequence[str],
    delays: Delays,
    now: Now,
    cap: float,
    draw: np.random.Generator,
) -> Block:
    """Each arm in half of the slots, or in one after the other: what tells more.

    Args:
        cap: the ratio of delay to undelayed time over the whole run
    """
    names = functions[: MAX_ARMS - 1]
    count = len(names)
    cap = 0.95 * cap
    one = chance_of_one(count + 1)
    nothing = 1 - (count + 1) * one
    turn_dose = min(DOSES[-1], cap / (count * one))
    all_dose = min(DOSES[-1], cap / (0.5 * count))
    turn_error = math.sqrt(1 / one + 1 / nothing) / turn_dose
    is_balanced = 2 / all_dose <= turn_error
    dose = all_dose if is_balanced else turn_dose
    arms = (SHAM, *(delays.arm((name,), (dose,), now) for name in names))
    masks = balanced(draw, len(arms)) if is_balanced else taken_in_turn(draw, len(arms))
    chance = 0.5 if is_balanced else 1 / len(masks)
    levels = np.zeros(len(masks), np.uint8)
    return Block(
        "few",
        arms,
        masks,
        levels,
        (chance,) * len(arms),
        (1,),
        not is_balanced,
        (dose,),
    )
