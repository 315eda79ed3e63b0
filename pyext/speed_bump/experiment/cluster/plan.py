# SPDX-License-Identifier: MIT
"""Which function is delayed in which step, as every rank computes it by itself.

In block b (two steps) a function is on or off on all ranks, by a generator that is keyed
by (seed, b, function): no rank has to ask another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
# Of doses and steps are taken the nearest of these, so that ranks agree.
GRID = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


def is_on(seed: int, name: str, first: int, count: int) -> npt.NDArray[np.bool_]:
    """Of steps from ``first`` on, whether the function is delayed in them."""
    last = first + count
    begin = first // BLOCK // DIGEST
    end = (last - 1) // BLOCK // DIGEST + 1 if count else begin
    digests = [
        hashlib.blake2b(
            name.encode(errors="surrogateescape"),
            digest_size=DIGEST,
            key=f"{seed}:{k}".encode(),
        ).digest()
        for k in range(begin, end)
    ]
    drawn = np.frombuffer(b"".join(digests), np.uint8)
    block = np.arange(first, last) // BLOCK - begin * DIGEST
    census = np.arange(first, last) % ATTEMPT < CENSUS
    return np.asarray((drawn[block] < 256 * CHANCE) & ~census)


def masks(
    seed: int, names: Sequence[str], first: int, count: int
) -> npt.NDArray[np.uint64]:
    """Of each step the arms that are on: of a function its place in ``names``."""
    found = np.zeros(count, np.uint64)
    for arm, name in enumerate(names):
        on = is_on(seed, name, first, count)
        found |= on.astype(np.uint64) << np.uint64(arm)
    return found


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

    @property
    def key(self) -> str:
        """Differs where anything differs."""
        text = repr((self.targets, self.progress, self.delay_ns, self.dose))
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
