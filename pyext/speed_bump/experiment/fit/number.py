# SPDX-License-Identifier: MIT
"""The number of each function: its doses together, and how far it can be relied on."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

# isort: off
import speed_bump.experiment.algebra  # noqa: F401
import numpy as np
# isort: on

from speed_bump.experiment.fit.bill import Bill
from speed_bump.experiment.fit.columns import Column, Table
from speed_bump.experiment.fit.contention import (
    DELIVERED,
    MIN_MEAN_SHARE,
    MIN_SHARE,
    QUIETER,
    SLEPT,
    TOLD_STEAL,
    Contention,
    had_only,
)
from speed_bump.experiment.fit.effects import Effect, Effects, effects, sham_bound
from speed_bump.experiment.fit.finding import Verdict
from speed_bump.experiment.fit.interval import (
    THRESHOLD,
    WHOLE,
    WIDEST,
    Interval,
    around,
    quantile,
)
from speed_bump.experiment.fit.ties import Joint
from speed_bump.experiment.record import Record

# Half an interval is never narrower: clocks, and the effect of a delay on caches.
FINEST = 0.01
# A share of a CPU has an error of about this part of the others' share.
SHARE_ERROR = 0.1
# Nothing, or all, of a delay arrives if it is certainly below the one, or above the
# other; slack that is used up gives something in between.
PLAIN = (0.3, 0.6)
# Delays that take more of a slot than this, by the wall, may use up slack.
LONG_DELAY = 0.6
# Small delays decide if half of their interval is not wider.
TOLD = 0.3
# Other numbers may be off by this many times the apparent cost of the sham.
SHAM_TIMES = 2.0
# A value that differs from another by this many standard errors does.
SURE = 2.0
# Two levels of dose differ if they do by this many standard errors, and by this amount.
BENDS = 3.3
BENDS_BY = 0.1
# A function delayed in fewer slots than these has no answer. Its error is that of the
# noise model, for which all slots count: in simulations of 60 s with 11 functions and 70
# slots, 2 instead of 4 gave half as many verdicts more, none of 660 wrong, and 95% of the
# intervals contained the truth.
MIN_DELAYED = 2
MIN_ROWS = 16
# A serial function has a number above this; one below may have slack.
SERIAL = 0.85
# Above this, more arrives than was delivered.
AMPLIFIED = 1.1
# Above this it may be a jump: what waits for a tick, or polls, is a whole period late for
# any delay that uses up its slack. Shorter delays then cost nothing.
JUMP = 1.5


@dataclass
class Number:
    """The parts of the headline of a function.

    With several ``threads`` that do units side by side, it is what a delay does to the
    unit of the thread that had it: with nothing in common all of it arrives there, and a
    part of 1 / threads in the program's throughput.
    """

    c: float
    se: float
    df: int
    dose: float
    column: int
    shape: str = ""
    notes: list[str] = field(default_factory=list)
    between: bool = False
    small: bool = False
    # Less arrives of these delays than of larger ones: perhaps nothing of smaller ones.
    may_be_less: bool = False
    # The number by another reading of the time for which the thread of the units was
    # blocked; and whether that is because delays may have displaced waits for a CPU.
    device: Interval | None = None
    displaces: bool = False
    # The additional error of the number, and that below it alone.
    off: float = 0.0
    below: float = 0.0
    # Why it may be hidden with more of a CPU; "" if the CPU was enough.
    starved: str = ""
    # Whether that is because a thread is late, so that it waits for nothing now.
    is_late: bool = False
    # Where more than the delay arrives; "" if it does not, or this is unknown.
    more: str = ""
    # Why this function has no label, and what would help; "" if it has one.
    refusal: str = ""
    help: str = ""
    threads: float = 1.0

    @property
    def interval(self) -> Interval:
        """The 95% interval; never narrower than delays are exact."""
        half = max(quantile(self.df) * self.se, FINEST) + self.off
        return Interval(self.c, self.c - half - self.below, self.c + half)

    @property
    def useful(self) -> bool:
        """Whether it is narrow enough to be printed."""
        half = self.interval.half
        if half > WIDEST and self.interval.low <= THRESHOLD:
            return False
        return half <= WIDEST * self.threads

    def arrives(self, interval: Interval) -> Interval:
        """In the program's throughput: the part that is printed."""
        some = (interval.value, interval.low, interval.high)
        return Interval(*(x / self.threads for x in some))


