# SPDX-License-Identifier: MIT
"""The finding of one function: its label, or why it has none, and what would help."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

# isort: off
import speed_bump.experiment.algebra  # noqa: F401
import numpy as np
# isort: on

from speed_bump.experiment.fit.columns import floods
from speed_bump.experiment.fit.contention import QUIETER
from speed_bump.experiment.fit.effects import Effects
from speed_bump.experiment.fit.finding import (
    Finding,
    Verdict,
    headroom_of,
    lasting,
    own_share,
)
from speed_bump.experiment.fit.interval import (
    HIDDEN,
    INCONCLUSIVE,
    MATTERS,
    PARTLY,
    THRESHOLD,
    TOO_NOISY,
    WIDEST,
    Interval,
    label_of,
)
from speed_bump.experiment.fit.number import AMPLIFIED, SERIAL, TOLD, Number
from speed_bump.experiment.fit.slack import Slack
from speed_bump.experiment.fit.unmeasured import Group, unmeasured
from speed_bump.experiment.record import Floats, Record

FALSE_DISCOVERIES = 0.05
# With fewer threads that do units side by side, all of a delay is about 1.
TOLD_THREADS = 1.5
# A larger part of a function's own time beside the thread of the units is told.
MOSTLY = 0.5
HELD_THE_GIL = (
    "it computes beside the thread that reports units, and its delays hold the GIL: what "
    "it computes in C without the GIL, as compression and numpy do, may gain nothing if "
    "it is faster; mode=wait delays it without the GIL"
)
# Delays that decide on slack are shorter by this factor.
SHORTER = 3.0
WORDS = {
    MATTERS: "delaying it costs throughput",
    PARTLY: "part of a delay is hidden behind something else",
    HIDDEN: "something else is always later",
}


@dataclass(frozen=True)
class Common:
    """What is the same for all functions.

    ``refusal`` is why none has a label, "" if they may have one, and ``help`` what would
    help; ``note`` qualifies every number; ``spent`` are the seconds so far.
    """

    record: Record
    out: Verdict
    found: Effects | None
    refusal: str
    help: str
    note: str
    spent: float

    @cached_property
    def in_floods(self) -> Floats:
        """The part of each function's calls that is in slots left out for floods."""
        calls = np.nan_to_num(self.record.slots.calls)
        rows = floods(calls).any(1) & self.record.slots.good
        return np.asarray(calls[rows].sum(0) / np.maximum(calls.sum(0), 1))


@dataclass(frozen=True)
class Chance:
    """The probability of a number if its function does not matter, and the false
    discovery rate at which it would be called.
    """

    p: float
    rate: float


@dataclass
class _Case:
    """One function with a number. ``interval`` is what is known of it, of its thread."""

    common: Common
    number: Number
    slack: Slack | None
    chance: Chance
    share: Interval | None
    finding: Finding
    interval: Interval
    label: str
    advice: str

    @property
    def said(self) -> str:
        """Such as "0.12 ± 0.01 of its delay arrives"."""
        c = self.number.arrives(self.number.interval)
        text = f"{c.value:.2f} ± {c.half:.2f} of its delay arrives"
        if self.number.threads >= TOLD_THREADS:
            text += f" ({1 / self.number.threads:.2f} is all of it in one thread)"
        return text

    def show(self, interval: Interval) -> None:
        """Print this, and the headroom that follows."""
        c = self.number.arrives(interval)
        self.finding = replace(
            self.finding, criticality=c, headroom=headroom_of(c, self.share)
        )

    def open(self, reason: str, help_: str) -> Finding:
        """The finding without a label."""
        return replace(self.finding, reason=reason, help=help_)


