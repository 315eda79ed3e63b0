# SPDX-License-Identifier: MIT
"""The commands ``rank`` and ``sweep``: which functions matter, and how they respond."""

from __future__ import annotations

import argparse
import collections
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from speed_bump.command.options import (
    INTERRUPTED,
    PATTERNS,
    add_inject,
    add_latency,
    add_metric,
    add_processes,
    add_progress,
    add_targets,
    add_time,
    budget,
    delay,
    gather_checked,
    has_processes,
    latencies,
    new_file,
    processes,
    say,
    seed,
    split,
    with_command,
    write,
)
from speed_bump.config import ConfigError, Target
from speed_bump.experiment.show.encode import dumps

if TYPE_CHECKING:
    from speed_bump.command.conditions import Condition
    from speed_bump.experiment.errors import RankError
    from speed_bump.experiment.fit.verdict import Verdict
    from speed_bump.experiment.program.progress import Progress
    from speed_bump.experiment.program.runner import Runner
    from speed_bump.experiment.rank import Ranking
    from speed_bump.experiment.record import Record
    from speed_bump.experiment.runs.comparison import Comparison
    from speed_bump.experiment.show.live import Live
    from speed_bump.experiment.slots.experiment import Stages

SAVE_EVERY_S = 10.0

RANK_EPILOG = (
    PATTERNS
    + """
The unit of work is the first of these that exists: what --progress, --progress-regex
or --progress-metric names; calls of speed_bump.progress() in the program; without -t, a
unit that is found by watching the program; a whole run.

Without -t, the functions that take time are found by watching the program too.

examples:
  speed-bump rank -- python train.py
  speed-bump rank -t 'app.*:*' --progress app.server:handle -- python -m app
  speed-bump rank -t '__main__:*' --budget 2min -- python train.py
  speed-bump rank --pid 4711 --budget 2min
  speed-bump rank -t 'app:*' --fail-if 'headroom(app:parse) > 0.1' -- python -m app

exit status: 0; 1 if nothing could be measured; 2 for wrong usage; 3 if a --fail-if
holds; 130 if interrupted; that of CMD if it fails.
"""
)


def add(commands: Any) -> None:
    parser = _measuring(
        commands,
        "rank",
        help="find out which functions matter",
        description="Find out which of the functions that match limit the throughput of "
        "CMD, and what optimising each could gain at most.",
        epilog=RANK_EPILOG,
    )
    parser.add_argument(
        "-d", "--delay", metavar="DELAY", help="delay of a call (default: chosen)"
    )
    add_latency(
        parser, "measure what delays add to calls of MODULE:FUNCTION or PATH:SYMBOL"
    )
    parser = _measuring(
        commands,
        "sweep",
        help="measure the response to delays of several lengths",
        description="Measure how CMD responds to delays of several lengths in one "
        "function, or in each of a few.",
        epilog=PATTERNS,
    )
    parser.add_argument(
        "--levels",
        default="0.05,0.1,0.2,0.4,0.8",
        metavar="LIST",
        help="delays as fractions of a slot's time, at most 7 (%(default)s)",
    )


def _measuring(commands: Any, name: str, **texts: str) -> Any:
    """The parser of a command that measures functions, with the options that all have."""
    parser = with_command(commands, name, **texts)
    what = parser.add_argument_group("what to measure")
    add_targets(what)
    add_progress(what)
    add_metric(what)
    how = parser.add_argument_group("measuring")
    add_time(how, "60s", "longest time, from the first unit of work on")
    add_inject(how)
    how.add_argument(
        "--precision",
        type=float,
        default=0.05,
        metavar="X",
        help="half-width of criticality's interval that is narrow enough (0.05)",
    )
    how.add_argument(
        "--max-slowdown",
        default="20%",
        metavar="X",
        help="how much slower CMD may become while it is measured (20%%)",
    )
    how.add_argument(
        "--let-finish",
        action="store_true",
        help="let CMD run to its end, undelayed, after the experiment",
    )
    how.add_argument("--show-output", action="store_true", help="show CMD's output")
    add_processes(parser)
    out = parser.add_argument_group("results")
    out.add_argument("-o", "--output", metavar="FILE", help="keep the record in FILE")
    out.add_argument("--json", metavar="FILE", help="write JSON; - is stdout")
    out.add_argument("--html", metavar="FILE", help="write a page with everything")
    out.add_argument(
        "--flamegraph",
        metavar="FILE",
        help="write where a unit's time goes: .svg, .json (speedscope), .pb.gz (pprof)",
    )
    out.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="exit with 3 if 'headroom(mod:func) > 0.1' holds; or criticality()",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(perform=rank, levels=None, delay=None, latency=[])
    return parser


# ----------------------------------------------------------------------- options


