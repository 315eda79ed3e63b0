# SPDX-License-Identifier: MIT
"""Finding targets and the unit of work by watching a run of the program.

All of the program's Python functions are counted, and its stacks sampled, until it works
at an even pace. Candidates are the functions that take time. The unit of work is reported
by the program, or is a known call of a framework, or the steadiest call.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from speed_bump.config import Target, parse_targets
from speed_bump.control import EXIT_POINT
from speed_bump.experiment import symbols
from speed_bump.experiment.aim import frameworks, machine_code, natives
from speed_bump.experiment.aim.launcher import NO_PYTHON_S, Launch
from speed_bump.experiment.aim.look import Looked, watch
from speed_bump.experiment.aim.natives import Natives
from speed_bump.experiment.aim.shares import (
    Shares,
    by_worth,
    candidates,
    room,
    shares,
)
from speed_bump.experiment.aim.unit import Steady
from speed_bump.experiment.errors import RankError
from speed_bump.experiment.program.elsewhere import interpreter
from speed_bump.experiment.program.late_python import PythonStarted
from speed_bump.experiment.program.processes import apart, is_python, tree
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner, why_nobody_reported
from speed_bump.experiment.program.stacks import Stacks
from speed_bump.experiment.program.workload import Workload
from speed_bump.process import command_of

# Functions times processes: enough for all calls of a large program.
LARGE = 1 << 16
# How often a program that was taken for machine code may start Python after all.
MAX_LAUNCHES = 3
# A short program is run at most this many times, until it was seen at work for this long.
MAX_RUNS = 8
ENOUGH_S = 1.5
# Directories of installed packages, which may be below the program's own.
LIBRARIES = {"site-packages", "dist-packages"}


@dataclass
class Aim:
    """The candidates and the unit of work.

    ``candidates`` are the functions to be measured, with their part of the time including
    callees, the best first; ``others`` take time too and are left out. ``why`` says how
    the unit was found; ``units`` are all possible units, with calls a second.
    ``cpu_share`` is the part of the wanted CPU time that the program had. ``natives`` are
    the targets of the native functions of a Python program among the candidates,
    ``left_out`` has the reasons for other native functions, and ``native_refused`` says
    why there are none at all; ``readable`` has their mangled names. ``first_unit_at`` is
    when the first unit began, at the earliest, in seconds of the monotonic clock;
    ``to_first_s`` is how long after the start of its run, and ``first_line_s`` how long
    after it the unit was said.
    """

    candidates: dict[str, float] = field(default_factory=dict)
    others: dict[str, float] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    why: str = ""
    unit_name: str = ""
    units: dict[str, float] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    shares: Shares = field(default_factory=Shares)
    stacks: Stacks = field(default_factory=Stacks)
    seconds: float = 0.0
    import_s: float = 0.0
    imported: str = ""
    goes_on: bool = False
    machine_code: str = ""
    cpu_share: float = 1.0
    natives: dict[str, Target] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    native_refused: str = ""
    readable: dict[str, str] = field(default_factory=dict)
    first_unit_at: float = 0.0
    to_first_s: float = 0.0
    first_line_s: float = 0.0

    def targets(self) -> list[Target]:
        """A target for each candidate, whatever characters its name contains."""
        return [
            machine_code.target_of(name)
            if self.machine_code
            else self.natives.get(name) or exactly(name)
            for name in self.candidates
        ]

    @property
    def rate(self) -> float:
        """Units of work a second; 0 if unknown."""
        point = f"progress point {self.unit_name!r}"
        return self.units.get(self.unit_name) or self.units.get(point) or 0.0

    @property
    def has_native(self) -> bool:
        """Whether C functions are among the candidates."""
        return bool(self.shares.native & set(self.candidates))

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        own, names = self.shares.own, [*self.candidates, *self.others]
        return {
            "shares": self.candidates,
            "self": {name: own.get(name, 0.0) for name in names},
            "others": self.others,
            "waiting": self.shares.waiting,
            "callers": self.shares.callers,
            "importing": self.shares.importing,
            "import_s": self.import_s,
            "imported": self.imported,
            "speed_bump": self.shares.ours,
            "native": sorted(self.shares.native & set(names)),
            "machine": sorted(self.shares.machine & set(names)),
            "native_left_out": self.left_out,
            "readable": self.readable,
            "unit": self.progress.text,
            "units": self.units,
            "rates": self.rates,
            "why": self.why,
            "first_line_s": self.first_line_s,
        }

    def say(self, first: Callable[[Aim], None]) -> None:
        """Say the unit and the waits, which are known before the candidates."""
        self.first_line_s = time.monotonic() - self.first_unit_at
        first(self)


def exactly(name: str) -> Target:
    """A target for one function, whatever characters its name contains."""
    left, _, right = name.rpartition(":")
    return parse_targets(f"{glob.escape(left)}:{glob.escape(right)}", "function")[0]


def owner(command: Sequence[str]) -> Callable[[str], bool]:
    """Whether a function is of the program that ``command`` starts, not of a library."""
    places = {os.getcwd()}
    for word in command:
        if word.endswith(".py") and os.path.exists(word):
            places.add(os.path.dirname(os.path.abspath(word)))
    known: dict[str, bool] = {"__main__": True, "__mp_main__": True}

    def is_own(name: str) -> bool:
        if name.startswith("/"):
            return not LIBRARIES & set(name.split("/")) and any(
                name.startswith(f"{place}/") for place in places
            )
        top = name.rpartition(":")[0].partition(".")[0]
        if top not in known:
            paths = [os.path.join(place, top) for place in places]
            known[top] = top not in sys.stdlib_module_names and any(
                os.path.isdir(path) or os.path.exists(f"{path}.py") for path in paths
            )
        return known[top]

    return is_own


def aim(
    runner: Runner,
    progress: Progress,
    seconds: float,
    now: Callable[[str], None],
    *,
    event: Callable[[str], None] = lambda _: None,
    first: Callable[[Aim], None] = lambda _: None,
    budget_s: float = 60.0,
    max_slowdown: float = 0.2,
    named: bool = False,
    python_s: float = 0.0,
) -> Aim:
    """Run the program until it works at an even pace, within a time limit, and end it.

    Args:
        progress: the unit of work, if it was named
        seconds: longest time after the end of its imports
        now: called with the current activity
        event: called with lines to print
        first: called with the unit and the waits as soon as they are known; the
            candidates may take some seconds more
        budget_s: the time for measuring the candidates
        max_slowdown: the slowdown allowed while they are measured, as a part
        named: targets were named, and only the unit is looked for
        python_s: the time from the start to the first Python process, in an earlier run

    Raises:
        RankError: nothing was found to measure, with the reason
        LaunchError: from starting the program
    """
    refused = "" if named else machine_code.why_not()
    running = runner.attached_to
    if running and all(map(command_of, running)) and not any(map(is_python, running)):
        path = _file_of_running(running[0])
        aimed = _of_machine_code(
            runner, path, progress, seconds, now, event, budget_s, max_slowdown, named
        )
        aimed.say(first)
        return aimed
    if not named and (other := apart(running)):
        refused = refused or f"process {other} is not below process {running[0]}"
    with_python = _WithPython(runner, progress, now, event, first, refused, named)
    for _ in range(MAX_LAUNCHES):
        until_s = 2 * python_s + NO_PYTHON_S if python_s else 0.0
        limit_s = max(seconds, budget_s, until_s)
        launch = Launch(limit_s, until_s, refused)
        with_python.looked = looked = Looked(budget_s)
        found = with_python.look(seconds, launch, max_slowdown)
        if found:
            with_python.choose(found, budget_s)
            if not named and not found.candidates:
                raise RankError(_why_nothing(found.shares))
            return found
        path = looked.executable or _file_of(runner.command)
        if not path:
            break
        try:
            found = _of_machine_code(
                runner, path, progress, seconds, now, event, budget_s, max_slowdown, named
            )
        except PythonStarted as started:
            event(f"{started}: looking at it")
            python_s = started.seconds
            continue
        # It had begun in the run in which Python was waited for.
        found.first_unit_at = min(found.first_unit_at, looked.begins[1])
        found.say(first)
        return found
    why = why_nobody_reported(runner.command)
    if looked.goes_on:
        why += (
            f"; after {limit_s:.0f} s of waiting, the program is still running: give a "
            "longer --budget if it starts Python later"
        )
    raise RankError(why)


@dataclass
class _WithPython:
    """Looking at a program with Python: arguments as of ``aim()``, and what was found.

    Args:
        refused: why native functions can't be measured; "": they can
    """

    runner: Runner
    progress: Progress
    now: Callable[[str], None]
    event: Callable[[str], None]
    first: Callable[[Aim], None]
    refused: str
    named: bool
    looked: Looked = field(default_factory=Looked)
    _names: list[str] = field(default_factory=list)
    _seen: Natives | None = None

    def look(self, seconds: float, launch: Launch, max_slowdown: float) -> Aim | None:
        """Look at one run or at several; None: there seems to be no Python."""
        looked = self.looked
        looking, everything = self._looking(), parse_targets("*:*", "found")
        is_native = not self.named and not self.refused
        is_own = owner(self.runner.command)
        found: Aim | None = None
        while found is None:
            with Workload(
                looking, everything, self.progress, LARGE, calls=True
            ) as program:
                watch(
                    program,
                    looked,
                    seconds,
                    self.now,
                    self.event,
                    is_own,
                    launch,
                    native=is_native,
                )
                _check_end(program)
                if not looked.processes or (program.is_running() and not looked.windows):
                    # A program that has ended, or is machine code, is run in another way.
                    return None
                if looked.is_enough(ENOUGH_S, MAX_RUNS):
                    found, self._names = _found(looked, self.progress, is_own)
                    found.say(self.first)
                looked.native.add(program.sampler.end_native_looks())
                if found and program.is_running():
                    self._count(found, program, max_slowdown)
                _check_end(program)
            if not found and looked.runs == 1:
                self.event(
                    f"the program has ended after {looked.seconds:.1f} s of work: it is "
                    "run again to see more of it"
                )
            elif not found:
                self.now("the program is short: running it again")
        if self._seen is None and is_native and looked.native.looks:
            # What is called once in a short run may be called at its start.
            self._seen, wanted = _askable(
                looked, self.progress, found, self._names, self.now
            )
            if wanted:
                counting = natives.Counting(self._seen, wanted)
                self._seen = count_whole_run(
                    looking, self.progress, counting, max_slowdown, looked.import_s
                )
        return found

    def _looking(self) -> Runner:
        genexpr = parse_targets("!*:*<genexpr>", "found")
        looking = replace(self.runner, excludes=[*self.runner.excludes, *genexpr])
        looking.borrow(self.runner)
        return looking

    def _count(self, found: Aim, program: Workload, max_slowdown: float) -> None:
        """Count the calls of native functions in the running program."""
        seen, wanted = _askable(self.looked, self.progress, found, self._names, self.now)
        if wanted:
            with natives.Counting(seen, wanted) as counting:
                counting.begin(program.pid)
                seen = counting.finish(program.is_running, max_slowdown)
        # If it has ended meanwhile, nothing could be counted.
        if seen.asked or seen.refused or program.is_running():
            self._seen = seen

    def choose(self, found: Aim, budget_s: float) -> None:
        is_own = owner(self.runner.command)
        _choose(found, self._names, self._seen or Natives(), is_own, budget_s)
        found.native_refused = self.refused or found.native_refused


def count_whole_run(
    runner: Runner,
    progress: Progress,
    counting: natives.Counting,
    max_slowdown: float,
    import_s: float,
) -> Natives:
    """Count calls in a run of its own, from its start to its end or until they are known.

    Args:
        import_s: its imports take this long

    Raises:
        RankError: it failed
        KeyboardInterrupt: it was interrupted
    """
    everything = parse_targets("*:*", "found")
    with (
        counting,
        Workload(
            runner, everything, progress, LARGE, calls=True, starts=counting.begin
        ) as program,
    ):
        seen = counting.finish(program.is_running, max_slowdown, import_s)
        _check_end(program)
    return seen


def _check_end(program: Workload) -> None:
    """If the program has ended, check how.

    Raises:
        RankError: it failed
        KeyboardInterrupt: it was interrupted
    """
    if program.is_running():
        return
    ended = program.wait()
    if ended.interrupted:
        raise KeyboardInterrupt
    if ended.status:
        text = f"the program failed with status {ended.status}"
        raise RankError(text, ended.status, program.output())


def _askable(
    looked: Looked,
    progress: Progress,
    found: Aim,
    names: Sequence[str],
    now: Callable[[str], None],
) -> tuple[Natives, list[tuple[natives.Key, Target]]]:
    """The native functions that are worth a breakpoint, and why others are not.

    Args:
        names: the candidates so far
    """
    if looked.native.refused:
        return Natives(refused=looked.native.refused), []
    now("counting the native functions that take time")
    seen = Natives(weighed=natives.weigh(looked.native))
    callables = [name for name in names if name in found.shares.native]
    return seen, natives.askable(seen, progress.targets, callables)


def _file_of_running(pid: int) -> str:
    """The executable of a process without Python.

    Raises:
        RankError: Python is below it, or its files are not those that are seen here
    """
    if tree(pid)[1:]:
        raise RankError(
            f"process {pid} runs no Python, but some below it do: use --pid-tree {pid}"
        )
    path = os.path.realpath(f"/proc/{pid}/exe")
    try:
        is_here = os.path.samefile(f"/proc/{pid}/exe", path)
        is_here = is_here and os.path.samefile(f"/proc/{pid}/root", "/")
    except OSError:
        is_here = False
    if not is_here:
        raise RankError(
            f"process {pid} runs no Python, and its file {path} can't be read here, or "
            "is a different one there: name functions with --native"
        )
    return path


def _file_of(command: Sequence[str]) -> str:
    """The executable of a command that has ended; "" if it was no machine code."""
    path = os.path.realpath(shutil.which(command[0]) or "")
    is_python = interpreter(command) is not None
    return path if not is_python and machine_code.is_executable(path) else ""


def _of_machine_code(
    runner: Runner,
    path: str,
    progress: Progress,
    seconds: float,
    now: Callable[[str], None],
    event: Callable[[str], None],
    budget_s: float,
    max_slowdown: float,
    named: bool,
) -> Aim:
    """The candidates of a program without Python, or, if targets were named, its unit."""
    refused = machine_code.why_not()
    if refused:
        why = (
            f"there is no CPython in process {runner.attached_to[0]}"
            if runner.attached_to
            else why_nobody_reported(runner.command)
        )
        raise RankError(
            f"{why}; and native functions of {os.path.basename(path)} can't be delayed: "
            f"{refused}"
        )
    seen = machine_code.look(runner, path, seconds, now, event)
    if not seen.own and not (named and seen.steady):
        raise RankError(
            f"no function of {path} was seen to take time"
            + (f" ({seen.refused})" if seen.refused else "")
            + (
                ": name a unit of work with --progress"
                if named
                else ": name functions with --native"
            )
        )
    names = list(seen.own)
    found = Aim(progress=progress, why="as it was named", rates=seen.rates)
    found.machine_code, found.readable = path, seen.readable
    symbols.know(seen.readable)
    found.units = {one.name: one.rate for one in seen.steady}
    if progress.is_open and seen.steady:
        found.unit_name, found.why = seen.steady[0].name, seen.steady[0].why
        found.progress = Progress(targets=(machine_code.target_of(found.unit_name),))
        # What a delay of a whole unit does is known.
        names = [name for name in names if name != found.unit_name]
        if not names and not named:
            raise RankError(
                f"{symbols.short(found.unit_name)} is all that takes time, and its calls "
                "are the units of work: there is nothing else to measure (--progress "
                f"names another unit){f'; {seen.refused}' if seen.refused else ''}"
            )
    elif progress.is_open and runner.attached_to:
        raise RankError(
            f"no function of process {runner.attached_to[0]} was called at an even pace "
            f"in {seen.seconds:.0f} s: give it work while it is measured, or say with "
            "--progress what a unit of work is"
        )
    elif progress.is_open:
        found.why = "it has no steady call: a unit is a whole run"
    rates = {name: seen.rates[name] for name in names}
    found.left_out = machine_code.affordable(rates, max_slowdown)
    names = [name for name in names if name not in found.left_out]
    most = room(budget_s, found.rate)
    found.candidates = {name: seen.own[name] for name in names[:most]}
    found.others = {name: seen.own[name] for name in names[most:]}
    found.shares = Shares(total=dict(seen.own), own=dict(seen.own))
    found.seconds, found.goes_on = seen.seconds, seen.goes_on
    found.cpu_share = seen.cpu_share
    found.first_unit_at, found.to_first_s = seen.first_at, seen.to_first_s
    return found


def _found(
    looked: Looked, progress: Progress, is_own: Callable[[str], bool]
) -> tuple[Aim, list[str]]:
    """The unit, the waits, and the Python functions that take time."""
    found = Aim(progress=progress, why="as it was named")
    _choose_unit(found, looked, is_own)
    found.first_unit_at, found.to_first_s = looked.first_unit(found.unit_name)
    # Time before the first unit of work belongs to no unit.
    looked.windows = looked.from_first(found.unit_name)
    called = looked.called()
    found.stacks = looked.stacks
    found.shares = shares(found.stacks)
    names = candidates(found.shares, called, is_own)
    seconds = max(looked.seconds, 1e-9)
    found.rates = {name: called.get(name, 0) / seconds for name in names}
    found.seconds, found.goes_on = looked.seconds, looked.goes_on
    found.cpu_share = looked.cpu_share
    if found.unit_name != EXIT_POINT:
        # Else each unit imports.
        found.import_s = looked.import_s
    longest = sorted(looked.imported.items(), key=lambda item: -item[1])
    found.imported = ", ".join(name for name, _ in longest[:2])
    return found, names


def _choose(
    found: Aim,
    names: Sequence[str],
    native: Natives,
    is_own: Callable[[str], bool],
    budget_s: float,
) -> None:
    """Choose the best of them and of the native functions."""
    seen = found.shares
    for name, one in native.asked.items():
        seen.total[name] = native.weighed.total[one.key]
        seen.own[name] = native.weighed.own.get(one.key, 0.0)
        found.rates[name] = one.rate
    seen.machine = frozenset(native.asked)
    found.natives = {name: one.target for name, one in native.asked.items()}
    found.left_out, found.native_refused = native.reasons(), native.refused
    shown = native.asked.keys() | native.left_out.keys()
    found.readable = {
        symbol: readable
        for (path, symbol), readable in native.weighed.readable.items()
        if readable != symbol and f"{path}:{symbol}" in shown
    }
    names = by_worth([*names, *found.natives], seen, is_own)
    most = room(budget_s, found.rate)
    chosen, left = names[:most], names[most:]
    found.candidates = {name: seen.total[name] for name in chosen}
    found.others = {name: seen.total[name] for name in left}


def _choose_unit(found: Aim, looked: Looked, is_own: Callable[[str], bool]) -> None:
    """Find possible units of work, and choose one if none was named."""
    called = looked.called()
    steady, _ = looked.steadiest(is_own)
    known = frameworks.known(called)
    for name, n in looked.points.items():
        found.units[f"progress point {name!r}"] = n / max(looked.seconds, 1e-9)
    if known:
        found.units[known.function] = called[known.function] / looked.seconds
    for one in steady:
        found.units.setdefault(one.name, one.rate)
    if not found.progress.is_open:
        return
    pending = frameworks.pending(looked.totals)
    server = pending if pending and pending.serves else None
    seen = shares(looked.stacks)
    only_waits = looked.goes_on and seen.only_waits
    if server or only_waits:
        # The steady calls of an event loop are no work.
        steady = [one for one in steady if is_own(one.name)]
    processes = looked.processes_a_second
    if processes:
        found.units[EXIT_POINT] = processes
    if looked.points:
        found.unit_name = max(looked.points, key=lambda name: looked.points[name])
        found.why = "the program says it, by progress()"
    elif known:
        found.unit_name = known.function
        found.progress = Progress(functions=(exactly(known.function),))
        found.why = known.why
    elif processes:
        found.unit_name = EXIT_POINT
        found.progress = Progress(points=(EXIT_POINT,))
        found.why = (
            f"the program starts the same again and again, {processes:.3g} a second, "
            "from start to end"
        )
    elif steady:
        _take(found, steady[0], steady[0].why)
    elif (again := looked.repeated(is_own)) and is_own(again[0].name):
        _take(found, again[0], again[0].why_uneven)
    elif looked.goes_on and server:
        raise RankError(
            f"{server.name} has started, and {server.what} was not seen in "
            f"{looked.seconds:.0f} s: give it work while it is measured, or say with "
            "--progress what a unit of work is"
        )
    elif only_waits:
        raise RankError(_why_nothing(seen))
    elif again:
        # A script without functions repeats those of libraries.
        _take(found, again[0], again[0].why_uneven)
    else:
        found.why = "it has no steady call: a unit is a whole run"


def _take(found: Aim, unit: Steady, why: str) -> None:
    found.unit_name, found.why = unit.name, why
    found.progress = Progress(functions=(exactly(unit.name),))


def _why_nothing(seen: Shares) -> str:
    waits = next(iter(seen.waiting), "")
    text = "no function was seen to take time while the program was watched"
    if waits and seen.waiting[waits] > 0.5:
        by = seen.callers.get(waits)
        text += f": it waits in {waits}" + (f", called from {by}" if by else "")
        text += "; give it work, or"
    else:
        text += ":"
    return f"{text} name functions with -t, or native ones with --native"
