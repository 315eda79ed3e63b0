# SPDX-License-Identifier: MIT
"""A live table of all that is slowed, with keys that switch it.

Uses textual, as memray's live mode does: it manages the terminal, and its own tests drive
an application without one.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.widgets import DataTable, Footer, Header, Static

from speed_bump import duration
from speed_bump.command.ps import state_of
from speed_bump.overview import Key, Looker, Overview, Slowed, printable, rates

COLUMNS = ("PID", "STATE", "DELAY", "CALLS/S", "SHARE", "CALLS", "DELIVERED", "TARGET")
# The keys of the orders: the target, its calls a second, its share.
ORDERS = ("SHARE", "CALLS/S", "TARGET")
MAX_DELAY_NS = 10_000_000_000


class Switchboard(App[None]):
    """The application.

    Args:
        looker: takes the snapshots
        pids: show only these processes; None: all
        seconds: between two snapshots
    """

    TITLE = "speed-bump"
    BINDINGS: ClassVar[list[Any]] = [
        ("space", "switch", "On/off"),
        ("plus,equals_sign", "longer", "Delay x2"),
        ("minus", "shorter", "Delay /2"),
        ("s", "sort", "Sort"),
        ("q", "quit", "Quit"),
    ]

    def __init__(self, looker: Looker, pids: set[int] | None, seconds: float) -> None:
        super().__init__()
        self._looker = looker
        self._pids = pids
        self._seconds = seconds
        self._order = 0
        self._now: Overview | None = None
        self._shown: list[Slowed] = []
        # The base of the rates, and its time.
        self._before: Overview | None = None
        self._at = 0.0
        self._rates: dict[Key, tuple[float, float]] = {}
        # Why the last change was refused, and why the last snapshot failed.
        self._refused = ""
        self._unseen = ""

    def compose(self) -> ComposeResult:
        """A table between two bars, and a line for errors."""
        yield Header()
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Static("", id="message")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(DataTable).add_columns(*COLUMNS)
        self.look()
        self.set_interval(self._seconds, self.look)

    def look(self) -> None:
        """Take a snapshot and show it; on failure keep the old table, with the reason."""
        self._unseen = ""
        try:
            self._now = self._looker.look()
        except OSError as error:
            self._unseen = error.strerror or str(error)
        else:
            self._count_rates(self._now)
            self._show()
        cut = self._now.cut if self._now else ""
        message = "; ".join(filter(None, (self._refused, self._unseen, cut)))
        self.query_one("#message", Static).update(Text(message))

    def _count_rates(self, now: Overview) -> None:
        """Keep the old rates for a while: over the milliseconds after a key they jump."""
        elapsed = time.monotonic() - self._at
        if self._before and elapsed < self._seconds / 2:
            return
        if self._before:
            self._rates = rates(self._before.targets, now.targets, elapsed)
        self._before, self._at = now, self._at + elapsed

    def _show(self) -> None:
        if not self._now:
            return
        table = self.query_one(DataTable)
        at = self._chosen()
        self._shown = [
            t
            for t in self._now.targets
            if not t.is_counted_only and (self._pids is None or t.pid in self._pids)
        ]
        self._shown.sort(key=self._rank)
        table.clear()
        for target in self._shown:
            table.add_row(*self._row(target))
        keys = [target.key for target in self._shown]
        if at and at.key in keys:
            table.move_cursor(row=keys.index(at.key))
        count = len({process.pid for process in self._now.processes})
        self.sub_title = (
            f"{len(self._shown)} targets, {count} processes, by {ORDERS[self._order]}"
        )

    def _rank(self, target: Slowed) -> tuple[float, bool, int, str]:
        calls, share = self._rates.get(target.key, (0.0, 0.0))
        first = (-share, -calls, 0.0)[self._order]
        return first, target.is_native, target.pid, target.name

    def _row(self, target: Slowed) -> list[Text]:
        calls, share = self._rates.get(target.key, (0.0, 0.0))
        cells = (
            str(target.pid or "all"),
            state_of(target),
            duration.human(target.delay_ns),
            f"{calls:,.0f}",
            f"{share:.1%}",
            f"{target.calls:,}",
            duration.human(target.delivered_ns),
        )
        style = "" if target.enabled else "dim"
        # A name is plain text, whatever brackets it contains.
        return [
            *(Text(cell, style=style, justify="right") for cell in cells),
            Text(printable(target.name), style=style),
        ]

    def _chosen(self) -> Slowed | None:
        row = self.query_one(DataTable).cursor_row
        return self._shown[row] if 0 <= row < len(self._shown) else None

    def _change(self, change: str, target: Slowed, *values: Any) -> None:
        assert self._now
        self._refused = ""
        try:
            getattr(self._now, change)([target], *values)
        except OSError as error:
            self._refused = error.strerror or str(error)
        self.look()

    def action_switch(self) -> None:
        """Switch the target under the cursor."""
        target = self._chosen()
        if target:
            self._change("set_enabled", target, not target.enabled)

    def action_longer(self) -> None:
        """Twice its delay."""
        target = self._chosen()
        if target:
            delay_ns = min(max(2 * target.delay_ns, 1000), MAX_DELAY_NS)
            self._change("set_delay", target, delay_ns)

    def action_shorter(self) -> None:
        """Half of its delay."""
        target = self._chosen()
        if target:
            self._change("set_delay", target, target.delay_ns // 2)

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._order = (self._order + 1) % len(ORDERS)
        self._show()
