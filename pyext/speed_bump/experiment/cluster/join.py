# SPDX-License-Identifier: MIT
"""The rows of all nodes of a run, joined by step: what is missing, and the effects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from speed_bump.experiment.cluster import confirm, epochs, steps
from speed_bump.experiment.cluster import rows as files
from speed_bump.experiment.cluster.confirm import Confirmed, Expected
from speed_bump.experiment.cluster.groups import Layout, groups_of
from speed_bump.experiment.cluster.places import (
    Places,
    last_rank,
    less_displaced,
    places,
    widened,
)
from speed_bump.experiment.cluster.plan import ATTEMPT
from speed_bump.experiment.cluster.problems import MAX_LISTED, Column, problems, where
from speed_bump.experiment.cluster.rows import Rows
from speed_bump.experiment.fit.interval import Interval, around
from speed_bump.experiment.job_ranks import Ranks
from speed_bump.experiment.record import Floats, Integers

# Less than the number of each epoch: the rank had no such step.
NO_EPOCH = -2
# Ranks whose mean delays in a step differ by less than this factor chose the same.
SAME_DOSE = 1.05


class JobError(Exception):
    """There is nothing to report; the message says why and what to do."""


@dataclass(frozen=True)
class Effect:
    """The part of a function's delay on all ranks that arrives in the step of the job.

    ``criticality`` is None if the steps don't give it. ``calls`` are in a step and
    ``delay_ns`` is the delay delivered in one, both for a rank that calls the function;
    ``ranks`` is the number of ranks that call it.
    """

    name: str
    criticality: Interval | None
    calls: float
    delay_ns: float
    delayed: int
    ranks: int


@dataclass
class Job:
    """The contents of the files of a run.

    ``world`` is 0 if no launcher gave it. ``problems`` are lines to print, each of which
    names ranks and nodes.
    """

    functions: tuple[str, ...]
    number: Integers
    ranks: Ranks
    good: npt.NDArray[np.bool_]
    world: int
    seed: int
    step_ns: float = 0.0
    problems: list[str] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    places: Places | None = None
    shares: dict[str, float] = field(default_factory=dict)
    # In a run of --confirm.
    groups: tuple[str, ...] = ()
    confirmed: list[Confirmed] = field(default_factory=list)
    # For the rank that limits: expected cost of delays on it alone and on all others.
    expected: dict[str, Expected] = field(default_factory=dict)


def load(directory: str, layout: Layout | None = None) -> Job:
    """Read all files of a run.

    Args:
        layout: the dimensions along which its ranks are divided, if known

    Raises:
        JobError: there are none, none of them can be read, or the layout is of another
            number of ranks
    """
    found = files.files(directory)
    if not found:
        raise JobError(
            f"{directory}: no rows of a run: 'speed-bump member --run {directory}' goes "
            "in front of the program on every rank"
        )
    parts: list[Rows] = []
    unread: list[str] = []
    for path in found:
        try:
            for part in files.read(path):
                parts.append(part)
        except (OSError, ValueError) as error:
            unread.append(str(error))
    if not any(len(part.number) for part in parts):
        raise JobError(
            unread[0]
            if unread
            else f"{directory}: no rank has finished a step: what is a step? (--progress)"
        )
    return measured(parts, layout, unread)


def measured(
    parts: Sequence[Rows], layout: Layout | None = None, unread: Sequence[str] = ()
) -> Job:
    """What the rows of all nodes say; empties them.

    Args:
        parts: of which at least one has a step
        unread: why some files were not read

    Raises:
        JobError: the layout is of another number of ranks
    """
    columns: dict[tuple[int, object], Column] = {}
    for part in parts:
        rank = part.rank
        key = (rank.rank, () if rank.rank >= 0 else (rank.host, rank.pid))
        column = columns.setdefault(key, Column(rank, part.setup))
        if not len(part.number):
            column.silent.append(rank)
            continue
        if not column.parts:
            column.rank, column.setup = rank, part.setup
        column.parts.append(part)
    order = [columns[key] for key in sorted(columns, key=str)]
    order.sort(key=lambda column: column.rank.rank)
    at_work = [column for column in order if column.parts]
    seed = Counter(c.setup["seed"] for c in at_work).most_common(1)[0][0]
    job = _joined([c for c in at_work if c.setup["seed"] == seed], seed)
    _check(layout, job)
    job.problems = [*unread, *problems(order, job.groups), *job.problems]
    _measure(job, layout)
    return job


def _check(layout: Layout | None, job: Job) -> None:
    if layout is None:
        return
    if any(rank.rank < 0 for rank in job.ranks.who):
        raise JobError("--layout: the ranks of this run have no numbers")
    world = max(job.world, 1 + max(rank.rank for rank in job.ranks.who))
    if layout.world != world:
        raise JobError(
            f"--layout: these dimensions make {layout.world:,} ranks, and the run has "
            f"{world:,}"
        )


def _joined(columns: Sequence[Column], seed: int) -> Job:
    names = sorted({name for c in columns for p in c.parts for name in p.functions})
    at = {name: k for k, name in enumerate(names)}
    number = np.unique(np.concatenate([p.number for c in columns for p in c.parts]))
    shape = (len(number), len(columns))
    time, waited = np.full(shape, np.nan), np.full(shape, np.nan)
    # In memory, the steps of one function on one rank lie side by side.
    deep = (len(names), len(columns), len(number))
    delivered = np.full(deep, np.nan, np.float32).transpose()
    calls = np.full(deep, np.nan, np.float32).transpose()
    for r, column in enumerate(columns):
        for part in column.parts:
            here = np.searchsorted(number, part.number)
            time[here, r], waited[here, r] = part.time_ns, part.waited_ns
            delivered[here, r], calls[here, r] = 0, 0
            for k, name in enumerate(part.functions):
                delivered[here, r, at[name]] = part.delivered_ns[:, k]
                calls[here, r, at[name]] = part.calls[:, k]
            # Repeated only once.
            part.delivered_ns = part.calls = np.zeros((0, len(part.functions)))
    apart, strange = _apart(columns, number)
    ranks = Ranks([c.rank for c in columns], time, waited, delivered, calls)
    # The ranks of an attempt are those with steps of it.
    attempt = number // ATTEMPT
    due = np.zeros(shape, bool)
    for one in np.unique(attempt):
        mine = attempt == one
        due[mine] = np.isfinite(time[mine]).any(axis=0)
    good = due.any(axis=1) & (np.isfinite(time) | ~due).all(axis=1)
    good &= ~apart
    world = max(c.rank.world for c in columns)
    job = Job(tuple(names), number, ranks, good, max(world, 0), seed)
    if apart.any():
        job.problems.append(
            f"{int(apart.sum()):,} steps are left out: {strange} had another plan of the "
            "leader in them than the others, as without --live or without its leader"
        )
    job.groups = tuple(columns[0].setup.get("groups", ()))
    for name in names:
        told = [
            column.parts[-1].shares[column.parts[-1].functions.index(name)]
            for column in columns
            if name in column.parts[-1].functions
        ]
        job.shares[name] = float(np.mean(told)) if told else 1.0
    return job


def _apart(
    columns: Sequence[Column], number: Integers
) -> tuple[npt.NDArray[np.bool_], str]:
    """Steps in which ranks followed different epochs of a leader, and those ranks."""
    apart = np.zeros(len(number), bool)
    if not any("epochs" in part.setup for c in columns for part in c.parts):
        return apart, ""
    epoch = np.full((len(number), len(columns)), NO_EPOCH)
    for r, column in enumerate(columns):
        for part in column.parts:
            at = np.searchsorted(number, part.number)
            epoch[at, r] = epochs.of_setup(part.setup, part.number)
    known = epoch > NO_EPOCH
    newest = epoch.max(axis=1)
    other = known & (epoch != newest[:, None])
    apart = other.any(axis=1)
    strange = np.flatnonzero(other.any(axis=0)).tolist()
    names = [where(columns[r].rank) for r in strange]
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return apart, ", ".join(names[:MAX_LISTED]) + more


def _measure(job: Job, layout: Layout | None) -> None:
    ranks, good = job.ranks, job.good
    run, groups = job.number // ATTEMPT, groups_of(ranks.who, layout)
    job.places = places(job.functions, ranks, job.number, run, good, job.shares, groups)
    time, count = _means(job)
    if not good.any():
        return
    quiet = confirm.undelayed(ranks, good)
    job.step_ns = float(np.median(time[quiet if quiet.sum() > 8 else good]))
    x = _dose(ranks, good)
    calls = _of_callers(ranks.calls, ranks)
    share = [job.shares[name] for name in job.functions]
    if job.groups:
        job.confirmed = confirm.confirmed(
            job.functions, ranks, job.places, job.number, good, time, job.groups, share
        )
        everywhere = {one.name: one.everywhere for one in job.confirmed}
        intervals = [everywhere[name] for name in job.functions]
    else:
        intervals = _regressed(job, time, x)
    for k, name in enumerate(job.functions):
        on = good & (x[:, k] > 0)
        job.effects.append(
            Effect(
                name,
                intervals[k],
                float(calls[good, k].mean()),
                float(x[on, k].mean()) if on.any() else 0.0,
                int(on.sum()),
                int(count[k]),
            )
        )
    limiting = job.places.limiting if job.places else None
    if limiting is not None:
        inside = np.array([rank in limiting.ranks for rank in ranks.who])
        for effect in job.effects:
            found = confirm.expected(
                job.places, ranks, quiet, inside, effect.name, effect.delay_ns
            )
            if found is not None:
                job.expected[effect.name] = found


def _means(job: Job) -> tuple[Floats, Integers]:
    """The mean time of a step over ranks; the number of ranks that call each function."""
    known = np.isfinite(job.ranks.time_ns)
    total = np.where(known, job.ranks.time_ns, 0).sum(axis=1)
    mean = np.where(known.any(axis=1), total / np.maximum(known.sum(axis=1), 1), np.nan)
    return mean, job.ranks.callers()


def _of_callers(values: npt.NDArray[np.float32], ranks: Ranks) -> Floats:
    """Means over the ranks that call each function, which is one at a time for memory."""
    found = np.zeros((values.shape[0], values.shape[2]))
    for k in range(values.shape[2]):
        callers = (ranks.calls[:, :, k] > 0).any(axis=0)
        one = values[:, callers, k]
        known = np.isfinite(one)
        total = np.where(known, one, 0).sum(axis=1, dtype=np.float64)
        found[:, k] = total / np.maximum(known.sum(axis=1), 1)
    return found


def _dose(ranks: Ranks, good: npt.NDArray[np.bool_]) -> Floats:
    """The delay of each function in each step, ns: the mean over the ranks that call it.

    Each rank chooses the delay of a call by itself. If theirs differ, the step is later
    by those of the rank that is last: each counts as often as its rank is last while the
    function is delayed, which is the derivative of the mean of a maximum.
    """
    found = _of_callers(ranks.delivered_ns, ranks)
    known = good & np.isfinite(ranks.waited_ns).any(axis=1)
    last = last_rank(ranks.waited_ns)
    for k in range(found.shape[1]):
        one = np.nan_to_num(ranks.delivered_ns[:, :, k])
        delayed = (one > 0) & good[:, None]
        times = delayed.sum(axis=0)
        callers = np.flatnonzero(times)
        usual = np.where(delayed, one, 0).sum(axis=0)[callers] / times[callers]
        if not len(callers) or usual.max() <= SAME_DOSE * usual.min():
            continue
        often = np.bincount(last[known & delayed.any(axis=1)], minlength=one.shape[1])
        if (often := often[callers]).any():
            found[:, k] = one[:, callers] @ (often / often.sum())
    return found


def _regressed(job: Job, time: Floats, x: Floats) -> list[Interval | None]:
    found: list[Interval | None] = [None] * x.shape[1]
    delayed = ((x > 0) & job.good[:, None]).sum(axis=0)
    known = np.flatnonzero(delayed >= steps.MIN_DELAYED)
    fit = steps.fit(job.number, job.good, time, x[:, known])
    if fit is None:
        return found
    for k, c, se in zip(known, fit.c, fit.model, strict=True):
        if np.isfinite(c) and se > 0:
            share = job.shares[job.functions[k]]
            arrived = widened(around(float(c), float(se), fit.df), share)
            found[k] = less_displaced(arrived, share)
    return found
