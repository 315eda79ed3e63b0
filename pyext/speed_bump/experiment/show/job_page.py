# SPDX-License-Identifier: MIT
"""The report of a job of many ranks as one page, without network and scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from speed_bump.duration import human
from speed_bump.experiment.cluster.groups import Group
from speed_bump.experiment.cluster.join import Effect, Job
from speed_bump.experiment.cluster.places import Place, Places, merged
from speed_bump.experiment.fit.interval import Interval, label_of
from speed_bump.experiment.job_ranks import told
from speed_bump.experiment.show import job as table
from speed_bump.experiment.show import ranks, wording
from speed_bump.experiment.show.html import STYLE, span

MAX_PLACES = 16
MAX_FUNCTIONS = 5
# Of the picture of waits, in its own units.
WIDE, ROW, BAR = 720, 62, 18
MAX_NAME = 26


def page(job: Job) -> str:
    first = (
        f"{told(job.ranks.who)}; {int(job.good.sum()):,} steps that all have; a step "
        f"takes {human(job.step_ns)} undelayed; seed {job.seed}"
    )
    lead = ranks.waiting(job.places) if job.places else ranks.NO_WAITS
    problems = "".join(f"<li>{escape(line)}</li>" for line in job.problems)
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        "<title>speed-bump: a job of many ranks</title>",
        "<link rel='icon' href='data:,'>",
        f"<style>{STYLE}</style></head><body><main>",
        "<h1>Which functions matter, and on which ranks</h1>",
        f"<p class='soft'>{escape(first)}</p>",
        f"<p class='lead'>{escape(_sentence(lead))}</p>",
        *(f"<p>{escape(_sentence(line))}</p>" for line in table.expectation(job)),
        f"<ul>{problems}</ul>" if problems else "",
        _functions(job),
        _confirmed(job),
        _waiting(job.places) if job.places else "",
        _places(job, job.places) if job.places else "",
        "</main></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _colour(interval: Interval | None) -> str:
    return f"var(--{label_of(interval)})" if interval else "var(--hidden)"


def _number(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    return f"{escape(wording.number(interval))} {span(interval, _colour(interval))}"


def _table(heads: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells in HTML; the first cell of a row names it. A head says whether its
    column is aligned to the left.
    """

    def left(is_left: bool) -> str:
        return " class='left'" if is_left else ""

    tops = "".join(
        f"<th role='columnheader' scope='col'{left(is_left)}><code>{escape(head)}</code>"
        "</th>"
        for head, is_left in heads
    )
    lines = []
    for name, *others in rows:
        cells = "".join(
            f"<td role='cell' data-head='{escape(head, quote=True)}'{left(is_left)}>"
            f"{cell}</td>"
            for (head, is_left), cell in zip(heads[1:], others, strict=True)
        )
        lines.append(
            f"<tr role='row'><th role='rowheader' scope='row'>{name}</th>{cells}</tr>"
        )
    return (
        "<table role='table' class='cards'><thead role='rowgroup'>"
        f"<tr role='row'>{tops}</tr></thead><tbody role='rowgroup'>{''.join(lines)}"
        "</tbody></table>"
    )


def _functions(job: Job) -> str:
    def row(effect: Effect) -> list[str]:
        label = table.verdict(effect)
        return [
            f"<code>{escape(effect.name)}</code>",
            wording.count(effect.calls),
            human(effect.delay_ns),
            _number(effect.criticality),
            f"<span class='{label}'>{label}</span>",
            escape(table.where(job, effect)),
        ]

    heads = [(head, head in ("function", "verdict", "where")) for head, _ in table.HEADS]
    return (
        f"<h2>Functions</h2><p class='soft'>{escape(_capital(table.LEGEND))}</p>"
        + _table(heads, [row(effect) for effect in table.ordered(job)])
    )


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def _confirmed(job: Job) -> str:
    if not job.confirmed:
        return ""
    heads = [(h, h in ("function", "ranks")) for h, _ in table.CONFIRM_HEADS]
    rows = []
    for found in job.confirmed:
        name, group, *_ = table.confirmed_cells(found)
        expected = found.expected
        rows.append(
            [
                f"<code>{escape(name)}</code>",
                escape(group),
                _number(found.everywhere),
                _number(found.alone),
                "-" if expected is None else f"{expected.alone:.2f}",
                _number(found.without),
                "-" if expected is None else f"{expected.without:.2f}",
                _number(found.gain),
            ]
        )
    lines = "".join(f"<li>{escape(line)}</li>" for line in table.conclusions(job))
    return (
        "<h2>Confirmed</h2><p class='soft'>The part of a delay that arrives in the step: "
        "on all ranks, on these only, on all but these, with what waits and own work "
        "predict. Gain: of making a function faster on these ranks alone."
        "</p>" + _table(heads, rows) + (f"<ul>{lines}</ul>" if lines else "")
    )


def _name(place: Place, groups: Sequence[Group]) -> str:
    name = ranks.named(place.ranks, groups)
    return name if len(name) <= MAX_NAME else f"{len(place.ranks)} processes"


def _waiting(found: Places) -> str:
    """Bars of own work and of waits for other ranks, by rank."""
    few = merged(found, MAX_PLACES).places
    longest = max(
        (p.own_ns + p.wait_ns for p in few if math.isfinite(p.wait_ns)), default=0
    )
    if not longest > 0:
        return ""
    bars, items = [], []
    for k, place in enumerate(few):
        own = max(place.own_ns, 0.0) / longest * WIDE
        wait = max(place.wait_ns, 0.0) / longest * WIDE
        name = _name(place, found.groups)
        top = k * ROW
        own_text, wait_text = human(place.own_ns), human(place.wait_ns)
        is_short = name == ranks.named(place.ranks, found.groups)
        label = ranks.called(place.ranks, found.groups) if is_short else name
        bars.append(
            f"<text x='0' y='{top + 24}'>{escape(label)}: {own_text}, waits {wait_text}"
            f"</text><rect class='dot' x='0' y='{top + 32}' width='{own:.1f}' "
            f"height='{BAR}'/><rect class='slack' x='{own:.1f}' y='{top + 32}' "
            f"width='{wait:.1f}' height='{BAR}'/>"
        )
        items.append(f"{label} works {own_text} and waits {wait_text}")
    height = ROW * len(few)
    label = escape("; ".join(items), quote=True)
    return (
        "<h2>Which rank waits for which</h2><p class='soft'>In a step: the rank's own "
        "work and, paler, how long it waits for others. The others wait for the one that "
        "waits least.</p><figure class='wide'>"
        f"<svg role='img' aria-label='{label}' viewBox='0 0 {WIDE} {height}'>"
        f"{''.join(bars)}</svg></figure>"
    )


def _places(job: Job, found: Places) -> str:
    """The table of functions by rank."""
    few = merged(found, MAX_PLACES)
    names = [effect.name for effect in table.ordered(job) if effect.name in few.functions]
    at = [few.functions.index(name) for name in names][:MAX_FUNCTIONS]
    heads = [("rank", True), ("last in", False)]
    heads += [(few.functions[k].rpartition(":")[2], False) for k in at]
    rows = [
        [
            escape(_name(place, found.groups)),
            f"{100 * place.last:.1f}%",
            *(_number(place.cells[k]) for k in at),
        ]
        for place in few.places
    ]
    return (
        "<h2>Function by rank</h2><p class='soft'>The part of a delay that arrives "
        "in the own work of the rank. Last in: the part of the steps in which others "
        "waited for it.</p>" + _table(heads, rows)
    )
