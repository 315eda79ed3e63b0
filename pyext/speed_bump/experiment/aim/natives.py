# SPDX-License-Identifier: MIT
"""Native functions of a Python program as candidates, found by sampling."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from speed_bump import _core, native
from speed_bump.config import Target, parse_targets
from speed_bump.duration import human
from speed_bump.experiment import symbols
from speed_bump.experiment.aim.shares import MIN_SAMPLES, MIN_SHARE, worth
from speed_bump.experiment.program.native_frames import INTERPRETER, is_ours
from speed_bump.experiment.program.native_looks import NativeLook, NativeSeen, Place
from speed_bump.experiment.program.stacks import Stack, is_idle
from speed_bump.experiment.symbols import base, short

# Functions that are nearly always on the same stacks are one question: measuring one of
# them answers it. Calls are counted for at most MAX_COUNTED questions, those that take
# the most time, and for MAX_ALIKE functions of each: the first may be called too often.
MAX_COUNTED, MAX_ALIKE = 40, 2
# Breakpoints may use this part of the slowdown allowed for delays. They cost time during
# the whole experiment, delays only while they are on.
HIT_PART = 0.25
# The cost of a function's breakpoints is ignored below this part of its time.
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
# A function in which threads of a pool wait for work is awake for less than this part of
# the time that it sleeps. One that also computes is worth measuring.
AWAKE = 0.2
# Parts of a function that the compiler moved elsewhere.
PART = re.compile(r"\.(cold|part)\b")

# A file and a symbol.
Key = tuple[str, str]
# When the work began, in s of the monotonic clock, and the counts of calls then.
Start = tuple[float, dict[str, int]]


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
        less, more = sorted((self.total[a], self.total[b]))
        if less < ALIKE * more:
            return False
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
        and not is_ours(path)
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
    about to sleep may be joined with another stack. And one in which threads without
    Python, such as those of a pool, sleep nearly all of the time.
    """
    found = Weighed()
    total: Counter[Key] = Counter()
    own: Counter[Key] = Counter()
    waits: Counter[Key] = Counter()
    asleep: Counter[Key] = Counter()
    for look in seen.looks:
        stack = look.stack
        if stack and stack.frames and is_idle(stack.frames[-1]):
            for place in set(filter(is_sensible, inner(look))):
                waits[place.path, place.symbol] += look.ns
            continue
        if look.sleeps and not stack:
            # Where the name of the innermost is not known, it is not the caller's sleep.
            innermost = next((p for p in inner(look) if is_asked_of(p.path)), None)
            if innermost:
                asleep[innermost.path, innermost.symbol] += look.ns
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
    total = Counter(
        {
            key: ns
            for key, ns in total.items()
            if ns >= waits[key] and ns >= AWAKE * asleep[key]
        }
    )
    found.total = {key: ns / clock for key, ns in total.most_common()}
    found.own = {key: ns / clock for key, ns in own.most_common()}
    return found


# -------------------------------------------------------------------------- counting


def target_of(key: Key) -> Target | None:
    """A target by the name in the file; None if no pattern can express it."""
    path, symbol = key
    try:
        found = parse_targets(f"native:{path}:{symbol}", "found")
    except ValueError:
        return None
    plain = len(found) == 1 and (found[0].left, found[0].right) == key
    return found[0] if plain and not set("*?[") & set(symbol) else None


def offsets_of(target: Target) -> list[int]:
    """The offsets in the file; empty if it can't be a target (measuring it says why)."""
    try:
        return _core.places_of(target.left, target.right)
    except OSError:
        return []


