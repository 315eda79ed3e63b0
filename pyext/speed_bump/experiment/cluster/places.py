# SPDX-License-Identifier: MIT
"""Which function limits on which rank, and which ranks wait for which.

The own work of a rank is its step without the time that it waited for other ranks. It is
regressed on the delays of the rank itself, which gives each function's part of the
rank's own critical path. This involves no maximum over ranks, so all ranks are measured
in the same steps. Waits show, without any delay, which rank the others wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from speed_bump.experiment.cluster.groups import Group
from speed_bump.experiment.fit.columns import Table
from speed_bump.experiment.fit.effects import AT_ONCE, regress
from speed_bump.experiment.fit.interval import (
    CONFIDENCE,
    NORMAL,
    Interval,
    around,
    quantile,
)
from speed_bump.experiment.fit.noise import ages
from speed_bump.experiment.job_ranks import Rank, Ranks
from speed_bump.experiment.record import Floats, Integers, Record

# A function delayed in fewer steps than these has no answer.
MIN_DELAYED = 8
MIN_STEPS = 24
# A place limits if it is last in more than this part of the steps, and the others wait
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
    """All ranks, in their order; ``step_ns`` is the median of a step.

    ``groups`` are those that may limit together, or be alike. ``leads_ns`` is, for each
    of them, how much later than the last of all others its last rank is (median).
    """

    functions: tuple[str, ...]
    places: tuple[Place, ...]
    step_ns: float
    groups: tuple[Group, ...] = ()
    leads_ns: tuple[float, ...] = ()

    @cached_property
    def limiting(self) -> Place | None:
        """The place that the others wait for in most steps; None if there is none.

        If one rank does not limit, it may be a group of which each rank is last at times;
        the smallest such group is meant.
        """
        if len(self.places) < 2:
            return None
        late = max(self.places, key=lambda place: place.last)
        longer = self._wait_without((late,)) - late.wait_ns
        if late.last > OFTEN and longer > LATE * self.step_ns:
            return late
        of = {rank: place for place in self.places for rank in place.ranks}
        for group, lead_ns in sorted(
            zip(self.groups, self.leads_ns, strict=True), key=lambda x: len(x[0].ranks)
        ):
            # It is last in most steps, too, if it is later than all others in the median.
            if len(group.ranks) > 1 and lead_ns > LATE * self.step_ns:
                return _joined([of[rank] for rank in sorted(group.ranks, key=_order)])
        return None

    @property
    def wider(self) -> float:
        """How much wider intervals are to hold for all ranks and functions at once.

        Bonferroni's correction: of many cells, some are outside their own 95% interval.
        """
        cells = len(self.places) * len(self.functions)
        if len(self.places) <= FEW or not cells:
            return 1.0
        return NORMAL.inv_cdf(1 - (1 - CONFIDENCE) / 2 / cells) / quantile(1_000)

    @property
    def others_wait_ns(self) -> float:
        """How long the others wait for the place that limits (median)."""
        return self._wait_without((self.limiting,) if self.limiting else ())

    def _wait_without(self, inside: Iterable[Place]) -> float:
        some = {rank for place in inside for rank in place.ranks}
        waits = [p.wait_ns for p in self.places if some.isdisjoint(p.ranks)]
        return float(np.median(waits)) if waits else 0.0


def _order(rank: Rank) -> tuple[int, str, int]:
    return rank.rank, rank.host, rank.pid


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
    groups: Sequence[Group] = (),
) -> Places | None:
    """Regress own work of each rank on its own delays; None if waits are unknown.

    Args:
        number, run: of each row, to find gaps
        good: rows in which nothing is missing
        shares: the share of a CPU that a function had while it was delayed, if not all
        groups: of the ranks, that may limit together or be alike
    """
    share = np.array([(shares or {}).get(name, 1.0) for name in functions])
    waited = ranks.waited_ns
    if not np.isfinite(waited[good]).any():
        return None
    rows = good & np.isfinite(waited).all(axis=1)
    if rows.sum() < MIN_STEPS:
        return None
    least = last_rank(waited)
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
        # NaN is not above 0.
        quiet = usable & ~(ranks.delivered_ns[:, r] > 0).any(axis=1)
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
    leads = _leads(waited[rows], ranks.who, groups)
    return Places(tuple(functions), tuple(found), step, tuple(groups), leads)


def last_rank(waited_ns: Floats) -> Integers:
    """The column of the rank that the others waited for, in each step."""
    known = np.where(np.isfinite(waited_ns), waited_ns, np.inf)
    return np.asarray(np.argmin(known, axis=1))


def _leads(
    waited: Floats, who: Sequence[Rank], groups: Sequence[Group]
) -> tuple[float, ...]:
    """How much later the last rank of each group is than the last of all others, ns."""
    at = {rank: k for k, rank in enumerate(who)}
    leads: dict[Group, float] = {}
    for kind in dict.fromkeys(group.kind for group in groups):
        mine = [group for group in groups if group.kind == kind]
        # The last waits least. Groups of a kind are all ranks, each in one of them.
        least = np.stack(
            [waited[:, [at[rank] for rank in group.ranks]].min(axis=1) for group in mine]
        )
        first, second = np.partition(least, 1, axis=0)[:2]
        for group, waits in zip(mine, least, strict=True):
            others = np.where(waits > first, first, second)
            leads[group] = float(np.median(others - waits))
    return tuple(leads[group] for group in groups)


def widened(found: Interval, share: float) -> Interval:
    """The interval of what arrives by the wall, if delays had a share of a CPU.

    By the wall clock a delay took between its CPU time and that divided by the share: the
    mean is over delays most of which had a CPU of their own and some of which had none
    for a long time.
    """
    low = min(found.low, found.low * share)
    high = max(found.high, found.high * share)
    return Interval(found.value * share**0.5, low, high)


def less_displaced(found: Interval, share: float) -> Interval:
    """The interval of what arrives, without what others lost to a delay that had to wait.

    CPUs are shared evenly: where a delay waited for one, others waited for it as long,
    such as the threads of a collective. The step may have waited for those, or not.
    """
    return Interval(found.value, found.low - (1 / share - 1), found.high)


def _cells(
    own: Floats, delivered: npt.NDArray[np.floating], age: Integers, run: Integers
) -> tuple[Interval | None, ...]:
    usable = age >= 0
    width = delivered.shape[1]
    cells: list[Interval | None] = [None] * width
    base = float(np.median(own[usable])) if usable.any() else 0.0
    x = np.where(np.isfinite(delivered), delivered, 0).astype(np.float64)
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
    """Join ranks that are alike, into at most ``most`` places.

    Groups are kept together where their ranks are alike. The place that limits stays
    separate. If more places differ, the rest are one place, with intervals that contain
    all of theirs.
    """
    if len(found.places) <= most:
        return found
    limiting = found.limiting
    late = frozenset(limiting.ranks) if limiting else frozenset()
    wider = found.wider
    rest = [_Alike.of(p, wider) for p in found.places if late.isdisjoint(p.ranks)]
    best = _alike(rest)
    kinds = dict.fromkeys(group.kind for group in found.groups)
    ways = [_by_group(rest, [g for g in found.groups if g.kind == k]) for k in kinds]
    by_group = min((way for way in ways if way is not None), key=len, default=None)
    if by_group is not None and len(by_group) <= len(best):
        best = by_group
    joined = [_joined(alike.places) for alike in best]
    room = most - (limiting is not None)
    if len(joined) > room:
        joined = _with_rest(joined, room)
    if limiting is not None:
        joined.append(limiting)
    joined.sort(key=lambda place: min(map(_order, place.ranks)))
    return replace(found, places=tuple(joined))


def _ends(place: Place, wider: float) -> tuple[Floats, Floats]:
    """All intervals, widened by the factor; unknown ones contain everything."""
    cells = place.cells
    value = np.array([cell.value if cell else 0.0 for cell in cells])
    half = np.array([cell.half * wider if cell else np.inf for cell in cells])
    return value - half, value + half


@dataclass
class _Alike:
    """Ranks that are alike: all of their intervals have a value in common."""

    places: tuple[Place, ...]
    low: Floats
    high: Floats
    least_ns: float
    most_ns: float

    @classmethod
    def of(cls, place: Place, wider: float) -> _Alike:
        return cls((place,), *_ends(place, wider), place.own_ns, place.own_ns)

    def take(self, other: _Alike) -> bool:
        """Add other ranks if they belong here; returns whether they do."""
        low, high = np.maximum(self.low, other.low), np.minimum(self.high, other.high)
        least = min(self.least_ns, other.least_ns)
        most = max(self.most_ns, other.most_ns)
        if most > ALIKE * least or (low > high).any():
            return False
        self.places += other.places
        self.low, self.high, self.least_ns, self.most_ns = low, high, least, most
        return True


def _alike(parts: Iterable[_Alike]) -> list[_Alike]:
    found: list[_Alike] = []
    for part in parts:
        if not any(one.take(part) for one in found):
            found.append(replace(part))
    return found


def _by_group(parts: Sequence[_Alike], groups: Sequence[Group]) -> list[_Alike] | None:
    """The groups, of which some may be alike; None if ranks of one of them differ."""
    of = {rank: group.name for group in groups for rank in group.ranks}
    found: dict[str, _Alike] = {}
    for part in parts:
        name = of[part.places[0].ranks[0]]
        if name not in found:
            found[name] = replace(part)
        elif not found[name].take(part):
            return None
    return _alike(found.values())


def _with_rest(joined: Sequence[Place], room: int) -> list[Place]:
    """The largest place, those that differ most from it, and the rest as one."""
    usual = max(joined, key=lambda place: len(place.ranks))
    others = [place for place in joined if place is not usual]
    others.sort(key=lambda place: (-place.last, -abs(place.own_ns - usual.own_ns)))
    room = max(room, 2)
    rest = others[room - 2 :]
    columns = zip(*(place.cells for place in rest), strict=True)
    cells = tuple(_around_all(column) for column in columns)
    return [usual, *others[: room - 2], replace(_joined(rest), cells=cells)]


def _around_all(cells: Sequence[Interval | None]) -> Interval | None:
    known = [cell for cell in cells if cell is not None]
    if not known:
        return None
    low, high = min(cell.low for cell in known), max(cell.high for cell in known)
    return Interval((low + high) / 2, low, high)


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
