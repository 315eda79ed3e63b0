# SPDX-License-Identifier: MIT
"""The effects of delays on the latency of requests: a table, prose, and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from speed_bump.duration import human
from speed_bump.experiment.fit.interval import INCONCLUSIVE, Interval
from speed_bump.experiment.fit.latency import (
    EVERY,
    QUEUE,
    SLOW_ONES,
    STATISTICS,
    Finding,
    RequestLatency,
    request_latency,
)
from speed_bump.experiment.record import Record
from speed_bump.experiment.show.encode import finite, interval_json
from speed_bump.experiment.show.table import LEFT, RIGHT, table
from speed_bump.experiment.symbols import short

HEADS = ("function", "delay", "calls", *STATISTICS, "throughput", "verdict")
LEGEND = (
    "mean to p99: what a ms of delay of each call adds, in ms, with its 95% interval, at "
    "the delay that was used; nothing is concluded for other delays. calls: for each "
    "request. throughput: of the unit of work, changed by that delay."
)
# Verdicts with an effect, the most interesting one first.
ADDS = (QUEUE, EVERY, SLOW_ONES)


def of(record: Record) -> list[RequestLatency]:
    """The results for each kind of request that was recorded."""
    if record.requests is None:
        return []
    names = record.header.get("latency") or ["requests"]
    lost = int(record.end.get("requests_lost", 0))
    return [
        request_latency(record, record.requests[record.requests["name"] == k], name, lost)
        for k, name in enumerate(names)
    ]


def ranked(found: RequestLatency) -> list[Finding]:
    """The findings, those with the largest effect first."""

    def key(f: Finding) -> tuple[int, float, str]:
        first = ADDS.index(f.verdict) if f.verdict in ADDS else len(ADDS)
        per_ms = f.per_ms("mean")
        return first, -per_ms.value if per_ms else 0.0, f.name

    return sorted(found.findings, key=key)


def _number(interval: Interval | None) -> str:
    if interval is None or not math.isfinite(interval.half):
        return "-"
    low, value, high = interval.low, interval.value, interval.high
    digits = 2 if interval.half < 10 else 0
    if abs((high - value) - (value - low)) < 0.2 * (high - low):
        return f"{value:.{digits}f} ± {interval.half:.{digits}f}"
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _percent(interval: Interval | None) -> str:
    if interval is None or not math.isfinite(interval.half):
        return "-"
    return f"{100 * interval.value:+.1f} ± {100 * interval.half:.1f}%"


def cells(f: Finding) -> list[str]:
    known = math.isfinite(f.delay_ns) and f.delay_ns > 0
    return [
        short(f.name),
        human(f.delay_ns) if known else "-",
        f"{f.calls:.3g}" if known else "-",
        *(_number(f.per_ms(key)) for key in STATISTICS),
        _percent(f.throughput),
        f.verdict,
    ]


def title(found: RequestLatency) -> str:
    """The kind of request and its statistics."""
    if not found.undelayed_ns:
        return f"latency of {found.name}: {found.requests:,} requests"
    usual = ", ".join(f"{key} {human(ns)}" for key, ns in found.undelayed_ns.items())
    return (
        f"latency of {found.name}: {found.requests:,} requests, {found.rate:,.0f} a "
        f"second, in slots of {human(found.slot_ns)}; undelayed {usual}"
    )


def why(f: Finding) -> str:
    """The reason, the effect of the dose, and what would help."""
    text = f"{f.verdict}: {f.reason}" if f.reason else f.verdict
    totals = [
        f"{key} {human(one.value)} ± {human(one.half)}"
        for key, one in f.added_ns.items()
        if one.value > 0 and f.verdict in ADDS
    ]
    if totals:
        text += f"; added by {human(f.dose_ns)} a request: {', '.join(totals)}"
    return f"{text}. What helps: {f.help}" if f.help else text


def paragraphs(found: RequestLatency) -> list[str]:
    """The text below the table: load, reasons, warnings."""
    lines = [found.load.text()] if found.load is not None else []
    groups: dict[str, list[str]] = {}
    for f in ranked(found):
        groups.setdefault(why(f), []).append(short(f.name))
    lines += [f"{', '.join(names)}: {text}" for text, names in groups.items()]
    return [*lines, *(f"warning: {text}" for text in found.warnings)]


def sentence(found: RequestLatency) -> str:
    """The sentence about what to look at first."""
    adding = [f for f in found.findings if f.verdict in ADDS and f.per_ms("mean")]
    if not adding:
        unknown = sum(f.verdict == INCONCLUSIVE for f in found.findings)
        if unknown:
            return (
                f"the effect of {unknown} of {len(found.findings)} functions on the "
                "latency is inconclusive"
            )
        return "no function that was delayed adds to the latency"
    first = max(adding, key=lambda f: _per_ms(f, "mean"))
    text = (
        f"{short(first.name)} adds most: a ms of it adds {_per_ms(first, 'mean'):.2g} ms "
        "to the mean"
    )
    # The highest statistic that certainly changes.
    moved = [key for key in STATISTICS if (one := first.per_ms(key)) and one.low > 0]
    if moved and moved[-1] != "mean":
        text += f" and {_per_ms(first, moved[-1]):.2g} ms to the {moved[-1]}"
    return text


def _per_ms(f: Finding, key: str) -> float:
    found = f.per_ms(key)
    return found.value if found is not None else 0.0


def rows(found: RequestLatency) -> str:
    heads = [(h, LEFT if h in ("function", "verdict") else RIGHT) for h in HEADS]
    return table(heads, [cells(f) for f in ranked(found)])


def as_json(kinds: Sequence[RequestLatency]) -> list[dict[str, Any]]:
    """JSON. Times are ns."""
    return [_json_of(found) for found in kinds]


def _json_of(found: RequestLatency) -> dict[str, Any]:
    load = found.load
    return {
        "name": found.name,
        "requests": found.requests,
        "used": found.used,
        "requests_lost": found.lost,
        "requests_per_s": finite(found.rate),
        "slot_ns": finite(found.slot_ns),
        "undelayed_ns": found.undelayed_ns,
        "load": {
            "kind": load.kind,
            "busy": finite(load.busy),
            "under_way": finite(load.under_way),
            "max_under_way": finite(load.most),
            "throughput_moves": interval_json(load.moves),
            "text": load.text(),
        }
        if load is not None
        else None,
        "sham_ns": interval_json(found.sham),
        "findings": [
            {
                "target": f.name,
                "verdict": f.verdict,
                "delay_ns": finite(f.delay_ns),
                "calls_per_request": finite(f.calls),
                "delivered_per_request_ns": finite(f.dose_ns),
                "added_ns": {key: interval_json(one) for key, one in f.added_ns.items()},
                "per_ms": {key: interval_json(f.per_ms(key)) for key in f.added_ns},
                "arrives": interval_json(f.arrives),
                "throughput": interval_json(f.throughput),
                "requests": f.requests,
                "slots": f.slots,
                "false_discovery_rate": finite(f.false_discovery),
                "reason": f.reason,
                "help": f.help,
            }
            for f in ranked(found)
        ],
        "warnings": found.warnings,
    }
