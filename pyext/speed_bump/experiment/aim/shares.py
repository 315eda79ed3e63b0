# SPDX-License-Identifier: MIT
"""What takes the time of a program: candidates, and what is none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from speed_bump.experiment.program.stacks import Stacks, is_idle, is_import, is_ours

# A candidate has this part of the time that was seen, at the least, and so many samples.
MIN_SHARE = 0.002
MIN_SAMPLES = 2
# Candidates that a minute can answer for, and bounds for other budgets.
PER_MINUTE = 24
MIN_CANDIDATES, MAX_CANDIDATES = 6, 96
# The weight of the time of what a function calls, beside its own, among candidates: of
# the program, and of libraries, in which much does nothing but call other things.
INNER_WEIGHT, INNER_WEIGHT_OTHERS = 0.2, 0.02
# Units of work that each candidate needs to be answered for.
UNITS_EACH = 40
# Called by specialised instructions of the interpreter, which no target reaches.
NOT_HAD = frozenset({"builtins:list.append"})
# What a thread or a process is for as long as it lives: each is called once in it.
STARTS = frozenset(
    {
        *("threading:Thread._bootstrap", "threading:Thread._bootstrap_inner"),
        *("threading:Thread.run", "concurrent.futures.thread:_worker"),
        *("concurrent.futures.process:_process_worker", "multiprocessing.pool:worker"),
        "multiprocessing.process:BaseProcess._bootstrap",
        *("multiprocessing.process:BaseProcess.run", "multiprocessing.spawn:_main"),
        *("asyncio.runners:run", "asyncio.base_events:BaseEventLoop.run_forever"),
    }
)


@dataclass
class Shares:
    """Parts of the time that was seen: average numbers of threads, of the wall time.

    ``total`` is of functions with what they call, ``own`` without; waiting is in neither.
    ``waiting`` is by what waits, ``callers`` says what called that most. ``native`` are
    those of ``total`` that are C functions by their Python names, ``machine`` those that
    are native functions, ``PATH:SYMBOL``.
    """

    total: dict[str, float] = field(default_factory=dict)
    own: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)
    callers: dict[str, str] = field(default_factory=dict)
    native: frozenset[str] = frozenset()
    machine: frozenset[str] = frozenset()
    importing: float = 0.0
    ours: float = 0.0
    samples: dict[str, int] = field(default_factory=dict)

    @property
    def busy(self) -> float:
        """The average number of threads that worked."""
        return sum(self.own.values())


def shares(stacks: Stacks) -> Shares:
    """Sum up what was seen."""
    found = Shares()
    total: dict[str, int] = {}
    own: dict[str, int] = {}
    waiting: dict[str, int] = {}
    callers: dict[str, dict[str, int]] = {}
    native: set[str] = set()
    importing = ours = 0
    for stack, n in stacks.samples.items():
        if not stack.frames:
            continue
        waits = stack.waiting_in
        if waits:
            waiting[waits] = waiting.get(waits, 0) + n
            outer = [n for n in stack.frames if not is_idle(n) and n != waits]
            if outer:
                by = callers.setdefault(waits, {})
                by[outer[-1]] = by.get(outer[-1], 0) + n
        elif stack.imported:
            importing += n
        elif stack.is_ours:
            ours += n
        else:
            if stack.has_leaf:
                native.add(stack.frames[-1])
            own[stack.frames[-1]] = own.get(stack.frames[-1], 0) + n
            for name in set(stack.frames):
                total[name] = total.get(name, 0) + n
    ticks = max(stacks.ticks, 1)

    def parts(counts: dict[str, int]) -> dict[str, float]:
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return {name: n / ticks for name, n in ordered}

    found.total, found.own, found.waiting = parts(total), parts(own), parts(waiting)
    found.callers = {name: max(by, key=lambda n: by[n]) for name, by in callers.items()}
    found.native = frozenset(native)
    found.importing, found.ours = importing / ticks, ours / ticks
    found.samples = total
    return found


def worth(own: float, total: float, is_own: bool) -> float:
    """What the answer for a function may be worth: a part of the time, weighed.

    Args:
        own: its part of the time, by itself
        total: the same with what it calls
        is_own: it is of the program, and of no library
    """
    if is_own:
        return 1.5 * (own + INNER_WEIGHT * (total - own))
    return own + INNER_WEIGHT_OTHERS * (total - own)


def candidates(
    found: Shares, called: Collection[str], is_own: Callable[[str], bool]
) -> list[str]:
    """All functions that are worth a question, the best first.

    Args:
        called: Python functions that were called while the program worked
        is_own: whether a function is of the program, and of no library
    """
    names = [
        name
        for name, share in found.total.items()
        if share >= MIN_SHARE
        and found.samples[name] >= MIN_SAMPLES
        and (name in called or name in found.native)
        and not (is_import(name) or is_ours(name) or is_idle(name))
        and name not in NOT_HAD | STARTS
    ]
    return by_worth(names, found, is_own)


def by_worth(
    names: Iterable[str], found: Shares, is_own: Callable[[str], bool]
) -> list[str]:
    """In the order of what their answers may be worth."""

    def of(name: str) -> float:
        return worth(found.own.get(name, 0.0), found.total[name], is_own(name))

    return sorted(names, key=lambda name: (-of(name), name))


def room(budget_s: float, rate: float) -> int:
    """How many candidates can be answered for in a budget.

    Args:
        rate: of units of work, in a second; 0 where it is not known
    """
    most = PER_MINUTE * budget_s / 60
    if rate:
        most = min(most, budget_s * rate / UNITS_EACH)
    return int(min(max(most, MIN_CANDIDATES), MAX_CANDIDATES))
