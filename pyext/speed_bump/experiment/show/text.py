# SPDX-License-Identifier: MIT
"""A verdict as text, Markdown, CSV and JSON.

All forms have the same columns, numbers and notes, made by the same functions: hence the
length.
"""

from __future__ import annotations

import csv
import io
import math
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from speed_bump.duration import human
from speed_bump.experiment import missing
from speed_bump.experiment.account import Inside
from speed_bump.experiment.cluster import places
from speed_bump.experiment.fit.bill import Bill
from speed_bump.experiment.fit.interval import Interval
from speed_bump.experiment.fit.judge import TOLD_THREADS
from speed_bump.experiment.fit.latency import RequestLatency
from speed_bump.experiment.fit.mean_latency import mean_latency as mean_latency_of
from speed_bump.experiment.fit.verdict import (
    HIDDEN,
    MATTERS,
    Finding,
    Verdict,
)
from speed_bump.experiment.job_ranks import told as told_ranks
from speed_bump.experiment.program.ways import BY
from speed_bump.experiment.record import Floats, Record
from speed_bump.experiment.show import found as looked
from speed_bump.experiment.show import latency, mean_latency, ranks, spent
from speed_bump.experiment.show.encode import finite, interval_json
from speed_bump.experiment.show.sentence import sentence
from speed_bump.experiment.show.table import LEFT, RIGHT, table
from speed_bump.experiment.show.wording import (
    count,
    listed,
    number,
    percent,
    ranked,
    shared_note,
    squeezed,
)
from speed_bump.experiment.symbols import short

FORMAT = 3
MAX_ROWS = 30
# Prose is wrapped at this width, also on wider terminals.
PROSE = 80
MIN_NAME = 16
# Of the functions that were not delayed and have an answer.
MIN_INSIDE, MAX_INSIDE = 0.01, 5
HEADS = ("function", "calls", "self", "criticality", "headroom", "verdict")


# ------------------------------------------------------------------------ numbers


def calls_per_unit(record: Record) -> dict[str, float]:
    """Calls of each function per unit, on average over all slots."""
    slots = record.slots
    usable = slots.good & (slots.units > 0)
    found = {}
    for at, name in enumerate(record.functions):
        calls = slots.calls[usable, at] if len(slots) else np.zeros(0)
        known = np.isfinite(calls)
        units = float(_units(record)[usable][known].sum()) if len(slots) else 0.0
        found[name] = float(calls[known].sum()) / units if units else 0.0
    return found


def _units(record: Record) -> Floats:
    """Units of each slot; slots of time are stored as if all had the same number."""
    if record.metered:
        return np.nan_to_num(record.metered.count)
    return record.slots.units.astype(float)


def seconds(record: Record) -> float:
    """How long the experiment took."""
    known = record.end.get("seconds")
    if known is not None:
        return float(known)
    return float(np.nansum(record.slots.time_ns)) / 1e9


def unit_ns(record: Record, verdict: Verdict) -> float:
    """The undelayed time of a unit of work; 0 if unknown."""
    return record.unit_ns or verdict.slot_ns / max(record.slot_units, 1)


def command_of(record: Record) -> str:
    """The command as typed in a shell."""
    return shlex.join(record.header.get("command") or [])


# -------------------------------------------------------------------------- words


def title(record: Record, verdict: Verdict) -> list[str]:
    """What was done, in two sentences."""
    end = record.end
    runs = end.get("runs", 1)
    what = record.header.get("unit")
    units = record.slot_units
    first = f"{seconds(record):.0f} s of {command_of(record) or 'the program'}"
    if attached := record.header.get("attached"):
        ways = [f"{a['pid']} ({BY.get(a['way'], a['way'])})" for a in attached]
        first += f", process{'es' * (len(ways) > 1)} {listed(ways)}"
    if runs > 1:
        first += f" in {runs} runs"
    if end.get("interrupted"):
        first += ", stopped before the end"
    second = (
        f"{verdict.slots:,} slots of {units} units"
        if units > 1
        else (f"{verdict.slots:,} slots of one unit")
    )
    took = unit_ns(record, verdict)
    of = f" ({what})" if what else ""
    if took > 0:
        second += f"; a unit{of} takes {human(took)} undelayed"
    second += f"; delays cost at most {100 * verdict.slowdown:.1f}% of the throughput"
    lines = [first, second]
    if record.ranks is not None:
        lines.append(f"{told_ranks(record.ranks.who)}: the mean over them")
    threads = record.side_by_side
    if threads >= TOLD_THREADS:
        lines.append(
            f"{threads:.3g} threads do units side by side: a delay that only the thread "
            f"itself waits for has a criticality of {1 / threads:.2f}, and matters"
        )
    return lines