class Counting:
    """Breakpoints in a program, while calls are counted. Use as a context manager.

    Args:
        found: what ``askable`` noted, which is added to
        wanted: what it returned
    """

    def __init__(self, found: Natives, wanted: Sequence[tuple[Key, Target]]) -> None:
        """No breakpoint is set yet."""
        self._found = found
        self._wanted = wanted
        self._pid = 0
        self._probes: native.Probes | None = None
        self._error: OSError | None = None
        self._began = 0.0
        self.natives: dict[int, Native] = {}
        # What the breakpoints cost, in ns; it is measured before there are any.
        self.hit_ns: dict[Key, int] = {}

    def __enter__(self) -> Counting:
        with hit_costs() as costs:
            for key, target in self._wanted:
                self.hit_ns[key] = costs.of_target(target)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def begin(self, pid: int) -> None:
        """Insert the breakpoints in a process, which may be about to start."""
        self._pid = pid
        try:
            self._add(self._wanted)
        except OSError as error:
            self._error = error
            self.close()
        self._began = time.monotonic()

    def _add(self, wanted: Sequence[tuple[Key, Target]]) -> None:
        """Insert all breakpoints that the kernel accepts.

        They cost time, so all come at one time, and where one is refused none stays while
        the others are tried again.

        Raises:
            NativeError: there can be none at all
        """
        self._probes = native.Probes(self._pid)
        left = list(wanted)
        places: list[_core.NativePlace] = []
        while left and not places:
            asked = [_core.native_target(t.left, t.right) for _, t in left]
            try:
                places = self._probes.add(asked)
            except native.NativeError as error:
                if error.target is None:
                    raise
                del left[error.target]
        for place in places:
            key, target = left[place.target]
            self.natives[place.id] = Native(place.label, target, key)

    def leave(self, natives: Collection[Native]) -> None:
        """Remove these breakpoints. By BPF, a breakpoint stays as long as any that was
        added with it, so all are removed and the others are added again.
        """
        kept = [(n.key, n.target) for n in self.natives.values() if n not in natives]
        self.close()
        try:
            self._add(kept)
        except native.NativeError as error:
            if error.errno != errno.ESRCH:
                raise

    def read(self) -> dict[str, int]:
        """The calls so far, by name."""
        names = {one.name for one in self.natives.values()}
        sites = self._probes.read() if self._probes else []
        return {f.name: f.calls for f in sites if f.name in names}

    def close(self) -> None:
        if self._probes:
            self._probes.close()
        self._probes = None
        self.natives.clear()

    def finish(
        self,
        is_running: Callable[[], bool],
        max_slowdown: float,
        import_s: float | None = None,
    ) -> Natives:
        """Count calls in the running program, choose the functions to measure, and end.

        Args:
            max_slowdown: the slowdown allowed, as a part
            import_s: the program has just been started, and imports take this long; all
                calls after them are counted
        """
        found = self._found
        start: Start | None = None
        try:
            if self._error:
                raise self._error
            had = {one.key for one in self.natives.values()}
            for key, target in self._wanted:
                if key not in had:
                    name = f"{target.left}:{target.right}"
                    found.leave_out(name, key, "the kernel can have no breakpoint there")
            if import_s is not None:
                start = _await_work(self, is_running, self._began, import_s)
            _choose(self, found, is_running, max_slowdown, start)
        except OSError as error:
            # That the program has ended is no refusal.
            refused = "" if error.errno == errno.ESRCH else str(error)
            return Natives(weighed=found.weighed, refused=refused)
        finally:
            self.close()
        return found


class HitCosts:
    """What a breakpoint costs: the kernel emulates some instructions, and single-steps a
    copy of others, which takes an exception more, and much longer in a virtual machine.

    Args:
        probes: of a session, in which they are measured; without one, or where they can't
            be measured, they are HIT_NS
    """

    def __init__(self, probes: native.Probes | None) -> None:
        """Nothing is measured yet."""
        self._probes = probes
        self._known: dict[bool, int] = {}

    def of(self, path: str, offset: int) -> int:
        """At an offset in a file, in ns."""
        try:
            is_stepped = _core.is_stepped(path, offset)
        except OSError:
            is_stepped = True
        return self._of_kind(is_stepped)

    def _of_kind(self, is_stepped: bool) -> int:
        if is_stepped not in self._known:
            self._known[is_stepped] = self._measure(is_stepped)
        return self._known[is_stepped]

    def of_target(self, target: Target) -> int:
        """At the first instruction of a function; if it is unknown, the larger cost."""
        costs = [self.of(target.left, offset) for offset in offsets_of(target)]
        return max(costs, default=0) or self._of_kind(True)

    def _measure(self, is_stepped: bool) -> int:
        if not self._probes:
            return HIT_NS
        try:
            return self._probes.session.hit_cost_ns(is_stepped)
        except OSError:
            return HIT_NS


@contextlib.contextmanager
def hit_costs() -> Iterator[HitCosts]:
    """Costs that are measured in a session of their own."""
    try:
        probes: native.Probes | None = native.Probes(0)
    except native.NativeError:
        probes = None
    try:
        yield HitCosts(probes)
    finally:
        if probes:
            probes.close()


def affordable(
    calls: Mapping[str, tuple[float, int]], max_slowdown: float
) -> dict[str, str]:
    """Of functions in the order of their worth, those whose breakpoints would cost too
    much, with the reasons.

    Args:
        calls: of each function, calls a second while nothing is counted, and ns of a hit
        max_slowdown: the slowdown allowed, as a part
    """
    allowance = _Allowance(HIT_PART * max_slowdown)
    reasons = {name: allowance.why_not(*one) for name, one in calls.items()}
    return {name: why for name, why in reasons.items() if why}


@dataclass
class _Allowance:
    """The part of the time that breakpoints may still cost."""

    left: float

    def why_not(self, rate: float, hit_ns: int) -> str:
        """Take the cost of a function's breakpoints; returns why that is too much."""
        cost = rate * hit_ns / 1e9
        if cost > LITTLE and cost > self.left:
            return too_often(rate, hit_ns)
        self.left -= cost
        return ""


