# SPDX-License-Identifier: MIT
"""An experiment as one page that needs nothing else: no network, no scripts.

A section of the page is a function, and all sections share axes, colours and cells: hence
the length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from speed_bump.duration import human
from speed_bump.experiment.fit.columns import SINGLE, base_time, table
from speed_bump.experiment.fit.contention import contention
from speed_bump.experiment.fit.effects import Effect, Effects, effects
from speed_bump.experiment.fit.interval import Interval
from speed_bump.experiment.fit.latency import RequestLatency
from speed_bump.experiment.fit.mean_latency import mean_latency as mean_latency_of
from speed_bump.experiment.fit.slack import Slack, slacks
from speed_bump.experiment.fit.verdict import (
    HIDDEN,
    INCONCLUSIVE,
    MATTERS,
    PARTLY,
    Finding,
    Verdict,
)
from speed_bump.experiment.record import Block, Record
from speed_bump.experiment.show import flame, latency, mean_latency, spent
from speed_bump.experiment.show.text import (
    HEADS,
    advice,
    bill_text,
    calls_per_unit,
    cells,
    command_of,
    is_plain,
    remarks,
    title,
    why,
)
from speed_bump.experiment.show.wording import number, ranked, shared_note
from speed_bump.experiment.symbols import short

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6573; --line: #d5dae2;
  --paper: #ffffff; --card: #f5f7fa; --matters: #1d5fb0; --partly: #8a5a00;
  --hidden: #5b6573; --inconclusive: #7a3db8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #a3adba;
  --line: #3a4350; --paper: #14181e; --card: #1c222b; --matters: #7db4f5;
  --partly: #e0b050; --hidden: #a3adba; --inconclusive: #c59cf3; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); max-width: 1080px; margin: 1.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .3rem; }
h3 { font-size: 1rem; margin: 0 0 .2rem; }
h3, code, li, td, p { overflow-wrap: anywhere; }
code { font-size: .92em; }
.soft { color: var(--soft); } p.soft { margin-top: 0; }
.lead { font-size: 1.1rem; border-left: 4px solid var(--matters); padding-left: .8rem; }
.matters { color: var(--matters); font-weight: 600; } .partly { color: var(--partly); }
.hidden { color: var(--hidden); } .inconclusive { color: var(--inconclusive); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); }
th, td { text-align: right; padding: .35rem .5rem; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
th[scope=row], th.left, td.left { text-align: left; }
th[scope=row] { color: var(--ink); font-weight: 400; overflow-wrap: anywhere; }
td:not(.left) { white-space: nowrap; }
td small { display: block; color: var(--soft); }
.responses { display: grid; gap: 1.2rem;
  grid-template-columns: repeat(auto-fill, minmax(min(300px, 100%), 1fr)); }
figure { margin: 0; min-width: 0; } .responses figure { background: var(--card);
  border-radius: 6px; padding: .7rem; }
figcaption ul { margin: .3rem 0 0; padding-left: 1.1rem; font-size: .9rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font: 13px system-ui, sans-serif; }
svg.range { width: 110px; margin-left: auto; }
th.name { min-width: 16rem; }
.axis { stroke: var(--line); } .guide { stroke: var(--soft); stroke-dasharray: 3 4; }
.dot { fill: var(--matters); } .still { fill: var(--soft); }
.curve { stroke: var(--matters); fill: none; stroke-width: 2; }
.slack { fill: var(--partly); opacity: .25; }
ol.lanes { columns: 2; padding-left: 1.6rem; } ol.lanes li { break-inside: avoid; }
@media (max-width: 640px) {
  .wide text { font-size: 24px; }
  ol.lanes { columns: 1; } svg.range { margin-left: 0; }
  table.cards, table.cards tbody, table.cards tr, table.cards td,
  table.cards th[scope=row] { display: block; width: 100%; text-align: left; }
  table.cards thead { position: absolute; clip-path: inset(50%); height: 1px;
    width: 1px; overflow: hidden; }
  table.cards tr { border: 1px solid var(--line); border-radius: 6px;
    margin: 0 0 .8rem; padding: .3rem .5rem; }
  table.cards td, table.cards th[scope=row] { border: 0; padding: .1rem 0;
    white-space: normal; min-width: 0; }
  table.cards td[data-head]::before { content: attr(data-head) ": ";
    color: var(--soft); }
}
"""
MAX_RESPONSES = 24
MAX_LANES = 12
MAX_POINTS = 1500
WIDE, TALL = 720, 260
CLIP = 0.005
NUMBERS = 5
LEFT_MARGIN = 116


