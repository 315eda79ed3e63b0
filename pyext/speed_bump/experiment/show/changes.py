# SPDX-License-Identifier: MIT
"""Two experiments beside one another: what changed from the first to the second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from speed_bump.duration import human
from speed_bump.experiment import report, robust, show
from speed_bump.experiment.runs.estimate import Interval
from speed_bump.experiment.judge import Finding, Judge, Verdict
from speed_bump.experiment.records import Record

# A difference of two criticalities below this is of no consequence.
ALIKE = 0.1
FALSE_DISCOVERIES = 0.05
# What would make numbers of two machines or programs differ for reasons of their own.
ENVIRONMENT = ("host", "machine", "cpu", "cpus", "kernel", "python", "hook")
HEADS = ("function", "criticality A", "B", "B - A [95%]", "headroom A", "B", "verdict")


@dataclass(frozen=True)
class Change:
    """Of one function. ``by`` is the criticality of B less that of A.

    ``rate`` is the rate of false discoveries at which it differs. ``verdict`` is "more
    critical", "less critical", "alike", or says why nothing is known.
    """

    name: str
    a: Finding | None
    b: Finding | None
    by: Interval | None
    rate: float
    verdict: str

    @property
    def is_certain(self) -> bool:
        """Whether it differs, for certain."""
        return self.verdict in ("more critical", "less critical")


@dataclass(frozen=True)
class Changes:
    """All that changed. ``unit`` is the undelayed time of a unit in B over that in A."""

    a: Verdict
    b: Verdict
    unit: Interval | None
    changes: list[Change]
    notes: list[str]


def difference(a: Interval, b: Interval) -> Interval:
    """``b - a`` of two that were measured apart: the errors add up as squares do."""
    error = math.hypot((a.high - a.low) / 2, (b.high - b.low) / 2)
    value = b.value - a.value
    return Interval(value, value - error, value + error)


def compare(a: Record, b: Record) -> Changes:
    """Judge both and set them beside one another, those that differ most first."""
    verdict_a, verdict_b = (
        Judge(record, precision=record.header.get("precision", 0.05)).verdict()
        for record in (a, b)
    )
    names = [f.name for f in verdict_b.findings]
    names += [f.name for f in verdict_a.findings if f.name not in names]
    pairs = [(name, verdict_a.of(name), verdict_b.of(name)) for name in names]
    bys = [_by(one, other) for _, one, other in pairs]
    rates = iter(robust.false_discovery([_p_value(by) for by in bys if by]))
    changes = []
    for (name, one, other), by in zip(pairs, bys, strict=True):
        rate = next(rates) if by else 1.0
        changes.append(Change(name, one, other, by, rate, _verdict(one, other, by, rate)))
    changes.sort(key=_order)
    unit = _unit_ratio(a, b)
    return Changes(verdict_a, verdict_b, unit, changes, _notes(a, b))


def _by(a: Finding | None, b: Finding | None) -> Interval | None:
    if not (a and b and a.supported and b.supported and a.criticality and b.criticality):
        return None
    return difference(a.criticality, b.criticality)


def _p_value(by: Interval) -> float:
    """Two-sided, that there is no difference."""
    error = max((by.high - by.low) / 2 / robust.normal_quantile(0.975), 1e-9)
    return 2 * (1 - robust.normal_cdf(abs(by.value) / error))


def _verdict(
    a: Finding | None, b: Finding | None, by: Interval | None, rate: float
) -> str:
    if a is None or b is None:
        return "only in A" if b is None else "only in B"
    if by is None:
        which = [name for name, f in (("A", a), ("B", b)) if not f.supported]
        return f"inconclusive: no answer in {' and '.join(which)}"
    if rate <= FALSE_DISCOVERIES:
        return "more critical" if by.value > 0 else "less critical"
    if max(abs(by.low), abs(by.high)) <= ALIKE:
        return "alike"
    return f"inconclusive: may differ by {max(abs(by.low), abs(by.high)):.2f}"


def _order(change: Change) -> tuple[int, float, str]:
    known = 0 if change.is_certain else 1 if change.by else 2
    return (known, -abs(change.by.value) if change.by else 0.0, change.name)


def _unit_ratio(a: Record, b: Record) -> Interval | None:
    """By the delta method; what the runs as wholes differ by is not in the interval."""
    found = []
    for record in (a, b):
        times = [p.off.unit_ns for p in record.pairs if p.is_good]
        if len(times) < 2:
            return None
        found.append(robust.trimmed_interval(times))
    first, second = found
    ratio = second.value / first.value
    error = ratio * math.hypot(*((t.high - t.low) / 2 / t.value for t in (first, second)))
    return Interval(ratio, ratio - error, ratio + error)


def _notes(a: Record, b: Record) -> list[str]:
    """What else differs, so that not all of the change need be the program's."""
    notes = []
    if (a.header.get("unit") or "") != (b.header.get("unit") or ""):
        notes.append(
            f"A counts {a.header.get('unit') or 'runs'}, "
            f"B {b.header.get('unit') or 'runs'} as units of work"
        )
    if a.header.get("command") != b.header.get("command"):
        notes.append("the commands differ")
    ours, theirs = (r.header.get("environment") or {} for r in (a, b))
    for key in ENVIRONMENT:
        if ours.get(key) != theirs.get(key):
            notes.append(f"{key}: {ours.get(key)} in A, {theirs.get(key)} in B")
    return notes


