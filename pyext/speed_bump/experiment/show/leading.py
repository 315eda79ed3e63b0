# SPDX-License-Identifier: MIT
"""The leader of a run: its progress, and its results as text and JSON."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from speed_bump.experiment.cluster.join import Effect
from speed_bump.experiment.cluster.leader import Leader
from speed_bump.experiment.cluster.plan import ATTEMPT
from speed_bump.experiment.cluster.problems import MAX_LISTED
from speed_bump.experiment.show import job as show
from speed_bump.experiment.show import text
from speed_bump.experiment.show.encode import interval_json
from speed_bump.experiment.show.live import LINES_S, REFRESH_S, Progress, open_screen
from speed_bump.experiment.show.table import LEFT, RIGHT, table
from speed_bump.experiment.show.wording import number

# Functions and nodes that a table shows.
MAX_LINES = 12
FUNCTIONS = (("function", LEFT), ("all ranks", RIGHT), ("verdict", LEFT))
NODES = (("node", LEFT), ("step", RIGHT), ("heard", RIGHT), ("", LEFT))
OPEN = "open"


def _label(leader: Leader, effect: Effect) -> str:
    return show.verdict(effect) if effect.name in leader.decided else OPEN


def summary(leader: Leader) -> str:
    """Such as "2 of 5 functions decided, 1,204 steps, 4 nodes"."""
    count = len(leader.job.functions) if leader.job else 0
    nodes = len(leader.nodes)
    words = (
        f"{len(leader.decided)} of {count} functions decided, {leader.steps:,} steps, "
        f"{nodes} node{'s' * (nodes != 1)}"
    )
    if leader.missing:
        some = ", ".join(map(str, leader.missing[:MAX_LISTED]))
        more = len(leader.missing) - MAX_LISTED
        some += f" and {more} more" if more > 0 else ""
        words += f"; rank {some} has not joined, and nothing is decided without it"
    return words


def progress(leader: Leader) -> str:
    """What is known now, as tables."""
    now = time.monotonic()
    parts = []
    if leader.job is not None:
        effects = show.ordered(leader.job)
        rows = [
            [effect.name, number(effect.criticality), _label(leader, effect)]
            for effect in effects[:MAX_LINES]
        ]
        parts.append(table(FUNCTIONS, rows))
        if len(effects) > MAX_LINES:
            parts.append(f"... and {len(effects) - MAX_LINES} more")
        parts.append("")
    nodes = [
        [
            node.host,
            f"{node.step % ATTEMPT:,}",
            f"{max(now - node.heard_s, 0):.0f} s ago" if node.heard_s else "-",
            "refused" if node.refused
            else "done" if node.is_over
            else "not heard" if leader.is_late(node, now)
            else "",
        ]
        for node in list(leader.nodes.values())[:MAX_LINES]
    ]  # fmt: skip
    if nodes:
        parts.append(table(NODES, nodes))
    if len(leader.nodes) > MAX_LINES:
        parts.append(f"... and {len(leader.nodes) - MAX_LINES} more nodes")
    parts += ["", summary(leader) if leader.nodes else "no node has come yet"]
    return "\n".join(parts).strip()


class Board(Progress):
    """Shows the progress on stderr: tables on a terminal, else a line at times."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """To ``stream``; None is stderr."""
        self._stream = stream or sys.stderr
        self._text = ""
        self._begin = time.monotonic()
        self._next = self._begin
        self._screen = open_screen(self._stream, self._drawn)

    def show(self, leader: Leader) -> None:
        """Show where the run is, unless that was a moment ago."""
        while leader.news:
            self.event(leader.news.pop(0))
        now = time.monotonic()
        if now < self._next:
            return
        if self._screen:
            self._next = now + REFRESH_S
            self._text = progress(leader)
            self._screen.refresh()
        else:
            self._next = now + LINES_S
            if leader.nodes:
                self.event(f"after {now - self._begin:.0f} s: {summary(leader)}")

    def _drawn(self) -> Any:
        from rich.text import Text

        return Text(self._text, no_wrap=True)


def conclusion(leader: Leader, ended: str) -> str:
    """Why it ended, and what is decided."""
    decided = ", ".join(
        f"{effect.name} {show.verdict(effect)}" for effect in leader.decided.values()
    )
    words = {
        "decided": f"decided after {leader.steps:,} steps, and the delays have ended",
        "over": f"the run was over after {leader.steps:,} steps",
        "interrupted": f"interrupted after {leader.steps:,} steps; the delays have ended",
    }[ended]
    open_ = leader.not_decided
    words += f"; decided: {decided}" if decided and open_ else ""
    words += f"; not decided: {', '.join(open_)}" if open_ else ""
    return words


def as_text(leader: Leader, ended: str) -> str:
    """The report of the run, and the conclusion."""
    assert leader.job is not None
    width = text.columns() or text.PROSE
    words = text.wrapped(conclusion(leader, ended), width)
    return f"{show.as_text(leader.job)}\n\n{words}"


def as_json(leader: Leader, ended: str) -> dict[str, Any]:
    """The report of the run, with "live"."""
    assert leader.job is not None
    return {
        **show.as_json(leader.job),
        "live": {
            "ended": ended,
            "steps": leader.steps,
            "decided": [
                {
                    "target": effect.name,
                    "verdict": show.verdict(effect),
                    "criticality": interval_json(effect.criticality),
                }
                for effect in leader.decided.values()
            ],
            "not_decided": leader.not_decided,
            "epochs": [
                {
                    "number": one.number,
                    "first_step": one.first,
                    "targets": list(one.functions),
                    "seed": one.seed,
                    "block": one.block,
                    "dose": one.dose,
                    "delay_ns": one.delay_ns,
                }
                for one in leader.epochs
            ],
            "nodes": [
                {"host": node.host, "step": node.step % ATTEMPT, "refused": node.refused}
                for node in leader.nodes.values()
            ],
        },
    }
