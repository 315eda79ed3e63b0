# SPDX-License-Identifier: MIT
"""The command ``run``: a command with functions slowed, once or in turns without."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

from speed_bump.command import options as reading
from speed_bump.command.options import (
    INTERRUPTED,
    add_inject,
    add_latency,
    add_processes,
    add_targets,
    gather_checked,
    has_processes,
    say,
    with_command,
)
from speed_bump.config import DEFAULT_DELAY_NS, ConfigError, Target
from speed_bump.experiment.program.launch import forwarding_signals
from speed_bump.experiment.program.progress import is_native
from speed_bump.experiment.program.runner import (
    Result,
    Runner,
    Slowed,
    why_nobody_reported,
)
from speed_bump.experiment.runs import results
from speed_bump.experiment.runs.comparison import Comparison, FailedRun
from speed_bump.experiment.show import durations, table
from speed_bump.experiment.show.encode import dumps
from speed_bump.experiment.show.table import Ticker

if TYPE_CHECKING:
    from speed_bump.experiment.rank import Ranking

RUN_EPILOG = """\
A PATTERN is MODULE:FUNCTION with globs, such as 'json.*:dumps' or '*/app/*:Server.*';
MODULE is a module's dotted name or its file. 'native:PATH:SYMBOL' is a native function.
A DELAY is in ns or has a unit: 500, 10us, 1.5ms; or it is a part of the duration of each
call, at its end: 5%.

examples:
  speed-bump run -t '__main__:parse*' -d 10us -- python app.py
  speed-bump run -t '__main__:parse' -d 5% -- python app.py
  speed-bump run -t '__main__:parse' -t '__main__:render' --compare -- python app.py
  speed-bump run -t 'app:parse' -d 10us --pid 4711 --for 30s
  speed-bump run --latency 'app:handle' --latency libz.so.1:deflate -- python app.py