# ------------------------------------------------------------------------ shown


def _value(finding: Finding | None) -> str:
    if finding is None or not finding.supported or finding.criticality is None:
        return "-"
    return f"{finding.criticality.value:.2f}"


def _headroom(finding: Finding | None) -> str:
    if finding is None or not finding.supported or finding.headroom is None:
        return "-"
    return f"{100 * finding.headroom.value:.1f}%"


def _row(change: Change) -> list[str]:
    by = change.by
    return [
        show.short(change.name),
        _value(change.a),
        _value(change.b),
        f"{by.value:+.2f} [{by.low:+.2f}, {by.high:+.2f}]" if by else "-",
        _headroom(change.a),
        _headroom(change.b),
        change.verdict,
    ]


def text(changes: Changes) -> str:
    """For people at a terminal."""
    sides = (report.LEFT, *[report.RIGHT] * 5, report.LEFT)
    rows = [_row(change) for change in changes.changes]
    lines = []
    if changes.unit:
        low, value, high = (
            100 * (x - 1)
            for x in (changes.unit.low, changes.unit.value, changes.unit.high)
        )
        lines += [
            f"undelayed {human(changes.a.unit_ns)} a unit of work in A, "
            f"{human(changes.b.unit_ns)} in B: {value:+.1f}% [{low:+.1f}, {high:+.1f}]",
            "",
        ]
    lines.append(report.table(list(zip(HEADS, sides, strict=True)), rows))
    for name, verdict in (("A", changes.a), ("B", changes.b)):
        lines += [f"note: {name}: {note}" for note in verdict.notes]
    lines += [f"note: {note}" for note in changes.notes]
    return "\n".join(lines) + "\n"


def as_json(changes: Changes, files: Sequence[str]) -> dict[str, Any]:
    """For programs. Times are ns."""
    return {
        "files": list(files),
        "unit_ns": [changes.a.unit_ns, changes.b.unit_ns],
        "unit_ratio": show.interval_json(changes.unit),
        "functions": [
            {
                "function": c.name,
                "criticality": [
                    show.interval_json(f.criticality if f and f.supported else None)
                    for f in (c.a, c.b)
                ],
                "headroom": [
                    show.interval_json(f.headroom if f and f.supported else None)
                    for f in (c.a, c.b)
                ],
                "difference": show.interval_json(c.by),
                "false_discovery_rate": c.rate,
                "verdict": c.verdict,
            }
            for c in changes.changes
        ],
        "notes": changes.notes,
    }