def page(record: Record, verdict: Verdict) -> str:
    command = command_of(record)
    data = table(record, SINGLE)
    found = effects(data, contention(record, data).y) if data is not None else None
    kinds = latency.of(record)
    lead = advice(record, verdict, kinds)
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>speed-bump: {escape(command)}</title>",
        # Without it a browser requests one.
        "<link rel='icon' href='data:,'>",
        f"<style>{STYLE}{flame.PAGE_STYLE}</style></head><body><main>",
        "<h1>Which functions matter</h1>",
        f"<p class='soft'>{'<br>'.join(map(escape, title(record, verdict)))}</p>",
        f"<p class='lead'>{escape(lead)}</p>",
        *map(_latency, kinds),
        _remarks(record, verdict),
        _flame(record, verdict, found),
        _table(record, verdict),
        _mean_latency(record, verdict),
        _responses(record, verdict, found),
        _timeline(record, verdict),
        _bill(verdict),
        _noise(record, verdict, found),
        _done(record, verdict),
        "</main></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _flame(record: Record, verdict: Verdict, found: Effects | None) -> str:
    picture = flame.flame(record, verdict)
    account = spent.of(record, verdict)
    if picture is None or account is None:
        return ""
    hinges = slacks(record)
    base = base_time(record)

    def figure(name: str) -> str:
        some = found.of((name,)) if found and name else []
        hinge = hinges.get(name)
        if not (some or hinge) or base <= 0:
            return ""
        return response(picture.findings[name], some, hinge, base)

    titles = spent.heads(record)
    heads = "".join(
        f"<th role='columnheader' scope='col'{'' if k == 1 else ' class=left'}>"
        f"{escape(head)}</th>"
        for k, head in enumerate(titles)
    )
    rows = "".join(
        f"<tr role='row'><th role='rowheader' scope='row'>{escape(what)}</th>"
        f"<td role='cell' data-head='{titles[1]}'>{part}</td>"
        f"<td role='cell' class='left' data-head='{titles[2]}'>{escape(mostly)}</td>"
        "</tr>"
        for what, part, mostly in spent.rows(account)
    )
    notes = [
        spent.how(record, account),
        spent.apart(account),
        spent.native(record, verdict),
    ]
    return (
        flame.section(picture, figure)
        + "<table role='table' class='cards'><thead role='rowgroup'>"
        f"<tr role='row'>{heads}</tr></thead>"
        f"<tbody role='rowgroup'>{rows}</tbody></table>"
        + "".join(
            f"<p class='soft'>{escape(note[0].upper() + note[1:])}.</p>"
            for note in notes
            if note
        )
    )


def _remarks(record: Record, verdict: Verdict) -> str:
    lines = remarks(record, verdict)
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


# ---------------------------------------------------------------------- the table


def _table(record: Record, verdict: Verdict) -> str:
    calls = calls_per_unit(record)
    shared = shared_note(verdict)
    heads = "".join(
        f"<th role='columnheader' scope='col'{_left(head)}>{escape(head)}</th>"
        for head in HEADS
    )
    rows = []
    for finding in ranked(verdict.findings):
        name, *others = cells(finding, calls.get(finding.name, 0.0))
        row = [
            "<th role='rowheader' scope='row' class='name' "
            f"title='{escape(finding.name, quote=True)}'><code>{escape(name)}</code></th>"
        ]
        for head, cell in zip(HEADS[1:], others, strict=True):
            inside = escape(cell)
            if head == "criticality":
                inside += " " + _range(finding)
            elif head == "verdict":
                inside = _verdict_cell(finding, shared)
            row.append(
                f"<td role='cell' data-head='{escape(head)}'{_left(head)}>{inside}</td>"
            )
        rows.append(f"<tr role='row'>{''.join(row)}</tr>")
    return (
        "<h2>Functions</h2><p class='soft'>calls: in a unit. self: part of the time "
        "in the function itself. criticality: the part of a delay that arrives, with its "
        "95% interval; 0: hidden behind something else, 1: all of it arrives. headroom: "
        "criticality times self, at most what making the function faster can gain.</p>"
        "<table role='table' class='cards'><thead role='rowgroup'>"
        f"<tr role='row'>{heads}</tr></thead><tbody role='rowgroup'>{''.join(rows)}"
        "</tbody></table>"
    )


