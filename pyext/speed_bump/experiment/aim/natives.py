# SPDX-License-Identifier: MIT
"""Native functions of a Python program, found by looking: candidates beside Python's."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import speed_bump
from speed_bump import native
from speed_bump.config import Target, parse_targets
from speed_bump.duration import human
from speed_bump.experiment import symbols
from speed_bump.experiment.aim.shares import MIN_SAMPLES, MIN_SHARE, worth
from speed_bump.experiment.program.native_frames import INTERPRETER
from speed_bump.experiment.program.native_looks import NativeLook, NativeSeen, Place
from speed_bump.experiment.program.stacks import Stack, is_idle
from speed_bump.experiment.symbols import base, short

# More of them are not counted: those that take the most time are.
MAX_COUNTED = 40
# Breakpoints may take this part of what delays may, of a thread's time. They are there
# all of the time, and delays are not.
HIT_PART = 0.25
# What breakpoints in one function take of it and is too little to count.
LITTLE = 0.001
# Of a hit, where it can't be measured.
HIT_NS = 3000
# So long calls are counted: until it is known that they are not too many, usually, where
# a function that takes time was not called yet, and anew because others are left out.
HOT_S, COUNT_S, UNCALLED_S, MAX_COUNT_S = 0.15, 0.5, 1.5, 4.0
# Two native functions that are on the same stacks, in this part of the looks, are one
# question. Which C function was called when is known less exactly.
ALIKE, OF_LEAF = 0.85, 0.7
# The loader, and libraries whose functions everything calls.
EVERYWHERE = (
    *("libc.so", "libc-", "ld-linux", "ld-musl", "libpthread", "libdl.", "librt."),
    *("libgcc_s", "libstdc++", "libc++", "libjemalloc", "libtcmalloc", "libmimalloc"),
    *("linux-vdso", "[vdso]", "libasan", "libtsan", "libubsan"),
)
# The same wherever they were compiled into.
ALLOCATES = {
    *("malloc", "calloc", "realloc", "free", "memalign", "posix_memalign"),
    *("aligned_alloc", "memcpy", "memmove", "memset", "memcmp"),
    *("operator new", "operator new[]", "operator delete", "operator delete[]"),
}
# What does nothing but wait for other threads, on a CPU: of OpenBLAS, libgomp, LLVM's
# and Intel's OpenMP.
WAITS = re.compile(
    r"exec_blas_async_wait|blas_thread_server|gomp_\w*(wait|barrier)\w*|gomp_thread_start"
    r"|__kmp_\w*(wait|barrier)\w*"
)
# Parts of a function that the compiler put elsewhere.
PART = re.compile(r"\.(cold|part)\b")
# This package at work.
OWN = os.path.dirname(speed_bump.__file__) + os.sep

# A file, and a symbol there.
Key = tuple[str, str]


@dataclass
class Weighed:
    """Parts of the time in native functions: average numbers of threads.

    ``on`` says on which looks each was, by their index; ``leaves`` the same of each C
    function that is known by its Python name.
    """

    total: dict[Key, float] = field(default_factory=dict)
    own: dict[Key, float] = field(default_factory=dict)
    readable: dict[Key, str] = field(default_factory=dict)
    on: dict[Key, set[int]] = field(default_factory=dict)
    leaves: dict[str, set[int]] = field(default_factory=dict)
    ns: list[int] = field(default_factory=list)

    def names(self) -> list[Key]:
        """Those that are worth a question, the largest share first."""
        found = [
            key
            for key, share in self.total.items()
            if share >= MIN_SHARE and len(self.on[key]) >= MIN_SAMPLES
        ]
        # What a function does itself, and of what takes the same time the outer one.
        return sorted(found, key=lambda k: (-self.worth(k), -self.total[k], k))

    def worth(self, key: Key) -> float:
        """What its answer may be worth."""
        return worth(self.own.get(key, 0.0), self.total[key], False)

    def alike(self, a: Key, b: Key) -> bool:
        """Whether two are on the same looks, nearly."""
        a_on, b_on = self.on[a], self.on[b]
        return self._time(a_on & b_on) >= ALIKE * self._time(a_on | b_on)

    def is_leaf(self, key: Key, leaf: str) -> bool:
        """Whether it is nearly all of a C function's time, and nothing else."""
        on, leaf_on = self.on[key], self.leaves.get(leaf, set())
        both, mine = self._time(on & leaf_on), self._time(on)
        return both >= OF_LEAF * mine and mine >= OF_LEAF * self._time(leaf_on)

    def _time(self, looks: set[int]) -> int:
        return sum(self.ns[i] for i in looks)


