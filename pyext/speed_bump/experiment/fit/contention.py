# SPDX-License-Identifier: MIT
"""How other programs on the machine affect the numbers, and when they invalidate them.

With a share of a CPU, a delay of CPU time takes longer by the wall clock, the more so the
smaller the share. So the time of the threads that report units is split into time on a
CPU, waiting for one, and blocked:

    c = effect on CPU time + share x effect on blocked time

This is what the wall clock would show if the program had a CPU of its own and was blocked
for another of its threads. If it was blocked for a device, the share is 1. The verdict
must hold for both. It must, too, where the share is that of a function's own delays: the
delayed thread may wait less for a CPU elsewhere, so that by the wall less is added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from speed_bump.experiment.fit.columns import (
    GROUPS,
    SINGLE,
    Table,
    block_index,
    table,
)
from speed_bump.experiment.fit.effects import Effects, effects
from speed_bump.experiment.fit.interval import Interval, around
from speed_bump.experiment.fit.noise import Booleans
from speed_bump.experiment.record import Block, Floats, Integers, Record

# With a larger share of a CPU the wall clock is good enough, and with a somewhat smaller
# one if it is unknown how long threads waited for a CPU.
ALONE, NEARLY_ALONE = 0.99, 0.95
# With a smaller share, of a function's own delays or, if that is unknown, of all threads,
# the function has no label.
MIN_SHARE = 0.1
# The same if waiting for a CPU is unknown. A thread that reports units and never got its
# CPU at once may be late for what it waits for.
MIN_MEAN_SHARE = 0.3
# A reporting thread that sometimes got its CPU at once may be late below this share,
# unless it was blocked no longer then: by this part of a unit.
LATE_SHARE, AS_LONG = 0.5, 0.05
# A slot with a smaller part of waiting got its CPU at once.
AT_ONCE = 0.02
# At least this many comparisons over the experiment are needed.
COMPARED, MIN_COMPARED = 20, 8
# Shares are distinguished in this many steps, each of which is a regression.
STEPS = 20
# Parts of the machine's time. If the hypervisor takes more than the first, there are no
# labels; if it takes more than the second, the report says so. All intervals are widened
# by the part that it takes, which is the most by which a delay gets longer.
# Cloud machines lose some percent on any day, so a small limit would refuse all of them.
MAX_STEAL, TOLD_STEAL = 0.3, 0.02
# Delivered CPU time over requested; and the same of delays that sleep, which end when the
# thread has a CPU, and the GIL, again.
DELIVERED, SLEPT = (0.9, 1.2), (0.9, 2.0)
QUIETER = "run it when the machine has less to do"


@dataclass
class Contention:
    """How times are to be read.

    ``y`` is the regressed time, ``device`` the same if blocked time was for a device;
    None: wall time. ``refusal``: why no label can be given, "" if one can; ``note``
    qualifies every number. ``scaled``: other programs are running, and how long threads
    waited is unknown: the cost of delays by the wall is multiplied by their share.
    ``reporter`` is the share of a CPU of the threads that report units. ``hurried`` is
    how much less of a unit they are blocked if they waited for a CPU; None: unknown.
    ``waited`` is the part of a unit for which they wait for one. ``given``: the program
    is its own rival, and other programs leave it this part of the CPU time that it wants;
    by the wall clock, it and its delays take longer by this factor, or by less if it
    sleeps too (``sleeps``).
    """

    share: float
    y: Floats | None
    device: Floats | None
    refusal: str
    help: str
    note: str
    cpus: int = 1
    scaled: bool = False
    reporter: float = math.nan
    hurried: Interval | None = None
    waited: float = math.nan
    given: float = 1.0
    sleeps: bool = False

    @property
    def is_late(self) -> bool:
        """Whether the thread that reports units may be late for what it waits for.

        Then it is not blocked, and everything in it seems to matter. If other programs
        take its CPU now and then, the slots in which they did not decide: blocked for
        longer there, it is late. If they always do, as in units longer than a scheduler's
        slice, the share alone decides. A wait of a small part of a unit can't make it
        late for more, however short the time that it computes.
        """
        if self.waited < AS_LONG:
            return False
        if self.hurried is None:
            return self.reporter < MIN_MEAN_SHARE
        return self.reporter < LATE_SHARE and self.hurried.high >= AS_LONG

    def rivalry(self, share: float | None) -> float:
        """What a delay may cost because it takes a CPU from a thread of the program.

        With n threads that want one of m CPUs, a delay of CPU time takes 1 / m of it, by
        the wall, from each of the others, without being waited for. For a thread that
        does not report units it looks as if it was.

        Args:
            share: of a CPU, that the delays had; None: unknown
        """
        if self.y is None and not self.scaled:
            return 0.0
        some = [self.share, 1 / (1 + 1 / self.cpus)] if share is None else [share]
        return max(min(s / self.cpus, 1 - s) for s in some)


def contention(record: Record, table: Table) -> Contention:
    """Read the record's contention."""
    machine = record.machine
    share = machine.share
    if machine.steal > MAX_STEAL:
        reason = (
            f"the hypervisor took {machine.steal:.0%} of the CPU time; what that did to "
            "delays can't be told"
        )
        return Contention(share, None, None, reason, "use a quieter host", "")
    if machine.is_crowded:
        note = f"on {machine.cpus} CPU{'s' * (machine.cpus != 1)}: "
        if machine.rivals > machine.cpus:
            note += f"{machine.rivals:.1f} threads of the program wanted one, "
        note += "it is its own rival"
        given = machine.given
        if not given < NEARLY_ALONE:
            return Contention(share, None, None, "", "", note)
        if given < MIN_SHARE:
            return Contention(share, None, None, had_only(given), QUIETER, note)
        note += f"; as if other programs had not had {1 - given:.0%} of the CPU time"
        sleeps = not machine.is_full
        return Contention(share, None, None, "", "", note, given=given, sleeps=sleeps)
    if not math.isfinite(share) or share >= ALONE:
        return Contention(share, None, None, "", "", "")
    known = [record.shares[name] for name in record.functions if name in record.shares]
    if max(known, default=share) < MIN_SHARE:
        return Contention(share, None, None, had_only(share), QUIETER, "")
    usable = table.age >= 0
    waits = usable & np.isfinite(table.cpu) & np.isfinite(table.blocked)
    note = f"with a CPU of its own (it had {share:.0%})"
    if waits.sum() < 0.9 * usable.sum():
        if share >= NEARLY_ALONE:
            return Contention(share, None, None, "", "", "")
        return Contention(share, None, None, "", "", note, cpus=machine.cpus, scaled=True)
    rows = np.flatnonzero(waits)
    cpu = float(table.cpu[rows].sum())
    waited = float((table.y - table.cpu - table.blocked)[rows].sum())
    wanted = cpu + max(waited, 0.0)
    return Contention(
        share,
        table.cpu + share * table.blocked,
        table.cpu + table.blocked,
        "",
        "",
        note,
        machine.cpus,
        reporter=cpu / wanted if wanted > 0 else math.nan,
        hurried=_hurried(table, waits),
        waited=max(waited, 0.0) / float(table.y[rows].sum()),
    )


