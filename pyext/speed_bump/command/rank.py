# SPDX-License-Identifier: MIT
"""The verbs of ``speed-bump`` but ``run``: what measures, and what shows its files."""

from __future__ import annotations

import argparse
import glob
import json
import os
import random
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from speed_bump import duration
from speed_bump.config import ConfigError, Target
from speed_bump.experiment import progress, records, show
from speed_bump.experiment.judge import Finding, Judge, Verdict
from speed_bump.experiment.program.launch import forwarding_signals
from speed_bump.experiment.rank import Experiment, Options, RankError
from speed_bump.experiment.records import Record, RecordError, Writer
from speed_bump.experiment.show.table import Ticker
from speed_bump.experiment.program.runner import Runner

FAILED_CONDITION = 3
INTERRUPTED = 130
Gather = Callable[[argparse.Namespace], tuple[list[Target], list[Target]]]

PATTERNS = """\
A PATTERN is MODULE:FUNCTION with globs, such as 'json.*:dumps' or '*/app/*:Server.*';
MODULE is a module's dotted name or its file. 'native:PATH:SYMBOL' is a native function.
"""

RANK_EPILOG = (
    PATTERNS
    + """
A unit of work is, in this order: what --progress or --progress-regex says, what the
program says by speed_bump.progress(), a whole run.

examples:
  speed-bump rank -t 'app.*:*' --progress app.server:handle -- python -m app
  speed-bump rank -t '__main__:*' --budget 2min -- python train.py
  speed-bump rank -t 'app:*' --fail-if 'headroom(app:parse) > 0.1' -- python -m app

exit status: 0; 1 if nothing could be measured; 2 for wrong usage; 3 if a --fail-if
holds; 130 if interrupted; that of CMD if it fails.
"""
)


def add(commands: Any) -> None:
    """Add the verbs to the command line."""
    _add_rank(commands)
    _add_sweep(commands)
    _add_report(commands)
    _add_compare(commands)
    _add_check(commands)


def add_targets(what: Any) -> None:
    """Add the options that name functions, the same for every verb."""
    what.add_argument("-t", "--target", action="append", default=[], metavar="PATTERN")
    what.add_argument("--targets", metavar="FILE", help="a pattern a line")
    what.add_argument(
        "--native",
        action="append",
        default=[],
        metavar="PATH:SYMBOL",
        help="a native function (as root, or by the kernel module)",
    )


def _with_command(commands: Any, name: str, **texts: str) -> Any:
    """The parser of a verb that runs CMD."""
    parser = commands.add_parser(
        name,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **{"usage": f"speed-bump {name} [options] -- CMD [ARG]...", **texts},
    )
    parser.set_defaults(parser=parser)
    return parser


def _add_progress(what: Any) -> None:
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


def _add_time(how: Any, budget: str, text: str) -> None:
    how.add_argument(
        "--budget", default=budget, metavar="TIME", help=f"{text} ({budget})"
    )
    how.add_argument("--seed", type=int, help="of all random choices")


def _measuring(commands: Any, name: str, **texts: str) -> Any:
    """A verb that measures functions: its parser, with all that these have in common."""
    parser = _with_command(commands, name, **texts)
    what = parser.add_argument_group("what to measure")
    add_targets(what)
    _add_progress(what)
    how = parser.add_argument_group("measuring")
    _add_time(how, "60s", "at most so long")
    how.add_argument(
        "--window", metavar="TIME", help="length of a window (chosen, 2ms to 20ms)"
    )
    how.add_argument(
        "--precision",
        type=float,
        default=0.05,
        metavar="X",
        help="half the interval of the criticality that is enough (0.05)",
    )
    how.add_argument(
        "--let-finish",
        action="store_true",
        help="let CMD run to its end, undelayed, when all is measured",
    )
    how.add_argument("--show-output", action="store_true", help="CMD's output")
    out = parser.add_argument_group("results")
    out.add_argument("-o", "--output", metavar="FILE", help="keep all pairs in FILE")
    out.add_argument(
        "--json", metavar="FILE", help="the numbers for programs; - is stdout"
    )
    out.add_argument("--html", metavar="FILE", help="a page with all of it")
    out.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="exit with 3 if it holds: 'headroom(mod:func) > 0.1', also criticality()",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(perform=rank, levels=None, delay=None)
    return parser


