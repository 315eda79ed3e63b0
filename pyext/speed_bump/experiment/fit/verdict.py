# SPDX-License-Identifier: MIT
"""From numbers to verdicts: labels, their reasons, and what would help."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

# isort: off
import speed_bump.experiment.algebra  # noqa: F401
import numpy as np
# isort: on

from speed_bump.experiment.fit.bill import Bill, bills
from speed_bump.experiment.fit.columns import (
    FLOOD,
    SINGLE,
    Column,
    Table,
    base_time,
    block_index,
    floods,
    table,
    undelayed,
)
from speed_bump.experiment.fit.contention import (
    DELIVERED,
    MIN_MEAN_SHARE,
    MIN_SHARE,
    QUIETER,
    TOLD_STEAL,
    Contention,
    by_own_shares,
    contention,
    delivered,
    had_only,
    of_groups,
)
from speed_bump.experiment.fit.diagnostics import Diagnostics, diagnose
from speed_bump.experiment.fit.effects import SHAM, Effect, Effects, effects
from speed_bump.experiment.fit.interval import (
    CONFIDENCE,
    HIDDEN,
    INCONCLUSIVE,
    MATTERS,
    PARTLY,
    THRESHOLD,
    WHOLE,
    WIDEST,
    Interval,
    around,
    discoveries,
    label_of,
    normal_quantile,
    quantile,
    upper_tail,
)
from speed_bump.experiment.fit.randomisation import FLOOR, p_values
from speed_bump.experiment.fit.slack import Slack, slacks
from speed_bump.experiment.fit.ties import Joint, joints
from speed_bump.experiment.record import Record, SelfTime

# The labels, shared with whole runs, are re-exported here.
__all__ = [
    "HIDDEN",
    "INCONCLUSIVE",
    "MATTERS",
    "PARTLY",
    "Finding",
    "Verdict",
    "label_of",
    "slowdown",
    "verdict",
]

FALSE_DISCOVERIES = 0.05
# Half an interval is never narrower: clocks, and the effect of a delay on caches.
FINEST = 0.01
# A share of a CPU has an error of about this part of the others' share.
SHARE_ERROR = 0.1
# Nothing, or all, of a delay arrives if it is certainly below the one, or above the
# other; slack that is used up gives something in between.
PLAIN = (0.3, 0.6)
# Delays that take more of a slot than this, by the wall, may use up slack.
LONG_DELAY = 0.6
# Small delays decide if half of their interval is not wider. They are shorter by so much.
TOLD, SHORTER = 0.3, 3.0
# Other numbers may be off by this many times the apparent cost of the sham; above the
# limit no label stands.
SHAM_TIMES, MAX_SHAM = 2.0, 0.5
# A larger part of slots without any delay in force is reported.
MAX_LAPSED = 0.02
# Two levels of dose differ if they do by this many standard errors, and by so much.
BENDS = 3.3
BENDS_BY = 0.1
# A function delayed in fewer slots than these has no answer.
MIN_DELAYED = 4
MIN_ROWS = 16
# A serial function has a number above this; one below may have slack.
SERIAL = 0.85
# Above this, more arrives than was delivered.
AMPLIFIED = 1.1


@dataclass(frozen=True)
class Finding:
    """The result for one function.

    Args:
        verdict: "matters", "partly", "hidden" or "inconclusive"
        criticality: extra time over delay; None: the data support no number
        headroom: at most this part of the time can be gained
        shape: "linear", "hinge", "amplified", "negative" or "" if unknown
        slack_ns: how long a slot may be delayed by it at no cost
        dose: delay delivered in a slot in which it was delayed, of the undelayed slot
        delayed: slots in which it was delayed
        p: the probability of such a number if the function did not matter at all
        false_discovery: the false discovery rate at which it would be called
        reason: of the verdict, in plain words
        help: the cheapest thing that would help; "" if nothing is needed
        share: of the wall clock's time, threads in the function itself
    """

    name: str
    verdict: str
    criticality: Interval | None
    headroom: Interval | None
    shape: str
    slack_ns: Interval | None
    dose: float
    delayed: int
    p: float
    false_discovery: float
    reason: str
    help: str
    notes: tuple[str, ...] = ()
    share: Interval | None = None


@dataclass
class Verdict:
    """The results of a whole experiment.

    ``slowdown`` is the largest part of its throughput that the program lost to the
    delays; ``cpu_share`` the part of the wanted CPU time that its threads had;
    ``shared``: other programs used so much of the CPUs that it had to be taken into
    account.
    """

    findings: list[Finding]
    bills: list[Bill] = field(default_factory=list)
    sham: Interval | None = None
    cpu_share: float = math.nan
    delivered_share: float = math.nan
    diagnostics: Diagnostics | None = None
    joints: list[Joint] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    slot_ns: float = 0.0
    slots: int = 0
    slowdown: float = 0.0
    shared: bool = False

    def of(self, name: str) -> Finding:
        """The finding of a function."""
        return next(finding for finding in self.findings if finding.name == name)


@dataclass
class _Number:
    """The parts of the headline of a function."""

    c: float
    se: float
    df: int
    dose: float
    column: int
    shape: str = ""
    notes: list[str] = field(default_factory=list)
    between: bool = False
    small: bool = False
    device: Interval | None = None
    # The additional error of the number, and that below it alone.
    off: float = 0.0
    below: float = 0.0
    # Why it may be hidden with more of a CPU; "" if the CPU was enough.
    starved: str = ""
    # Where more than the delay arrives; "" if it does not, or this is unknown.
    more: str = ""
    # Why this function has no label, and what would help; "" if it has one.
    refusal: str = ""
    help: str = ""

    @property
    def interval(self) -> Interval:
        """The 95% interval; never narrower than delays are exact."""
        half = max(quantile(self.df) * self.se, FINEST) + self.off
        return Interval(self.c, self.c - half - self.below, self.c + half)


def verdict(record: Record, final: bool = True) -> Verdict:
    """Judge the record.

    Args:
        final: the experiment is over: also look for late effects, phases and ties
    """
    base = base_time(record)
    out = Verdict(
        [], cpu_share=record.machine.share, slot_ns=base, slots=len(record.slots)
    )
    out.slowdown = slowdown(record)
    took = delivered(record)
    out.delivered_share = took.ratios.get("", math.nan)
    data = table(record, SINGLE)
    found = effects(data)
    numbers: dict[str, _Number] = {}
    refusal, helps, note = "", "", ""
    if data is not None and found is not None:
        how = contention(record, data)
        refusal, helps, note = how.refusal, how.help, how.note
        out.shared = how.y is not None or how.scaled
        device, own = None, set[str]()
        if how.y is not None and not refusal:
            found = effects(data, how.y) or found
            device = effects(data, how.device)
            found, own = by_own_shares(record, data, found)
        out.bills = bills(found)
        out.sham = _sham(found)
        if final:
            out.diagnostics = diagnose(found, how.y)
            out.joints = joints(record)
        refusal, helps = _refused(out, refusal, helps)
        numbers = _numbers(record, found, device, out, how, own)
        _qualify(record, numbers, out, how, own, took.ratios)
        out.joints = [j for j in out.joints if _both_matter(j, numbers)]
        if final:
            _explain_more(data, numbers)
        if not refusal:
            refusal, helps = _bill_refuses(found, out)
    hinges = slacks(record) if final or _has(record, "pedestal") else {}
    grouped = _grouped(record)
    spent = _elapsed(record)
    names = [*record.functions, *(n for n in record.idle if n not in record.functions)]
    tails = [
        upper_tail(numbers[n].c / numbers[n].se, numbers[n].df) if n in numbers else 1.0
        for n in names
    ]
    if data is not None and found is not None and final:
        block = block_index(record)[len(record.slots) - len(data.y) :]
        y = data.y if how.y is None else how.y
        ranks = p_values(y, data, found.fit, block)
        ranked = [
            ranks.get(numbers[n].column, tail) if n in numbers else tail
            for n, tail in zip(names, tails, strict=True)
        ]
        tails = [
            rank if rank > FLOOR else min(rank, tail)
            for rank, tail in zip(ranked, tails, strict=True)
        ]
    rates = discoveries(tails)
    for name, p, rate in zip(names, tails, rates, strict=True):
        out.findings.append(
            _finding(
                record,
                name,
                numbers.get(name),
                hinges.get(name),
                grouped.get(name),
                p,
                rate,
                refusal,
                helps,
                note,
                spent,
                out,
                found,
            )
        )
    _warnings(record, out, refusal, note)
    if took.lapsed > MAX_LAPSED * took.planned:
        out.warnings.append(
            f"in {took.lapsed} of {took.planned} slots no delay was in force: this tool "
            "had no CPU for half a second, or the program was stopped; they count as "
            "undelayed"
        )
    return out


def slowdown(record: Record) -> float:
    """The part of the throughput that delays cost at most, over the whole run."""
    slots = record.slots
    total = float(np.nansum(slots.time_ns))
    given = float(np.nansum(slots.delivered_ns))
    if total <= 0:
        return 0.0
    # As if all of it had arrived, and the rest of the time had been as in the rests.
    whole = base_time(record) * len(slots) + given
    return min(given / max(total, whole), 1.0)


def _has(record: Record, stage: str) -> bool:
    return any(block.stage == stage for block in record.blocks)


def _elapsed(record: Record) -> float:
    """Seconds in all slots."""
    return float(np.nansum(record.slots.time_ns)) / 1e9


def _sham(found: Effects) -> Interval | None:
    """The sham, all doses together."""
    shams = found.of(())
    if not shams:
        return None
    weights = [1 / effect.se**2 for effect in shams]
    value = sum(w * e.c for w, e in zip(weights, shams, strict=True)) / sum(weights)
    return around(value, 1 / math.sqrt(sum(weights)), shams[0].df)


def _refused(out: Verdict, refusal: str, helps: str) -> tuple[str, str]:
    """A reason for no label at all, and what would help."""
    if refusal:
        return refusal, helps
    if SHAM_TIMES * _sham_costs(out) > MAX_SHAM:
        return (
            f"{_sham_says(out)}: something other than the delays is at work",
            "run it again, and longer; use a quieter machine if it persists",
        )
    return "", ""


def _sham_costs(out: Verdict) -> float:
    """The apparent cost of the sham, of a delay; 0 if that can be chance."""
    if out.sham is None:
        return 0.0
    error = out.sham.half / normal_quantile((1 + CONFIDENCE) / 2)
    return abs(out.sham.value) if abs(out.sham.value) > SHAM * error > 0 else 0.0


def _sham_says(out: Verdict) -> str:
    value = out.sham.value if out.sham else 0.0
    return f"the sham, which delays nothing, seems to cost {value:.2f} of a delay"


def _qualify(
    record: Record,
    numbers: dict[str, _Number],
    out: Verdict,
    how: Contention,
    own: set[str],
    ratios: dict[str, float],
) -> None:
    """Apply what makes numbers less certain than the regression says, by function."""
    sham = SHAM_TIMES * _sham_costs(out)
    steal = record.machine.steal
    low, high = DELIVERED
    for name, number in numbers.items():
        number.off += sham
        if steal > TOLD_STEAL:
            number.off += steal * max(abs(number.c), THRESHOLD)
        ratio = ratios.get(name, 1.0)
        if math.isfinite(ratio) and not low <= ratio <= high:
            number.refusal = f"its delays took {ratio:.2f} times what was asked"
            number.help = (
                "use longer delays or fewer functions: the delay of a call may be too "
                "short for this machine"
            )
        elif number.interval.high < -1:
            number.refusal = (
                "with a delay of it the program seems to be faster by more than the "
                "delay: its calls come with other work"
            )
            number.help = "name another unit of work with --progress"
        share = record.shares.get(name)
        if how.scaled:
            _scale(number, how, share)
        elif how.y is not None:
            number.off += SHARE_ERROR * (1 - how.share) * max(abs(number.c), 0.3)
            # What amplifies delays also amplifies waiting for a CPU.
            more = max(number.c - 1, 0.0)
            number.off += (1 - how.share) * number.c * more
            if share is not None and share < MIN_SHARE:
                number.refusal = (
                    f"its delays had only {share:.0%} of the CPU time that they wanted"
                )
                number.help = QUIETER


def _scale(number: _Number, how: Contention, share: float | None) -> None:
    """By the wall clock: a delay with a share of a CPU takes 1 / share as long."""
    part = share if share is not None else how.share
    if part < MIN_MEAN_SHARE:
        number.refusal = (
            had_only(part) + ", and how long the threads that report units waited for a "
            "CPU is not known"
        )
        number.help = QUIETER
        return
    # Other programs took time from the thread that is waited for, or from another one.
    rivalry = min(how.rivalry(share), max(number.c, 0.0))
    _starved(number, part, number.c, how)
    apart = (1 - part) * abs(number.c) / 2
    number.c -= apart
    number.off += apart
    number.below = rivalry


def _explain_more(data: Table, numbers: dict[str, _Number]) -> None:
    """Where more than a delay arrives: the part of the time in which it does.

    A slower server has a shorter queue, and must wake the client for each answer: the
    server itself then computes for longer. With a lock, others wait.
    """
    some = [number for number in numbers.values() if number.interval.low > AMPLIFIED]
    usable = data.age >= 0
    if not some or np.isfinite(data.cpu[usable]).sum() < 0.9 * usable.sum():
        return
    found, blocked = effects(data, data.cpu), effects(data, data.blocked)
    for number in some:
        if found is None or not found.effects[number.column].known:
            continue
        computes = found.effects[number.column].interval
        if computes.low > 1.0 and computes.value > (1 + number.c) / 2:
            number.more = "the thread that reports units computes for longer after it"
            continue
        waits = blocked and blocked.effects[number.column]
        if waits and waits.known and waits.interval.low > (number.c - 1) / 2:
            number.more = "others wait for the same"


def _both_matter(joint: Joint, numbers: dict[str, _Number]) -> bool:
    """Drop ties of functions that are not known to matter alone."""
    some = [numbers.get(name) for name in joint.functions]
    return all(
        n is not None
        and not n.refusal
        and n.interval.half <= WIDEST
        and n.interval.low > THRESHOLD
        for n in some
    )


def _sound(found: Effects, out: Verdict) -> set[tuple[float, bool]]:
    """Doses without an alarm: those below the smallest alarm."""
    alarmed = [(not bill.apart, bill.dose) for bill in out.bills if bill.alarm]
    keys = {(column.dose, column.apart) for column in found.table.columns}
    if not alarmed:
        return keys
    least = min(alarmed)
    return {key for key in keys if (not key[1], key[0]) < least}


def _bill_refuses(found: Effects, out: Verdict) -> tuple[str, str]:
    """After an alarm, labels need a smaller dose without any fault."""
    alarms = [bill for bill in out.bills if bill.alarm]
    if not alarms:
        return "", ""
    worst = min(alarms, key=lambda bill: (not bill.apart, bill.dose))
    sound = _sound(found, out)
    used = -worst.cost.value
    reason = (
        f"nearly balanced: delays of {worst.dose:.2g} of a unit move the bottleneck "
        f"(together they cost {used:.2g} of a unit less than their sum)"
    )
    helps = (
        "run it for longer, so that smaller delays can be measured; the slowest part is "
        "the slowest by less than that"
    )
    columns = found.table.columns
    for name in {column.functions for column in columns if column.functions}:
        pairs = found.of(name)
        small = [e for e in pairs if (e.column.dose, e.column.apart) in sound]
        large = [e for e in pairs if (e.column.dose, e.column.apart) not in sound]
        if not small:
            return reason, helps
        for few in small:
            for many in large:
                apart = abs(few.c - many.c)
                error = math.hypot(few.se, many.se)
                if apart > 2.58 * error and apart > BENDS_BY and not _is_plain(few):
                    return (
                        reason + f"; {name[0]} has another number at smaller delays",
                        helps,
                    )
                if 2.58 * error > 0.5:
                    return reason, helps
    return "", ""


def _is_plain(effect: Effect) -> bool:
    """Whether nothing, or all, of a delay arrives.

    A different number for longer delays is then the effect of slack; something in between
    is slack that the short ones use up, too.
    """
    far = 2.58 * effect.se
    none, whole = PLAIN
    return effect.c + far < none or (effect.c > SERIAL and effect.c - far > whole)


def _numbers(
    record: Record,
    found: Effects,
    device: Effects | None,
    out: Verdict,
    how: Contention,
    own: set[str],
) -> dict[str, _Number]:
    """The headline number of each function that has one.

    Args:
        own: functions that are corrected by the share of a CPU of their own delays
    """
    sound = _sound(found, out)
    place = {column: k for k, column in enumerate(found.table.columns)}
    numbers = {}
    for column in found.table.columns:
        name = column.functions[0] if len(column.functions) == 1 else None
        if name is None or name in numbers:
            continue
        every = [e for e in found.of((name,)) if e.delayed >= MIN_DELAYED]
        some = [e for e in every if (e.column.dose, e.column.apart) in sound]
        if len(found.fit.rows) < MIN_ROWS or not every:
            continue
        number = _pooled(some or every, found, place)
        late = out.diagnostics.late.get(number.column) if out.diagnostics else None
        if late:
            number = replace(number, c=late[0], se=late[1], df=late[2])
            number.notes.append("part of its delay arrives after more than one slot")
            # The search for it is no ground for "partly" by itself.
            late_interval = number.interval
            number.between |= late_interval.low > THRESHOLD and late_interval.high < WHOLE
        if out.diagnostics and number.column in out.diagnostics.phases:
            thirds = out.diagnostics.phases[number.column]
            parts = ", ".join(f"{c:.2f}" for c in thirds)
            number.notes.append(f"it changed while it ran: {parts} by thirds of the run")
            # The error of a drifting number is at least its drift.
            spread = float(np.std(thirds, ddof=1)) / math.sqrt(len(thirds))
            number.se = math.hypot(number.se, spread)
        if device is not None:
            other = device.effects[number.column]
            share = record.shares[name] if name in own else None
            part = how.share if share is None else share
            if other.known:
                # A part of the blocked time of a function's delays may be their rivalry.
                blocked = (other.c - number.c) / max(1 - part, 0.05)
                costs = max(part * blocked, 0.0)
                number.below = min(how.rivalry(share), costs)
                _starved(number, part, costs, how)
                if name not in own:
                    number.device = other.interval
        numbers[name] = number
    return numbers


def _starved(number: _Number, part: float, costs: float, how: Contention) -> None:
    """Whether an effect measured here may be hidden on an idle machine.

    With a small share of a CPU, a delay takes long by the wall and uses up slack. And a
    thread that has waited for its CPU waits for nothing else.

    Args:
        costs: the part of the number that is in blocked time
    """
    blocked = costs > 0.5 * max(number.c, THRESHOLD)
    long = number.dose / part
    if blocked and long > LONG_DELAY:
        number.starved = f"it took {long:.2g} of a unit with the CPU that it had"
    elif not blocked and how.is_late:
        number.starved = (
            f"with {how.reporter:.0%} of a CPU the thread that reports units is late for "
            "all that it may wait for"
        )
    number.between |= bool(number.starved) and number.interval.low > THRESHOLD


def _pooled(some: list[Effect], found: Effects, place: dict[Column, int]) -> _Number:
    """Doses together if they agree, the smallest if they don't."""

    def of(effect: Effect, shape: str = "") -> _Number:
        k = place[effect.column]
        return _Number(effect.c, effect.se, effect.df, effect.column.dose, k, shape)

    best = min(some, key=lambda e: e.se)
    if len(some) == 1:
        number = of(best)
        number.between = _between(best)
        return number
    at = [place[e.column] for e in some]
    cov = found.cov[np.ix_(at, at)]
    low, high = some[0], some[-1]
    apart = high.c - low.c
    error = math.sqrt(max(cov[0, 0] + cov[-1, -1] - 2 * cov[0, -1], 1e-18))
    if abs(apart) > BENDS * error and abs(apart) > BENDS_BY:
        number = of(low, "hinge" if apart > 0 else "")
        number.small = True
        number.notes.append(
            f"{high.c:.2f} of a delay of {high.column.dose:.2g} of a unit arrives, "
            f"{low.c:.2f} of one of {low.column.dose:.2g}"
        )
        return number
    if _between(high) and high.column.dose > 1.5 * low.column.dose:
        # The number of small delays decides, however small it is.
        number = of(low)
        number.small = True
        if low.interval.half > TOLD:
            number = of(high)
            number.between = True
        return number
    try:
        weights = np.linalg.solve(cov, np.ones(len(at)))
    except np.linalg.LinAlgError:
        return of(best)
    if not np.isfinite(weights).all() or weights.sum() <= 0:
        return of(best)
    weights /= weights.sum()
    value = float(weights @ np.array([e.c for e in some]))
    variance = float(weights @ cov @ weights)
    number = of(best)
    if 0 < variance <= best.se**2:
        number.c, number.se = value, math.sqrt(variance)
    return number


