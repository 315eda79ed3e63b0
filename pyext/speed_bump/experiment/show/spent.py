# SPDX-License-Identifier: MIT
"""Where a unit's time goes, as rows of text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from speed_bump.experiment.account import (
    CPU_WAIT,
    MACHINE,
    WAIT,
    Account,
    Frame,
    Inside,
    Others,
    Row,
    account,
    asked_name,
    inside,
)
from speed_bump.experiment.fit.finding import Finding
from speed_bump.experiment.fit.interval import INCONCLUSIVE
from speed_bump.experiment.fit.verdict import Verdict
from speed_bump.experiment.program.native_frames import is_ours
from speed_bump.experiment.record import Record
from speed_bump.experiment.symbols import short, shortened

# Smaller rows are joined with the rest.
MIN_SHARE = 0.002
MAX_PARTS = 2
MAX_OTHERS = 3
MAX_NATIVE = 5


def whole(record: Record) -> str:
    """The name of the whole: a unit or a run."""
    return "run" if record.header.get("whole_runs") else "unit"


def heads(record: Record) -> tuple[str, str, str]:
    """The heads of the columns of ``rows()``."""
    return f"where a {whole(record)}'s time goes", "part", "mostly"


def of(record: Record, verdict: Verdict) -> Account | None:
    """The account of a record; None if no stacks were sampled, or a metric counts units.

    A metric does not say which threads do them.
    """
    if record.metered:
        return None
    return account(record.looks, _asked(verdict))


def _asked(verdict: Verdict) -> set[str]:
    """The functions of a report, as named in an account."""
    return {f.name.removeprefix("native:") for f in verdict.findings}


def answered(record: Record, verdict: Verdict) -> list[tuple[Inside, Finding]]:
    """The functions that were left out and have the answer of what calls them."""
    left_out = (record.header.get("found") or {}).get("native_left_out") or {}
    if record.metered:
        return []
    by_name = {f.name.removeprefix("native:"): f for f in verdict.findings}
    machine = record.machine
    given = machine.given if machine.is_crowded and 0 < machine.given < 1 else 0.0
    some = inside(record.looks, set(by_name), set(left_out), given)
    if record.ranks:
        # Per rank, like self times.
        ranks = dict(zip(record.functions, record.ranks.callers(), strict=True))
        some = [replace(one, share=one.share / max(ranks[one.of], 1)) for one in some]
    return [
        (one, by_name[one.of])
        for one in some
        if one.share >= MIN_SHARE and by_name[one.of].verdict != INCONCLUSIVE
    ]


def part(share: float) -> str:
    """In percent."""
    return "< 0.1%" if 0 < share < 0.001 else f"{100 * share:.1f}%"


def word(row: Row) -> str:
    """The name of a row."""
    if row.is_wait:
        return f"waiting: {row.what}"
    return f"computing: {row.what}"


def mostly(row: Row) -> str:
    """The parts of a row."""
    named = [(short(name), share) for name, share in row.parts if name][:MAX_PARTS]
    if row.what == CPU_WAIT:
        return "other programs, and its own threads, had the CPUs"
    if not named:
        return ""
    if len(named) == 1 or named[0][1] > 0.9 * row.share:
        return named[0][0]
    more = len([name for name, _ in row.parts if name]) - len(named)
    text = "; ".join(f"{part(share)} {name}" for name, share in named)
    return f"{text}; {more} more" if more else text


def rows(found: Account) -> list[list[str]]:
    """The rows of a table, which add up to the whole."""
    large = [row for row in found.rows if row.share >= MIN_SHARE]
    lines = [[word(row), part(row.share), mostly(row)] for row in large]
    rest = sum(row.share for row in found.rows) - sum(row.share for row in large)
    if rest > 0:
        lines.append(["all else", part(rest), ""])
    return lines


def apart(found: Account) -> str:
    """Threads that report no units; "" if there are none."""
    if not found.others:
        return ""
    words = [
        (f"{one.threads} of " if one.threads > 1 else "") + f"{one.name} ({_busy(one)})"
        for one in found.others
    ]
    more = sum(one.threads for one in found.others[MAX_OTHERS:])
    text = ", ".join(words[:MAX_OTHERS]) + (f" and {more} more" if more else "")
    return f"apart from the unit, other threads: {text}"


def _busy(one: Others) -> str:
    waits = f"waiting: {one.waits}" if one.waits else ""
    if one.awake < 0.02:
        return waits or "asleep"
    text = f"awake {100 * one.awake:.0f}% of the time"
    return f"{text}, else {waits}" if waits and one.awake < 0.98 else text


def native(record: Record, verdict: Verdict) -> str:
    """Native functions that take time and were not measured, and how to do it."""
    looks, asked = record.looks, _asked(verdict)
    if looks is None:
        return ""
    total = 0.0
    shares: dict[Frame, float] = {}
    for (at, row), n in looks.stacks.items():
        if not looks.threads[at].reports:
            continue
        total += n
        frames = [looks.frames[f] for f in row]
        if frames and frames[-1].kind == WAIT:
            continue
        for frame in {f for f in frames if f.kind == MACHINE and ":" in f.name}:
            shares[frame] = shares.get(frame, 0.0) + n
    named = [
        (frame, n / total)
        for frame, n in sorted(shares.items(), key=lambda item: (-item[1], item[0].name))
        if n / total >= MIN_SHARE
        and not asked_name(frame, asked)
        and not is_ours(frame.file)
    ]
    if not named:
        return ""
    refused = record.header.get("native_refused")
    # Those that differ in what is left out of their names call each other.
    shown: dict[str, str] = {}
    for frame, share in named:
        shown.setdefault(shortened(frame.name), part(share))
    first = [f"{share} {name}" for name, share in shown.items()][:MAX_NATIVE]
    text = ", ".join(first)
    more = f" and {len(shown) - MAX_NATIVE} more" if len(shown) > MAX_NATIVE else ""
    return f"native functions in there, with what they call: {text}{more}; " + (
        f"they can't be measured: {refused}"
        if refused
        else f"measure one with --native '{named[0][0].file}:SYMBOL'"
    )


def how(record: Record, found: Account) -> str:
    """The source of the account, and its cost."""
    looks = record.looks
    assert looks is not None
    whose = "the thread" if found.threads == 1 else f"the {found.threads} threads"
    said = "reports" if found.threads == 1 else "report"
    cost = looks.cpu_ns / max(looks.clock_ns, 1)
    total = float(record.end.get("seconds") or 0.0) * 1e9
    if whole(record) == "run":
        whose, said = "the main thread", ""
        if found.threads > 1:
            whose += f" of each of {found.threads} processes"
    else:
        said = f" that {said} units"
    text = (
        f"of {whose}{said}, from {found.looks:,} samples of the stacks while "
        f"nothing was delayed; sampling took {100 * cost:.1f}% of a CPU meanwhile"
    )
    if total > looks.clock_ns and whole(record) == "unit":
        text += f", {100 * looks.cpu_ns / total:.2f}% of the whole time"
    missed = looks.lost / max(looks.lost + sum(looks.stacks.values()), 1)
    if missed > 0.01:
        text += f"; {100 * missed:.0f}% of the stacks could not be read"
    return text


def as_json(
    found: Account | None, inside_of: Sequence[tuple[Inside, Finding]] = ()
) -> dict[str, Any] | None:
    """The account as JSON. Shares are of the unit's time.

    Args:
        inside_of: what ``answered()`` says
    """
    if found is None:
        return None
    return {
        "rows": [
            {
                "what": row.what,
                "is_wait": row.is_wait,
                "share": row.share,
                "parts": [
                    {"name": name, "share": share} for name, share in row.parts[:10]
                ],
            }
            for row in found.rows
        ],
        "functions": {
            name: {"computing": own.cpu, "asleep": own.asleep}
            for name, own in found.own.items()
        },
        "inside": [
            {"function": one.name, "self_share": one.share, "of": one.of}
            for one, _ in inside_of
        ],
        "threads": found.threads,
        "looks": found.looks,
        "other_threads": [
            {
                "function": one.name,
                "threads": one.threads,
                "awake": one.awake,
                "wait": one.waits,
            }
            for one in found.others
        ],
    }
