# SPDX-License-Identifier: MIT
"""A verdict as one page that needs nothing else: no network, no scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from speed_bump.experiment import show
from speed_bump.experiment.judge import (
    AMPLIFIED,
    HINGE,
    INCONCLUSIVE,
    LINEAR,
    NEGATIVE,
    Finding,
    Verdict,
    micros,
)
from speed_bump.experiment.records import JOINT, SOLO, SPIN, Pair, Record

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #667080; --line: #d5dae2;
  --paper: #ffffff; --linear: #2563b8; --hinge: #8a8f98; --amplified: #b42318;
  --negative: #7a3db8; --inconclusive: #c2c7cf; --bar: #cfe0f6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #98a2b0;
  --line: #3a4350; --paper: #14181e; --linear: #6ea8f0; --hinge: #8b94a1;
  --amplified: #f08a7d; --negative: #bb8df0; --inconclusive: #4b5563; --bar: #22405f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1080px; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
p.sub, caption, .soft { color: var(--soft); } code { font-size: .92em; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, th:last-child, td:last-child { text-align: left; }
td:first-child { overflow-wrap: anywhere; }
ul.notes { padding-left: 1.2rem; } .curves { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: 0; } figcaption { font-size: .85rem; color: var(--soft);
  max-width: 320px; overflow-wrap: anywhere; } svg { max-width: 100%; height: auto; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .soft { fill: var(--soft); }
.axis { stroke: var(--line); } .zero { stroke: var(--soft); stroke-dasharray: 3 3; }
"""

COLOURS = {
    LINEAR: "var(--linear)",
    HINGE: "var(--hinge)",
    AMPLIFIED: "var(--amplified)",
    NEGATIVE: "var(--negative)",
    INCONCLUSIVE: "var(--inconclusive)",
}
MOST_FOREST = 30
MOST_CURVES = 12
MOST_POINTS = 1500


def page(record: Record, verdict: Verdict) -> str:
    """The whole page."""
    command = show.header_of(record.header.get("command", []))
    measured = [f for f in verdict.findings if f.criticality and f.supported]
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>speed-bump: {escape(command)}</title><style>{STYLE}</style></head>",
        "<body>",
        "<h1>Which functions matter</h1>",
        f"<p class='sub'><code>{escape(command)}</code><br>",
        f"{escape(show.title(record, verdict))}</p>",
        _table(verdict),
        _notes(record, verdict),
    ]
    if measured:
        parts += [
            "<h2>Criticality</h2><p class='soft'>The part of a delay that reaches "
            "the wall clock, with its 95% interval. 0: hidden behind something else. "
            "1: every nanosecond arrives.</p>",
            forest(measured[:MOST_FOREST]),
            "<h2>Headroom</h2><p class='soft'>At most what optimising the function can "
            "gain, of the whole time: criticality times self time. The outline is self "
            "time alone.</p>",
            bars([f for f in measured if f.headroom][:MOST_FOREST]),
        ]
    curves = [f for f in measured if f.levels][:MOST_CURVES]
    if curves:
        parts.append(
            "<h2>Response</h2><p class='soft'>Extra time per unit of work over the delay "
            "delivered in it. The dotted line is what a function would do of whose delay "
            "everything arrives; a hinge is where its slack is used up.</p>"
            "<div class='curves'>" + "".join(curve(f) for f in curves) + "</div>"
        )
    timed = [p for p in record.pairs if p.is_good and p.kind in (SOLO, JOINT)]
    # Where nothing has an answer, what there is may show why.
    drawn = measured or [f for f in verdict.findings if f.pairs]
    if timed:
        parts += [
            "<h2>Pairs over time</h2><p class='soft'>Each point is one pair of windows: "
            "its change of the time per unit over the delay delivered. Below, the "
            "share of the time in which the program waited for a CPU.</p>",
            timeline(timed, [f.name for f in drawn[:4]]),
        ]
    parts += [_environment(record), "</body></html>\n"]
    return "\n".join(parts)


def _table(verdict: Verdict) -> str:
    heads = "".join(f"<th>{escape(h)}</th>" for h in show.HEADS)
    rows = []
    for f, line in zip(verdict.findings, show.rows(verdict), strict=True):
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in line[1:])
        rows.append(
            f"<tr><td title='{escape(f.name, quote=True)}'>"
            f"<code>{escape(line[0])}</code></td>{cells}</tr>"
        )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _notes(record: Record, verdict: Verdict) -> str:
    lines = show.below(record, verdict)
    how = show.how_measured(record)
    if how:
        lines.append(how.strip())
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul class='notes'>{items}</ul>" if items else ""


def _environment(record: Record) -> str:
    pairs = [
        (key, ", ".join(f"{v:.2f}" for v in value) if isinstance(value, list) else value)
        for key, value in record.header.get("environment", {}).items()
    ]
    rows = "".join(
        f"<tr><td>{escape(str(k))}</td><td>{escape(str(v))}</td></tr>" for k, v in pairs
    )
    return f"<h2>Where</h2><table>{rows}</table>"