def _between(effect: Effect) -> bool:
    """Whether a part arrives, which may be the effect of slack."""
    interval = effect.interval
    return interval.low > THRESHOLD and effect.c < SERIAL and interval.high < 1.0


@dataclass
class _Group:
    """The last group that a function was screened in."""

    members: int
    total: Interval


def _grouped(record: Record) -> dict[str, _Group]:
    """By function: the smallest group that it was in, and the cost of the group."""
    if not _has(record, "groups"):
        return {}
    found = of_groups(record)
    groups: dict[str, _Group] = {}
    if found is None:
        return groups
    for effect in sorted(found.effects, key=lambda e: -len(e.column.functions)):
        members = len(effect.column.functions)
        if members and effect.known:
            total = around(effect.c * members, effect.se * members, effect.df)
            groups.update(dict.fromkeys(effect.column.functions, _Group(members, total)))
    return groups


def lasting(value: float) -> str:
    """A time, rounded."""
    if value < 100:
        return f"{max(value, 1):.0f} s"
    if value < 100 * 60:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.0f} h"


def _shorter(number: _Number, spent: float) -> str:
    """How much longer until shorter delays are known well enough."""
    half = SHORTER * number.interval.half
    more = spent * min(max((half / TOLD) ** 2 - 1, 0.3), 1000.0)
    return f"run it for {lasting(more)} more, for shorter delays"