def _add_rank(commands: Any) -> None:
    parser = _measuring(
        commands,
        "rank",
        help="find out which functions matter",
        description="Find out which of the functions that match limit the throughput of "
        "CMD, and what optimising each could gain at most.",
        epilog=RANK_EPILOG,
    )
    parser.add_argument(
        "-d", "--delay", metavar="DELAY", help="shortest delay of a call (chosen)"
    )


def _add_sweep(commands: Any) -> None:
    parser = _measuring(
        commands,
        "sweep",
        help="the response of one function to delays of several lengths",
        description="Measure how CMD responds to delays of several lengths in one "
        "function, or in each of a few.",
        epilog=PATTERNS,
    )
    parser.add_argument(
        "--levels",
        default="0.05,0.1,0.2,0.4,0.8,1.6",
        metavar="LIST",
        help="delays, in parts of the time of a unit (%(default)s)",
    )


def _add_report(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="show what a file of rank or sweep says",
        description="Estimate again from the pairs in FILE, and show it.",
    )
    parser.add_argument("file", metavar="FILE", nargs="?", help="(the newest)")
    form = parser.add_mutually_exclusive_group()
    for name, text in (
        ("text", "a table (this is usual)"),
        ("md", "Markdown"),
        ("csv", "for spreadsheets"),
        ("json", "for programs"),
        ("html", "a page that needs nothing else"),
    ):
        form.add_argument(
            f"--{name}", dest="form", action="store_const", const=name, help=text
        )
    parser.add_argument("--all", action="store_true", help="every function in the table")
    parser.add_argument("-o", "--output", metavar="FILE", help="write it there")
    parser.add_argument("--fail-if", action="append", default=[], metavar="CONDITION")
    parser.set_defaults(parser=parser, perform=report, form="text")


def _add_compare(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="what changed from one file of rank or sweep to another",
        description="Estimate again from the pairs in A and in B, and show which "
        "functions matter more or less in B, and how sure that is.",
    )
    parser.add_argument("files", metavar="FILE", nargs=2, help="A, and B")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("-o", "--output", metavar="FILE", help="write it there")
    parser.set_defaults(parser=parser, perform=compare)


def _add_check(commands: Any) -> None:
    parser = _with_command(
        commands,
        "check",
        help="what can be measured here, and how soon",
        usage="speed-bump check [options] [-- CMD [ARG]...]",
        description="Say how small an effect can be seen in what time on this machine, "
        "whether clocks and delays are right and CPUs are free, and what slows native "
        "functions here. Measured on a program whose answer is known, or on CMD, without "
        "delays.",
        epilog="exit status: 0 if results taken now are to be trusted, else 1",
    )
    what = parser.add_argument_group("a program to measure on")
    _add_progress(what)
    _add_time(parser, "8s", "measure about so long")
    parser.add_argument("--json", action="store_true", help="for programs")
    # As with the others, but it may be missing.
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(perform=check)


# ------------------------------------------------------------------------ rank


def rank(options: argparse.Namespace, gather: Gather) -> int:
    """Measure; a table at the end."""
    targets, excludes = gather(options)
    try:
        how = _options(options)
        unit = progress.read(options.progress, options.progress_regex)
        conditions = [Condition(text) for text in options.fail_if]
        _check_units(unit, excludes)
    except ConfigError as error:
        options.parser.error(str(error))
    path = options.output or _new_file(options.verb)
    runner = Runner(
        options.command,
        excludes,
        show_output=options.show_output,
        to_stderr=options.json == "-",
        again=True,
    )
    header = _header(options, how, unit)
    failure: RankError | None = None
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        writer = Writer(header, file)
        experiment = Experiment(runner, targets, unit, how, writer, Ticker())
        with forwarding_signals(), runner:
            try:
                experiment.run()
                failure = experiment.failed
            except RankError as error:
                failure = error
    if failure:
        sys.stderr.buffer.write(failure.output)
        say(str(failure))
    record = writer.record
    if not record.pairs:
        if not options.output:
            os.unlink(path)
        if experiment.interrupted:
            return INTERRUPTED
        return failure.status if failure else _nothing(experiment)
    verdict = Judge(record, precision=how.precision).verdict()
    on_stdout = options.json != "-"
    print(show.text(record, verdict), file=sys.stdout if on_stdout else sys.stderr)
    say(f"all pairs are in {path}; show them again: speed-bump report {path} --html")
    _write(options.json, json.dumps(show.as_json(record, verdict), indent=2) + "\n")
    if options.html:
        from speed_bump.experiment import html

        _write(options.html, html.page(record, verdict))
    status = _check(conditions, verdict)
    if failure:
        return failure.status
    return INTERRUPTED if experiment.interrupted else status


