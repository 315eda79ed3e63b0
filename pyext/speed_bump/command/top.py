# SPDX-License-Identifier: MIT
"""The command ``top``: a live table of what is slowed, with a switch for each target."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from speed_bump.command import options as reading
from speed_bump.command.options import say
from speed_bump.command.ps import add_pids, read_pids
from speed_bump.config import ConfigError

EPILOG = """\
Keys: Space switches the target under the cursor off and on, + and - double and halve its
delay, s sorts by the next column, q quits. Targets that an experiment controls are shown,
but can't be changed. Requires textual: pip install 'speed-bump[top]', or Debian's
python3-textual.

exit status: 0; 1 if the table can't be shown; 2 for wrong usage.
"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "top",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="speed-bump top [options]",
        help="watch what is slowed, and switch it",
        description="Show a live table of everything that is slowed on this machine: "
        "rates, the share of time that is delay, and a switch for each.",
        epilog=EPILOG,
    )
    parser.set_defaults(parser=parser)
    add_pids(parser)
    parser.add_argument(
        "--interval", default="1s", metavar="TIME", help="time between updates (1s)"
    )
    parser.set_defaults(perform=top)


def top(options: argparse.Namespace) -> int:
    """Show the table until the user quits."""
    pids = read_pids(options)
    try:
        seconds = reading.budget(options.interval, "--interval")
    except ConfigError as error:
        options.parser.error(str(error))
    try:
        import textual  # noqa: F401
    except ImportError:
        say("top needs textual: pip install 'speed-bump[top]' (or 'textual')")
        return 1
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        say("top needs a terminal: 'speed-bump ps --watch' does not")
        return 1
    from speed_bump.command.switchboard import Switchboard
    from speed_bump.overview import Looker

    with Looker() as looker:
        Switchboard(looker, pids, seconds).run()
    return 0
