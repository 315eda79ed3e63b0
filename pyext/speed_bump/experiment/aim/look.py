# SPDX-License-Identifier: MIT
"""Watching a run of a program: which functions are called, and where its threads are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from speed_bump.experiment.aim import frameworks, natives
from speed_bump.experiment.aim.launcher import Launch
from speed_bump.experiment.aim.shares import shares
from speed_bump.experiment.aim.unit import (
    MIN_AGAIN,
    PARTS,
    REPEATED_COVER,
    Steady,
    in_parts,
    outgrown,
    repeated,
    repeated_in_runs,
    steadiest,
    steady,
    steady_in_runs,
)
from speed_bump.experiment.aim.work import Work
from speed_bump.experiment.program.machine import is_alive
from speed_bump.experiment.program.native_looks import NativeSeen
from speed_bump.experiment.program.stacks import Stacks, total
from speed_bump.experiment.program.workload import Workload

WINDOW_S = 0.1
# A process is sampled from the window on that begins after its Python has: at first,
# until there is one, windows are short, because a short run may call a function first.
START_S = 0.01
# Reading the counts takes at most this part of the time.
MAX_COST = 0.2
# A program is importing while this many of the samples are in the import system.
IMPORTING = 0.25
# A program must do something for at least this long before it is expected to continue.
MIN_S = 2.0
# A main process that does a smaller part of the work may only hand it out.
HANDS_OUT = 0.4
# An import that takes longer than this is work.
MAX_IMPORT_S = 900.0
# After this time without a decision, the state is printed. A function that calls the
# steadiest one is given this long to show its pace.
NEWS_S = 4.0
# The program must have worked for this long before its native stacks are sampled.
SETTLED_S = 0.4
# Where this many processes have imported and ended, or a process has begun this often to
# import the same, imports are the program's work.
MANY_IMPORTS = 5
# For this long, a program that is seen in no function of its own has not started yet.
MAX_START_S = 10.0
# Fewer samples of the stacks do not show what takes time; the tool may have no CPU.
MIN_TICKS = 50
# Python processes are units of work if at least this many have ended, and at least this
# part of them is alike. Two are alike if both call at least this part
# of all functions that they call.
MIN_EXITED, MIN_ALIKE, ALIKE_CALLS = 5, 0.75, 0.7
# The budget must have room for this many; otherwise the calls in them give more answers.
MIN_PROCESSES = 40
# How long to wait for more of them, while fewer have ended.
MORE_EXITED_S = 8.0


@dataclass
class Window:
    """One window: calls in the main process and in all processes, and stacks.

    ``begin`` is when it began, in seconds of the monotonic clock. ``exited`` are the
    functions that each process has called that ended in it.
    """

    main: dict[str, int]
    all: dict[str, int]
    stacks: Stacks
    points: dict[str, int] = field(default_factory=dict)
    run: int = 1
    begin: float = 0.0
    exited: list[frozenset[str]] = field(default_factory=list)

    @property
    def is_at_work(self) -> bool:
        """Whether the program was seen in a function that is no part of its start."""
        return bool(self.points) or any(
            stack.frames and not stack.imported and not stack.is_ours
            for stack in self.stacks.samples
        )

    @property
    def imports(self) -> tuple[str, set[int]]:
        """The package being imported, and by which processes; "" if the program is at
        work.
        """
        by_process: dict[int, int] = {}
        names: dict[str, int] = {}
        for stack, n in self.stacks.samples.items():
            name = stack.imported
            if name:
                by_process[stack.pid] = by_process.get(stack.pid, 0) + n
                names[name] = names.get(name, 0) + n
        if max(by_process.values(), default=0) < IMPORTING * max(self.stacks.ticks, 1):
            return "", set()
        return max(names, key=lambda name: names[name]), set(by_process)


@dataclass
class Looked:
    """What was seen of the program at work, in one run or in several.

    Args:
        budget_s: the time for measuring it
    """

    budget_s: float = 60.0
    windows: list[Window] = field(default_factory=list)
    importing: Stacks = field(default_factory=Stacks)
    all_import_s: float = 0.0
    imported: dict[str, float] = field(default_factory=dict)
    importers: set[int] = field(default_factory=set)
    begun: dict[str, int] = field(default_factory=dict)
    importing_now: str = ""
    points: dict[str, int] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    processes: int = 0
    pids: set[int] = field(default_factory=set)
    main: int = 0
    runs: int = 0
    begins: dict[int, float] = field(default_factory=dict)
    goes_on: bool = False
    cpu_share: float = 1.0
    executable: str = ""
    native: NativeSeen = field(default_factory=NativeSeen)
    starts_python: bool = False
    fair_s: float = 0.0
    exited: set[int] = field(default_factory=set)

    @property
    def exits(self) -> list[frozenset[str]]:
        """The functions called by each Python process that has ended, of those that the
        program starts without being one itself.
        """
        if not self.starts_python:
            return []
        return [called for window in self.windows for called in window.exited]

    @property
    def processes_a_second(self) -> float:
        """How many Python processes that do the same ended in a second; 0 if they are
        too few, or differ.
        """
        exits = self.exits
        rate = len(exits) / max(self.seconds, 1e-9)
        if len(exits) < MIN_EXITED or rate * self.budget_s < MIN_PROCESSES:
            return 0.0
        alike = max(sum(_are_alike(a, b) for b in exits) for a in set(exits))
        return rate if alike >= MIN_ALIKE * len(exits) else 0.0

    @property
    def stacks(self) -> Stacks:
        """Of all windows."""
        return total(w.stacks for w in self.windows)

    @property
    def seconds(self) -> float:
        """How long the program was seen at work."""
        return sum(w.stacks.seconds for w in self.windows)

    @property
    def import_s(self) -> float:
        """How long the imports of a run took."""
        return self.all_import_s / max(self.runs, 1)

    def first_unit(self, unit: str) -> tuple[float, float]:
        """When the first unit began, at the earliest, and how long after the start of its
        run; "": the same of the work.
        """
        of_unit = (w for w in self.windows if unit in w.all or unit in w.points)
        first = next(of_unit, None) or next(iter(self.windows), None)
        if not first:
            return time.monotonic(), 0.0
        return first.begin, first.begin - self.begins[first.run]

    def forget_run(self) -> list[Stacks]:
        """Drop the windows of the current run, and return their stacks."""
        dropped = [w.stacks for w in self.windows if w.run == self.runs]
        self.windows = [w for w in self.windows if w.run != self.runs]
        return dropped

    def still_imports(self, window: Window) -> str:
        """The package that a process imports before its work; "" for none.

        Where one short process follows another, each of them imports. A module whose
        import fails, as that of something optional, is imported again by each call.
        """
        if not window.stacks.samples:
            return ""
        name, pids = window.imports
        if name and name != self.importing_now:
            self.begun[name] = self.begun.get(name, 0) + 1
        self.importing_now = name
        self.importers |= pids
        ended = sum(not is_alive(pid) for pid in self.importers)
        is_start = max(ended, self.begun.get(name, 0)) < MANY_IMPORTS
        return name if is_start else ""

    def begin_run(self, begin: float) -> None:
        """Another run begins, at ``begin`` of the monotonic clock, in s."""
        self.runs += 1
        self.begins[self.runs] = begin
        self.importers.clear()
        self.begun.clear()
        self.importing_now = ""

    def is_enough(self, seconds: float, runs: int) -> bool:
        """Whether the program was seen at work for long enough, or in enough runs.

        Time in which it waited for a CPU does not count.
        """
        return self.goes_on or self.fair_s >= seconds or self.runs >= runs

    def called(self) -> dict[str, int]:
        """The functions that were called while the program worked, with counts."""
        return together(window.all for window in self.windows)

    def of_runs(self) -> list[list[Window]]:
        """The windows of each run."""
        runs = sorted({w.run for w in self.windows})
        return [[w for w in self.windows if w.run == run] for run in runs]

    def since_first(self, unit: str) -> float:
        """Seconds of the windows after the one in which the first unit of a run ended."""
        after = (
            ws[i + 1 :] for ws in self.of_runs() if (i := _first(ws, unit)) is not None
        )
        return sum(w.stacks.seconds for windows in after for w in windows)

    def from_first(self, unit: str) -> list[Window]:
        """The windows of each run from the first end of a unit on; "": all windows."""
        found: list[Window] = []
        for windows in self.of_runs():
            first = _first(windows, unit)
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

        Those of the main process, unless others do most of the work, and it only repeats
        calls of libraries, such as those that hand out the work.
        """
        of_main, is_settled = self._steadiest_of(True, is_own)
        if of_main and (is_own(of_main[0].name) or self._main_share >= HANDS_OUT):
            return of_main, is_settled
        of_all, all_settled = self._steadiest_of(False, is_own)
        if not of_main:
            return of_all, all_settled
        # What hands out the work has a slower pace than the work.
        own = [one for one in of_all if is_own(one.name)]
        return (own, all_settled) if own else (of_main, is_settled)

    @property
    def _main_share(self) -> float:
        """The part of the work that the main process does."""
        samples = self.stacks.samples
        busy = {stack: n for stack, n in samples.items() if not stack.waiting_in}
        of_main = sum(n for stack, n in busy.items() if stack.pid == self.main)
        return of_main / max(sum(busy.values()), 1)

    def _steadiest_of(
        self, of_main: bool, is_own: Callable[[str], bool]
    ) -> tuple[list[Steady], bool]:
        first: list[Steady] = []
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
        return first, False

    def repeated(self, is_own: Callable[[str], bool]) -> list[Steady]:
        """What the work of the program repeats at no even pace, the best first, if it has
        no steady call. If it has ended: as often in each of several runs.
        """
        if self.goes_on:
            calls = repeated(in_parts([w.all for w in self.windows], PARTS))
        else:
            calls = repeated_in_runs([[w.all for w in run] for run in self.of_runs()])
        stacks = self.stacks
        found = steadiest(
            calls, stacks.seconds, stacks, is_own, self.pids, REPEATED_COVER
        )
        return [one for one in found if is_own(one.name)] or found

    def _main_works(self, is_own: Callable[[str], bool]) -> bool:
        """Whether the main process calls functions of the program repeatedly, but too
        seldom to show a pace yet.
        """
        recent = together(w.main for w in self.windows[-len(self.windows) // 2 :])
        return any(n >= MIN_AGAIN and is_own(name) for name, n in recent.items())


def _first(windows: Sequence[Window], unit: str) -> int | None:
    """The index of the window in which the first unit ended."""
    ended = (i for i, w in enumerate(windows) if unit in w.all or unit in w.points)
    return next(ended, None)


def _are_alike(a: frozenset[str], b: frozenset[str]) -> bool:
    """Whether two processes called nearly the same functions."""
    return len(a & b) >= ALIKE_CALLS * len(a | b)


def watch(
    program: Workload,
    looked: Looked,
    seconds: float,
    now: Callable[[str], None],
    event: Callable[[str], None],
    is_own: Callable[[str], bool],
    launch: Launch,
    *,
    native: bool = False,
) -> None:
    """Watch a run until it works at an even pace, within a time limit after its imports.

    The limit is of time in which the program did not wait for a CPU; in all, it is that
    of ``launch``.

    Args:
        is_own: whether a function is of the program, not of a library
        launch: how the first Python process is waited for; another one, after the last
            has ended, for as long
        native: also sample native stacks; the caller ends this
        now: called with the current activity
        event: called with lines to print
    """
    _Watch(program, looked, now, event, launch).run(seconds, is_own, native)


class _Watch:
    """One run of the program while it is watched."""

    def __init__(
        self,
        program: Workload,
        looked: Looked,
        now: Callable[[str], None],
        event: Callable[[str], None],
        launch: Launch,
    ) -> None:
        """It begins now."""
        self._program = program
        self._looked = looked
        self._now = now
        self._event = event
        self._launch = launch
        self._work = Work(program)
        self._told: set[str] = set()
        # In s of the monotonic clock; the second: when a Python process was last seen.
        self._begin = self._with_python = time.monotonic()
        self._first_begin = 0.0  # of the first window that is kept
        self._due = 0.0
        self._window_s = START_S
        looked.begin_run(self._begin)
        self._last = program.calls_by_process()
        self._points: dict[str, int] = {}

    def run(self, seconds: float, is_own: Callable[[str], bool], native: bool) -> None:
        """Watch it, for ``seconds`` at most in which it did not wait for a CPU."""
        program, looked, work = self._program, self._looked, self._work
        longest_s = max(seconds, self._launch.limit_s)
        if native and looked.runs > 1:
            # What is called once in a short run may be called at its start.
            program.sampler.begin_native_looks(natives.is_asked_of)
            native = False
        while program.is_running() and work.fair_s < seconds and work.seconds < longest_s:
            window = self._window()
            if not (window.all or window.points or program.pythons):
                # That is not the program's work, before it or between two parts of it.
                work.pause(time.monotonic() - window.begin)
                if not self._waits():
                    break
                continue
            if self._with_python == self._begin and looked.runs == 1:
                self._launch.say_start(window.begin - self._begin, self._event)
            self._with_python = time.monotonic()
            if self._imports(window):
                continue
            self._keep(window)
            if native and looked.processes and work.seconds >= SETTLED_S:
                program.sampler.begin_native_looks(natives.is_asked_of)
                native = False
            if self._is_enough(is_own):
                break
            self._say()
        looked.fair_s += work.fair_s
        looked.goes_on = program.is_running()
        # What is thought of it takes a while.
        program.sampler.stop_native_looks()
        looked.cpu_share = work.share

    def _tell(self, key: str, text: str) -> None:
        if key not in self._told:
            self._told.add(key)
            self._event(text)

    def _window(self) -> Window:
        """Look at the program for a moment."""
        program, looked = self._program, self._looked
        begin = time.monotonic()
        stacks = program.sampler.stacks(int(self._window_s * 1e9))
        before = time.thread_time()
        counts = program.calls_by_process()
        # A large program is sampled less often. Waiting for a CPU costs nothing, and a
        # short run is to have windows enough on a busy machine, too.
        is_early = time.monotonic() - self._begin < MIN_S
        least_s = START_S if is_early and not program.pythons else WINDOW_S
        self._window_s = max(least_s, (time.thread_time() - before) / MAX_COST)
        _note(looked, program, counts)
        points = {name: n for name, n in program.points().items() if n}
        window = Window(
            *_news(counts, self._last, looked.main),
            stacks,
            _more(points, self._points),
            looked.runs,
            begin,
            _exits(looked, program, counts),
        )
        self._last, self._points = counts, points
        return window

    def _waits(self) -> bool:
        """Whether to go on without a Python process; the current activity is shown."""
        gone_s = time.monotonic() - self._with_python
        if not _may_come(self._program, self._looked, self._launch, gone_s):
            return False
        text = self._launch.state(self._program)
        self._now(text)
        if gone_s >= NEWS_S:
            # What runs is said once; it may change all the time.
            self._tell(text.partition(";")[0], text)
        return True

    def _imports(self, window: Window) -> bool:
        """Whether the program still imports; all windows of this run are dropped then."""
        looked = self._looked
        imports = looked.still_imports(window)
        gone_s = time.monotonic() - self._begin
        if not imports or gone_s >= MAX_IMPORT_S:
            return False
        looked.importing.add(total([*looked.forget_run(), window.stacks]))
        looked.all_import_s += window.stacks.seconds
        before = looked.imported.get(imports, 0.0)
        looked.imported[imports] = before + window.stacks.seconds
        self._program.sampler.forget_native_looks()
        self._work.forget()
        text = f"waiting: the program is importing {imports}"
        self._now(text)
        if time.monotonic() - self._begin > 1.0:
            self._tell("import", text)
        return True

    def _keep(self, window: Window) -> None:
        looked, work = self._looked, self._work
        looked.windows.append(window)
        self._first_begin = self._first_begin or window.begin
        if (
            work.began
            or window.is_at_work
            or time.monotonic() - self._first_begin > MAX_START_S
        ):
            # Reading the counts takes a while, too, and the first line is not to be late.
            work.goes_on(window.begin)
        looked.points = self._points or looked.points
        looked.goes_on = True

    def _is_enough(self, is_own: Callable[[str], bool]) -> bool:
        """Whether enough was seen; that is judged less often the longer it takes."""
        work = self._work
        asked = time.monotonic()
        if work.seconds < MIN_S or asked < self._due:
            return False
        if _is_enough(self._looked, is_own, work.seconds):
            return True
        # The interval grows with the time watched; calls in between are counted all
        # the same.
        self._due = time.monotonic() + (time.monotonic() - asked) / MAX_COST
        if work.seconds < NEWS_S:
            self._due = min(self._due, work.began + NEWS_S)
        return False

    def _say(self) -> None:
        waits = _pending(self._looked)
        self._now(
            waits or "looking at the program: what takes time, what is a unit of work"
        )
        if self._work.seconds >= NEWS_S:
            if waits:
                self._tell("pending", waits)
            else:
                self._tell("news", _so_far(self._looked))


def _may_come(program: Workload, looked: Looked, launch: Launch, gone_s: float) -> bool:
    """Whether to go on waiting for a Python process."""
    if not looked.windows:
        looked.executable = launch.machine_code(program, gone_s)
    return not looked.executable and gone_s <= launch.limit_s


def _pending(looked: Looked) -> str:
    """What of a framework is waited for; "": nothing."""
    framework = frameworks.pending(looked.totals)
    if not framework or frameworks.known(looked.totals):
        return ""
    return f"waiting for the first of {framework.name}: {framework.what}"


def _note(looked: Looked, program: Workload, counts: Mapping[int, object]) -> None:
    looked.processes = max(looked.processes, program.processes)
    looked.pids.update(counts)
    looked.main = program.pid if program.pid in counts else next(iter(counts), 0)
    looked.starts_python = program.pid not in looked.pids
    looked.totals = {}
    for calls in counts.values():
        assert isinstance(calls, dict)
        for name, n in calls.items():
            looked.totals[name] = looked.totals.get(name, 0) + n


def _exits(
    looked: Looked, program: Workload, counts: Mapping[int, Mapping[str, int]]
) -> list[frozenset[str]]:
    """What each process has called that has ended since this was asked last."""
    new = program.exited - looked.exited
    looked.exited |= new
    return [frozenset(counts.get(pid, ())) for pid in new]


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
    if looked.stacks.ticks < MIN_TICKS and worked < 2 * NEWS_S:
        return False
    known = frameworks.known(looked.called())
    if looked.points or known:
        # Time before the first unit is left out.
        points = looked.points
        unit = max(points, key=lambda name: points[name]) if points else ""
        return looked.since_first(unit or (known.function if known else "")) >= MIN_S
    if frameworks.pending(looked.totals):
        return False
    if looked.processes_a_second:
        return True
    if looked.exits and worked < MORE_EXITED_S:
        return False
    found, is_settled = looked.steadiest(is_own)
    if not any(is_own(one.name) for one in found) and shares(looked.stacks).only_waits:
        # The steady calls of an event loop, before there is a load.
        return False
    return bool(found) and (is_settled or worked >= NEWS_S)


def _so_far(looked: Looked) -> str:
    found = shares(looked.stacks)
    if found.only_waits:
        waits = next(iter(found.waiting), "")
        by = found.callers.get(waits, "")
        return "so far the program only waits" + (
            f" (in {waits}" + (f", called from {by})" if by else ")") if waits else ""
        )
    most = [f"{name} {share:.0%}" for name, share in list(found.own.items())[:3]]
    return f"no call is steady so far; most time is in {', '.join(most)}"
