# SPDX-License-Identifier: MIT
"""Watching a run of a program: which functions are called, and where its threads are."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from speed_bump.experiment.aim import frameworks, machine_code, natives
from speed_bump.experiment.aim.unit import (
    MIN_AGAIN,
    PARTS,
    Steady,
    in_parts,
    outgrown,
    steadiest,
    steady,
    steady_in_runs,
)
from speed_bump.experiment.program.machine import Reading
from speed_bump.experiment.program.native_looks import NativeSeen
from speed_bump.experiment.program.stacks import Stacks, total
from speed_bump.experiment.program.workload import Workload

WINDOW_S = 0.1
# Reading the counts takes at most this part of the time.
MAX_COST = 0.2
# A program is importing while this many of the samples are in the import system.
IMPORTING = 0.25
# A program must do something for at least this long before it is expected to continue.
MIN_S = 2.0
# An import that takes longer than this is work.
MAX_IMPORT_S = 900.0
# After this time without a decision, the state is printed. A function that calls the
# steadiest one is given this long to show its pace.
NEWS_S = 4.0
# The program must have worked for this long before its native stacks are sampled.
SETTLED_S = 0.4
# A Python process has reported in within this time.
NO_PYTHON_S = 3.0


@dataclass
class Window:
    """One window: calls in the main process and in all processes, and stacks."""

    main: dict[str, int]
    all: dict[str, int]
    stacks: Stacks
    points: dict[str, int] = field(default_factory=dict)
    run: int = 1

    @property
    def imports(self) -> str:
        """The package being imported; "" if the program is at work."""
        by_process: dict[int, int] = {}
        names: dict[str, int] = {}
        for stack, n in self.stacks.samples.items():
            name = stack.imported
            if name:
                by_process[stack.pid] = by_process.get(stack.pid, 0) + n
                names[name] = names.get(name, 0) + n
        if max(by_process.values(), default=0) < IMPORTING * max(self.stacks.ticks, 1):
            return ""
        return max(names, key=lambda name: names[name])


@dataclass
class Looked:
    """What was seen of the program at work, in one run or in several."""

    windows: list[Window] = field(default_factory=list)
    importing: Stacks = field(default_factory=Stacks)
    import_s: float = 0.0
    imported: dict[str, float] = field(default_factory=dict)
    points: dict[str, int] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    processes: int = 0
    pids: set[int] = field(default_factory=set)
    main: int = 0
    runs: int = 0
    goes_on: bool = False
    cpu_share: float = 1.0
    executable: str = ""
    native: NativeSeen = field(default_factory=NativeSeen)

    @property
    def stacks(self) -> Stacks:
        """Of all windows."""
        return total(w.stacks for w in self.windows)

    @property
    def seconds(self) -> float:
        """How long the program was seen at work."""
        return sum(w.stacks.seconds for w in self.windows)

    def is_enough(self, seconds: float, runs: int) -> bool:
        """Whether the program was seen at work for long enough, or in enough runs."""
        return self.goes_on or self.seconds >= seconds or self.runs >= runs

    def called(self) -> dict[str, int]:
        """The functions that were called while the program worked, with counts."""
        return together(window.all for window in self.windows)

    def of_runs(self) -> list[list[Window]]:
        """The windows of each run."""
        runs = sorted({w.run for w in self.windows})
        return [[w for w in self.windows if w.run == run] for run in runs]

    def from_first(self, unit: str) -> list[Window]:
        """The windows of each run from the first end of a unit on; "": all windows."""
        found: list[Window] = []
        for windows in self.of_runs():
            first = next(
                (i for i, w in enumerate(windows) if unit in w.all or unit in w.points),
                None,
            )
            if first is None:
                found += windows if not unit else []
            else:
                # The unit may have begun in it.
                found += windows[first + 1 :] or windows[first:]
        return found or self.windows

    def _paces(
        self, of_main: bool
    ) -> Iterator[tuple[dict[str, list[int]], list[Window]]]:
        """The functions with a recently even pace, and the windows in which they had it.

        In a program that continues, over longer and longer times; otherwise over all
        runs.
        """
        if not self.goes_on:
            each = [[w.main if of_main else w.all for w in run] for run in self.of_runs()]
            found = steady_in_runs(each)
            if found:
                yield found, self.windows
            return
        size = PARTS
        while size <= len(self.windows):
            used = self.windows[-size:]
            if sum(w.stacks.seconds for w in used) >= MIN_S:
                calls = [w.main if of_main else w.all for w in used]
                found = steady(in_parts(calls, PARTS))
                if found:
                    yield found, used
            size += max(size // 3 // PARTS, 1) * PARTS

    def steadiest(self, is_own: Callable[[str], bool]) -> tuple[list[Steady], bool]:
        """Possible units of work by their even pace, the best first, over the shortest
        time that shows a unit that no better one calls; and whether there is such a time.
        """
        first: list[Steady] = []
        for of_main in (True, False):
            pids = {self.main} if of_main else self.pids
            for even, windows in self._paces(of_main):
                stacks = total(w.stacks for w in windows)
                found = steadiest(even, stacks.seconds, stacks, is_own, pids)
                if not found:
                    continue
                first = first or found
                # A slower pace, or one that has just begun, may still appear.
                recent = windows[len(windows) // 2 :]
                calls = together(w.all for w in recent)
                stacks = total(w.stacks for w in recent)
                if not self.goes_on or not outgrown(found, calls, stacks, is_own):
                    return found, of_main or not self._main_works(is_own)
            if first:
                break
        return first, False

    def _main_works(self, is_own: Callable[[str], bool]) -> bool:
        """Whether the main process calls functions of the program repeatedly, but too
        seldom to show a pace yet.
        """
        recent = together(w.main for w in self.windows[-len(self.windows) // 2 :])
        return any(n >= MIN_AGAIN and is_own(name) for name, n in recent.items())


def watch(
    program: Workload,
    looked: Looked,
    seconds: float,
    now: Callable[[str], None],
    event: Callable[[str], None],
    is_own: Callable[[str], bool],
    *,
    native: bool = False,
) -> None:
    """Watch a run until it works at an even pace, within a time limit after its imports.

    Args:
        is_own: whether a function is of the program, not of a library
        native: also sample native stacks; the caller ends this
        now: called with the current activity
        event: called with lines to print
    """
    begin = time.monotonic()
    worked = due = 0.0
    told: set[str] = set()
    looked.runs += 1
    last = program.calls_by_process()
    last_points: dict[str, int] = {}
    cpu: Reading | None = None

    def tell(key: str, text: str) -> None:
        if key not in told:
            told.add(key)
            event(text)

    window_s = WINDOW_S
    while program.is_running() and worked < seconds:
        stacks = program.stacks(int(window_s * 1e9))
        before = time.monotonic()
        counts = program.calls_by_process()
        # A large program is sampled less often.
        window_s = max(WINDOW_S, (time.monotonic() - before) / MAX_COST)
        _note(looked, program, counts)
        points = {name: n for name, n in program.points().items() if n}
        window = Window(
            *_news(counts, last, looked.main),
            stacks,
            _more(points, last_points),
            looked.runs,
        )
        last, last_points = counts, points
        imports = window.imports
        if imports and time.monotonic() - begin < MAX_IMPORT_S:
            looked.importing.add(total([*(w.stacks for w in looked.windows), stacks]))
            looked.import_s += stacks.seconds
            looked.imported[imports] = looked.imported.get(imports, 0.0) + stacks.seconds
            looked.windows.clear()
            cpu = None
            program.forget_native_looks()
            worked = 0.0
            now(f"waiting: the program is importing {imports}")
            if time.monotonic() - begin > 1.0:
                tell("import", f"waiting: the program is importing {imports}")
            continue
        looked.windows.append(window)
        worked += stacks.seconds
        cpu = cpu or program.machine.look(program.pids)
        if not looked.processes and time.monotonic() - begin > NO_PYTHON_S:
            # There may be none to wait for.
            looked.executable = executable(program.pid)
            if looked.executable:
                break
        looked.points = points or looked.points
        looked.goes_on = True
        if native and looked.processes and (worked >= SETTLED_S or looked.runs > 1):
            program.begin_native_looks(natives.is_asked_of)
            native = False
        asked = time.monotonic()
        if worked >= MIN_S and asked >= due:
            if _is_enough(looked, is_own, worked):
                break
            # The interval grows with the time watched; calls in between are counted all
            # the same.
            due = time.monotonic() + (time.monotonic() - asked) / MAX_COST
        framework = frameworks.pending(looked.totals)
        if framework and not frameworks.known(looked.totals):
            text = f"waiting for the first of {framework.name}: {framework.what}"
            now(text)
            if worked >= NEWS_S:
                tell("pending", text)
        else:
            now("looking at the program: what takes time, what is a unit of work")
            if worked >= NEWS_S:
                tell("news", _so_far(looked))
    looked.goes_on = program.is_running()
    if cpu:
        looked.cpu_share = program.machine.look(program.pids).share(cpu)


def executable(pid: int) -> str:
    """The file that a process executes, if it is machine code and not Python; else ""."""
    try:
        path = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""
    is_python = os.path.basename(path).startswith(("python", "pypy"))
    return path if not is_python and machine_code.is_executable(path) else ""


def _note(looked: Looked, program: Workload, counts: Mapping[int, object]) -> None:
    looked.processes = max(looked.processes, program.processes)
    looked.pids.update(counts)
    looked.main = program.pid if program.pid in counts else next(iter(counts), 0)
    looked.totals = {}
    for calls in counts.values():
        assert isinstance(calls, dict)
        for name, n in calls.items():
            looked.totals[name] = looked.totals.get(name, 0) + n


def _news(
    counts: Mapping[int, Mapping[str, int]],
    last: Mapping[int, Mapping[str, int]],
    main: int,
) -> tuple[dict[str, int], dict[str, int]]:
    """The calls since the last window, by the main process and by all processes."""
    of_main: dict[str, int] = {}
    of_all: dict[str, int] = {}
    for pid, calls in counts.items():
        before = last.get(pid, {})
        for name, n in _more(calls, before).items():
            of_all[name] = of_all.get(name, 0) + n
            if pid == main:
                of_main[name] = n
    return of_main, of_all


def _more(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {
        name: n - before.get(name, 0)
        for name, n in after.items()
        if n > before.get(name, 0)
    }


def together(calls: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The calls of several windows."""
    found: dict[str, int] = {}
    for some in calls:
        for name, n in some.items():
            found[name] = found.get(name, 0) + n
    return found


def _is_enough(looked: Looked, is_own: Callable[[str], bool], worked: float) -> bool:
    """Whether the program repeats the same work by now."""
    if looked.points or frameworks.known(looked.called()):
        return True
    if frameworks.pending(looked.totals):
        return False
    found, is_settled = looked.steadiest(is_own)
    return bool(found) and (is_settled or worked >= NEWS_S)


def _so_far(looked: Looked) -> str:
    from speed_bump.experiment.aim.shares import shares

    found = shares(looked.stacks)
    if found.busy < 0.02:
        waits = next(iter(found.waiting), "")
        by = found.callers.get(waits, "")
        return "so far the program only waits" + (
            f" (in {waits}" + (f", called from {by})" if by else ")") if waits else ""
        )
    most = [f"{name} {share:.0%}" for name, share in list(found.own.items())[:3]]
    return f"no call is steady so far; most time is in {', '.join(most)}"
