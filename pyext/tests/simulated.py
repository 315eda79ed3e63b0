# SPDX-License-Identifier: MIT
"""Records of programs that don't exist, with a truth that is known exactly."""

from __future__ import annotations

import random
from collections.abc import Callable

from speed_bump.experiment.records import (
    FORMAT,
    SHAM,
    SOLO,
    SPIN,
    Census,
    Pair,
    Record,
    Window,
)

UNIT_NS = 1_000_000


def record(seed: int, names: tuple[str, ...] = ("m:f",)) -> Record:
    header = {"format": FORMAT, "seed": seed, "candidates": list(names)}
    found = Record(header)
    samples = {name: 300 // len(names) for name in names}
    calls = dict.fromkeys(names, 1000)
    found.censuses.append(
        Census(0, 1, 1000 * UNIT_NS, 1000, calls, 1000, samples, "stack samples")
    )
    return found


def window(time_ns: float, units: int, delay_ns: float) -> Window:
    """``units`` in ``time_ns``, with a delay per unit."""
    measured = int(delay_ns * units)
    return Window(0, int(time_ns), int(time_ns), units, units, units, measured, measured)


def noise(draw: random.Random) -> float:
    """Of a window, in parts of its time: now and then the machine does something else."""
    value = draw.gauss(0, 0.02)
    if draw.random() < 0.05:
        value += draw.expovariate(5)
    return value


def pair(
    draw: random.Random,
    names: tuple[str, ...],
    share: float,
    effect: Callable[[float], float],
    *,
    kind: str = SOLO,
    length_ns: int = 8_000_000,
    at_ns: int = 0,
    units: int = 8,
) -> Pair:
    """``effect`` says the extra time per unit, ns, of a delay per unit, ns."""
    asked = 0.0 if kind == SHAM else share * UNIT_NS * len(names)
    base = UNIT_NS * units
    off = window(base * (1 + noise(draw)), units, 0)
    on = window((UNIT_NS + effect(asked)) * units * (1 + noise(draw)), units, asked)
    delays = tuple(int(share * UNIT_NS) for _ in names)
    every = tuple(1 for _ in names)
    return Pair(
        at_ns, 1, kind, names, delays, every, share, length_ns, SPIN, True, off, on
    )


def add(
    found: Record,
    draw: random.Random,
    name: str,
    effect: Callable[[float], float],
    *,
    shares: tuple[float, ...] = (0.1, 0.3),
    pairs: int = 100,
    length_ns: int = 8_000_000,
) -> None:
    for i in range(pairs):
        share = shares[i % len(shares)]
        at_ns = len(found.pairs) * 20_000_000
        found.pairs.append(
            pair(draw, (name,), share, effect, length_ns=length_ns, at_ns=at_ns)
        )