def finding(
    common: Common,
    name: str,
    number: Number | None,
    slack: Slack | None,
    group: Group | None,
    chance: Chance,
) -> Finding:
    """The finding of one function.

    Args:
        number: None: it has none of its own
        slack: None: it was not on pedestals
        group: that it was screened in, if it was
    """
    record = common.record
    share = own_share(record.self_times, name, record.machine)
    empty = Finding(
        name=name,
        verdict=INCONCLUSIVE,
        criticality=None,
        headroom=None,
        shape="",
        slack_ns=None,
        dose=0.0,
        delayed=0,
        p=chance.p,
        false_discovery=chance.rate,
        reason="",
        help="",
        share=share,
    )
    if number is None:
        return _without_number(common, empty, group)
    case = _case(common, empty, number, slack, chance)
    return (
        _refused(case)
        or _noisy(case)
        or _of_device(case)
        or _of_slack(case)
        or _of_chance(case)
        or _late(case)
        or _labelled(case)
    )


def _without_number(common: Common, empty: Finding, group: Group | None) -> Finding:
    record = common.record
    flooded = 0.0
    if empty.name in record.functions:
        flooded = float(common.in_floods[record.functions.index(empty.name)])
    reason, advice, label = unmeasured(record, empty.name, group, common.spent, flooded)
    total = None
    if group is not None and label == HIDDEN:
        threads = record.side_by_side
        value = max(group.total.value, 0.0) / threads
        total = Interval(value, 0.0, max(group.total.high / threads, value))
    return replace(
        empty,
        verdict=INCONCLUSIVE if common.refusal else label,
        criticality=total,
        headroom=headroom_of(total, empty.share),
        reason=common.refusal or reason,
        help=common.help or advice if common.refusal else advice,
    )


def _case(
    common: Common,
    empty: Finding,
    number: Number,
    slack: Slack | None,
    chance: Chance,
) -> _Case:
    """All that is known, without a label."""
    name, found = empty.name, common.found
    assert found is not None
    delayed = sum(e.delayed for e in found.effects if e.column.functions == (name,))
    on = found.table.x[:, number.column]
    dose = found.table.columns[number.column].dose
    notes = [*number.notes, *([common.note] if common.note else [])]
    notes += _ties(common.out, name)
    shape, slack_ns = number.shape, None
    if slack is not None and (slack.ns.low > 0 or slack.over):
        slack_ns, shape = slack.ns, shape or "hinge"
        if slack.over:
            notes.append(
                f"slack over {slack.step * len(slack.slopes):.2g} of a unit: even there "
                "no larger part of a delay arrives"
            )
    interval = number.interval
    told = number.small or label_of(interval) in (MATTERS, PARTLY)
    less = number.may_be_less or not told
    if 0 < interval.low <= interval.value < SERIAL and less:
        # Of shorter delays less may arrive: the response bends upwards only.
        interval = Interval(interval.value, 0.0, interval.high)
    filled = replace(
        empty,
        dose=float(np.mean(on[on > 0])) if (on > 0).any() else dose,
        delayed=delayed,
        slack_ns=slack_ns,
        shape=shape,
        notes=tuple(notes),
    )
    return _Case(
        common,
        number,
        slack,
        chance,
        empty.share,
        filled,
        interval,
        label_of(number.interval),
        _more_time(interval, common.spent),
    )


def _ties(out: Verdict, name: str) -> list[str]:
    """Notes on functions that have a joint effect with this one."""
    notes = []
    for joint in out.joints:
        if name not in joint.functions or joint.kind == "serial":
            continue
        other = joint.functions[joint.functions[0] == name]
        if joint.kind == "parallel":
            notes.append(
                f"in parallel with {other}: make both faster, or nothing is gained"
            )
        else:
            notes.append(f"amplifies, and is amplified by, {other}")
    return notes


def _refused(case: _Case) -> Finding | None:
    """A number that is known to be wrong is not shown."""
    if case.common.refusal:
        return case.open(case.common.refusal, case.common.help)
    if case.number.refusal:
        return case.open(case.number.refusal, case.number.help)
    return None


def _noisy(case: _Case) -> Finding | None:
    if case.number.useful:
        case.show(case.interval)
        return None
    half = case.number.arrives(case.interval).half
    return case.open(
        f"{TOO_NOISY}: ± {half:.1f} after {case.finding.delayed} delayed slots",
        case.advice,
    )


