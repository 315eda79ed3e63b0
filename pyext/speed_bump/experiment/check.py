# SPDX-License-Identifier: MIT
"""What can be measured on this machine, how soon, and whether delays are right.

Measured as by ``rank``, on a program with a known answer, or on a given program.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from speed_bump import _core, native
from speed_bump.config import parse_targets
from speed_bump.duration import human
from speed_bump.experiment.errors import RankError
from speed_bump.experiment.fit.columns import base_time
from speed_bump.experiment.fit.contention import MAX_STEAL, MIN_MEAN_SHARE
from speed_bump.experiment.fit.interval import Interval
from speed_bump.experiment.fit.verdict import verdict
from speed_bump.experiment.program import jit
from speed_bump.experiment.program.environment import environment
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner
from speed_bump.experiment.record import Arm, Block, Delay, Record
from speed_bump.experiment.show import table
from speed_bump.experiment.show.encode import finite, interval_json
from speed_bump.experiment.slots.experiment import Experiment, Options
from speed_bump.experiment.slots.measure import empty
from speed_bump.experiment.slots.plan import HOLDS, SHAM, one_at_a_time

# Of the JSON.
FORMAT = 1
# One function and nothing in parallel with it: every delay arrives.
SERIAL = """\
import speed_bump
def work():
    total = 0
    for i in range(9000):
        total += i * i
while True:
    work()
    speed_bump.progress()
"""
FUNCTION = "__main__:work"
# Parts of a slot: the dose of the known answer, and the dose of the table.
DOSE = 0.1
USUAL_DOSE = 0.3
# The criticality of the known answer may be off by this much: a unit is slightly more
# than the function.
CLOSE = 0.03
SPINS = 200
SPIN_LENGTHS_NS = (1_000, 10_000, 100_000)
# The table is for these numbers.
TIMES_S = (10, 30, 60, 300)
COUNTS = (1, 6, 13, 30)
SLOTS = 200
MIN_SLOTS = 40


@dataclass(frozen=True)
class Spin:
    """Spins of ``requested_ns``: the median of their lengths, and a bound for most."""

    requested_ns: int
    median_ns: float
    high_ns: float


@dataclass
class Report:
    """The results. Times are ns or s.

    ``noise`` is the standard error that the criticality of a single function would have
    after one second at a dose of 1. ``known`` is the criticality of a function whose true
    value is 1; None if another program was measured. ``share`` is the part of the wanted
    CPU time that the program had. ``jit`` is a warning if the interpreter's JIT is on.
    ``native`` is the backend, None if there is none; ``why_not`` has the reason.
    """

    environment: dict[str, Any]
    spins: list[Spin]
    native: str | None = None
    why_not: str = ""
    caveats: list[str] = field(default_factory=list)
    unit_ns: float = 0.0
    slot_units: int = 1
    slots: int = 0
    noise: float = 0.0
    known: Interval | None = None
    share: float = math.nan
    steal: float = 0.0
    jit: str = ""

    def half(self, seconds: float, functions: int = 1) -> float:
        """Half the 95% interval of each function's criticality after this time.

        With N functions, one at a time, each is delayed in 1 of N + sqrt(N) holds, so
        that its standard error grows with 1 + sqrt(N).
        """
        if not self.noise:
            return math.inf
        wider = (1 + math.sqrt(functions)) / 2
        return 1.96 * self.noise * wider / USUAL_DOSE / math.sqrt(seconds)

    @property
    def contended(self) -> str:
        """Why no result can be trusted here; "" if results can."""
        if self.steal > MAX_STEAL:
            return f"the hypervisor took {self.steal:.0%} of the time"
        if self.share < MIN_MEAN_SHARE:
            return f"the program had {self.share:.0%} of the CPU time that it wanted"
        return ""

    @property
    def is_right(self) -> bool:
        """Whether the known answer came out, or none was measured."""
        c = self.known
        return c is None or c.low - CLOSE <= 1 <= c.high + CLOSE

    @property
    def is_good(self) -> bool:
        """Whether results taken now can be trusted."""
        return not self.contended and self.is_right


def spins() -> list[Spin]:
    """Test the delays of this process."""
    found = []
    for asked in SPIN_LENGTHS_NS:
        took = sorted(_core.spin_delay_ns(asked) for _ in range(SPINS))
        found.append(Spin(asked, statistics.median(took), took[int(0.95 * SPINS)]))
    return found


class _Blocks:
    """Blocks of one function with a known answer, and of a sham."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def next_block(self, record: Record) -> Block | None:
        slot_ns = base_time(record)
        arms = [SHAM]
        if FUNCTION in record.functions:
            calls = record.slots.calls[:, record.functions.index(FUNCTION)].mean()
            each = Delay(max(int(DOSE * slot_ns / max(calls, 1)), 1))
            arms = [Arm((FUNCTION,), ((each,),)), SHAM]
        chance = (0.3,) * len(arms)
        draw = np.random.default_rng((self._seed, len(record.blocks)))
        masks, _ = one_at_a_time(draw, SLOTS, chance, HOLDS)
        levels = np.zeros(SLOTS, np.uint8)
        return Block("single", tuple(arms), masks, levels, chance, HOLDS, True, (DOSE,))


class _Quiet:
    def now(self, text: str) -> None: ...

    def event(self, text: str) -> None: ...

    def known(self, record: Record, left_s: float) -> None: ...