# ---------------------------------------------------------------------- figures


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from ``low`` to ``high``."""
    span = max(high - low, 1e-12)
    raw = span / most
    power = math.pow(10.0, math.floor(math.log10(raw)))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def _label(name: str, most: int = 44) -> str:
    text = show.short(name)
    return escape(text if len(text) <= most else "…" + text[1 - most :])


def forest(findings: Sequence[Finding]) -> str:
    """A line for each function: its criticality and interval."""
    row, left, width = 24, 320, 1000
    intervals = [f.criticality for f in findings if f.criticality]
    low = max(min(-0.1, *(i.low for i in intervals)), -2.0)
    high = min(max(1.2, *(i.high for i in intervals)), 5.0)

    def at(c: float) -> float:
        return left + (min(max(c, low), high) - low) / (high - low) * (width - left - 20)

    height = row * len(findings) + 36
    parts = [f"<svg viewBox='0 0 {width} {height}' width='{width}' role='img'>"]
    for tick in nice_ticks(low, high, 8):
        kind = "zero" if abs(tick) < 1e-9 or abs(tick - 1) < 1e-9 else "axis"
        parts.append(
            f"<line class='{kind}' x1='{at(tick):.1f}' x2='{at(tick):.1f}' y1='4' "
            f"y2='{height - 24}'/><text class='soft' x='{at(tick):.1f}' "
            f"y='{height - 8}' text-anchor='middle'>{tick:g}</text>"
        )
    for i, f in enumerate(findings):
        c, y, colour = f.criticality, row * i + 18, COLOURS[f.shape]
        assert c is not None
        parts.append(
            f"<text x='{left - 12}' y='{y + 4}' text-anchor='end'>{_label(f.name)}</text>"
            f"<line x1='{at(c.low):.1f}' x2='{at(c.high):.1f}' y1='{y}' y2='{y}' "
            f"stroke='{colour}' stroke-width='2'/>"
            f"<circle cx='{at(c.value):.1f}' cy='{y}' r='5' fill='{colour}'>"
            f"<title>{escape(show.number(c))} {escape(f.verdict)}</title></circle>"
        )
    return "".join([*parts, "</svg>"])


def bars(findings: Sequence[Finding]) -> str:
    """Headroom within self time."""
    row, left, width = 24, 320, 1000
    height = row * len(findings) + 36
    shares = [f.self_share.value for f in findings if f.self_share]
    most = min(
        max([0.02, *shares, *(f.headroom.high for f in findings if f.headroom)]), 4
    )

    def at(share: float) -> float:
        return left + min(share, most) / most * (width - left - 60)

    parts = [f"<svg viewBox='0 0 {width} {height}' width='{width}' role='img'>"]
    for tick in nice_ticks(0, most, 8):
        parts.append(
            f"<line class='axis' x1='{at(tick):.1f}' x2='{at(tick):.1f}' y1='4' "
            f"y2='{height - 24}'/><text class='soft' x='{at(tick):.1f}' "
            f"y='{height - 8}' text-anchor='middle'>{100 * tick:g}%</text>"
        )
    for i, f in enumerate(findings):
        h, y, colour = f.headroom, row * i + 8, COLOURS[f.shape]
        assert h is not None
        own = f.self_share.value if f.self_share else h.value
        middle = y + 9
        parts.append(
            f"<text x='{left - 12}' y='{y + 14}' text-anchor='end'>{_label(f.name)}"
            f"</text><rect x='{left}' y='{y}' width='{at(own) - left:.1f}' height='18' "
            "fill='none' stroke='var(--soft)'/>"
            f"<rect x='{left}' y='{y}' width='{at(h.value) - left:.1f}' height='18' "
            f"fill='{colour}'/><line x1='{at(h.low):.1f}' x2='{at(h.high):.1f}' "
            f"y1='{middle}' y2='{middle}' stroke='var(--ink)'/>"
            f"<text x='{max(at(h.high), at(own)) + 6:.1f}' y='{y + 14}'>"
            f"{100 * h.value:.1f}%</text>"
        )
    return "".join([*parts, "</svg>"])


def curve(finding: Finding) -> str:
    """Extra time over delay, with the hinge if there is one."""
    width, height, left, bottom = 320, 220, 52, 34
    levels = finding.levels
    most_x = max(v.delivered_ns for v in levels) * 1.08
    most_y = max(most_x * 0.25, *(v.extra_ns.high for v in levels)) * 1.05
    least_y = min(-0.05 * most_y, *(v.extra_ns.low for v in levels))

    def x_at(ns: float) -> float:
        return left + ns / most_x * (width - left - 10)

    def y_at(ns: float) -> float:
        ns = min(max(ns, least_y), most_y)
        return (height - bottom) - (ns - least_y) / (most_y - least_y) * (
            height - bottom - 10
        )

    colour = COLOURS[finding.shape]
    parts = [f"<svg viewBox='0 0 {width} {height}' width='{width}' role='img'>"]
    for tick in nice_ticks(0, most_x, 4):
        parts.append(
            f"<text class='soft' x='{x_at(tick):.1f}' y='{height - 16}' "
            f"text-anchor='middle'>{_ns(tick)}</text>"
        )
    for tick in nice_ticks(least_y, most_y, 4):
        parts.append(
            f"<line class='axis' x1='{left}' x2='{width - 10}' y1='{y_at(tick):.1f}' "
            f"y2='{y_at(tick):.1f}'/><text class='soft' x='{left - 5}' "
            f"y='{y_at(tick) + 4:.1f}' text-anchor='end'>{_ns(tick)}</text>"
        )
    end = min(most_x, most_y)
    parts.append(
        f"<line class='zero' x1='{x_at(0):.1f}' y1='{y_at(0):.1f}' x2='{x_at(end):.1f}' "
        f"y2='{y_at(end):.1f}'/>"
    )
    slack = finding.slack_ns
    if slack and math.isfinite(slack.high):
        low, high = x_at(max(slack.low, 0)), x_at(min(slack.high, most_x))
        parts.append(
            f"<rect x='{low:.1f}' y='10' width='{max(high - low, 1):.1f}' "
            f"height='{height - bottom - 10}' fill='{colour}' opacity='.18'/>"
            f"<text x='{(low + high) / 2:.1f}' y='22' text-anchor='middle'>"
            f"{escape(micros(slack.value))}</text>"
        )
    points = [(0.0, 0.0), *((v.delivered_ns, v.extra_ns.value) for v in levels)]
    path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in points)
    parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}'/>")
    for v in levels:
        x = x_at(v.delivered_ns)
        parts.append(
            f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{y_at(v.extra_ns.low):.1f}' "
            f"y2='{y_at(v.extra_ns.high):.1f}' stroke='{colour}' stroke-width='2'/>"
            f"<circle cx='{x:.1f}' cy='{y_at(v.extra_ns.value):.1f}' r='4' "
            f"fill='{colour}'><title>{v.pairs} pairs</title></circle>"
        )
    caption = f"{_label(finding.name, 60)}<br>{escape(finding.verdict)}"
    return (
        "<figure>" + "".join([*parts, "</svg>"]) + f"<figcaption>{caption}</figcaption>"
        "</figure>"
    )


def _ns(ns: float) -> str:
    """A short time for an axis."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:g} {unit}"
    return f"{ns:g} ns"