def sham(found: Effects) -> tuple[Interval | None, bool]:
    """The sham, all doses together, and whether it is not 0."""
    shams = found.of(())
    if not shams:
        return None, False
    weights = [1 / effect.se**2 for effect in shams]
    value = sum(w * e.c for w, e in zip(weights, shams, strict=True)) / sum(weights)
    error = 1 / math.sqrt(sum(weights))
    slots = sum(effect.delayed for effect in shams)
    interval = around(value, error, min(shams[0].df, slots - 1))
    return interval, abs(value) > sham_bound(slots) * error


def sham_costs(out: Verdict) -> float:
    """The apparent cost of the sham, of a delay; 0 if that can be chance."""
    return abs(out.sham.value) if out.sham and out.sham_alarms else 0.0


def sham_says(out: Verdict) -> str:
    value = out.sham.value if out.sham else 0.0
    return f"the sham, which delays nothing, seems to cost {value:.2f} of a delay"


def qualify(
    record: Record,
    numbers: dict[str, Number],
    out: Verdict,
    how: Contention,
    ratios: Mapping[str, float],
) -> None:
    """Apply what makes numbers less certain than the regression says, by function."""
    apparent = SHAM_TIMES * sham_costs(out) * record.side_by_side
    steal = record.machine.steal
    for name, number in numbers.items():
        low, high = SLEPT if name in record.sleeping else DELIVERED
        number.off += apparent
        if steal > TOLD_STEAL:
            number.off += steal * max(abs(number.c), THRESHOLD)
        ratio = ratios.get(name, 1.0)
        if math.isfinite(ratio) and not low <= ratio <= high:
            number.refusal = f"its delays took {ratio:.2f} times what was asked"
            number.help = (
                "use longer delays or fewer functions: the delay of a call may be too "
                "short for this machine"
            )
        elif number.arrives(number.interval).high < -1:
            number.refusal = (
                "with a delay of it the program seems to be faster by more than the "
                "delay: its calls come with other work"
            )
            number.help = "name another unit of work with --progress"
        share = record.shares.get(name)
        if how.given < 1:
            _given(number, how)
        elif how.scaled:
            _scale(number, how, share)
        elif how.y is not None:
            number.off += SHARE_ERROR * (1 - how.share) * max(abs(number.c), 0.3)
            # What amplifies delays also amplifies waiting for a CPU.
            more = max(number.c / number.threads - 1, 0.0)
            number.off += (1 - how.share) * number.c * more
            if share is not None and share < MIN_SHARE:
                number.refusal = (
                    f"its delays had only {share:.0%} of the CPU time that they wanted"
                )
                number.help = QUIETER


def _given(number: Number, how: Contention) -> None:
    """By the wall clock, as if other programs had left all of the CPU time."""
    taken = 1 - how.given
    # Where the program sleeps, too, they took from its sleep, or did not.
    part, error = (taken / 2, taken / 2) if how.sleeps else (taken, SHARE_ERROR * taken)
    number.off = (1 - part) * number.off + error * abs(number.c)
    number.c *= 1 - part
    number.se *= 1 - part


def _scale(number: Number, how: Contention, share: float | None) -> None:
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
    rivalry = min(how.rivalry(share) * number.threads, max(number.c, 0.0))
    _starved(number, part, number.c, how)
    apart = (1 - part) * abs(number.c) / 2
    number.c -= apart
    number.off += apart
    number.below = rivalry