def _mean_latency(record: Record, verdict: Verdict) -> str:
    """What delays add to the latency that a histogram tells; "" where none was read."""
    found = mean_latency_of(record)
    if found is None:
        return ""
    said = "".join(
        f"<p class='soft'>{escape(line[0].upper() + line[1:])}.</p>"
        for line in mean_latency.lines(record, found)
    )
    heads = "".join(
        f"<th role='columnheader' scope='col'{_left(head)}>{escape(head)}</th>"
        for head in mean_latency.HEADS
    )
    order = [finding.name for finding in ranked(verdict.findings)]
    rows = "".join(
        "<tr role='row'><th role='rowheader' scope='row' class='name'><code>"
        f"{escape(name)}</code></th><td role='cell' data-head='{mean_latency.HEADS[1]}'>"
        f"{escape(added)}</td></tr>"
        for name, added in mean_latency.rows(found, order)
    )
    if rows:
        rows = (
            "<table role='table' class='cards'><thead role='rowgroup'>"
            f"<tr role='row'>{heads}</tr></thead><tbody role='rowgroup'>{rows}</tbody>"
            "</table>"
        )
    return f"<h2>Latency</h2>{said}{rows}"


def _latency(found: RequestLatency) -> str:
    heads = "".join(
        f"<th role='columnheader' scope='col'{_left(head)}>{escape(head)}</th>"
        for head in latency.HEADS
    )
    rows = []
    for finding in latency.ranked(found):
        name, *others = latency.cells(finding)
        cells = "".join(
            f"<td role='cell' data-head='{escape(head)}'{_left(head)}>{escape(cell)}</td>"
            for head, cell in zip(latency.HEADS[1:], others, strict=True)
        )
        rows.append(
            "<tr role='row'><th role='rowheader' scope='row' class='name' "
            f"title='{escape(finding.name, quote=True)}'><code>{escape(name)}</code></th>"
            f"{cells}</tr>"
        )
    told = "".join(f"<li>{escape(line)}</li>" for line in latency.paragraphs(found))
    return (
        f"<h2>Latency of {escape(found.name)}</h2>"
        f"<p class='soft'>{escape(latency.title(found))}. {escape(latency.LEGEND)}</p>"
        "<table role='table' class='cards'><thead role='rowgroup'>"
        f"<tr role='row'>{heads}</tr></thead><tbody role='rowgroup'>{''.join(rows)}"
        f"</tbody></table><ul>{told}</ul>"
    )


def _left(head: str) -> str:
    return " class='left'" if head in ("function", "verdict") else ""


def _verdict_cell(finding: Finding, shared: str) -> str:
    word = f"<span class='{escape(finding.verdict)}'>{escape(finding.label)}</span>"
    if is_plain(finding, shared):
        return word
    text = why(finding, shared).removeprefix(finding.label).removeprefix(": ")
    return f"{word}<small>{escape(text)}</small>"


def _colour(finding: Finding) -> str:
    known = (MATTERS, PARTLY, HIDDEN, INCONCLUSIVE)
    return f"var(--{finding.verdict if finding.verdict in known else 'hidden'})"


def _range(finding: Finding) -> str:
    interval = finding.criticality
    return span(interval, _colour(finding)) if interval else ""


def span(interval: Interval, colour: str) -> str:
    """A small picture of an interval; the numbers stand beside it."""
    low, high = -0.2, 1.2

    def at(value: float) -> float:
        return 4 + (min(max(value, low), high) - low) / (high - low) * 102

    return (
        "<svg class='range' viewBox='0 0 110 12' aria-hidden='true'>"
        f"<line class='axis' x1='{at(0):.1f}' x2='{at(0):.1f}' y1='0' y2='12'/>"
        f"<line class='axis' x1='{at(1):.1f}' x2='{at(1):.1f}' y1='0' y2='12'/>"
        f"<line x1='{at(interval.low):.1f}' x2='{at(interval.high):.1f}' y1='6' y2='6' "
        f"stroke='{colour}' stroke-width='2'/>"
        f"<circle cx='{at(interval.value):.1f}' cy='6' r='3.5' fill='{colour}'/></svg>"
    )


