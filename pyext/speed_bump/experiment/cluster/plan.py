# SPDX-License-Identifier: MIT
"""Which function is delayed in which step, as every rank computes it by itself.

In block b (two steps) a function is on or off on all ranks, by a generator that is keyed
by (seed, b, function): no rank has to ask another.

Where groups of ranks are to be confirmed one function at a time is on, as delays on
different ranks eat each other's slack: on all ranks, only on a group, or on all but it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from speed_bump.experiment.record import MAX_ARMS

# Steps of a block, and the part of the blocks in which a function is on.
BLOCK = 2
CHANCE = 0.25
# With the first steps of a process nothing is delayed: they say how long a step is, and
# what is called in it.
CENSUS = 40
# Numbers of steps of one attempt (PLAN_ATTEMPT_SLOTS of libsb).
ATTEMPT = 1 << 20
# Blocks for which one digest is good.
DIGEST = 64
# Of the blocks of a confirmation those in which nothing is on.
QUIET = 0.2
# Groups that are confirmed in one run, at most.
MAX_GROUPS = 5
# Of doses and steps are taken the nearest of these, so that ranks agree.
GRID = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


def _drawn(seed: int, name: str, first: int, count: int) -> npt.NDArray[np.uint8]:
    """Of each step a number below 256, the same for all steps of a block."""
    begin = first // BLOCK // DIGEST
    end = (first + count - 1) // BLOCK // DIGEST + 1 if count else begin
    digests = [
        hashlib.blake2b(
            name.encode(errors="surrogateescape"),
            digest_size=DIGEST,
            key=f"{seed}:{k}".encode(),
        ).digest()
        for k in range(begin, end)
    ]
    drawn = np.frombuffer(b"".join(digests), np.uint8)
    block = np.arange(first, first + count) // BLOCK - begin * DIGEST
    return np.asarray(drawn[block], np.uint8)


def _is_census(first: int, count: int) -> npt.NDArray[np.bool_]:
    return np.asarray(np.arange(first, first + count) % ATTEMPT < CENSUS)


def is_on(seed: int, name: str, first: int, count: int) -> npt.NDArray[np.bool_]:
    """Of steps from ``first`` on, whether the function is delayed in them."""
    on = _drawn(seed, name, first, count) < 256 * CHANCE
    return np.asarray(on & ~_is_census(first, count))


def masks(
    seed: int, names: Sequence[str], first: int, count: int
) -> npt.NDArray[np.uint64]:
    """Of each step the arms that are on: of a function its place in ``names``."""
    found = np.zeros(count, np.uint64)
    for arm, name in enumerate(names):
        on = is_on(seed, name, first, count)
        found |= on.astype(np.uint64) << np.uint64(arm)
    return found


def arms_of_group(groups: int) -> int:
    """Arms of the ranks of each group, and of those that are in none."""
    return MAX_ARMS // (groups + 1)


def patterns(groups: int) -> npt.NDArray[np.bool_]:
    """Where a function may be on: a row a way, a column a group.

    The first column is of ranks in no group, the first row is on all ranks. Then come,
    for each group, it alone and all but it.
    """
    alone = np.eye(groups + 1, dtype=bool)[1:]
    both = np.stack([alone, ~alone], axis=1).reshape(-1, groups + 1)
    return np.concatenate([np.ones((1, groups + 1), bool), both])


def confirming(
    seed: int, names: Sequence[str], groups: int, first: int, count: int
) -> npt.NDArray[np.uint64]:
    """As ``masks()``, one function at a time, in one of ``patterns()``.

    The arms of group k are ``k * arms_of_group()`` later than those of ranks in none.
    """
    best = np.full(count, -1, np.int16)
    chosen = np.full(count, -1)
    # In an order that is that of all nodes.
    for arm in sorted(range(len(names)), key=names.__getitem__):
        bid = _drawn(seed, names[arm], first, count).astype(np.int16)
        higher = bid > best
        best[higher], chosen[higher] = bid[higher], arm
    ways = patterns(groups)
    drawn = _drawn(seed, "\0where", first, count) / 256
    way = np.floor((drawn - QUIET) / (1 - QUIET) * len(ways)).astype(int)
    quiet = (way < 0) | (chosen < 0) | _is_census(first, count)
    found = np.zeros(count, np.uint64)
    for group in range(groups + 1):
        on = ways[np.maximum(way, 0), group] & ~quiet
        arm = np.maximum(chosen, 0) + group * arms_of_group(groups)
        found |= on.astype(np.uint64) << arm.astype(np.uint64)
    return found


def ranks_of(text: str) -> frozenset[int]:
    """Such as "1" or "0,4-7".

    Raises:
        ValueError: it is not such a list
    """
    found: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.partition("-")
        found |= set(range(int(low), int(high if dash else low) + 1))
    if not found or min(found) < 0:
        raise ValueError(text)
    return frozenset(found)


def rounded(value: float) -> float:
    """The nearest number of a coarse grid: what ranks measure differs a little."""
    if value <= 0:
        return 0.0
    power = 10.0 ** np.floor(np.log10(value))
    return float(min(GRID, key=lambda step: abs(value / power - step)) * power)


@dataclass(frozen=True)
class Setup:
    """What all members of a run were told alike; ``delay_ns`` 0: chosen by ``dose``.

    ``dose`` is the delay of a function in a step, in parts of the step.
    """

    seed: int
    targets: tuple[str, ...]
    progress: tuple[str, ...]
    delay_ns: int
    dose: float
    version: str
    # Ranks of which it is to be confirmed that it is they, as ``ranks_of()`` reads them.
    groups: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Differs where anything differs."""
        told = (self.targets, self.progress, self.delay_ns, self.dose, self.groups)
        return hashlib.blake2b(repr(told).encode(), digest_size=6).hexdigest()