def _check_units(unit: progress.Progress, excludes: list[Target]) -> None:
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


def _nothing(experiment: Experiment) -> int:
    say(
        "nothing was measured: the budget of "
        f"{experiment.options.budget_s:.0f} s was used up before the first pair"
    )
    return 1


def _options(options: argparse.Namespace) -> Options:
    def ns(text: str | None, name: str) -> int | None:
        if text is None:
            return None
        try:
            return duration.parse(text)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from None

    seconds = _budget(options.budget)
    window = ns(options.window, "--window")
    if window is not None and not 100_000 <= window <= 10_000_000_000:
        raise ConfigError("--window: not between 100us and 10s")
    if not 0.001 <= options.precision <= 1:
        raise ConfigError("--precision: not between 0.001 and 1")
    return Options(
        seconds,
        _seed(options),
        ns(options.delay, "-d"),
        window,
        _levels(options.levels),
        options.precision,
        options.let_finish,
    )


def _budget(text: str) -> float:
    # People think of it in seconds and minutes.
    minutes = re.fullmatch(r"([0-9.]+)\s*min", text)
    try:
        if minutes:
            seconds = float(minutes[1]) * 60
        elif re.fullmatch(r"[0-9.]+", text):
            seconds = float(text)
        else:
            seconds = duration.parse(text) / 1e9
    except ValueError:
        raise ConfigError(f"--budget: {text!r} is not a time such as 60s") from None
    if not 0.5 <= seconds <= 1e6:
        raise ConfigError(f"--budget: {text!r} is not between 0.5 s and 12 days")
    return seconds


def _seed(options: argparse.Namespace) -> int:
    if options.seed is None:
        return random.SystemRandom().randrange(2**32)
    return int(options.seed)


