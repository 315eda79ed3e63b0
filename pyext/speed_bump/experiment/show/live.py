# SPDX-License-Identifier: MIT
"""The progress of an experiment: a live table on a terminal, else plain lines."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from speed_bump.duration import human
from speed_bump.experiment.fit.interval import Interval
from speed_bump.experiment.fit.verdict import INCONCLUSIVE, Finding, Verdict, verdict
from speed_bump.experiment.record import Record
from speed_bump.experiment.show.wording import number, percent, ranked, squeezed
from speed_bump.experiment.symbols import short

if TYPE_CHECKING:
    from rich.table import Table

# Judging the state takes at most this part of the time, and is not more frequent.
MAX_COST = 0.03
LOOK_S = 2.0
LINES_S = 10.0
REFRESH_S = 0.25
# The bar's ends in criticality, and its columns.
BAR_LOW, BAR_HIGH = -0.2, 1.2
BAR_COLUMNS = 21
# Lines of the terminal that the table leaves free.
OTHER_LINES = 8
MIN_ROWS = 3
# Columns of the table beside names, and the shortest length of names.
OTHER_COLUMNS = 60
MIN_NAME = 14
OPEN = "open"
STYLES = {"matters": "bold green", "partly": "yellow", "hidden": "dim"}


def bar(interval: Interval | None, ascii_only: bool = False) -> str:
    """An interval between -0.2 and 1.2, with its middle and with marks at 0 and 1."""
    mark, line, middle = ("|", "-", "o") if ascii_only else ("┊", "━", "●")

    def at(value: float) -> int:
        part = (min(max(value, BAR_LOW), BAR_HIGH) - BAR_LOW) / (BAR_HIGH - BAR_LOW)
        return round(part * (BAR_COLUMNS - 1))

    cells = [" "] * BAR_COLUMNS
    cells[at(0.0)] = cells[at(1.0)] = mark
    if interval is not None:
        low, high = at(interval.low), at(interval.high)
        cells[low : high + 1] = line * (high - low + 1)
        cells[at(interval.value)] = middle
    return "".join(cells)


def label(finding: Finding) -> str:
    """The verdict so far; an inconclusive one is still open."""
    return OPEN if finding.verdict == INCONCLUSIVE else finding.verdict


def summary(found: Verdict) -> str:
    """How many functions are decided, by verdict."""
    counts = Counter(label(f) for f in found.findings)
    decided = len(found.findings) - counts[OPEN]
    parts = [f"{word}: {n}" for word, n in sorted(counts.items()) if word != OPEN]
    text = f"{decided} of {len(found.findings)} functions decided"
    return f"{text} ({', '.join(parts)})" if parts else text


def left_text(seconds: float) -> str:
    """The remaining time, in whole seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s left"
    if seconds < 120 * 60:
        return f"{seconds / 60:.0f} min left"
    return f"{seconds / 3600:.0f} h left"


