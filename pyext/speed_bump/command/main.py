# SPDX-License-Identifier: MIT
"""The command ``speed-bump``."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence

from speed_bump import __version__
from speed_bump.command import (
    check,
    live,
    member,
    ps,
    rank,
    report,
    run,
    steer,
    suggest,
    top,
)
from speed_bump.command.options import INTERRUPTED, has_processes, say
from speed_bump.experiment.program.elsewhere import NotInstalledError
from speed_bump.experiment.program.launch import LaunchError, Terminated
from speed_bump.experiment.program.ways import AttachError
from speed_bump.native import NativeError

DESCRIPTION = "Find out which functions matter, by slowing them."


def parser() -> argparse.ArgumentParser:
    line = argparse.ArgumentParser(prog="speed-bump", description=DESCRIPTION)
    line.add_argument(
        "-V",
        "--version",
        action="version",
        version=f"speed-bump {__version__} (Python {platform.python_version()})",
        help="print the version and exit",
    )
    commands = line.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    for verb in (run, rank, suggest, member, live, report, check, ps, steer, top):
        verb.add(commands)
    return line


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = parser().parse_args(argv)
    if "command" in options:
        if options.command[:1] == ["--"]:
            del options.command[0]
        can_attach = "pid" in options
        attaches = can_attach and has_processes(options)
        if not options.command and not attaches:
            options.parser.error(
                f"no command to run: speed-bump {options.verb} [options] -- CMD"
                + (", or --pid PID" if can_attach else "")
            )
        if options.command and attaches:
            options.parser.error("give a command or processes, not both")
        if can_attach and options.attach and not attaches:
            options.parser.error("--attach needs --pid, --pid-tree or --name")
    try:
        return int(options.perform(options))
    except LaunchError as error:
        say(str(error))
        return error.status
    except (AttachError, NativeError, NotInstalledError, OSError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except Terminated as error:
        return error.status
