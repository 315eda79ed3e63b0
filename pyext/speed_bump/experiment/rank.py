# SPDX-License-Identifier: MIT
"""The experiment on a program, by slots while it runs.

It is one object, Experiment: what the slots show decides what is said, saved and measured
next. Hence the length.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from speed_bump import _core
from speed_bump.config import Target, matches
from speed_bump.duration import human
from speed_bump.experiment import job_ranks as cluster
from speed_bump.experiment import missing
from speed_bump.experiment.account import Looks, account
from speed_bump.experiment.account import together as looks_together
from speed_bump.experiment.program import jit
from speed_bump.experiment.program.late_python import Lookout
from speed_bump.experiment.program.latency import Histogram
from speed_bump.experiment.program.machine import cpus
from speed_bump.experiment.program.meter import CHANGES, Pace, slot_of
from speed_bump.experiment.program.metric import MetricError
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner, why_nobody_reported
from speed_bump.experiment.program.samples import Samples, added, self_times
from speed_bump.experiment.program.workload import Workload
from speed_bump.experiment.record import REQUEST, Block, Metered, Record
from speed_bump.experiment.slots import length, requests
from speed_bump.experiment.slots.measure import Run, together
from speed_bump.experiment.symbols import short

# The minimal length of a slot: ending it costs a microsecond, and slots are read from
# outside.
SLOT_NS = 2_000_000
CENSUS_PART = 0.06
MIN_CENSUS_S, MAX_CENSUS_S = 0.6, 4.0
# The same for each run after the first one.
AGAIN_CENSUS_S, AGAIN_SLOTS = 0.2, 4
# Slots of the first census, unless it would take this part of the budget. If slots are
# long, fewer are enough after a smaller part: in simulations of 60 s with slots of 0.45 s
# and 11 functions, 20 instead of 33 gave an eighth more verdicts, as reliable; with 11
# slots (of 0.8 s) too many intervals missed the truth.
CENSUS_SLOTS = 64
ENOUGH_SLOTS, ENOUGH_PART = 20, 0.1
# The same for slots that outlast requests.
CENSUS_LONG_SLOTS = 16
MAX_CENSUS_PART = 0.25
LATER_CENSUS_EVERY = 0.2
MIN_KEPT = 2000
LATER_CENSUS_S, LATER_CENSUS_AFTER_S = 0.6, 3.0
PAUSE_S = 0.05
# Fewer slots, in all, give no result.
MIN_SLOTS = 27
# A program with fewer units than this, in slots, or with fewer measured slots per run, is
# measured by whole runs.
MIN_RUN_SLOTS, MIN_MADE_SLOTS = 24, 8
# With fewer slots the stages can't begin: they would take this for the end.
MIN_KNOWN_SLOTS = 3
# The number of samples of a whole run, of several runs if necessary.
WHOLE_LOOKS, MAX_WHOLE_RUNS = 500, 5
# Units of work that are its beginning, in the first run and in later ones.
FIRST_UNITS, AGAIN_UNITS = 10, 5
# A warning is given if there was no unit of work for this time in s plus this many times
# what the first one took in an earlier run, or if the program had less than this share of
# the CPU time that it wanted.
DOUBT_S, LATE = 5.0, 3.0
DOUBTFUL_SHARE = 0.6
# A warning is given if no unit was seen for DOUBT_S and as long as this many units take,
# or no call of any function for DOUBT_S and this many slots. The third number is the time
# between two checks, in s.
LATE_UNITS, IDLE_SLOTS, WATCH_S = 30, 8, 1.0
# Or if all functions together take less of a unit's time, after this many samples.
IDLE_SHARE, MIN_LOOKS = 0.01, 300
# A metric is observed for this time, or for a part of the budget if it changes seldom.
LOOK_METRIC_S, LOOK_METRIC_PART = 1.0, 0.15
# If nothing was counted in a larger part of the slots of time, slots are made longer by
# this factor.
MAX_IDLE_PART, LENGTHENED = 0.1, 4
# Functions that were found are left out if there is time for less than this part of them.
FEWER = 0.75
# In a line that names functions.
MAX_NAMED = 3
# How long the duration of a unit of work is measured, and that of requests.
UNIT_LOOK_NS, UNIT_LOOK_LONG_NS = 300_000_000, 1_500_000_000
# The duration of one round of samples of a whole run.
LOOK_NS = 250_000_000
# The maximal number of slots times functions, so that an experiment of days fits in
# memory and in its file. Each new block joins all of them again.
MAX_CELLS = 6_000_000
# The same for requests: 80 MB.
MAX_REQUESTS = 4_000_000


class RankError(Exception):
    """Nothing can be measured; the message says why and what to do."""

    def __init__(self, text: str, status: int = 1, output: bytes = b"") -> None:
        """``output`` is what the program wrote, if it failed."""
        super().__init__(text)
        self.status = status
        self.output = output


class Stages(Protocol):
    """Decides on the next block (``slots/stages.py``, or a sweep)."""

    def next_block(self, record: Record) -> Block | None:
        """The next block; None: everything is decided."""
        ...


class Watcher(Protocol):
    """Receives the progress of the experiment."""

    def now(self, text: str) -> None:
        """The current activity."""
        ...

    def event(self, text: str) -> None:
        """An event for the user."""
        ...

    def known(self, record: Record, left_s: float) -> None:
        """The results so far."""
        ...


@dataclass
class Options:
    """How to measure.

    ``budget_s`` begins with the first unit of work, which is waited for at most as long.
    With ``keep_running`` the program is not terminated at the end.
    """

    budget_s: float = 60.0
    keep_running: bool = False


@dataclass
class _Seen:
    """What was seen of a run: units and calls so far, and when they last changed.

    ``due`` is when to look again; all in s of the monotonic clock.
    """

    due: float = 0.0
    units: int = -1
    unit_at: float = 0.0
    called: int = -1
    called_at: float = 0.0
    called_units: int = 0


@dataclass
class Experiment:
    """An experiment by slots. What is known is in ``record`` whatever happens.

    Args:
        stages: made when the candidates are known
        changed: called when the record has grown
        has_native: C functions are among the targets by the names that they give
        found: the targets were found, and not named
        order: the functions that were found, the best first; empty: they were named
        room: how many of them there is time for, by units of work a second
        without_python: they are those of a program that was seen without Python
        patience_s: how much longer than the budget the first unit of work is waited for
        to_first_s: the time from the start to the first unit, in an earlier run
    """

    runner: Runner
    targets: Sequence[Target]
    progress: Progress
    options: Options
    record: Record
    stages: Stages
    watcher: Watcher
    changed: Callable[[Record], None]
    interrupted: bool = False
    decided: bool = False
    too_short: bool = False
    failed: RankError | None = None
    runs: int = 0
    processes: int = 0
    lost: int = 0
    requests_lost: int = 0
    has_native: bool = False
    found: bool = False
    order: Sequence[str] = ()
    room: Callable[[float], int] = lambda _: 1 << 30
    without_python: bool = False
    patience_s: float = 0.0
    to_first_s: float = 0.0
    _asking: threading.Thread | None = None
    _lookout: Lookout | None = None
    _left_out: frozenset[str] | None = None
    _doubts: set[str] = field(default_factory=set)
    unit_ns: float = 0.0
    _slot_ns: int = 0
    _folded: int = 0
    _lost_before: int = 0
    _forgotten: int = 0
    _done: list[Run] = field(default_factory=list)
    _before: dict[str, int] = field(default_factory=dict)
    _samples: Samples = field(default_factory=Samples)
    _looks: dict[int, Looks] = field(default_factory=dict)
    _away: dict[int, dict[str, float]] = field(default_factory=dict)
    _is_at_work: bool = False
    _seen: _Seen = field(default_factory=_Seen)
    _ahead: tuple[Block | None, int] = (None, 0)
    _begin: float = 0.0
    _deadline: float = 0.0
    _last_census: float = 0.0

    def run(self) -> None:
        """Measure until everything is decided, the budget is used up, or Ctrl-C.

        Raises:
            RankError: nothing can be measured
            PythonStarted: the program is not without Python
            LaunchError, NativeError: from starting the program
        """
        self._begin = time.monotonic()
        self._deadline = self._begin + self.options.budget_s + self.patience_s
        try:
            while not self._is_over() and not self.failed and not self.too_short:
                self._one_run()
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self._take_over()
            self.record.end = {
                "interrupted": self.interrupted,
                "decided": self.decided,
                "runs": self.runs,
                "seconds": time.monotonic() - self._begin,
                "processes": self.processes,
                "lost": self.lost,
                "requests_lost": self.requests_lost,
            }
        if self.failed and not len(self.record.slots):
            raise self.failed

    def look_at_a_whole_run(self) -> None:
        """Sample one more run, undelayed, from start to end, to find where its time goes.

        A very short run is repeated.

        Raises:
            LaunchError, NativeError: from starting the program
        """
        seen, whole = Samples(), list[Looks]()
        while seen.ticks < WHOLE_LOOKS and len(whole) < MAX_WHOLE_RUNS:
            with Workload(
                self.runner, self.targets, Progress(), calls=self.has_native
            ) as program:
                while program.is_running():
                    self.watcher.now("looking at a whole run, nothing is delayed")
                    seen = added(seen, program.sample(LOOK_NS, lambda: None))
                looks = program.looks()
                self.interrupted = self.interrupted or program.wait().interrupted
                looks.mark((), program.pid, program.exited)
            whole.append(looks)
            if self.interrupted:
                break
        self.record.looks = looks_together(whole)
        self.record.self_times = self_times(seen)

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _is_over(self) -> bool:
        return self.decided or self.interrupted or self._left() <= 0

    def _one_run(self) -> None:
        self.runs += 1
        self._lost_before = 0
        with Workload(
            self.runner, self.targets, self.progress, calls=self.has_native
        ) as program:
            self._lookout = Lookout(program) if self.without_python else None
            try:
                self._look_at_jit()
                if self._settle(program):
                    self._is_at_work = True
                    self._measure(program)
                    self._take_over()
                    self._check_meter(program)
            finally:
                self._is_at_work = False
                self.processes = max(self.processes, program.processes)
                self.lost = max(self.lost, program.lost)
                if program.durations is not None:
                    self.requests_lost += program.durations.lost - self._lost_before
                if self._asking:
                    self._asking.join()
                    self._asking = None
            if program.is_running():
                if self.options.keep_running and not self.interrupted:
                    program.plan.renew(0)
                    if program.meter:
                        # A reading costs the server time.
                        program.meter.close()
                    self.watcher.now("all measured; the program goes on until it ends")
                    program.wait()
                return
            ended = program.wait()
            self.interrupted = self.interrupted or ended.interrupted
            if ended.status and not ended.interrupted:
                self.failed = RankError(
                    f"the program failed with status {ended.status} in run {self.runs}",
                    ended.status,
                    program.output(),
                )
            elif self.runner.attached_to and not self._is_over():
                self.failed = RankError(
                    f"{self.runner.text} has ended, or executed another program, before "
                    "all was measured"
                )
            elif not self._is_over():
                self.too_short = self._is_too_short(program.plan.units)
                if not self.too_short and len(self.record.slots) >= MIN_KNOWN_SLOTS:
                    # The next run may have ended before that is computed.
                    self._ahead = self._next_block(), len(self.record.functions)

    def _is_too_short(self, units: int) -> bool:
        """Whether a run that has ended by itself has too few slots.

        The first one passes while it is observed; the others continue its design.
        """
        made = [run.count() for run in self._done]
        # One short run among long ones is not a reason.
        if self._forgotten or sum(made) >= MIN_RUN_SLOTS * self.runs:
            return False
        if made[1:] and sum(made[1:]) < MIN_MADE_SLOTS * (self.runs - 1):
            return True
        return not self._done or units < MIN_RUN_SLOTS * max(self.record.slot_units, 1)

    # -------------------------------------------------------------- the beginning

    def _settle(self, program: Workload) -> bool:
        """Wait until the program works; False: it has ended, or time is up.

        Raises:
            RankError: time is up without any progress; it says what to do
        """
        is_open = self.progress.is_open
        first = 0.0
        while program.is_running() and self._left() > 0:
            if is_open:
                is_open = not self._choose_point(program)
            self._check_meter(program)
            self._check_python()
            program.look()
            units = program.plan.units
            if units and not first and self._is_at_its_work(program):
                first = time.monotonic()
            beginning = AGAIN_UNITS if self._done else FIRST_UNITS
            if first and (units > beginning or time.monotonic() > first + 1):
                if not self._done:
                    self._deadline = time.monotonic() + self.options.budget_s
                return True
            what = "waiting for the first units of work"
            if program.meter:
                what = program.meter.state
            self.watcher.now(f"{what} | {human(self._left() * 1e9)} left")
            patience_s = DOUBT_S + LATE * self.to_first_s
            late = time.monotonic() > self._begin + patience_s
            if late and not first and not self._done:
                self._doubt(
                    "unit",
                    program.meter.state
                    if program.meter
                    else f"no {self.progress.text or 'unit of work'} was seen so far "
                    "(--progress says what one is)",
                )
            # In a short run there is no time to wait.
            time.sleep(PAUSE_S / 5 if self._done else PAUSE_S)
        if self._left() <= 0 and not first and not self._done:
            raise RankError(self._why_no_progress(program))
        return False

    def _is_at_its_work(self, program: Workload) -> bool:
        """Whether enough of the functions are called that were found while it worked.

        Imports may also call what is counted as a unit. After some time, the answer is
        yes in any case.
        """
        if not self.found or self._done:
            return True
        called = sum(n > 0 for n in program.calls().values())
        patience_s = DOUBT_S + LATE * self.to_first_s
        return (
            2 * called >= len(self.targets) or time.monotonic() > self._begin + patience_s
        )

    def _choose_point(self, program: Workload) -> bool:
        points = {name: n for name, n in program.points().items() if n}
        if not points:
            return False
        name = "default" if "default" in points else max(points, key=lambda p: points[p])
        program.count(name)
        self.record.header["unit"] = f"progress point {name!r}"
        return True

    def _why_no_progress(self, program: Workload) -> str:
        seconds = self.options.budget_s
        if program.meter:
            return program.meter.why_nothing(time.monotonic() - self._begin)
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

    def _check_python(self) -> None:
        if self._lookout:
            self._lookout.check()

    @staticmethod
    def _check_meter(program: Workload) -> None:
        if program.meter and program.meter.refused:
            raise RankError(program.meter.refused)

    def _pace(self, program: Workload) -> Pace | None:
        """The observed pace of the metric; None: the program has ended, or time is up.

        Raises:
            RankError: the metric changes too seldom for the budget
        """
        meter = program.meter
        assert meter
        meter.begin_look()
        begin = time.monotonic()
        longest_s = max(LOOK_METRIC_PART * self.options.budget_s, LOOK_METRIC_S)
        while program.is_running() and self._left() > 0:
            self.watcher.now("looking at how often the metric is updated")
            time.sleep(PAUSE_S)
            self._check_meter(program)
            took, pace = time.monotonic() - begin, meter.pace()
            if pace and pace.changes >= CHANGES and took > LOOK_METRIC_S:
                return pace
            if took > longest_s:
                if pace:
                    return pace
                raise RankError(
                    meter.trouble
                    or f"{meter.series} counted less than twice in {took:.0f} s: give "
                    "the server work, more --budget, or a metric that is updated "
                    "more often"
                )
        return None

    def _slot_of_time(self, program: Workload, run: Run) -> float:
        """Choose the length of slots of time; returns the time of a unit.

        Raises:
            RankError: the metric changes too seldom for the budget
        """
        pace = self._pace(program)
        if not pace:
            return math.nan
        assert program.meter
        if not self._slot_ns:
            try:
                self._slot_ns = slot_of(pace, self.options.budget_s, program.meter.series)
            except MetricError as error:
                raise RankError(str(error)) from None
        run.slot_ns = self._slot_ns
        if program.meter.is_histogram and not program.meter.bounds:
            self._doubt(
                "not time",
                f"{program.meter.series} counts work alone, without a latency: the "
                "name of a histogram of times ends in _seconds, _ms or _us",
            )
        return pace.unit_ns

    def _watch_meter(self, program: Workload) -> None:
        """Report once if something is wrong with the metric."""
        meter = program.meter
        if meter and program.is_running():
            self._check_meter(program)
            if meter.trouble:
                self._doubt("metric", meter.trouble)

    def _unit_ns(self, program: Workload) -> float:
        """The time of a unit of work, from observation of the program."""
        begin, units = time.monotonic_ns(), program.plan.units
        # Requests arrive at random: few of them give no reliable rate.
        wanted_ns = UNIT_LOOK_NS if program.durations is None else UNIT_LOOK_LONG_NS
        while program.is_running() and self._left() > 0:
            time.sleep(PAUSE_S)
            took, done = time.monotonic_ns() - begin, program.plan.units - units
            if done and (took > wanted_ns or done > 1000):
                return took / done
        return math.nan

    # ----------------------------------------------------------------- measuring

    def _measure(self, program: Workload) -> None:
        before, began = program.calls(), time.monotonic()
        reported = program.plan.ranks()
        run = Run(program, self.runs)
        if program.durations is not None:
            # This is the first read: requests that were lost before it belong to no slot.
            run.poll()
            self._lost_before = program.durations.lost
        if program.meter:
            unit_ns = self._slot_of_time(program, run)
        else:
            unit_ns = self.unit_ns or self._unit_ns(program)
        if math.isnan(unit_ns):
            return
        self.unit_ns = unit_ns
        self._seen = _Seen()
        self._before = before
        unit_ns *= self._tell_ranks(program, run, reported)
        if not program.meter:
            self._doubt_units(unit_ns)
        self._done.append(run)
        self._rule_candidates(program, run)
        units = self.record.slot_units
        if self.runs == 1:
            units = max(1, math.ceil(self._least_slot_ns(run) / unit_ns))
            if run.slot_ns:
                units = max(1, round(max(run.slot_ns, SLOT_NS) / unit_ns))
        run.set_slot_units(units)
        if not self._first_census(program, run, units):
            return
        if self.runs == 1:
            self._say_uncalled(program)
        while not self._is_over() and program.is_running():
            # A short run has no time for more samples.
            last = max(self._last_census, began + LATER_CENSUS_AFTER_S)
            if last + LATER_CENSUS_EVERY * self.options.budget_s < time.monotonic():
                self._census(program, run, LATER_CENSUS_S, 8)
            if self.runs > 1:
                # A short run has no later opportunity to notice calls.
                self._rule_candidates(program, run)
            block = self._block_ahead() or self._next_block()
            if block is None:
                return
            self.record.blocks.append(block)
            run.make(block, len(self.record.blocks) - 1, self._ended(program))
            self._watch_meter(program)
            self._look_at_machine(program)

    def _least_slot_ns(self, run: Run) -> float:
        """The minimal length of a slot."""
        if run.program.durations is None:
            return SLOT_NS
        run.poll()
        took = np.concatenate([np.zeros(0), *(r["duration_ns"] for r in run.requests)])
        return requests.slot_ns(took, self.options.budget_s)

    def _next_block(self) -> Block | None:
        """The next block to be measured; None: everything is decided."""
        self._take_over()
        self._say_doubts()
        self.watcher.known(self.record, self._left())
        block = self.stages.next_block(self.record)
        self.decided = block is None
        return block

    def _block_ahead(self) -> Block | None:
        """The block computed between two runs, if it includes all functions."""
        (block, functions), self._ahead = self._ahead, (None, 0)
        return block if functions == len(self.record.functions) else None

    def _tell_ranks(
        self, program: Workload, run: Run, reported: Sequence[_core.Rank]
    ) -> int:
        """Count units by rank if there are several ranks; returns their number.

        Args:
            reported: the ranks a while ago
        """
        now = program.plan.ranks()
        at_work = cluster.advanced(reported, now)
        # A later run belongs to the same job, and the ranks have just been examined.
        run.by_rank = (
            self._done[0].by_rank if self._done else cluster.is_job(reported, now)
        )
        if program.durations is not None:
            # The workers of a server: requests are those of all of them together.
            run.by_rank = False
        if not run.by_rank:
            return 1
        # The kernel has one slot number, not one for each rank.
        calls = program.calls().items()
        works = [name for name, n in calls if n > self._before.get(name, 0)]
        kinds = set(map(program.is_native, works))
        if kinds == {True}:
            run.by_rank = False
            if self.runs == 1:
                self.watcher.event(
                    f"{cluster.told(cluster.who(at_work))}; native functions are delayed "
                    "in all of them at the same time, and their units counted together"
                )
            return 1
        if True in kinds:
            self.watcher.event(
                "native functions are left out, because they can't be measured for each "
                "rank; name no Python functions to have native ones delayed in all "
                "processes at the same time"
            )
        if self.runs == 1:
            text = cluster.told(cluster.who(at_work))
            self.watcher.event(f"{text}; each counts its own units")
        return len(at_work)

    def _ended(self, program: Workload) -> Callable[[], bool]:
        def ended() -> bool:
            self._watch(program)
            # Slots of time no longer end if the metric is given up.
            is_refused = bool(program.meter and program.meter.refused)
            return self._is_over() or is_refused or not program.is_running()

        return ended

    def _rule_candidates(self, program: Workload, run: Run) -> None:
        """Let the plan control functions that the work calls, not those called before."""
        calls = program.calls()
        if run.by_rank:
            calls = {n: c for n, c in calls.items() if not program.is_native(n)}
        names = sorted(n for n in calls if calls[n] > self._before.get(n, 0))
        early = sorted(set(calls) - set(names) - set(self.record.functions))
        self.record.header["called_before_only"] = early
        if not names and not self.record.functions:
            if not program.processes and not any(t.native for t in self.targets):
                raise RankError(why_nobody_reported(self.runner.command))
            why = self._why_uncalled(program, early)
            raise RankError(
                "none of the targets was called while the program worked"
                + (f" (called before: {', '.join(early[:3])})" if early else "")
                + "".join(f"\nspeed-bump: {line}" for line in missing.lines(why))
            )
        kept = [name for name in names if name not in self._without_time()]
        names = kept if kept or self.record.functions else names
        known = [name for name in names if name not in self.record.functions]
        self.record.functions = (*self.record.functions, *known)
        run.rule([name for name in self.record.functions if name in calls])

    def _without_time(self) -> frozenset[str]:
        """The functions found for which there is no time, because units of work take
        longer than they did during the search.
        """
        if self._left_out is not None:
            return self._left_out
        most = self.room(1e9 / self.unit_ns)
        left = self.order[most:] if most < FEWER * len(self.order) else ()
        self._left_out = frozenset(left)
        if left:
            shares = self.record.header["found"]["shares"]
            others = {name: shares.pop(name) for name in left}
            self.record.header["found"]["others"] |= others
            names = ", ".join(map(short, left[:MAX_NAMED]))
            self.watcher.event(
                f"a unit of work takes {human(self.unit_ns)} now: there is time for "
                f"{most} of the functions, and {len(left)} are left out ({names}"
                + (", ..." if len(left) > MAX_NAMED else "")
                + "): name them with -t, or give a longer --budget"
            )
        return self._left_out

    def _doubt(self, key: str, text: str) -> None:
        """Warn once about problems of the run, when they are seen."""
        if key not in self._doubts:
            self._doubts.add(key)
            self.watcher.event(f"warning: {text}")

    def _doubt_units(self, unit_ns: float) -> None:
        """Warn once if there is time for too few units of work for any answer."""
        fit, need = self.options.budget_s * 1e9 / unit_ns, 2 * MIN_SLOTS
        if fit < need:
            self._doubt(
                "few",
                f"a unit of work takes {human(unit_ns)}: {fit:.0f} of them fit into the "
                f"budget, and an answer needs about {need}: give --budget "
                f"{math.ceil(need * unit_ns / 1e9)}s or more, or name a shorter unit "
                "with --progress",
            )

    def doubt_share(self, share: float) -> None:
        """Warn once if the program gets too little of the CPU time that it needs."""
        if share < DOUBTFUL_SHARE:
            self._doubt(
                "share",
                f"the program has {share:.0%} of the CPU time that it wants: others use "
                "this machine, or it has more threads than there are CPUs; answers take "
                "longer",
            )

    def _watch(self, program: Workload) -> None:
        """Say once what speaks against the run, while a block is measured, too."""
        seen, now = self._seen, time.monotonic()
        if now < seen.due:
            return
        seen.due = now + WATCH_S
        self._check_python()
        self._look_at_machine(program)
        self.doubt_share(self.record.machine.share)
        units, calls = program.plan.units, program.calls()
        called = sum(calls.get(name, 0) for name in self.record.functions)
        if units != seen.units:
            seen.units, seen.unit_at = units, now
        if called != seen.called:
            seen.called, seen.called_at, seen.called_units = called, now, units
        unit_s = self.unit_ns / 1e9
        without_s, idle_s = now - seen.unit_at, now - seen.called_at
        if not program.meter and without_s > max(DOUBT_S, LATE_UNITS * unit_s):
            self._doubt(
                "stopped",
                f"no unit of work was seen in the last {without_s:.0f} s, and before "
                f"that one every {human(self.unit_ns)}",
            )
        idle = units - seen.called_units
        few = IDLE_SLOTS * self.record.slot_units
        if self.record.functions and idle_s > DOUBT_S and idle >= few:
            self._doubt(
                "idle",
                f"none of the functions was called in the last {idle:,} units of work: "
                "nothing is learnt of them meanwhile",
            )

    def _say_doubts(self) -> None:
        """New warnings about the run."""
        record = self.record
        self.doubt_share(record.machine.share)
        native = [name for name in record.functions if name.startswith("/")]
        # Where perf events are refused none is seen.
        if native and not any(name in record.self_times for name in native):
            return
        taken = sum(own.share for own in record.self_times.values())
        spent = account(record.looks, record.functions)
        if record.metered or taken >= IDLE_SHARE or not spent or spent.looks < MIN_LOOKS:
            return
        most = spent.rows[0]
        where = most.parts[0][0] if most.parts else ""
        self._doubt(
            "share of all",
            f"all of the functions together take {taken:.1%} of the time: "
            f"{most.share:.0%} of a unit is "
            + ("waiting: " if most.is_wait else "")
            + most.what
            + (f" ({where})" if where else ""),
        )

    def _why_uncalled(self, program: Workload, early: Sequence[str]) -> dict[str, str]:
        """For each named target that was not called, the likely reason."""
        called = {*self.record.functions, *early}
        silent = [
            t
            for t in self.targets
            if not any(
                missing.is_of(t, name) or program.is_of_native(t, name) for name in called
            )
        ]
        return missing.reasons(
            silent, self.runner.command, program.imported(), program.refused(), called
        )

    def _look_at_jit(self) -> None:
        if self.runs > 1:
            return
        if pids := self.runner.attached_to:
            found = map(jit.warning_of_process, pids)
            text = next(filter(None, found), "")
        else:
            text = jit.warning(self.runner.command)
        if text:
            self.record.header["jit"] = text
            self._doubt("jit", text)

    def _why_no_requests(
        self, program: Workload, found: Sequence[Histogram]
    ) -> list[str]:
        """For each name of ``--latency`` without a request so far, the likely reason."""
        silent = [one for one in found if not one.count]
        said = [missing.unended(one.name, "yet") for one in silent if one.begun]
        never = [one.name for one in silent if not one.begun]
        if not never:
            return said
        return said + missing.of_latencies(
            never,
            self.runner.command,
            program.imported(),
            program.marks_not_asked_for(),
            running=True,
        )

    def _say_uncalled(self, program: Workload) -> None:
        """Report targets that were not called, with the reason, while measuring."""
        durations = program.durations_so_far()

        def say() -> None:
            said = self._why_no_requests(program, durations)
            if not self.found:
                early = self.record.header["called_before_only"]
                found = self._why_uncalled(program, early)
                if found:
                    self.record.header["never_called"] = found
                said += missing.lines(found)
            for line in said:
                self.watcher.event(f"warning: {line}")

        if not self.found or durations:
            # Asking the program's interpreter takes a while.
            self._asking = threading.Thread(target=say, daemon=True)
            self._asking.start()

    def _first_census(self, program: Workload, run: Run, units: int) -> bool:
        """Observe calls and where time is spent; False: the program has ended."""
        seconds = CENSUS_PART * self.options.budget_s
        seconds = min(max(seconds, MIN_CENSUS_S), MAX_CENSUS_S, max(self._left(), 0.1))
        if self.runs > 1:
            # A short program is measured in the rest of each run; the samples are those
            # of the beginnings of several runs.
            missing_s = seconds - self._samples.clock_ns / 1e9
            seconds = min(max(missing_s, 0.0), AGAIN_CENSUS_S)
        self.watcher.now("counting calls and looking at the stacks, nothing is delayed")
        self._census(program, run, seconds, AGAIN_SLOTS if self.runs > 1 else 0)
        if self.runs == 1:
            # Read before slots have several units: later, the last unit of each slot
            # could always be that of one thread.
            self.record.side_by_side = run.side_by_side
        if self.runs == 1 and run.reporters > units:
            # Units that overlap must fall mostly in a slot and its successor.
            units = run.reporters
            run.set_slot_units(units)
            run.forget()
        if self.runs == 1 and run.slot_ns:
            units = self._lengthened(run, units)
        elif self.runs == 1 and not run.by_rank and program.durations is None:
            units = self._of_bursts(run, units)
        self.record.slot_units = units
        begin, first = time.monotonic(), run.count()
        ended = self._ended(program)

        def is_enough() -> bool:
            part = (time.monotonic() - begin) / self.options.budget_s
            seen = run.count() - first
            return (
                ended()
                or part > MAX_CENSUS_PART
                or (part > ENOUGH_PART and seen >= ENOUGH_SLOTS)
            )

        if self.runs == 1:
            slots = CENSUS_SLOTS if program.durations is None else CENSUS_LONG_SLOTS
            run.rest(0, slots, is_enough)
        return not ended()

    def _of_bursts(self, run: Run, units: int) -> int:
        """Make slots longer if units end in bursts; returns the units per slot."""
        run.poll()
        times = length.factor(run.slots(()), self._left() * 1e9)
        if times > 1:
            units *= times
            run.set_slot_units(units)
            run.forget()
        return units

    def _lengthened(self, run: Run, units: int) -> int:
        """Make slots of time longer if the metric counts nothing in many of them.

        Returns the units per slot.

        Raises:
            RankError: the budget is too short for that
        """
        run.poll()
        idle = run.idle_part
        if idle <= MAX_IDLE_PART:
            return units
        times = LENGTHENED
        meter = run.program.meter
        assert meter
        if times * run.slot_ns * MIN_SLOTS > self.options.budget_s * 1e9:
            raise RankError(
                f"{meter.series} counted nothing in {idle:.0%} of slots of "
                f"{human(run.slot_ns)}: give --budget "
                f"{math.ceil(2 * times * run.slot_ns * MIN_SLOTS / 1e9)}s or more, or a "
                "metric that is updated more often"
            )
        run.slot_ns = self._slot_ns = times * run.slot_ns
        self.watcher.event(
            f"{meter.series} counted nothing in {idle:.0%} of the slots: they are now of "
            f"{human(run.slot_ns)}"
        )
        run.set_slot_units(times * units)
        run.forget()
        return times * units

    def _census(self, program: Workload, run: Run, seconds: float, slots: int) -> None:
        def meanwhile() -> None:
            run.poll()

        if seconds:
            found = program.sample(int(seconds * 1e9), meanwhile)
            self._last_census = time.monotonic()
            self._samples = added(self._samples, found)
        run.rest(0, slots, self._ended(program))
        if seconds:
            self._take_looks(program, run)
        self._rule_candidates(program, run)
        self._look_at_machine(program)

    def _take_looks(self, program: Workload, run: Run) -> None:
        looks = program.looks()
        looks.mark(run.tids, program.pid)
        self._looks[self.runs] = looks
        self.record.looks = looks_together(self._looks.values())

    def _look_at_machine(self, program: Workload) -> None:
        machine = self.record.machine
        reading = program.machine.look(program.pids)
        machine.cpus = cpus()
        machine.steal = program.machine.steal()
        machine.given = reading.given
        total = reading.run_ns + reading.wait_ns
        if total:
            machine.share = reading.run_ns / total
            machine.threads = total / max(reading.clock_ns, 1)
            machine.crowd = reading.crowd

    def _look_at_delays(self) -> None:
        """The share of a CPU of each function's threads while they were delayed."""
        record = self.record
        if self._done and self._is_at_work:
            self._away[self.runs] = self._done[-1].away_ns()
        delivered = np.nansum(record.slots.delivered_ns, axis=0)
        for k, name in enumerate(record.functions):
            away = [ns[name] for ns in self._away.values() if name in ns]
            if away and delivered[k] > 0:
                record.shares[name] = float(delivered[k] / (delivered[k] + sum(away)))

    def _take_over(self) -> None:
        """Update the record."""
        record = self.record
        names = record.functions
        if self._done:
            kept = self._kept(len(names))
            self._done[-1].trim(kept)
            while sum(run.count() for run in self._done[1:]) >= kept:
                self._forgotten += self._done.pop(0).count()
        parts = [run.slots(names) for run in self._done]
        record.slots = together(parts, len(names))
        self._take_metered()
        self._fold_blocks()
        self._take_requests()
        record.ranks = cluster.appended(
            [run.ranks(names) for run in self._done], list(map(len, parts))
        )
        slots = record.slots
        undelayed = slots.good & (slots.mask == 0)
        if undelayed.any():
            record.unit_ns = float(
                slots.time_ns[undelayed].sum() / slots.units[undelayed].sum()
            )
        called = set(np.asarray(names)[(slots.calls > 0).any(axis=0)]) if names else set()
        record.idle = tuple(name for name in names if name not in called)
        tids = set().union(*(run.tids for run in self._done))
        record.header["sleeping"] = self._in_mode("sleep", "wait")
        record.self_times = self_times(self._samples, called, tids, self._in_mode("wait"))
        if record.ranks:
            for name, count in zip(names, record.ranks.callers(), strict=True):
                if name in record.self_times:
                    # Per rank, like the delays.
                    record.self_times[name] = record.self_times[name].over(count)
        self._look_at_delays()
        if self._samples.native and self._samples.native.refused:
            record.header["self_time_refused"] = self._samples.native.refused
        self.changed(record)

    def _in_mode(self, *modes: str) -> list[str]:
        """The functions that are delayed in one of these modes."""
        patterns = [target.pattern for target in self.targets if target.mode in modes]
        names = self.record.functions
        return [name for name in names if any(matches(p, name) for p in patterns)]

    def _take_metered(self) -> None:
        """The metric's values, and the length of slots of time."""
        found = [part for run in self._done if (part := run.metered())]
        if not found:
            return
        metered = self.record.metered = Metered.together(found)
        known = metered.uncertain_ns[np.isfinite(metered.uncertain_ns)]
        metric = self.progress.metric
        assert metric
        self.record.header["metric"] = {
            "url": metric.url,
            "name": metric.name,
            "labels": dict(metric.labels),
            "slot_ns": self._slot_ns,
            "uncertain_ns": float(np.median(known)) if len(known) else None,
            "histogram": bool(len(metered.bounds)),
        }

    def _take_requests(self) -> None:
        """The requests of the stored runs; the newest if there are very many."""
        if not (self.runner.latencies or self.runner.native_latencies):
            return
        left = MAX_REQUESTS
        said = self.record.header.setdefault(
            "requests_dropped", {"count": 0, "until_ns": 0}
        )
        for run in reversed(self._done):
            count, until_ns = run.trim_requests(left)
            said["count"] += count
            said["until_ns"] = max(said["until_ns"], until_ns)
            left -= sum(map(len, run.requests))
        parts = [part for run in self._done for part in run.requests]
        self.record.requests = np.concatenate([np.zeros(0, REQUEST), *parts])

    @staticmethod
    def _kept(functions: int) -> int:
        """The slots that are stored, the newest."""
        return max(MAX_CELLS // max(functions, 1), MIN_KEPT)

    def _fold_blocks(self) -> None:
        """Drop blocks whose slots are not stored any more."""
        record = self.record
        seen = record.slots.block[record.slots.block >= 0]
        if not len(seen):
            return
        for k in range(self._folded, int(seen.min())):
            block = record.blocks[k]
            record.blocks[k] = replace(
                block, masks=block.masks[:0].copy(), levels=block.levels[:0].copy()
            )
            self._folded = k + 1
