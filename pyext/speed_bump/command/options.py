# SPDX-License-Identifier: MIT
"""Options that several commands have, and what they mean."""

from __future__ import annotations

import argparse
import glob
import os
import random
import re
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from speed_bump import duration, lines
from speed_bump.config import (
    Config,
    ConfigError,
    Target,
    parse_targets,
    read_targets,
)
from speed_bump.experiment.missing import main_of

INTERRUPTED = 130
WAYS = ("socket", "remote", "debugger")

PATTERNS = """\
A PATTERN is MODULE:FUNCTION with globs, such as 'json.*:dumps' or '*/app/*:Server.*';
MODULE is a module's dotted name or its file. 'app.py:42' is a line (CPython 3.12).
'native:PATH:SYMBOL' is a native function, 'native:PATH:file.c:42' a line of one.
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
    """The parser of a command that runs CMD."""
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
    what.add_argument("--targets", metavar="FILE", help="file with one pattern a line")
    what.add_argument(
        "--native",
        action="append",
        default=[],
        metavar="PATH:SYMBOL",
        help="a native function or line (as root, or by the kernel module)",
    )


def add_inject(how: Any) -> None:
    """The option that lends the package to another interpreter."""
    how.add_argument(
        "--inject",
        action="store_true",
        help="make this speed_bump available to CMD's Python, if it has none (the "
        "versions of Python must be the same)",
    )


def add_processes(parser: Any) -> None:
    """The options that name processes instead of CMD."""
    which = parser.add_argument_group("running processes, instead of CMD")
    which.add_argument(
        "--pid", action="append", default=[], metavar="PID", help="attach to this process"
    )
    which.add_argument(
        "--pid-tree",
        action="append",
        default=[],
        metavar="PID",
        help="attach to it and to the Python processes below it",
    )
    which.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="PATTERN",
        help="attach to programs or scripts of this name (a glob)",
    )
    which.add_argument(
        "--attach",
        choices=WAYS,
        help="how to attach (default: the first of these that works)",
    )


def has_processes(options: argparse.Namespace) -> bool:
    """Whether processes are named instead of CMD."""
    return bool(options.pid or options.pid_tree or options.name)


def processes(options: argparse.Namespace) -> list[int]:
    """The processes that are named, each once.

    Raises:
        ConfigError: what is named is no process
    """
    from speed_bump.experiment.program import processes as running

    found: list[int] = []
    for text in options.pid:
        found += [_pid("--pid", word) for word in text.split(",")]
    for text in options.pid_tree:
        for word in text.split(","):
            found += running.tree(_pid("--pid-tree", word))
    for pattern in options.name:
        those = running.named(pattern)
        if not those:
            raise ConfigError(f"--name: no process is called {pattern!r}")
        found += those
    return list(dict.fromkeys(found))


def _pid(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**22):
        raise ConfigError(f"{option}: {text!r} is not the number of a process")
    if not os.path.isdir(f"/proc/{text}"):
        raise ConfigError(f"{option}: there is no process {text}")
    if int(text) == os.getpid():
        raise ConfigError(f"{option}: {text} is speed-bump itself")
    return int(text)


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
        "--progress-regex",
        metavar="REGEX",
        help="a unit of work: a line of output that matches",
    )


def add_metric(what: Any) -> None:
    """The option that has units of work counted by a metric."""
    what.add_argument(
        "--progress-metric",
        metavar="URL:NAME{LABELS}",
        help="a unit of work: what a Prometheus counter or histogram counts, such as "
        "http://localhost:8000/metrics:requests_total",
    )


def add_latency(what: Any, text: str) -> None:
    """The option that names what has its durations recorded; ``text`` is on its calls."""
    what.add_argument(
        "--latency",
        action="append",
        default=[],
        metavar="WHAT",
        help=f"{text}, or the time between begin() and end() of a name",
    )


def add_time(how: Any, budget: str, text: str) -> None:
    """The budget and the seed."""
    how.add_argument(
        "--budget", default=budget, metavar="TIME", help=f"{text} ({budget})"
    )
    how.add_argument("--seed", type=int, help="seed of all random choices")


# ----------------------------------------------------------------------- reading


def gather_checked(
    options: argparse.Namespace, may_be_none: bool = False, parts: bool = False
) -> tuple[list[Target], list[Target]]:
    """``gather()``; what is wrong ends the program with a usage error.

    Args:
        may_be_none: without a target they are looked for
        parts: delays may be parts of durations
    """
    try:
        targets, excludes = gather(options)
    except ConfigError as error:
        options.parser.error(str(error))
    for target in targets:
        if target.delay_ppm and not parts:
            options.parser.error(
                f"{target.pattern}: delay={target.delay} is for 'run' without --compare; "
                "here a delay is a time such as 10us"
            )
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
    _check_lines(targets.values(), getattr(options, "command", None) or [])
    return list(targets.values()), [target for target in found if target.excludes]


def latencies(options: argparse.Namespace) -> list[str]:
    """The names of ``--latency``, each once; native ones are ``native:PATH:SYMBOL``.

    Raises:
        ConfigError: one of them is nothing that has a duration
    """
    from speed_bump import _core
    from speed_bump.experiment import missing

    asked = [_latency(text.strip()) for text in options.latency]
    found = list(dict.fromkeys(asked))
    if len(found) > _core.LATENCY_NAMES:
        raise ConfigError(f"--latency: at most {_core.LATENCY_NAMES}, not {len(found)}")
    if not has_processes(options):
        for pattern, reason in missing.refused(found, options.command):
            raise ConfigError(f"--latency {pattern}: {reason}")
    return found


def split(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of ``latencies()`` as ``Runner`` has them: of Python, and native ones."""
    natives = [name for name in names if name.startswith("native:")]
    return [name for name in names if name not in natives], natives


