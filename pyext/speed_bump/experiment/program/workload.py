# SPDX-License-Identifier: MIT
"""A running program that shares the memory of a plan of delays with the tool."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import IO

from speed_bump import _core, native
from speed_bump.config import Config, Target
from speed_bump.control import EXIT_POINT, OWN_POINTS, PROCESS_POINT
from speed_bump.experiment.program import launch
from speed_bump.experiment.program.giver import Giver
from speed_bump.experiment.program.latency import (
    RINGS,
    Events,
    Histogram,
    histograms,
    marks_not_asked_for,
)
from speed_bump.experiment.program.launch import GRACE_S, STEP_S, Ended, Streams
from speed_bump.experiment.program.machine import Machine, descendants, is_alive
from speed_bump.experiment.program.meter import Meter
from speed_bump.experiment.program.metric import Source
from speed_bump.experiment.program.native_latency import AllEvents, NativeLatencies
from speed_bump.experiment.program.output import Watched
from speed_bump.experiment.program.processes import check_one_tree
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import (
    CAPACITY,
    Runner,
    Slowed,
    modules_of,
    read_refused,
)
from speed_bump.experiment.program.sampler import Sampler
from speed_bump.kinds import SiteKind


class Workload:
    """One run of the program, with all targets counting and none delayed until planned.

    Use as a context manager: the program ends with it.

    Args:
        runner: its files and settings
        targets: the candidates; native ones need the device
        progress: the unit of work
        capacity: functions times processes that can be counted
        calls: have the program record which C functions are called where
        starts: called with the process that is about to execute the program
    """

    def __init__(
        self,
        runner: Runner,
        targets: Sequence[Target],
        progress: Progress,
        capacity: int = CAPACITY,
        *,
        calls: bool = False,
        starts: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._runner = runner
        self._starts = starts
        self._targets = targets
        self._progress = progress
        self._stem = runner.next_stem()
        self._python = [t for t in [*targets, *progress.functions] if not t.native]
        # A place belongs to the first target that names it.
        self._kernel = [t for t in [*progress.targets, *targets] if t.native]
        self._stack = ExitStack()
        self._table = runner.new_table(
            self._stem, capacity, planned=True, rings=RINGS if runner.latencies else 0
        )
        python = Events(self._table) if runner.latencies else None
        self._recorder = (
            NativeLatencies(
                runner.native_latencies, events=True, first=len(runner.latencies)
            )
            if runner.native_latencies
            else None
        )
        # The durations that are recorded; None: none are.
        self.durations = (
            AllEvents(python, self._recorder) if python or self._recorder else None
        )
        # C functions record their calls until sample() has run.
        self._table.watched = True
        self.plan = _core.Plan(self._table)
        self._probes = native.Probes(0) if self._kernel else None
        self._counted: set[str] = set()
        # Of native functions the index in the kernel's plan, the id, and the file.
        self._indices: dict[str, int] = {}
        self._natives: dict[str, int] = {}
        self._files: dict[str, str] = {}
        self._native_of: set[tuple[str, str]] = set()
        self._child: launch.Child | None = None
        self._pids: set[int] = set()
        self._watched: Watched | None = None
        self._output: IO[bytes] | None = None
        self.meter = (
            Meter(Source(progress.metric), self.plan) if progress.metric else None
        )
        self.machine = Machine()
        counted = {f"{t.left}:{t.right}" for t in self._python}
        self.sampler = Sampler(self, self._table, self._stem, counted, calls=calls)
        self.ended: Ended | None = None
        for name in progress.points:
            self.plan.count_point(name)
        for target in progress.functions:
            if not set("*?[") & set(target.left + target.right):
                self._count_function(f"{target.left}:{target.right}")

    # ------------------------------------------------------------------ life

    def __enter__(self) -> Workload:
        """Start the program.

        Raises:
            NativeError: native functions can't be slowed
        """
        self._runner.write_targets(
            f"{self._stem}.targets", [Slowed(t, 0) for t in self._python]
        )
        stdin = self._runner.stdin()
        if self._progress.regex:
            self._watched = Watched(
                self._progress.regex, self.plan.report, self._runner.show_output
            )
            streams = Streams(stdin, self._watched.stdout, self._watched.stdout)
        elif self._runner.show_output:
            streams = Streams(stdin, 2 if self._runner.to_stderr else None)
        else:
            self._output = tempfile.TemporaryFile()
            streams = Streams(stdin, self._output.fileno(), self._output.fileno())
        try:
            _core.adopt_orphans(True)
            self._child = self._runner.start(
                self._stem, streams, self._add_probes, calls=self.sampler.knows_calls
            )
            self.pid = self._child.pid
            self._pids = self._child.pids
            if self._watched:
                self._watched.start()
            if self.meter:
                self.meter.start()
        except BaseException:
            try:
                if self._child:
                    self.stop()
            finally:
                self._clean()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the program and remove its files."""
        try:
            self.plan.renew(0)
            if self.ended is None and self._child:
                self.stop()
        finally:
            self._clean()

    def _clean(self) -> None:
        if self.meter:
            self.meter.close()
        self.sampler.close()
        if self._watched:
            self._watched.close()
        if self._output:
            self._output.close()
        self._stack.close()
        if self._probes:
            self._probes.close()
        if self._recorder:
            self._recorder.close()
        # The plan uses the table, and is closed with it.
        self._runner.remove(self._stem)

    def is_running(self) -> bool:
        """Whether the program is still running."""
        return self.ended is None and self._child is not None and self._child.is_running()

    def stop(self) -> Ended:
        """Terminate it, kill it if it does not end, and wait.

        Raises:
            LaunchError: it never ran
        """
        assert self._child is not None
        self._child.end()
        return self.wait()

    def wait(self) -> Ended:
        """Wait for its end; LaunchError: it never ran."""
        if self.ended is None:
            assert self._child is not None
            child, self._child = self._child, None
            try:
                self.ended = child.wait()
            finally:
                end_orphans()
            if self._watched:
                self._watched.finish()
        return self.ended

    def output(self) -> bytes:
        """The output that was not shown."""
        if self._watched:
            return self._watched.output()
        if self._output is None:
            return b""
        self._output.seek(0)
        return self._output.read()

    # -------------------------------------------------------------- counting

    def _add_probes(self, pid: int) -> None:
        self._starts(pid)
        if self._probes or self._recorder:
            check_one_tree(self._runner.attached_to)
        if self._probes:
            self._add_targets(self._probes, pid)
        if self._recorder:
            self._recorder.start(pid)

    def _add_targets(self, probes: native.Probes, pid: int) -> None:
        probes.scope_to(pid)
        places = probes.add(
            [native.from_target(t, Config(delay_ns=0)) for t in self._kernel]
        )
        units = []
        for place in places:
            target = self._kernel[place.target]
            if target in self._progress.targets:
                units.append(place.id)
            if self._is_candidate(target, place.label):
                self._indices[place.label] = len(self._natives)
                self._natives[place.label] = place.id
                self._files[place.label] = target.left
                self._native_of.add((target.pattern, place.label))
        fd = probes.session.plan(list(self._natives.values()), units)
        self.plan.use_memory(fd)
        giver = Giver(f"{self._stem}.table.plan", fd)
        self._stack.callback(giver.close)

    def _is_candidate(self, target: Target, label: str) -> bool:
        """Whether a place of ``target`` is to be measured: it may be a unit alone."""
        symbol = label.rpartition(":")[2]
        return target not in self._progress.targets or any(
            t == target
            or (t.native and t.left == target.left and _core.glob_match(t.right, symbol))
            for t in self._targets
        )

    @property
    def processes(self) -> int:
        """How many Python processes reported in."""
        return sum(
            site.calls
            for site in self._table.read()
            if site.kind == SiteKind.PROGRESS and site.name == PROCESS_POINT
        )

    @property
    def pythons(self) -> set[int]:
        """Those of them that are alive; a forked one from its first call on."""
        pids = {site.pid for site in self._table.read()}
        return {pid for pid in pids - {0} if is_alive(pid)}

    @property
    def exited(self) -> set[int]:
        """The Python processes that have ended by themselves; not forked ones."""
        return {
            site.pid
            for site in self._table.read()
            if site.kind == SiteKind.PROGRESS and site.name == EXIT_POINT and site.calls
        }

    def points(self) -> dict[str, int]:
        """The units of each ``speed_bump.progress()`` point."""
        found: dict[str, int] = {}
        for site in self._table.read():
            if site.kind == SiteKind.PROGRESS and site.name not in OWN_POINTS:
                found[site.name] = found.get(site.name, 0) + site.calls
        return found

    def count(self, point: str) -> None:
        """Count units of this point, too."""
        self.plan.count_point(point)

    def _count_function(self, name: str) -> None:
        self._counted.add(name)
        self.plan.count_function(name)

    def look(self) -> None:
        """Notice new functions whose calls are units."""
        if not self._progress.functions:
            return
        for site in self._table.read():
            if (
                site.kind == SiteKind.FUNCTION
                and site.name not in self._counted
                and self._progress.is_counted(site.name)
            ):
                self._count_function(site.name)

    def _called(self) -> Iterator[_core.Site]:
        """The counts of each Python function that was called."""
        for site in self._table.read():
            if site.kind == SiteKind.FUNCTION and site.calls:
                yield site

    def calls(self) -> dict[str, int]:
        """The calls of each candidate so far, of those that were called."""
        found: dict[str, int] = {}
        first_progress = len([t for t in self._targets if not t.native])
        for site in self._called():
            if site.target < first_progress:
                found[site.name] = found.get(site.name, 0) + site.calls
        if self._probes:
            for f in self._probes.read():
                if f.calls and f.name in self._natives:
                    found[f.name] = found.get(f.name, 0) + f.calls
        return found

    def durations_so_far(self) -> list[Histogram]:
        """What was recorded of each name of ``--latency``."""
        natives = self._recorder.histograms() if self._recorder else []
        return histograms(self._table) + natives

    def marks_not_asked_for(self) -> list[str]:
        """The names of marks that the program sets and that are not recorded."""
        return marks_not_asked_for(self._table)

    def imported(self) -> frozenset[str]:
        """The Python modules that processes of the program have run."""
        return modules_of(site.name for site in self._called())

    def refused(self) -> tuple[tuple[str, str], ...]:
        """Refused C functions, as reported by processes that have ended."""
        return read_refused(f"{self._stem}.table")

    def calls_by_process(self) -> dict[int, dict[str, int]]:
        """By process, the calls of each Python function that is counted."""
        found: dict[int, dict[str, int]] = {}
        for site in self._called():
            calls = found.setdefault(site.pid, {})
            calls[site.name] = calls.get(site.name, 0) + site.calls
        return found

    def rule(self, name: str) -> int:
        """Make the plan control a candidate; returns its number there."""
        if name in self._indices:
            return self.plan.add_target(self._indices[name])
        return self.plan.add_function(name)

    def is_native(self, name: str) -> bool:
        """Whether the kernel delays it."""
        return name in self._natives

    def is_of_native(self, target: Target, name: str) -> bool:
        """Whether a native function was found for ``target``."""
        return (target.pattern, name) in self._native_of

    @property
    def lost(self) -> int:
        """How many functions found no room to be counted."""
        return self._table.lost

    @property
    def first_pids(self) -> set[int]:
        """The process that was started, or those attached to."""
        return self._pids

    @property
    def roots(self) -> set[int]:
        """Processes from which all others descend: the first, and orphans."""
        return {*self._pids, *children()}

    @property
    def pids(self) -> set[int]:
        """The processes of the program that are alive."""
        found: set[int] = set()
        for pid in self.roots:
            found |= descendants(pid)
        return found

    def native_places(self) -> dict[str, tuple[str, int]]:
        """By native candidate, the file and the offset in it."""
        if not self._probes:
            return {}
        offsets = self._probes.session.offsets()
        return {
            label: (self._files[label], offsets[place])
            for label, place in self._natives.items()
        }


def children() -> list[int]:
    found: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        with (
            suppress(OSError),
            open(f"/proc/self/task/{thread}/children", encoding="ascii") as file,
        ):
            found += [int(pid) for pid in file.read().split()]
    return found


def end_orphans() -> None:
    """End what the program left running after it has ended by itself.

    These are workers that the program would have ended had it not been asked to end. As
    their parents are gone, they are children of the tool, which has no other children.
    """
    for number, grace_s in ((signal.SIGTERM, 1.0), (signal.SIGKILL, GRACE_S)):
        for pid in children():
            with suppress(OSError):
                os.kill(pid, number)
        if wait_until(_reap_orphans, grace_s):
            break
    _core.adopt_orphans(False)


def _reap_orphans() -> bool:
    """Whether none is left."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return False
        except ChildProcessError:
            return True


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it came true in that time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(STEP_S)
    return True
