# SPDX-License-Identifier: MIT
"""Native functions of a Python program, found by looking: candidates beside Python's."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import speed_bump
from speed_bump import native
from speed_bump.config import Target, parse_targets
from speed_bump.duration import human
from speed_bump.experiment.aim.shares import MIN_SAMPLES, MIN_SHARE, worth
from speed_bump.experiment.program.native_frames import INTERPRETER
from speed_bump.experiment.program.native_looks import NativeLook, NativeSeen, Place

# More of them are not counted: those that take the most time are.
MAX_COUNTED = 40
# Breakpoints may take this part of what delays may, of a thread's time. They are there
# all of the time, and delays are not.
HIT_PART = 0.25
# Of a hit, where it can't be measured.
HIT_NS = 3000
# So long calls are counted, while hot functions are among them, and without; and up to so
# long where one that takes time was not called yet.
HOT_S, COUNT_S, MAX_COUNT_S = 0.15, 0.5, 1.5
# Two functions that are on the same stacks, but for this part, are one question.
ALIKE = 0.85
# The loader, and libraries whose functions everything calls.
EVERYWHERE = (
    *("libc.so", "libc-", "ld-linux", "ld-musl", "libpthread", "libdl.", "librt."),
    *("libgcc_s", "libstdc++", "libc++", "libjemalloc", "libtcmalloc", "libmimalloc"),
    *("linux-vdso", "[vdso]", "libasan", "libtsan", "libubsan"),
)
# The same wherever they were compiled into.
ALLOCATES = frozenset(
    ("malloc", "calloc", "realloc", "free", "memalign", "posix_memalign")
    + ("aligned_alloc", "memcpy", "memmove", "memset", "memcmp", "operator new")
    + ("operator new[]", "operator delete", "operator delete[]")
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

    def alike(self, a: set[int], b: set[int]) -> bool:
        """Whether two are on the same looks, nearly."""
        both = sum(self.ns[i] for i in a & b)
        return both >= ALIKE * sum(self.ns[i] for i in a | b) > 0


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
    """What was found: ``asked`` by name, and of what is left out the reason."""

    asked: dict[str, Native] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    weighed: Weighed = field(default_factory=Weighed)
    refused: str = ""


def is_sensible(place: Place) -> bool:
    """Whether a delay in it is in one function, and not in all that there is."""
    file = os.path.basename(place.path)
    if not place.symbol or file.startswith((*INTERPRETER, *EVERYWHERE)):
        return False
    if place.path.startswith(OWN) or not place.path.startswith("/"):
        return False
    return base(place.readable) not in ALLOCATES and not PART.search(place.symbol)


def inner(look: NativeLook) -> tuple[Place, ...]:
    """What is inside of the interpreter's innermost frame, from the innermost on."""
    for k, place in enumerate(look.places):
        if os.path.basename(place.path).startswith(INTERPRETER):
            return look.places[:k]
    return look.places


def weigh(seen: NativeSeen) -> Weighed:
    """Sum up what was seen. Time asleep is nobody's, as that of imports and ours."""
    found = Weighed()
    total: Counter[Key] = Counter()
    own: Counter[Key] = Counter()
    for look in seen.looks:
        stack = look.stack
        if look.sleeps is not False or (stack and (stack.imported or stack.is_ours)):
            continue
        at = len(found.ns)
        found.ns.append(look.ns)
        if stack and stack.has_leaf:
            found.leaves.setdefault(stack.frames[-1], set()).add(at)
        places = inner(look)
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


# --------------------------------------------------------------------------- names


def base(readable: str) -> str:
    """A demangled name without parameters and return type, as far as that is plain."""
    depth, start, at = 0, 0, 0
    operator = readable.find("operator")
    while at < len(readable):
        char = readable[at]
        if at == operator:
            # operator(), operator<, operator new[]
            end = readable.find("(", at + len("operator()"))
            return readable[start : end if end >= 0 else len(readable)]
        if readable.startswith("(anonymous namespace)", at):
            at += len("(anonymous namespace)")
            continue
        if char == "(" and not depth:
            return readable[start:at]
        if char in "<([{":
            depth += 1
        elif char in ">)]}":
            depth -= 1
        elif char == " " and not depth:
            start = at + 1
        at += 1
    return readable[start:]


def _forms(symbol: str, readable: str) -> list[str]:
    """What may be asked for, the most readable first; each must be tried."""
    found = [base(readable), readable, symbol] if readable != symbol else [symbol]
    # Not what a pattern would read as something else.
    return [
        form
        for form in dict.fromkeys(found)
        if form and not re.search(r"[][*?#]|(?<!:):(?!:)|^\s|\s$| \w+=|^[@+-]", form)
    ]


def _target(path: str, form: str) -> Target | None:
    try:
        found = parse_targets(f"native:{path}:{form}", "found")
    except ValueError:
        return None
    if len(found) == 1 and (found[0].left, found[0].right) == (path, form):
        return found[0]
    return None


