# SPDX-License-Identifier: MIT
"""Native stacks of a program, each with the Python stack that it was below."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from speed_bump import _core
from speed_bump.experiment import symbols
from speed_bump.experiment.program.native_frames import Key, Moments, nearest
from speed_bump.experiment.program.stacks import Stack

# Looks are followed, and that takes as long again: so they are short, and the last ones
# are kept.
ROUND_NS = 500_000_000
MAX_ROUNDS = 6
# From the third one on a program is looked at for a part of the time.
ROUNDS_AT_ONCE, PAUSE_S = 3, 1.0
STEP_S = 0.02


@dataclass(frozen=True)
class Place:
    """A native function.

    Args:
        path: of its file, as the process mapped it
        symbol: its name there; "" for code that no symbol covers
        readable: the same demangled
    """

    path: str
    symbol: str = ""
    readable: str = ""


@dataclass(frozen=True)
class NativeLook:
    """Where a thread was for ``ns``: ``places`` from the innermost.

    ``stack`` is that of Python above it; None: the thread runs none. ``sleeps`` is
    whether it was not on a CPU, and did not wait for one; None: that is not known.
    """

    tid: int
    ns: int
    places: tuple[Place, ...]
    stack: Stack | None
    sleeps: bool | None


@dataclass
class NativeSeen:
    """All looks, in so many ``clock_ns``; ``refused`` says why there are none."""

    clock_ns: int = 0
    looks: list[NativeLook] = field(default_factory=list)
    refused: str = ""

    def add(self, other: NativeSeen) -> None:
        """Take over what was seen at another time."""
        self.clock_ns += other.clock_ns
        self.looks += other.looks
        self.refused = self.refused or other.refused


@dataclass
class _Round:
    begin_ns: int
    clock_ns: int
    stacks: list[_core.NativeStack]


class NativeLooks:
    """Looks in a thread of its own, again and again, until it is stopped.

    What is at the places that were seen is looked up there, too, between two looks: to
    read the symbols of a large library takes a while.

    Args:
        pids: of the processes that are looked at, with their descendants
        is_wanted: whether functions of a file are asked for; those of others have no
            names
    """

    def __init__(
        self, pids: Callable[[], Iterable[int]], is_wanted: Callable[[str], bool]
    ) -> None:
        """Nothing is looked at yet."""
        self._pids = pids
        self._is_wanted = is_wanted
        self._rounds: deque[_Round] = deque(maxlen=MAX_ROUNDS)
        self._places: dict[tuple[str, int], Place] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._sampler: _core.NativeSampler | None = None
        self._begin_ns = 0
        self._forgets = 0
        self.refused = ""

    @property
    def since_ns(self) -> int:
        """When the first look began that is kept, or the one that goes on; monotonic."""
        # One step: without the GIL, a copy fails where the other thread appends.
        try:
            return self._rounds[0].begin_ns
        except IndexError:
            return self._begin_ns

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def forget(self) -> None:
        """Begin anew."""
        self._forgets += 1
        self._rounds.clear()

    def stop(self) -> None:
        """End; what was seen by now is kept."""
        self._over.set()
        while self._thread.is_alive():
            # It may be between two looks, and begin another one yet.
            if self._sampler:
                self._sampler.stop()
            self._thread.join(STEP_S)

    def _run(self) -> None:
        try:
            self._sampler = sampler = _core.NativeSampler()
            sampler.keep_stacks(True)
            while not self._over.is_set():
                began = time.monotonic()
                self._one_round(sampler)
                if len(self._rounds) >= ROUNDS_AT_ONCE:
                    # What was looked up has had its part of that.
                    took = time.monotonic() - began - ROUND_NS / 1e9
                    self._over.wait(max(PAUSE_S - took, 0.0))
        except OSError as error:
            self.refused = error.strerror or str(error)

    def _one_round(self, sampler: _core.NativeSampler) -> None:
        forgets = self._forgets
        for pid in self._pids():
            sampler.add_process(pid)
        self._begin_ns = begin_ns = time.monotonic_ns()
        clock_ns = sampler.run(ROUND_NS)[1]
        stacks = sampler.stacks()
        if forgets == self._forgets:
            self._look_up(sampler, stacks)
        # To look up takes a while, too.
        if forgets == self._forgets:
            self._rounds.append(_Round(begin_ns, clock_ns, stacks))

    def _look_up(
        self, sampler: _core.NativeSampler, stacks: list[_core.NativeStack]
    ) -> None:
        """See what is at each place that is new."""
        rows = {row for stack in stacks for row in stack[5]} - self._places.keys()
        # One file is kept open, and some are large: all of it in a row.
        for row in sorted(rows):
            wanted = self._is_wanted(row[0])
            self._places[row] = _place(sampler, *row) if wanted else Place(row[0])

    def seen(
        self,
        moments: Moments,
        stack_of: Callable[[Key], Stack | None],
    ) -> NativeSeen:
        """All of it, when it has stopped.

        Args:
            moments: of each thread that Python's stacks were looked at of
            stack_of: the names of a stack
        """
        found = NativeSeen(refused=self.refused)
        stacks: dict[Key, Stack | None] = {}
        of_python = {tid for tid, seen in moments.items() if any(k[4] for _, k in seen)}
        for one in self._rounds:
            found.clock_ns += one.clock_ns
            for tid, time_ns, ns, off, _, rows in one.stacks:
                places = tuple(self._places[row] for row in rows)
                key = nearest(moments.get(tid, ()), time_ns, ns if off else 0)
                if tid not in of_python:
                    sleeps = False if not off else bool(key[2]) if key else None
                    found.looks.append(NativeLook(tid, ns, places, None, sleeps))
                elif key is not None:
                    # In between two of Python's stacks it is not known which.
                    if key not in stacks:
                        stacks[key] = stack_of(key)
                    sleeps = bool(key[2])
                    found.looks.append(NativeLook(tid, ns, places, stacks[key], sleeps))
        return found


def _place(sampler: _core.NativeSampler, path: str, offset: int) -> Place:
    found = sampler.symbol(path, offset) if path else None
    if not found:
        return Place(path)
    return Place(path, *symbols.of_whole(found[0], found[1]))