@dataclass
class Native:
    """A native function that can be asked for.

    Args:
        name: ``PATH:SYMBOL``, as the report calls it
        target: what asks for it
        rate: calls a second
    """

    name: str
    target: Target
    key: Key
    rate: float = 0.0


@dataclass
class Natives:
    """What was found: ``asked`` by name, and of what is left out the reason and share."""

    asked: dict[str, Native] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    left_share: dict[str, float] = field(default_factory=dict)
    weighed: Weighed = field(default_factory=Weighed)
    refused: str = ""


def is_asked_of(path: str) -> bool:
    """Whether functions of a file are asked for: it is none that everything uses."""
    file = os.path.basename(path)
    return (
        path.startswith("/")
        and not file.startswith((*INTERPRETER, *EVERYWHERE))
        and not path.startswith(OWN)
    )


def is_sensible(place: Place) -> bool:
    """Whether a delay in it is in one function, and not in all that there is."""
    return bool(place.symbol) and not (
        not is_asked_of(place.path)
        or base(place.readable) in ALLOCATES
        or PART.search(place.symbol)
        or WAITS.fullmatch(place.symbol)
    )


def inner(look: NativeLook) -> tuple[Place, ...]:
    """What is inside of the interpreter's innermost frame, from the innermost on."""
    for k, place in enumerate(look.places):
        if os.path.basename(place.path).startswith(INTERPRETER):
            return look.places[:k]
    return look.places


def _is_no_work(stack: Stack) -> bool:
    """Whether it imports, waits or is of this package: what is below it does, too."""
    waits = bool(stack.frames) and is_idle(stack.frames[-1])
    return waits or bool(stack.imported) or stack.is_ours


def weigh(seen: NativeSeen) -> Weighed:
    """Sum up what was seen. Time asleep is nobody's, as that of imports and ours."""
    found = Weighed()
    total: Counter[Key] = Counter()
    own: Counter[Key] = Counter()
    for look in seen.looks:
        stack = look.stack
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
        # Of code that is nobody's the time is that of what called it.
        named = next((p for p in places if is_sensible(p)), None)
        if named:
            own[named.path, named.symbol] += look.ns
    clock = max(seen.clock_ns, 1)
    found.total = {key: ns / clock for key, ns in total.most_common()}
    found.own = {key: ns / clock for key, ns in own.most_common()}
    return found


# -------------------------------------------------------------------------- counting


def _target(key: Key) -> Target | None:
    """What asks for it, by the name that its file has; None: no pattern can."""
    path, symbol = key
    try:
        found = parse_targets(f"native:{path}:{symbol}", "found")
    except ValueError:
        return None
    plain = len(found) == 1 and (found[0].left, found[0].right) == key
    return found[0] if plain and not set("*?[") & set(symbol) else None


