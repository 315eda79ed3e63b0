# SPDX-License-Identifier: MIT
"""Native functions of a Python program as candidates, found by sampling."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import speed_bump
from speed_bump import _core, native
from speed_bump.config import Target, parse_targets
from speed_bump.duration import human
from speed_bump.experiment import symbols
from speed_bump.experiment.aim.shares import MIN_SAMPLES, MIN_SHARE, worth
from speed_bump.experiment.program.native_frames import INTERPRETER
from speed_bump.experiment.program.native_looks import NativeLook, NativeSeen, Place
from speed_bump.experiment.program.stacks import Stack, is_idle
from speed_bump.experiment.symbols import base, short

# At most this many are counted: those that take the most time.
MAX_COUNTED = 40
# Breakpoints may take this part of the slowdown allowed for delays. They cost time all
# the time, and delays do not.
HIT_PART = 0.25
# A function whose breakpoints take less than this part of it is not charged.
LITTLE = 0.001
# The cost of a hit, if it can't be measured.
HIT_NS = 3000
# Calls are counted for this long: usually until they are known to be few enough, and
# again if a function that takes time was not called yet or others were left out.
HOT_S, COUNT_S, UNCALLED_S, MAX_COUNT_S = 0.15, 0.5, 1.5, 4.0
# Two native functions are one question if they are on the same stacks in this part of the
# samples. The time of a C function's call is known less exactly.
ALIKE, OF_LEAF = 0.85, 0.7
# The loader, and libraries whose functions everything calls.
EVERYWHERE = (
    *("libc.so", "libc-", "ld-linux", "ld-musl", "libpthread", "libdl.", "librt."),
    *("libgcc_s", "libstdc++", "libc++", "libjemalloc", "libtcmalloc", "libmimalloc"),
    *("linux-vdso", "[vdso]", "libasan", "libtsan", "libubsan"),
)
# Functions that are the same wherever they are compiled in.
ALLOCATES = {
    *("malloc", "calloc", "realloc", "free", "memalign", "posix_memalign"),
    *("aligned_alloc", "memcpy", "memmove", "memset", "memcmp"),
    *("operator new", "operator new[]", "operator delete", "operator delete[]"),
}
# Functions that only wait for other threads, on a CPU: of OpenBLAS, libgomp, LLVM's and
# Intel's OpenMP.
WAITS = re.compile(
    r"exec_blas_async_wait|blas_thread_server|gomp_\w*(wait|barrier)\w*|gomp_thread_start"
    r"|__kmp_\w*(wait|barrier)\w*"
)
# Parts of a function that the compiler moved elsewhere.
PART = re.compile(r"\.(cold|part)\b")
# This package at work.
OWN = os.path.dirname(speed_bump.__file__) + os.sep

# A file and a symbol.
Key = tuple[str, str]


@dataclass
class Weighed:
    """Parts of the time in native functions: average numbers of threads.

    ``on`` has the indices of the samples in which each was; ``leaves`` likewise for each
    C function that is known by its Python name.
    """

    total: dict[Key, float] = field(default_factory=dict)
    own: dict[Key, float] = field(default_factory=dict)
    readable: dict[Key, str] = field(default_factory=dict)
    on: dict[Key, set[int]] = field(default_factory=dict)
    leaves: dict[str, set[int]] = field(default_factory=dict)
    ns: list[int] = field(default_factory=list)

    def names(self) -> list[Key]:
        """The functions that are worth measuring, the largest share first."""
        found = [
            key
            for key, share in self.total.items()
            if share >= MIN_SHARE and len(self.on[key]) >= MIN_SAMPLES
        ]
        # Own time first; with equal time, the outer function.
        return sorted(found, key=lambda k: (-self.worth(k), -self.total[k], k))

    def worth(self, key: Key) -> float:
        """An estimate of what its answer is worth."""
        return worth(self.own.get(key, 0.0), self.total[key], False)

    def alike(self, a: Key, b: Key) -> bool:
        """Whether two functions are in nearly the same samples."""
        a_on, b_on = self.on[a], self.on[b]
        return self._time(a_on & b_on) >= ALIKE * self._time(a_on | b_on)

    def is_leaf(self, key: Key, leaf: str) -> bool:
        """Whether the function is nearly all of a C function's time, and of no other."""
        on, leaf_on = self.on[key], self.leaves.get(leaf, set())
        both, mine = self._time(on & leaf_on), self._time(on)
        return both >= OF_LEAF * mine and mine >= OF_LEAF * self._time(leaf_on)

    def _time(self, looks: set[int]) -> int:
        return sum(self.ns[i] for i in looks)


