# SPDX-License-Identifier: MIT
"""Native stacks of a program, each with the Python stack above it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from speed_bump import _core
from speed_bump.experiment import symbols
from speed_bump.experiment.program.native_frames import Key, Moments, Symbols, nearest
from speed_bump.experiment.program.native_times import sample
from speed_bump.experiment.program.stacks import Stack

# Unwinding takes as long as sampling, so rounds are short, and the last ones are kept.
ROUND_NS = 500_000_000
MAX_ROUNDS = 6
# From the third round on, the program is sampled for a part of the time.
ROUNDS_AT_ONCE, PAUSE_S = 3, 1.0
STEP_S = 0.02


@dataclass(frozen=True)
class Place:
    """A native function.

    Args:
        path: of its file, as the process mapped it
        symbol: its name there; "" for code without a symbol
        readable: the demangled name
    """

    path: str
    symbol: str = ""
    readable: str = ""


@dataclass(frozen=True)
class NativeLook:
    """Where a thread was for ``ns``: ``places`` from the innermost.

    ``stack`` is the Python stack above; None: the thread runs no Python. ``sleeps``:
    whether it was neither on a CPU nor waiting for one; None: unknown.
    """

    tid: int
    ns: int
    places: tuple[Place, ...]
    stack: Stack | None
    sleeps: bool | None


@dataclass
class NativeSeen:
    """All samples, taken in ``clock_ns``; ``refused`` says why there are none."""

    clock_ns: int = 0
    looks: list[NativeLook] = field(default_factory=list)
    refused: str = ""

    def add(self, other: NativeSeen) -> None:
        """Add samples of another period."""
        self.clock_ns += other.clock_ns
        self.looks += other.looks
        self.refused = self.refused or other.refused


@dataclass
class _Round:
    begin_ns: int
    clock_ns: int
    stacks: list[_core.NativeStack]

    def since(self, begin_ns: int) -> _Round | None:
        """The part that is later; None: there is none."""
        left_ns = self.begin_ns + self.clock_ns - begin_ns
        if left_ns >= self.clock_ns:
            return self
        if left_ns <= 0:
            return None
        later = [stack for stack in self.stacks if stack.time_ns >= begin_ns]
        return _Round(begin_ns, left_ns, later)


class NativeLooks:
    """Samples in a thread of its own, in rounds, until stopped.

    The symbols at the sampled places are looked up there too, between two rounds, because
    reading the symbols of a large library takes a while.

    Args:
        pids: of the sampled processes; their descendants are included
        lives: whether the program has not ended; what it leaves behind is not sampled
        is_wanted: whether functions of a file are measured; those of other files get no
            names
    """

    def __init__(
        self,
        pids: Callable[[], Iterable[int]],
        lives: Callable[[], bool],
        is_wanted: Callable[[str], bool],
    ) -> None:
        self._pids = pids
        self._lives = lives
        self._is_wanted = is_wanted
        self._rounds: deque[_Round] = deque(maxlen=MAX_ROUNDS)
        self._places: dict[tuple[str, int], Place] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._sampler: _core.NativeSampler | None = None
        self._begin_ns = self._forgot_ns = 0
        self.refused = ""

    @property
    def since_ns(self) -> int:
        """What was seen before this time is in no round that is kept; monotonic."""
        if self.refused:
            return time.monotonic_ns()
        # One step: without the GIL, a copy fails where the other thread appends.
        try:
            return self._rounds[0].begin_ns
        except IndexError:
            return max(self._begin_ns, self._forgot_ns)

    def start(self) -> None:
        self._forgot_ns = time.monotonic_ns()
        self._thread.start()

    def forget(self) -> None:
        """Drop what was seen until now, also of the current round."""
        self._forgot_ns = time.monotonic_ns()
        self._rounds.clear()

    def end(self) -> None:
        """Sample no longer; what was seen may still be looked up."""
        self._over.set()
        if self._sampler:
            self._sampler.stop()

    def stop(self) -> None:
        """Stop, and wait until all is looked up; the samples so far are kept."""
        self.end()
        while self._thread.is_alive():
            # The thread may be between two rounds, and begin another one.
            self.end()
            self._thread.join(STEP_S)

    def _run(self) -> None:
        try:
            self._sampler = sampler = _core.NativeSampler()
            sampler.keep_stacks(True)
            while not self._over.is_set() and self._lives():
                began = time.monotonic()
                self._one_round(sampler)
                if len(self._rounds) >= ROUNDS_AT_ONCE:
                    # Time for looking up was taken after it.
                    took = time.monotonic() - began - ROUND_NS / 1e9
                    self._over.wait(max(PAUSE_S - took, 0.0))
        except OSError as error:
            self.refused = error.strerror or str(error)

    def _one_round(self, sampler: _core.NativeSampler) -> None:
        for pid in self._pids():
            sample(sampler, pid)
        self._begin_ns = begin_ns = time.monotonic_ns()
        clock_ns = sampler.run(ROUND_NS).clock_ns
        one = _Round(begin_ns, clock_ns, sampler.stacks()).since(self._forgot_ns)
        if one:
            self._look_up(sampler, one.stacks)
            # Looking up takes a while, too.
            one = one.since(self._forgot_ns)
        if one:
            self._rounds.append(one)

    def _look_up(
        self, sampler: _core.NativeSampler, stacks: list[_core.NativeStack]
    ) -> None:
        """Look up each new place."""
        frames = {frame for stack in stacks for frame in stack.frames}
        # One file is kept open: some are large, so symbols are read in sequence.
        for path, offset in sorted(frames - self._places.keys()):
            wanted = self._is_wanted(path)
            place = place_of(sampler.symbol, path, offset) if wanted else Place(path)
            self._places[path, offset] = place

    def seen(
        self,
        moments: Moments,
        stack_of: Callable[[Key], Stack | None],
    ) -> NativeSeen:
        """All of it, after it has stopped.

        Args:
            moments: of each thread whose Python stacks were sampled
            stack_of: the names of a stack
        """
        found = NativeSeen(refused=self.refused)
        stacks: dict[Key, Stack | None] = {}
        of_python = {
            tid for tid, seen in moments.items() if any(key.codes for _, key in seen)
        }
        for one in self._rounds:
            found.clock_ns += one.clock_ns
            for stack in one.stacks:
                tid, ns = stack.tid, stack.ns
                places = tuple(self._places[frame] for frame in stack.frames)
                off_ns = ns if stack.off_cpu else 0
                key = nearest(moments.get(tid, ()), stack.time_ns, off_ns)
                if tid not in of_python:
                    known = bool(key.wait) if key else None
                    sleeps = known if stack.off_cpu else False
                    found.looks.append(NativeLook(tid, ns, places, None, sleeps))
                elif key is not None:
                    # Between two Python stacks it is unknown which one it belongs to.
                    if key not in stacks:
                        stacks[key] = stack_of(key)
                    sleeps = bool(key.wait)
                    found.looks.append(NativeLook(tid, ns, places, stacks[key], sleeps))
        return found


def place_of(symbol: Symbols, path: str, offset: int) -> Place:
    """The function at an offset in a file.

    Args:
        symbol: as ``NativeSampler.symbol``
    """
    found = symbol(path, offset) if path else None
    if not found:
        return Place(path)
    return Place(path, *symbols.of_whole(found.name, found.demangled))
