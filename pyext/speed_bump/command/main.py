# SPDX-License-Identifier: MIT
"""The command ``speed-bump``."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TextIO

from speed_bump import duration
from speed_bump.config import (
    DEFAULT_DELAY_NS,
    Config,
    ConfigError,
    Target,
    parse_targets,
    read_targets,
)
from speed_bump.experiment import report, verbs
from speed_bump.experiment.runs.comparison import Comparison, FailedRun
from speed_bump.experiment.program.launch import LaunchError, Terminated, forwarding_signals
from speed_bump.experiment.show.table import Ticker
from speed_bump.experiment.program.runner import Result, Runner, Slowed, why_nobody_reported
from speed_bump.native import NativeError

USAGE_ERROR = 2
INTERRUPTED = 130

DESCRIPTION = "Find out which functions matter, by slowing them."

RUN_EPILOG = """\
A PATTERN is MODULE:FUNCTION with globs, such as 'json.*:dumps' or '*/app/*:Server.*';
MODULE is a module's dotted name or its file. 'native:PATH:SYMBOL' is a native function.
A DELAY is in ns or has a unit: 500, 10us, 1.5ms.

examples:
  speed-bump run -t '__main__:parse*' -d 10us -- python app.py
  speed-bump run -t '__main__:parse' -t '__main__:render' --compare -- python app.py

exit status: that of CMD if it fails, 2 for wrong usage, 1 if nothing could be slowed.
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="speed-bump", description=DESCRIPTION)
    commands = top.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    run = commands.add_parser(
        "run",
        help="run a command with functions slowed",
        description="Run CMD with functions slowed, in every Python process it starts.",
        epilog=RUN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="speed-bump run [options] -- CMD [ARG]...",
    )
    what = run.add_argument_group("what to slow")
    verbs.add_targets(what)
    what.add_argument(
        "-d", "--delay", metavar="DELAY", help="of each call (1us; --compare: chosen)"
    )
    how = run.add_argument_group("measuring")
    how.add_argument(
        "--compare",
        action="store_true",
        help="alternate undelayed and delayed runs, for each target the effect",
    )
    how.add_argument("--runs", type=int, default=8, metavar="N", help="pairs of runs (8)")
    how.add_argument("--seed", type=int, help="of the order of the runs")
    how.add_argument(
        "--show-output", action="store_true", help="CMD's output with --compare"
    )
    run.add_argument(
        "--json",
        metavar="FILE",
        help="the numbers for programs; - is stdout, and CMD's goes to stderr",
    )
    run.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    run.set_defaults(parser=run, perform=run_command)
    verbs.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    options = parser().parse_args(argv)
    if "command" in options:
        if options.command[:1] == ["--"]:
            del options.command[0]
        if not options.command:
            verb = options.verb
            options.parser.error(f"no command to run: speed-bump {verb} [options] -- CMD")
    try:
        return int(options.perform(options, gather_checked))
    except LaunchError as error:
        say(str(error))
        return error.status
    except (NativeError, OSError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except Terminated as error:
        return error.status


def run_command(options: argparse.Namespace, _: verbs.Gather) -> int:
    """The verb ``run``."""
    if options.runs < 1:
        options.parser.error("--runs: 1 or more")
    targets, excludes = gather_checked(options)
    try:
        delay_ns = read_delay(options.delay)
    except ConfigError as error:
        options.parser.error(str(error))
    runner = Runner(
        options.command,
        excludes,
        show_output=options.show_output or not options.compare,
        to_stderr=options.json == "-",
        again=options.compare,
    )
    measure = compare if options.compare else run_once
    with forwarding_signals(), open_json(options.json) as output, runner:
        return measure(options, runner, targets, delay_ns, output)


def gather_checked(options: argparse.Namespace) -> tuple[list[Target], list[Target]]:
    """``gather()``; what is wrong ends the program with a usage error."""
    try:
        targets, excludes = gather(options)
    except ConfigError as error:
        options.parser.error(str(error))
    if not targets:
        options.parser.error("nothing to slow: give -t PATTERN, --targets or --native")
    return targets, excludes


def gather(options: argparse.Namespace) -> tuple[list[Target], list[Target]]:
    """The targets of the command line, and the exclusions."""
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


def read_delay(text: str | None) -> int | None:
    """The delay of -d, ns."""
    if text is None:
        return None
    try:
        delay_ns = duration.parse(text)
        Config(delay_ns=delay_ns)
    except ValueError as error:
        raise ConfigError(f"-d: {error}") from None
    return delay_ns


def run_once(
    options: argparse.Namespace,
    runner: Runner,
    targets: list[Target],
    delay_ns: int | None,
    output: TextIO | None,
) -> int:
    """Slow the command once; statistics at its end."""
    default = DEFAULT_DELAY_NS if delay_ns is None else delay_ns
    slowed = [Slowed(t, default if t.delay_ns is None else t.delay_ns) for t in targets]
    result = runner.run(slowed)
    sys.stderr.write(report.run_table(result, targets) + "\n")
    nobody = warn_if_nobody(runner, targets, result)
    write_json(output, report.run_json(options.command, result))
    if result.interrupted:
        return INTERRUPTED
    return result.status or int(nobody)


def compare(
    options: argparse.Namespace,
    runner: Runner,
    targets: list[Target],
    delay_ns: int | None,
    output: TextIO | None,
) -> int:
    """Alternate undelayed and delayed runs; a table at the end."""
    seed = (
        random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    )
    comparison = Comparison(options.command, options.runs, seed)
    tick = Ticker()
    status = 0
    try:
        comparison.run(runner, targets, delay_ns, tick)
    except FailedRun as failed:
        tick.clear()
        sys.stderr.buffer.write(failed.result.output)
        say(str(failed))
        status = failed.status
    except KeyboardInterrupt:
        comparison.interrupted = True
    tick.clear()
    if comparison.pilot and warn_if_nobody(runner, targets, comparison.pilot):
        return status or 1
    if not status or comparison.trials:
        # With the numbers for programs on stdout, those for people go elsewhere.
        print(comparison.text(), file=sys.stderr if options.json == "-" else None)
        write_json(output, comparison.json())
    return status or (INTERRUPTED if comparison.interrupted else 0)


def warn_if_nobody(runner: Runner, targets: list[Target], result: Result) -> bool:
    """Say so if there are only Python targets and no process had them in force."""
    if result.processes or any(t.native for t in targets) or result.interrupted:
        return False
    say(why_nobody_reported(runner.command))
    return True


def open_json(path: str | None) -> AbstractContextManager[TextIO | None]:
    """Where numbers for programs go, if anywhere: a file, or stdout for "-"."""
    if path is None or path == "-":
        return nullcontext(sys.stdout if path else None)
    return open(path, "w", encoding="utf-8")


def write_json(output: TextIO | None, value: dict[str, Any]) -> None:
    """The numbers for programs, where they are wanted."""
    if output:
        output.write(json.dumps(value, indent=2) + "\n")


def say(text: str) -> None:
    """A line on stderr."""
    sys.stderr.write(f"speed-bump: {text}\n")
