# SPDX-License-Identifier: MIT
"""Comparing two experiments: what changed from the first to the second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from speed_bump.duration import human
from speed_bump.experiment.fit.columns import undelayed
from speed_bump.experiment.fit.interval import (
    NORMAL,
    THRESHOLD,
    Interval,
    discoveries,
)
from speed_bump.experiment.fit.judge import FALSE_DISCOVERIES
from speed_bump.experiment.fit.verdict import (
    HIDDEN,
    INCONCLUSIVE,
    Finding,
    Verdict,
    verdict,
)
from speed_bump.experiment.record import Floats, Record
from speed_bump.experiment.show.encode import finite, interval_json
from speed_bump.experiment.show.table import LEFT, RIGHT, table
from speed_bump.experiment.show.text import PROSE, columns, unit_ns, wrapped
from speed_bump.experiment.show.wording import number, percent, ranked, squeezed
from speed_bump.experiment.symbols import short

FORMAT = 3
MORE, LESS, ALIKE = "more critical", "less critical", "alike"
# A smaller difference of two criticalities is of no consequence.
NO_MATTER = THRESHOLD
# Differences of machines or programs that would change the numbers by themselves.
ENVIRONMENT = ("host", "machine", "cpu", "cpus", "kernel", "python", "hook")
HEADS = ("function", "criticality A", "B", "B - A", "headroom A", "B", "verdict")
# Neighbouring undelayed slots are correlated, and are averaged in groups.
BATCHES = 20
MIN_NAME = 16


@dataclass(frozen=True)
class Change:
    """The change of one function. ``by`` is the criticality of B less that of A.

    ``rate`` is the rate of false discoveries at which it differs. ``verdict`` is "more
    critical", "less critical", "alike", "only in A", "only in B" or "inconclusive", and
    ``reason`` says why.
    """

    name: str
    a: Finding | None
    b: Finding | None
    by: Interval | None
    rate: float
    verdict: str
    reason: str

    @property
    def is_certain(self) -> bool:
        """Whether it differs for certain."""
        return self.verdict in (MORE, LESS)


@dataclass(frozen=True)
class Changes:
    """All changes. ``unit`` is the undelayed time of a unit in B over that in A."""

    a: Verdict
    b: Verdict
    unit_ns: tuple[float, float]
    unit: Interval | None
    changes: list[Change]
    notes: list[str]


def difference(a: Interval, b: Interval) -> Interval:
    """``b - a`` of two separate measurements: the errors add as squares."""
    error = math.hypot(a.half, b.half)
    value = b.value - a.value
    return Interval(value, value - error, value + error)


def compare(a: Record, b: Record) -> Changes:
    """Judge and compare both; the functions that differ most come first."""
    verdict_a, verdict_b = verdict(a), verdict(b)
    of_a = {f.name: f for f in verdict_a.findings}
    of_b = {f.name: f for f in ranked(verdict_b.findings)}
    names = [*of_b, *(name for name in of_a if name not in of_b)]
    pairs = [(name, of_a.get(name), of_b.get(name)) for name in names]
    bys = [_by(one, other) for _, one, other in pairs]
    rates = iter(discoveries([_p_value(by) for by in bys if by]))
    changes = []
    for (name, one, other), by in zip(pairs, bys, strict=True):
        rate = next(rates) if by else 1.0
        word, reason = _verdict(one, other, by, rate)
        changes.append(Change(name, one, other, by, rate, word, reason))
    changes.sort(key=_order)
    return Changes(
        verdict_a,
        verdict_b,
        (unit_ns(a, verdict_a), unit_ns(b, verdict_b)),
        _unit_ratio(a, b),
        changes,
        _notes(a, b),
    )


def _by(a: Finding | None, b: Finding | None) -> Interval | None:
    if a is None or b is None or a.criticality is None or b.criticality is None:
        return None
    if not (math.isfinite(a.criticality.half) and math.isfinite(b.criticality.half)):
        return None
    return difference(a.criticality, b.criticality)


def _p_value(by: Interval) -> float:
    """The two-sided p value that there is no difference."""
    error = max(by.half / NORMAL.inv_cdf(0.975), 1e-9)
    return 2 * (1 - NORMAL.cdf(abs(by.value) / error))


def _verdict(
    a: Finding | None, b: Finding | None, by: Interval | None, rate: float
) -> tuple[str, str]:
    if a is None or b is None:
        return ("only in A", "") if b is None else ("only in B", "")
    refused = [
        f"{side}: {f.reason}"
        for side, f in (("A", a), ("B", b))
        if f.criticality is None or (f.verdict == INCONCLUSIVE and f.reason)
    ]
    if by is None:
        if a.verdict == b.verdict == HIDDEN:
            return ALIKE, "hidden in both"
        return INCONCLUSIVE, "; ".join(refused) or "a number is missing"
    farthest = max(abs(by.low), abs(by.high))
    if rate <= FALSE_DISCOVERIES:
        return (MORE if by.value > 0 else LESS), "; ".join(refused)
    if farthest <= NO_MATTER:
        return ALIKE, f"differs by {farthest:.2f} at most"
    if a.verdict == b.verdict != INCONCLUSIVE:
        return ALIKE, f"{a.verdict} in both; differs by {farthest:.2f} at most"
    return INCONCLUSIVE, f"may differ by up to {farthest:.2f}; longer runs would tell"


def _order(change: Change) -> tuple[int, float, str]:
    known = 0 if change.is_certain else 1 if change.by else 2
    return (known, -abs(change.by.value) if change.by else 0.0, change.name)


def _undelayed(record: Record) -> Floats:
    """The times of undelayed units, averaged over stretches of the run, ns."""
    slots = record.slots
    if not len(slots):
        return np.zeros(0)
    quiet = (
        undelayed(record) & slots.good & (slots.units > 0) & np.isfinite(slots.time_ns)
    )
    times, units = slots.time_ns[quiet], slots.units[quiet]
    parts = np.array_split(np.arange(len(times)), min(BATCHES, len(times)) or 1)
    return np.array([times[p].sum() / units[p].sum() for p in parts if len(p)])


def _unit_ratio(a: Record, b: Record) -> Interval | None:
    """By the delta method; differences between whole runs are not in the interval."""
    found = []
    for record in (a, b):
        times = _undelayed(record)
        if len(times) < 4:
            return None
        mean = float(times.mean())
        found.append((mean, float(times.std(ddof=1)) / math.sqrt(len(times)) / mean))
    ratio = found[1][0] / found[0][0]
    # Student's t of about 20 stretches.
    error = 2.1 * ratio * math.hypot(found[0][1], found[1][1])
    return Interval(ratio, ratio - error, ratio + error)


def _notes(a: Record, b: Record) -> list[str]:
    """Other differences, so that the change need not be the program's alone."""
    notes = []
    if (a.header.get("unit") or "") != (b.header.get("unit") or ""):
        notes.append(
            f"A counts {a.header.get('unit') or 'units'}, "
            f"B {b.header.get('unit') or 'units'} as units of work"
        )
    if a.header.get("command") != b.header.get("command"):
        notes.append("the commands differ")
    if a.requests is not None and b.requests is not None:
        notes.append("latency is not compared; report shows that of each record")
    ours, theirs = (r.header.get("environment") or {} for r in (a, b))
    for key in ENVIRONMENT:
        if ours.get(key) != theirs.get(key):
            notes.append(f"{key}: {ours.get(key)} in A, {theirs.get(key)} in B")
    return notes


