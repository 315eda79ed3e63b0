# SPDX-License-Identifier: MIT
"""The time that threads spend in functions themselves, from samples of their stacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from speed_bump.experiment.program.native_times import NativeTimes
from speed_bump.experiment.record import SelfTime
from speed_bump.experiment.symbols import is_line

# With fewer looks at which it ran, what a thread computes is not known.
MIN_RUNNING = 5.0


@dataclass
class Own:
    """How often a thread was seen in a function itself: asleep, and awake.

    An awake thread runs, or waits for a CPU. It did so for ``queued_ns``.
    ``pid`` is its process.
    """

    asleep: int = 0
    awake: int = 0
    queued_ns: int = 0
    pid: int = 0

    def add(self, other: Own) -> None:
        """Join those of another period."""
        self.asleep += other.asleep
        self.awake += other.awake
        self.queued_ns += other.queued_ns
        self.pid = other.pid


@dataclass
class Samples:
    """Samples of the stacks while nothing was delayed.

    ``python`` is by thread and function; that of "" is what the thread did elsewhere.
    There were ``ticks`` samples of each thread. ``lost`` is by thread the number of
    stacks that could not be read; ``twice`` is by function the number of samples that
    found several threads in it. ``native`` is for native functions, None if there are
    none.
    """

    clock_ns: int = 0
    ticks: int = 0
    python: dict[tuple[int, str], Own] = field(default_factory=dict)
    native: NativeTimes | None = None
    seen: bool = False
    lost: Counter[int] = field(default_factory=Counter)
    twice: Counter[str] = field(default_factory=Counter)


def added(a: Samples, b: Samples) -> Samples:
    """Join the samples of two rounds."""
    python = {place: replace(own) for place, own in a.python.items()}
    for place, own in b.python.items():
        python.setdefault(place, Own()).add(own)
    native = b.native or a.native
    if a.native and b.native:
        native = a.native.added(b.native)
    return Samples(
        a.clock_ns + b.clock_ns,
        a.ticks + b.ticks,
        python,
        native,
        a.seen or b.seen,
        a.lost + b.lost,
        a.twice + b.twice,
    )


def self_times(
    samples: Samples,
    called: Collection[str] = (),
    tids: Collection[int] = (),
    waits: Collection[str] = (),
) -> dict[str, SelfTime]:
    """For each function, how long threads were in it.

    Args:
        called: functions that were called; one in which no sample found a thread has no
            time of its own, as far as these samples can tell
        tids: the threads that report units
        waits: functions whose delays release the GIL
    """
    found: dict[str, SelfTime] = {}
    if samples.seen and samples.ticks:
        _python_times(samples, found, tids)
        for name in waits:
            if name in found:
                found[name].beside = 0.0
        for name in called:
            if not name.startswith("/") and not is_line(name):
                found.setdefault(name, SelfTime(0.0, samples.ticks))
    native = samples.native
    if native and native.clock_ns:
        for name, ns in native.self_ns.items():
            found[name] = SelfTime(ns / native.clock_ns, native.looks.get(name, 0))
    return found


def _python_times(
    samples: Samples, found: dict[str, SelfTime], tids: Collection[int]
) -> None:
    """Add those of Python and C functions."""
    tick_ns = samples.clock_ns / samples.ticks
    awake: dict[int, int] = {}
    runs: dict[int, float] = {}
    # Below 0 by chance in single places: a sum that is not divided needs them so.
    running: dict[tuple[int, str], float] = {}
    for (thread, name), own in samples.python.items():
        n = own.awake - (own.queued_ns / tick_ns if tick_ns else 0.0)
        running[thread, name] = n
        awake[thread] = awake.get(thread, 0) + own.awake
        runs[thread] = runs.get(thread, 0.0) + max(n, 0.0)
    with_units = {o.pid for (thread, _), o in samples.python.items() if thread in tids}
    beside: dict[str, float] = {}
    sums: dict[str, tuple[float, float, float]] = {}
    for (thread, name), own in samples.python.items():
        n, whole = running[thread, name], float(own.awake)
        # The samples of a thread that hardly ran count where it was seen.
        if runs[thread] >= MIN_RUNNING:
            whole = max(n, 0.0) * awake[thread] / runs[thread]
        # Stacks that could not be read were changing: the thread was awake.
        if awake[thread]:
            lost = 1 + samples.lost[thread] / awake[thread]
            n, whole = n * lost, whole * lost
        a, b, c = sums.get(name, (0.0, 0.0, 0.0))
        sums[name] = a + own.asleep, b + n, c + whole
        if thread not in tids and own.pid in with_units:
            beside[name] = beside.get(name, 0.0) + whole
    for name, (asleep, n, whole) in sums.items():
        if name:
            share = (asleep + whole) / samples.ticks
            queued = max(whole - max(n, 0.0), 0.0) / samples.ticks
            found[name] = SelfTime(
                share,
                samples.ticks,
                queued,
                asleep / samples.ticks,
                beside.get(name, 0.0) / samples.ticks,
                samples.twice[name] / samples.ticks,
            )
