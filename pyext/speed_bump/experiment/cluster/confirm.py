# SPDX-License-Identifier: MIT
"""Testing which ranks limit: delays on them alone, and on all others.

A delay on all ranks but a group has the same effect as a faster group. If such a delay
does not make the step longer, making a function faster *on that group* gains as much as
making it faster on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from speed_bump.experiment.cluster import steps
from speed_bump.experiment.cluster.places import Places, less_displaced, widened
from speed_bump.experiment.cluster.plan import patterns, ranks_of
from speed_bump.experiment.fit.effects import Fit
from speed_bump.experiment.fit.interval import Interval, around
from speed_bump.experiment.job_ranks import Ranks
from speed_bump.experiment.record import Floats, Integers

# Fewer undelayed steps than these predict nothing.
MIN_QUIET = 12
# A difference from the expectation by more than this, beyond its ±, is reported.
FAR = 0.1


@dataclass(frozen=True)
class Expected:
    """The expected effect of a delay on the group alone, and on all but it."""

    alone: float
    without: float


@dataclass(frozen=True)
class Confirmed:
    """A function and a group: the part of a delay that arrives in the step, by its place.

    ``gain``: what the step gains by a saving on the group alone, that is ``everywhere``
    less ``without``. None: the steps don't say. ``delay_ns`` is that in a step.
    """

    name: str
    group: str
    everywhere: Interval | None
    alone: Interval | None
    without: Interval | None
    gain: Interval | None
    delay_ns: float
    expected: Expected | None

    @property
    def differs(self) -> bool:
        """Whether the experiment differs from what waits and own work predict."""
        if self.expected is None:
            return False
        pairs = ((self.alone, self.expected.alone), (self.without, self.expected.without))
        return any(
            found is not None and not found.low - FAR <= number <= found.high + FAR
            for found, number in pairs
        )


def members(ranks: Ranks, group: str) -> npt.NDArray[np.bool_]:
    """Whether each rank is in the group."""
    inside = ranks_of(group)
    return np.array([rank.rank in inside for rank in ranks.who], bool)


def undelayed(ranks: Ranks, good: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The good steps without a delay on any rank."""
    # NaN is not above 0.
    return np.asarray(good & ~(ranks.delivered_ns > 0).any(axis=(1, 2)))


def expected(
    places: Places | None,
    ranks: Ranks,
    quiet: npt.NDArray[np.bool_],
    inside: npt.NDArray[np.bool_],
    name: str,
    delay_ns: float,
) -> Expected | None:
    """Predict from the own work of undelayed steps: the slowest rank ends the step.

    Args:
        quiet: these steps, as ``undelayed()`` finds them
    """
    if places is None or not inside.any() or inside.all() or delay_ns <= 0:
        return None
    k = places.functions.index(name)
    cells = [place.cells[k] for place in places.places]
    own = ranks.time_ns - ranks.waited_ns
    quiet = quiet & np.isfinite(own).all(axis=1)
    if quiet.sum() < MIN_QUIET or any(cell is None for cell in cells):
        return None
    own = own[quiet]
    added = delay_ns * np.array([cell.value for cell in cells if cell is not None])

    def paid(where: npt.NDArray[np.bool_]) -> float:
        later = (own + added * where).max(axis=1) - own.max(axis=1)
        return float(later.mean() / delay_ns)

    return Expected(paid(inside), paid(~inside))


def confirmed(
    functions: Sequence[str],
    ranks: Ranks,
    places: Places | None,
    number: Integers,
    good: npt.NDArray[np.bool_],
    time: Floats,
    groups: Sequence[str],
    shares: Sequence[float],
) -> list[Confirmed]:
    """All functions by all groups of a run of ``--confirm``.

    Args:
        time: of each step, ns; the mean over ranks
        shares: of a CPU that each function had while it was delayed
    """
    if not functions:
        return []
    inside = np.stack([members(ranks, group) for group in groups])
    # Column 0 is for ranks in no group.
    classes = np.concatenate([~inside.any(axis=0, keepdims=True), inside])
    ways = patterns(len(groups))
    delivered = np.nan_to_num(ranks.delivered_ns).astype(float)
    calls = np.asarray((np.nan_to_num(ranks.calls) > 0).any(axis=0))
    columns: list[Floats] = []
    mixed = (delivered > 0).any(axis=1).sum(axis=1) > 1
    for k in range(len(functions)):
        callers = classes & calls[None, :, k]
        there = callers.any(axis=1)
        on = np.stack([(delivered[:, mine, k] > 0).any(axis=1) for mine in callers], 1)
        matched = np.zeros(len(on), bool)
        for way in ways:
            seen = way & there
            is_way = (on == seen).all(axis=1) & seen.any() & ~matched
            matched |= is_way
            where = (callers & way[:, None]).any(axis=0)
            mean = delivered[:, where, k].mean(axis=1) if where.any() else 0.0
            columns.append(np.where(is_way, mean, 0.0))
        # A rank that did not behave as the others.
        mixed |= on.any(axis=1) & ~matched
    x = np.stack(columns, axis=1)
    usable = good & ~mixed
    enough = ((x > 0) & usable[:, None]).sum(axis=0) >= steps.MIN_DELAYED
    at = np.flatnonzero(enough)
    fit = steps.fit(number, usable, time, x[:, at]) if len(at) else None
    place = {int(column): row for row, column in enumerate(at)} if fit else {}
    quiet = undelayed(ranks, good)
    found = []
    for k, name in enumerate(functions):
        first = k * len(ways)
        delays = x[:, first : first + len(ways)]
        delay_ns = float(delays[delays > 0].mean()) if (delays > 0).any() else 0.0
        for g, group in enumerate(groups):
            everywhere = place.get(first)
            alone = place.get(first + 1 + 2 * g)
            without = place.get(first + 2 + 2 * g)
            found.append(
                Confirmed(
                    name,
                    group,
                    _of(fit, everywhere, None, shares[k]),
                    _of(fit, alone, None, shares[k]),
                    _of(fit, without, None, shares[k]),
                    _of(fit, everywhere, without, shares[k]) if without is not None
                    else None,
                    delay_ns,
                    expected(places, ranks, quiet, inside[g], name, delay_ns),
                )
            )  # fmt: skip
    return found


def _of(
    fit: Fit | None, plus: int | None, less: int | None, share: float
) -> Interval | None:
    """The coefficient, or the difference of two of them."""
    if fit is None or plus is None:
        return None
    value, variance = float(fit.c[plus]), float(fit.c_cov[plus, plus])
    if less is not None:
        value -= float(fit.c[less])
        variance += float(fit.c_cov[less, less]) - 2 * float(fit.c_cov[plus, less])
    if not np.isfinite(value) or not variance > 0:
        return None
    arrived = widened(around(value, variance**0.5, fit.df), share)
    # Others lose as much in both of those that are compared.
    return less_displaced(arrived, share) if less is None else arrived
