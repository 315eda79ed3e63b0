# SPDX-License-Identifier: MIT
"""The rows of all nodes of a run, joined by step: what is missing, and the effects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from speed_bump.experiment.cluster import confirm, steps
from speed_bump.experiment.cluster import rows as files
from speed_bump.experiment.cluster.confirm import Confirmed, Expected
from speed_bump.experiment.cluster.places import Places, places, widened
from speed_bump.experiment.cluster.plan import ATTEMPT, arms_of_group, ranks_of
from speed_bump.experiment.fit.interval import Interval, around
from speed_bump.experiment.job_ranks import Rank, Ranks
from speed_bump.experiment.record import Floats, Integers

# A smaller share of a CPU than this while delays are on is reported.
CROWDED = 0.9
# A rank with less than this part of the steps of the others is named.
SHORT = 0.9


class JobError(Exception):
    """There is nothing to report; the message says why and what to do."""


@dataclass(frozen=True)
class Effect:
    """The part of a function's delay on all ranks that the step of the job pays.

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


@dataclass
class _Column:
    """The rows of one rank."""

    rank: Rank
    setup: dict[str, Any]
    parts: list[files.Rows] = field(default_factory=list)


def load(directory: str) -> Job:
    """Read all files of a run.

    Raises:
        JobError: there are none, or none of them can be read
    """
    found = files.files(directory)
    if not found:
        raise JobError(
            f"{directory}: no rows of a run: 'speed-bump member --run {directory}' goes "
            "in front of the program on every rank"
        )
    columns: dict[tuple[int, Any], _Column] = {}
    problems = []
    for path in found:
        try:
            for part in files.read(path):
                rank = part.rank
                key = (rank.rank, () if rank.rank >= 0 else (rank.host, rank.pid))
                column = columns.setdefault(key, _Column(rank, part.setup))
                column.parts.append(part)
        except (OSError, ValueError) as error:
            problems.append(str(error))
    if not columns:
        raise JobError(
            problems[0]
            if problems
            else f"{directory}: no rank has finished a step: what is a step? (--progress)"
        )
    order = [columns[key] for key in sorted(columns, key=str)]
    order.sort(key=lambda column: column.rank.rank)
    seed = Counter(c.setup["seed"] for c in order).most_common(1)[0][0]
    alike = [c for c in order if c.setup["seed"] == seed]
    job = _joined(alike, seed)
    job.problems = problems + _problems(order, job)
    _measure(job)
    return job


def _joined(columns: Sequence[_Column], seed: int) -> Job:
    names = sorted({name for c in columns for p in c.parts for name in p.functions})
    at = {name: k for k, name in enumerate(names)}
    number = np.unique(np.concatenate([p.number for c in columns for p in c.parts]))
    shape = (len(number), len(columns))
    time, waited = np.full(shape, np.nan), np.full(shape, np.nan)
    delivered = np.full((*shape, len(names)), np.nan, np.float32)
    calls = np.full((*shape, len(names)), np.nan, np.float32)
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
    ranks = Ranks([c.rank for c in columns], time, waited, delivered, calls)
    # The ranks of an attempt are those with steps of it.
    attempt = number // ATTEMPT
    due = np.zeros(shape, bool)
    for one in np.unique(attempt):
        mine = attempt == one
        due[mine] = np.isfinite(time[mine]).any(axis=0)
    good = due.any(axis=1) & (np.isfinite(time) | ~due).all(axis=1)
    world = max(c.rank.world for c in columns)
    job = Job(tuple(names), number, ranks, good, max(world, 0), seed)
    job.groups = tuple(columns[0].setup.get("groups", ()))
    for name in names:
        told = [
            column.parts[-1].shares[column.parts[-1].functions.index(name)]
            for column in columns
            if name in column.parts[-1].functions
        ]
        job.shares[name] = float(np.mean(told)) if told else 1.0
    return job


# ---------------------------------------------------------------------- what is wrong


def _where(rank: Rank) -> str:
    return f"{rank.name} on {rank.host}" if rank.host else rank.name


