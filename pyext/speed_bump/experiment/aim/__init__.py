# SPDX-License-Identifier: MIT
"""What to measure where nothing was named, found by looking at a run of the program.

All of its Python functions are counted, and its stacks looked at, until it works at an
even pace. Candidates are those that take time; the unit of work is what the program says,
or what a framework is known by, or the call that is steadiest.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from speed_bump.config import Target, parse_targets
from speed_bump.experiment import symbols
from speed_bump.experiment.aim import frameworks, machine_code, natives
from speed_bump.experiment.aim.look import Looked, watch
from speed_bump.experiment.aim.natives import Natives
from speed_bump.experiment.aim.shares import (
    Shares,
    by_worth,
    candidates,
    room,
    shares,
)
from speed_bump.experiment.program.elsewhere import interpreter
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner, why_nobody_reported
from speed_bump.experiment.program.stacks import Stacks
from speed_bump.experiment.program.workload import Workload
from speed_bump.experiment.rank import RankError

# Functions times processes: all that a large program ever calls.
LARGE = 1 << 16
# A short program is run so often at the most, until it was seen at work for so long.
MAX_RUNS = 8
ENOUGH_S = 1.5
# Directories of what is installed, that may be below the program's own.
LIBRARIES = {"site-packages", "dist-packages"}


@dataclass
class Aim:
    """What was found.

    ``candidates`` are the functions to be asked for, by their part of the time with what
    they call, the best first; ``others`` take time too and are left out. ``why`` says how
    the unit was found; ``units`` are all that may be one, with calls a second.
    ``cpu_share`` is the part of the CPU time that it had of what it wanted.
    ``natives`` are the targets of those that are native functions of a Python program,
    ``left_out`` says of other native functions why they are no candidates, and
    ``native_refused`` why there are none at all; ``readable`` has their mangled names.
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

    def targets(self) -> list[Target]:
        """A target for each candidate, whatever characters its name has."""
        path = self.machine_code
        return [
            machine_code.target_of(path, name.removeprefix(f"{path}:"))
            if path
            else self.natives.get(name) or exactly(name)
            for name in self.candidates
        ]

    @property
    def rate(self) -> float:
        """Units of work a second; 0 where that is not known."""
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
        }


def exactly(name: str) -> Target:
    """A target that is one function, whatever characters its name has."""
    left, _, right = name.rpartition(":")
    return parse_targets(f"{glob.escape(left)}:{glob.escape(right)}", "function")[0]


def owner(command: Sequence[str]) -> Callable[[str], bool]:
    """Whether a function is of the program that ``command`` starts, and of no library."""
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
) -> Aim:
    """Run the program until it works at an even pace, at most so long, and end it.

    Args:
        progress: what a unit is, where that was said
        seconds: at most so long after its imports
        now: is told what is going on
        event: is told what is worth a line
        first: is told the unit and what is waited for, as soon as that is known; which
            functions are candidates may take some seconds more
        budget_s: the time that there will be to ask for the candidates
        max_slowdown: how much slower it may become while that is done, as a part
        named: targets were named, and only the unit is looked for

    Raises:
        RankError: nothing was seen to measure; it says why
        LaunchError: of starting the program
    """
    genexpr = parse_targets("!*:*<genexpr>", "found")
    looking = replace(runner, excludes=[*runner.excludes, *genexpr])
    looking.borrow(runner)
    looked = Looked()
    refused = "" if named else machine_code.why_not()
    looks_at_native = not named and not refused
    is_own = owner(runner.command)
    seen: Natives | None = None
    found: Aim | None = None
    names: list[str] = []
    while found is None:
        everything = parse_targets("*:*", "found")
        with Workload(looking, everything, progress, LARGE, calls=True) as program:
            watch(program, looked, seconds, now, event, is_own, native=looks_at_native)
            _check_end(program)
            if not looked.processes:
                # Of a program that has ended, or is machine code: it is run otherwise.
                break
            if looked.is_enough(ENOUGH_S, MAX_RUNS):
                found, names = _found(looked, progress, is_own)
                first(found)
            looked.native.add(program.end_native_looks())
            if found and program.is_running():
                callables = [name for name in names if name in found.shares.native]
                seen = _count(program, looked, progress, now, max_slowdown, callables)
                if not (seen.asked or seen.refused or program.is_running()):
                    seen = None  # it ended meanwhile, so that nothing could be counted
            _check_end(program)
        if not found:
            now("the program is short: it is run again to be looked at")
    if found is None:
        path = looked.executable or _file_of(runner.command)
        if path:
            return _of_machine_code(runner, path, progress, seconds, now, first, budget_s)
        raise RankError(why_nobody_reported(runner.command))
    if seen is None and looks_at_native and looked.native.looks:
        callables = [name for name in names if name in found.shares.native]
        with Workload(looking, everything, progress, LARGE, calls=True) as program:
            seen = _count(
                program, looked, progress, now, max_slowdown, callables, looked.import_s
            )
    _choose(found, names, seen or Natives(), is_own, budget_s)
    found.native_refused = refused or found.native_refused
    if not named and not found.candidates:
        raise RankError(_why_nothing(found.shares))
    return found