def bill_text(bill: Bill, slot_ns: float) -> str:
    """The text for a bill that does not add up; "" if it does."""
    cost = bill.cost
    first = (
        f"the bill: delays of {bill.dose:.2g} of a slot ({human(bill.dose * slot_ns)}) "
        f"together cost {abs(cost.value):.2g} ± {cost.half:.1g} of a slot "
    )
    if bill.alarm:
        return (
            f"{first}less than the sum of their effects: they used up slack and moved "
            "the bottleneck"
        )
    if bill.late:
        return (
            f"{first}more than the sum of their effects: something arrives later than is "
            "looked"
        )
    return ""


def is_plain(finding: Finding, shared: str = "") -> bool:
    """Whether the row is complete without further text."""
    notes = [note for note in finding.notes if note != shared]
    return (
        finding.verdict in (MATTERS, HIDDEN)
        and finding.shape in ("", "linear")
        and finding.slack_ns is None
        and finding.criticality is not None
        and not notes
    )


def besides(finding: Finding, shared: str = "") -> list[str]:
    """What else is known: slack and notes."""
    slack = finding.slack_ns
    parts = []
    if slack is not None and math.isinf(slack.high):
        parts.append(f"slack at least {human(slack.low)} a unit")
    elif slack is not None:
        parts.append(
            f"slack {human(slack.value)} a unit "
            f"({human(slack.low)} to {human(slack.high)})"
        )
    return parts + [note for note in finding.notes if note != shared]


def why(finding: Finding, shared: str = "", is_short: bool = False) -> str:
    """The reason, other facts (unless ``is_short``), and what would help."""
    first = finding.label + (f": {finding.reason}" if finding.reason else "")
    parts = [first, *([] if is_short else besides(finding, shared))]
    text = "; ".join(parts)
    return f"{text}. What helps: {finding.help}" if finding.help else text


@dataclass(frozen=True)
class _Gist:
    """The form of a reason, in which rows may differ by numbers only."""

    verdict: str
    reason: str
    help: str


# A reason may begin with the number that the row has already.
NUMBER_FIRST = re.compile(
    r"^-?[\d.]+ ± [\d.]+ of its delay arrives(?: of one of [\d.]+ of a unit)?[:;] "
)
# A number, and not a part of a name.
NUMBER = re.compile(r"(?<![\w.:/])\d[\d,]*(?:\.\d+)?(?![\w:/])")
TIME = re.compile(r"\b(\d+) (s|min|h)\b")
UNITS = {"s": 1, "min": 60, "h": 3600}


def _said(finding: Finding) -> str:
    """The reason without the number that the row has already."""
    return NUMBER_FIRST.sub("", finding.reason)


def _gist(finding: Finding) -> _Gist:
    return _Gist(
        finding.label,
        NUMBER.sub("#", _said(finding)),
        TIME.sub("{}", finding.help, count=1),
    )


def _because(findings: Sequence[Finding]) -> str:
    """The reason of all of them: numbers in it are from the smallest to the largest."""
    each = [NUMBER.findall(_said(f)) for f in findings]
    columns = [
        sorted(set(column), key=lambda text: float(text.replace(",", "")))
        for column in zip(*each, strict=True)
    ]
    ranges = iter(
        column[0] if len(column) == 1 else f"{column[0]} to {column[-1]}"
        for column in columns
    )
    return NUMBER.sub(lambda _: next(ranges), _said(findings[0]))