def _slowdown(text: str) -> float:
    number = text.strip()
    try:
        value = float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError:
        raise ConfigError(f"--max-slowdown: {text!r} is not like 20%") from None
    if not 0.001 <= value <= 0.9:
        raise ConfigError("--max-slowdown: not between 0.1% and 90%")
    return value


def _levels(text: str | None) -> tuple[float, ...] | None:
    from speed_bump.experiment.record import MAX_LEVELS

    if text is None:
        return None
    try:
        levels = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        raise ConfigError(f"--levels: {text!r} is not a list of numbers") from None
    if not levels or levels[0] <= 0 or levels[-1] > 100:
        raise ConfigError("--levels: each is above 0 and at most 100")
    if len(levels) > MAX_LEVELS:
        raise ConfigError(f"--levels: at most {MAX_LEVELS}")
    return levels


def _check_units(unit: Progress, excludes: list[Target]) -> None:
    """What is excluded is not seen, so that it can't be a unit of work either."""
    from speed_bump import _core

    for function in unit.functions:
        for other in excludes:
            if _core.glob_match(other.left, function.left) and _core.glob_match(
                other.right, function.right
            ):
                raise ConfigError(
                    f"--progress {function.pattern}: {other.pattern!r} takes it out; a "
                    "unit of work must be seen"
                )


def _check_natives(names: list[str]) -> None:
    """Whether calls of native functions can be events, before anything starts.

    Raises:
        NativeError: they can't
    """
    from speed_bump.experiment.program.native_latency import NativeLatencies

    natives = split(names)[1]
    if natives:
        NativeLatencies(natives, events=True).close()


def _check_metric(unit: Progress, is_up: bool) -> None:
    """Whether it counts, as far as that is known before the program is started.

    Args:
        is_up: what runs already should answer
    """
    from speed_bump.experiment.program.metric import MetricError, Source

    if not unit.metric:
        return
    source = Source(unit.metric)
    try:
        source.read()
    except MetricError as error:
        # What CMD will serve does not answer yet, or a server has not counted yet.
        if (
            not error.waits
            or (is_up and error.absent)
            or (is_up and not error.has_answer)
        ):
            raise ConfigError(f"--progress-metric: {error}") from None
    finally:
        source.close()


# ------------------------------------------------------------------------- rank


@dataclass
class _Asked:
    """What the options ask for."""

    targets: list[Target]
    excludes: list[Target]
    seconds: float
    names: list[str]
    unit: Progress
    wanted: list[Condition]
    attached: Runner | None


def _asked(options: argparse.Namespace) -> _Asked:
    """What the options ask for; where that is not possible, a message and the end."""
    from speed_bump.command import conditions
    from speed_bump.experiment.show import export

    targets, excludes = gather_checked(options, may_be_none=options.verb == "rank")
    try:
        seconds = budget(options.budget)
        names = latencies(options)
        unit = _unit(options, names)
        _check_natives(names)
        wanted = [conditions.Condition(condition) for condition in options.fail_if]
        if not 0.001 <= options.precision <= 1:
            raise ConfigError("--precision: not between 0.001 and 1")
        _stages(options, seconds)  # what is wrong is said before anything starts
        _check_units(unit, excludes)
        _check_metric(unit, is_up=has_processes(options))
        attached = _attached(options, excludes, unit)
        if options.flamegraph:
            export.check(options.flamegraph)
    except (ConfigError, export.ExportError) as error:
        options.parser.error(str(error))
    return _Asked(targets, excludes, seconds, names, unit, wanted, attached)


def _runner(options: argparse.Namespace, asked: _Asked) -> Runner:
    from speed_bump.experiment.program.runner import Runner

    runner = asked.attached or Runner(
        options.command,
        asked.excludes,
        show_output=options.show_output,
        to_stderr=options.json == "-",
        again=True,
        inject=options.inject,
    )
    runner.latencies, runner.native_latencies = split(asked.names)
    return runner