def _of_device(case: _Case) -> Finding | None:
    """If the right share of a CPU is unknown, the truth is between the two."""
    number = case.number
    if number.device is None:
        return None
    case.label = label_of(number.interval.hull(number.device))
    case.interval = case.interval.hull(number.device)
    case.show(case.interval)
    apart = abs(number.interval.value - number.device.value)
    if case.label != INCONCLUSIVE or apart <= THRESHOLD:
        return None
    device = number.arrives(number.device)
    either, or_else = (
        ("it waited for a CPU in its delays only", "less elsewhere")
        if number.displaces
        else ("the program was blocked for its own threads", "it was for devices")
    )
    other = f"{device.value:.2f} ± {device.half:.2f}"
    return case.open(
        f"{case.said} if {either}, {other} if {or_else}; it is not known which",
        "a quieter machine, where both are the same",
    )


def _of_slack(case: _Case) -> Finding | None:
    """A part of a delay arrives: all of a part, or what is left by slack?"""
    number, slack = case.number, case.slack
    if not number.between or case.label not in (MATTERS, PARTLY):
        return None
    # The effect of a rival looks like slack used up.
    known = not case.common.out.shared
    on_pedestals = known and slack is not None and slack.ns.low <= 0
    if on_pedestals and slack and slack.slopes[0] * number.threads > THRESHOLD:
        # There is no slack.
        return None
    high = case.interval.high
    case.show(Interval(case.interval.value, 0.0, high if known else max(high, 1.0)))
    because = "whether shorter ones arrive or slack hides them is not known"
    if number.starved:
        because = f"{number.starved}: what a CPU of its own would change is not known"
    if number.is_late:
        case.finding = replace(case.finding, while_busy=case.label)
    return case.open(
        f"{case.said} of one of {number.dose:.2g} of a unit; {because}",
        QUIETER if number.starved else _shorter(number, case.common.spent),
    )


def _of_chance(case: _Case) -> Finding | None:
    if case.label == INCONCLUSIVE:
        little = THRESHOLD / case.number.threads
        return case.open(
            f"{case.said}: above or below {little:.2g} is not certain", case.advice
        )
    if case.label != HIDDEN and case.chance.rate > FALSE_DISCOVERIES:
        count = len(case.common.record.functions)
        return case.open(
            f"{case.said}; among {count} functions that can be chance", case.advice
        )
    return None


def _late(case: _Case) -> Finding | None:
    """If the bill shows that something arrives that no effect accounts for."""
    dose = case.number.dose
    if case.label != HIDDEN or not any(
        bill.late and bill.dose == dose and bill.cost.low > 0.1 * bill.delays
        for bill in case.common.out.bills
    ):
        return None
    return case.open(
        f"{case.said} at once, but delays together cost more than their effects add up "
        "to: its effect may come after the slots that are examined",
        "a longer unit of work, so that late effects fall into it",
    )


def _labelled(case: _Case) -> Finding:
    number, shape = case.number, case.finding.shape
    if case.interval.high < 0:
        shape = "negative"
    elif number.arrives(case.interval).low > AMPLIFIED:
        shape = shape or "amplified"
    elif not shape and not number.between:
        shape = "linear"
    because = WORDS[case.label]
    if shape == "negative":
        because = (
            "with a delay in it the program is faster, so a faster one gains nothing"
        )
    if shape == "amplified" and number.more:
        because += f", by more than the delay: {number.more}"
    own = case.common.record.self_times.get(case.finding.name)
    if case.label != HIDDEN and own and own.beside > MOSTLY * own.share:
        case.finding = replace(case.finding, notes=(*case.finding.notes, HELD_THE_GIL))
    return replace(
        case.finding,
        verdict=case.label,
        shape=shape,
        reason=f"{case.said}: {because}",
    )


def _shorter(number: Number, spent: float) -> str:
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