exit status: that of CMD if it fails, 2 for wrong usage, 1 if nothing could be slowed.
"""


MAX_BLOCKS = 1000


def add(commands: Any) -> None:
    run = with_command(
        commands,
        "run",
        help="run a command with functions slowed",
        description="Run CMD with functions slowed, in every Python process it starts; "
        "or slow functions of running processes for a while.",
        epilog=RUN_EPILOG,
    )
    what = run.add_argument_group("what to slow")
    add_targets(what)
    what.add_argument(
        "-d",
        "--delay",
        metavar="DELAY",
        help="delay of a call (1us; with --compare: chosen)",
    )
    add_latency(what, "record how long calls of MODULE:FUNCTION or PATH:SYMBOL take")
    add_inject(run)
    how = run.add_argument_group("measuring")
    how.add_argument(
        "--compare",
        action="store_true",
        help="alternate undelayed and delayed runs, show each target's effect",
    )
    how.add_argument("--runs", type=int, default=8, metavar="N", help="pairs of runs (8)")
    how.add_argument(
        "--seed", type=int, help="seed of the order of runs and of random delays"
    )
    how.add_argument(
        "--show-output", action="store_true", help="show CMD's output with --compare"
    )
    add_processes(run)
    run.add_argument(
        "--for",
        dest="seconds",
        metavar="TIME",
        help="with --pid: detach after this time (default: at Ctrl-C)",
    )
    run.add_argument(
        "--json",
        metavar="FILE",
        help="write JSON; - is stdout, and CMD's output goes to stderr",
    )
    run.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    run.set_defaults(perform=run_command)


def run_command(options: argparse.Namespace) -> int:
    if options.runs < 1:
        options.parser.error("--runs: 1 or more")
    targets, excludes = gather_checked(
        options, may_be_none=bool(options.latency), parts=not options.compare
    )
    delay_ns = None
    try:
        latencies = reading.latencies(options)
        if latencies and options.compare:
            raise ConfigError("--latency is for 'run' without --compare, and for 'rank'")
        if not options.compare and reading.is_part(options.delay):
            targets = [reading.with_part(target, options.delay) for target in targets]
        else:
            delay_ns = reading.delay(options.delay)
        attached = _attached(options, excludes)
    except ConfigError as error:
        options.parser.error(str(error))
    runner = attached or Runner(
        options.command,
        excludes,
        show_output=options.show_output or not options.compare,
        to_stderr=options.json == "-",
        again=options.compare,
        inject=options.inject,
    )
    runner.latencies, runner.native_latencies = reading.split(latencies)
    if options.compare or any(target.dist != "fixed" for target in targets):
        options.seed = runner.seed = reading.seed(options)
        if not options.compare:
            say(f"delays are drawn from the seed {runner.seed} (--seed)")
    measure = compare if options.compare else run_once
    with forwarding_signals(), open_json(options.json) as output, runner:
        return measure(options, runner, targets, delay_ns, output)


def _attached(options: argparse.Namespace, excludes: list[Target]) -> Runner | None:
    """What attaches to processes; None: a command is to be run."""
    if not has_processes(options):
        if options.seconds is not None:
            raise ConfigError("--for needs --pid, --pid-tree or --name")
        return None
    if options.compare:
        raise ConfigError("--compare runs CMD several times: use 'rank' with --pid")
    from speed_bump.experiment.program.attached import AttachedRunner
    from speed_bump.process import command_of

    seconds = options.seconds
    pids = reading.processes(options)
    options.command = command_of(pids[0])
    return AttachedRunner(
        options.command,
        excludes,
        pids=pids,
        way=options.attach,
        seconds=None if seconds is None else reading.budget(seconds, "--for"),
    )


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
    if targets:
        sys.stderr.write(table.run_table(result, targets) + "\n")
    if result.durations:
        sys.stderr.write(durations.text(result.durations, result.wall_ns) + "\n")
    missing = not runner.attached_to and warn_if_nobody(runner, targets, result)
    none = missing or (bool(targets) and not say_uncalled(runner, targets, result))
    if not missing and not say_unrecorded(runner, result) and not targets:
        none = True
    value = table.run_json(options.command, result, runner.attached)
    value["latency"] = durations.as_json(result.durations, result.wall_ns)
    write_json(output, value)
    if runner.attached_to:
        say(f"detached from {runner.text}")
        return 0 if result.interrupted else int(none)
    if result.interrupted:
        return INTERRUPTED
    return result.status or int(none)


def compare(
    options: argparse.Namespace,
    runner: Runner,
    targets: list[Target],
    delay_ns: int | None,
    output: TextIO | None,
) -> int:
    """Alternate undelayed and delayed runs; a table at the end."""
    comparison = Comparison(options.command, options.runs, reading.seed(options))
    return _compared(comparison, runner, targets, delay_ns, output, options.json == "-")


def compare_runs(
    options: argparse.Namespace, ranking: Ranking, then: Callable[[Comparison], int]
) -> int:
    """As many runs in turns as there is time for; a table at the end.

    ``then`` has the results too, and gives the exit status if nothing failed.
    """
    assert ranking.experiment
    targets = list(ranking.experiment.targets)
    until = time.monotonic() + ranking.options.budget_s
    comparison = Comparison(
        options.command, MAX_BLOCKS, ranking.seed, before=ranking.record, until=until
    )
    delay_ns = reading.delay(options.delay)
    with open_json(options.json) as output:
        status = _compared(
            comparison, ranking.runner, targets, delay_ns, output, options.json == "-"
        )
    return status or (then(comparison) if comparison.trials else 0)


def _compared(
    comparison: Comparison,
    runner: Runner,
    targets: list[Target],
    delay_ns: int | None,
    output: TextIO | None,
    json_on_stdout: bool,
) -> int:
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
    if comparison.pilot:
        say_refused(comparison.pilot)
    if comparison.pilot and warn_if_nobody(runner, targets, comparison.pilot):
        return status or 1
    if not status or comparison.trials:
        # With the numbers for programs on stdout, those for people go elsewhere.
        print(results.as_text(comparison), file=sys.stderr if json_on_stdout else None)
        write_json(output, results.as_json(comparison))
    return status or (INTERRUPTED if comparison.interrupted else 0)


def say_refused(result: Result) -> None:
    """Say which C functions could not be slowed, and why."""
    for pattern, reason in result.refused:
        say(f"{pattern} can't be slowed: {reason}")


def say_uncalled(runner: Runner, targets: list[Target], result: Result) -> bool:
    """Say why targets were not called; whether some were."""
    from speed_bump.experiment import missing

    silent = [t for t in targets if not result.calls(t)]
    asked = {t.pattern for t in silent}
    for pattern, reason in result.refused:
        if pattern not in asked:
            say(f"{pattern} can't be slowed: {reason}")
    if not result.interrupted and (result.processes or any(t.native for t in silent)):
        called = {f.name for f in result.functions if f.calls}
        why = missing.reasons(
            silent, runner.command, result.imported, result.refused, called
        )
        for line in missing.lines(why):
            say(line)
    return len(silent) < len(targets)


def say_unrecorded(runner: Runner, result: Result) -> bool:
    """Say why durations were not recorded; whether some were."""
    from speed_bump.experiment import missing

    silent = [one for one in result.durations if not one.count]
    never = [one.name for one in silent if not one.begun]
    if not result.processes:
        # Python recorded nothing, and why is said elsewhere.
        never = [name for name in never if is_native(name)]
    for one in silent:
        if one.begun:
            say(missing.unended(one.name, "while the program ran"))
    if never and not result.interrupted:
        for line in missing.of_latencies(
            never, runner.command, result.imported, result.marks_not_asked_for
        ):
            say(line)
    return len(silent) < len(result.durations)


def warn_if_nobody(runner: Runner, targets: list[Target], result: Result) -> bool:
    """Say so if there are only Python targets and no process had them in force."""
    natives = runner.native_latencies or any(t.native for t in targets)
    if result.processes or natives or result.interrupted:
        return False
    say(why_nobody_reported(runner.command))
    return True


def open_json(path: str | None) -> AbstractContextManager[TextIO | None]:
    """Where numbers for programs go, if anywhere: a file, or stdout for "-"."""
    if path is None or path == "-":
        return nullcontext(sys.stdout if path else None)
    return open(path, "w", encoding="utf-8")


def write_json(output: TextIO | None, value: dict[str, Any]) -> None:
    if output:
        output.write(dumps(value))