def check(command: Sequence[str], unit: Progress, seconds: float, seed: int) -> Report:
    """Measure, in about the given time.

    Args:
        command: a program to measure on; empty: the built-in one

    Raises:
        RankError: the program can't be measured
        LaunchError: it can't be started
    """
    found = Report(environment(), spins(), jit=jit.warning(command or [sys.executable]))
    found.native = native.backend()
    try:
        found.caveats = native.caveats()
    except native.NativeError as error:
        found.why_not = str(error)
    runner = Runner(command or [sys.executable, "-c", SERIAL], show_output=False)
    # A pattern is needed; in another program nothing is delayed.
    targets = parse_targets("*:*" if command else FUNCTION, "function")
    record = Record({}, (), empty(0))
    experiment = Experiment(
        runner,
        targets,
        unit,
        Options(seconds),
        record,
        _Blocks(seed),
        _Quiet(),
        lambda _: None,
    )
    with runner:
        experiment.run()
    if experiment.failed:
        raise experiment.failed
    _evaluate(found, record)
    return found


def _evaluate(found: Report, record: Record) -> None:
    slots = record.slots
    quiet = slots.good & (slots.delivered_ns.sum(axis=1) == 0)
    found.slots = int(slots.good.sum())
    if quiet.sum() < MIN_SLOTS:
        raise RankError(
            f"{found.slots} slots of work are too few to tell anything: the program "
            f"takes {human(record.unit_ns)} for a unit of work; give more --budget"
        )
    found.unit_ns = record.unit_ns
    found.slot_units = record.slot_units
    found.share = record.machine.share
    found.steal = record.machine.steal
    judged = verdict(record, final=False)
    base = base_time(record)
    seconds = float(np.nansum(slots.time_ns)) / 1e9
    if FUNCTION in record.functions:
        found.known = judged.of(FUNCTION).criticality
    reference = found.known or judged.sham
    if reference:
        found.noise = reference.half / 1.96 * DOSE * math.sqrt(seconds)
    else:
        spread = float(np.std(slots.time_ns[quiet])) / base
        found.noise = 2 * spread * math.sqrt(base / 1e9)


# ------------------------------------------------------------------------ shown


def text(found: Report) -> str:
    where = found.environment
    load = ", ".join(f"{x:.2f}" for x in where["load"])
    rows = [
        ("machine", f"{where['cpu'] or where['machine']}, {where['cpus']} CPUs, "
         f"Linux {where['kernel']}, load {load}"),
        ("python", f"{where['python']}, functions caught by {where['hook']}"),
        *([("jit", found.jit)] if found.jit else []),
        ("clock", f"{where['clock']}, {_core.clock_overhead_ns()} ns a reading; shortest "
         f"delay {where['min_delay_ns']} ns"),
        *[("spin", line) for line in map(_spin, found.spins)],
        *_native_rows(found),
        ("slots", f"{found.slots}, of {found.slot_units} unit"
         f"{'s' * (found.slot_units != 1)} of {human(found.unit_ns)}"),
        ("contention", _contention(found)),
    ]  # fmt: skip
    if found.known:
        says = "right" if found.is_right else "WRONG: do not trust what is measured now"
        c = found.known
        rows.append(
            (
                "known answer",
                f"1; measured, with delays of {DOSE:.0%}, {c.value:.3f} "
                f"[{c.low:.3f}, {c.high:.3f}]: {says}",
            )
        )
    seen = ""
    lines = []
    for name, value in rows:
        lines.append(f"{name if name != seen else '':14}{value}")
        seen = name
    heads = [("in", table.RIGHT)]
    heads += [(f"{n} function{'s' * (n != 1)}", table.RIGHT) for n in COUNTS]
    shown = table.table(
        heads,
        [
            [f"{seconds} s", *[f"± {found.half(seconds, n):.2g}" for n in COUNTS]]
            for seconds in TIMES_S
        ],
    )
    lines += [
        "",
        "Half a 95% interval of each function's criticality, on this program:",
        shown,
        "With more contention than was found here, intervals are wider.",
    ]
    return "\n".join(lines) + "\n"


def _spin(spin: Spin) -> str:
    over = 100 * (spin.median_ns / spin.requested_ns - 1)
    return (
        f"{human(spin.requested_ns)} asked: {over:+.2g}% in the median, 19 of 20 below "
        f"{human(spin.high_ns)}"
    )


def _native_rows(found: Report) -> list[tuple[str, str]]:
    if found.native is None:
        return [("native", f"no delays in native functions: {found.why_not}")]
    name = "the kernel module" if found.native == "driver" else found.native.upper()
    rows = [("native", f"delays by {name}")]
    rows += [("native", f"not guaranteed: {sentence}") for sentence in found.caveats]
    return rows


def _contention(found: Report) -> str:
    if math.isnan(found.share):
        return "not known: the kernel does not say how long threads wait for a CPU"
    return (
        f"{found.contended or 'none'} (the program had {found.share:.0%} of the CPU time "
        f"that it wanted; the hypervisor took {found.steal:.1%})"
    )


def as_json(found: Report) -> dict[str, Any]:
    """The results as JSON. Times are ns."""
    return {
        "format": FORMAT,
        "environment": found.environment,
        "clock_overhead_ns": _core.clock_overhead_ns(),
        "spins": [asdict(spin) for spin in found.spins],
        "native": {
            "backend": found.native,
            "caveats": found.caveats,
            "problem": found.why_not or None,
        },
        "unit_ns": found.unit_ns,
        "slot_units": found.slot_units,
        "slots": found.slots,
        "noise": found.noise,
        "known_answer": interval_json(found.known),
        "cpu_share": finite(found.share),
        "steal": found.steal,
        "contended": found.contended,
        "jit": found.jit,
        "good": found.is_good,
        "seen_in": [
            {
                "wall_ns": seconds * 10**9,
                "half": {str(n): finite(found.half(seconds, n)) for n in COUNTS},
            }
            for seconds in TIMES_S
        ],
    }
