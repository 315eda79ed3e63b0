# SPDX-License-Identifier: MIT
"""Which function limits on which rank, and which ranks wait for which.

The own work of a rank is its step without the time that it waited for other ranks. It is
regressed on the delays of the rank itself, which gives each function's part of the
rank's own critical path. This involves no maximum over ranks, so all ranks are measured
in the same steps. Waits show, without any delay, which rank the others wait for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from speed_bump.experiment.fit.columns import Table
from speed_bump.experiment.fit.effects import AT_ONCE, regress
from speed_bump.experiment.fit.interval import (
    CONFIDENCE,
    Interval,
    around,
    normal_quantile,
    quantile,
)
from speed_bump.experiment.fit.noise import ages
from speed_bump.experiment.job_ranks import Rank, Ranks
from speed_bump.experiment.record import Floats, Integers, Record

# A function delayed in fewer steps than these has no answer.
MIN_DELAYED = 8
MIN_STEPS = 24
# A rank limits if it is last in more than this part of the steps, and the others wait
# longer than it does by this part of a step.
OFTEN = 0.5
LATE = 0.05
# Ranks in one place differ by less than this factor in their own work.
ALIKE = 1.1
# Among more ranks than these, some would differ by chance alone.
FEW = 4


@dataclass(frozen=True)
class Place:
    """One rank, or several that are alike.

    Args:
        own_ns: median of its own work in a step
        wait_ns: median of its waiting in a step
        last: the part of the steps in which it waited least
        cells: by function, the part of a delay that arrives in its own work; None if
            unknown
    """

    ranks: tuple[Rank, ...]
    own_ns: float
    wait_ns: float
    last: float
    cells: tuple[Interval | None, ...]


@dataclass(frozen=True)
class Places:
    """All ranks, in their order; ``step_ns`` is the median of a step."""

    functions: tuple[str, ...]
    places: tuple[Place, ...]
    step_ns: float

    @property
    def limiting(self) -> Place | None:
        """The place that the others wait for in most steps; None if there is none."""
        late = max(self.places, key=lambda place: place.last, default=None)
        if late is None or late.last <= OFTEN or len(self.places) < 2:
            return None
        longer = self._wait_without(late) - late.wait_ns
        return late if longer > LATE * self.step_ns else None

    @property
    def wider(self) -> float:
        """How much wider intervals are to hold for all ranks and functions at once.

        Bonferroni's correction: of many cells, some are outside their own 95% interval.
        """
        cells = len(self.places) * len(self.functions)
        if len(self.places) <= FEW or not cells:
            return 1.0
        return normal_quantile(1 - (1 - CONFIDENCE) / 2 / cells) / quantile(1_000)

    @property
    def others_wait_ns(self) -> float:
        """How long the others wait for the one that limits (median)."""
        return self._wait_without(self.limiting)

    def _wait_without(self, one: Place | None) -> float:
        waits = [place.wait_ns for place in self.places if place is not one]
        return float(np.median(waits)) if waits else 0.0


def of_record(record: Record) -> Places | None:
    """Compute the places of a record of ``rank``; None without ranks or waits."""
    if record.ranks is None or not len(record.slots):
        return None
    slots = record.slots
    return places(
        record.functions, record.ranks, slots.number, slots.run, slots.good, record.shares
    )


def places(
    functions: Sequence[str],
    ranks: Ranks,
    number: Integers,
    run: Integers,
    good: npt.NDArray[np.bool_],
    shares: Mapping[str, float] | None = None,
) -> Places | None:
    """Regress own work of each rank on its own delays; None if waits are unknown.

    Args:
        number, run: of each row, to find gaps
        good: rows in which nothing is missing
        shares: the share of a CPU that a function had while it was delayed, if not all
    """
    share = np.array([(shares or {}).get(name, 1.0) for name in functions])
    waited = ranks.waited_ns
    if not np.isfinite(waited[good]).any():
        return None
    rows = good & np.isfinite(waited).all(axis=1)
    if rows.sum() < MIN_STEPS:
        return None
    least = np.argmin(np.where(np.isfinite(waited), waited, np.inf), axis=1)
    found = []
    for r, rank in enumerate(ranks.who):
        usable = good & np.isfinite(waited[:, r]) & np.isfinite(ranks.time_ns[:, r])
        own = ranks.time_ns[:, r] - waited[:, r]
        found_cells = _cells(
            own, ranks.delivered_ns[:, r], ages(number, run, usable), run
        )
        cells = tuple(
            cell and widened(cell, part)
            for cell, part in zip(found_cells, share, strict=True)
        )
        quiet = usable & ~(np.nan_to_num(ranks.delivered_ns[:, r]) > 0).any(axis=1)
        seen = quiet if quiet.sum() >= MIN_STEPS else usable
        found.append(
            Place(
                (rank,),
                float(np.median(own[seen])) if seen.any() else float("nan"),
                float(np.median(waited[seen, r])) if seen.any() else float("nan"),
                float((least[rows] == r).mean()),
                cells,
            )
        )
    step = float(np.median(np.nanmean(ranks.time_ns[rows], axis=1)))
    return Places(tuple(functions), tuple(found), step)


def widened(found: Interval, share: float) -> Interval:
    """The interval of what arrives by the wall, if delays had a share of a CPU.

    By the wall clock a delay took between its CPU time and that divided by the share: the
    mean is over delays most of which had a CPU of their own and some of which had none
    for a long time.
    """
    low = min(found.low, found.low * share)
    high = max(found.high, found.high * share)
    return Interval(found.value * share**0.5, low, high)


def _cells(
    own: Floats, delivered: npt.NDArray[np.floating], age: Integers, run: Integers
) -> tuple[Interval | None, ...]:
    usable = age >= 0
    width = delivered.shape[1]
    cells: list[Interval | None] = [None] * width
    base = float(np.median(own[usable])) if usable.any() else 0.0
    x = np.nan_to_num(delivered.astype(np.float64))
    known = np.flatnonzero(((x > 0) & usable[:, None]).sum(axis=0) >= MIN_DELAYED)
    if base <= 0 or not len(known):
        return tuple(cells)
    n = len(own)
    y = np.where(usable, own, np.nan) / base
    nothing = np.zeros((n, 0))
    table = Table(
        base, y, y, y, age, run, [], x[:, known] / base, np.zeros(0, np.int64), nothing,
        {}, None, [], 0.0,
    )  # fmt: skip
    fit = regress(y, table.x, nothing, table, None, AT_ONCE)
    if fit is None:
        return tuple(cells)
    for k, at in enumerate(known):
        if np.isfinite(fit.c[k]) and fit.model[k] > 0:
            cells[at] = around(float(fit.c[k]), float(fit.model[k]), fit.df)
    return tuple(cells)


def agree(cells: Sequence[Interval | None], wider: float = 1.0) -> bool:
    """Whether all known intervals, widened by the factor, contain a common value."""
    known = [cell for cell in cells if cell is not None]
    return not known or max(c.value - wider * c.half for c in known) <= min(
        c.value + wider * c.half for c in known
    )


def merged(found: Places, most: int) -> Places:
    """Join ranks that are alike into one place, for about ``most`` places.

    The one that limits stays separate.
    """
    if len(found.places) <= most:
        return found
    limiting = found.limiting
    wider = found.wider
    groups: list[_Group] = []
    for place in found.places:
        low, high = _ends(place, wider)
        for group in groups:
            apart = place is limiting or group.places[0] is limiting
            if not apart and group.take(place, low, high):
                break
        else:
            groups.append(_Group([place], low, high, place.own_ns, place.own_ns))
    joined = tuple(_joined(group.places) for group in groups)
    return Places(found.functions, joined, found.step_ns)


def _ends(place: Place, wider: float) -> tuple[Floats, Floats]:
    """All intervals, widened by the factor; unknown ones are None."""
    cells = place.cells
    value = np.array([cell.value if cell else 0.0 for cell in cells])
    half = np.array([cell.half * wider if cell else np.inf for cell in cells])
    return value - half, value + half


@dataclass
class _Group:
    """Ranks that are alike: all of their intervals have a value in common."""

    places: list[Place]
    low: Floats
    high: Floats
    least_ns: float
    most_ns: float

    def take(self, place: Place, low: Floats, high: Floats) -> bool:
        """Add the place if it belongs here; returns whether it does."""
        low, high = np.maximum(self.low, low), np.minimum(self.high, high)
        least = min(self.least_ns, place.own_ns)
        most = max(self.most_ns, place.own_ns)
        if most > ALIKE * least or (low > high).any():
            return False
        self.places.append(place)
        self.low, self.high, self.least_ns, self.most_ns = low, high, least, most
        return True


def _joined(group: Sequence[Place]) -> Place:
    ranks = tuple(rank for place in group for rank in place.ranks)
    cells = tuple(_mean(column) for column in zip(*(p.cells for p in group), strict=True))
    return Place(
        ranks,
        float(np.mean([p.own_ns for p in group])),
        float(np.mean([p.wait_ns for p in group])),
        float(np.sum([p.last for p in group])),
        cells,
    )


def _mean(cells: Sequence[Interval | None]) -> Interval | None:
    """The mean over ranks that agree, weighted by precision."""
    known = [cell for cell in cells if cell is not None and cell.half > 0]
    if not known:
        return None
    weights = np.array([1 / cell.half**2 for cell in known])
    value = float((weights * [cell.value for cell in known]).sum() / weights.sum())
    half = float(1 / np.sqrt(weights.sum()))
    return Interval(value, value - half, value + half)