def _problems(columns: Sequence[_Column], job: Job) -> list[str]:
    found = []
    seen = {column.rank.rank for column in columns}
    missing = sorted(set(range(job.world)) - seen)
    if missing:
        some = ", ".join(map(str, missing[:8]))
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        found.append(
            f"rank {some}{more} of {job.world} left nothing here: is 'speed-bump member' "
            "in front of the program there, is speed-bump installed on that node, and is "
            "the directory shared with it?"
        )
    for key, words in (
        ("seed", "--seed"),
        ("key", "other targets, --progress, --delay or --dose"),
        ("version", "speed-bump"),
    ):
        usual = Counter(c.setup[key] for c in columns).most_common(1)[0][0]
        for column in columns:
            value = column.setup[key]
            if value == usual:
                continue
            if key == "key":
                found.append(f"{_where(column.rank)} was given {words} than the others")
            else:
                more = "; its steps are left out" if key == "seed" else ""
                found.append(
                    f"{_where(column.rank)} has {words} {value}, the others {usual}{more}"
                )
    finished = {
        id(c): sum(int(np.isfinite(p.time_ns).sum()) for p in c.parts) for c in columns
    }
    most = max(finished.values())
    for column in columns:
        count = finished[id(column)]
        if count < SHORT * most:
            found.append(
                f"{_where(column.rank)} has {count:,} steps, others {most:,}: it ended "
                "early, began late, or counts other steps"
            )
        if not any(part.functions for part in column.parts):
            found.append(f"{_where(column.rank)}: none of the targets was called there")
        if len({(p.rank.attempt, p.rank.pid, p.rank.host) for p in column.parts}) > len(
            {p.rank.attempt for p in column.parts}
        ):
            found.append(f"{_where(column.rank)}: two processes have this rank")
    found += _unknown_groups(job, seen)
    without = max(c.parts[-1].setup.get("without_arm", 0) for c in columns)
    if without:
        groups = len(job.groups)
        of = f" with {groups} group{'s' if groups > 1 else ''}" if groups else ""
        found.append(
            f"{without} functions were called and not delayed: at most "
            f"{arms_of_group(groups)}{of}"
        )
    shares = [share for c in columns for p in c.parts[-1:] for share in p.shares]
    if shares and min(shares) < CROWDED:
        found.append(
            f"while they were delayed functions had {100 * min(shares):.0f}% of a CPU: "
            "ranks share cores, with one another or with other programs, so that a delay "
            "takes longer than it should and also delays others; all ± are wider for it"
        )
    attempts = sorted({p.rank.attempt for c in columns for p in c.parts})
    if len(attempts) > 1:
        found.append(f"the job was started {len(attempts)} times (attempts {attempts})")
    return found


def _unknown_groups(job: Job, seen: set[int]) -> list[str]:
    """Groups of --confirm that don't match the ranks.

    Ranks that left nothing are reported elsewhere.
    """
    found = []
    ranks = seen | set(range(job.world))
    for group in job.groups:
        inside = ranks_of(group)
        strange = sorted(inside - ranks)
        if strange == sorted(inside):
            found.append(f"--confirm {group}: no such rank")
        elif strange:
            some = ", ".join(map(str, strange[:8]))
            more = f" and {len(strange) - 8} more" if len(strange) > 8 else ""
            found.append(f"--confirm {group}: no rank {some}{more}")
        if inside >= ranks:
            found.append(
                f"--confirm {group}: these are all ranks; it is for a part of them"
            )
    return found


# ------------------------------------------------------------------------ the effects


def _measure(job: Job) -> None:
    ranks, good = job.ranks, job.good
    job.places = places(
        job.functions, ranks, job.number, job.number // ATTEMPT, good, job.shares
    )
    time, count = _means(job)
    if not good.any():
        return
    quiet = good & ~(np.nan_to_num(ranks.delivered_ns) > 0).any(axis=(1, 2))
    job.step_ns = float(np.median(time[quiet if quiet.sum() > 8 else good]))
    x = _of_callers(ranks.delivered_ns, ranks)
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
                job.places, ranks, good, inside, effect.name, effect.delay_ns
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
    callers = np.asarray((ranks.calls > 0).any(axis=0))
    known = np.isfinite(values) & callers[None]
    total = np.where(known, values, 0).sum(axis=1, dtype=np.float64)
    return np.asarray(total / np.maximum(known.sum(axis=1), 1))


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
            found[k] = widened(around(float(c), float(se), fit.df), share)
    return found