# -------------------------------------------------------------------------- counting


class _Counting:
    """Breakpoints in a program that runs, for as long as calls are counted."""

    def __init__(self, pid: int) -> None:
        self.probes = native.Probes(pid)
        self.natives: dict[int, Native] = {}

    def add(self, keys: Iterable[Key], readable: Mapping[Key, str]) -> list[Key]:
        """Put them in; which can't be had, or can't be told from others."""
        forms = {}
        for key in keys:
            pairs = [(f, _target(key[0], f)) for f in _forms(key[1], readable[key])]
            forms[key] = [target for _, target in pairs if target]
        while True:
            now = [(key, left.pop(0)) for key, left in forms.items() if left]
            if not now:
                return list(forms)
            for key in self._try(now):
                del forms[key]

    def _try(self, wanted: list[tuple[Key, Target]]) -> list[Key]:
        """Which of them are in: each file is read once, if all is well."""
        asked = [(target.left, target.right, 0, 1, 0, 0) for _, target in wanted]
        try:
            places = self.probes.add(asked)
        except (native.NativeError, OSError):
            if len(wanted) == 1:
                return []
            return [key for one in wanted for key in self._try([one])]
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

    def remove(self, natives: Collection[Native]) -> None:
        ids = [place for place, one in self.natives.items() if one in natives]
        self.probes.remove(ids)

    def read(self) -> dict[str, int]:
        names = {one.name for one in self.natives.values()}
        return {f.name: f.calls for f in self.probes.read() if f.name in names}


def count(
    pid: int,
    weighed: Weighed,
    is_running: Callable[[], bool],
    max_slowdown: float,
) -> Natives:
    """Which can be asked for: see how often each is called in a program that runs.

    Args:
        max_slowdown: how much slower the program may become, as a part
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
    try:
        for key in counting.add(keys, weighed.readable):
            name = f"{key[0]}:{weighed.readable[key]}"
            found.left_out[name] = "it can't be had, or its file has several of the name"
        _count(counting, found, is_running, max_slowdown)
    finally:
        counting.probes.close()
    return found


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
    rates = _rates(counting, left, HOT_S, HOT_S, is_running)
    hot = [one for one in left if rates[one.name] * hit_ns / 1e9 > most]
    if hot:
        # While they are counted all is slower.
        counting.remove(hot)
        left = [one for one in left if one not in hot]
    if left and is_running():
        rates |= _rates(counting, left, COUNT_S, MAX_COUNT_S, is_running)
    taken = 0.0
    for one in left:
        one.rate = rates[one.name]
        cost = one.rate * hit_ns / 1e9
        if not one.rate:
            found.left_out[one.name] = "not called while its calls were counted"
        elif taken + cost > most:
            found.left_out[one.name] = _too_often(one.rate, hit_ns, cost)
        else:
            taken += cost
            found.asked[one.name] = one
    for one in hot:
        cost = rates[one.name] * hit_ns / 1e9
        found.left_out[one.name] = _too_often(rates[one.name], hit_ns, cost)


def _too_often(rate: float, hit_ns: int, cost: float) -> str:
    return (
        f"called {rate:,.0f} times a second or more: breakpoints of {human(hit_ns)} take "
        f"{cost:.0%} of the time"
    )


def _rates(
    counting: _Counting,
    natives: list[Native],
    seconds: float,
    most_s: float,
    is_running: Callable[[], bool],
) -> dict[str, float]:
    """Calls a second of each."""
    before, begin = counting.read(), time.monotonic()
    while is_running():
        time.sleep(0.02)
        now, took = counting.read(), time.monotonic() - begin
        calls = {one.name: now.get(one.name, 0) - before.get(one.name, 0) for one in natives}
        if took >= most_s or (took >= seconds and all(calls.values())):
            break
    else:
        now, took = counting.read(), time.monotonic() - begin
        calls = {one.name: now.get(one.name, 0) - before.get(one.name, 0) for one in natives}
    return {name: n / max(took, 1e-9) for name, n in calls.items()}


# --------------------------------------------------------------- beside the others


def choose(found: Natives, callables: Collection[str]) -> list[Native]:
    """Those that are questions of their own; the reasons of the others are noted.

    Args:
        callables: C functions that are candidates, by their Python names
    """
    weighed = found.weighed
    kept: list[Native] = []
    for one in found.asked.values():
        on = weighed.on[one.key]
        same = next(
            (
                name
                for name in callables
                if weighed.alike(on, weighed.leaves.get(name, set()))
            ),
            "",
        ) or next((k.name for k in kept if weighed.alike(on, weighed.on[k.key])), "")
        if same:
            found.left_out[one.name] = f"nearly all of {same}: the same question"
        else:
            kept.append(one)
    return kept
