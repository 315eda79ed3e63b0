# SPDX-License-Identifier: MIT
"""What can be seen on this machine, how soon, and whether its delays are right.

Measured on a program whose answer is known, or on one that is given, as ``rank`` does it.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from speed_bump import _core, native
from speed_bump.config import Target, parse_targets
from speed_bump.duration import human
from speed_bump.experiment import judge, progress, rank, records, report, robust, show
from speed_bump.experiment.runs.estimate import Interval
from speed_bump.experiment.program.workload import Delay, Planned, Workload
from speed_bump.experiment.rank import Experiment, Options, RankError
from speed_bump.experiment.records import SHAM, SOLO, SPIN, Pair, Writer
from speed_bump.experiment.show.table import Ticker
from speed_bump.experiment.program.runner import Runner, why_nobody_reported

# One function and nothing beside it: every delay arrives.
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
SHARE = 0.05
# The criticality of the known answer may be off by so much: a unit is a little more than
# the function.
CLOSE = 0.03
SPINS = 200
SPIN_LENGTHS_NS = (1_000, 10_000, 100_000)
# For these is said what can be seen.
TIMES_S = (10, 30, 60, 300)
SHARES = (0.05, 0.1, 0.3)
CALL_NS = 200_000_000
LEAST_PAIRS = 20
LEAST_UNITS = 5


@dataclass(frozen=True)
class Spin:
    """Spins that were to last ``asked_ns``: what half, and most, of them took."""

    asked_ns: int
    median_ns: float
    high_ns: float


@dataclass
class Report:
    """What was found. Shares are of the time of a unit of work; times ns or s.

    ``noise`` is the standard error of one pair of windows that do not differ, each pair
    taking ``pair_s``. ``known`` is the criticality of a function that has 1, None where
    another program was measured. ``native`` is the backend, None: none serves, and
    ``why_not`` says why.
    """

    environment: dict[str, Any]
    spins: list[Spin]
    native: str | None = None
    why_not: str = ""
    caveats: list[str] = field(default_factory=list)
    unit_ns: float = 0.0
    window_ns: int = 0
    pairs: int = 0
    pair_s: float = 0.0
    noise: float = 0.0
    known: Interval | None = None
    wait_share: float = 0.0
    stall_share: float = 0.0
    steal_share: float = 0.0
    contended: str = ""

    def half(self, seconds: float, share: float = 1.0) -> float:
        """Half the 95% interval after so long.

        Of the change of the time per unit, in parts of it; with ``share``, of the
        criticality of one function at a delay of that share.
        """
        if not self.pairs:
            return math.inf
        count = max(seconds / self.pair_s, 2)
        return robust.normal_quantile(0.975) * self.noise / math.sqrt(count) / share

    @property
    def is_right(self) -> bool:
        """Whether the known answer came out, or none was asked for."""
        c = self.known
        return c is None or c.low - CLOSE <= 1 <= c.high + CLOSE

    @property
    def is_good(self) -> bool:
        """Whether results that are taken now are to be trusted."""
        return not self.contended and self.is_right


def spins() -> list[Spin]:
    """Try the delays of this process."""
    found = []
    for asked in SPIN_LENGTHS_NS:
        took = sorted(_core.spin_delay_ns(asked) for _ in range(SPINS))
        found.append(Spin(asked, statistics.median(took), took[int(0.95 * SPINS)]))
    return found


def check(
    command: Sequence[str], unit: progress.Progress, seconds: float, seed: int
) -> Report:
    """Find out, in about so long.

    Args:
        command: a program to measure on; empty: one of ours

    Raises:
        RankError: the program can't be measured
        LaunchError: it can't be started
    """
    found = Report(records.environment(), spins())
    found.native = native.backend()
    try:
        found.caveats = native.caveats()
    except native.NativeError as error:
        found.why_not = str(error)
    runner = Runner(command or [sys.executable, "-c", SERIAL], show_output=False)
    targets = [] if command else parse_targets(FUNCTION, "function")
    survey = _Survey(runner, targets, unit, seconds, random.Random(seed))
    with runner:
        shams, solo = survey.run()
    _evaluate(found, survey, shams, solo)
    return found


class _Survey:
    """Pairs of windows that differ in nothing, or in a delay whose effect is known."""

    def __init__(
        self,
        runner: Runner,
        targets: Sequence[Target],
        unit: progress.Progress,
        seconds: float,
        draw: random.Random,
    ) -> None:
        self._runner = runner
        self._targets = targets
        self._unit = unit
        self._seconds = seconds
        self._draw = draw
        self.unit_ns = 0.0
        self.window_ns = 0
        self.took_s = 0.0
        self._delay: tuple[Delay, ...] = ()

    def run(self) -> tuple[list[Pair], list[Pair]]:
        """Those without and those with a delay."""
        options = Options(budget_s=max(self._seconds, 10.0))
        experiment = Experiment(
            self._runner, self._targets, self._unit, options, Writer({}, None), Ticker()
        )
        with Workload(self._runner, self._targets, self._unit) as program:
            settled = experiment.settle(program)
            experiment.tick.clear()
            if self._targets and not program.processes:
                raise RankError(why_nobody_reported(self._runner.command))
            if settled:
                self._look(program)
            if not settled or not self.unit_ns:
                raise RankError(
                    "the program ended before it could be measured: it is too short "
                    "for windows; 'speed-bump rank' repeats whole runs"
                )
            return self._measure(program)

    def _look(self, program: Workload) -> None:
        census = program.census(int(max(self._seconds / 20, 0.2) * 1e9), 0, 1)
        if not census.units:
            return
        self.unit_ns = census.clock_ns / census.units
        self.window_ns = rank.usual_window_ns(self.unit_ns, self._unit)
        calls = census.calls.get(FUNCTION, 0) / census.units
        if self._targets and calls:
            delay_ns = max(int(SHARE * self.unit_ns / calls), 1)
            self._delay = (Delay(FUNCTION, delay_ns),)

    def _measure(self, program: Workload) -> tuple[list[Pair], list[Pair]]:
        shams: list[Pair] = []
        solo: list[Pair] = []
        count = max(int(CALL_NS / (2.5 * self.window_ns)), 1)
        begin = time.monotonic()
        while time.monotonic() - begin < self._seconds and program.is_running():
            plan = [self._planned(bool(self._delay) and i % 2 == 0) for i in range(count)]
            for planned, (off, on) in zip(plan, program.measure(plan), strict=True):
                delays = planned.delays
                pair = Pair(
                    0,
                    1,
                    SOLO if delays else SHAM,
                    tuple(d.name for d in delays),
                    tuple(d.delay_ns for d in delays),
                    tuple(d.every for d in delays),
                    SHARE if delays else 0.0,
                    self.window_ns,
                    SPIN,
                    planned.on_first,
                    off,
                    on,
                )
                if pair.is_good:
                    (solo if delays else shams).append(pair)
        self.took_s = time.monotonic() - begin
        return shams, solo

    def _planned(self, delayed: bool) -> Planned:
        length = self.window_ns
        return Planned(
            self._delay if delayed else (),
            SPIN,
            self._draw.random() < 0.5,
            int(length * self._draw.uniform(0.9, 1.1)),
            length // 4,
            0,
            LEAST_UNITS,
            1,
        )


def _evaluate(
    found: Report, survey: _Survey, shams: Sequence[Pair], solo: Sequence[Pair]
) -> None:
    pairs = [*shams, *solo]
    if len(shams) < LEAST_PAIRS:
        raise RankError(
            f"{len(shams)} pairs of windows are too few to tell anything: the program "
            f"takes {human(survey.unit_ns)} for a unit of work; give more --budget"
        )
    changes = [p.change_ns / survey.unit_ns for p in shams]
    interval = robust.trimmed_interval(changes)
    found.noise = robust.standard_error(interval, len(changes)) * math.sqrt(len(changes))
    found.pairs = len(shams)
    found.pair_s = survey.took_s / len(pairs)
    found.unit_ns = survey.unit_ns
    found.window_ns = survey.window_ns
    found.known = judge.criticality_of(solo) if solo else None
    found.wait_share, found.stall_share, found.steal_share = judge.pressure(pairs)
    found.contended = judge.contention(solo) or judge.contention(shams)


# ------------------------------------------------------------------------ shown


def text(found: Report) -> str:
    """For people at a terminal."""
    where = found.environment
    load = ", ".join(f"{x:.2f}" for x in where["load"])
    rows = [
        ("machine", f"{where['cpu'] or where['machine']}, {where['cpus']} CPUs, "
         f"Linux {where['kernel']}, load {load}"),
        ("python", f"{where['python']}, functions caught by {where['hook']}"),
        ("clock", f"{where['clock']}, {_core.clock_overhead_ns()} ns a reading; least "
         f"delay {where['least_delay_ns']} ns"),
        *[("spin", line) for line in map(_spin, found.spins)],
        *_native_rows(found),
        ("noise", f"{100 * found.noise:.2g}% of the time of a unit, of a pair of windows "
         f"of {human(found.window_ns)}; a unit took {human(found.unit_ns)}"),
        ("contention", _contention(found)),
    ]  # fmt: skip
    if found.known:
        says = "right" if found.is_right else "WRONG: do not trust what is measured now"
        rows.append(
            (
                "known answer",
                f"1; measured, with delays of {SHARE:.0%}, "
                f"{show.number(found.known, '.3f')}: {says}",
            )
        )
    seen = ""
    lines = []
    for name, value in rows:
        lines.append(f"{name if name != seen else '':14}{value}")
        seen = name
    heads = [("in", report.RIGHT), ("change of throughput", report.RIGHT)]
    heads += [(f"criticality, {share:.0%} delay", report.RIGHT) for share in SHARES]
    table = report.table(
        heads,
        [
            [
                f"{seconds} s",
                f"± {100 * found.half(seconds):.2g}%",
                *[f"± {found.half(seconds, share):.2g}" for share in SHARES],
            ]
            for seconds in TIMES_S
        ],
    )
    lines += ["", "Half a 95% interval, with one function measured:", table]
    lines += [
        "With more functions each has its part of the time: the interval of one of four",
        "is twice as wide. A run that finds more contention than this one sees less.",
    ]
    return "\n".join(lines) + "\n"


def _spin(spin: Spin) -> str:
    over = 100 * (spin.median_ns / spin.asked_ns - 1)
    return (
        f"{human(spin.asked_ns)} asked: {over:+.2g}% in the median, 19 of 20 below "
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
    shares = (
        f"the program waited for a CPU {found.wait_share:.1%} of the time, somebody "
        f"{found.stall_share:.1%}; the hypervisor took {found.steal_share:.1%}"
    )
    return f"{found.contended or 'none'} ({shares})"


def as_json(found: Report) -> dict[str, Any]:
    """For programs. Times are ns where it says so, else s."""
    return {
        "environment": found.environment,
        "clock_overhead_ns": _core.clock_overhead_ns(),
        "spins": [asdict(spin) for spin in found.spins],
        "native": {
            "backend": found.native,
            "caveats": found.caveats,
            "why_not": found.why_not,
        },
        "unit_ns": found.unit_ns,
        "window_ns": found.window_ns,
        "pairs": found.pairs,
        "pair_s": found.pair_s,
        "noise": found.noise,
        "known_answer": show.interval_json(found.known),
        "pressure": {
            "wait": found.wait_share,
            "stall": found.stall_share,
            "steal": found.steal_share,
        },
        "contended": found.contended,
        "good": found.is_good,
        "seen_in": [
            {
                "seconds": seconds,
                "change": found.half(seconds),
                "criticality": {
                    f"{share:g}": found.half(seconds, share) for share in SHARES
                },
            }
            for seconds in TIMES_S
        ],
    }
