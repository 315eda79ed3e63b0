# SPDX-License-Identifier: MIT
"""Native stacks of a program, each with the Python stack that it was below."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from speed_bump import _core
from speed_bump.experiment.program.native_frames import Key, Moments, nearest
from speed_bump.experiment.program.stacks import Stack

# Looks are followed, and that takes as long again: so they are short, and the last ones
# are kept.
ROUND_NS = 500_000_000
MAX_ROUNDS = 6
# From the third one on a program is looked at for a part of the time.
ROUNDS_AT_ONCE, PAUSE_S = 3, 1.0


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
    clock_ns: int
    stacks: list[_core.NativeStack]


class NativeLooks:
    """Looks in a thread of its own, again and again, until it is stopped.

    Args:
        pids: of the processes that are looked at, with their descendants
    """

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        """Nothing is looked at yet."""
        self._pids = pids
        self._rounds: deque[_Round] = deque(maxlen=MAX_ROUNDS)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._forgets = 0
        self.refused = ""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def forget(self) -> None:
        """Begin anew."""
        self._forgets += 1
        self._rounds.clear()

    def stop(self) -> None:
        """End; what is being looked at is finished first."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            sampler = _core.NativeSampler()
            sampler.keep_stacks(True)
            while not self._over.is_set():
                self._one_round(sampler)
                if len(self._rounds) >= ROUNDS_AT_ONCE:
                    self._over.wait(PAUSE_S)
        except OSError as error:
            self.refused = error.strerror or str(error)

    def _one_round(self, sampler: _core.NativeSampler) -> None:
        forgets = self._forgets
        for pid in self._pids():
            sampler.add_process(pid)
        clock_ns = sampler.run(ROUND_NS)[1]
        stacks = sampler.stacks()
        if forgets == self._forgets:
            self._rounds.append(_Round(clock_ns, stacks))

    def seen(
        self,
        moments: Moments,
        stack_of: Callable[[Key], Stack | None],
        is_wanted: Callable[[str], bool],
    ) -> NativeSeen:
        """All of it, when it has stopped.

        Args:
            moments: of each thread that Python's stacks were looked at of
            stack_of: the names of a stack
            is_wanted: whether functions of a file are asked for; those of others have
                no names
        """
        found = NativeSeen(refused=self.refused)
        stacks: dict[Key, Stack | None] = {}
        of_python = {tid for tid, seen in moments.items() if any(k[4] for _, k in seen)}
        places_of = self._places(is_wanted)
        for one in self._rounds:
            found.clock_ns += one.clock_ns
            for tid, time_ns, ns, off, _, rows in one.stacks:
                places = tuple(places_of[row] for row in rows)
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

    def _places(self, is_wanted: Callable[[str], bool]) -> dict[tuple[str, int], Place]:
        """What is at each place that was seen."""
        rows = {row for one in self._rounds for stack in one.stacks for row in stack[5]}
        if not rows:
            return {}
        sampler = _core.NativeSampler()
        # One file is kept open, and some are large: all of it in a row.
        return {
            row: _place(sampler, *row) if is_wanted(row[0]) else Place(row[0])
            for row in sorted(rows)
        }


def _place(sampler: _core.NativeSampler, path: str, offset: int) -> Place:
    found = sampler.symbol(path, offset) if path else None
    if not found:
        return Place(path)
    # What the compiler moved out of the way is of the function.
    name, readable = found[0].partition(".cold")[0], found[1] or found[0]
    readable = readable.partition(" [clone .cold")[0].partition(".cold")[0]
    return Place(path, name, readable)
