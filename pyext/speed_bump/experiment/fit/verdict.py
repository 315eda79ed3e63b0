# SPDX-License-Identifier: MIT
"""From a record to verdicts, and to warnings about all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping

# isort: off
import speed_bump.experiment.algebra  # noqa: F401
import numpy as np
# isort: on

from speed_bump.experiment.fit.bill import bills
from speed_bump.experiment.fit.columns import (
    FLOOD,
    SINGLE,
    Table,
    base_time,
    block_index,
    floods,
    table,
    undelayed,
)
from speed_bump.experiment.fit.contention import (
    TOLD_STEAL,
    Contention,
    by_own_shares,
    contention,
    delivered,
)
from speed_bump.experiment.fit.diagnostics import diagnose
from speed_bump.experiment.fit.effects import Effects, effects
from speed_bump.experiment.fit.finding import Finding, Verdict
from speed_bump.experiment.fit.interval import (
    HIDDEN,
    INCONCLUSIVE,
    MATTERS,
    PARTLY,
    discoveries,
    label_of,
    upper_tail,
)
from speed_bump.experiment.fit.judge import Chance, Common, finding
from speed_bump.experiment.fit.limits import limited
from speed_bump.experiment.fit.longer import doses_of, sort
from speed_bump.experiment.fit.number import (
    SHAM_TIMES,
    Number,
    bill_refuses,
    both_matter,
    explain_more,
    numbers,
    qualify,
    sham,
    sham_costs,
    sham_says,
)
from speed_bump.experiment.fit.randomisation import FLOOR, p_values
from speed_bump.experiment.fit.slack import slacks
from speed_bump.experiment.fit.ties import joints
from speed_bump.experiment.fit.unmeasured import grouped
from speed_bump.experiment.record import Record

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

# Above this apparent cost of the sham, times ``SHAM_TIMES``, no label stands.
MAX_SHAM = 0.5
# A larger part of slots without any delay in force is reported.
MAX_LAPSED = 0.02
# A larger part of the time in floods, which are left out, has advice.
MUCH_FLOODED = 0.1


def verdict(record: Record, final: bool = True) -> Verdict:
    """Judge the record.

    Args:
        final: the experiment is over: also look for late effects, phases and ties
    """
    out = Verdict(
        [],
        cpu_share=record.machine.share,
        slot_ns=base_time(record),
        slots=len(record.slots),
    )
    out.slowdown = slowdown(record)
    took = delivered(record)
    out.delivered_share = took.ratios.get("", math.nan)
    record = sort(record).record
    data = table(record, SINGLE)
    found = effects(data)
    known: dict[str, Number] = {}
    ranks: dict[int, float] = {}
    refusal, helps, note = "", "", ""
    if data is not None and found is not None:
        how = contention(record, data)
        note = how.note
        out.shared = how.y is not None or how.scaled
        found, known = _numbers(record, data, found, how, took.ratios, out, final)
        refusal, helps = _refused(out, how.refusal, how.help)
        if not refusal:
            refusal, helps = bill_refuses(found, out, doses_of(record))
            out.vague = bool(refusal) and not any(bill.alarm for bill in out.bills)
        if final:
            ranks = _ranks(record, data, found, how)
    pedestal = any(block.stage == "pedestal" for block in record.blocks)
    hinges = slacks(record) if final or pedestal else {}
    groups = grouped(record)
    common = Common(record, out, found, refusal, helps, note, _elapsed(record))
    names = [*record.functions, *(n for n in record.idle if n not in record.functions)]
    tails = [_tail(known.get(name), ranks) for name in names]
    for name, p, rate in zip(names, tails, discoveries(tails), strict=True):
        out.findings.append(
            finding(
                common,
                name,
                known.get(name),
                hinges.get(name),
                groups.get(name),
                Chance(p, rate),
            )
        )
    out.findings = limited(record, out.findings)
    _warnings(record, out, refusal, note)
    if took.lapsed > MAX_LAPSED * took.planned:
        out.warnings.append(
            f"in {took.lapsed} of {took.planned} slots no delay was in force: this tool "
            "had no CPU for half a second, or the program was stopped; they count as "
            "undelayed"
        )
    return out


def _numbers(
    record: Record,
    data: Table,
    found: Effects,
    how: Contention,
    ratios: Mapping[str, float],
    out: Verdict,
    final: bool,
) -> tuple[Effects, dict[str, Number]]:
    """The effects of delays on the unit of the thread that had them, and the numbers."""
    device, own = None, set[str]()
    if how.y is not None and not how.refusal:
        found = effects(data, how.y) or found
        device = effects(data, how.device)
        found, own = by_own_shares(record, data, found)
    out.bills = bills(found, slack=True)
    out.sham, out.sham_alarms = sham(found)
    if final:
        out.diagnostics = diagnose(found, how.y)
        out.joints = joints(record)
    found = found.of_thread(record.side_by_side)
    device = device and device.of_thread(record.side_by_side)
    known = numbers(record, found, device, out, how, own)
    qualify(record, known, out, how, ratios)
    out.joints = [joint for joint in out.joints if both_matter(joint, known)]
    if final:
        explain_more(data, known)
    return found, known


def _ranks(
    record: Record, data: Table, found: Effects, how: Contention
) -> dict[int, float]:
    """The p values of columns by the order of the delays alone."""
    block = block_index(record)[len(record.slots) - len(data.y) :]
    return p_values(data.y if how.y is None else how.y, data, found.fit, block)


def _tail(number: Number | None, ranks: Mapping[int, float]) -> float:
    """The probability of such a number if the function did not matter."""
    if number is None:
        return 1.0
    tail = upper_tail(number.c / number.se, number.df)
    rank = ranks.get(number.column, tail)
    return rank if rank > FLOOR else min(rank, tail)


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


def _elapsed(record: Record) -> float:
    """Seconds in all slots."""
    return float(np.nansum(record.slots.time_ns)) / 1e9


def _refused(out: Verdict, refusal: str, helps: str) -> tuple[str, str]:
    """A reason for no label at all, and what would help."""
    if refusal:
        return refusal, helps
    if SHAM_TIMES * sham_costs(out) > MAX_SHAM:
        return (
            f"{sham_says(out)}: something other than the delays is at work",
            "run it again, and longer; use a quieter machine if it persists",
        )
    return "", ""


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
    which = "1 slot is" if (n := int(rows.sum())) == 1 else f"{n} slots are"
    return (
        f"{which} left out, {part:.1%} of the time: a function was called over "
        f"{FLOOD:.0f} times as often there as in nearly all others "
        f"({record.functions[most]}: {parts[most]:.0%} of its calls)"
        + (
            "; a longer unit of work would have them, --progress, in a longer run"
            * (part > MUCH_FLOODED)
        )
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
    if sham_costs(out) and not refusal:
        out.warnings.append(
            f"{sham_says(out)}: intervals are wider by {SHAM_TIMES:.0f} times that"
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