@dataclass
class Native:
    """A native function that can be measured.

    Args:
        name: ``PATH:SYMBOL``, as in the report
        target: the target for it
        rate: calls a second
    """

    name: str
    target: Target
    key: Key
    rate: float = 0.0


@dataclass
class Natives:
    """The functions to measure by name, and those left out, with reason and share."""

    asked: dict[str, Native] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    left_share: dict[str, float] = field(default_factory=dict)
    weighed: Weighed = field(default_factory=Weighed)
    refused: str = ""

    def leave_out(self, name: str, key: Key, why: str) -> None:
        """Leave out a function that takes time."""
        self.left_out[name] = why
        self.left_share[name] = self.weighed.total[key]

    def reasons(self) -> dict[str, str]:
        """The functions left out, with reasons, the largest share first."""
        ordered = sorted(self.left_out, key=lambda name: -self.left_share[name])
        return {name: self.left_out[name] for name in ordered}


def is_asked_of(path: str) -> bool:
    """Whether functions of a file may be measured: not a file that everything uses."""
    file = os.path.basename(path)
    return (
        path.startswith("/")
        and not file.startswith((*INTERPRETER, *EVERYWHERE))
        and not path.startswith(OWN)
    )


def is_sensible(place: Place) -> bool:
    """Whether a delay in the symbol is in one function only."""
    return bool(place.symbol) and not (
        not is_asked_of(place.path)
        or base(place.readable) in ALLOCATES
        or PART.search(place.symbol)
        or WAITS.fullmatch(place.symbol)
    )


def inner(look: NativeLook) -> tuple[Place, ...]:
    """The frames inside the interpreter's innermost frame, from the innermost on."""
    for k, place in enumerate(look.places):
        if os.path.basename(place.path).startswith(INTERPRETER):
            return look.places[:k]
    return look.places


def _is_no_work(stack: Stack) -> bool:
    """Whether the frame imports or belongs to this package; frames below it do, too."""
    return bool(stack.imported) or stack.is_ours


def weigh(seen: NativeSeen) -> Weighed:
    """Sum up the samples. Time asleep, in imports and in this package is left out.

    So is a function that is mostly seen below a call that waits: a sample of a thread
    about to sleep may be joined with another stack.
    """
    found = Weighed()
    total: Counter[Key] = Counter()
    own: Counter[Key] = Counter()
    waits: Counter[Key] = Counter()
    for look in seen.looks:
        stack = look.stack
        if stack and stack.frames and is_idle(stack.frames[-1]):
            for place in set(filter(is_sensible, inner(look))):
                waits[place.path, place.symbol] += look.ns
            continue
        if look.sleeps is not False or (stack and _is_no_work(stack)):
            continue
        at = len(found.ns)
        found.ns.append(look.ns)
        if stack and stack.has_leaf:
            found.leaves.setdefault(stack.frames[-1], set()).add(at)
        places = inner(look)
        if any(WAITS.fullmatch(place.symbol) for place in places):
            continue
        for place in set(places):
            if not is_sensible(place):
                continue
            key = place.path, place.symbol
            total[key] += look.ns
            found.readable[key] = place.readable
            found.on.setdefault(key, set()).add(at)
        # Time in code that belongs to no candidate counts for its caller.
        named = next((p for p in places if is_sensible(p)), None)
        if named:
            own[named.path, named.symbol] += look.ns
    clock = max(seen.clock_ns, 1)
    total = Counter({key: ns for key, ns in total.items() if ns >= waits[key]})
    found.total = {key: ns / clock for key, ns in total.most_common()}
    found.own = {key: ns / clock for key, ns in own.most_common()}
    return found