class _Counting:
    """Breakpoints in a program that runs, for as long as calls are counted."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.probes = native.Probes(pid)
        self.natives: dict[int, Native] = {}

    def add(self, keys: Iterable[Key]) -> list[Key]:
        """Put them in; which can't be had, or can't be told from others."""
        wanted = sorted(keys)
        had = set(
            self._try([(key, target) for key in wanted if (target := _target(key))])
        )
        return [key for key in wanted if key not in had]

    def _try(self, wanted: list[tuple[Key, Target]]) -> list[Key]:
        """Which of them are in: each file is read once, if all is well."""
        asked = [(target.left, target.right, 0, 1, 0, 0, False) for _, target in wanted]
        try:
            places = self.probes.add(asked) if asked else []
        except native.NativeError:
            if len(wanted) == 1:
                return []
            half = len(wanted) // 2
            return [*self._try(wanted[:half]), *self._try(wanted[half:])]
        count = Counter(index for _, _, index in places)
        found, ambiguous = [], []
        for place, label, index in places:
            key, target = wanted[index]
            if count[index] == 1:
                self.natives[place] = Native(label, target, key)
                found.append(key)
            else:
                ambiguous.append(place)
        if ambiguous:
            self.probes.remove(ambiguous)
        return found

    def drop(self, places: Collection[tuple[str, int]]) -> list[Native]:
        """Let go of what is at these places; what that was."""
        offsets = self.probes.session.offsets()
        return [
            self.natives.pop(place)
            for place, one in list(self.natives.items())
            if (one.key[0], offsets[place]) in places
        ]

    def leave(self, natives: Collection[Native]) -> None:
        """Take these out. By BPF a breakpoint is there for as long as one of those is
        that it was added with: so all are, and the others are added anew.
        """
        self.probes.close()
        keys = [one.key for one in self.natives.values() if one not in natives]
        self.natives.clear()
        self.probes = native.Probes(self._pid)
        self.add(keys)

    def read(self) -> dict[str, int]:
        names = {one.name for one in self.natives.values()}
        return {f.name: f.calls for f in self.probes.read() if f.name in names}


def _places_of(targets: Sequence[Target]) -> set[tuple[str, int]]:
    """Where these are: files, and offsets in them."""
    if not targets:
        return set()
    probes = native.Probes(os.getpid())
    try:
        asked = [(t.left, t.right, 0, 1, 0, 0, False) for t in targets]
        places = probes.add(asked, enabled=False)
        offsets = probes.session.offsets()
        return {(label.partition(":")[0], offsets[place]) for place, label, _ in places}
    except native.NativeError:
        return set()  # to ask for them says why
    finally:
        probes.close()


def count(
    pid: int,
    weighed: Weighed,
    is_running: Callable[[], bool],
    max_slowdown: float,
    units: Sequence[Target] = (),
    import_s: float = 0.0,
) -> Natives:
    """Which can be asked for: see how often each is called in a program that runs.

    Args:
        max_slowdown: how much slower the program may become, as a part
        units: native functions whose calls are the units of work
        import_s: the program has just been started, and imports take so long
    """
    found = Natives(weighed=weighed)
    keys = weighed.names()[:MAX_COUNTED]
    if not keys:
        return found
    try:
        counting = _Counting(pid)
    except native.NativeError as error:
        found.refused = str(error)
        return found
    began = time.monotonic()
    try:
        # Before any breakpoint is there, as to read files may take long.
        places = _places_of(units)
        for key in counting.add(keys):
            name = f"{key[0]}:{key[1]}"
            found.left_out[name] = "it can't be had, or its file has several of the name"
            found.left_share[name] = weighed.total[key]
        for one in counting.drop(places):
            found.left_out[one.name] = "its calls are the units of work"
            found.left_share[one.name] = weighed.total[one.key]
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
    """Wait for imports to be over, and for a first call after them."""
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
        found.left_share[one.name] = weighed.total[one.key]
        cost = one.rate * hit_ns / 1e9
        if not one.rate:
            found.left_out[one.name] = "not called while its calls were counted"
        elif cost > LITTLE and taken + cost > most:
            found.left_out[one.name] = _too_often(one.rate, hit_ns, cost)
        else:
            taken += cost
            found.asked[one.name] = one
    for one in hot:
        found.left_share[one.name] = weighed.total[one.key]
        cost = rates[one.name] * hit_ns / 1e9
        found.left_out[one.name] = _too_often(rates[one.name], hit_ns, cost)


def _too_often(rate: float, hit_ns: int, cost: float) -> str:
    return (
        f"called {rate:,.0f} times a second: {human(hit_ns)} for each breakpoint are "
        f"{cost:.1%} of the time, too much beside the others"
    )


def _rates(
    counting: _Counting,
    natives: list[Native],
    most: float,
    is_running: Callable[[], bool],
) -> tuple[dict[str, float], list[Native]]:
    """Calls a second of each, and those that are called more often than ``most``.

    While these are counted all is slower: they are taken out as soon as that is seen, and
    the others are counted anew.
    """
    rates = {one.name: 0.0 for one in natives}
    left, hot = list(natives), []
    end = time.monotonic() + MAX_COUNT_S
    # Once more when it has ended.
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


# --------------------------------------------------------------- beside the others


def choose(found: Natives, callables: Collection[str]) -> list[Native]:
    """Those that are questions of their own; the reasons of the others are noted.

    Args:
        callables: C functions that are candidates, by their Python names
    """
    weighed = found.weighed
    symbols.know({key[1]: readable for key, readable in weighed.readable.items()})
    kept: list[Native] = []
    for one in found.asked.values():
        leaves = (name for name in callables if weighed.is_leaf(one.key, name))
        others = (k.name for k in kept if weighed.alike(one.key, k.key))
        same = next(leaves, "") or next(others, "")
        if same:
            text = f"nearly all of {short(same)}: the same question"
            found.left_out[one.name] = text
            found.left_share[one.name] = weighed.total[one.key]
        else:
            kept.append(one)
    ordered = sorted(found.left_out, key=lambda name: -found.left_share[name])
    found.left_out = {name: found.left_out[name] for name in ordered}
    return kept