def _latency(text: str) -> str:
    from speed_bump.experiment.program.progress import is_native

    if ":" not in text:
        if not text:
            raise ConfigError("--latency: a name is not empty")
        return text
    if is_native(text) and not text.startswith("native:"):
        text = f"native:{text}"
    found = parse_targets(text, "--latency")
    if len(found) != 1 or found[0].excludes:
        raise ConfigError(f"--latency: {text!r} is not one function")
    target = found[0]
    if target.source_line or (target.native and target.right.isdigit()):
        raise ConfigError(
            f"--latency {target.pattern}: a line has no duration; name its function"
        )
    if str(target) != target.pattern:
        raise ConfigError(
            f"--latency {text}: options are of delays: give it to -t, too, without "
            "them here"
        )
    return target.pattern


def is_part(text: str | None) -> bool:
    """Whether -d is a part of the duration of each call, such as "5%"."""
    return text is not None and text.strip().endswith("%")


def with_part(target: Target, text: str) -> Target:
    """The target, with a percentage of -d if it has no delay of its own.

    Raises:
        ConfigError: ``text`` is not a percentage, or the target has no duration
    """
    if target.delay is not None:
        return target
    return parse_targets(f"{target} delay={text.strip()}", "-d")[0]


def _check_lines(targets: Iterable[Target], command: Sequence[str]) -> None:
    """Refuse lines on which no statement begins, as far as that is known before a run."""
    wanted = [target for target in targets if target.source_line]
    if wanted:
        words = command[1:] if command[:1] == ["--"] else command
        main, directories = main_of(words)
        lines.check(wanted, [], directories, main.get("path"))


def delay(text: str | None) -> int | None:
    """The delay of -d, ns.

    Raises:
        ConfigError: ``text`` is not a delay
    """
    if text is None:
        return None
    try:
        delay_ns = duration.parse(text)
        Config(delay_ns=delay_ns)
    except ValueError as error:
        raise ConfigError(f"-d: {error}") from None
    return delay_ns


def budget(text: str, option: str = "--budget") -> float:
    """The time of --budget or another option, s.

    Raises:
        ConfigError: ``text`` is not such a time
    """
    # People think of it in seconds, minutes and hours.
    match = re.fullmatch(r"([0-9.]+)\s*(min|h|)", text)
    try:
        if match:
            seconds = float(match[1]) * {"": 1, "min": 60, "h": 3600}[match[2]]
        else:
            seconds = duration.parse(text) / 1e9
    except ValueError:
        raise ConfigError(f"{option}: {text!r} is not a time such as 60s") from None
    if not 0.5 <= seconds <= 1e6:
        raise ConfigError(f"{option}: {text!r} is not between 0.5 s and 12 days")
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
    """The newest record in the directory of records; None: it has none."""
    files = glob.glob(os.path.join(glob.escape(directory()), "*.speedbump"))
    return max(files, key=os.path.getmtime, default=None)