def explain_more(data: Table, numbers: dict[str, Number]) -> None:
    """Where more than a delay arrives: the part of the time in which it does.

    A slower server has a shorter queue, and must wake the client for each answer: the
    server itself then computes for longer. With a lock, others wait.
    """
    some = [n for n in numbers.values() if n.arrives(n.interval).low > AMPLIFIED]
    usable = data.age >= 0
    if not some or np.isfinite(data.cpu[usable]).sum() < 0.9 * usable.sum():
        return
    found, blocked = effects(data, data.cpu), effects(data, data.blocked)
    for number in some:
        if found is None or not found.effects[number.column].known:
            continue
        computes = found.effects[number.column].interval
        c = number.c / number.threads
        if computes.low > 1.0 and computes.value > (1 + c) / 2:
            number.more = "the thread that reports units computes for longer after it"
            continue
        waits = blocked and blocked.effects[number.column]
        if waits and waits.known and waits.interval.low > (c - 1) / 2:
            number.more = "others wait for the same"


def both_matter(joint: Joint, numbers: dict[str, Number]) -> bool:
    """Drop ties of functions that are not known to matter alone."""
    some = [numbers.get(name) for name in joint.functions]
    return all(
        n is not None and not n.refusal and n.useful and n.interval.low > THRESHOLD
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


def bill_refuses(
    found: Effects, out: Verdict, longer: Collection[float]
) -> tuple[str, str]:
    """After an alarm, labels need a smaller dose without any fault.

    Args:
        longer: doses of those delays only that seem hidden
    """
    alarms = [bill for bill in out.bills if bill.alarm]
    if not alarms:
        return _vague_refuses([b for b in out.bills if b.dose not in longer])
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
    for name in sorted({column.functions for column in columns if column.functions}):
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


def _vague_refuses(bills: Sequence[Bill]) -> tuple[str, str]:
    """Labels need a bill that excludes that much slack was used up."""
    if not bills or not all(bill.vague for bill in bills):
        return "", ""
    least = min(bills, key=lambda bill: bill.hides / bill.delays)
    return (
        f"it may be nearly balanced: of delays of {least.delays:.2g} of a unit together, "
        f"up to {least.hides:.2g} may be hidden, while the thread that reports units "
        "waits",
        "run it for longer: what delays cost together is not known well enough",
    )


def _is_plain(effect: Effect) -> bool:
    """Whether nothing, or all, of a delay arrives.

    A different number for longer delays is then the effect of slack; something in between
    is slack that the short ones use up, too.
    """
    far = 2.58 * effect.se
    none, whole = PLAIN
    return effect.c + far < none or (effect.c > SERIAL and effect.c - far > whole)


def numbers(
    record: Record,
    found: Effects,
    device: Effects | None,
    out: Verdict,
    how: Contention,
    own: set[str],
) -> dict[str, Number]:
    """The headline number of each function that has one.

    Args:
        own: functions that are corrected by the share of a CPU of their own delays
    """
    sound = _sound(found, out)
    place = {column: k for k, column in enumerate(found.table.columns)}
    known: dict[str, Number] = {}
    for column in found.table.columns:
        name = column.functions[0] if len(column.functions) == 1 else None
        if name is None or name in known:
            continue
        every = [e for e in found.of((name,)) if e.delayed >= MIN_DELAYED]
        some = [e for e in every if (e.column.dose, e.column.apart) in sound]
        if len(found.fit.rows) < MIN_ROWS or not every:
            continue
        number = _pooled(some or every, found, place, record.side_by_side)
        late = out.diagnostics.late.get(number.column) if out.diagnostics else None
        if late:
            c, se = (record.side_by_side * value for value in late[:2])
            number = replace(number, c=c, se=se, df=late[2])
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
            number.se = math.hypot(number.se, spread * record.side_by_side)
        if device is not None:
            other = device.effects[number.column]
            share = record.shares[name] if name in own else None
            part = how.share if share is None else share
            if other.known:
                # A part of the blocked time of a function's delays may be their rivalry.
                blocked = (other.c - number.c) / max(1 - part, 0.05)
                costs = max(part * blocked, 0.0)
                number.below = min(how.rivalry(share) * record.side_by_side, costs)
                _starved(number, part, costs, how)
                if name not in own:
                    number.device = other.interval
                else:
                    same = found.effects[number.column]
                    _displace(number, other.c - same.c, (1 - part) * other.se)
        known[name] = number
    return known


def _displace(number: Number, apart: float, error: float) -> None:
    """What the number would be if delays displaced waits for a CPU.

    By the share of a CPU that its delays had, each takes 1 / share of its CPU time by the
    wall. But where threads of the program wait for the CPU of each other, what one waits
    in a delay it or another may wait less elsewhere. Then the time for which others are
    blocked changes by less than that factor, and at least by the delay itself. More than
    all of a delay, or less than nothing, is not concluded from that.

    Args:
        apart: how much larger the number is if it changes by the delay itself
        error: of that
    """
    if abs(apart) <= SURE * error:
        return
    least, most = min(number.c, 0.0), max(number.c, 1.0)
    value = min(max(number.c + apart, least), most)
    half = number.interval.high - number.c
    number.device = Interval(value, value - half, value + half)
    number.displaces = True


def _starved(number: Number, part: float, costs: float, how: Contention) -> None:
    """Whether an effect measured here may be hidden on an idle machine.

    With a small share of a CPU, a delay takes long by the wall and uses up slack. And a
    thread that has waited for its CPU waits for nothing else.

    Args:
        costs: the part of the number that is in blocked time
    """
    blocked = costs > 0.5 * max(number.c, THRESHOLD)
    long = number.dose / number.threads / part
    if blocked and long > LONG_DELAY:
        number.starved = f"it took {long:.2g} of a unit with the CPU that it had"
    elif not blocked and how.is_late:
        number.is_late = True
        number.starved = (
            f"with {how.reporter:.0%} of a CPU the thread that reports units is late for "
            "all that it may wait for"
        )
    number.between |= bool(number.starved) and number.interval.low > THRESHOLD


def _pooled(
    some: list[Effect], found: Effects, place: dict[Column, int], threads: float
) -> Number:
    """Doses together if they agree, the smallest if they don't."""

    def of(effect: Effect, shape: str = "") -> Number:
        k, dose = place[effect.column], effect.column.dose
        return Number(effect.c, effect.se, effect.df, dose, k, shape, threads=threads)

    # Delays so small that little is known of them say nothing about larger ones.
    some = [e for e in some if tells(e, TOLD)] or some
    number = _together(some, found, place, threads, of)
    least = min(some, key=lambda e: e.interval.high)
    if least.interval.high < THRESHOLD <= number.interval.high:
        # The bounds above of all doses hold for small ones, of which no more arrives.
        return replace(of(least, number.shape), small=True, notes=number.notes)
    return number


def _together(
    some: list[Effect],
    found: Effects,
    place: dict[Column, int],
    threads: float,
    of: Callable[..., Number],
) -> Number:
    best = min(some, key=lambda e: e.se)
    if len(some) == 1:
        number = of(best)
        number.between = not is_certain(some, threads)
        return number
    at = [place[e.column] for e in some]
    cov = found.cov[np.ix_(at, at)]
    low, high = some[0], some[-1]
    apart = high.c - low.c
    error = math.sqrt(max(cov[0, 0] + cov[-1, -1] - 2 * cov[0, -1], 1e-18))
    if abs(apart) > BENDS * error and abs(apart) > BENDS_BY:
        # Longer delays are over more of the steps in which more than a delay arrives.
        small = _small(some) if apart > 0 or _jumps(some, threads) else low
        number = of(small, "hinge" if apart > 0 else "")
        number.small = True
        number.may_be_less = apart > 0 and not _is_confirmed(some)
        arrives = small.interval.low > THRESHOLD and small.c < SERIAL
        jumps = _jumps(some, threads) and not _is_no_jump(some)
        number.between = (number.may_be_less and arrives) or jumps
        number.notes.append(
            f"{high.c / threads:.2f} of a delay of {high.column.dose:.2g} of a unit "
            f"arrives, {small.c / threads:.2f} of one of {small.column.dose:.2g}"
        )
        return number
    if _between(high) and high.column.dose > 1.5 * low.column.dose:
        # The number of small delays decides, however small it is.
        number = of(low)
        number.small = True
        if low.interval.half > TOLD:  # so do all others
            number = of(high)
            number.between = True
        return number
    jumps = _jumps(some, threads) and not _is_no_jump(some)
    if jumps or np.linalg.matrix_rank(cov, hermitian=True) < len(at):
        number = of(best)
        number.between = jumps
        return number
    weights = np.linalg.solve(cov, np.ones(len(at)))
    if weights.sum() <= 0:
        return of(best)
    weights /= weights.sum()
    value = float(weights @ np.array([e.c for e in some]))
    variance = float(weights @ cov @ weights)
    number = of(best)
    if 0 < variance <= best.se**2:
        number.c, number.se = value, math.sqrt(variance)
    return number


def _small(some: list[Effect]) -> Effect:
    """The dose that tells most of small delays, where less of them arrives.

    The response bends upwards only: the bounds above of all doses hold for small ones.
    """
    low = some[0]
    if low.interval.high < THRESHOLD:
        return low
    return min(some, key=lambda e: e.interval.high)


def is_certain(some: list[Effect], threads: float) -> bool:
    """Whether it is known what arrives of small delays, if it is a part, or a jump."""
    if _jumps(some, threads):
        return _is_no_jump(some)
    return not _between(_small(some)) or _is_confirmed(some)


def _jumps(some: list[Effect], threads: float) -> bool:
    return is_jump(_small(some), threads)


def _is_no_jump(some: list[Effect]) -> bool:
    """Whether about as much arrives of a delay as of one that is over twice as long.

    Where a whole period is lost, three times as much of a third of the delay arrives if
    that uses up the slack too, and nothing if it does not. What comes in smaller steps is
    no such jump: of the known answer *amplified*, which has one more event of 0.25 ms for
    each 0.25 ms of delay, 2.7 of a delay of 0.13 ms arrived, and 2.0 of longer ones.
    """
    return any(
        2 * e.column.dose < longer.column.dose
        and e.interval.low > THRESHOLD
        and tells(e, TOLD)
        and longer.c / 2 <= e.c <= 2 * longer.c
        for e in some
        for longer in some
    )


def _is_confirmed(some: list[Effect]) -> bool:
    """Whether as much arrives of shorter delays as of those that tell most of small ones.

    Less arrives of delays that use up slack, the shorter they are.
    """
    small = _small(some)
    return any(
        2 * e.column.dose < small.column.dose
        and e.interval.low > THRESHOLD
        and tells(e, TOLD)
        and abs(e.c - small.c) <= BENDS * math.hypot(e.se, small.se)
        for e in some
    )


def tells(effect: Effect, half: float) -> bool:
    """Whether it is known well enough: as narrow as this, or certainly above 1."""
    return effect.interval.half <= half or effect.interval.low > 1.0


def is_jump(effect: Effect, threads: float) -> bool:
    """Whether more arrives than was delivered, perhaps because a tick was missed."""
    return effect.interval.low > JUMP * threads


def _between(effect: Effect) -> bool:
    """Whether a part arrives, which may be the effect of slack."""
    interval = effect.interval
    return interval.low > THRESHOLD and effect.c < SERIAL and interval.high < 1.0
