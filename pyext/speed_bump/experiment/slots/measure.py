# SPDX-License-Identifier: MIT
"""Blocks of slots in a running program: planned ahead, and read afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from speed_bump import _core
from speed_bump.experiment import job_ranks as cluster
from speed_bump.experiment.program.workload import Workload
from speed_bump.experiment.record import BESIDE, REQUEST, Block, Metered, Slots

# The layout of struct sb_plan_slot in libsb-provisional.h.
SLOT = np.dtype(
    [
        ("number", "<u8"),
        ("end_ns", "<u8"),
        ("units", "<u8"),
        ("cpu_ns", "<u8"),
        ("wait_ns", "<u8"),
        ("tid", "<u4"),
        ("complete", "<u4"),
        ("waited_ns", "<u8"),
    ]
)
# The lease is renewed at least this often; without that, delays end by themselves.
LEASE_NS = 500_000_000
# Sites keep 256 slots of at least 2 ms, so they have to be read within this time.
PAUSE_S = 0.04
# From this distance on, a slot can be planned before any call has read its plan.
AHEAD = 4
# A rank that is further behind is left out (PLAN_RANK_BEHIND of libsb).
BEHIND = 16
# At most this many threads that report units are distinguished.
MAX_REPORTERS = 64
# If threads that began in a slot end at least this part of the slots, there is a thread
# for each request.
BRIEF_PART = 0.8

Words = npt.NDArray[np.uint64]


@dataclass
class _Seen:
    """The result of a reading: slots, and the counts of each function in each."""

    slots: npt.NDArray[np.void]
    calls: Words
    delivered: Words


@dataclass
class Run:
    """The slots of one run of the program.

    Args:
        program: it runs already
        functions: what is ruled by the plan; more may be ruled later
        number: which run it is, from 1
        slot_ns: slots are of time, which the tool ends (0: they are of units)
    """

    program: Workload
    number: int
    functions: list[str] = field(default_factory=list)
    by_rank: bool = False
    slot_units: int = 1
    slot_ns: int = 0
    # Recorded durations, in the order of reading.
    requests: list[npt.NDArray[np.void]] = field(default_factory=list)
    _of_rank: dict[int, list[_Seen]] = field(default_factory=dict)
    _who: dict[int, cluster.Rank] = field(default_factory=dict)
    _seen: list[_Seen] = field(default_factory=list)
    # For each planned slot: number, block, mask, level.
    _planned: list[tuple[int, int, npt.NDArray[np.uint64], npt.NDArray[np.uint8]]] = (
        field(default_factory=list)
    )
    # Slots whose plan is not certain.
    _doubtful: list[tuple[int, int]] = field(default_factory=list)
    # Slots outside of blocks in which the tool did nothing but read.
    _calm: list[tuple[int, int]] = field(default_factory=list)

    def rule(self, names: Sequence[str]) -> None:
        """Let the plan control functions, except those that it controls already."""
        for name in names:
            if name in self.functions:
                continue
            number = self.program.rule(name)
            if number != len(self.functions):
                raise AssertionError("numbers of functions are given out in order")
            self.functions.append(name)

    def set_slot_units(self, units: int) -> None:
        """Set the number of units per slot; with ``by_rank``, of each rank."""
        self.slot_units = units
        if self.slot_ns:
            assert self.program.meter
            self.program.meter.measure(self.slot_ns)
            return
        if not self.by_rank:
            self.program.plan.set_slot_units(units)
            return
        reported = [rank.units for rank in self.program.plan.ranks()]
        self.program.plan.set_pace(max(reported, default=0) + 1, units, False)

    # ------------------------------------------------------------------ reading

    def poll(self) -> int:
        """Read slots that have ended and renew the lease; returns how many were read."""
        plan = self.program.plan
        plan.renew(LEASE_NS)
        self._read_requests()
        if not self.by_rank:
            return self._read(plan.read, self._seen)
        before = self.count()
        found = plan.ranks()
        for rank, who in zip(found, cluster.who(found), strict=True):
            if rank.number is not None:
                self._who[rank.index] = who
                seen = self._of_rank.setdefault(rank.index, [])
                self._read(partial(plan.read_rank, rank.index, False), seen)
        return self.count() - before

    def _read_requests(self) -> None:
        if self.program.durations is None:
            return
        found = self.program.durations.events()
        if len(found):
            kept = np.empty(len(found), REQUEST)
            for name in REQUEST.names or ():
                kept[name] = found[name]
            self.requests.append(kept)

    def _read(self, read: Callable[[], _core.Slots], seen: list[_Seen]) -> int:
        width = len(self.functions)
        count = 0
        while True:
            over = read()
            found = np.frombuffer(over.slots, SLOT)
            if not len(found):
                return count
            shape = (len(found), width)
            seen.append(
                _Seen(
                    found,
                    np.frombuffer(over.calls, np.uint64).reshape(shape),
                    np.frombuffer(over.delivered_ns, np.uint64).reshape(shape),
                )
            )
            count += len(found)

    def forget(self) -> None:
        """Drop the slots so far, because they had another length."""
        self.poll()
        self._seen.clear()
        self._of_rank.clear()

    def trim_requests(self, count: int) -> tuple[int, int]:
        """Keep the newest ``count`` requests.

        Returns how many were dropped, and the arrival time of the last of them, ns.
        """
        more = sum(map(len, self.requests)) - count
        dropped, until = 0, 0
        while self.requests and dropped < more:
            part = self.requests[0]
            old = part[: more - dropped]
            dropped, until = dropped + len(old), max(until, int(old["begin_ns"].max()))
            # A view would keep the whole array.
            self.requests[:1] = [part[len(old) :].copy()] if len(old) < len(part) else []
        return dropped, until

    def trim(self, count: int) -> None:
        """Keep the newest ``count`` slots, or a few more."""
        for seen in self._parts():
            while len(seen) > 1 and _length(seen) - len(seen[0].slots) >= count:
                del seen[0]
        begins = [int(s[0].slots["number"][0]) for s in self._parts() if s]
        if begins and self.program.meter:
            known = self.program.meter.slots
            for number in [n for n in list(known) if n < min(begins)]:
                del known[number]
        if begins and self._planned:
            first = min(begins)
            self._planned = [p for p in self._planned if p[0] + len(p[2]) > first]
            self._doubtful = [d for d in self._doubtful if d[1] > first]
            self._calm = [c for c in self._calm if c[1] > first]

    def _parts(self) -> list[list[_Seen]]:
        """The slots read so far, of all processes together or of each rank."""
        return list(self._of_rank.values()) if self.by_rank else [self._seen]

    @property
    def reporters(self) -> int:
        """The number of threads that ended slots in turn, at most, so far."""
        found = 0
        for part in self._parts():
            tids = [seen.slots["tid"] for seen in part]
            found = max(found, _in_turn(np.concatenate(tids)) if tids else 0)
        return found

    @property
    def side_by_side(self) -> float:
        """How many threads report units side by side, those of a few units less."""
        tids = [
            np.concatenate([seen.slots["tid"] for seen in part])
            for part in self._parts()
            if part
        ]
        return max((_side_by_side(some) for some in tids), default=1.0)

    @property
    def tids(self) -> set[int]:
        """The threads that ended slots so far."""
        parts = [seen for part in self._parts() for seen in part]
        return {int(tid) for seen in parts for tid in np.unique(seen.slots["tid"])} - {0}

    def count(self) -> int:
        """Slots read so far."""
        return max(map(_length, self._parts()), default=0)

    # ------------------------------------------------------------------- making

    def rest(self, seconds: float, slots: int, is_over: Callable[[], bool]) -> None:
        """Let slots pass without delays: at least this long, and at least this many."""
        until = time.monotonic() + seconds
        wanted = self.count() + slots
        first = self.program.plan.number + 1
        while not is_over() and (time.monotonic() < until or self.count() < wanted):
            self.poll()
            time.sleep(PAUSE_S)
        self._calm.append((first, self.program.plan.slowest))

    def make(self, block: Block, index: int, is_over: Callable[[], bool]) -> None:
        """Run a block, the ``index`` th of the record; ends early if the program does."""
        plan = self.program.plan
        plan.cancel()
        self._set_arms(block)
        self.poll()
        first = plan.number + AHEAD
        done = self._schedule(block, 0, first)
        self._planned.append((first, index, block.masks, block.levels))
        while plan.slowest < first + len(block) and not is_over():
            if done < len(block):
                done += self._schedule(block, done, first)
            self.poll()
            time.sleep(PAUSE_S)
        self.poll()
        if plan.slowest < first + len(block):
            # Slots that were not reached had no delays; for a few slots this is
            # uncertain.
            free = plan.cancel()
            self._doubtful.append((free - AHEAD, free + 1))
            made = max(free - first, 0)
            self._planned[-1] = (first, index, block.masks[:made], block.levels[:made])
        # Delays that are not in force in any slot any more can be changed.
        until = plan.number + 2
        limit = time.monotonic() + 0.25
        while plan.slowest < until and time.monotonic() < limit and not is_over():
            self.poll()
            time.sleep(PAUSE_S / 4)

    def _set_arms(self, block: Block) -> None:
        arms: dict[str, tuple[int | None, list[tuple[int, int]]]] = {
            name: (bit, [(d.delay_ns, d.every) for d in delays])
            for bit, arm in enumerate(block.arms)
            for name, delays in zip(arm.functions, arm.delays, strict=True)
        }
        for number, name in enumerate(self.functions):
            bit, levels = arms.get(name, (None, []))
            self.program.plan.set(number, bit, levels)

    def _schedule(self, block: Block, done: int, first: int) -> int:
        plan = self.program.plan
        masks = np.ascontiguousarray(block.masks[done:], dtype=np.uint64)
        levels = np.ascontiguousarray(block.levels[done:], dtype=np.uint8)
        planned = plan.schedule(first + done, masks.data, levels.data)
        passed = plan.number + AHEAD - 1
        if passed > first + done:
            self._doubtful.append((first + done, min(passed, first + done + planned)))
        return planned

    def away_ns(self) -> dict[str, float]:
        """By function, how much longer than delivered its delays have taken so far.

        Without native functions, for which the kernel does not report it.
        """
        return {
            name: float(self.program.plan.away(number))
            for number, name in enumerate(self.functions)
            if not self.program.is_native(name)
        }

    # ----------------------------------------------------------------- the record

    def slots(self, names: Sequence[str]) -> Slots:
        """All slots so far, with columns for the functions ``names``."""
        if self.by_rank:
            found = self._merged(names)
            number, good = found.number, found.good
            time_ns, units, end = found.time_ns, found.units, found.end_ns
            cpu, wait = found.cpu_ns, found.wait_ns
            calls, delivered = found.calls, found.delivered_ns
        else:
            step = self._step(self._seen, names)
            number, good = step.number, step.good
            time_ns, units, end = step.time_ns, step.units, step.end_ns
            cpu, wait = step.cpu_ns, step.wait_ns
            calls, delivered = step.calls, step.delivered_ns
        block, mask, level = self._in_force(number, good)
        if self.slot_ns:
            time_ns, units = by_units(
                time_ns, units, good & (mask == 0), good, self.slot_units
            )
        return Slots(
            number=number,
            block=block,
            run=np.full(len(number), self.number, np.int64),
            end_ns=end,
            time_ns=time_ns,
            units=units,
            mask=mask,
            level=level,
            good=good,
            cpu_ns=cpu,
            wait_ns=wait,
            calls=calls,
            delivered_ns=delivered,
        )

    def metered(self) -> Metered | None:
        """The metric's values for each slot, rows as in ``slots()``; None: no metric."""
        meter = self.program.meter
        if not meter:
            return None
        numbers = [int(n) for seen in self._seen for n in seen.slots["number"]]
        return Metered.of([meter.slots.get(n) for n in numbers], meter.bounds)

    @property
    def idle_part(self) -> float:
        """The part of the slots so far in which the metric counted nothing."""
        if not self._seen:
            return 0.0
        raw = np.concatenate([seen.slots["units"] for seen in self._seen])
        return float(np.mean(np.diff(raw) == 0)) if len(raw) > 1 else 0.0

    def ranks(self, names: Sequence[str]) -> cluster.Ranks | None:
        """The results of each rank, rows as in ``slots()``; None: units are pooled."""
        return self._merged(names).ranks if self.by_rank else None

    def _merged(self, names: Sequence[str]) -> cluster.Merged:
        order = sorted(self._of_rank, key=lambda k: (self._who[k].rank, k))
        return cluster.merge(
            [self._who[k] for k in order],
            [self._step(self._of_rank[k], names) for k in order],
            BEHIND,
        )

    def _step(self, seen: list[_Seen], names: Sequence[str]) -> cluster.Step:
        """The slots of all processes together, or of one rank."""
        raw = np.concatenate([s.slots for s in seen]) if seen else np.zeros(0, SLOT)
        n = len(raw)
        number = raw["number"].astype(np.int64)
        end = raw["end_ns"].astype(np.int64)
        time_ns, waited = np.full(n, np.nan), np.full(n, np.nan)
        units = np.zeros(n, np.int64)
        good = raw["complete"].astype(bool)
        if n:
            time_ns[1:] = np.diff(end)
            waited[1:] = np.diff(raw["waited_ns"].astype(np.int64))
            units[1:] = np.diff(raw["units"].astype(np.int64))
            good[0] = False
            # The slot after a lost record has no begin.
            good[1:] &= (end[:-1] > 0) & (np.diff(number) == 1)
        good &= (end > 0) & (time_ns > 0)
        # A slot of time may have none.
        good &= (units >= 0) if self.slot_ns else (units > 0)
        if n and not raw["waited_ns"].any():
            waited[:] = np.nan
        cpu, wait = _reporters(raw)
        return cluster.Step(
            number,
            time_ns,
            waited,
            units,
            end,
            good,
            cpu,
            wait,
            self._columns(names, [s.calls for s in seen], n),
            self._columns(names, [s.delivered for s in seen], n),
        )

    def _in_force(
        self, number: npt.NDArray[np.int64], good: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
        n = len(number)
        block = np.full(n, BESIDE, np.int64)
        mask, level = np.zeros(n, np.uint64), np.zeros(n, np.uint8)
        if not n:
            return block, mask, level
        # Slots that were not read in time are missing from the numbers.
        for begin, end in self._calm:
            low, high = np.searchsorted(number, (begin, end))
            block[low:high] = -1
        for first, index, masks, levels in self._planned:
            low, high = np.searchsorted(number, (first, first + len(masks)))
            at = number[low:high] - first
            block[low:high] = index
            mask[low:high] = masks[at]
            level[low:high] = levels[at]
        for begin, end in self._doubtful:
            low, high = np.searchsorted(number, (begin, end))
            good[low:high] = False
        return block, mask, level

    def _columns(
        self, names: Sequence[str], parts: list[Words], n: int
    ) -> npt.NDArray[np.float64]:
        columns = np.zeros((n, len(names)))
        where = [self.functions.index(name) for name in names if name in self.functions]
        to = [k for k, name in enumerate(names) if name in self.functions]
        at = 0
        for part in parts:
            # Functions added later had no counts before that.
            known = [(w, t) for w, t in zip(where, to, strict=True) if w < part.shape[1]]
            for w, t in known:
                columns[at : at + len(part), t] = part[:, w]
            at += len(part)
        return columns


def by_units(
    time_ns: npt.NDArray[np.float64],
    units: npt.NDArray[np.int64],
    quiet: npt.NDArray[np.bool_],
    good: npt.NDArray[np.bool_],
    slot_units: int,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Slots of time as if each had ``slot_units``.

    A slot with fewer units took as much longer as the missing ones take undelayed, in
    ``quiet`` slots: with a serial delay D, T = U tau + D, so that T - tau (U - mean U)
    grows by D. On average this holds whatever the noise of U is, which is not true of T /
    U.
    """
    if not units[quiet].sum():
        quiet = good
    done = int(units[quiet].sum())
    if not done:
        return time_ns, units
    unit_ns = float(time_ns[quiet].sum()) / done
    missing = np.where(good, slot_units - units, 0)
    return time_ns + unit_ns * missing, units + missing


def _length(seen: Sequence[_Seen]) -> int:
    return sum(len(part.slots) for part in seen)


def _in_turn(tids: npt.NDArray[np.uint32]) -> int:
    """How many threads took part at a time: with a thread per unit, one at a time."""
    tids = tids[tids != 0]
    change = np.zeros(len(tids) + 1, np.int64)
    for tid in np.unique(tids):
        own = np.flatnonzero(tids == tid)
        change[own[0]] += 1
        change[own[-1] + 1] -= 1
    return int(np.max(np.cumsum(change)))


def _side_by_side(tids: npt.NDArray[np.uint32]) -> float:
    """How many threads take turns, as if all did as many units.

    The inverse of the chance that two slots were ended by the same thread (Simpson,
    Nature 163, 1949), and no more than there were at a time: threads that follow each
    other are not side by side.
    """
    ended = np.unique(tids[tids != 0], return_counts=True)[1].astype(float)
    total = float(ended.sum())
    alike = float((ended * (ended - 1)).sum())
    if len(ended) < 2 or not alike:
        return 1.0
    return max(min(total * (total - 1) / alike, float(_in_turn(tids))), 1.0)


def _reporters(
    raw: npt.NDArray[np.void],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The time on a CPU, and waiting for one, of the reporting thread in each slot.

    The end of a slot has the totals of one thread. With several threads, the totals of
    each are interpolated between the slots that it ended, and the mean of the active ones
    is used. A thread that began in the slot that it ended, as in servers with a thread
    per request, had all its time in that slot.
    """
    n = len(raw)
    cpu, wait = np.full(n, np.nan), np.full(n, np.nan)
    if n < 2:
        return cpu, wait
    at = raw["end_ns"].astype(np.float64)
    brief = _brief(raw, at)
    known = brief & (raw["tid"] != 0)
    # If most slots are ended this way, the others belong to equally short threads.
    if known.sum() >= BRIEF_PART * (n - 1):
        cpu[known] = raw["cpu_ns"][known]
        wait[known] = raw["wait_ns"][known]
        return cpu, wait
    tids = [int(tid) for tid in np.unique(raw["tid"]) if tid]
    if not tids or len(tids) > MAX_REPORTERS:
        return cpu, wait
    sums = np.zeros((2, n))
    taking_part = np.zeros(n)
    for tid in tids:
        own = np.flatnonzero(raw["tid"] == tid)
        if len(own) < 2:
            continue
        inside = slice(own[0] + 1, own[-1] + 1)
        for k, name in enumerate(("cpu_ns", "wait_ns")):
            so_far = np.interp(
                at[own[0] : own[-1] + 1], at[own], raw[name][own].astype(np.float64)
            )
            sums[k, inside] += np.diff(so_far)
        taking_part[inside] += 1
    known = taking_part > 0
    cpu[known] = sums[0, known] / taking_part[known]
    wait[known] = sums[1, known] / taking_part[known]
    return cpu, wait


def _brief(
    raw: npt.NDArray[np.void], at: npt.NDArray[np.float64]
) -> npt.NDArray[np.bool_]:
    """Slots ended by a thread for the first time, whose totals fit in the slot."""
    first = np.zeros(len(raw), np.bool_)
    first[np.unique(raw["tid"], return_index=True)[1]] = True
    had = raw["cpu_ns"].astype(np.float64) + raw["wait_ns"]
    first[1:] &= had[1:] <= np.diff(at)
    first[0] = False
    return np.asarray(first)


def together(parts: Sequence[Slots], width: int) -> Slots:
    """Join the slots of several runs, one after the other."""
    if not parts:
        parts = [empty(width)]
    return Slots(
        **{
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in Slots.__dataclass_fields__
        }
    )


def empty(width: int) -> Slots:
    """No slots, of ``width`` functions."""
    whole = np.zeros(0, np.int64)
    real = np.zeros(0)
    return Slots(
        number=whole,
        block=whole,
        run=whole,
        end_ns=whole,
        time_ns=real,
        units=whole,
        mask=np.zeros(0, np.uint64),
        level=np.zeros(0, np.uint8),
        good=np.zeros(0, np.bool_),
        cpu_ns=real,
        wait_ns=real,
        calls=np.zeros((0, width)),
        delivered_ns=np.zeros((0, width)),
    )
