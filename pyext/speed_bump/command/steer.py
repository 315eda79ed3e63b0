# SPDX-License-Identifier: MIT
"""The command ``set``: change delays in running programs."""

from __future__ import annotations

import argparse
import re
from typing import Any

from speed_bump import duration
from speed_bump.command.options import say
from speed_bump.command.ps import add_pids, read_pids, state_of
from speed_bump.overview import Looker, Overview, Slowed

EPILOG = """\
A TARGET is a name that 'speed-bump ps' shows, or a glob. A SETTING is delay=DELAY, on,
off, or remove (a native target; a Python function is switched off and gets its original
delay back). Forked processes share their functions' settings with their parent. Targets
of an experiment, or of another process's session, can't be changed. A glob skips these,
and functions that are only counted: name such a function in full.

examples:
  speed-bump set 'json:dumps' delay=50us
  speed-bump set 'app.*:*' off --pid 4711
  speed-bump set '/usr/lib/*/libc.so.6:malloc' delay=2us on

exit status: 0; 1 if there is no such target, or one can't be set; 2 for wrong usage.
"""
# At most this many targets that are left out are named.
MAX_TOLD = 4
SETTING = re.compile(r"delay=.*|on|off|remove")


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "set",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="speed-bump set TARGET... SETTING... [options]",
        help="change what is slowed while it runs",
        description="Change the delays that are in force, or switch them off and on, "
        "in running programs.",
        epilog=EPILOG,
    )
    parser.set_defaults(parser=parser)
    parser.add_argument("words", nargs="+", metavar="TARGET", help=argparse.SUPPRESS)
    add_pids(parser)
    parser.set_defaults(perform=set_targets)


def set_targets(options: argparse.Namespace) -> int:
    """Apply the settings to all named targets, or print why not."""
    pids = read_pids(options)
    settings = [word for word in options.words if SETTING.fullmatch(word)]
    patterns = [word for word in options.words if word not in settings]
    if not settings:
        options.parser.error("no SETTING: delay=DELAY, on, off or remove")
    if not patterns:
        options.parser.error("no TARGET is named")
    delays = {word: _delay(options, word) for word in settings if "=" in word}
    with Looker() as looker:
        found = looker.look()
        chosen = _choose(found, patterns, pids)
        if chosen is None:
            for problem in found.problems:
                say(problem)
            return 1
        status = 0
        try:
            for word in settings:
                if word == "remove":
                    found.remove(chosen)
                elif word in delays:
                    found.set_delay(chosen, delays[word])
                else:
                    found.set_enabled(chosen, word == "on")
        except OSError as error:
            say(str(error))
            status = 1
        # Some may have been set before one was refused.
        _show(looker.look(), chosen)
    return status


def _delay(options: argparse.Namespace, word: str) -> int:
    try:
        return duration.parse(word.removeprefix("delay="))
    except ValueError as error:
        options.parser.error(str(error))
        raise


def _choose(
    found: Overview, patterns: list[str], pids: set[int] | None
) -> list[Slowed] | None:
    """The named targets; None, after a message, if a pattern names none."""
    chosen: dict[int, Slowed] = {}
    for pattern in patterns:
        matching = [
            target for target in found.find(pattern) if pids is None or target.pid in pids
        ]
        slowed = [t for t in matching if not t.is_counted_only or _is_name(pattern, t)]
        if not slowed:
            where = f" in process {', '.join(map(str, sorted(pids)))}" if pids else ""
            counted = f"; {len(matching)} are only counted" if matching else ""
            say(
                f"no slowed target{where} has the name {pattern}{counted} "
                "('speed-bump ps' lists them)"
            )
            return None
        free = [t for t in slowed if not t.is_ruled or _is_name(pattern, t)]
        # If the pattern names no other target, the refused change gives the reason.
        chosen |= {target.index: target for target in free or slowed}
        ruled = sorted({t.name for t in slowed if t not in free})
        if free and ruled:
            more = f" and {len(ruled) - MAX_TOLD} more" if ruled[MAX_TOLD:] else ""
            say(
                f"{pattern}: left out: an experiment or another process controls it: "
                f"{', '.join(ruled[:MAX_TOLD])}{more}"
            )
    return list(chosen.values())


def _is_name(pattern: str, target: Slowed) -> bool:
    """Whether the pattern is the whole name, and not a glob."""
    return pattern.removeprefix("native:") == target.name


def _show(found: Overview, chosen: list[Slowed]) -> None:
    wanted = {target.key for target in chosen}
    for target in found.targets:
        if target.key in wanted:
            of = f" of process {target.pid}" if target.pid else ""
            print(
                f"{target.name}{of}: {duration.human(target.delay_ns)}, "
                f"{state_of(target)}"
            )