# ------------------------------------------------------------------------ shown


def _row(change: Change) -> list[str]:
    a, b, by = change.a, change.b, change.by
    return [
        short(change.name),
        f"{a.criticality.value:.2f}" if a and a.criticality else "-",
        f"{b.criticality.value:.2f}" if b and b.criticality else "-",
        f"{by.value:+.2f} ± {by.half:.2f}" if by else "-",
        percent(a.headroom) if a else "-",
        percent(b.headroom) if b else "-",
        change.verdict,
    ]


def text(changes: Changes, width: int | None = None) -> str:
    """The comparison as text; ``width`` as for the table of one experiment."""
    width = width or columns()
    prose = width or PROSE
    rows = [_row(change) for change in changes.changes]
    if width:
        others = sum(
            max(len(row[i]) for row in [list(HEADS), *rows]) for i in range(1, len(HEADS))
        )
        most = max(width - others - 2 * (len(HEADS) - 1), MIN_NAME)
        rows = [[squeezed(row[0], most), *row[1:]] for row in rows]
    lines = []
    if changes.unit:
        low, value, high = (
            100 * (x - 1)
            for x in (changes.unit.low, changes.unit.value, changes.unit.high)
        )
        lines += [
            wrapped(
                f"A unit takes {human(changes.unit_ns[0])} undelayed in A, "
                f"{human(changes.unit_ns[1])} in B: "
                f"{value:+.1f}% ({low:+.1f} to {high:+.1f})",
                prose,
            ),
            "",
        ]
    sides = (LEFT, *[RIGHT] * 5, LEFT)
    lines.append(table(list(zip(HEADS, sides, strict=True)), rows))
    told = [
        f"{short(c.name)}: {c.verdict}: {c.reason}"
        for c in changes.changes
        if c.reason and c.verdict != ALIKE
    ]
    notes = [f"note: {note}" for note in changes.notes]
    for name, found in (("A", changes.a), ("B", changes.b)):
        notes += [f"warning: {name}: {warning}" for warning in found.warnings]
    for part in (told, notes):
        if part:
            lines += ["", *(wrapped(line, prose, "    ") for line in part)]
    lines += ["", wrapped(_conclusion(changes), prose)]
    return "\n".join(lines) + "\n"


def _conclusion(changes: Changes) -> str:
    certain = [c for c in changes.changes if c.is_certain]
    if certain:
        first = certain[0]
        assert first.a and first.b
        return (
            f"{len(certain)} function{'s' * (len(certain) != 1)} changed for certain, "
            f"{short(first.name)} most: from {number(first.a.criticality)} "
            f"to {number(first.b.criticality)}."
        )
    if any(c.verdict == INCONCLUSIVE for c in changes.changes):
        return "Nothing changed for certain."
    return "Nothing changed."


def as_json(changes: Changes, files: Sequence[str]) -> dict[str, Any]:
    """The comparison as JSON. Times are ns."""
    return {
        "format": FORMAT,
        "files": list(files),
        "unit_ns": [finite(value) for value in changes.unit_ns],
        "unit_ratio": interval_json(changes.unit),
        "changes": [
            {
                "target": c.name,
                "verdict": c.verdict,
                "reason": c.reason,
                "criticality": [
                    interval_json(f.criticality if f else None) for f in (c.a, c.b)
                ],
                "headroom": [
                    interval_json(f.headroom if f else None) for f in (c.a, c.b)
                ],
                "difference": interval_json(c.by),
                "false_discovery_rate": finite(c.rate),
            }
            for c in changes.changes
        ],
        "notes": changes.notes,
    }
