# SPDX-License-Identifier: MIT
"""The experiment that runs itself: what to measure next, until all is decided.

Within a run of the program blocks of pairs are made, each block with one pair of every
function that is looked at, in random order. Which functions these are, with how long
delays and in how long windows, follows from what is known so far.
"""

from __future__ import annotations

import glob
import itertools
import math
import random
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from speed_bump import _core
from speed_bump.config import Target
from speed_bump.duration import human
from speed_bump.experiment import design
from speed_bump.experiment.judge import (
    BUSY_WAIT,
    HIDDEN,
    HINGE,
    Finding,
    Judge,
    Verdict,
    pressure,
    self_share,
)
from speed_bump.experiment.live import Delay, Planned, Workload
from speed_bump.experiment.progress import OUTPUT_POINT, Progress
from speed_bump.experiment.records import (
    GROUP,
    JOINT,
    SHAM,
    SLEEP,
    SOLO,
    SPIN,
    Census,
    Pair,
    Window,
    Writer,
)
from speed_bump.experiment.report import Ticker
from speed_bump.experiment.runner import Result, Runner, Slowed, why_nobody_reported
from speed_bump.experiment.screen import Request, Screening

# Delay per unit of work, in parts of the undelayed time: what is begun with, and where it
# goes on while all of it is hidden.
LADDER = (0.1, 0.3, 0.6, 1.2, 2.4)
FIRST_LEVELS = 2
LEAST_SHARE = 0.02
# More functions than these are screened in groups first.
MOST_SINGLE = 12
# So many that matter are enough of screening; the busiest of the rest go on with them.
MOST_ALONE = 20
# Of many functions those with less self time than this part of the most are the last.
SMALL = 0.1
# Functions in a block, those that matter most first.
MOST_IN_BLOCK = 6
LEAST_WINDOW_NS = 4_000_000
MOST_WINDOW_NS = 20_000_000
# Of a slow program: five visits take what they take, up to this.
LONGEST_NS = 2_000_000_000
VISITS = 5
USUAL_UNITS = 8
UNSTAMPED = 4  # so many times as long where the kernel counts the units
LONGER = 4  # the second window length
CALL_NS = 250_000_000  # planned in one go: how long Ctrl-C waits
CENSUS_PART = 0.06
LATER_CENSUS_PART = 0.03
SCREENING_PART = 0.6
PAIRS_AT_LEVEL = 12
SHAM_EVERY = 6
LEAST_SHAMS = 24
JOINT_PAIRS = 60
MOST_JOINT = 4
MOST_IN_RUNS = 16
# Fewer pairs than these in a run: the program is too short for windows.
LEAST_IN_RUN = 6
PAUSE_S = 0.05
MOST_DELAY_NS = 1_000_000_000


class RankError(Exception):
    """Nothing can be measured; the message says why and what to do."""

    def __init__(self, text: str, status: int = 1, output: bytes = b"") -> None:
        """``output`` is what the program wrote, if it failed."""
        super().__init__(text)
        self.status = status
        self.output = output


@dataclass
class Options:
    """How to measure.

    ``delay_ns`` is of a call, where somebody wants a certain one; None: by its share.
    ``window_ns`` None: from the progress rate. ``levels`` are the shares to measure at
    (of ``sweep``); None: as the ladder goes. ``keep_running``: do not end the program.
    """

    budget_s: float = 60.0
    seed: int = 0
    delay_ns: int | None = None
    window_ns: int | None = None
    levels: tuple[float, ...] | None = None
    precision: float = 0.05
    keep_running: bool = False


@dataclass(frozen=True)
class Arm:
    """A kind of pair to make."""

    kind: str
    names: tuple[str, ...]
    share: float
    longer: int = 1
    mode: str = SPIN


@dataclass
class Function:
    """A candidate, and how it is measured."""

    name: str
    levels: list[float]
    base: int = 1  # windows of so many times the usual length
    made: int = 0
    closed: bool = False


