# SPDX-License-Identifier: MIT
"""How the time of a program is divided: candidates, and the rest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from speed_bump.experiment.program.stacks import Stacks, is_idle, is_import, is_ours

# A candidate has at least this part of the time seen, and this many samples.
MIN_SHARE = 0.002
MIN_SAMPLES = 2
# With less of the time in work, a program only waits.
ONLY_WAITS = 0.02
# Candidates that a minute can answer for, and bounds for other budgets.
PER_MINUTE = 24
MIN_CANDIDATES, MAX_CANDIDATES = 6, 96
# The weight of the time of callees, relative to own time, for functions of the program
# and of libraries. Many library functions only call others.
INNER_WEIGHT, INNER_WEIGHT_OTHERS = 0.2, 0.02
# Units of work that each candidate needs.
UNITS_EACH = 40
# Called by specialised instructions of the interpreter, which no target catches.
NOT_HAD = frozenset({"builtins:list.append"})
# Functions that last as long as their thread or process: each is called once.
STARTS = frozenset(
    {
        *("threading:Thread._bootstrap", "threading:Thread._bootstrap_inner"),
        *("threading:Thread.run", "concurrent.futures.thread:_worker"),
        *("concurrent.futures.process:_process_worker", "multiprocessing.pool:worker"),
        "multiprocessing.process:BaseProcess._bootstrap",
        *("multiprocessing.process:BaseProcess.run", "multiprocessing.spawn:_main"),
        *("asyncio.runners:run", "asyncio.base_events:BaseEventLoop.run_forever"),
        *("runpy:_run_module_as_main", "runpy:_run_module_code", "runpy:_run_code"),
        *("runpy:run_module", "runpy:run_path"),
    }
)


@dataclass
class Shares:
    """Parts of the time that was seen: average numbers of threads, of the wall time.

    ``total`` is by function including callees, ``own`` without them; both exclude waits.
    ``waiting`` is by wait, ``callers`` has the most frequent caller of each wait.
    ``native`` are the names in ``total`` of C functions by their Python names,
    ``machine`` those of native functions, ``PATH:SYMBOL``.
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

    @property
    def only_waits(self) -> bool:
        """Whether the program computes so little that it only waits."""
        return self.busy < ONLY_WAITS


def shares(stacks: Stacks) -> Shares:
    """Sum up the samples."""
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
        if is_ours(waits):
            # The thread that serves this tool.
            continue
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
    """An estimate of what the answer for a function is worth: a weighted part of time.

    Args:
        own: its part of the time, by itself
        total: the same including callees
        is_own: it belongs to the program, not to a library
    """
    if is_own:
        return 1.5 * (own + INNER_WEIGHT * (total - own))
    return own + INNER_WEIGHT_OTHERS * (total - own)


def candidates(
    found: Shares, called: Collection[str], is_own: Callable[[str], bool]
) -> list[str]:
    """All functions that are worth measuring, the best first.

    Args:
        called: Python functions that were called while the program worked
        is_own: whether a function belongs to the program, not to a library
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
    """Sort by what the answers are worth."""

    def of(name: str) -> float:
        return worth(found.own.get(name, 0.0), found.total[name], is_own(name))

    return sorted(names, key=lambda name: (-of(name), name))


def room(budget_s: float, rate: float) -> int:
    """How many candidates a budget can answer for.

    Args:
        rate: units of work a second; 0 if unknown
    """
    most = PER_MINUTE * budget_s / 60
    if rate:
        most = min(most, budget_s * rate / UNITS_EACH)
    return int(min(max(most, MIN_CANDIDATES), MAX_CANDIDATES))