def _helps(findings: Sequence[Finding], gist: _Gist) -> str:
    """What would help for all of them: from the shortest time to the longest."""
    times = sorted(
        (int(match[1]) * UNITS[match[2]], match[0])
        for f in findings
        if (match := TIME.search(f.help))
    )
    if not times:
        return gist.help
    first, last = times[0][1], times[-1][1]
    return gist.help.replace("{}", first if first == last else f"{first} to {last}", 1)


def reasons(verdict: Verdict, findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """Rows that need text, with their reasons; rows with the same reason together."""
    shared = shared_note(verdict)
    groups: dict[_Gist, list[Finding]] = {}
    for f in findings:
        if not is_plain(f, shared):
            groups.setdefault(_gist(f), []).append(f)
    lines = []
    for gist, group in groups.items():
        if len(group) == 1:
            lines.append((short(group[0].name), why(group[0], shared)))
            continue
        names = [short(f.name) for f in group]
        all_of_them = len(group) == len(verdict.findings)
        subject = f"all {len(names)} functions" if all_of_them else ", ".join(names)
        first = replace(group[0], reason=_because(group), help=_helps(group, gist))
        lines.append((subject, why(first, shared, is_short=True)))
        more: dict[str, list[str]] = {}
        for f in group:
            if text := "; ".join(besides(f, shared)):
                more.setdefault(text, []).append(f.name)
        lines += [(listed(names), text) for text, names in more.items()]
    return lines


def never_called(record: Record) -> list[str]:
    """Targets that were named and not called, with the reason."""
    return missing.lines(record.header.get("never_called") or {})


def remarks(record: Record, verdict: Verdict) -> list[str]:
    """Warnings for all rows: the bill, pairs of functions."""
    lines = []
    shared = shared_note(verdict)
    if shared:
        lines.append(f"all numbers: {shared}")
    lines += _inside_lines(record, verdict)
    # Reasons of a row are not repeated.
    said = {f"no labels: {f.reason}" for f in verdict.findings} | {shared}
    lines += [f"warning: {text}" for text in verdict.warnings if text not in said]
    lines += filter(None, (bill_text(bill, verdict.slot_ns) for bill in verdict.bills))
    kinds = {
        "parallel": "in parallel: making only one of them faster gains nothing",
        "amplifying": "each amplifies what the other costs",
    }
    for joint in verdict.joints:
        # Serial pairs, which are the usual case, add up as expected.
        if joint.kind in kinds:
            names = " and ".join(short(name) for name in joint.functions)
            lines.append(f"{names}: {kinds[joint.kind]}")
    early = record.header.get("called_before_only") or []
    early = [name for name in early if not name.endswith(":<module>")]
    if early:
        lines.append(f"not asked, called only before the work began: {listed(early)}")
    lines += [f"not asked: {line}" for line in never_called(record)]
    lost = record.end.get("lost", 0)
    if lost:
        lines.append(
            f"warning: {lost:,} functions are missing: more than the table holds"
        )
    return lines


def _inside_lines(record: Record, verdict: Verdict) -> list[str]:
    """The functions that were not delayed and have an answer, the largest first."""
    some = spent.answered(record, verdict)
    worth = [pair for pair in some if pair[0].share >= MIN_INSIDE][:MAX_INSIDE]
    lines = [_inside(record, one, by) for one, by in worth]
    if lines and len(worth) < len(some):
        lines[-1] += f" ({len(some) - len(worth)} more of this kind take less: --json)"
    return lines


def _inside(record: Record, one: Inside, caller: Finding) -> str:
    """A function that was not delayed, with the answer of what calls it."""
    why = record.header["found"]["native_left_out"][one.name]
    text = (
        f"{short(one.name)}: not delayed ({why}): {spent.part(one.share)} of the time, "
        f"in calls from {short(one.of)}, which waits for nothing"
    )
    if caller.criticality is None:
        return f"{text} and is {caller.verdict}"
    gain = max(caller.criticality.value, 0.0) * one.share
    return f"{text} ({number(caller.criticality)}): at most {spent.part(gain)} to gain"


# --------------------------------------------------------------------------- text


def cells(finding: Finding, calls: float) -> list[str]:
    return [
        short(finding.name),
        count(calls),
        percent(finding.share),
        number(finding.criticality),
        percent(finding.headroom),
        finding.label,
    ]


def rows(record: Record, verdict: Verdict) -> list[list[str]]:
    """All rows, in the order of the table."""
    calls = calls_per_unit(record)
    return [cells(f, calls.get(f.name, 0.0)) for f in ranked(verdict.findings)]


def columns() -> int | None:
    """The width of the terminal at stdout; None: it is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitted(lines: list[list[str]], width: int | None) -> list[list[str]]:
    """The rows, with names shortened so that the table is no wider."""
    if width is None:
        return lines
    others = sum(
        max(len(line[i]) for line in [list(HEADS), *lines]) for i in range(1, len(HEADS))
    )
    most = max(width - others - 2 * (len(HEADS) - 1), MIN_NAME)
    return [[squeezed(line[0], most), *line[1:]] for line in lines]


def wrapped(text: str, width: int, indent: str = "") -> str:
    """Wrap prose into lines."""
    return textwrap.fill(
        text,
        min(width, PROSE),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def text(
    record: Record,
    verdict: Verdict,
    max_rows: int | None = MAX_ROWS,
    width: int | None = None,
) -> str:
    """For people at a terminal.

    Args:
        max_rows: of the table; None: all
        width: of the terminal; None: that of stdout, names are whole if it is none
    """
    width = width or columns()
    prose = width or PROSE
    found = ranked(verdict.findings)
    lines = rows(record, verdict)
    shown = fitted(lines[:max_rows], width)
    heads = list(zip(HEADS, (LEFT, RIGHT, RIGHT, RIGHT, RIGHT, LEFT), strict=True))
    parts = [*(wrapped(line, prose, "  ") for line in title(record, verdict)), ""]
    parts.append(table(heads, shown))
    if len(shown) < len(lines):
        parts.append(f"... and {len(lines) - len(shown)} more (speed-bump report --all)")
    where = places.of_record(record)
    if where is not None:
        parts += ["", ranks.places_table(where, [f.name for f in found])]
        parts += ["", wrapped(ranks.waiting(where), prose)]
    elif record.ranks is not None:
        parts += ["", wrapped(ranks.NO_WAITS, prose)]
    told = reasons(verdict, found[:max_rows])
    if told:
        parts.append("")
        parts += [wrapped(f"{of}: {line}", prose, "    ") for of, line in told]
    more = remarks(record, verdict)
    if more:
        parts += ["", *(wrapped(line, prose, "    ") for line in more)]
    parts += mean_latency_lines(record, [f.name for f in found[:max_rows]], width)
    parts += account_lines(record, verdict, width)
    legend = (
        "calls: in a unit. self: part of the time in the function itself. criticality: "
        "the part of a delay that arrives, with its 95% interval. headroom: criticality "
        "times self, at most what making the function faster can gain."
    )
    parts += ["", wrapped(legend, prose)]
    if where is not None:
        parts += [wrapped(ranks.LEGEND, prose)]
    parts += latency_lines(record, prose)
    return "\n".join([*parts, *last_lines(record, verdict, width)])


def advice(record: Record, verdict: Verdict, kinds: Sequence[RequestLatency]) -> str:
    """The sentence about what to look at first: by latency, if that was measured."""
    return " ".join(map(latency.sentence, kinds)) or sentence(record, verdict)


def latency_lines(record: Record, prose: int) -> list[str]:
    """The effects of delays on latency, if that was measured."""
    parts: list[str] = []
    for found in latency.of(record):
        parts += ["", wrapped(latency.title(found), prose, "    "), latency.rows(found)]
        told = latency.paragraphs(found)
        parts += ["", *(wrapped(line, prose, "    ") for line in told)]
        parts += ["", wrapped(latency.LEGEND, prose)]
        parts += ["", wrapped(latency.sentence(found), prose)]
    return parts


def last_lines(record: Record, verdict: Verdict, width: int | None) -> list[str]:
    """The sentence that ends a report."""
    last = sentence(record, verdict)
    if record.requests is not None:
        # It is in the section about latency.
        last = ""
    return ["", wrapped(last, width or PROSE)] if last else []


def mean_latency_lines(record: Record, names: list[str], width: int | None) -> list[str]:
    """What delays add to the latency that a histogram tells, below the table."""
    found = mean_latency_of(record)
    if found is None:
        return []
    said = [
        wrapped(line, width or PROSE, "    ")
        for line in mean_latency.lines(record, found)
    ]
    added = mean_latency.rows(found, names)
    if not added:
        return ["", *said]
    heads = list(zip(mean_latency.HEADS, (LEFT, RIGHT), strict=True))
    return ["", *said, "", table(heads, added)]


def account_lines(record: Record, verdict: Verdict, width: int | None) -> list[str]:
    """Where the time goes, below the table of functions."""
    account = spent.of(record, verdict)
    if account is None:
        return []
    lines = spent.rows(account)
    titles = spent.heads(record)
    if width is not None:
        used = sum(max(len(line[i]) for line in [titles, *lines]) for i in (0, 1))
        most = max(width - used - 4, MIN_NAME)
        lines = [[*line[:2], squeezed(line[2], most)] for line in lines]
    heads = list(zip(titles, (LEFT, RIGHT, LEFT), strict=True))
    apart, inside = spent.apart(account), spent.native(record, verdict)
    prose = width or PROSE
    return [
        "",
        table(heads, lines),
        wrapped(f"({spent.how(record, account)})", prose, " "),
        *(wrapped(line, prose, "    ") for line in (apart, inside) if line),
    ]


def markdown(record: Record, verdict: Verdict) -> str:
    """For a page or a pull request."""

    def line(some: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in some) + " |"

    parts = [
        "; ".join(title(record, verdict)) + ".",
        "",
        line(HEADS),
        "|---|--:|--:|--:|--:|---|",
        *(line([f"`{row[0]}`", *row[1:]]) for row in rows(record, verdict)),
    ]
    told = [f"{of}: {words}" for of, words in reasons(verdict, ranked(verdict.findings))]
    more = [*told, *remarks(record, verdict)]
    where = places.of_record(record)
    if where is not None:
        more.append(ranks.waiting(where))
    if more:
        parts += ["", *(f"- {words}" for words in more)]
    slower = mean_latency_of(record)
    if slower:
        names = [f.name for f in ranked(verdict.findings)]
        added = mean_latency.rows(slower, names)
        parts += ["", *(f"- {words}" for words in mean_latency.lines(record, slower))]
        if added:
            parts += ["", line(mean_latency.HEADS), "|---|--:|"]
            parts += [line([f"`{row[0]}`", row[1]]) for row in added]
    account = spent.of(record, verdict)
    if account:
        parts += [
            "",
            line(spent.heads(record)),
            "|---|--:|---|",
            *(line([row[0], row[1], f"`{row[2]}`" if row[2] else ""])
              for row in spent.rows(account)),
        ]  # fmt: skip
    for found in latency.of(record):
        parts += [
            "",
            f"{latency.title(found)}.",
            "",
            line(latency.HEADS),
            "|---|" + "--:|" * (len(latency.HEADS) - 2) + "---|",
            *(
                line([f"`{row[0]}`", *row[1:]])
                for row in map(latency.cells, latency.ranked(found))
            ),
            "",
            *(f"- {words}" for words in latency.paragraphs(found)),
        ]
    last = sentence(record, verdict) if record.requests is None else ""
    return "\n".join([*parts, *(["", last] if last else [])])


# --------------------------------------------------------------------- for programs

CSV_COLUMNS = (
    "target",
    "verdict",
    "criticality",
    "criticality_low",
    "criticality_high",
    "headroom",
    "headroom_low",
    "headroom_high",
    "self_share",
    "shape",
    "slack_ns",
    "dose",
    "delayed_slots",
    "reason",
    "help",
    "verdict_while_busy",
)


def table_csv(verdict: Verdict) -> str:
    """For spreadsheets. Times are ns."""

    def three(interval: Interval | None) -> list[float | str]:
        if interval is None:
            return ["", "", ""]
        return [interval.value, interval.low, interval.high]

    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for f in ranked(verdict.findings):
        writer.writerow(
            [
                f.name,
                f.verdict,
                *three(f.criticality),
                *three(f.headroom),
                f.share.value if f.share else "",
                f.shape,
                f.slack_ns.value if f.slack_ns else "",
                f.dose,
                f.delayed,
                f.reason,
                f.help,
                f.while_busy,
            ]
        )
    return file.getvalue()


def as_json(record: Record, verdict: Verdict) -> dict[str, Any]:
    """JSON. Times are ns."""
    calls = calls_per_unit(record)
    diagnostics = verdict.diagnostics
    kinds = latency.of(record)
    return {
        "format": FORMAT,
        "command": record.header.get("command"),
        "attached": record.header.get("attached") or [],
        "environment": record.header.get("environment"),
        "seed": record.header.get("seed"),
        "unit": record.header.get("unit"),
        "unit_ns": finite(unit_ns(record, verdict)),
        "slot_units": record.slot_units,
        "side_by_side": finite(record.side_by_side),
        "slots": verdict.slots,
        "wall_ns": round(seconds(record) * 1e9),
        "slowdown": finite(verdict.slowdown),
        "cpu_share": finite(verdict.cpu_share),
        "delivered_share": finite(verdict.delivered_share),
        "findings": [
            finding_json(f, calls.get(f.name, 0.0)) for f in ranked(verdict.findings)
        ],
        "joints": [
            {
                "targets": list(joint.functions),
                "kind": joint.kind,
                "together": interval_json(joint.together),
            }
            for joint in verdict.joints
        ],
        "bill": [
            {
                "dose": bill.dose,
                "apart": bill.apart,
                "cost": interval_json(bill.cost),
                "delays": finite(bill.delays),
                "alarm": bool(bill.alarm),
                "late": bool(bill.late),
            }
            for bill in verdict.bills
        ],
        "sham": interval_json(verdict.sham),
        "diagnostics": {
            "noise": finite(diagnostics.noise),
            "autoregression": [float(part) for part in diagnostics.phi],
            "whiteness": finite(diagnostics.whiteness),
        }
        if diagnostics
        else None,
        "warnings": list(verdict.warnings),
        "found": looked.of_record(record.header.get("found")),
        "never_called": record.header.get("never_called") or {},
        "metric": record.header.get("metric"),
        "mean_latency": mean_latency.as_json(mean_latency_of(record)),
        "account": spent.as_json(
            spent.of(record, verdict), spent.answered(record, verdict)
        ),
        "latency": latency.as_json(kinds),
        "advice": advice(record, verdict, kinds),
        "end": _end_json(record.end),
        "job": ranks.as_json(places.of_record(record), record.ranks.who)
        if record.ranks
        else None,
    }


def _end_json(end: Mapping[str, Any]) -> dict[str, Any]:
    """How it ended; empty as long as it goes on. Its time is beside it."""
    if not end:
        return {}
    return {
        "interrupted": bool(end.get("interrupted")),
        "decided": bool(end.get("decided")),
        "runs": int(end.get("runs", 0)),
        "processes": end.get("processes"),
        "functions_lost": int(end.get("lost", 0)),
        "requests_lost": int(end.get("requests_lost", 0)),
    }


def finding_json(f: Finding, calls: float) -> dict[str, Any]:
    """One target; ``calls`` are those in a unit."""
    return {
        "target": f.name,
        "verdict": f.verdict,
        "criticality": interval_json(f.criticality),
        "headroom": interval_json(f.headroom),
        "self_share": finite(f.share.value) if f.share else None,
        "calls_per_unit": finite(calls),
        "shape": f.shape,
        "slack_ns": interval_json(f.slack_ns),
        "dose": finite(f.dose),
        "delayed_slots": int(f.delayed),
        "false_discovery_rate": finite(f.false_discovery),
        "reason": f.reason,
        "help": f.help,
        "verdict_while_busy": f.while_busy or None,
        "limited_by": f.beside or None,
        "notes": list(f.notes),
    }