def _check_end(program: Workload) -> None:
    """If it has ended, see how.

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


def _count(
    program: Workload,
    looked: Looked,
    progress: Progress,
    now: Callable[[str], None],
    max_slowdown: float,
    callables: Sequence[str],
    import_s: float = 0.0,
) -> Natives:
    """Which of the native functions that were seen can be asked for."""
    if looked.native.refused:
        return Natives(refused=looked.native.refused)
    now("counting the native functions that take time")
    return natives.count(
        program.pid,
        natives.weigh(looked.native),
        program.is_running,
        max_slowdown,
        progress.targets,
        callables,
        import_s,
    )


def _file_of(command: Sequence[str]) -> str:
    """The executable that a command that has ended was; "" if it was none."""
    path = os.path.realpath(shutil.which(command[0]) or "")
    is_python = interpreter(command) is not None
    return path if not is_python and machine_code.is_executable(path) else ""


def _of_machine_code(
    runner: Runner,
    path: str,
    progress: Progress,
    seconds: float,
    now: Callable[[str], None],
    first: Callable[[Aim], None],
    budget_s: float,
) -> Aim:
    """The same of a program in which no Python is."""
    refused = machine_code.why_not()
    if refused:
        raise RankError(
            f"{why_nobody_reported(runner.command)}; and native functions of "
            f"{os.path.basename(path)} can't be had: {refused}"
        )
    seen = machine_code.look(runner, path, seconds, now)
    if not seen.own:
        raise RankError(
            f"no function of {path} was seen to take time"
            + (f" ({seen.refused})" if seen.refused else "")
            + ": name functions with --native"
        )
    names = list(seen.own)
    found = Aim(progress=progress, why="as it was named", rates=seen.rates)
    found.machine_code, found.readable = path, seen.readable
    symbols.know(seen.readable)
    found.units = {one.name: one.rate for one in seen.steady}
    if progress.is_open and seen.steady:
        found.unit_name, found.why = seen.steady[0].name, seen.steady[0].why
        symbol = found.unit_name.removeprefix(f"{path}:")
        found.progress = Progress(targets=(machine_code.target_of(path, symbol),))
        # One breakpoint can't be both.
        names = [name for name in names if name != found.unit_name]
    elif progress.is_open:
        found.why = "no call of it is steady: a unit is a whole run"
    most = room(budget_s, found.rate)
    found.candidates = {name: seen.own[name] for name in names[:most]}
    found.others = {name: seen.own[name] for name in names[most:]}
    found.shares = Shares(total=dict(seen.own), own=dict(seen.own))
    found.seconds, found.goes_on = seen.seconds, seen.goes_on
    first(found)
    return found


def _found(
    looked: Looked, progress: Progress, is_own: Callable[[str], bool]
) -> tuple[Aim, list[str]]:
    """The unit and where time goes, and which functions but native ones take it."""
    found = Aim(progress=progress, why="as it was named")
    _choose_unit(found, looked, is_own)
    # What is done before the first unit of work is in none.
    looked.windows = looked.from_first(found.unit_name)
    called = looked.called()
    found.stacks = looked.stacks
    found.shares = shares(found.stacks)
    names = candidates(found.shares, called, is_own)
    seconds = max(looked.seconds, 1e-9)
    found.rates = {name: called.get(name, 0) / seconds for name in names}
    found.seconds, found.goes_on = looked.seconds, looked.goes_on
    found.cpu_share = looked.cpu_share
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
    """Take the best of them and of native functions."""
    seen = found.shares
    for name, one in native.asked.items():
        seen.total[name] = native.weighed.total[one.key]
        seen.own[name] = native.weighed.own.get(one.key, 0.0)
        found.rates[name] = one.rate
    seen.machine = frozenset(native.asked)
    found.natives = {name: one.target for name, one in native.asked.items()}
    found.left_out, found.native_refused = native.reasons(), native.refused
    found.readable = {
        one.key[1]: readable
        for one in native.asked.values()
        if (readable := native.weighed.readable[one.key]) != one.key[1]
    }
    names = by_worth([*names, *found.natives], seen, is_own)
    most = room(budget_s, found.rate)
    chosen, left = names[:most], names[most:]
    found.candidates = {name: seen.total[name] for name in chosen}
    found.others = {name: seen.total[name] for name in left}


def _choose_unit(found: Aim, looked: Looked, is_own: Callable[[str], bool]) -> None:
    """See what a unit of work may be; where that was not said, what it is."""
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
    if looked.points:
        found.unit_name = max(looked.points, key=lambda name: looked.points[name])
        found.why = "the program says it, by progress()"
    elif known:
        found.unit_name = known.function
        found.progress = Progress(functions=(exactly(known.function),))
        found.why = known.why
    elif steady:
        found.unit_name = steady[0].name
        found.progress = Progress(functions=(exactly(steady[0].name),))
        found.why = steady[0].why
    else:
        found.why = "no call of it is steady: a unit is a whole run"


def _why_nothing(seen: Shares) -> str:
    waits = next(iter(seen.waiting), "")
    text = "no function was seen to take time while the program was looked at"
    if waits and seen.waiting[waits] > 0.5:
        by = seen.callers.get(waits)
        text += f": it waits in {waits}" + (f", called from {by}" if by else "")
        text += "; give it work, or"
    else:
        text += ":"
    return f"{text} name functions with -t, or native ones with --native"