def rank(options: argparse.Namespace) -> int:
    """Measure; a table at the end."""
    import speed_bump.experiment.algebra  # noqa: F401 (before all that uses numpy)
    from speed_bump import _core
    from speed_bump.experiment import archive
    from speed_bump.experiment.program.launch import forwarding_signals
    from speed_bump.experiment.rank import Ranking
    from speed_bump.experiment.show.live import Live
    from speed_bump.experiment.slots.experiment import Options

    asked = _asked(options)
    seconds, unit = asked.seconds, asked.unit
    path = options.output or new_file(options.verb)
    runner = _runner(options, asked)
    save = _Saving(path, archive.save)
    # In the order of their numbers.
    names = [*runner.latencies, *runner.native_latencies]
    # A table would be torn by the output of the program.
    live = Live(is_plain=options.show_output)
    ranking = Ranking(
        runner=runner,
        targets=asked.targets,
        progress=unit,
        options=Options(seconds, options.let_finish),
        make_stages=lambda: _stages(options, seconds),
        make_header=lambda drawn: _header(options, seconds, drawn, unit, names),
        watcher=live,
        changed=save.changed,
        max_slowdown=_slowdown(options.max_slowdown),
    )
    with ExitStack() as stack:
        stack.callback(live.close)
        # Runs look up the same functions repeatedly.
        _core.keep_files(True)
        stack.callback(_core.keep_files, False)
        stack.callback(lambda: save.tidy(ranking.record))
        stack.enter_context(forwarding_signals())
        stack.enter_context(runner)
        save.check()
        ranking.by_slots()
        if ranking.is_too_short:
            ranking.failure = _why_no_whole_runs(names, unit)
            if not ranking.failure:
                return _whole_runs(options, ranking, live, asked.wanted)
    if ranking.failure:
        sys.stderr.buffer.write(ranking.failure.output)
        say(str(ranking.failure))
    return _ended(options, ranking, save, asked.wanted)


def _ended(
    options: argparse.Namespace,
    ranking: Ranking,
    save: _Saving,
    wanted: list[Condition],
) -> int:
    """Show and save what was measured; the exit status."""
    from speed_bump.command import conditions

    record, failure = ranking.record, ranking.failure
    if not record.blocks:
        if ranking.interrupted:
            return INTERRUPTED
        return failure.status if failure else _nothing(ranking)
    _say_of_machine_code(ranking)
    save.now(record)
    status = conditions.status(wanted, _shown(options, record, save.path))
    if failure:
        return failure.status
    return INTERRUPTED if ranking.interrupted else status


def _shown(options: argparse.Namespace, record: Record, path: str) -> Verdict:
    """Show the results, and write them where they are wanted."""
    from speed_bump.experiment.fit.verdict import verdict
    from speed_bump.experiment.show import text

    found = verdict(record)
    on_stdout = options.json != "-"
    print(text.text(record, found), file=sys.stdout if on_stdout else sys.stderr)
    say(f"the record is in {path}; show it again: speed-bump report {path} --html")
    write(options.json, dumps(text.as_json(record, found)))
    if options.html:
        from speed_bump.experiment.show import html

        write(options.html, html.page(record, found))
    if options.flamegraph:
        refused = _flamegraph(record, found, options.flamegraph)
        if refused:
            say(refused)
    return found


def _why_no_whole_runs(names: list[str], unit: Progress) -> RankError | None:
    """Why a program that is too short for slots can't be measured; None: it can."""
    from speed_bump.experiment.errors import RankError

    for is_used, option in ((names, "--latency"), (unit.metric, "--progress-metric")):
        if is_used:
            return RankError(
                f"the program ends too soon for slots, which {option} needs: let it "
                "serve for longer"
            )
    return None


def _unit(options: argparse.Namespace, names: list[str]) -> Progress:
    """What a unit of work is: if it was not said, a call of what has latency.

    Raises:
        ConfigError: that is no function
    """
    from speed_bump.experiment.program import progress

    regex, metric = options.progress_regex, options.progress_metric
    if names and metric is not None:
        raise ConfigError(
            "--latency and --progress-metric: a histogram has its own latency; give one"
        )
    if options.progress or regex is not None or metric is not None:
        return progress.read(options.progress, regex, metric)
    functions = [name for name in names if ":" in name]
    if names and not functions:
        raise ConfigError(
            f"--latency {names[0]}: marks are no unit of work; say what one is with "
            "--progress"
        )
    return progress.read(functions[:1], None)


def _attached(
    options: argparse.Namespace, excludes: list[Target], unit: Progress
) -> Runner | None:
    """What attaches to processes; None: a command is to be run."""
    if not has_processes(options):
        return None
    if unit.regex:
        raise ConfigError(
            "--progress-regex is of a CMD: its output is read from the start"
        )
    from speed_bump.experiment.program.attached import AttachedRunner
    from speed_bump.process import command_of

    pids = processes(options)
    options.command = command_of(pids[0])
    return AttachedRunner(
        options.command, excludes, show_output=False, pids=pids, way=options.attach
    )


def _say_of_machine_code(ranking: Ranking) -> None:
    """Why native functions are not among those that were measured, for the report."""
    from speed_bump.experiment.aim import machine_code

    experiment = ranking.experiment
    if experiment and not any(target.native for target in experiment.targets):
        ranking.record.header["native_refused"] = machine_code.why_not()


