# SPDX-License-Identifier: MIT
"""Blocks in which arms take turns, within the slowdown that the user allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from speed_bump.experiment.record import Arm, Block
from speed_bump.experiment.slots.arms import cost
from speed_bump.experiment.slots.now import Now
from speed_bump.experiment.slots.plan import (
    HOLDS,
    Levels,
    Masks,
    chance_of_one,
    one_at_a_time,
)

# Slots of a block and of the rest after it, if slots are long.
BLOCK, REST = 120, 80
BLOCKS_A_REST = 2
# The part of all slots that belongs to blocks.
BUSY_SHARE = BLOCKS_A_REST * BLOCK / (BLOCKS_A_REST * BLOCK + REST)
# The sham is on less often than an arm by this factor.
SHAM_SHARE = 0.3
# The chance of all arms together of single holds that are far apart.
APART = 0.06
# How often chances are reduced, and by which factor, if a block would cost too much.
TRIES, FEWER = 10, 0.8


def chances_of(arms: int) -> list[float]:
    """The chance of the sham, which is first and is baseline too, and of others."""
    each = chance_of_one(max(arms - 1, 1))
    return [SHAM_SHARE * each, *[each] * (arms - 1)]


def weighted(chances: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The chances of all arms but the sham multiplied; on average they stay the same."""
    sham, *others = chances
    factors = np.array(weights)
    factors *= len(factors) / factors.sum()
    return [sham, *(float(c * w) for c, w in zip(others, factors, strict=True))]


def thinned(chances: Sequence[float], costs: Iterable[float], cap: float) -> list[float]:
    """Chances that keep the slowdown.

    Args:
        costs: of each arm while it is on, on average over its levels
        cap: the ratio of delay to undelayed time over the whole run
    """
    mean = float(sum(c * cost for c, cost in zip(chances, costs, strict=True)))
    mean *= BUSY_SHARE
    factor = min(1.0, 0.95 * cap / mean) if mean > 0 else 1.0
    return [chance * factor for chance in chances]


@dataclass(frozen=True)
class Turns:
    """What a block is for, before it is drawn.

    Args:
        stage: of the block
        arms: of which one is on at a time, the sham first
        doses: of each level; the first one has been used before, and is drawn less often
        chances: of each arm to be on in a hold
        holds: lengths of a hold in slots
        coins: arms that have a coin of their own in each slot
    """

    stage: str
    arms: tuple[Arm, ...]
    doses: tuple[float, ...]
    chances: Sequence[float]
    holds: tuple[int, ...] = HOLDS
    coins: tuple[Arm, ...] = ()

    def block(self, draw: np.random.Generator, count: int, now: Now, cap: float) -> Block:
        """Draw a block of ``count`` slots.

        Args:
            cap: the ratio of delay to undelayed time over the whole run
        """
        masks, levels, chances = self._drawn(draw, count, now, cap)
        for bit in range(len(self.arms), len(self.arms) + len(self.coins)):
            on = (draw.random(count) < 0.5).astype(np.uint64)
            masks = masks | np.left_shift(on, np.uint64(bit))
        return Block(
            self.stage,
            (*self.arms, *self.coins),
            masks,
            levels,
            (*chances, *[0.5] * len(self.coins)),
            self.holds,
            True,
            self.doses,
            len(self.coins),
        )

    def _drawn(
        self, draw: np.random.Generator, count: int, now: Now, cap: float
    ) -> tuple[Masks, Levels, list[float]]:
        """Masks and levels that the slowdown of the whole run allows."""
        room = now.room(0.97 * cap, count)
        doses = range(len(self.doses))
        # The last row is of slots without an arm.
        costs = np.array(
            [[cost(arm, now, k) for k in doses] for arm in self.arms]
            + [[0.0 for _ in doses]]
        )
        chances = list(self.chances)
        for _ in range(TRIES):
            masks, hold = one_at_a_time(draw, count, chances, self.holds, even=True)
            level = np.minimum(draw.integers(0, 4, count + 1), doses[-1])[hold]
            which = np.where(masks > 0, np.log2(np.maximum(masks, 1)).astype(int), -1)
            if float(costs[which, level].sum()) <= room:
                return masks, level.astype(np.uint8), chances
            chances = [FEWER * chance for chance in chances]
        return np.zeros(count, np.uint64), np.zeros(count, np.uint8), chances
