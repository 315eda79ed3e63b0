# SPDX-License-Identifier: MIT
"""Which function is delayed in which step, computed by every rank for itself.

In block b (two steps) a function is on or off on all ranks, by a generator that is keyed
by (seed, b, function), so ranks need not communicate.

When groups of ranks are to be confirmed, one function at a time is on, because delays on
different ranks use up each other's slack: on all ranks, only on a group, or on all but
it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from speed_bump.experiment.record import MAX_ARMS

# Steps of a block, and the part of the blocks in which a function is on.
BLOCK = 2
CHANCE = 0.25
# The first steps of a process have no delays: they show how long a step is, and what is
# called in it.
CENSUS = 40
# Numbers of steps of one attempt (PLAN_ATTEMPT_SLOTS of libsb).
ATTEMPT = 1 << 20
# Blocks for which one digest is used.
DIGEST = 64
# The part of the blocks of a confirmation in which nothing is on.
QUIET = 0.2
# At most this many groups are confirmed in one run.
MAX_GROUPS = 5
# Doses and steps are rounded to these, so that ranks agree.
GRID = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


def _drawn(seed: int, name: str, first: int, count: int) -> npt.NDArray[np.uint8]:
    """A number below 256 for each step, the same for all steps of a block."""
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
    """Whether the function is delayed in each step from ``first`` on."""
    on = _drawn(seed, name, first, count) < 256 * CHANCE
    return np.asarray(on & ~_is_census(first, count))


def masks(
    seed: int, names: Sequence[str], first: int, count: int
) -> npt.NDArray[np.uint64]:
    """The arms that are on in each step: of a function its index in ``names``."""
    found = np.zeros(count, np.uint64)
    for arm, name in enumerate(names):
        on = is_on(seed, name, first, count)
        found |= on.astype(np.uint64) << np.uint64(arm)
    return found


def arms_of_group(groups: int) -> int:
    """The arms of the ranks of each group, and of those in none."""
    return MAX_ARMS // (groups + 1)


def patterns(groups: int) -> npt.NDArray[np.bool_]:
    """The sets of ranks on which a function may be on: rows are ways, columns groups.

    The first column is for ranks in no group. The first row is on all ranks; then come,
    for each group, the group alone and all but it.
    """
    alone = np.eye(groups + 1, dtype=bool)[1:]
    both = np.stack([alone, ~alone], axis=1).reshape(-1, groups + 1)
    return np.concatenate([np.ones((1, groups + 1), bool), both])


def confirming(
    seed: int, names: Sequence[str], groups: int, first: int, count: int
) -> npt.NDArray[np.uint64]:
    """Like ``masks()``, with one function at a time, in one of ``patterns()``.

    The arms of group k follow those of ranks in no group by ``k * arms_of_group()``.
    """
    best = np.full(count, -1, np.int16)
    chosen = np.full(count, -1)
    # In the same order on all nodes.
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
    """Parse a list such as "1" or "0,4-7".

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
    """The nearest number of a coarse grid: measurements of ranks differ a little."""
    if value <= 0:
        return 0.0
    power = 10.0 ** np.floor(np.log10(value))
    return float(min(GRID, key=lambda step: abs(value / power - step)) * power)


def usual_calls(calls: npt.NDArray[np.integer]) -> float:
    """The calls of a function in a step, from those in each; ranks agree if they can.

    Ranks begin to count in different steps, which a mean would show, but a median does
    not. Functions that are called in less than half of the steps have the mean since
    their first call.
    """
    usual = float(np.median(calls)) if len(calls) else 0.0
    if usual >= 1 or not np.any(calls):
        return usual
    return float(np.mean(calls[np.flatnonzero(calls)[0] :]))


@dataclass(frozen=True)
class Setup:
    """The settings that all members of a run share; ``delay_ns`` 0: chosen by ``dose``.

    ``dose`` is the delay of a function in a step, in parts of the step.
    """

    seed: int
    targets: tuple[str, ...]
    progress: tuple[str, ...]
    delay_ns: int
    dose: float
    version: str
    # The groups of ranks to be confirmed, as ``ranks_of()`` parses them.
    groups: tuple[str, ...] = ()
    # Whether a leader may say that functions are decided.
    live: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Setup:
        """What ``asdict()`` made, also if it was JSON meanwhile.

        Raises:
            TypeError: it is something else
        """
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        return cls(**plain)

    @property
    def key(self) -> str:
        """A digest that differs if any setting differs."""
        told = (self.targets, self.progress, self.delay_ns, self.dose, self.groups)
        return hashlib.blake2b(repr(told).encode(), digest_size=6).hexdigest()