# -------------------------------------------------------------------------- counting


def _target(key: Key) -> Target | None:
    """A target by the name in the file; None if no pattern can express it."""
    path, symbol = key
    try:
        found = parse_targets(f"native:{path}:{symbol}", "found")
    except ValueError:
        return None
    plain = len(found) == 1 and (found[0].left, found[0].right) == key
    return found[0] if plain and not set("*?[") & set(symbol) else None


def _offsets(target: Target) -> list[int]:
    """The offsets in the file; empty if it can't be a target (measuring it says why)."""
    try:
        return _core.places_of(target.left, target.right)
    except OSError:
        return []


class _Counting:
    """Breakpoints in a running program, while calls are counted."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.probes = native.Probes(pid)
        self.natives: dict[int, Native] = {}

    def add(self, wanted: Sequence[tuple[Key, Target]]) -> None:
        """Insert all breakpoints that the kernel accepts at once: they cost time."""
        asked = [(t.left, t.right, 0, 1, 0, 0, False) for _, t in wanted]
        try:
            places = self.probes.add(asked) if asked else []
        except native.NativeError:
            half = len(wanted) // 2
            if half:
                self.add(wanted[:half])
                self.add(wanted[half:])
            return
        for place, label, index in places:
            key, target = wanted[index]
            self.natives[place] = Native(label, target, key)

    def leave(self, natives: Collection[Native]) -> None:
        """Remove these breakpoints. By BPF, a breakpoint stays as long as any that was
        added with it, so all are removed and the others are added again.
        """
        self.probes.close()
        kept = [(n.key, n.target) for n in self.natives.values() if n not in natives]
        self.natives.clear()
        self.probes = native.Probes(self._pid)
        self.add(kept)

    def read(self) -> dict[str, int]:
        names = {one.name for one in self.natives.values()}
        return {f.name: f.calls for f in self.probes.read() if f.name in names}


def askable(
    found: Natives, units: Sequence[Target], callables: Collection[str]
) -> list[tuple[Key, Target]]:
    """The functions that are worth a breakpoint; the others are noted with reasons."""
    weighed = found.weighed
    taken = {(t.left, offset) for t in units for offset in _offsets(t)}
    wanted: list[tuple[Key, Target]] = []
    for key in weighed.names():
        if len(wanted) == MAX_COUNTED:
            break
        name = f"{key[0]}:{key[1]}"
        of = next((leaf for leaf in callables if weighed.is_leaf(key, leaf)), "")
        if of:
            found.leave_out(name, key, _same_as(of))
            continue
        # Each file is read once, before any breakpoint is inserted.
        target = _target(key)
        offsets = _offsets(target) if target else []
        if not target or len(offsets) != 1:
            why = "it can't be a target, or its file has several functions of this name"
            found.leave_out(name, key, why)
        elif (key[0], offsets[0]) in taken:
            found.leave_out(name, key, "its calls are the units of work")
        else:
            wanted.append((key, target))
    return wanted


def _same_as(name: str) -> str:
    return f"nearly all of {short(name)}: the same question"


def count(
    pid: int,
    weighed: Weighed,
    is_running: Callable[[], bool],
    max_slowdown: float,
    units: Sequence[Target] = (),
    callables: Collection[str] = (),
    import_s: float = 0.0,
) -> Natives:
    """Choose the functions to measure, after counting their calls in a running program.

    Args:
        max_slowdown: the slowdown allowed, as a part
        units: native functions whose calls are the units of work
        callables: C functions among the candidates, by their Python names
        import_s: the program has just been started, and imports take this long
    """
    found = Natives(weighed=weighed)
    symbols.know({key[1]: readable for key, readable in weighed.readable.items()})
    began = time.monotonic()
    wanted = askable(found, units, callables)
    if not wanted:
        return found
    try:
        counting = _Counting(pid)
    except native.NativeError as error:
        return Natives(weighed=weighed, refused=str(error))
    try:
        counting.add(wanted)
        had = {one.key for one in counting.natives.values()}
        for key, target in wanted:
            if key not in had:
                name = f"{target.left}:{target.right}"
                found.leave_out(name, key, "the kernel can have no breakpoint there")
        if import_s:
            _await_work(counting, is_running, began + import_s)
        _count(counting, found, is_running, max_slowdown)
    except OSError as error:
        return Natives(weighed=weighed, refused=str(error))
    finally:
        counting.probes.close()
    return found


def _await_work(
    counting: _Counting, is_running: Callable[[], bool], imported: float
) -> None:
    """Wait until imports are over, and for a first call after them."""
    while is_running() and time.monotonic() < imported + MAX_COUNT_S:
        if time.monotonic() >= imported and any(counting.read().values()):
            return
        time.sleep(0.02)


def _count(
    counting: _Counting,
    found: Natives,
    is_running: Callable[[], bool],
    max_slowdown: float,
) -> None:
    try:
        hit_ns = counting.probes.session.hit_cost_ns()
    except OSError:
        hit_ns = HIT_NS
    most = HIT_PART * max_slowdown
    weighed = found.weighed
    left = sorted(
        counting.natives.values(), key=lambda one: (-weighed.worth(one.key), one.name)
    )
    rates, hot = _rates(counting, left, most * 1e9 / hit_ns, is_running)
    left = [one for one in left if one not in hot]
    taken = 0.0
    for one in left:
        one.rate = rates[one.name]
        cost = one.rate * hit_ns / 1e9
        # Of two functions that are one question, keep the one worth more, if it is
        # possible.
        same = next(
            (n for n in found.asked.values() if weighed.alike(one.key, n.key)), None
        )
        if same:
            found.leave_out(one.name, one.key, _same_as(same.name))
        elif not one.rate:
            why = "not called while its calls were counted"
            found.leave_out(one.name, one.key, why)
        elif cost > LITTLE and taken + cost > most:
            found.leave_out(one.name, one.key, _too_often(one.rate, hit_ns, cost))
        else:
            taken += cost
            found.asked[one.name] = one
    for one in hot:
        cost = rates[one.name] * hit_ns / 1e9
        found.leave_out(one.name, one.key, _too_often(rates[one.name], hit_ns, cost))


def _too_often(rate: float, hit_ns: int, cost: float) -> str:
    return (
        f"called {rate:,.0f} times a second: {human(hit_ns)} for each breakpoint are "
        f"{cost:.1%} of the time, too much together with the others"
    )


def _rates(
    counting: _Counting,
    natives: list[Native],
    most: float,
    is_running: Callable[[], bool],
) -> tuple[dict[str, float], list[Native]]:
    """Calls a second of each function, and the functions called more often than ``most``.

    While those are counted, everything is slower: they are removed as soon as they are
    known, and the others are counted again.
    """
    rates = {one.name: 0.0 for one in natives}
    left, hot = list(natives), []
    end = time.monotonic() + MAX_COUNT_S
    # Count once more after the program has ended.
    goes_on = True
    while left and goes_on:
        before, begin = counting.read(), time.monotonic()
        often: list[Native] = []
        while goes_on and not often:
            goes_on = is_running()
            time.sleep(0.02)
            now, took = counting.read(), time.monotonic() - begin
            calls = {n.name: now.get(n.name, 0) - before.get(n.name, 0) for n in left}
            if took >= HOT_S:
                often = [n for n in left if calls[n.name] > most * took]
            rates |= {name: n / took for name, n in calls.items()}
            is_known = took >= (COUNT_S if all(calls.values()) else UNCALLED_S)
            goes_on = goes_on and not is_known and begin + took < end
        if often:
            leaves = time.monotonic()
            counting.leave(often)
            end += time.monotonic() - leaves
        hot += often
        left = [one for one in left if one not in often]
    return rates, hot
