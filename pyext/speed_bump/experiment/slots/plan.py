# SPDX-License-Identifier: MIT
"""Drawing which arm is on in which slot: holds, masks, levels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from speed_bump.experiment.record import Arm, Block, Delay

Masks = npt.NDArray[np.uint64]
Levels = npt.NDArray[np.uint8]

# Lengths of a hold in slots, equally likely. Longer ones cost precision with slow noise.
HOLDS = (1, 2, 3)
PEDESTAL_HOLDS = (1, 2)
# A round of holds is not shorter, so that what comes next can't be told from before.
MIN_ROUND = 16
# The maximal delay of a call.
MAX_DELAY_NS = 1_000_000_000
NATIVE_MIN_DELAY_NS = 10_000
MAX_EVERY = 1_000_000
SHAM = Arm(())


def chance_of_one(arms: int) -> float:
    """The probability of each arm in a hold, one arm at a time.

    Nothing is on sqrt(arms) times as often as each arm: the optimum if all are compared
    with one baseline (Dunnett, JASA 50, 1955).
    """
    return 1 / (arms + math.sqrt(arms))


def least_ns(name: str, min_delay_ns: int) -> int:
    """The shortest delay of a call of this function.

    Besides its delay, a call of a native function that is delayed takes some tenths of a
    microsecond more than one that is not, because caches and branch predictors have
    forgotten the program: 0.4 us after a delay of 1.2 us on Linux 6.18 by BPF, which was
    an effect of 1.35 instead of 1.
    """
    least = NATIVE_MIN_DELAY_NS if name.startswith("/") else 1
    return max(least, min_delay_ns)


def delay_for(
    dose: float,
    slot_ns: float,
    calls: float,
    min_delay_ns: int,
    max_every: int = MAX_EVERY,
) -> Delay:
    """The delay of a call, such that a slot is delayed by ``dose`` of its time.

    Args:
        calls: of the function per slot, on average
        min_delay_ns: the shortest possible delay; below it, every Nth call is delayed
    """
    wanted = dose * slot_ns / max(calls, 1e-9)
    least = max(min_delay_ns, 1)
    if wanted >= least:
        return Delay(int(min(wanted, MAX_DELAY_NS)))
    every = min(max(math.ceil(least / max(wanted, 1e-9)), 1), max_every)
    return Delay(max(round(wanted * every), least), every)


def _hold_of(
    draw: np.random.Generator, count: int, holds: Sequence[int]
) -> npt.NDArray[np.int64]:
    """The index of the hold of each slot; the first hold may have begun before."""
    lengths = draw.choice(np.asarray(holds), count + 1)
    lengths[0] = draw.integers(1, lengths[0] + 1)
    return np.repeat(np.arange(count + 1), lengths)[:count]


def _in_rounds(
    draw: np.random.Generator, count: int, chance: float
) -> npt.NDArray[np.float64]:
    """Points between 0 and 1, even over all, and over each round of ``1 / chance``.

    They are a systematic sample. Each round has every nth point of it, in random order.
    """
    each = max(math.ceil(1 / chance) if chance > 0 else count, MIN_ROUND)
    rounds = max(round(count / each), 1)
    indices = [draw.permutation(np.arange(k, count, rounds)) for k in range(rounds)]
    order = np.concatenate([indices[k] for k in draw.permutation(rounds)])
    return np.asarray((order + draw.random()) / max(count, 1))


def one_at_a_time(
    draw: np.random.Generator,
    count: int,
    chances: Sequence[float],
    holds: Sequence[int],
    even: bool = False,
) -> tuple[Masks, npt.NDArray[np.int64]]:
    """Masks of ``count`` slots with at most one arm on, and the hold of each slot.

    Args:
        even: each arm has as many holds as its chance says, or one more: they are drawn
            systematically, in random order (Madow & Madow, Ann. Math. Stat. 15, 1944). If
            each hold is drawn by itself, an arm out of twenty often has none in a short
            experiment. The same is true of each round in which an arm comes once, because
            the program may end, or the budget, before the block does.
    """
    hold = _hold_of(draw, count, holds)
    edges = np.cumsum(np.asarray(chances, float))
    if even:
        used = int(hold[-1]) + 1 if len(hold) else 0
        points = _in_rounds(draw, used, max(chances, default=0.0))
    else:
        points = draw.random(count + 1)
    which = np.searchsorted(edges, points, side="right")
    bits = np.where(
        which < len(edges),
        np.left_shift(np.uint64(1), np.minimum(which, 63).astype(np.uint64)),
        np.uint64(0),
    )
    return bits[hold].astype(np.uint64), hold


def each_on_its_own(
    draw: np.random.Generator, count: int, chances: Sequence[float], holds: Sequence[int]
) -> Masks:
    """Masks in which each arm is on at random, with holds of its own."""
    masks = np.zeros(count, np.uint64)
    for bit, chance in enumerate(chances):
        hold = _hold_of(draw, count, holds)
        on = (draw.random(count + 1) < chance)[hold]
        masks |= np.left_shift(on.astype(np.uint64), np.uint64(bit))
    return masks


def _hadamard(size: int) -> npt.NDArray[np.int64]:
    matrix = np.array([[1]])
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def balanced(draw: np.random.Generator, arms: int) -> Masks:
    """A block in which each arm is on in half of the slots, and each pair in a quarter.

    Columns of a Hadamard matrix (Plackett & Burman, Biometrika 33, 1946), with columns,
    signs and rows at random. It is the least power of two with a column for each arm, 16
    or more.
    """
    size = 16
    while size <= arms:
        size *= 2
    columns = 1 + draw.permutation(size - 1)[:arms]
    table = _hadamard(size)[:, columns] * draw.choice((-1, 1), arms)
    on = table[draw.permutation(size)] > 0
    bits = np.left_shift(np.uint64(1), np.arange(arms, dtype=np.uint64))
    return np.asarray((on * bits).sum(1), np.uint64)


def taken_in_turn(draw: np.random.Generator, arms: int) -> Masks:
    """A block with each arm on in one slot, and sqrt(arms) slots with none, shuffled."""
    nothing = max(1, round(math.sqrt(arms)))
    bits = np.left_shift(np.uint64(1), np.arange(arms, dtype=np.uint64))
    masks = np.concatenate([bits, np.zeros(nothing, np.uint64)])
    return np.asarray(draw.permutation(masks), np.uint64)


def pedestal(
    draw: np.random.Generator, steps: int, per: int, settle: int
) -> tuple[Masks, Levels, tuple[int, ...]]:
    """One arm on pedestals of ``steps`` heights, the highest first, and one more step.

    Level k is a delay of k + 1 steps; on pedestal k it is that of k or of k - 1, on
    pedestal 0 that of 0 or nothing. Returns masks, levels and the lengths of the parts.
    """
    masks, levels, parts = [], [], []
    for height in reversed(range(steps)):
        count = per + (settle if height == steps - 1 else 0)
        hold = _hold_of(draw, count, PEDESTAL_HOLDS)
        on = (draw.random(count + 1) < 0.5)[hold]
        masks.append((on | (height > 0)).astype(np.uint64))
        levels.append(np.where(on, height, max(height - 1, 0)).astype(np.uint8))
        parts.append(count)
    return np.concatenate(masks), np.concatenate(levels), tuple(parts)


def rest(count: int) -> Block:
    """A block without any delay."""
    return Block(
        "census",
        (),
        np.zeros(count, np.uint64),
        np.zeros(count, np.uint8),
        (),
        (1,),
        True,
        (),
    )