def _hurried(table: Table, rows: Booleans) -> Interval | None:
    """How much longer the reporting thread is blocked if it got its CPU at once.

    Among neighbouring undelayed slots, so that slow phases are in both groups.
    """
    still = np.flatnonzero(rows & ~(table.x > 0).any(1))
    if len(still) < 2 * COMPARED:
        return None
    blocked = table.blocked[still]
    blocked = np.clip(blocked, *np.quantile(blocked, (0.02, 0.98)))
    at_once = (table.y - table.cpu - table.blocked)[still] <= AT_ONCE
    found = []
    for part in np.array_split(np.arange(len(still)), COMPARED):
        now, later = part[at_once[part]], part[~at_once[part]]
        if len(now) >= 2 and len(later) >= 2:
            found.append(float(blocked[now].mean() - blocked[later].mean()))
    if len(found) < MIN_COMPARED:
        return None
    error = float(np.std(found, ddof=1)) / math.sqrt(len(found))
    return around(float(np.mean(found)), error, len(found) - 1)


def of_groups(record: Record) -> Effects | None:
    """The effects of groups of functions; None if there are none yet.

    If there are too few CPUs, a delay in another process takes a CPU from the thread that
    reports units: by the wall every group would cost something, and none would stand out.
    """
    data = table(record, GROUPS)
    if data is None:
        return None
    found = effects(data, contention(record, data).y)
    return found and found.of_thread(record.side_by_side)


def had_only(share: float) -> str:
    """Why there is no label if the program had too little of a CPU."""
    return f"the program had only {share:.0%} of the CPU time that it wanted"


