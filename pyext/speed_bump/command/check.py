# SPDX-License-Identifier: MIT
"""The command ``check``: what can be measured on this machine, and how soon."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from speed_bump.command.options import (
    add_progress,
    add_time,
    budget,
    say,
    seed,
    with_command,
    write,
)
from speed_bump.config import ConfigError
from speed_bump.experiment.show.encode import dumps


def add(commands: Any) -> None:
    parser = with_command(
        commands,
        "check",
        help="say what can be measured here, and how soon",
        usage="speed-bump check [options] [-- CMD [ARG]...]",
        description="Say how small an effect can be measured here and in what time, "
        "whether clocks and delays are right and CPUs are free, and what delays native "
        "functions here. A program with a known answer is measured, or CMD without "
        "delays.",
        epilog="exit status: 0 if results can be trusted at present, else 1",
    )
    what = parser.add_argument_group("a program to measure on")
    add_progress(what)
    add_time(parser, "8s", "measure for about this long")
    parser.add_argument("--json", action="store_true", help="print JSON")
    # As for the other commands, but optional.
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(perform=check)


def check(options: argparse.Namespace) -> int:
    """Whether this is a place to measure."""
    from speed_bump.experiment import check as checking
    from speed_bump.experiment.errors import RankError
    from speed_bump.experiment.program import progress
    from speed_bump.experiment.program.launch import forwarding_signals

    command = options.program[options.program[:1] == ["--"] :]
    try:
        seconds = budget(options.budget)
        unit = progress.read(options.progress, options.progress_regex)
    except ConfigError as error:
        options.parser.error(str(error))
    if not command and unit.text:
        options.parser.error("--progress is of a CMD: speed-bump check [options] -- CMD")
    try:
        with forwarding_signals():
            found = checking.check(command, unit, seconds, seed(options))
    except RankError as error:
        sys.stderr.buffer.write(error.output)
        say(str(error))
        return error.status
    if options.json:
        write("-", dumps(checking.as_json(found)))
    else:
        write("-", checking.text(found))
    return 0 if found.is_good else 1
