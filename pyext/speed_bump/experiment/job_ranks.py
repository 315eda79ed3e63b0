# SPDX-License-Identifier: MIT
"""The ranks of a job, and what each of them did in the common steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from speed_bump import _core
from speed_bump.experiment.record import Floats, Integers

# Processes that work in step have done as many units, but for this many and this part.
APART, APART_OF = 2, 0.01
# More names than these are counted, not listed.
MAX_LISTED = 8


@dataclass(frozen=True)
class Rank:
    """One process of a job that counts its own units of work.

    Numbers that its launcher does not give are -1. ``launcher`` is "" if the process has
    none, ``host`` is "" if all ranks are on this machine, and ``role`` is "" if all have
    the same.
    """

    rank: int = -1
    world: int = -1
    local: int = -1
    node: int = -1
    attempt: int = 0
    launcher: str = ""
    pid: int = 0
    host: str = ""
    role: str = ""

    @property
    def name(self) -> str:
        """Such as "rank 3"."""
        return f"rank {self.rank}" if self.rank >= 0 else f"process {self.pid}"


@dataclass
class Ranks:
    """The samples of each rank: arrays with a row per slot and a column per rank.

    ``time_ns`` is the time of the rank's own step, by its own clock; ``waited_ns`` is the
    part of it in collectives, waiting for others. Both are NaN where the rank had no such
    slot, and ``waited_ns`` everywhere if waits were not seen. ``delivered_ns`` and
    ``calls`` have a third dimension, the functions of the record.
    """

    who: list[Rank]
    time_ns: Floats
    waited_ns: Floats
    delivered_ns: npt.NDArray[np.float32]
    calls: npt.NDArray[np.float32]

    def callers(self) -> Integers:
        """The number of ranks that call each function."""
        return np.asarray((self.calls > 0).any(axis=0).sum(axis=0), np.int64)


@dataclass
class Step:
    """Slots of one rank: arrays as those of ``Slots``."""

    number: Integers
    time_ns: Floats
    waited_ns: Floats
    units: Integers
    end_ns: Integers
    good: npt.NDArray[np.bool_]
    cpu_ns: Floats
    wait_ns: Floats
    calls: Floats
    delivered_ns: Floats


@dataclass
class Merged:
    """Slots of all ranks together: means over the ranks that had them.

    What functions did is averaged over the ranks that call them: a delay of code that all
    ranks run counts once per rank, not as often as there are ranks.
    """

    number: Integers
    time_ns: Floats
    units: Integers
    end_ns: Integers
    good: npt.NDArray[np.bool_]
    cpu_ns: Floats
    wait_ns: Floats
    calls: Floats
    delivered_ns: Floats
    ranks: Ranks = field(repr=False)


def who(found: Sequence[_core.Rank]) -> list[Rank]:
    """The ranks as in the plan."""
    return [
        Rank(
            rank=one.rank,
            world=one.world,
            local=one.local,
            node=one.node,
            attempt=one.attempt,
            launcher=one.launcher,
            pid=one.pid,
        )
        for one in found
    ]


def advanced(before: Sequence[_core.Rank], now: Sequence[_core.Rank]) -> list[_core.Rank]:
    """The ranks that reported units in between."""
    units = {rank.index: rank.units for rank in before}
    return [rank for rank in now if rank.units > units.get(rank.index, 0)]


def is_job(before: Sequence[_core.Rank], now: Sequence[_core.Rank]) -> bool:
    """Whether units are to be counted by rank.

    They are if the processes that reported in between have peers by their launcher, or if
    several reported, none has ended, and each did as often as the others, as where they
    wait for each other in each unit. Otherwise they share one work, such as workers that
    live for one task, take tasks from a queue, or wait for the same lock: these are as
    fast as each other, but may drift apart.
    """
    at_work = advanced(before, now)
    if any(rank.world > 1 for rank in at_work):
        return True
    if len(at_work) < 2 or any(not os.path.exists(f"/proc/{rank.pid}") for rank in now):
        return False
    units = {rank.index: rank.units for rank in before}
    done = [rank.units - units.get(rank.index, 0) for rank in at_work]
    return max(done) - min(done) <= max(APART, APART_OF * max(done))


def merge(who: Sequence[Rank], parts: Sequence[Step], behind: int) -> Merged:
    """Join by the number of the slot.

    Args:
        who: the rank of each part
        behind: a rank that is this many slots behind the others is left out from then on
    """
    width = parts[0].calls.shape[1] if parts else 0
    ends = [int(part.number[-1]) if len(part.number) else -1 for part in parts]
    # Slots that the slower ranks have not finished are left for later.
    last = min((end for end in ends if end + behind >= max(ends)), default=-1)
    none = np.zeros(0, np.int64)
    numbers = np.unique(np.concatenate([none, *(part.number for part in parts)]))
    numbers = numbers[numbers <= last]
    n, count = len(numbers), len(parts)
    shape = (n, count)
    time, waited = np.full(shape, np.nan), np.full(shape, np.nan)
    cpu, wait = np.full(shape, np.nan), np.full(shape, np.nan)
    units, end = np.full(shape, np.nan), np.full(shape, np.nan)
    good = np.zeros(shape, bool)
    due = np.zeros(shape, bool)
    calls = np.full((*shape, width), np.nan, np.float32)
    delivered = np.full((*shape, width), np.nan, np.float32)
    for r, part in enumerate(parts):
        mine = part.number <= last
        if not mine.any():
            continue
        at = np.searchsorted(numbers, part.number[mine])
        for into, values in (
            (time, part.time_ns), (waited, part.waited_ns), (cpu, part.cpu_ns),
            (wait, part.wait_ns), (units, part.units), (end, part.end_ns),
            (good, part.good), (calls, part.calls), (delivered, part.delivered_ns),
        ):  # fmt: skip
            into[at, r] = values[mine]
        due[at[0] : at[-1] + 1, r] = True
    known = np.isfinite(time)
    ranks = Ranks(list(who), time, waited, delivered, calls)
    callers = np.asarray((calls > 0).any(axis=0))
    return Merged(
        numbers,
        _mean(time, known),
        np.rint(np.nan_to_num(_mean(units, np.isfinite(units)))).astype(np.int64),
        np.nan_to_num(np.nanmax(end, axis=1) if count else end.sum(1)).astype(np.int64),
        # Without one of the ranks, the mean of a slot would be of others.
        np.asarray(due.any(axis=1) & (good | ~due).all(axis=1)),
        _mean(cpu, np.isfinite(cpu)),
        _mean(wait, np.isfinite(wait)),
        _of_callers(calls, callers),
        _of_callers(delivered, callers),
        ranks,
    )


def _mean(values: Floats, known: npt.NDArray[np.bool_]) -> Floats:
    count = known.sum(axis=1)
    total = np.where(known, values, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _of_callers(
    values: npt.NDArray[np.float32], callers: npt.NDArray[np.bool_]
) -> Floats:
    known = np.isfinite(values) & callers[None]
    total = np.where(known, values, 0).sum(axis=1, dtype=np.float64)
    return np.asarray(total / np.maximum(known.sum(axis=1), 1))


def appended(parts: Sequence[Ranks | None], lengths: Sequence[int]) -> Ranks | None:
    """Join several runs, one after the other; None if no run had ranks."""
    if not any(parts):
        return None
    first = next(part for part in parts if part)
    count = max(len(part.who) for part in parts if part)
    width = max(part.calls.shape[2] for part in parts if part)

    def column(name: str) -> list[npt.NDArray[np.float32]]:
        found = []
        for part, n in zip(parts, lengths, strict=True):
            shape = (n, count, width) if name in ("calls", "delivered_ns") else (n, count)
            values = np.full(shape, np.nan)
            if part:
                own = getattr(part, name)
                values[tuple(slice(0, size) for size in own.shape)] = own
            found.append(values)
        return found

    who = max((part.who for part in parts if part), key=len, default=first.who)
    return Ranks(
        who,
        np.concatenate(column("time_ns")),
        np.concatenate(column("waited_ns")),
        np.concatenate(column("delivered_ns")).astype(np.float32),
        np.concatenate(column("calls")).astype(np.float32),
    )


def told(who: Sequence[Rank]) -> str:
    """The ranks in words, such as "4 ranks by torchrun: 0 to 3"."""
    launchers = {rank.launcher for rank in who if rank.launcher}
    by = f" by {', '.join(sorted(launchers))}" if launchers else ""
    if not launchers or any(rank.rank < 0 for rank in who):
        pids = [str(rank.pid) for rank in who]
        more = f" and {len(pids) - MAX_LISTED} more" if len(pids) > MAX_LISTED else ""
        some = ", ".join(pids[:MAX_LISTED])
        return f"{len(who)} processes that work in step ({some}{more})"
    numbers = sorted({rank.rank for rank in who})
    world = max(rank.world for rank in who)
    of = f" of {world}" if world > len(numbers) else ""
    run = _ranges(numbers)
    return f"{len(who)} ranks{of}{by} ({run})"


def _ranges(numbers: Sequence[int]) -> str:
    """Such as "0 to 3, 6"."""
    parts: list[tuple[int, int]] = []
    for number in numbers:
        if parts and parts[-1][1] + 1 == number:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    texts = [str(a) if a == b else f"{a} to {b}" for a, b in parts]
    more = f" and {len(texts) - MAX_LISTED} more" if len(texts) > MAX_LISTED else ""
    return ", ".join(texts[:MAX_LISTED]) + more
