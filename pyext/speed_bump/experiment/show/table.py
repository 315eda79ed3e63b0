# SPDX-License-Identifier: MIT
"""Tables and messages of runs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from speed_bump.config import Target
from speed_bump.duration import human
from speed_bump.experiment.fit.interval import Interval
from speed_bump.experiment.program.runner import Result

LEFT, RIGHT = "<", ">"


def table(heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> str:
    """Rows under their heads, each head with LEFT or RIGHT."""
    widths = [
        max(len(row[i]) for row in [[h for h, _ in heads], *rows])
        for i in range(len(heads))
    ]
    lines = [[head for head, _ in heads], *rows]
    return "\n".join(
        "  ".join(
            f"{cell:{side}{width}}"
            for cell, width, (_, side) in zip(line, widths, heads, strict=True)
        ).rstrip()
        for line in lines
    )


# If some targets do not spin.
SLEPT = "delivered is CPU time, or wall time with mode=sleep or wait"


def run_table(result: Result, targets: Sequence[Target]) -> str:
    """The statistics of one run, a line for each function that was called."""
    heads = [
        ("calls", RIGHT),
        ("delayed", RIGHT),
        ("delivered", RIGHT),
        ("target", LEFT),
        ("pattern", LEFT),
    ]
    rows = [
        [
            f"{f.calls:,}",
            f"{f.delayed:,}",
            human(f.delivered_ns),
            os.path.basename(f.name) if f.target.startswith("native:") else f.name,
            f.target,
        ]
        for f in result.functions
        if f.calls
    ]
    silent = [t for t in targets if not result.calls(t)]
    rows += [["0", "0", "0 ns", "-", t.pattern] for t in silent]
    delivered = sum(f.delivered_ns for f in result.functions)
    lines = [
        table(heads, rows),
        f"{human(delivered)} delivered in {human(result.wall_ns)}, "
        f"{result.processes} Python process{'es' * (result.processes != 1)}",
    ]
    if any(target.mode != "spin" for target in targets):
        lines.append(SLEPT)
    if result.lost:
        lines.append(lost_text(result.lost))
    lines += [f"progress {name}: {n:,}" for name, n in sorted(result.progress.items())]
    return "\n".join(lines)


def lost_text(lost: int) -> str:
    """The warning that ``lost`` functions are not counted."""
    return f"{lost:,} functions are missing: more than the table holds"


# Of the JSON of run.
RUN_FORMAT = 1


def run_json(
    command: Sequence[str], result: Result, attached: Mapping[int, str]
) -> dict[str, Any]:
    """The statistics as JSON. Times are ns.

    Args:
        attached: the ways into the processes that were already running
    """
    return {
        "format": RUN_FORMAT,
        "command": list(command),
        "attached": [{"pid": pid, "way": way} for pid, way in attached.items()],
        "exit_status": result.status,
        "wall_ns": result.wall_ns,
        "processes": result.processes,
        "targets": [
            {
                "target": f.name,
                "pattern": f.target,
                "calls": f.calls,
                "delayed": f.delayed,
                "requested_ns": f.requested_ns,
                "delivered_ns": f.delivered_ns,
            }
            for f in result.functions
        ],
        "progress": result.progress,
        "functions_lost": result.lost,
    }


def percent(interval: Interval, of: float) -> str:
    """A change with its interval, in percent of ``of``."""
    low, high = (100 * x / of for x in (interval.low, interval.high))
    return f"{100 * interval.value / of:+.1f}% [{low:+.1f}, {high:+.1f}]"


def plain(interval: Interval) -> str:
    """A number with its interval."""
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


class Ticker:
    """The current activity on stderr: one line that is updated, or a line per event."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """To ``stream``; None is stderr."""
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"

    def now(self, text: str) -> None:
        """Set the activity; shown only if it can be erased again."""
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[K{text[:width]}")

    def event(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        self._write(f"speed-bump: {text}\n")

    def clear(self) -> None:
        """Clear the line for other output."""
        if self._live:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            pass
