# SPDX-License-Identifier: MIT
"""Sampling the stacks of a running program: of Python, and of native functions."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol

from speed_bump import _core
from speed_bump.experiment.account import Looks
from speed_bump.experiment.program import stacks
from speed_bump.experiment.program.looks import Looking
from speed_bump.experiment.program.machine import is_alive, lineage
from speed_bump.experiment.program.native_frames import Key
from speed_bump.experiment.program.native_looks import NativeLooks, NativeSeen
from speed_bump.experiment.program.native_times import NativeSampling
from speed_bump.experiment.program.samples import Own, Samples
from speed_bump.experiment.program.stacks import GIL, POLL, Leaves, Stack, Stacks

SLICE_NS = 50_000_000
# How long native frames below those of Python are sampled.
BELOW_NS = 1_000_000_000


class Processes(Protocol):
    """What a sampler must know of the program."""

    pid: int

    @property
    def first_pids(self) -> set[int]:
        """The process that was started, or those attached to."""

    @property
    def roots(self) -> set[int]:
        """Processes from which all others descend."""

    @property
    def pids(self) -> set[int]:
        """All that are alive."""

    def is_running(self) -> bool:
        """Whether the program is still running."""

    def native_places(self) -> dict[str, tuple[str, int]]:
        """By native candidate, the file and the offset in it."""


class Sampler:
    """Samples a program's stacks, and keeps the samples. For use by one thread.

    Args:
        program: which may start later
        table: that its Python processes share
        stem: of the names of their files
        wanted: the Python functions that are counted, as ``module:function``
        calls: the program records which C functions are called where
    """

    def __init__(
        self,
        program: Processes,
        table: _core.Table,
        stem: str,
        wanted: Collection[str],
        *,
        calls: bool,
    ) -> None:
        self._program = program
        self._table = table
        self._stem = stem
        self._wanted = wanted
        self._looking = Looking(table)
        # Python processes whose stacks are sampled.
        self._sampled: set[int] = set()
        self._leaves = Leaves(stem) if calls else None
        self._native_sampling: NativeSampling | None = None
        self._native_looks_of: NativeLooks | None = None
        self._below_ns = BELOW_NS
        self.native_refused = ""

    @property
    def knows_calls(self) -> bool:
        """Whether the program records which C functions are called where."""
        return self._leaves is not None

    def close(self) -> None:
        """Sample no native stacks any more."""
        if self._native_looks_of:
            self._native_looks_of.stop()

    # ----------------------------------------------------------------- times

    def sample(self, ns: int, meanwhile: Callable[[], None]) -> Samples:
        """Sample the stacks for the given time, while nothing is delayed.

        Args:
            meanwhile: called every few hundredths of a second
        """
        self._table.watched = True
        try:
            return self._sample(ns, meanwhile)
        finally:
            self._table.watched = False

    def _sample(self, ns: int, meanwhile: Callable[[], None]) -> Samples:
        self._find_stacks()
        native = self._find_natives()
        found = Samples()
        pids = self._program.roots
        for pid in self._program.pids - self._sampled:
            self._looking.add(pid, None)
        self._looking.begin()
        with self._native_looks(native, pids, ns):
            begin = time.monotonic_ns()
            while (left := begin + ns - time.monotonic_ns()) > 0:
                if not self._program.is_running():
                    break
                self._add_innermost(min(left, SLICE_NS), found)
                self._find_stacks()
                meanwhile()
            found.clock_ns = time.monotonic_ns() - begin
        found.seen = bool(self._sampled)
        found.native = native.times if native else None
        return found

    @contextmanager
    def _native_looks(
        self, native: NativeSampling | None, pids: Iterable[int], ns: int
    ) -> Iterator[None]:
        """While inside, sample native functions, and for a while all native frames.

        If perf events are refused there are none, and everything else is the same.
        """
        # Unwinding takes as long again.
        below_ns = min(ns // 2, self._below_ns)
        below = native or (NativeSampling({}) if below_ns else None)
        if below is None or not below_ns:
            with native.running(pids, ns) if native else nullcontext():
                yield
            return
        self._below_ns -= below_ns
        self._looking.note_moments(True)
        try:
            with below.running(pids, ns if native else below_ns, keep=True):
                yield
        finally:
            moments = self._looking.note_moments(False)
        self.native_refused = below.refused
        if below.refused and not native:
            self._below_ns = 0
        self._looking.native.add(below.stacks(), moments, below.symbol)

    def _add_innermost(self, ns: int, found: Samples) -> None:
        """Add where threads were, in each counted function itself."""
        seen = self.stacks(ns, moments=True)
        found.ticks += seen.ticks
        found.lost.update(seen.lost)
        there: dict[Stack, str] = {}
        for stack, n in seen.samples.items():
            # A C function that is not measured counts for its caller.
            last = -1 if not stack.has_leaf or stack.frames[-1] in self._wanted else -2
            name = stack.frames[last] if len(stack.frames) >= -last else ""
            own = found.python.setdefault((stack.thread, name), Own())
            own.queued_ns += seen.queued_ns.get(stack, 0)
            own.pid = stack.pid
            if not stack.waits:
                own.awake += n
                there[stack] = name
            elif not (
                stack.waits_for_others and (self._leaves or stack.waits in (POLL, GIL))
            ):
                # What others take can't be gained here. If it is not known which C
                # function sleeps, its own threads may do the work, but for a socket or
                # the GIL.
                own.asleep += n
                there[stack] = name
        at = Counter((tick, there[s]) for tick, s in seen.moments if there.get(s))
        found.twice.update(name for (_, name), threads in at.items() if threads > 1)

    # ---------------------------------------------------------- whole stacks

    def stacks(self, ns: int, *, moments: bool = False) -> Stacks:
        """Sample whole stacks for the given time, of all counted functions.

        Args:
            moments: as for ``stacks.read()``
        """
        self._find_stacks()
        look = self._looking.look(ns)
        if self._native_looks_of:
            self._looking.forget_moments(self._native_looks_of.since_ns)
        pids = {stack.pid for stack in look.stacks}
        calls = self._leaves.of(pids) if self._leaves else {}
        return stacks.read(look, calls, self._program.pid, moments=moments)

    def looks(self) -> Looks:
        """The samples of whole stacks, of all rounds together."""
        return self._looking.looks()

    def begin_native_looks(self, is_wanted: Callable[[str], bool]) -> None:
        """Also sample native stacks during each ``stacks()``, until told to stop.

        Args:
            is_wanted: whether functions of a file are measured, and need names
        """
        self._looking.note_moments(True)
        self._native_looks_of = NativeLooks(
            lambda: self._program.roots,
            lambda: any(map(is_alive, self._program.first_pids)),
            is_wanted,
        )
        self._native_looks_of.start()

    def forget_native_looks(self) -> None:
        """Discard the samples so far: the work had not begun."""
        if self._native_looks_of:
            self._native_looks_of.forget()

    def stop_native_looks(self) -> None:
        """Sample no native stacks any more; the samples are kept."""
        if self._native_looks_of:
            self._native_looks_of.end()

    def end_native_looks(self) -> NativeSeen:
        """The native samples so far, each with its stack."""
        native, self._native_looks_of = self._native_looks_of, None
        if native is None:
            return NativeSeen()
        native.stop()
        moments = self._looking.note_moments(False)
        calls = self._leaves.of(self._sampled) if self._leaves else {}
        targets = self._looking.targets()

        def named(key: Key) -> Stack | None:
            return stacks.stack_of(key, targets, calls, self._program.pid)

        return native.seen(moments, named)

    def _find_natives(self) -> NativeSampling | None:
        """The sampler of native candidates; None: there are none."""
        if self._native_sampling is None and (places := self._program.native_places()):
            self._native_sampling = NativeSampling(places)
        return self._native_sampling

    def _find_stacks(self) -> None:
        """Add new processes to the sampler."""
        layouts: dict[int, tuple[int, ...]] = {}
        directory, stem = os.path.split(self._stem)
        prefix = f"{stem}.table.layout."
        for name in os.listdir(directory):
            if name.startswith(prefix):
                with open(os.path.join(directory, name), encoding="ascii") as file:
                    words = tuple(int(word) for word in file.read().split())
                if words:
                    layouts[int(name.removeprefix(prefix))] = words
        pids = {site.pid for site in self._table.read()} | set(layouts)
        for pid in sorted(pids - self._sampled):
            layout = _layout_of(pid, layouts)
            if layout and self._looking.add(pid, layout):
                self._sampled.add(pid)


def _layout_of(pid: int, layouts: dict[int, tuple[int, ...]]) -> tuple[int, ...] | None:
    """The entry of the process, or of its nearest ancestor."""
    for one in lineage(pid):
        if one in layouts:
            return layouts[one]
    return None
