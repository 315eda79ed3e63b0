# SPDX-License-Identifier: MIT
"""Which runs are made, in which order.

A block has one run of every arm: the undelayed baseline and one target each. The order
within a block is drawn at random, so that drift (temperature, caches, other load) affects
all arms alike; each arm is compared only with the baseline of its own block. This is a
randomised complete block design (Box, Hunter & Hunter, Statistics for Experimenters, 2nd
ed., chapter 4).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

from speed_bump.config import Target

# The delays of a target together, as a share of the undelayed time.
SHARE = 0.25
# Shorter delays are not chosen: the hook's error of a few ns would be a large part.
MIN_DELAY_NS = 250
MAX_DELAY_NS = 1_000_000_000


@dataclass(frozen=True)
class Arm:
    """A kind of run: only ``target`` is delayed, by ``delay_ns``; None: nothing is."""

    target: Target | None
    delay_ns: int = 0

    @property
    def name(self) -> str:
        return self.target.pattern if self.target else "baseline"

    @property
    def short(self) -> str:
        """The name with only the last part of a path."""
        if self.target and self.target.native:
            return f"{os.path.basename(self.target.left)}:{self.target.right}"
        return self.name


BASELINE = Arm(None)


@dataclass(frozen=True)
class Trial:
    """One run to make: ``number`` of ``total``, in ``block``, all from 1."""

    number: int
    total: int
    block: int
    arm: Arm


def plan(arms: list[Arm], blocks: int, seed: int) -> Iterator[Trial]:
    """The runs of an experiment, in their order."""
    order = random.Random(seed)
    every = [BASELINE, *arms]
    total = blocks * len(every)
    number = 0
    for block in range(1, blocks + 1):
        for arm in order.sample(every, len(every)):
            number += 1
            yield Trial(number, total, block, arm)


def choose_delay(calls: int, wall_ns: int) -> int:
    """A delay that makes a program slower by about a quarter if all of it arrives.

    This stands out of the noise of a few runs and does not change the program's behaviour
    much. Rounded to two digits.
    """
    delay_ns = SHARE * wall_ns / max(calls, 1)
    delay_ns = min(max(delay_ns, MIN_DELAY_NS), MAX_DELAY_NS)
    return int(float(f"{delay_ns:.1e}"))
