# SPDX-License-Identifier: MIT
"""Native frames below those of Python: both are sampled, and joined.

The kernel takes native stacks if perf events are allowed. Each is joined with the Python
stack of the same thread that was seen at the nearest time.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from speed_bump import _core
from speed_bump.experiment import symbols
from speed_bump.experiment.account import MACHINE, Frame

# A Python sample that is farther away in time is not joined with a native stack.
NEAR_NS = 2_000_000
# At most this many frames of one stack are shown, from the outermost.
MAX_FRAMES = 32
# The interpreter's own files.
INTERPRETER = ("python", "libpython")
# This package at work, also a copy of it that another Python has.
_OWN = re.compile(r"/speed_bump/_core\.[^/]*$")


def is_ours(path: str) -> bool:
    """Whether a file is this package's extension."""
    return bool(_OWN.search(path))


class Key(NamedTuple):
    """A stack of Python: what ``_core.Stack`` says of it, but how often it was seen."""

    pid: int
    tid: int
    wait: str
    offset: int
    codes: tuple[int, ...]

    @classmethod
    def of(cls, stack: _core.Stack) -> Key:
        return cls(stack.pid, stack.tid, stack.wait, stack.offset, stack.codes)


# When the stack of a thread was seen, in the order of time.
Moments = Mapping[int, Sequence[tuple[int, Key]]]
Frames = tuple[Frame, ...]
# A file, and an offset in it.
Asked = tuple[str, int]
Symbols = Callable[[str, int], _core.Symbol | None]


class NativeFrames:
    """The native frames below each stack of Python, as parts of the time there."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Counter[Frames]] = {}
        self._by_place: dict[tuple[object, ...], Counter[Frames]] = {}

    def add(
        self,
        stacks: Iterable[_core.NativeStack],
        moments: Moments,
        symbol: Symbols,
    ) -> None:
        """Add samples of one period.

        Args:
            moments: of each thread
            symbol: as ``NativeSampler.symbol``
        """
        matched, loose = [], []
        for stack in stacks:
            off_ns = stack.ns if stack.off_cpu else 0
            key = nearest(moments.get(stack.tid, ()), stack.time_ns, off_ns)
            own = _own(stack.frames, stack.whole, bool(key and key.codes))
            if key is not None and own is not None:
                matched.append((key, own, stack.ns))
            elif key is not None and stack.frames:
                path, _ = stack.frames[0]
                loose.append((key, path, stack.ns))
        places = {row for _, rows, _ in matched for row in rows}
        # One file is kept open, so its symbols are read in sequence.
        names = {row: _frame(row, symbol) for row in sorted(places)}
        for key, rows, ns in matched:
            frames: list[Frame] = []
            for row in reversed(rows):
                if not frames or frames[-1] != names[row]:
                    frames.append(names[row])
            found = tuple(frames[:MAX_FRAMES])
            self._by_key.setdefault(key, Counter())[found] += ns
            self._by_place.setdefault(_place(key), Counter())[found] += ns
        # Code that can't be unwound, such as a BLAS, has no known caller; if the file was
        # unwound at other times, that caller is used.
        for key, file, ns in loose:
            there = self._by_place.setdefault(_place(key), Counter())
            if not any(frame.file == file for seen in there for frame in seen):
                self._by_key.setdefault(key, Counter())[()] += ns
                there[()] += ns

    def below(self, key: Key) -> list[tuple[Frames, float]]:
        """The frames below a stack, from the outermost, with parts that add up to 1."""
        seen = self._by_key.get(key) or self._by_place.get(_place(key))
        if not seen:
            return [((), 1.0)]
        if key.codes:
            # A place calls one function: others were sampled just before or after it.
            callee = _usual_first(self._by_place[_place(key)])
            seen = Counter({f: ns for f, ns in seen.items() if not f or f[0] == callee})
        total = seen.total()
        if not total:
            return [((), 1.0)]
        return [(frames, ns / total) for frames, ns in seen.items()]


def _usual_first(seen: Counter[Frames]) -> Frame | None:
    firsts: Counter[Frame] = Counter()
    for frames, ns in seen.items():
        if frames:
            firsts[frames[0]] += ns
    return firsts.most_common(1)[0][0] if firsts else None


def _place(key: Key) -> tuple[object, ...]:
    """The native frames of a thread, whatever called them."""
    if key.codes:
        return key.pid, key.wait, key.offset, key.codes[0]
    return key.pid, key.tid, key.wait


def nearest(moments: Sequence[tuple[int, Key]], time_ns: int, off_ns: int) -> Key | None:
    """The stack seen while the native one was off the CPU; else the one at that time.

    Args:
        off_ns: how long it was off the CPU
    """
    at = bisect_left(moments, time_ns, key=lambda moment: moment[0])
    before = moments[at - 1] if at else None
    after = moments[at] if at < len(moments) else None
    if after and after[0] <= time_ns + off_ns:
        return after[1]
    if before and after and _place(before[1]) == _place(after[1]):
        return after[1]
    near = [m for m in (before, after) if m and abs(m[0] - time_ns) <= NEAR_NS]
    return min(near, key=lambda m: abs(m[0] - time_ns))[1] if near else None


def _own(rows: Sequence[Asked], whole: bool, is_python: bool) -> tuple[Asked, ...] | None:
    """The frames inside the interpreter's innermost one.

    All frames in a thread without an interpreter; None: the stack was not unwound so far.
    """
    for k, (path, _) in enumerate(rows):
        if os.path.basename(path).startswith(INTERPRETER):
            return tuple(rows[:k])
    return tuple(rows) if whole and not is_python else None


def _frame(place: Asked, symbol: Symbols) -> Frame:
    path, offset = place
    file = os.path.basename(path)
    found = symbol(path, offset) if path else None
    if found is None:
        return Frame(MACHINE, file or "code without a file", path)
    name, readable = symbols.of_whole(found.name, found.demangled)
    mangled = name if name != readable else ""
    return Frame(MACHINE, f"{file}:{readable}", path, symbol=mangled)