def open_screen(stream: TextIO, drawn: Callable[[], Any]) -> Any:
    """A rich.live.Live of what ``drawn()`` returns; None: plain lines."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        from rich.console import Console
        from rich.live import Live as Screen
    except ImportError:
        return None
    screen = Screen(
        console=Console(file=stream),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        get_renderable=drawn,
    )
    screen.start()
    return screen


class Progress:
    """Lines on ``stream``, beside a screen if the stream is a terminal that has one."""

    _stream: TextIO
    _screen: Any = None

    def event(self, text: str) -> None:
        """Print a line that stays."""
        if self._screen:
            self._screen.console.print(
                f"speed-bump: {text}", markup=False, highlight=False, soft_wrap=True
            )
        else:
            self._write(f"speed-bump: {text}\n")

    def close(self) -> None:
        """Restore the terminal."""
        if self._screen:
            self._screen.stop()
            self._screen = None

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


class Live(Progress):
    """Shows the progress of an experiment on stderr (a ``watcher.Watcher``).

    A table that is updated, if stderr is a terminal and rich is installed; else a line
    every ten seconds. Nothing of the table stays after ``close()``.
    """

    def __init__(self, stream: TextIO | None = None, is_plain: bool = False) -> None:
        """To ``stream``; None is stderr. ``is_plain``: lines even on a terminal."""
        self._stream = stream or sys.stderr
        self._begin = time.monotonic()
        self._next_look = self._begin
        self._next_line = self._begin + LINES_S
        self._next_refresh = 0.0
        self._doing = ""
        self._found: Verdict | None = None
        self._left_s = 0.0
        self._left_at = self._begin
        self._slots = 0
        # None: latency is not measured.
        self._requests: int | None = None
        self._unit_ns = 0.0
        encoding = getattr(self._stream, "encoding", None) or "ascii"
        self._ascii = "utf" not in encoding.lower()
        self._screen: Any = None if is_plain else open_screen(self._stream, self._drawn)

    # ------------------------------------------------------------ what is told

    def now(self, text: str) -> None:
        """Set the current activity."""
        self._doing = text
        if self._screen:
            self._refresh(False)
        elif time.monotonic() >= self._next_line + (LINES_S if self._slots else 0.0):
            # The results so far say more, if they arrive in time.
            self._line(text)

    def known(self, record: Record, left_s: float) -> None:
        """Show the results so far, unless they were judged too recently."""
        now = time.monotonic()
        self._left_s, self._left_at = left_s, now
        self._slots, self._unit_ns = len(record.slots), record.unit_ns
        self._requests = None if record.requests is None else len(record.requests)
        is_due = now >= self._next_look and (self._screen or now >= self._next_line)
        if is_due:
            self._found = verdict(record, final=False)
            end = time.monotonic()
            self._next_look = end + max(LOOK_S, (end - now) / MAX_COST)
            self._doing = ""
        if self._screen:
            self._refresh(bool(is_due))
        elif is_due and self._found:
            self._line(self._known_text())

    # --------------------------------------------------------------- the lines

    def _known_text(self) -> str:
        assert self._found is not None
        if self._requests is not None:
            return f"{self._requests:,} requests, {self._slots:,} slots"
        text = f"{summary(self._found)}, {self._slots:,} slots"
        wide = [
            f
            for f in self._found.findings
            if label(f) == OPEN and f.criticality is not None
        ]
        if wide:
            worst = max(wide, key=lambda f: f.criticality.half if f.criticality else 0.0)
            text += f"; widest: {short(worst.name)} {number(worst.criticality)}"
        return text

    def _line(self, text: str) -> None:
        now = time.monotonic()
        self._next_line = now + LINES_S
        left = self._left()
        if left > 0:
            text += f"; {left_text(left)}"
        self._write(f"speed-bump: after {now - self._begin:.0f} s: {text}\n")

    def _left(self) -> float:
        return max(self._left_s - (time.monotonic() - self._left_at), 0.0)

    # -------------------------------------------------------------- the screen

    def _refresh(self, force: bool) -> None:
        now = time.monotonic()
        if force or now >= self._next_refresh:
            self._next_refresh = now + REFRESH_S
            with contextlib.suppress(OSError):
                self._screen.refresh()

    def _drawn(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        head = f"{self._slots:,} slots"
        if self._unit_ns:
            head += f", a unit takes {human(self._unit_ns)}"
        if self._left_s:
            head += f", {left_text(self._left())}"
        parts: list[Any] = []
        if self._found and self._found.findings:
            size = shutil.get_terminal_size()
            if self._screen:
                size = os.terminal_size(self._screen.console.size)
            rows = size.lines - OTHER_LINES
            parts.append(self._table(self._found, size.columns, rows))
            parts.append(Text(summary(self._found), no_wrap=True))
            parts += [
                Text(f"warning: {text}", style="yellow")
                for text in self._found.warnings[:2]
            ]
        if self._slots:
            parts.append(Text(head, no_wrap=True))
        if self._doing:
            parts.append(
                Text(self._doing, style="dim", no_wrap=True, overflow="ellipsis")
            )
        return Group(*parts)

    def _table(self, found: Verdict, width: int, lines: int) -> Table:
        from rich.table import Table
        from rich.text import Text

        findings = ranked(found.findings)
        shown = findings[: max(lines, MIN_ROWS)]
        names = max(width - OTHER_COLUMNS, MIN_NAME)
        scale = list(bar(None, self._ascii))
        scale[3], scale[-4] = "0", "1"
        table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
        table.add_column("function", no_wrap=True)
        table.add_column("criticality", justify="right", no_wrap=True)
        table.add_column("".join(scale), no_wrap=True)
        table.add_column("headroom", justify="right", no_wrap=True)
        table.add_column("verdict", no_wrap=True)
        for f in shown:
            style = STYLES.get(f.verdict, "")
            table.add_row(
                Text(squeezed(short(f.name), names)),
                Text(number(f.criticality)),
                Text(bar(f.criticality, self._ascii), style=style),
                Text(percent(f.headroom)),
                Text(label(f), style=style),
            )
        if len(shown) < len(findings):
            table.add_row(Text(f"... and {len(findings) - len(shown)} more", style="dim"))
        return table
