# SPDX-License-Identifier: MIT
"""The command ``suggest``: candidates for targets and for the unit of work."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from speed_bump.command.options import (
    INTERRUPTED,
    add_inject,
    add_progress,
    budget,
    say,
    with_command,
    write,
)
from speed_bump.config import ConfigError
from speed_bump.experiment.show.encode import dumps

EPILOG = """\
CMD is run until it works at an even pace, and is then ended. Nothing is delayed.

examples:
  speed-bump suggest -- python train.py
  speed-bump suggest --json - -- python -m app

exit status: 0; 1 if nothing was found; 2 for wrong usage; that of CMD if it fails.
"""


def add(commands: Any) -> None:
    parser = with_command(
        commands,
        "suggest",
        help="say what rank would measure, and which unit of work it would take",
        description="Watch CMD while it works: which functions take time, and which "
        "calls may be units of work, with their rates.",
        epilog=EPILOG,
    )
    add_progress(parser)
    parser.add_argument(
        "--budget",
        default="20s",
        metavar="TIME",
        help="longest time to watch, from the end of its imports on (20s)",
    )
    add_inject(parser)
    parser.add_argument("--show-output", action="store_true", help="show CMD's output")
    parser.add_argument("--json", metavar="FILE", help="write JSON; - is stdout")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(perform=suggest)


def suggest(options: argparse.Namespace) -> int:
    """Watch the program, and print what was found."""
    from speed_bump import _core
    from speed_bump.experiment.aim import aim
    from speed_bump.experiment.errors import RankError
    from speed_bump.experiment.program import progress
    from speed_bump.experiment.program.launch import forwarding_signals
    from speed_bump.experiment.program.runner import Runner
    from speed_bump.experiment.show import found as showing
    from speed_bump.experiment.show.live import Live

    try:
        seconds = budget(options.budget)
        unit = progress.read(options.progress, options.progress_regex)
    except ConfigError as error:
        options.parser.error(str(error))
    runner = Runner(
        options.command,
        show_output=options.show_output,
        to_stderr=options.json == "-",
        again=True,
        inject=options.inject,
    )
    live = Live(is_plain=options.show_output)
    _core.keep_files(True)
    try:
        with forwarding_signals(), runner:
            found = aim(runner, unit, seconds, live.now, event=live.event)
    except RankError as error:
        live.close()
        sys.stderr.buffer.write(error.output)
        say(str(error))
        return error.status
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        live.close()
        _core.keep_files(False)
    if options.json != "-":
        print(showing.table(found))
    write(options.json, dumps(showing.as_json(found)))
    return 0