# ------------------------------------------------------------------------ figures


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from ``low`` to ``high``."""
    span = max(high - low, 1e-12)
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


class _Axes:
    """Where numbers are in a picture."""

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        width: float,
        height: float,
        left: float,
        bottom: float,
    ) -> None:
        self.x, self.y = x, y
        self.width, self.height, self.left, self.bottom = width, height, left, bottom

    def at_x(self, value: float) -> float:
        low, high = self.x
        part = (min(max(value, low), high) - low) / max(high - low, 1e-12)
        return self.left + part * (self.width - self.left - 14)

    def at_y(self, value: float) -> float:
        low, high = self.y
        part = (min(max(value, low), high) - low) / max(high - low, 1e-12)
        return self.height - self.bottom - part * (self.height - self.bottom - 14)

    def drawn(self, x_text: Any, y_text: Any, x_most: int, y_most: int) -> list[str]:
        """The lines and numbers of both axes; the two functions format the numbers."""
        parts = []
        for tick in nice_ticks(*self.y, y_most):
            y = self.at_y(tick)
            parts.append(
                f"<line class='axis' x1='{self.left}' x2='{self.width - 14}' "
                f"y1='{y:.1f}' y2='{y:.1f}'/><text x='{self.left - 6}' y='{y + 5:.1f}' "
                f"text-anchor='end'>{escape(y_text(tick))}</text>"
            )
        for tick in nice_ticks(*self.x, x_most):
            x = self.at_x(tick)
            anchor = "end" if x > self.width - 50 else "middle"
            parts.append(
                f"<text x='{x:.1f}' y='{self.height - 8}' "
                f"text-anchor='{anchor}'>{escape(x_text(tick))}</text>"
            )
        return parts


def _svg(parts: Sequence[str], width: float, height: float, label: str, kind: str) -> str:
    return (
        f"<svg class='{kind}' viewBox='0 0 {width:g} {height:g}' role='img' "
        f"aria-label='{escape(label, quote=True)}'>{''.join(parts)}</svg>"
    )


def _part(percent: float) -> str:
    """Percents for an axis."""
    if percent == 0:
        return "0"
    return f"{percent:+,.0f}%" if abs(percent) >= 10 else f"{percent:+.2g}%"


def _time(ns: float) -> str:
    """A time for an axis."""
    if ns == 0:
        return "0"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size * 0.9995:
            return f"{ns / size:.4g} {unit}"
    return f"{ns:.4g} ns"


# ---------------------------------------------------------------------- responses


def _responses(record: Record, verdict: Verdict, found: Effects | None) -> str:
    hinges = slacks(record)
    base = base_time(record)
    figures = []
    for finding in ranked(verdict.findings):
        some = found.of((finding.name,)) if found else []
        hinge = hinges.get(finding.name)
        if (some or hinge) and base > 0:
            figures.append(response(finding, some, hinge, base))
        if len(figures) == MAX_RESPONSES:
            break
    if not figures:
        return ""
    return (
        "<h2>Response</h2><p class='soft'>How much longer a slot takes, over the delay "
        "delivered in it, with 95% intervals. On the dotted line all of a delay arrives; "
        "a shaded part is slack. Squares are from pedestals, where longer and longer "
        f"delays are built up.</p><div class='responses'>{''.join(figures)}</div>"
    )


def response(
    finding: Finding, some: Sequence[Effect], hinge: Slack | None, base: float
) -> str:
    """The figure of one function and its numbers.

    Args:
        some: its effects at each dose
        base: the undelayed slot, ns
    """
    points = [(e.column.dose * base, e.interval, e) for e in some]
    stairs: list[tuple[float, float]] = []
    if hinge is not None:
        total = 0.0
        for k, slope in enumerate(hinge.slopes, 1):
            total += slope
            stairs.append((k * hinge.step * base, total * hinge.step * base))
    most = 1.12 * max([x for x, _, _ in points] + [x for x, _ in stairs])
    ends = [x * min(max(v, -0.5), 2.0) for x, i, _ in points for v in (i.low, i.high)]
    ends += [y for _, y in stairs]
    axes = _Axes(
        (0, most), (min(0.0, *ends), max(most * 0.6, *ends) * 1.05), 340, 220, 70, 34
    )
    parts = axes.drawn(_time, _time, 3, 4)
    slack = finding.slack_ns
    if hinge is not None and slack is not None and slack.high > 0:
        low = axes.at_x(max(slack.low * hinge.units, 0))
        high = axes.at_x(min(slack.high * hinge.units, most))
        parts.append(
            f"<rect class='slack' x='{low:.1f}' y='14' width='{max(high - low, 1):.1f}' "
            f"height='{220 - 34 - 14}'/>"
        )
    end = min(most, axes.y[1])
    parts.append(
        f"<line class='guide' x1='{axes.at_x(0):.1f}' y1='{axes.at_y(0):.1f}' "
        f"x2='{axes.at_x(end):.1f}' y2='{axes.at_y(end):.1f}'/>"
    )
    if stairs:
        path = " ".join(
            f"{axes.at_x(x):.1f},{axes.at_y(y):.1f}" for x, y in [(0.0, 0.0), *stairs]
        )
        parts.append(f"<polyline class='curve' points='{path}'/>")
        parts += [
            f"<rect class='dot' x='{axes.at_x(x) - 3:.1f}' y='{axes.at_y(y) - 3:.1f}' "
            "width='6' height='6'/>"
            for x, y in stairs
        ]
    for x, i, _ in points:
        parts.append(
            f"<line class='curve' x1='{axes.at_x(x):.1f}' x2='{axes.at_x(x):.1f}' "
            f"y1='{axes.at_y(i.low * x):.1f}' y2='{axes.at_y(i.high * x):.1f}'/>"
            f"<circle class='dot' cx='{axes.at_x(x):.1f}' "
            f"cy='{axes.at_y(i.value * x):.1f}' r='4'/>"
        )
    lines = [
        f"delays of {human(x)} ({e.column.dose:.2g} of a slot"
        + (", apart" if e.column.apart else "")
        + f"): {number(i)} arrives, {e.delayed:,} slots"
        for x, i, e in points
    ]
    if hinge is not None:
        slopes = ", ".join(
            f"{slope:.2f} ± {2 * error:.2f}".replace("-0.00", "0.00")
            for slope, error in zip(hinge.slopes, hinge.errors, strict=True)
        )
        lines.append(
            f"pedestals of {human(hinge.step * base)} each; of one more arrives, from "
            f"the lowest up: {slopes}"
        )
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    name = escape(short(finding.name))
    return (
        f"<figure><h3><code>{name}</code> <span class='{escape(finding.verdict)}'>"
        f"{escape(finding.verdict)}</span></h3>"
        + _svg(parts, 340, 220, f"Response of {short(finding.name)}", "response")
        + f"<figcaption><ul>{items}</ul></figcaption></figure>"
    )


# ---------------------------------------------------------------------- over time


def _seconds_of(record: Record) -> Any:
    """When each slot ended, s since the first one began; runs follow one another."""
    slots = record.slots
    ends = slots.end_ns.astype(float)
    first = ends[0] - np.nan_to_num(slots.time_ns[:1])[0]
    return (ends - first) / 1e9


def _few(count: int) -> slice:
    return slice(None, None, max(1, -(-count // MAX_POINTS)))


def _bounds(values: Any) -> tuple[float, float]:
    """The range that contains nearly all values."""
    low, high = (float(v) for v in np.quantile(values, (CLIP, 1 - CLIP)))
    margin = 0.06 * max(high - low, 1e-3 * abs(high), 1e-12)
    return low - margin, high + margin


def _timeline(record: Record, verdict: Verdict) -> str:
    slots = record.slots
    good = slots.good & np.isfinite(slots.time_ns) & (slots.time_ns > 0)
    if good.sum() < NUMBERS:
        return ""
    at = _seconds_of(record)
    delivered = np.nan_to_num(slots.delivered_ns)
    order = [f.name for f in ranked(verdict.findings) if f.name in record.functions]
    lanes = [
        name for name in order if (delivered[:, record.functions.index(name)] > 0).any()
    ]
    shown = lanes[:MAX_LANES]
    lane = 26
    height = TALL + lane * len(shown)
    axes = _Axes(
        (0.0, float(at[-1])),
        _bounds(slots.time_ns[good]),
        WIDE,
        TALL,
        LEFT_MARGIN,
        40,
    )
    parts = axes.drawn(lambda s: f"{s:g} s", _time, 5, 4)
    rows = np.flatnonzero(good)
    rows = rows[_few(len(rows))]
    still = delivered[rows].sum(1) == 0
    for kind, some in (("still", rows[still]), ("dot", rows[~still])):
        path = "".join(
            f"M{axes.at_x(at[k]) - 1.2:.1f} {axes.at_y(slots.time_ns[k]) - 1.2:.1f}"
            "h2.4v2.4h-2.4z"
            for k in some
        )
        parts.append(f"<path class='{kind}' opacity='.6' d='{path}'/>")
    for k, name in enumerate(shown):
        on = delivered[:, record.functions.index(name)] > 0
        y = TALL + lane * k + 6
        parts.append(
            f"<text x='{LEFT_MARGIN - 6}' y='{y + 13}' text-anchor='end'>{k + 1}</text>"
            f"<path class='dot' d='{_ticks(axes, at[on], y, lane - 10)}'/>"
        )
    items = "".join(f"<li><code>{escape(short(name))}</code></li>" for name in shown)
    more = (
        f"<p class='soft'>Not drawn: {len(lanes) - len(shown)} more functions.</p>"
        if len(lanes) > len(shown)
        else ""
    )
    return (
        "<h2>Slots over time</h2><p class='soft'>Each point is the time of a slot: grey "
        "ones undelayed, the others delayed. Below, for each function, when it was "
        "delayed.</p><figure>"
        + _svg(
            parts, WIDE, height, "Slot times, and which function was delayed when", "wide"
        )
        + f"<figcaption><ol class='lanes'>{items}</ol>{more}</figcaption></figure>"
    )


def _ticks(axes: _Axes, times: Any, y: float, height: float) -> str:
    """A path with a box for each stretch of time; what falls together is one."""
    columns = np.unique([round(axes.at_x(float(t))) for t in times])
    cuts = np.flatnonzero(np.diff(columns) > 1) + 1
    return "".join(
        f"M{part[0]} {y}h{part[-1] - part[0] + 1}v{height}H{part[0]}z"
        for part in np.split(columns, cuts)
        if len(part)
    )


# ------------------------------------------------------------- the bill, the noise


def _bill(verdict: Verdict) -> str:
    if not verdict.bills:
        return ""
    rows = []
    for bill in verdict.bills:
        word = (
            "used up slack" if bill.alarm else "late effects" if bill.late else "adds up"
        )
        rows.append(
            "<tr role='row'><th role='rowheader' scope='row'>delays of "
            f"{bill.dose:.2g} of a slot{', apart' if bill.apart else ''}</th>"
            f"<td role='cell' data-head='delivered, of a slot'>{bill.delays:.3f}</td>"
            "<td role='cell' data-head='beyond the sum of effects'>"
            f"{_signed(bill.cost)}</td>"
            f"<td role='cell' data-head='verdict' class='left'>{word}</td></tr>"
        )
    words = [bill_text(bill, verdict.slot_ns) for bill in verdict.bills]
    notes = "".join(
        f"<p>{escape(text[0].upper() + text[1:])}.</p>" for text in words if text
    )
    return (
        "<h2>The bill</h2><p class='soft'>What all delays cost together must be the sum "
        "of the effects above. If it is less, delays used up slack and moved the "
        "bottleneck, and the numbers can't be trusted.</p>"
        "<table role='table' class='cards'><thead role='rowgroup'><tr role='row'>"
        "<th role='columnheader' scope='col' class='left'>dose</th>"
        "<th role='columnheader' scope='col'>delivered, of a slot</th>"
        "<th role='columnheader' scope='col'>beyond the sum of effects</th>"
        "<th role='columnheader' scope='col' class='left'>verdict</th></tr></thead>"
        f"<tbody role='rowgroup'>{''.join(rows)}</tbody></table>{notes}"
    )


def _signed(interval: Interval) -> str:
    return f"{interval.value:+.3f} ± {interval.half:.3f}"


def _noise(record: Record, verdict: Verdict, found: Effects | None) -> str:
    if found is None or len(found.fit.rows) < NUMBERS:
        return ""
    fit = found.fit
    rows = fit.rows + (len(record.slots) - len(found.table.y))
    at = _seconds_of(record)[rows]
    rest = 100 * fit.residuals * fit.scale
    part = _few(len(rest))
    axes = _Axes((0.0, float(at[-1])), _bounds(rest), WIDE, TALL, LEFT_MARGIN, 40)
    parts = axes.drawn(lambda s: f"{s:g} s", _part, 5, 4)
    path = "".join(
        f"M{axes.at_x(t) - 1.2:.1f} {axes.at_y(v) - 1.2:.1f}h2.4v2.4h-2.4z"
        for t, v in zip(at[part], rest[part], strict=True)
    )
    parts.append(f"<path class='still' opacity='.6' d='{path}'/>")
    for sign in (1, -1):
        line = " ".join(
            f"{axes.at_x(t):.1f},{axes.at_y(sign * 100 * v):.1f}"
            for t, v in zip(at[part], fit.scale[part], strict=True)
        )
        parts.append(f"<polyline class='curve' points='{line}'/>")
    known = verdict.diagnostics
    text = "The times of slots without the effects of delays, calls and slow changes."
    if known is not None:
        white = (
            "the rest has no pattern"
            if known.whiteness > 0.01
            else "the rest still has a pattern"
        )
        parts_of = ", ".join(f"{part:.2f}" for part in known.phi)
        text += (
            f" Noise: {100 * known.noise:.2g}% of a slot (the lines). Each slot follows "
            f"those before it by {parts_of or '0'}; {white} (Ljung-Box, p = "
            f"{known.whiteness:.2g})."
        )
    if verdict.sham is not None:
        text += (
            f" The sham, which delays nothing, costs {number(verdict.sham)} of a delay."
        )
    return (
        f"<h2>Noise</h2><p class='soft'>{escape(text)}</p><figure>"
        + _svg(parts, WIDE, TALL, "Residuals over time", "wide")
        + "</figure>"
    )


# ------------------------------------------------------------------- what was done


def _done(record: Record, verdict: Verdict) -> str:
    slots = record.slots
    stages: dict[str, list[tuple[int, Block]]] = {}
    for k, block in enumerate(record.blocks):
        stages.setdefault(block.stage, []).append((k, block))
    rows = []
    for stage, blocks in stages.items():
        inside = np.isin(slots.block, [k for k, _ in blocks])
        doses = sorted({dose for _, b in blocks for dose in b.doses if b.arms})
        arms = max(len(b.arms) for _, b in blocks)
        values = [
            ("blocks", f"{len(blocks)}"),
            ("slots", f"{int(inside.sum()):,}"),
            ("time", f"{float(np.nansum(slots.time_ns[inside])) / 1e9:.1f} s"),
            ("arms", f"{arms or '-'}"),
            ("doses", ", ".join(f"{dose:.2g}" for dose in doses) or "-"),
        ]
        tds = "".join(
            f"<td role='cell' data-head='{head}'>{escape(value)}</td>"
            for head, value in values
        )
        rows.append(
            f"<tr role='row'><th role='rowheader' scope='row'>{escape(stage)}</th>"
            f"{tds}</tr>"
        )
    heads = "".join(
        f"<th role='columnheader' scope='col'>{head}</th>"
        for head in ("blocks", "slots", "time", "arms", "doses")
    )
    facts = [
        ("seed", record.header.get("seed")),
        ("version", record.header.get("version")),
        ("runs", record.end.get("runs")),
        ("budget", _budget(record)),
        ("CPU time that the program got of what it wanted", _share(verdict.cpu_share)),
        ("delay delivered of what was asked", _share(verdict.delivered_share)),
        *(record.header.get("environment") or {}).items(),
    ]
    items = "".join(
        f"<tr role='row'><th role='rowheader' scope='row'>{escape(str(key))}</th>"
        f"<td role='cell' class='left'>{escape(_plain(value))}</td></tr>"
        for key, value in facts
        if value is not None
    )
    return (
        "<h2>What was done</h2><p class='soft'>Doses are in parts of the undelayed slot. "
        "An arm is a function, a group of functions, or the sham; it is drawn at random "
        "which one is delayed in a slot.</p>"
        "<table role='table' class='cards'><thead role='rowgroup'><tr role='row'>"
        f"<th role='columnheader' scope='col' class='left'>stage</th>{heads}</tr></thead>"
        f"<tbody role='rowgroup'>{''.join(rows)}</tbody></table>"
        "<h2>Where</h2><table role='table' class='cards'><tbody role='rowgroup'>"
        f"{items}</tbody></table>"
    )


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_plain(part) for part in value)
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _budget(record: Record) -> str | None:
    known = record.header.get("budget_s")
    return f"{known:g} s" if known is not None else None


def _share(value: float) -> str | None:
    return f"{100 * value:.0f}%" if math.isfinite(value) else None
