# SPDX-License-Identifier: MIT
"""A verdict as text, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from speed_bump.duration import human
from speed_bump.experiment import report
from speed_bump.experiment.runs.estimate import Interval
from speed_bump.experiment.judge import HINGE, LINEAR, Finding, Verdict, is_native
from speed_bump.experiment.records import Record

MOST_ROWS = 30
HEADS = ("function", "calls", "self", "criticality [95%]", "headroom [95%]", "verdict")


def short(name: str) -> str:
    """Of a native function's path the last part."""
    return os.path.basename(name) if is_native(name) else name


def number(interval: Interval | None, form: str = ".2f") -> str:
    """A number with its interval."""
    if interval is None:
        return "-"
    return f"{interval.value:{form}} [{interval.low:{form}}, {interval.high:{form}}]"


def percent(interval: Interval | None) -> str:
    """The same in percent."""
    if interval is None:
        return "-"
    low, value, high = (100 * x for x in (interval.low, interval.value, interval.high))
    if math.isinf(high):
        return f"{value:.1f}%"
    return f"{value:.1f}% [{low:.1f}, {high:.1f}]"


def count(value: float) -> str:
    """Calls per unit."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def headroom_text(finding: Finding) -> str:
    """An upper bound, and said so where a speed-up is extrapolated."""
    if finding.headroom is None or not finding.supported:
        return "-"
    return percent(finding.headroom)


def rows(verdict: Verdict) -> list[list[str]]:
    """A line for each function, in the order of the table."""
    return [
        [
            short(f.name),
            count(f.calls) if f.calls else "-",
            f"{100 * f.self_share.value:.1f}%" if f.self_share else "-",
            number(f.criticality) if f.supported else "-",
            headroom_text(f),
            f.verdict,
        ]
        for f in verdict.findings
    ]


def title(record: Record, verdict: Verdict) -> str:
    """What was done."""
    kind = "whole runs" if all(p.length_ns == 0 for p in record.pairs) else "windows"
    lengths = sorted({p.length_ns for p in record.pairs if p.length_ns})
    of = f" of {human(lengths[0])}" if lengths else ""
    if len(lengths) > 1:
        of += f" to {human(lengths[-1])}"
    end = record.end
    runs = end.get("runs", 1)
    text = (
        f"{len(record.pairs):,} pairs of {kind}{of} in {runs} run{'s' * (runs != 1)} of "
        f"the program, {end.get('seconds', 0):.0f} s, seed {record.seed}"
    )
    if record.tests:
        text += f", {len(record.tests)} group tests"
    if end.get("interrupted"):
        text += ", stopped before the end"
    if verdict.unit_ns:
        what = record.header.get("unit") or "unit of work"
        text += f"; undelayed {human(verdict.unit_ns)} a {what}"
    return text


def below(record: Record, verdict: Verdict) -> list[str]:
    """What must be known to read the table."""
    lines = []
    for t in verdict.together:
        if t.verdict != "inconclusive":
            lines.append(f"{short(t.names[0])} and {short(t.names[1])}: {t.verdict}")
    for names in record.joint:
        lines.append(f"matter only together: {', '.join(short(n) for n in names)}")
    for f in verdict.findings:
        if f.shape != LINEAR or f.levels:
            lines += [f"{short(f.name)}: {note}" for note in f.notes if f.levels]
    lines += [f"note: {note}" for note in verdict.notes]
    lost = record.end.get("lost", 0)
    if lost:
        lines.append(report.lost_text(lost))
    return lines


def how_measured(record: Record) -> str:
    """How self time was seen."""
    hows = sorted({c.self_from for c in record.censuses if c.self_from})
    ticks = sum(c.ticks for c in record.censuses if c.self_from)
    found = [f"{ticks:,} {' and '.join(hows)}"] if hows else []
    stacks = sum(c.native.stacks for c in record.censuses if c.native)
    if stacks:
        found.append(f"{stacks:,} native stacks by perf events")
    return f"self: part of the time, from {' and '.join(found)}. " if found else ""


def text(record: Record, verdict: Verdict, most: int | None = MOST_ROWS) -> str:
    """For people at a terminal."""
    found = rows(verdict)
    shown = found[:most] if most else found
    sides = (report.LEFT, report.RIGHT, report.RIGHT, report.RIGHT, report.RIGHT)
    heads = list(zip(HEADS, (*sides, report.LEFT), strict=True))
    lines = [title(record, verdict), "", report.table(heads, shown)]
    if len(shown) < len(found):
        lines.append(f"... and {len(found) - len(shown)} more (report --text --all)")
    more = below(record, verdict)
    if more:
        lines += ["", *more]
    lines += [
        "",
        "calls: per unit of work. " + how_measured(record),
        "criticality: the part of a delay that arrives. headroom: criticality times self",
        "time, at most what optimising the function can gain.",
    ]
    return "\n".join(lines)


def markdown(record: Record, verdict: Verdict) -> str:
    """For a page or a pull request."""

    def cells(line: Sequence[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |"

    lines = [
        title(record, verdict),
        "",
        cells(HEADS),
        "|---|--:|--:|--:|--:|---|",
        *(cells([f"`{line[0]}`", *line[1:]]) for line in rows(verdict)),
    ]
    more = below(record, verdict)
    if more:
        lines += ["", *(f"- {line}" for line in more)]
    return "\n".join(lines)


COLUMNS = (
    "function",
    "calls_per_unit",
    "self_share",
    "criticality",
    "criticality_low",
    "criticality_high",
    "headroom",
    "headroom_low",
    "headroom_high",
    "shape",
    "slack_ns",
    "matters",
    "decided",
    "pairs",
    "verdict",
)


def table_csv(verdict: Verdict) -> str:
    """For spreadsheets."""

    def three(interval: Interval | None) -> list[float | str]:
        if interval is None:
            return ["", "", ""]
        return [interval.value, interval.low, interval.high]

    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for f in verdict.findings:
        writer.writerow(
            [
                f.name,
                f.calls,
                f.self_share.value if f.self_share else "",
                *three(f.criticality if f.supported else None),
                *three(f.headroom if f.supported else None),
                f.shape,
                f.slack_ns.value if f.slack_ns else "",
                int(f.matters),
                int(f.decided),
                f.pairs,
                f.verdict,
            ]
        )
    return file.getvalue()


def interval_json(interval: Interval | None) -> dict[str, float | None] | None:
    """For programs; None where there is none, and for infinity."""
    if interval is None:
        return None
    # JSON has no infinity.
    return {k: v if math.isfinite(v) else None for k, v in asdict(interval).items()}


def as_json(record: Record, verdict: Verdict) -> dict[str, Any]:
    """For programs. Times are ns."""
    return {
        "command": record.header.get("command"),
        "environment": record.header.get("environment"),
        "seed": record.seed,
        "unit": record.header.get("unit"),
        "unit_ns": verdict.unit_ns,
        "end": record.end,
        "functions": [_json_of(f) for f in verdict.findings],
        "together": [
            {"names": list(t.names), "part": interval_json(t.part), "verdict": t.verdict}
            for t in verdict.together
        ],
        "joint": [list(names) for names in record.joint],
        "tests": len(record.tests),
        "sham": {
            "effect": interval_json(verdict.sham),
            "alarm": verdict.sham_alarm,
            "pairs": verdict.sham_pairs,
        },
        "pressure": {
            "wait": verdict.wait_share,
            "stall": verdict.stall_share,
            "steal": verdict.steal_share,
        },
        "notes": verdict.notes,
    }


def _json_of(f: Finding) -> dict[str, Any]:
    return {
        "function": f.name,
        "calls_per_unit": f.calls,
        "self_share": interval_json(f.self_share),
        "pairs": f.pairs,
        "window_ns": f.length_ns,
        "criticality": interval_json(f.criticality) if f.supported else None,
        "mean": interval_json(f.mean),
        "slope": interval_json(f.slope),
        "sleeping": interval_json(f.sleeping),
        "headroom": interval_json(f.headroom) if f.supported else None,
        "shape": f.shape,
        "slack_ns": interval_json(f.slack_ns),
        "false_discovery_rate": f.rate,
        "matters": f.matters,
        "decided": f.decided,
        "needs_s": f.needs_s,
        "verdict": f.verdict,
        "notes": f.notes,
        "levels": [
            {
                "share": v.share,
                "pairs": v.pairs,
                "delivered_ns": v.delivered_ns,
                "extra_ns": interval_json(v.extra_ns),
                "criticality": interval_json(v.criticality),
            }
            for v in f.levels
        ],
    }


def header_of(command: Sequence[str]) -> str:
    """The command as one would type it."""
    return " ".join(shlex.quote(word) for word in command)


__all__ = ["HINGE", "as_json", "header_of", "markdown", "table_csv", "text"]