@dataclass
class Experiment:
    """The whole of it. What is known stays in the writer's record whatever happens."""

    runner: Runner
    targets: Sequence[Target]
    progress: Progress
    options: Options
    writer: Writer
    tick: Ticker
    interrupted: bool = False
    failed: RankError | None = None
    runs: int = 0
    functions: dict[str, Function] = field(default_factory=dict)
    screening: Screening | None = None
    processes: int = 0
    lost: int = 0
    _begin: float = 0.0
    _deadline: float = 0.0
    _unit_ns: float = 0.0
    _calls: dict[str, float] = field(default_factory=dict)
    _verdict: Verdict | None = None
    _next_judging: float = 0.0
    _searching: Generator[Request, list[Pair], None] | None = None
    _request: Request | None = None
    _shams: int = 0
    _joint: dict[tuple[str, str], int] = field(default_factory=dict)
    _lengths: dict[str, int] = field(default_factory=dict)
    _done: bool = False
    _last_census: float = 0.0
    _in_run: int = 0
    _stalled_ns: int = 0  # of the last whole run

    def __post_init__(self) -> None:
        """Draw from the seed."""
        self._draw = random.Random(self.options.seed)
        self._start_clock()
        self._counter = itertools.count()

    # --------------------------------------------------------------------- run

    def run(self) -> None:
        """Measure until all is decided, the budget is used up, or somebody interrupts.

        Raises:
            RankError: nothing can be measured
            LaunchError, NativeError: of starting the program
        """
        self._start_clock()
        try:
            self._runs()
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self.tick.clear()
            self.writer.end(
                {
                    "interrupted": self.interrupted,
                    "decided": self._done,
                    "runs": self.runs,
                    "seconds": time.monotonic() - self._begin,
                    "processes": self.processes,
                    "lost": self.lost,
                }
            )

    def _start_clock(self) -> None:
        self._begin = time.monotonic()
        self._deadline = self._begin + self.options.budget_s

    def _runs(self) -> None:
        while not self._is_over():
            self._one_run()
            if self.failed:
                if not self.writer.record.pairs:
                    raise self.failed
                return
            if self._is_over():
                return
            if self._in_run < LEAST_IN_RUN:
                self._whole_runs()
                return

    def _one_run(self) -> None:
        self.runs += 1
        self._in_run = 0
        with Workload(self.runner, self.targets, self.progress) as program:
            try:
                if self.settle(program):
                    self._measure(program)
                elif not program.is_running() and not self._is_over():
                    self._pilot(program)
            finally:
                self.processes = max(self.processes, program.processes)
                self.lost = max(self.lost, program.lost)
            if program.is_running() and self.options.keep_running:
                self.tick.now("all measured; the program goes on until it ends")
                program.wait()
            elif not program.is_running():
                ended = program.wait()
                self.interrupted = self.interrupted or ended.interrupted
                if ended.status and not ended.interrupted:
                    self.failed = RankError(
                        f"the program failed with status {ended.status} in run "
                        f"{self.runs}",
                        ended.status,
                        program.output(),
                    )

    def _is_over(self) -> bool:
        return self._done or self.interrupted or self._left() <= 0

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _now_ns(self) -> int:
        return int((time.monotonic() - self._begin) * 1e9)

    def settle(self, program: Workload) -> bool:
        """Wait for the program to be at work; False: it ended before, or time is up.

        Raises:
            RankError: time is up and no progress was seen; it says what to do
        """
        opened = not self.progress.is_open
        first = 0.0
        while program.is_running() and self._left() > 0:
            if not opened:
                opened = self._choose_point(program)
            units = program.units() if opened else 0
            if units and not first:
                first = time.monotonic()
            if first and (units > 10 or time.monotonic() > first + 1):
                return True
            left = human(self._left() * 1e9)
            self.tick.now(f"waiting for the first units of work | {left} left")
            time.sleep(PAUSE_S)
        if self._left() <= 0 and not first and not self.writer.record.pairs:
            raise RankError(self._why_no_progress(program))
        return False

    def _choose_point(self, program: Workload) -> bool:
        points = {name: n for name, n in program.points().items() if n}
        if not points:
            return False
        name = "default" if "default" in points else max(points, key=lambda p: points[p])
        program.count(name)
        return True

    def _why_no_progress(self, program: Workload) -> str:
        seconds = self.options.budget_s
        if not self.progress.is_open:
            return f"no {self.progress.text} was seen in {seconds:.0f} s"
        text = (
            f"no progress was seen in {seconds:.0f} s, and the program did not end: say "
            "what a unit of work is, with --progress MODULE:FUNCTION or "
            "--progress-regex, or let the program call speed_bump.progress()"
        )
        calls = sorted(program.calls().items(), key=lambda item: -item[1])[:3]
        if calls:
            rates = ", ".join(f"{name} ({n / seconds:.0f} calls/s)" for name, n in calls)
            text += f"; called most: {rates}"
        elif not program.processes:
            text = why_nobody_reported(self.runner.command)
        return text

    # ----------------------------------------------------------------- windows

    def _measure(self, program: Workload) -> None:
        self._take_census(program, CENSUS_PART)
        if not self.functions and not self._find_candidates(program):
            return
        while not self._is_over() and program.is_running():
            if time.monotonic() - self._last_census > self.options.budget_s / 5:
                self._take_census(program, LATER_CENSUS_PART)
            arms = self._next()
            if not arms:
                self._done = True
                return
            self._make(program, arms)

    def _take_census(self, program: Workload, part: float) -> None:
        self.tick.now("counting calls and looking at the stacks, nothing is delayed")
        seconds = min(max(part * self.options.budget_s, 0.4), 4.0, max(self._left(), 0.1))
        census = program.census(int(seconds * 1e9), self._now_ns(), self.runs)
        self._last_census = time.monotonic()
        self._note(census)

    def _note(self, census: Census) -> None:
        if not census.units:
            return
        self.writer.census(census)
        known = self.writer.record.censuses
        units = sum(c.units for c in known)
        self._unit_ns = sum(c.clock_ns for c in known) / units
        totals: dict[str, int] = {}
        for c in known:
            for name, calls in c.calls.items():
                totals[name] = totals.get(name, 0) + calls
        self._calls = {name: n / units for name, n in totals.items()}

    def _find_candidates(self, program: Workload) -> bool:
        """From those that are called; more than a few are screened first."""
        if not self._calls:
            if not program.processes and not any(t.native for t in self.targets):
                raise RankError(why_nobody_reported(self.runner.command))
            raise RankError(
                "none of the targets was called while the program worked: see "
                "'speed-bump run' for what patterns match"
            )
        names = list(self._calls)
        self.writer.record.header["candidates"] = names
        if len(names) <= MOST_SINGLE or self.options.levels:
            for name in names:
                self._add(name)
        else:
            self.screening = Screening(self._in_order(names), self.writer.test)
            self._searching = self.screening.search()
            self._request = next(self._searching)
        return True

    def _in_order(self, names: list[str]) -> list[str]:
        """Those that are likely to matter together side by side."""
        busy = {name: self._busy_share(name) for name in names}
        return sorted(names, key=lambda n: (n.rpartition(":")[0], -busy[n], n))

    def _add(self, name: str) -> None:
        levels = list(self.options.levels or LADDER[:FIRST_LEVELS])
        self.functions.setdefault(name, Function(name, levels))

    # ---------------------------------------------------------------- what next

    def _next(self) -> list[Arm]:
        """The next block; empty: all is decided."""
        if self._searching:
            arms = self._next_group()
            if arms:
                return arms
        self._judge()
        open_ones = [f for f in self.functions.values() if not f.closed]
        open_ones.sort(key=self._urgency)
        arms = [self._arm_of(f) for f in open_ones[:MOST_IN_BLOCK]]
        arms += self._joint_arms(bool(open_ones))
        if not arms and self._shams >= LEAST_SHAMS:
            return []
        wanted = max(len(arms) // SHAM_EVERY, int(not arms))
        if next(self._counter) % SHAM_EVERY == 0 or wanted:
            arms += [self._sham() for _ in range(max(wanted, 1))]
        self._draw.shuffle(arms)
        return arms

    def _next_group(self) -> list[Arm]:
        """While screening: the pairs that it asks for."""
        request = self._request
        spent = self.options.budget_s - self._left()
        late = spent > SCREENING_PART * self.options.budget_s
        # Where nearly all is serial, what matters most is found by measuring.
        assert self.screening is not None
        if request is None or late or len(self.screening.alone) >= MOST_ALONE:
            self._end_screening()
            return []
        arms = [Arm(GROUP, request.names, request.share)] * request.pairs
        if next(self._counter) % SHAM_EVERY == 0:
            arms = [*arms, self._sham()]
        return arms

    def _end_screening(self) -> None:
        assert self.screening is not None
        self._searching = None
        for names in self.screening.jointly:
            self.writer.joint(names)
        for name in [*self.screening.alone, *self._left_by_screening()]:
            self._add(name)
        self.tick.event(
            f"screened {len(self.screening.names)} functions in {self.screening.tests} "
            f"group tests: {len(self.screening.alone)} matter"
        )

    def _left_by_screening(self) -> list[str]:
        """Of those that have no answer yet the busiest."""
        assert self.screening is not None
        settled = {*self.screening.alone}
        for test in self.writer.record.tests:
            if not test.matters:
                settled.update(test.names)
        for names in self.screening.jointly:
            settled.update(names)
        left = [name for name in self.screening.names if name not in settled]
        left.sort(key=lambda name: -self._busy_share(name))
        return left[:MOST_ALONE]

    def _busy_share(self, name: str) -> float:
        """The self time it has at most, in parts of the total; 1 where nobody can see."""
        found = self_share(self.writer.record.censuses, name)
        return found.high if found else 1.0

    def _judge(self) -> None:
        """See what is known; not after each block, it takes a while."""
        begin = time.monotonic()
        if self._verdict and begin < self._next_judging:
            return
        judge = Judge(self.writer.record, full=False, precision=self.options.precision)
        self._verdict = judge.verdict()
        # While we think nothing is measured: a tenth of the time is enough.
        took = time.monotonic() - begin
        self._next_judging = time.monotonic() + max(10 * took, 0.2)
        for function in self.functions.values():
            finding = self._verdict.of(function.name)
            if finding and finding.levels:
                self._steer(function, finding)

    def _steer(self, function: Function, finding: Finding) -> None:
        """Which levels and windows a function needs from here on."""
        usual = self._length(function.name)
        if finding.length_ns > usual * function.base * 1.5:
            function.base = min(function.base * LONGER, max(LONGEST_NS // usual, 1))
        if self.options.levels:
            function.closed = finding.decided and all(
                any(v.share == s and v.pairs >= PAIRS_AT_LEVEL for v in finding.levels)
                for s in function.levels
            )
            return
        high = finding.levels[-1]
        measured = high.share == function.levels[-1] and high.pairs >= PAIRS_AT_LEVEL
        climbs = False
        if finding.shape == HINGE and finding.slack_ns and self.options.delay_ns is None:
            slack = finding.slack_ns
            behind = [v for v in finding.levels if v.delivered_ns > slack.high]
            if len(behind) < 2 and measured:
                climbs = self._climb(function)
            low = finding.levels[0].delivered_ns
            if slack.value < 0.8 * low and function.levels[0] > LEAST_SHARE:
                share = max(0.5 * slack.value / max(self._unit_ns, 1), LEAST_SHARE)
                share = min(share, function.levels[0] / 2)
                function.levels.insert(0, max(float(f"{share:.1e}"), LEAST_SHARE / 2))
                climbs = True
        known = {v.share for v in finding.levels if v.pairs >= PAIRS_AT_LEVEL}
        waits = finding.shape == HINGE and not known.issuperset(function.levels)
        function.closed = finding.decided and not climbs and not waits

    def _climb(self, function: Function) -> bool:
        """Go one level up; False: it is the highest, or the delay would be too long."""
        higher = [s for s in LADDER if s > function.levels[-1]]
        if not higher or self._delay(function.name, higher[0]) is None:
            return False
        function.levels.append(higher[0])
        return True

    def _urgency(self, function: Function) -> tuple[int, float]:
        """The first pairs for all; then the one with the most headroom it may have.

        Where there are many, those that hardly take time are last.
        """
        first = min(function.made // (2 * PAIRS_AT_LEVEL), 1)
        finding = self._verdict.of(function.name) if self._verdict else None
        # Of a few each has its turn, and the seed alone says when.
        many = len(self.functions) > MOST_SINGLE
        busy = self._busy_share(function.name) if many else 1.0
        most = busy or 1.0
        if finding and finding.headroom:
            most = finding.headroom.high
        elif finding and finding.criticality:
            most = finding.criticality.high
        if many and busy < SMALL * self._busiest():
            first = 2
        return (first, -most)

    def _busiest(self) -> float:
        return max((self._busy_share(name) for name in self.functions), default=0.0)

    def _arm_of(self, function: Function) -> Arm:
        """One pair: which level, which length."""
        n = function.made
        function.made += 1
        finding = self._verdict.of(function.name) if self._verdict else None
        levels = function.levels
        known = {v.share: v for v in finding.levels} if finding else {}
        fewest = min(levels, key=lambda s: known[s].pairs if s in known else 0)
        if fewest not in known or known[fewest].pairs < PAIRS_AT_LEVEL:
            share = fewest if n % 3 else levels[-1]
        else:
            share = levels[n % len(levels)]
        longer = LONGER if n % 4 == 3 else 1
        mode = SPIN
        if finding and finding.criticality and finding.criticality.low > HIDDEN:
            # Some in any case: holding a CPU must not be what makes the difference.
            busy = self._verdict is not None and self._verdict.wait_share > BUSY_WAIT
            step = 5 if busy else 10
            if n % step == step // 2:
                mode = SLEEP
        return Arm(SOLO, (function.name,), share, function.base * longer, mode)

    def _joint_arms(self, busy: bool) -> list[Arm]:
        """Pairs of functions that matter, delayed together."""
        if self.options.levels or not self._verdict:
            return []
        strong = [
            f.name
            for f in self._verdict.findings
            if f.criticality and f.criticality.low > 3 * HIDDEN and f.decided
        ][:MOST_JOINT]
        arms = []
        for names in itertools.combinations(sorted(strong), 2):
            made = self._joint.get(names, 0)
            if made < JOINT_PAIRS and not (busy and made >= JOINT_PAIRS // 3):
                self._joint[names] = made + 1
                base = max(self.functions[n].base for n in names)
                arms.append(Arm(JOINT, names, LADDER[1], base))
        return arms

    def _sham(self) -> Arm:
        """A function that is switched like the others, with no delay."""
        names = list(self.functions) or list(self._calls)
        share = LADDER[0]
        return Arm(SHAM, (self._draw.choice(names),), share)

    # ------------------------------------------------------------------- making

    def _length(self, name: str) -> int:
        """How long a window is for a function, ns: the same all along."""
        if self.options.window_ns:
            return self.options.window_ns
        if name not in self._lengths:
            self._lengths[name] = self._choose_length(name)
        return self._lengths[name]

    def _choose_length(self, name: str) -> int:
        unit = max(self._unit_ns, 1.0)
        calls = self._calls.get(name, 0.0)
        return usual_window_ns(unit, self.progress, max(1.0, 1 / calls if calls else 1.0))

    def _arm_length(self, arm: Arm) -> int:
        own = max(self._length(name) for name in arm.names)
        return max(min(own * arm.longer, LONGEST_NS), own)

    def _delay(self, name: str, share: float) -> Delay | None:
        """The delay of a call that adds up to a share per unit; None: too long."""
        calls = self._calls.get(name, 0.0)
        if not calls:
            return None
        if self.options.delay_ns is not None:
            scale = share / (self.options.levels or LADDER)[0]
            return Delay(name, min(int(self.options.delay_ns * scale), MOST_DELAY_NS))
        delay_ns = share * self._unit_ns / calls
        if delay_ns > MOST_DELAY_NS:
            return None
        least = max(design.LEAST_DELAY_NS, _core.min_delay_ns())
        every = max(math.ceil(least / delay_ns), 1)
        return Delay(name, max(int(delay_ns * every), 1), every)

    def _planned(self, arm: Arm) -> Planned:
        length = self._arm_length(arm)
        delays = [self._delay(name, arm.share) for name in arm.names]
        chosen = [d or Delay(n, 0) for d, n in zip(delays, arm.names, strict=True)]
        if arm.kind == SHAM:
            chosen = [Delay(name, 0) for name in arm.names]
        return Planned(
            tuple(chosen),
            arm.mode,
            self._draw.random() < 0.5,
            # Not in step with whatever the program does at regular times.
            int(length * self._draw.uniform(0.9, 1.1)),
            length // 4,
            int(length * _drain(arm)),
            VISITS,
            1,
        )

    def _make(self, program: Workload, arms: Sequence[Arm]) -> None:
        """Make the pairs of a block, a few at a time, and send them where they belong."""
        found: list[Pair] = []
        waiting = list(arms)
        while waiting and not self._is_over() and program.is_running():
            now: list[tuple[Arm, Planned]] = []
            took = 0.0
            while waiting and (not now or took < CALL_NS):
                arm = waiting.pop(0)
                if arm.mode == SLEEP and program.is_native(arm.names[0]):
                    arm = Arm(arm.kind, arm.names, arm.share, arm.longer)
                planned = self._planned(arm)
                took += 2 * (planned.length_ns + planned.washout_ns)
                now.append((arm, planned))
            self.tick.now(self._status())
            at = self._now_ns()
            results = program.measure([planned for _, planned in now])
            for (arm, planned), (off, on) in zip(now, results, strict=True):
                pair = self._pair(arm, planned, at, off, on)
                self.writer.pair(pair)
                self._in_run += 1
                self._shams += arm.kind == SHAM and pair.is_good
                if arm.kind == GROUP and pair.is_good:
                    found.append(pair)
        if self._searching and self._request and not waiting:
            self._send([p for p in found if p.names == self._request.names])

    def _send(self, pairs: list[Pair]) -> None:
        assert self._searching is not None
        try:
            self._request = self._searching.send(pairs)
        except StopIteration:
            self._request = None

    def _pair(self, arm: Arm, planned: Planned, at: int, off: Window, on: Window) -> Pair:
        # Lengths differ a little on purpose; what they were to be tells them apart.
        length = self._arm_length(arm)
        return Pair(
            at,
            self.runs,
            arm.kind,
            arm.names,
            tuple(d.delay_ns for d in planned.delays),
            tuple(d.every for d in planned.delays),
            arm.share,
            length,
            arm.mode,
            planned.on_first,
            off,
            on,
        )

    def _status(self) -> str:
        """The progress line."""
        left = f"{max(self._left(), 0):.0f} s left"
        if self._searching and self.screening:
            return (
                f"screening, {self.screening.tests} group tests, "
                f"{len(self.screening.alone)} found | {left}"
            )
        parts = []
        for f in self._verdict.findings[:3] if self._verdict else []:
            if f.criticality and f.levels:
                half = (f.criticality.high - f.criticality.low) / 2
                parts.append(f"{f.name} {f.criticality.value:.2f}±{half:.2f}")
        known = ", ".join(parts) or "nothing known yet"
        return f"measuring, {left} | {known}"

    # ---------------------------------------------------------------- whole runs

    def _pilot(self, program: Workload) -> None:
        """The program ended before it could be measured: what was called all the same."""
        self._calls = {name: float(n) for name, n in program.calls().items()}

    def _whole_runs(self) -> None:
        """The program is too short for windows: blocks of whole runs (``design``)."""
        self.tick.event(
            "the program is too short to be measured while it runs: measuring whole runs"
        )
        self.writer.record.pairs.clear()
        pilot = self._whole_run(self.targets, None, 0)
        if pilot is None:
            return
        unit = next(iter(design_unit(pilot.progress, self.progress)), None)
        names = [f.name for f in pilot.functions if f.calls]
        self.writer.record.header["candidates"] = names
        if not names:
            raise RankError(
                "none of the targets was called: see 'speed-bump run' for what patterns "
                "match"
                if pilot.processes
                else why_nobody_reported(self.runner.command)
            )
        if len(names) > MOST_IN_RUNS:
            raise RankError(
                f"{len(names)} functions are too many to be measured in whole runs: name "
                f"{MOST_IN_RUNS} at most, or measure a longer run of the program"
            )
        units = pilot.progress[unit] if unit else 1
        self._note(_census_of(pilot, units, self._now_ns(), self.runs))
        for block in itertools.count():
            if not self._whole_block(names, unit, block) or self._is_over():
                return

    def _whole_block(self, names: list[str], unit: str | None, block: int) -> bool:
        """One run of each; False: no more are needed, or none is possible."""
        open_ones = [n for n in names if not self._is_closed(n)]
        if not open_ones:
            self._done = True
            return False
        share = LADDER[1] if block % 2 else LADDER[2]
        arms = [None, *open_ones]
        self._draw.shuffle(arms)
        windows: dict[str | None, tuple[Window, Delay | None]] = {}
        for name in arms:
            delay = self._delay(name, share) if name else None
            self.tick.now(f"block {block + 1}: {name or 'undelayed'} | {self._status()}")
            result = self._whole_run(self.targets, delay, block)
            if result is None:
                return False
            windows[name] = _window_of(result, unit, name, self._stalled_ns), delay
        base = windows[None][0]
        for name in open_ones:
            window, delay = windows[name]
            assert delay is not None
            arm = Arm(SOLO, (name,), share)
            planned = Planned(
                (delay,), SPIN, arms.index(name) < arms.index(None), 0, 0, 0, 0, 0
            )
            pair = self._pair(arm, planned, self._now_ns(), base, window)
            self.writer.pair(Pair(**{**pair.__dict__, "length_ns": 0}))
        return True

    def _is_closed(self, name: str) -> bool:
        verdict = Judge(self.writer.record, full=False).verdict()
        self._verdict = verdict
        finding = verdict.of(name)
        return bool(finding and finding.decided)

    def _whole_run(
        self, targets: Sequence[Target], delay: Delay | None, block: int
    ) -> Result | None:
        """One run; None: time is up, or somebody interrupts."""
        if self._is_over():
            return None
        self.runs += 1
        exact = []
        if delay:
            left, _, right = delay.name.rpartition(":")
            exact = [Slowed(_exact(left, right, delay), delay.delay_ns)]
        others = [Slowed(t, 0, on=False) for t in targets]
        before = stalled_ns()
        result = self.runner.run([*exact, *others])
        self._stalled_ns = stalled_ns() - before
        self.processes = max(self.processes, result.processes)
        self.lost = max(self.lost, result.lost)
        if result.interrupted:
            self.interrupted = True
            return None
        if result.status:
            self.failed = RankError(
                f"the program failed with status {result.status} in run {self.runs}",
                result.status,
                result.output,
            )
            if not self.writer.record.pairs:
                raise self.failed
            return None
        return result


def usual_window_ns(unit_ns: float, progress: Progress, units_a_call: float = 1) -> int:
    """How long a window is, ns.

    Args:
        unit_ns: the undelayed time of a unit of work
        units_a_call: units done for each call of the function
    """
    # Without time stamps a window has no whole units: longer ones are less wrong.
    more = UNSTAMPED if progress.targets else 1
    usual = min(max(USUAL_UNITS * unit_ns, LEAST_WINDOW_NS), MOST_WINDOW_NS) * more
    visits = VISITS * more * unit_ns * units_a_call
    # Two digits, so that functions that are called alike have the same.
    return int(float(f"{min(max(usual, visits), LONGEST_NS):.1e}"))


def _drain(arm: Arm) -> float:
    """How long to wait after the delays, in parts of a window.

    As long as what was injected in it, at most, and half as much again.
    """
    share = 0.0 if arm.kind == SHAM else arm.share * len(arm.names)
    return 1.5 * share / (1 + share)


def _exact(left: str, right: str, delay: Delay) -> Target:
    """A target for one function, whatever characters its name has."""
    from speed_bump.config import parse_targets

    quoted = f"{glob.escape(left)}:{glob.escape(right)}"
    return parse_targets(f"{quoted} every={delay.every}", "function")[0]


def design_unit(progress: dict[str, int], wanted: Progress) -> list[str]:
    """The progress point of whole runs: a named one, "default", or that with most."""
    counted = {name: n for name, n in progress.items() if n and name != OUTPUT_POINT}
    named = [name for name in wanted.points if name in counted]
    if named or not counted:
        return named
    return (
        ["default"] if "default" in counted else [max(counted, key=lambda n: counted[n])]
    )


def stalled_ns() -> int:
    """How long some task of the machine waited for a CPU, since it is up (PSI).

    0 where the kernel does not say. Whole runs have nothing better.
    """
    try:
        with open("/proc/pressure/cpu", encoding="ascii") as file:
            return int(file.readline().rpartition("total=")[2]) * 1000
    except (OSError, ValueError):
        return 0


def _window_of(
    result: Result, unit: str | None, name: str | None, stall_ns: int
) -> Window:
    units = result.progress.get(unit, 0) if unit else 1
    own = [f for f in result.functions if f.name == name]
    return Window(
        0,
        result.wall_ns,
        result.wall_ns,
        units,
        sum(f.calls for f in own),
        sum(f.delayed for f in own),
        sum(f.requested_ns for f in own),
        sum(f.measured_ns for f in own),
        stall_ns=stall_ns,
    )


def _census_of(result: Result, units: int, at_ns: int, run: int) -> Census:
    calls = {f.name: f.calls for f in result.functions if f.calls}
    return Census(at_ns, run, result.wall_ns, units, calls, 0, {}, "")


__all__ = ["Experiment", "Options", "RankError", "pressure"]
