# SPDX-License-Identifier: MIT
"""The command ``ps``: what is slowed on this machine."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from typing import Any

from speed_bump import duration
from speed_bump.command import options as reading
from speed_bump.config import ConfigError
from speed_bump.experiment.show.encode import dumps
from speed_bump.overview import Looker, Overview, Process, Slowed, printable

EPILOG = """\
Shows every process with delays in force, from its environment, its own install(), an
attached tool or an experiment, and the functions that it has called since. Without root,
only your own processes are shown. Native targets need the module, or BPF.

examples:
  speed-bump ps
  speed-bump ps --pid 4711 --watch
  speed-bump set 'json:*' off --pid 4711

exit status: 0; 1 if nothing can be read; 2 for wrong usage.
"""
# Of the JSON.
FORMAT = 1
CLEAR = "\x1b[H\x1b[2J"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "ps",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="speed-bump ps [options]",
        help="show what is slowed on this machine",
        description="Show all that is slowed on this machine: processes, their "
        "functions, native targets; delays and calls.",
        epilog=EPILOG,
    )
    parser.set_defaults(parser=parser)
    add_pids(parser)
    parser.add_argument(
        "--watch", action="store_true", help="print the list again at each interval"
    )
    parser.add_argument(
        "--interval",
        default="1s",
        metavar="TIME",
        help="time between two tables of --watch (1s)",
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write JSON; - is stdout; with --watch, one line each time",
    )
    parser.set_defaults(perform=ps)


def add_pids(parser: Any) -> None:
    """The option that selects processes."""
    parser.add_argument(
        "--pid",
        dest="only",
        action="append",
        default=[],
        metavar="PID",
        help="only this process",
    )


def read_pids(options: argparse.Namespace) -> set[int] | None:
    """The selected processes; None: all. Ends with status 2 for a malformed number."""
    pids: set[int] = set()
    for text in options.only:
        for word in text.split(","):
            if not word.isdigit() or not int(word):
                options.parser.error(f"--pid: {word!r} is not the number of a process")
            pids.add(int(word))
    return pids or None


def ps(options: argparse.Namespace) -> int:
    """Print the table once or repeatedly."""
    pids = read_pids(options)
    try:
        seconds = reading.budget(options.interval, "--interval")
    except ConfigError as error:
        options.parser.error(str(error))
    with Looker() as looker:
        if not options.watch:
            _show(options, looker.look(), pids)
            return 0
        with suppress(KeyboardInterrupt):
            while True:
                _show(options, looker.look(), pids)
                time.sleep(seconds)
    return 0


def _show(options: argparse.Namespace, found: Overview, pids: set[int] | None) -> None:
    if not options.json:
        clear = CLEAR if options.watch and sys.stdout.isatty() else ""
        sys.stdout.write(clear + as_text(found, pids) + "\n")
        sys.stdout.flush()
        return
    text = dumps(as_json(found, pids), indent=None if options.watch else 2)
    if options.json == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        mode = "a" if options.watch else "w"
        with open(options.json, mode, encoding="utf-8") as file:
            file.write(text)


def as_json(found: Overview, pids: set[int] | None) -> dict[str, Any]:
    """The overview as JSON; times are in ns."""
    return {
        "format": FORMAT,
        "processes": [
            {
                "pid": process.pid,
                "owner": process.label,
                "group": process.group,
                "command": list(process.words),
            }
            for process in found.processes
            if pids is None or process.pid in pids
        ],
        "targets": [
            {
                "kind": "native" if target.is_native else "python",
                "target": target.name,
                "pid": target.pid or None,
                "owner": target.label,
                "delay_ns": target.delay_ns,
                "every": target.every or None,
                "enabled": target.enabled,
                "ruled": target.is_ruled,
                "calls": target.calls,
                "delayed": target.delayed,
                "delivered_ns": target.delivered_ns,
            }
            for target in found.targets
            if pids is None or target.pid in pids
        ],
        "native_problem": found.native_problem or None,
        "incomplete_processes": found.left_out,
    }


def as_text(found: Overview, pids: set[int] | None) -> str:
    """The displayed text."""
    blocks = []
    for process in found.processes:
        if pids is None or process.pid in pids:
            mine = [
                target
                for target in found.targets
                if not target.is_native and target.pid == process.pid
            ]
            blocks.append([_heading(process), *_table(mine)])
    natives = [
        target
        for target in found.targets
        if target.is_native and (pids is None or target.pid in pids)
    ]
    if natives:
        blocks.append(["native targets", *_table(natives, scopes=True)])
    lines = ["\n".join(block) for block in blocks]
    if not lines:
        lines = ["Nothing is slowed" + (" there." if pids else " that we may see.")]
    lines += [f"({problem})" for problem in found.problems]
    return "\n\n".join(lines)


def _heading(process: Process) -> str:
    together = f", {process.label}" if process.label else ""
    return f"process {process.pid}{together}: {process.command}"


def state_of(target: Slowed) -> str:
    """On, off, or controlled by an experiment or another session."""
    if target.is_ruled and not target.is_native:
        return "ruled"
    return "on" if target.enabled else "off"


def _table(targets: list[Slowed], scopes: bool = False) -> list[str]:
    counted = sum(target.is_counted_only for target in targets)
    targets = [target for target in targets if not target.is_counted_only]
    more = [f"  and {counted} that are only counted"] if counted else []
    if not targets:
        return more or ["  no function that matches was called yet"]
    rows = [["DELAY", "STATE", "CALLS", "DELAYED", "DELIVERED", "TARGET"]]
    for target in targets:
        every = f" /{target.every}" if target.every > 1 else ""
        rows.append(
            [
                duration.human(target.delay_ns) + every,
                state_of(target),
                f"{target.calls:,}",
                f"{target.delayed:,}",
                duration.human(target.delivered_ns),
                printable(target.name),
            ]
        )
    if scopes:
        column = ["OF", *(f"{t.label} {t.pid or 'all'}" for t in targets)]
        rows = [[*row[:-1], of, row[-1]] for row, of in zip(rows, column, strict=True)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        "  "
        + "  ".join(
            cell if n == len(row) - 1 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return table + more