def by_own_shares(
    record: Record, table: Table, found: Effects
) -> tuple[Effects, set[str]]:
    """The effects, each corrected by the share of a CPU that its own delays had.

    The mean share of all threads is not that of the delayed one: a thread that mostly
    sleeps gets its CPU at once. A delay that took 1 / share of its CPU time lengthens, or
    shortens, the time that others are blocked by the same factor.

    Returns:
        also the functions whose share is known
    """
    known: set[str] = set()
    parts: dict[float, Effects] = {}
    chosen = list(found.effects)
    cov = found.cov.copy()
    places: dict[float, list[int]] = {}
    for k, column in enumerate(table.columns):
        name = column.functions[0] if len(column.functions) == 1 else None
        if name is None or name not in record.shares:
            continue
        share = round(record.shares[name] * STEPS) / STEPS
        places.setdefault(share, []).append(k)
        known.add(name)
    for share, columns in places.items():
        part = effects(table, table.cpu + share * table.blocked)
        if part is None:
            continue
        parts[share] = part
        for k in columns:
            chosen[k] = part.effects[k]
        cov[np.ix_(columns, columns)] = part.cov[np.ix_(columns, columns)]
    return replace(found, effects=chosen, cov=cov), known


@dataclass
class Delivered:
    """What became of the delays that were planned.

    ``ratios``: by function, delay delivered over delay asked, if any was in force; 1 if
    they differ by a call, which may have been counted in another slot, as the one that
    ends a unit of work; "" is all of them together. ``lapsed``: of ``planned`` slots,
    those in which a function was called and its delay was not in force at all. Delays end
    by themselves when the tool has no CPU for half a second. Such slots count as
    undelayed and do no harm. They occur several at a time: a single one may have its
    delay counted in the next.
    """

    ratios: dict[str, float]
    lapsed: int
    planned: int


def _without_a_delay(record: Record, plan: Block, rows: Integers) -> Booleans:
    """Which of a block's slots are in runs of two or more that were to have a delay and
    had none.
    """
    slots = record.slots
    calls = np.nan_to_num(slots.calls[rows])
    took = np.nan_to_num(slots.delivered_ns[rows]).sum(axis=1)
    due = np.zeros(len(rows), bool)
    position = {name: k for k, name in enumerate(record.functions)}
    for bit, arm in enumerate(plan.arms):
        on = ((slots.mask[rows] >> np.uint64(bit)) & np.uint64(1)).astype(bool)
        for name, delays in zip(arm.functions, arm.delays, strict=True):
            if name in position and delays:
                every = min(delay.every for delay in delays)
                due |= on & (calls[:, position[name]] >= every)
    at = np.flatnonzero(due)
    none = took[at] <= 0
    twice = none[1:] & none[:-1]
    lost = np.zeros(len(rows), bool)
    lost[at[1:]] |= twice
    lost[at[:-1]] |= twice
    return lost


def delivered(record: Record) -> Delivered:
    """The ratios of all blocks in which single functions were delayed."""
    slots = record.slots
    position = {name: k for k, name in enumerate(record.functions)}
    block = block_index(record)
    asked, given, of_a_call = np.zeros((3, len(position)))
    calls = np.nan_to_num(slots.calls)
    took = np.nan_to_num(slots.delivered_ns)
    lapsed = planned = 0
    for k in np.unique(block[block >= 0]):
        plan = record.blocks[k]
        if plan.stage not in SINGLE:
            continue
        rows = np.flatnonzero((block == k) & slots.good)
        level = slots.level[rows]
        lost = _without_a_delay(record, plan, rows)
        for bit, arm in enumerate(plan.arms):
            on = ((slots.mask[rows] >> np.uint64(bit)) & np.uint64(1)).astype(bool)
            for name, delays in zip(arm.functions, arm.delays, strict=True):
                at = position.get(name)
                if at is None or not delays:
                    continue
                of = np.minimum(level[on], len(delays) - 1)
                rate = np.array([delay.delay_ns / delay.every for delay in delays])[of]
                every = np.array([delay.every for delay in delays])[of]
                own, ours = calls[rows[on], at], took[rows[on], at]
                due = own >= every
                none = due & (ours <= 0) & lost[on]
                lapsed, planned = lapsed + int(none.sum()), planned + int(due.sum())
                asked[at] += float((own * rate)[~none].sum())
                of_a_call[at] = (rate * every)[~none].max(initial=of_a_call[at])
                given[at] += float(ours.sum())
    ratios = {
        name: given[k] / asked[k] if abs(given[k] - asked[k]) > of_a_call[k] else 1.0
        for name, k in position.items()
        if asked[k] > 0
    }
    if asked.sum() > 0:
        ratios[""] = float(given.sum() / asked.sum())
    return Delivered(ratios, lapsed, planned)
