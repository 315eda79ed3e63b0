# SPDX-License-Identifier: MIT
"""The flame graph of a unit: width is the time spent, colour is whether it matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import escape

from speed_bump.duration import human
from speed_bump.experiment.account import (
    CPU_WAIT,
    NATIVE,
    PYTHON,
    WAIT,
    C,
    Frame,
    Looks,
    asked_name,
    shown,
)
from speed_bump.experiment.fit.verdict import (
    HIDDEN,
    INCONCLUSIVE,
    MATTERS,
    PARTLY,
    Finding,
    Verdict,
)
from speed_bump.experiment.record import Record
from speed_bump.experiment.show import wording
from speed_bump.experiment.show.text import command_of, unit_ns
from speed_bump.experiment.symbols import short

# Narrower frames are not drawn.
MIN_SHARE = 0.002
# A narrower frame has no room for a letter.
MIN_LABEL = 0.035
ROW = 24
NOT_ASKED = "unasked"
MEANING = {
    MATTERS: "matters: all or most of a delay arrives",
    PARTLY: "partly: a part of it arrives",
    HIDDEN: "hidden: something else is always later",
    INCONCLUSIVE: "not known: measured, without an answer",
    NOT_ASKED: "not known: not asked",
}
NATIVE_CODE = Frame(C, NATIVE)
# The functions with which Python starts a program.
STARTING = ("runpy:", "importlib._bootstrap:")

STYLE = """
:root { --on-matters: #b9d4f6; --on-partly: #f2d99b; --on-hidden: #d9dee5;
  --on-inconclusive: #e2cdf6; --on-unasked: #ffffff; --stripe: rgb(0 0 0 / .09); }
@media (prefers-color-scheme: dark) { :root { --on-matters: #1c4a80;
  --on-partly: #664808; --on-hidden: #39424f; --on-inconclusive: #50307a;
  --on-unasked: #14181e; --stripe: rgb(255 255 255 / .1); } }
"""
PAGE_STYLE = (
    STYLE
    + """
.flame { position: relative; border: 1px solid var(--line); margin: .6rem 0; }
.flame a { position: absolute; height: 23px; padding: 0; overflow: hidden;
  color: var(--ink); background-color: var(--on-unasked); text-decoration: none;
  font: 13px/22px ui-monospace, monospace; word-break: break-all; text-indent: 2px;
  border: solid var(--line); border-width: 0 1px 1px 0; }
.flame a.matters { background-color: var(--on-matters); font-weight: 400; }
.flame a.partly { background-color: var(--on-partly); }
.flame a.hidden { background-color: var(--on-hidden); }
.flame a.inconclusive { background-color: var(--on-inconclusive); }
.flame a.asleep, .key .asleep { background-image: repeating-linear-gradient(135deg,
  var(--stripe) 0 4px, transparent 4px 8px); }
.flame a.matters, .flame a.partly, .flame a.hidden, .flame a.inconclusive,
  .flame a.unasked { color: var(--ink); }
.flame a:hover { text-decoration: underline; }
.flame a:focus-visible { outline: 3px solid var(--ink); outline-offset: -3px;
  z-index: 1; }
a[href="#behind-flame"] { color: var(--soft); }
.key { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem;
  font-size: .9rem; margin: .4rem 0; }
.key i { display: inline-block; width: 1.1em; height: 1.1em; vertical-align: -.2em;
  border: 1px solid var(--line); margin-right: .4em; }
.key i.matters { background-color: var(--on-matters); }
.key i.partly { background-color: var(--on-partly); }
.key i.hidden { background-color: var(--on-hidden); }
.key i.inconclusive { background-color: var(--on-inconclusive); }
.key i.unasked { background-color: var(--on-unasked); }
.detail { display: none; background: var(--card); border-radius: 6px; padding: .8rem;
  margin: .6rem 0; scroll-margin-top: 40vh; }
.detail:target { display: block; }
.detail figure { max-width: 460px; }
"""
)


@dataclass
class Node:
    """A frame below others: ``looks`` samples found a thread in it or in a callee."""

    frame: Frame
    owner: str = ""
    looks: float = 0.0
    below: dict[Frame, Node] = field(default_factory=dict)

    @property
    def asleep(self) -> bool:
        """Whether nothing is computed in it, or in its callees."""
        if self.frame.kind == WAIT:
            return True
        inside = sum(node.looks for node in self.below.values())
        return inside > 0.98 * self.looks and all(n.asleep for n in self.below.values())


@dataclass
class Flame:
    """The unit of a record, and what is known of functions.

    ``unit_ns`` is the time of a unit, 0 if unknown.
    """

    root: Node
    findings: dict[str, Finding]
    unit_ns: float

    def verdict(self, node: Node) -> str:
        """The verdict of the function whose own time it is part of; "unasked" if none."""
        finding = self.findings.get(node.owner)
        return finding.verdict if finding else NOT_ASKED

    def share(self, looks: float) -> float:
        """The part of the unit's time."""
        return looks / self.root.looks

    def time(self, looks: float) -> str:
        """The part in percent, and the time in a unit."""
        share = self.share(looks)
        text = f"{100 * share:.1f}% of the time"
        return f"{text}, {human(share * self.unit_ns)} a unit" if self.unit_ns else text


def flame(record: Record, verdict: Verdict) -> Flame | None:
    """The tree of a record; None if no stacks were sampled."""
    looks = record.looks
    if looks is None:
        return None
    findings = {f.name: f for f in verdict.findings}
    root = Node(Frame(PYTHON, "a unit of work"))
    for frames, n in stacks_of_unit(looks):
        node = root
        node.looks += n
        owner = ""
        for frame in frames:
            owner = asked_name(frame, findings) or owner
            node = node.below.setdefault(frame, Node(frame, owner))
            node.looks += n
    if not root.looks:
        return None
    return Flame(root, findings, unit_ns(record, verdict))


def stacks_of_unit(looks: Looks) -> Iterator[tuple[list[Frame], float]]:
    """The stacks of threads that report units, from the outermost frame."""
    for (at, row), n in looks.stacks.items():
        if looks.threads[at].reports:
            yield trimmed([looks.frames[f] for f in row]), n


def trimmed(frames: list[Frame]) -> list[Frame]:
    """Without the frames that start the program."""
    first = 0
    while first < len(frames) - 1 and frames[first].name.startswith(STARTING):
        first += 1
    return frames[first:] if frames else [NATIVE_CODE]


@dataclass(frozen=True)
class Box:
    """The position of a node: parts of the width, and its row."""

    node: Node
    left: float
    width: float
    row: int


def boxes(found: Flame) -> list[Box]:
    """All frames that are wide enough, outermost first; of one row from left to right."""
    drawn: list[Box] = []

    def place(node: Node, left: float, row: int) -> None:
        width = found.share(node.looks)
        if width < MIN_SHARE:
            return
        drawn.append(Box(node, left, width, row))
        for child in sorted(node.below.values(), key=lambda n: (-n.looks, n.frame.name)):
            place(child, left, row + 1)
            left += found.share(child.looks)

    place(found.root, 0.0, 0)
    return drawn


def label(frame: Frame) -> str:
    """The displayed name of a frame."""
    if frame.kind == WAIT:
        return f"{'waits for' if frame.name == CPU_WAIT else 'asleep:'} {frame.name}"
    return NATIVE if frame == NATIVE_CODE else short(shown(frame))


def inscription(frame: Frame) -> str:
    """The text in a frame: as much of the end of its name as fits."""
    module, _, name = frame.name.rpartition(":")
    if frame.kind != PYTHON or name == "<module>" or not module:
        return label(frame)
    return name


def says(found: Flame, node: Node) -> str:
    """A frame in words: its name, its time, and whether that matters."""
    verdict = found.verdict(node)
    text = f"{label(node.frame)}: {found.time(node.looks)}"
    if verdict == NOT_ASKED:
        return f"{text}; not known whether it matters: not measured"
    finding = found.findings[node.owner]
    interval = wording.number(finding.criticality)
    known = verdict if verdict != INCONCLUSIVE else "not known whether it matters"
    own = asked_name(node.frame, found.findings) == node.owner
    of = "" if own else f" as part of {short(node.owner)}"
    return f"{text}; {known}{of}" + (f", {interval}" if interval != "-" else "")


# ------------------------------------------------------------------------ the page


def _keys(drawn: list[Box]) -> dict[Frame, str]:
    """Ids of frames, one for all places of a function."""
    keys: dict[Frame, str] = {}
    for box in drawn:
        keys.setdefault(box.node.frame, f"frame-{len(keys)}")
    return keys


def section(found: Flame, response: Callable[[str], str]) -> str:
    """The flame graph in the page.

    Args:
        response: the figure of a function; "" for none
    """
    drawn = boxes(found)
    keys = _keys(drawn)
    links = []
    for box in drawn:
        node = box.node
        kind = found.verdict(node) + (" asleep" if node.asleep else "")
        text = escape(says(found, node), quote=True)
        inside = escape(inscription(node.frame)) if box.width >= MIN_LABEL else ""
        links.append(
            f"<a href='#{keys[node.frame]}' class='{kind}' style='left:{_pct(box.left)};"
            f"width:{_pct(box.width)};top:{ROW * box.row}px' title='{text}' "
            f"aria-label='{text}'>{inside}</a>"
        )
    rows = 1 + max(box.row for box in drawn)
    kinds = {found.verdict(box.node) for box in drawn}
    key = "".join(
        f"<li><i class='{kind}'></i>{escape(meaning)}</li>"
        for kind, meaning in MEANING.items()
        if kind in kinds
    )
    if any(box.node.asleep for box in drawn):
        key += "<li><i class='asleep'></i>striped: asleep</li>"
    return (
        "<h2>Where a unit's time goes</h2><p class='soft'>Width is the time spent; what "
        "a function calls is below it. Colour is whether that time matters. Follow a "
        "frame (click, or Tab and Enter) for its interval and response.</p>"
        f"<ul class='key'>{key}</ul><p class='soft'><a href='#behind-flame'>Skip the "
        "picture</a></p>"
        "<div class='flame' role='group' aria-label='Flame graph of a unit of work' "
        f"style='height:{ROW * rows}px'>{''.join(links)}</div>"
        + "".join(
            _detail(found, frame, name, response(asked_name(frame, found.findings)))
            for frame, name in keys.items()
        )
        + "<div id='behind-flame'></div>"
    )


def _pct(part: float) -> str:
    return f"{100 * part:.3f}%"


def _occurrences(root: Node, frame: Frame) -> Iterator[Node]:
    """The outermost nodes of a frame, which may call itself."""
    if root.frame == frame:
        yield root
        return
    for node in root.below.values():
        yield from _occurrences(node, frame)


def facts(found: Flame, frame: Frame) -> list[str]:
    """The details of one function, from all of its places in a unit."""
    nodes = list(_occurrences(found.root, frame))
    looks = sum(node.looks for node in nodes)
    lines = [f"{found.time(looks)}, with what it calls"]
    if frame.kind == PYTHON and frame.file:
        lines.append(f"{frame.file}, line {frame.line}")
    owners = sorted({node.owner for node in nodes if node.owner})
    name = asked_name(frame, found.findings)
    if name:
        lines += _known(found.findings[name])
    elif owners:
        for owner in owners:
            finding = found.findings[owner]
            lines.append(
                f"measured as part of {short(owner)}: {finding.verdict}, "
                f"criticality {wording.number(finding.criticality)}"
            )
    elif nodes and nodes[0] is not found.root:
        lines.append("not known whether it matters: it was not measured; name it with -t")
    return lines


def _known(finding: Finding) -> list[str]:
    lines = [
        f"{finding.verdict}: criticality {wording.number(finding.criticality)}, with its "
        "95% interval"
    ]
    if finding.headroom is not None:
        lines.append(
            "making it faster gains at most "
            f"{wording.percent_between(finding.headroom)} of the time"
        )
    if finding.reason:
        lines.append(finding.reason)
    if finding.help:
        lines.append(f"what helps: {finding.help}")
    return lines


def _detail(found: Flame, frame: Frame, name: str, figure: str) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in facts(found, frame))
    return (
        f"<section class='detail' id='{name}' tabindex='-1'><h3><code>"
        f"{escape(label(frame))}</code></h3><ul>{items}</ul>{figure}</section>"
    )


# ------------------------------------------------------------------------- the SVG

WIDE = 1200
LETTER = 7.3
MARGIN = 12
SVG_STYLE = (
    STYLE
    + """
svg { color-scheme: light dark; --ink: #1c2430; --paper: #ffffff; --line: #aab2bd; }
@media (prefers-color-scheme: dark) { svg { --ink: #e4e8ee; --paper: #14181e;
  --line: #4a5463; } }
.paper { fill: var(--paper); } text { fill: var(--ink); font: 12px monospace; }
text.title { font: bold 16px sans-serif; } text.soft { font: 13px sans-serif; }
a { cursor: pointer; } a rect { stroke: var(--line); fill: var(--on-unasked); }
rect.matters { fill: var(--on-matters); } rect.partly { fill: var(--on-partly); }
rect.hidden { fill: var(--on-hidden); } rect.unasked { fill: var(--on-unasked); }
rect.inconclusive { fill: var(--on-inconclusive); } rect.key { stroke: var(--line); }
a rect.asleep { fill: url(#asleep); pointer-events: none; stroke: none; }
#asleep path { stroke: var(--stripe); stroke-width: 4; }
a:hover text { text-decoration: underline; }
a:focus rect, a:focus-visible rect { stroke: var(--ink); stroke-width: 3; }
.detail { display: none; } .detail:target { display: inline; }
"""
)


def svg(record: Record, verdict: Verdict, found: Flame) -> str:
    """The picture alone; a click on a frame shows its details below."""
    drawn = boxes(found)
    keys = _keys(drawn)
    inner = WIDE - 2 * MARGIN
    top = 92
    foot = top + ROW * (1 + max(box.row for box in drawn)) + 24
    notes = {frame: facts(found, frame) for frame in keys}
    height = foot + 18 * (2 + max(len(lines) for lines in notes.values()))
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDE} {height}' "
        f"width='100%' style='max-width:{WIDE}px'><title>speed-bump: "
        f"{escape(command_of(record))}</title><style>{SVG_STYLE}</style>"
        "<defs><pattern id='asleep' width='8' height='8' patternUnits='userSpaceOnUse' "
        "patternTransform='rotate(45)'><path d='M0 0V8'/></pattern></defs>"
        f"<rect class='paper' width='{WIDE}' height='{height}'/>",
        f"<text class='title' x='{MARGIN}' y='26'>Where a unit's time goes, and whether "
        "it matters</text>",
        f"<text class='soft' x='{MARGIN}' y='48'>"
        f"{escape(_cut(command_of(record), 160))}</text>",
    ]
    x = float(MARGIN)
    kinds = {found.verdict(box.node) for box in drawn}
    for kind, meaning in MEANING.items():
        if kind in kinds:
            said = meaning.partition(": ")[0]
            said = f"{said} (not asked)" if kind == NOT_ASKED else said
            parts.append(
                f"<rect class='key {kind}' x='{x:.0f}' y='62' width='14' height='14'/>"
                f"<text class='soft' x='{x + 20:.0f}' y='74'>{said}</text>"
            )
            x += 46 + 7.5 * len(said)
    parts.append(f"<text class='soft' x='{x:.0f}' y='74'>striped: asleep</text>")
    for box in drawn:
        node = box.node
        left, width = MARGIN + inner * box.left, inner * box.width
        y = top + ROW * box.row
        shape = f"x='{left:.2f}' y='{y}' width='{width:.2f}' height='{ROW - 1}'"
        letters = int((width - 6) / LETTER)
        inside = _cut(inscription(node.frame), letters) if letters >= 3 else ""
        parts.append(
            f"<a href='#{keys[node.frame]}'><title>{escape(says(found, node))}</title>"
            f"<rect class='{found.verdict(node)}' {shape}/>"
            + (f"<rect class='asleep' {shape}/>" if node.asleep else "")
            + (
                f"<text x='{left + 4:.2f}' y='{y + 16}'>{escape(inside)}</text>"
                if inside
                else ""
            )
            + "</a>"
        )
    for frame, name in keys.items():
        lines = [label(frame), *notes[frame]]
        spans = "".join(
            f"<tspan x='{MARGIN}' y='{foot + 18 * k}'>{escape(_cut(line, 160))}</tspan>"
            for k, line in enumerate(lines)
        )
        parts.append(f"<text class='detail' id='{name}'>{spans}</text>")
    return "".join([*parts, "</svg>\n"])


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