HUES = ("var(--linear)", "var(--amplified)", "var(--negative)", "var(--hinge)")


def timeline(pairs: Sequence[Pair], names: Sequence[str]) -> str:
    """What each pair alone would have said, in the order of time."""
    width, height, left, lower = 1000, 300, 52, 60
    chosen = [p for p in pairs if p.kind == SOLO and p.mode == SPIN]
    chosen = [p for p in chosen if p.names[0] in names and p.requested_ns > 0]
    if len(chosen) > MOST_POINTS:
        chosen = chosen[:: -(-len(chosen) // MOST_POINTS)]
    if not chosen:
        return ""
    last = max(p.at_ns for p in pairs) or 1
    low, high = -1.0, 2.5

    def x_at(ns: float) -> float:
        return left + ns / last * (width - left - 20)

    def y_at(c: float) -> float:
        return 10 + (high - min(max(c, low), high)) / (high - low) * (height - lower - 30)

    full = height + 16
    parts = [f"<svg viewBox='0 0 {width} {full}' width='{width}' role='img'>"]
    for tick in nice_ticks(low, high, 6):
        kind = "zero" if tick in (0, 1) else "axis"
        parts.append(
            f"<line class='{kind}' x1='{left}' x2='{width - 20}' y1='{y_at(tick):.1f}' "
            f"y2='{y_at(tick):.1f}'/><text class='soft' x='{left - 6}' "
            f"y='{y_at(tick) + 4:.1f}' text-anchor='end'>{tick:g}</text>"
        )
    for p in chosen:
        colour = HUES[names.index(p.names[0]) % len(HUES)]
        parts.append(
            f"<circle cx='{x_at(p.at_ns):.1f}' "
            f"cy='{y_at(p.change_ns / p.delivered_ns):.1f}' r='2.2' fill='{colour}' "
            "opacity='.55'/>"
        )
    base = height - 28
    for p in pairs[:: max(1, len(pairs) // 400)]:
        clock = p.off.clock_ns + p.on.clock_ns
        wait = min((p.off.run_delay_ns + p.on.run_delay_ns) / clock, 1) if clock else 0
        x = x_at(p.at_ns)
        parts.append(
            f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{base}' "
            f"y2='{base - wait * (lower - 34):.1f}' stroke='var(--soft)'/>"
        )
    for tick in nice_ticks(0, last / 1e9, 8):
        parts.append(
            f"<text class='soft' x='{x_at(tick * 1e9):.1f}' y='{height - 12}' "
            f"text-anchor='middle'>{tick:g} s</text>"
        )
    keys = "".join(
        f"<tspan fill='{HUES[i % len(HUES)]}'>● </tspan>{_label(name)}&#160;&#160; "
        for i, name in enumerate(names)
    )
    parts.append(f"<text x='{left + 4}' y='{full - 6}'>{keys}</text>")
    return "".join([*parts, "</svg>"])
