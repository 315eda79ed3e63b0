# SPDX-License-Identifier: MIT
"""Options that several verbs have, and what they mean."""

from __future__ import annotations

import argparse
import glob
import os
import random
import re
import sys
import time
from typing import Any

from speed_bump import duration
from speed_bump.config import (
    Config,
    ConfigError,
    Target,
    parse_targets,
    read_targets,
)

INTERRUPTED = 130

PATTERNS = """\
A PATTERN is MODULE:FUNCTION with globs, such as 'json.*:dumps' or '*/app/*:Server.*';
MODULE is a module's dotted name or its file. 'native:PATH:SYMBOL' is a native function.
"""


def say(text: str) -> None:
    """A line on stderr."""
    sys.stderr.write(f"speed-bump: {text}\n")


def write(path: str | None, text: str) -> None:
    """To a file, or stdout for "-"; None: nowhere."""
    if path == "-":
        sys.stdout.write(text)
    elif path:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


# ------------------------------------------------------------------------ adding


def with_command(commands: Any, name: str, **texts: str) -> Any:
    """The parser of a verb that runs CMD."""
    parser = commands.add_parser(
        name,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **{"usage": f"speed-bump {name} [options] -- CMD [ARG]...", **texts},
    )
    parser.set_defaults(parser=parser)
    return parser


def add_targets(what: Any) -> None:
    """The options that name functions."""
    what.add_argument("-t", "--target", action="append", default=[], metavar="PATTERN")
    what.add_argument("--targets", metavar="FILE", help="a pattern a line")
    what.add_argument(
        "--native",
        action="append",
        default=[],
        metavar="PATH:SYMBOL",
        help="a native function (as root, or by the kernel module)",
    )


def add_inject(how: Any) -> None:
    """The option that lends the package to another interpreter."""
    how.add_argument(
        "--inject",
        action="store_true",
        help="lend speed_bump to CMD's Python, of the same version, if it has none",
    )


def add_progress(what: Any) -> None:
    """The options that say what a unit of work is."""
    what.add_argument(
        "--progress",
        action="append",
        default=[],
        metavar="WHAT",
        help="a unit of work: a point of progress(), MODULE:FUNCTION or PATH:SYMBOL",
    )
    what.add_argument(
        "--progress-regex", metavar="REGEX", help="a unit of work is a line of output"
    )


def add_time(how: Any, budget: str, text: str) -> None:
    """The budget and the seed."""
    how.add_argument(
        "--budget", default=budget, metavar="TIME", help=f"{text} ({budget})"
    )
    how.add_argument("--seed", type=int, help="of all random choices")


# ----------------------------------------------------------------------- reading


def gather_checked(
    options: argparse.Namespace, may_be_none: bool = False
) -> tuple[list[Target], list[Target]]:
    """``gather()``; what is wrong ends the program with a usage error.

    Args:
        may_be_none: without a target they are looked for
    """
    try:
        targets, excludes = gather(options)
    except ConfigError as error:
        options.parser.error(str(error))
    if not targets and not may_be_none:
        options.parser.error("nothing to slow: give -t PATTERN, --targets or --native")
    return targets, excludes


def gather(options: argparse.Namespace) -> tuple[list[Target], list[Target]]:
    """The targets of the command line, and the exclusions.

    Raises:
        ConfigError: one is wrong
    """
    found: list[Target] = []
    for text in options.target:
        found += parse_targets(text, "-t")
    if options.targets:
        found += read_targets(options.targets)
    for text in options.native:
        found += parse_targets(f"native:{text}", "--native")
    targets: dict[str, Target] = {}
    for target in found:
        if not target.excludes and targets.setdefault(target.pattern, target) != target:
            raise ConfigError(f"{target.pattern}: given twice, with different options")
    return list(targets.values()), [target for target in found if target.excludes]


def delay(text: str | None) -> int | None:
    """The delay of -d, ns.

    Raises:
        ConfigError: it is none
    """
    if text is None:
        return None
    try:
        delay_ns = duration.parse(text)
        Config(delay_ns=delay_ns)
    except ValueError as error:
        raise ConfigError(f"-d: {error}") from None
    return delay_ns


def budget(text: str) -> float:
    """The time of --budget, s.

    Raises:
        ConfigError: it is none
    """
    # People think of it in seconds, minutes and hours.
    match = re.fullmatch(r"([0-9.]+)\s*(min|h|)", text)
    try:
        if match:
            seconds = float(match[1]) * {"": 1, "min": 60, "h": 3600}[match[2]]
        else:
            seconds = duration.parse(text) / 1e9
    except ValueError:
        raise ConfigError(f"--budget: {text!r} is not a time such as 60s") from None
    if not 0.5 <= seconds <= 1e6:
        raise ConfigError(f"--budget: {text!r} is not between 0.5 s and 12 days")
    return seconds


def seed(options: argparse.Namespace) -> int:
    """The seed that was given, or a new one."""
    if options.seed is None:
        return random.SystemRandom().randrange(2**32)
    return int(options.seed)


# ------------------------------------------------------------------------- files


def directory() -> str:
    """Where records are kept that no file was named for."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "speed-bump")


def new_file(verb: str) -> str:
    """A name for a new record."""
    where = directory()
    os.makedirs(where, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return os.path.join(where, f"{verb}-{stamp}-{os.getpid()}.speedbump")


def newest() -> str | None:
    """The last record that no file was named for."""
    files = glob.glob(os.path.join(glob.escape(directory()), "*.speedbump"))
    return max(files, key=os.path.getmtime, default=None)