def _flamegraph(record: Record, found: Any, path: str) -> str:
    """Write a flame graph; returns why there is none."""
    from speed_bump.experiment.show import export

    try:
        data = export.flamegraph(record, found, path)
    except export.ExportError as error:
        return str(error)
    with open(path, "wb") as file:
        file.write(data)
    return ""


def _stages(options: argparse.Namespace, seconds: float) -> tuple[Stages, int]:
    """What decides on blocks, and the seed that it draws from."""
    from speed_bump import _core
    from speed_bump.experiment.slots import stages, sweep

    drawn = seed(options)
    max_slowdown = _slowdown(options.max_slowdown)
    levels = _levels(options.levels)
    if levels is not None:
        return sweep.Sweep(levels, max_slowdown, drawn), drawn
    each = delay(options.delay)
    fixed: dict[str, int] = {} if each is None else collections.defaultdict(lambda: each)
    if options.latency:
        from speed_bump.experiment.slots.requests import Requests

        least_ns = max(_core.min_delay_ns(), 250)
        return Requests(max_slowdown, least_ns, drawn, fixed), drawn
    how = stages.Options(
        budget_s=seconds,
        precision=options.precision,
        max_slowdown=max_slowdown,
        min_delay_ns=max(_core.min_delay_ns(), 250),
        fixed=fixed,
    )
    return stages.Stages(how, drawn), drawn


class _Saving:
    """Keeps the record in its file while it grows."""

    def __init__(self, path: str, save: Callable[[Record, str], None]) -> None:
        self.path = path
        self._save = save
        self._due = 0.0
        self._new = False

    def check(self) -> None:
        """Whether it can be written at all: known before the first minute.

        Raises:
            OSError: it can't
        """
        self._new = not os.path.exists(self.path)
        with open(self.path, "ab"):
            pass

    def changed(self, record: Record) -> None:
        """Save it, if that was not done for a while."""
        if record.blocks and time.monotonic() >= self._due:
            began = time.monotonic()
            self._save(record, self.path)
            # A record of hours takes a while to be written.
            took = time.monotonic() - began
            self._due = time.monotonic() + max(SAVE_EVERY_S, 50 * took)

    def now(self, record: Record) -> None:
        self._save(record, self.path)

    def tidy(self, record: Record) -> None:
        """Remove the file if this run made it, and has no record."""
        if self._new and not record.blocks and os.path.exists(self.path):
            os.unlink(self.path)


def _whole_runs(
    options: argparse.Namespace, ranking: Ranking, live: Live, wanted: list[Condition]
) -> int:
    """A program that ends too soon: runs in turns, as many as the budget has room for."""
    from speed_bump.command import conditions
    from speed_bump.command.run import compare_runs
    from speed_bump.experiment.runs import results

    goes_on = ranking.look_at_a_whole_run()
    live.close()
    if not goes_on:
        return INTERRUPTED
    _say_of_machine_code(ranking)

    def then(comparison: Comparison) -> int:
        found, record = results.as_verdict(comparison), results.as_record(comparison)
        if options.html:
            from speed_bump.experiment.show import html

            write(options.html, html.page(record, found))
        if options.flamegraph:
            refused = _flamegraph(record, found, options.flamegraph)
            if refused:
                say(refused)
        return conditions.status(wanted, found)

    return compare_runs(options, ranking, then)


def _nothing(ranking: Ranking) -> int:
    from speed_bump.duration import human
    from speed_bump.experiment.slots.budget import FEWEST_SLOTS

    budget_s = ranking.options.budget_s
    text = (
        f"nothing was measured: the budget of {budget_s:.0f} s was used up before the "
        "first delay"
    )
    unit_ns = ranking.experiment.unit_ns if ranking.experiment else 0
    # As many with delays as without.
    need_s = 2 * FEWEST_SLOTS * unit_ns / 1e9 if unit_ns else 0.0
    if need_s > budget_s:
        text += (
            f"; a unit of work takes {human(unit_ns)}: give --budget "
            f"{need_s:.0f}s or more, or name a shorter unit with --progress"
        )
    elif unit_ns:
        text += (
            f", on this machine, as it is now: give --budget {math.ceil(2 * budget_s)}s "
            "or more"
        )
    say(text)
    return 1


def _header(
    options: argparse.Namespace,
    seconds: float,
    drawn: int,
    unit: Progress,
    names: list[str],
) -> dict[str, Any]:
    from speed_bump import __version__
    from speed_bump.experiment.program.environment import environment

    return {
        "version": __version__,
        "verb": options.verb,
        "command": options.command,
        "targets": [*options.target, *(f"native:{t}" for t in options.native)],
        "seed": drawn,
        "budget_s": seconds,
        "precision": options.precision,
        "max_slowdown": options.max_slowdown,
        "unit": unit.text,
        "latency": names,
        "environment": environment(),
    }
