# SPDX-License-Identifier: MIT
"""Blocks for the response curve of a few functions: every hold has a level of its own."""

from __future__ import annotations

import numpy as np

from speed_bump.experiment.fit.columns import usual
from speed_bump.experiment.record import MAX_ARMS, Arm, Block, Record
from speed_bump.experiment.slots.plan import (
    HOLDS,
    SHAM,
    chance_of_one,
    delay_for,
    least_ns,
    one_at_a_time,
)

SLOTS = 160
REST = 20
MIN_DELAY_NS = 250


class Sweep:
    """Measures at the given levels until the time is up: a curve has no single width.

    Args:
        levels: delays, in parts of the undelayed time of a slot
        max_slowdown: delays over the whole run stay below it
    """

    def __init__(self, levels: tuple[float, ...], max_slowdown: float, seed: int) -> None:
        self.levels = levels
        self.max_slowdown = max_slowdown
        self.seed = seed

    def next_block(self, record: Record) -> Block | None:
        """The next block: the arms are the functions, one at a time."""
        slots = record.slots
        quiet = slots.good & (slots.mask == 0)
        if not quiet.any():
            return None
        slot_ns = usual(slots.time_ns[quiet])
        calls = slots.calls[quiet].mean(axis=0)
        arms = [
            Arm(
                (name,),
                (
                    tuple(
                        delay_for(
                            dose,
                            slot_ns,
                            float(calls[k]),
                            least_ns(name, MIN_DELAY_NS),
                        )
                        for dose in self.levels
                    ),
                ),
            )
            for k, name in enumerate(record.functions)
            if calls[k] > 0
        ][: MAX_ARMS - 1]
        if not arms:
            return None
        arms.append(SHAM)
        chance = chance_of_one(len(arms))
        # What delays in this part of the slots cost, as a part of the throughput.
        busy = chance * (len(arms) - 1) * float(np.mean(self.levels))
        cap = self.max_slowdown / (1 - self.max_slowdown)
        rest = max(REST, int(SLOTS * max(busy / cap - 1, 0)))
        draw = np.random.default_rng((self.seed, len(record.blocks)))
        chances = (chance,) * len(arms)
        masks, hold = one_at_a_time(draw, SLOTS, chances, HOLDS)
        levels = draw.integers(0, len(self.levels), int(np.max(hold)) + 1)[hold]
        return Block(
            "levels",
            tuple(arms),
            np.concatenate([masks, np.zeros(rest, np.uint64)]),
            np.concatenate([levels, np.zeros(rest)]).astype(np.uint8),
            chances,
            HOLDS,
            True,
            self.levels,
        )