def _more_time(interval: Interval, spent: float) -> str:
    """How much longer until the interval is clear of the thresholds."""
    distance = abs(interval.value - THRESHOLD)
    target = min(max(0.8 * distance, 0.04), WIDEST)
    more = spent * ((interval.half / target) ** 2 - 1)
    if more > 24 * 3600:
        return "use longer delays or fewer functions: time alone would take days"
    return f"run it for {lasting(max(more, 0.1 * spent))} more, or with fewer functions"


def _share(times: Mapping[str, SelfTime], name: str) -> Interval | None:
    """The part of the time that is spent in the function itself."""
    own = times.get(name)
    if own is None or own.looks <= 0:
        return None
    # Wilson, JASA 22 (1927), at 1.96.
    share, n, z = own.share, own.looks, 1.96
    inside = min(max(share, 0.0), 1.0)
    middle = (inside + z * z / (2 * n)) / (1 + z * z / n)
    half = (
        z * math.sqrt(inside * (1 - inside) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    )
    if share > 1:
        half = z * math.sqrt(share / n)
        return Interval(share, max(share - half, 0.0), share + half)
    return Interval(share, max(middle - half, 0.0), min(middle + half, 1.0))


def _headroom(criticality: Interval | None, share: Interval | None) -> Interval | None:
    """Criticality times own time; relative errors add as squares."""
    if criticality is None or share is None:
        return None
    c = max(criticality.value, 0.0)
    value = c * share.value
    up = math.hypot(
        (criticality.high - criticality.value) * share.value,
        max(criticality.high, 0.0) * (share.high - share.value),
    )
    down = math.hypot(
        (criticality.value - criticality.low) * share.value,
        c * (share.value - share.low),
    )
    return Interval(min(value, 1.0), max(value - down, 0.0), min(value + up, 1.0))


def self_and_headroom(
    times: Mapping[str, SelfTime], name: str, criticality: Interval | None
) -> tuple[Interval | None, Interval | None]:
    """The part of the time in a function itself, and the headroom."""
    share = _share(times, name)
    return share, _headroom(criticality, share)


def _finding(
    record: Record,
    name: str,
    number: _Number | None,
    slack: Slack | None,
    group: _Group | None,
    p: float,
    rate: float,
    refusal: str,
    helps: str,
    note: str,
    spent: float,
    out: Verdict,
    found: Effects | None,
) -> Finding:
    """The finding of one function."""
    share = _share(record.self_times, name)
    empty = Finding(
        name, INCONCLUSIVE, None, None, "", None, 0.0, 0, p, rate, "", "", (), share
    )
    if number is None:
        reason, advice, label = _unmeasured(record, name, group, spent)
        total = None
        if group is not None and label == HIDDEN:
            value = max(group.total.value, 0.0)
            total = Interval(value, 0.0, max(group.total.high, value))
        return replace(
            empty,
            verdict=INCONCLUSIVE if refusal else label,
            criticality=total,
            headroom=_headroom(total, share),
            reason=refusal or reason,
            help=helps or advice if refusal else advice,
        )
    interval = number.interval
    useful = interval.half <= WIDEST
    assert found is not None
    column = found.table.columns[number.column]
    delayed = sum(e.delayed for e in found.effects if e.column.functions == (name,))
    on = found.table.x[:, number.column]
    dose = float(np.mean(on[on > 0])) if (on > 0).any() else column.dose
    notes = list(number.notes)
    if note:
        notes.append(note)
    for joint in out.joints:
        if name in joint.functions and joint.kind != "serial":
            other = joint.functions[joint.functions[0] == name]
            if joint.kind == "parallel":
                notes.append(
                    f"in parallel with {other}: make both faster, or nothing is gained"
                )
            else:
                notes.append(f"amplifies, and is amplified by, {other}")
    shape = number.shape
    slack_ns = None
    if slack is not None and (slack.ns.low > 0 or slack.over):
        slack_ns = slack.ns
        shape = shape or "hinge"
        if slack.over:
            notes.append(
                f"slack over {slack.step * len(slack.slopes):.2g} of a unit: even there "
                "no larger part of a delay arrives"
            )
    told = number.small or label_of(interval) in (MATTERS, PARTLY)
    if 0 < interval.low <= interval.value < SERIAL and not told:
        # Of shorter delays less may arrive: the response bends upwards only.
        interval = Interval(interval.value, 0.0, interval.high)
    filled = replace(
        empty,
        criticality=interval if useful else None,
        headroom=_headroom(interval, share) if useful else None,
        dose=dose,
        delayed=delayed,
        slack_ns=slack_ns,
        shape=shape,
        notes=tuple(notes),
    )
    plain = number.interval
    said = f"{plain.value:.2f} ± {plain.half:.2f} of its delay arrives"
    if refusal:
        # A number that is known to be wrong is not shown.
        return replace(
            filled, criticality=None, headroom=None, reason=refusal, help=helps
        )
    if number.refusal:
        return replace(
            filled,
            criticality=None,
            headroom=None,
            reason=number.refusal,
            help=number.help,
        )
    label = label_of(plain)
    advice = _more_time(interval, spent)
    if not useful:
        return replace(
            filled,
            reason=f"too noisy: ± {interval.half:.1f} after {delayed} delayed slots",
            help=advice,
        )
    if number.device is not None:
        # The right share of a CPU is unknown: the truth lies between the two.
        label = label_of(plain.hull(number.device))
        interval = interval.hull(number.device)
        if useful:
            headroom = _headroom(interval, share)
            filled = replace(filled, criticality=interval, headroom=headroom)
        apart = abs(plain.value - number.device.value)
        if label == INCONCLUSIVE and apart > THRESHOLD:
            return replace(
                filled,
                reason=(
                    f"{said} if the program was blocked for its own threads, "
                    f"{number.device.value:.2f} ± {number.device.half:.2f} if it was for "
                    "devices; it is not known which"
                ),
                help="a quieter machine, where both are the same",
            )
    if number.between and label in (MATTERS, PARTLY):
        known = not out.shared  # the effect of a rival looks like slack used up
        if known and slack and slack.ns.low <= 0 and slack.slopes[0] > THRESHOLD:
            pass  # it was on pedestals: there is no slack
        else:
            most = max(interval.high, 1.0) if out.shared else interval.high
            at_most = Interval(interval.value, 0.0, most)
            because = number.starved or "whether shorter ones arrive"
            because += (
                ": what a CPU of its own would change is not known"
                if number.starved
                else " or slack hides them is not known"
            )
            return replace(
                filled,
                criticality=at_most,
                headroom=_headroom(at_most, share),
                reason=(f"{said} of one of {number.dose:.2g} of a unit; {because}"),
                help=QUIETER if number.starved else _shorter(number, spent),
            )
    if label == INCONCLUSIVE:
        return replace(
            filled,
            reason=f"{said}: above or below {THRESHOLD} is not certain",
            help=advice,
        )
    if label != HIDDEN and rate > FALSE_DISCOVERIES:
        return replace(
            filled,
            reason=f"{said}; among {len(record.functions)} functions that can be chance",
            help=advice,
        )
    if label == HIDDEN and _late(out, number):
        return replace(
            filled,
            reason=(
                f"{said} at once, but delays together cost more than their effects add "
                "up to: its effect may come after the slots that are examined"
            ),
            help="a longer unit of work, so that late effects fall into it",
        )
    if interval.high < 0:
        shape = shape or "negative"
    elif interval.low > AMPLIFIED:
        shape = shape or "amplified"
    elif not shape and not number.between:
        shape = "linear"
    words = {
        MATTERS: "delaying it costs throughput",
        PARTLY: "part of a delay is hidden behind something else",
        HIDDEN: "something else is always later",
    }
    because = words[label]
    if shape == "amplified" and number.more:
        because += f", by more than the delay: {number.more}"
    return replace(
        filled, verdict=label, shape=shape, reason=f"{said}: {because}", help=""
    )


def _late(out: Verdict, number: _Number) -> bool:
    """Whether the bill shows that something arrives that no effect accounts for."""
    return any(
        bill.late and bill.dose == number.dose and bill.cost.low > 0.1 * bill.delays
        for bill in out.bills
    )


def _unmeasured(
    record: Record, name: str, group: _Group | None, spent: float
) -> tuple[str, str, str]:
    """Reason, help and label of a function that has no number of its own."""
    if name in record.idle or name not in record.functions:
        return "it was never called", "a workload that calls it", INCONCLUSIVE
    calls = record.slots.calls[:, record.functions.index(name)]
    total = float(np.nansum(calls)) if len(calls) else 0.0
    if total == 0:
        return (
            "it was never called while the experiment ran",
            "a longer run",
            INCONCLUSIVE,
        )
    if group is not None:
        if group.total.high < THRESHOLD:
            return (
                f"all {group.members} functions of its group together cost "
                f"{group.total.value:.2f} ± {group.total.half:.2f} of their delay",
                "",
                HIDDEN,
            )
        if group.total.high < 0.3:
            return (
                f"under {group.total.high:.2f}, by a test of a group of {group.members}",
                f"name it as the target, or run for {lasting(2 * spent)} more",
                INCONCLUSIVE,
            )
        return (
            f"only measured in a group of {group.members}, which together costs "
            f"{group.total.value:.2f} ± {group.total.half:.2f} of a delay",
            f"name fewer functions, run for {lasting(2 * spent)} more, or allow a "
            "larger --max-slowdown",
            INCONCLUSIVE,
        )
    if len(record.slots) < MIN_ROWS:
        return (
            f"only {len(record.slots)} slots were seen",
            "a longer run, or a shorter unit of work",
            INCONCLUSIVE,
        )
    delayed = float(
        np.nansum(record.slots.delivered_ns[:, record.functions.index(name)] > 0)
    )
    if delayed < MIN_DELAYED:
        seldom = int((np.nan_to_num(calls) > 0).sum())
        return (
            f"it was called in {seldom} of {len(record.slots)} slots, and delayed in "
            f"{delayed:.0f}",
            f"run it for {lasting(max(2 * spent, 10))} more, with fewer functions, or "
            "with a larger --max-slowdown",
            INCONCLUSIVE,
        )
    return (
        "its delays can't be separated from those of others yet",
        f"run it for {lasting(max(spent, 10))} more",
        INCONCLUSIVE,
    )


def _flood_says(record: Record) -> str:
    """What is left out because a function was called so often there; "" for nothing."""
    slots = record.slots
    calls = np.nan_to_num(slots.calls)
    flooded = floods(calls) & slots.good[:, None]
    rows = flooded.any(1)
    if not rows.any():
        return ""
    parts = np.where(flooded, calls, 0).sum(0) / np.maximum(calls.sum(0), 1)
    most = int(np.argmax(parts))
    part = float(slots.time_ns[rows].sum() / slots.time_ns[slots.good].sum())
    return (
        f"{int(rows.sum())} slots with {part:.0%} of the time are left out: a function "
        f"was called over {FLOOD:.0f} times as often there as in nearly all others "
        f"({record.functions[most]}: {parts[most]:.0%} of its calls)"
    )


def _warnings(record: Record, out: Verdict, refusal: str, note: str) -> None:
    """Warnings about all functions together."""
    if refusal:
        out.warnings.append(f"no labels: {refusal}")
    if note:
        out.warnings.append(note)
    if record.header.get("jit"):
        out.warnings.append(record.header["jit"])
    for bill in out.bills:
        if bill.alarm and not refusal:
            out.warnings.append(
                f"delays of {bill.dose:.2g} of a unit move the bottleneck; numbers are "
                "of smaller ones"
            )
        if bill.doubt:
            out.warnings.append(
                f"one rest says that delays of {bill.dose:.2g} of a unit cost "
                f"{abs(bill.cost.value):.2g} of a unit "
                f"{'less' if bill.cost.value < 0 else 'more'} than their sum, the others "
                "do not: other programs came or went"
            )
        if bill.beyond:
            out.warnings.append(
                f"beside delays of {bill.dose:.2g} of a unit the program was "
                f"{-bill.cost.value:.2g} of a unit faster than without, which is more "
                "than they cost: other programs came or went"
            )
    slots = record.slots
    lost = int((~slots.good).sum())
    runs = len(np.unique(slots.run)) if len(slots) else 0
    if lost > runs + 0.02 * len(slots):
        out.warnings.append(f"{lost} of {len(slots)} slots are incomplete and left out")
    if text := _flood_says(record):
        out.warnings.append(text)
    steal = record.machine.steal
    if steal > TOLD_STEAL and not refusal:
        out.warnings.append(
            f"the hypervisor took {steal:.0%} of the CPU time: intervals are wider by it"
        )
    if _sham_costs(out) and not refusal:
        out.warnings.append(
            f"{_sham_says(out)}: intervals are wider by {SHAM_TIMES:.0f} times that"
        )
    if not math.isfinite(record.machine.share) and len(slots):
        out.warnings.append(
            "it is not known whether other programs took CPU time from the program"
        )
    quiet = undelayed(record) & slots.good & (block_index(record) >= -1)
    times = slots.time_ns[quiet]
    if len(times) >= 60:
        early, late = (
            np.median(times[: len(times) // 3]),
            np.median(times[-len(times) // 3 :]),
        )
        if early > 0 and not 2 / 3 < late / early < 1.5:
            out.warnings.append(
                f"the undelayed unit took {late / early:.2f} times as long at the end as "
                "at the beginning"
            )
    if out.diagnostics is not None and out.diagnostics.whiteness < 1e-4:
        out.warnings.append(
            "the noise has a pattern that the model doesn't have; intervals rest on the "
            "random order of delays alone"
        )