def _levels(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        levels = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        raise ConfigError(f"--levels: {text!r} is not a list of numbers") from None
    if not levels or levels[0] <= 0 or levels[-1] > 100:
        raise ConfigError("--levels: each is above 0 and at most 100")
    return levels


def _header(
    options: argparse.Namespace, how: Options, unit: progress.Progress
) -> dict[str, Any]:
    from speed_bump import __version__

    return {
        "format": records.FORMAT,
        "version": __version__,
        "verb": options.verb,
        "command": options.command,
        "targets": [*options.target, *(f"native:{t}" for t in options.native)],
        "seed": how.seed,
        "budget_s": how.budget_s,
        "precision": how.precision,
        "unit": unit.text,
        "candidates": [],
        "environment": records.environment(),
    }


def _directory() -> str:
    """Where experiments are kept that nobody names a file for."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "speed-bump")


def _new_file(verb: str) -> str:
    directory = _directory()
    os.makedirs(directory, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return os.path.join(directory, f"{verb}-{stamp}-{os.getpid()}.jsonl")


# ---------------------------------------------------------------------- report


def report(options: argparse.Namespace, _: Gather) -> int:
    """Show a file."""
    try:
        conditions = [Condition(text) for text in options.fail_if]
    except ConfigError as error:
        options.parser.error(str(error))
    path = options.file or newest()
    if path is None:
        say("no FILE given, and there is none of an earlier 'speed-bump rank'")
        return 1
    try:
        record = records.read(path)
    except RecordError as error:
        say(str(error))
        return 1
    precision = record.header.get("precision", 0.05)
    verdict = Judge(record, precision=precision).verdict()
    _write(options.output or "-", _form(options, record, verdict))
    return _check(conditions, verdict)


def _form(options: argparse.Namespace, record: Record, verdict: Verdict) -> str:
    if options.form == "json":
        return json.dumps(show.as_json(record, verdict), indent=2) + "\n"
    if options.form == "csv":
        return show.table_csv(verdict)
    if options.form == "md":
        return show.markdown(record, verdict) + "\n"
    if options.form == "html":
        from speed_bump.experiment import html

        return html.page(record, verdict)
    return show.text(record, verdict, None if options.all else show.MOST_ROWS) + "\n"


def compare(options: argparse.Namespace, _: Gather) -> int:
    """Two files beside one another."""
    from speed_bump.experiment import changes

    try:
        a, b = (records.read(path) for path in options.files)
    except RecordError as error:
        say(str(error))
        return 1
    found = changes.compare(a, b)
    if options.json:
        text = json.dumps(changes.as_json(found, options.files), indent=2) + "\n"
    else:
        text = changes.text(found)
    _write(options.output or "-", text)
    return 0


# ----------------------------------------------------------------------- check


def check(options: argparse.Namespace, _: Gather) -> int:
    """Whether this is a place to measure."""
    from speed_bump.experiment import check as checking

    command = options.program[options.program[:1] == ["--"] :]
    try:
        seconds = _budget(options.budget)
        unit = progress.read(options.progress, options.progress_regex)
    except ConfigError as error:
        options.parser.error(str(error))
    if not command and unit.text:
        options.parser.error("--progress is of a CMD: speed-bump check [options] -- CMD")
    try:
        with forwarding_signals():
            found = checking.check(command, unit, seconds, _seed(options))
    except RankError as error:
        sys.stderr.buffer.write(error.output)
        say(str(error))
        return error.status
    if options.json:
        _write("-", json.dumps(checking.as_json(found), indent=2) + "\n")
    else:
        _write("-", checking.text(found))
    return 0 if found.is_good else 1


def newest() -> str | None:
    """The last experiment that nobody named a file for."""
    files = glob.glob(os.path.join(glob.escape(_directory()), "*.jsonl"))
    return max(files, key=os.path.getmtime, default=None)


# ------------------------------------------------------------------ conditions


class Condition:
    """Something like ``headroom(mod:func) > 0.1``.

    It holds if it does for certain: for the whole interval of a function whose name, or
    glob, is given.

    Raises:
        ConfigError: it can't be read
    """

    def __init__(self, text: str) -> None:
        """Read it."""
        match = re.fullmatch(
            r"\s*(headroom|criticality)\(\s*(.+?)\s*\)\s*(<|>)\s*([-+.\deE]+)\s*", text
        )
        if not match:
            raise ConfigError(
                f"--fail-if: {text!r} is not like 'headroom(mod:func) > 0.1' "
                "(headroom or criticality, < or >)"
            )
        self.text = text.strip()
        self.what, self.pattern, self.sign = match[1], match[2], match[3]
        try:
            self.limit = float(match[4])
        except ValueError:
            raise ConfigError(f"--fail-if: {match[4]!r} is not a number") from None

    def matching(self, verdict: Verdict) -> list[Finding]:
        """The functions that it is about."""
        from speed_bump import _core

        return [f for f in verdict.findings if _core.glob_match(self.pattern, f.name)]

    def holds(self, finding: Finding) -> bool | None:
        """Whether it holds; None: the data don't tell."""
        interval = finding.headroom if self.what == "headroom" else finding.criticality
        if interval is None or not finding.supported:
            return None
        if self.sign == ">":
            surely, possibly = interval.low > self.limit, interval.high > self.limit
        else:
            surely, possibly = interval.high < self.limit, interval.low < self.limit
        return True if surely else None if possibly else False


def _check(conditions: list[Condition], verdict: Verdict) -> int:
    status = 0
    for condition in conditions:
        found = condition.matching(verdict)
        if not found:
            say(f"--fail-if: no function is called {condition.pattern}")
            status = status or 1
        for finding in found:
            holds = condition.holds(finding)
            name = finding.name
            if holds:
                say(f"failed: {condition.text} ({name}, {_of(condition, finding)})")
                status = FAILED_CONDITION
            elif holds is None:
                say(f"not known: {condition.text} ({name}: {finding.verdict})")
    return status


def _of(condition: Condition, finding: Finding) -> str:
    if condition.what == "headroom":
        return show.percent(finding.headroom)
    return show.number(finding.criticality)


def _write(path: str | None, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
    elif path:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def say(text: str) -> None:
    """A line on stderr."""
    sys.stderr.write(f"speed-bump: {text}\n")