def askable(
    found: Natives, units: Sequence[Target], callables: Collection[str]
) -> list[tuple[Key, Target]]:
    """The functions that are worth a breakpoint; the others are noted with reasons."""
    weighed = found.weighed
    symbols.know({key[1]: readable for key, readable in weighed.readable.items()})
    taken = {(t.left, offset) for t in units for offset in offsets_of(t)}
    wanted: list[tuple[Key, Target]] = []
    questions: list[list[Key]] = []
    for key in weighed.names():
        name = f"{key[0]}:{key[1]}"
        of = next((leaf for leaf in callables if weighed.is_leaf(key, leaf)), "")
        if of:
            found.leave_out(name, key, _same_as(of))
            continue
        alike = next((some for some in questions if weighed.alike(key, some[0])), None)
        if alike and len(alike) == MAX_ALIKE:
            found.leave_out(name, key, _same_as(":".join(alike[0])))
            continue
        if not alike and len(questions) == MAX_COUNTED:
            found.leave_out(name, key, f"{MAX_COUNTED} others take more time")
            continue
        # Each file is read once, before any breakpoint is inserted.
        target = target_of(key)
        offsets = offsets_of(target) if target else []
        if not target or len(offsets) != 1:
            why = "it can't be a target, or its file has several functions of this name"
            found.leave_out(name, key, why)
        elif (key[0], offsets[0]) in taken:
            found.leave_out(name, key, "its calls are the units of work")
        else:
            wanted.append((key, target))
            if alike:
                alike.append(key)
            else:
                questions.append([key])
    return wanted


def _same_as(name: str) -> str:
    return f"nearly all of {short(name)}: the same question"


def _await_work(
    counting: Counting, is_running: Callable[[], bool], began: float, import_s: float
) -> Start:
    """Wait for a first call after the imports; when these were over, and the counts then.

    It is taken to be the middle of them, because they may be shorter this time.
    """
    start: Start = began, {}
    while is_running() and time.monotonic() < began + import_s + MAX_COUNT_S:
        counts, now = counting.read(), time.monotonic()
        if now < began + import_s / 2:
            start = now, counts
        elif now >= began + import_s and any(
            n > start[1].get(name, 0) for name, n in counts.items()
        ):
            break
        time.sleep(0.02)
    return start


def _choose(
    counting: Counting,
    found: Natives,
    is_running: Callable[[], bool],
    max_slowdown: float,
    start: Start | None,
) -> None:
    most = HIT_PART * max_slowdown
    weighed = found.weighed
    left = sorted(
        counting.natives.values(), key=lambda one: (-weighed.worth(one.key), one.name)
    )
    hit_ns = counting.hit_ns
    limits = {one.name: most * 1e9 / hit_ns[one.key] for one in left}
    rates, hot = _rates(counting, left, limits, is_running, start)
    left = [one for one in left if one not in hot]
    allowance = _Allowance(most)
    for one in left:
        one.rate = rates[one.name]
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
        elif why := allowance.why_not(one.rate, hit_ns[one.key]):
            found.leave_out(one.name, one.key, why)
        else:
            found.asked[one.name] = one
    for one in hot:
        why = too_often(rates[one.name], hit_ns[one.key])
        found.leave_out(one.name, one.key, why)


def too_often(rate: float, hit_ns: int) -> str:
    """Why a function is left out whose breakpoint would cost too much."""
    cost = rate * hit_ns / 1e9
    much = f"{cost:.1%} of the time" if cost < 1 else "more than all of the time"
    return (
        f"called {rate:,.0f} times a second: {human(hit_ns)} for each breakpoint are "
        f"{much}, too much together with the others"
    )


def _rates(
    counting: Counting,
    natives: list[Native],
    limits: Mapping[str, float],
    is_running: Callable[[], bool],
    start: Start | None,
) -> tuple[dict[str, float], list[Native]]:
    """Calls a second of each function, and those called more often than ``limits``.

    While those are counted, everything is slower: they are removed as soon as they are
    known, and the others are counted again.

    Args:
        limits: by name, calls a second
        start: the work is counted from then on, to its end; None: from now on
    """
    rates = {one.name: 0.0 for one in natives}
    left, hot = list(natives), []
    end = time.monotonic() + MAX_COUNT_S
    uncalled_s = UNCALLED_S if start is None else MAX_COUNT_S
    since, before = start or (time.monotonic(), counting.read())
    # Count once more after the program has ended.
    goes_on = True
    while left and goes_on:
        begin = time.monotonic()
        often: list[Native] = []
        while goes_on and not often:
            goes_on = is_running()
            time.sleep(0.02)
            counts, now = counting.read(), time.monotonic()
            took = now - since
            calls = {n.name: counts.get(n.name, 0) - before.get(n.name, 0) for n in left}
            if took >= HOT_S:
                often = [n for n in left if calls[n.name] > limits[n.name] * took]
            # One that was called before the others were removed keeps its rate.
            rates |= {name: n / took for name, n in calls.items() if n}
            counted_s = COUNT_S if all(calls.values()) else uncalled_s
            goes_on = goes_on and now < min(begin + counted_s, end)
        if often:
            leaves = time.monotonic()
            counting.leave(often)
            since, before = time.monotonic(), {}
            end += since - leaves
        hot += often
        left = [one for one in left if one not in often]
    return rates, hot
