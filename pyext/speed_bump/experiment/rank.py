# SPDX-License-Identifier: MIT
"""The experiment on a program, by slots while it runs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from speed_bump import _core
from speed_bump.config import Target
from speed_bump.duration import human
from speed_bump.experiment import job_ranks as cluster
from speed_bump.experiment import missing
from speed_bump.experiment.account import Looks, account
from speed_bump.experiment.account import together as looks_together
from speed_bump.experiment.program import jit
from speed_bump.experiment.program.latency import Histogram
from speed_bump.experiment.program.machine import cpus
from speed_bump.experiment.program.meter import CHANGES, Pace, slot_of
from speed_bump.experiment.program.metric import MetricError
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner, why_nobody_reported
from speed_bump.experiment.program.workload import Samples, Workload
from speed_bump.experiment.record import REQUEST, Block, Metered, Record, SelfTime
from speed_bump.experiment.slots import requests
from speed_bump.experiment.slots.measure import Run, together

# A slot is not shorter: what ends it costs a microsecond, and is read from outside.
SLOT_NS = 2_000_000
CENSUS_PART = 0.06
MIN_CENSUS_S, MAX_CENSUS_S = 0.6, 4.0
# The same of each run after the first one.
AGAIN_CENSUS_S, AGAIN_SLOTS = 0.2, 4
# Slots of the first census, unless that takes this part of the budget.
CENSUS_SLOTS = 64
# The same of slots that outlast requests.
CENSUS_LONG_SLOTS = 16
MAX_CENSUS_PART = 0.25
LATER_CENSUS_EVERY = 0.2
MIN_KEPT = 2000
LATER_CENSUS_S, LATER_CENSUS_AFTER_S = 0.6, 3.0
PAUSE_S = 0.05
# Fewer slots, in all, tell nothing.
MIN_SLOTS = 27
# A program with fewer units than these, in slots, or of which fewer slots in a run are
# measured, when it is known, is measured by whole runs.
MIN_RUN_SLOTS, MIN_MADE_SLOTS = 24, 8
# Fewer slots are too few for stages to begin with: they take that for the end.
MIN_KNOWN_SLOTS = 3
# A whole run is looked at so often, in more runs than one if need be.
WHOLE_LOOKS, MAX_WHOLE_RUNS = 500, 5
# So many units of work are its beginning, the first time and then.
FIRST_UNITS, AGAIN_UNITS = 10, 5
# What is said when it is seen: no unit of work for so long, less of the CPUs than this.
DOUBT_S = 5.0
DOUBTFUL_SHARE = 0.6
# Nor any function called in so many slots, or less of a unit's time in all of them, where
# it was looked at so often.
IDLE_SLOTS, IDLE_SHARE, MIN_LOOKS = 64, 0.01, 300
# A metric is looked at for so long, or for a part of the budget where it seldom moves.
LOOK_METRIC_S, LOOK_METRIC_PART = 1.0, 0.15
# Slots of time in which nothing was counted, of all: with more of them slots are made so
# many times longer.
MAX_IDLE_PART, LENGTHENED = 0.1, 4
# How long is looked for how long a unit of work takes; the same of requests.
UNIT_LOOK_NS, UNIT_LOOK_LONG_NS = 300_000_000, 1_500_000_000
# How long a look at a part of a whole run is.
LOOK_NS = 250_000_000
# So that an experiment of days stays in memory, and its record in its file: slots times
# functions that are kept. Each new block puts all of them together anew.
MAX_CELLS = 6_000_000
# The same of requests: 80 MB.
MAX_REQUESTS = 4_000_000


class RankError(Exception):
    """Nothing can be measured; the message says why and what to do."""

    def __init__(self, text: str, status: int = 1, output: bytes = b"") -> None:
        """``output`` is what the program wrote, if it failed."""
        super().__init__(text)
        self.status = status
        self.output = output


class Stages(Protocol):
    """What decides on the next block (``slots/stages.py``, or a sweep)."""

    def next_block(self, record: Record) -> Block | None:
        """The next block; None: all is decided."""
        ...


class Watcher(Protocol):
    """Is told how far the experiment is."""

    def now(self, text: str) -> None:
        """What is going on."""
        ...

    def event(self, text: str) -> None:
        """What is worth a line."""
        ...

    def known(self, record: Record, left_s: float) -> None:
        """What is known so far."""
        ...


@dataclass
class Options:
    """How to measure.

    ``budget_s`` is from the first unit of work on; for that is waited as long at most.
    ``keep_running`` does not end the program when all is measured.
    """

    budget_s: float = 60.0
    keep_running: bool = False


@dataclass
class Experiment:
    """An experiment by slots. What is known is in ``record`` whatever happens.

    Args:
        stages: made when the candidates are known
        changed: called when the record has grown
        has_native: C functions are among the targets by the names that they give
        found: the targets were found, and not named
        patience_s: the first unit of work is waited for so much longer than the budget
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
    patience_s: float = 0.0
    _asking: threading.Thread | None = None
    _doubts: set[str] = field(default_factory=set)
    unit_ns: float = 0.0
    _slot_ns: int = 0
    _folded: int = 0
    _forgotten: int = 0
    _done: list[Run] = field(default_factory=list)
    _before: dict[str, int] = field(default_factory=dict)
    _samples: Samples = field(default_factory=Samples)
    _looks: dict[int, Looks] = field(default_factory=dict)
    _away: dict[int, dict[str, float]] = field(default_factory=dict)
    _is_at_work: bool = False
    _ahead: tuple[Block | None, int] = (None, 0)
    _begin: float = 0.0
    _deadline: float = 0.0
    _last_census: float = 0.0

    def run(self) -> None:
        """Measure until all is decided, the budget is used up, or Ctrl-C.

        Raises:
            RankError: nothing can be measured
            LaunchError, NativeError: of starting the program
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
        """One more run, undelayed, from its start to its end: where its time goes.

        A run that is over at once is looked at more than once.

        Raises:
            LaunchError, NativeError: of starting the program
        """
        seen, whole = Samples(), list[Looks]()
        while seen.ticks < WHOLE_LOOKS and len(whole) < MAX_WHOLE_RUNS:
            with Workload(
                self.runner, self.targets, Progress(), calls=self.has_native
            ) as program:
                while program.is_running():
                    self.watcher.now("looking at a whole run, nothing is delayed")
                    seen = _added(seen, program.sample(LOOK_NS, lambda: None))
                looks = program.looks()
                self.interrupted = self.interrupted or program.wait().interrupted
                looks.mark((), program.pid)
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
        with Workload(
            self.runner, self.targets, self.progress, calls=self.has_native
        ) as program:
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
                    self.requests_lost += program.durations.lost
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
                    # The next run may be over before that is thought out.
                    self._ahead = self._next_block(), len(self.record.functions)

    def _is_too_short(self, units: int) -> bool:
        """Whether a run that has ended by itself has too few slots to be worth them.

        The first one goes by while it is looked at; the others carry on its design.
        """
        made = [run.count() for run in self._done]
        # One run that ends early, among long ones, is no reason.
        if self._forgotten or sum(made) >= MIN_RUN_SLOTS * self.runs:
            return False
        if made[1:] and sum(made[1:]) < MIN_MADE_SLOTS * (self.runs - 1):
            return True
        return not self._done or units < MIN_RUN_SLOTS * max(self.record.slot_units, 1)

    # -------------------------------------------------------------- the beginning

    def _settle(self, program: Workload) -> bool:
        """Wait for the program to be at work; False: it ended before, or time is up.

        Raises:
            RankError: time is up and no progress was seen; it says what to do
        """
        is_open = self.progress.is_open
        first = 0.0
        while program.is_running() and self._left() > 0:
            if is_open:
                is_open = not self._choose_point(program)
            self._check_meter(program)
            program.look()
            units = program.plan.units
            if units and not first:
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
            patience_s = DOUBT_S + self.patience_s
            late = time.monotonic() > self._begin + patience_s
            if late and not first and not self._done:
                self._doubt(
                    "unit",
                    program.meter.state
                    if program.meter
                    else f"no {self.progress.text or 'unit of work'} was seen so far "
                    "(--progress says what one is)",
                )
            # A run that is short is not waited away.
            time.sleep(PAUSE_S / 5 if self._done else PAUSE_S)
        if self._left() <= 0 and not first and not self._done:
            raise RankError(self._why_no_progress(program))
        return False

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

    @staticmethod
    def _check_meter(program: Workload) -> None:
        if program.meter and program.meter.refused:
            raise RankError(program.meter.refused)

    def _pace(self, program: Workload) -> Pace | None:
        """How the metric moves, from a look at it; None: the program or the time is over.

        Raises:
            RankError: it moves too seldom for the budget
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
        """Decide how long slots are, where the tool ends them; the time of a unit.

        Raises:
            RankError: the metric moves too seldom for the budget
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
        """Say once what is wrong with the metric while it is read."""
        meter = program.meter
        if meter and program.is_running():
            self._check_meter(program)
            if meter.trouble:
                self._doubt("metric", meter.trouble)

    def _unit_ns(self, program: Workload) -> float:
        """The time of a unit of work, from a look at what the program does."""
        begin, units = time.monotonic_ns(), program.plan.units
        # Requests come by chance: few of them say little of how often.
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
        if program.meter:
            unit_ns = self._slot_of_time(program, run)
        else:
            unit_ns = self.unit_ns or self._unit_ns(program)
        if math.isnan(unit_ns):
            return
        self.unit_ns = unit_ns
        unit_ns *= self._tell_ranks(program, run, reported)
        self._before = before
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
            # A run that is short has no time for more looks.
            last = max(self._last_census, began + LATER_CENSUS_AFTER_S)
            if last + LATER_CENSUS_EVERY * self.options.budget_s < time.monotonic():
                self._census(program, run, LATER_CENSUS_S, 8)
            if self.runs > 1:
                # Of a short run there is no later look at what is called.
                self._rule_candidates(program, run)
            block = self._block_ahead() or self._next_block()
            if block is None:
                return
            self.record.blocks.append(block)
            run.make(block, len(self.record.blocks) - 1, self._ended(program))
            self._watch_meter(program)
            self._look_at_machine(program)

    def _least_slot_ns(self, run: Run) -> float:
        """How long a slot is at least."""
        if run.program.durations is None:
            return SLOT_NS
        run.poll()
        took = np.concatenate([np.zeros(0), *(r["duration_ns"] for r in run.requests)])
        return requests.slot_ns(took, self.options.budget_s)

    def _next_block(self) -> Block | None:
        """What is to be measured next; None: all is decided."""
        self._take_over()
        self._say_doubts()
        self.watcher.known(self.record, self._left())
        block = self.stages.next_block(self.record)
        self.decided = block is None
        return block

    def _block_ahead(self) -> Block | None:
        """What was thought out between two runs, if it is of all the functions."""
        (block, functions), self._ahead = self._ahead, (None, 0)
        return block if functions == len(self.record.functions) else None

    def _tell_ranks(
        self, program: Workload, run: Run, reported: Sequence[_core.Rank]
    ) -> int:
        """Have units counted by rank where there are several; how many there are.

        Args:
            reported: the ranks as they were a while ago
        """
        now = program.plan.ranks()
        at_work = cluster.advanced(reported, now)
        # A later run is of the same job, and the ranks were looked at just now.
        run.by_rank = (
            self._done[0].by_rank if self._done else cluster.is_job(reported, now)
        )
        if program.durations is not None:
            # Workers of a server: requests are of all of them together.
            run.by_rank = False
        if not run.by_rank:
            return 1
        if any(map(program.is_native, program.calls())):
            # The kernel knows one number of a slot, not one for each rank.
            self.watcher.event(
                "native functions are left out: they can't be measured by rank yet"
            )
        if self.runs == 1:
            text = cluster.told(cluster.who(at_work))
            self.watcher.event(f"{text}; each counts its own units")
        return len(at_work)

    def _ended(self, program: Workload) -> Callable[[], bool]:
        def ended() -> bool:
            # Slots of time end no more where the metric is given up.
            is_refused = bool(program.meter and program.meter.refused)
            return self._is_over() or is_refused or not program.is_running()

        return ended

    def _rule_candidates(self, program: Workload, run: Run) -> None:
        """Rule what the work calls; what was called before it alone is not asked."""
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
        known = [name for name in names if name not in self.record.functions]
        self.record.functions = (*self.record.functions, *known)
        run.rule([name for name in self.record.functions if name in calls])

    def _doubt(self, key: str, text: str) -> None:
        """Say once what speaks against the run, when it is seen."""
        if key not in self._doubts:
            self._doubts.add(key)
            self.watcher.event(f"warning: {text}")

    def doubt_share(self, share: float) -> None:
        """Say once if the program has too little of the CPU time that it wants."""
        if share < DOUBTFUL_SHARE:
            self._doubt(
                "share",
                f"the program has {share:.0%} of the CPU time that it wants: others use "
                "this machine, or it has more threads than there are CPUs; answers take "
                "longer",
            )

    def _say_doubts(self) -> None:
        """What speaks against the run by now; each is said once."""
        record = self.record
        self.doubt_share(record.machine.share)
        lately = record.slots.calls[record.slots.good][-IDLE_SLOTS:]
        if len(lately) == IDLE_SLOTS and record.functions and not lately.any():
            units = IDLE_SLOTS * record.slot_units
            self._doubt(
                "idle",
                f"none of the functions was called in the last {units:,} units of work: "
                "nothing is learnt of them meanwhile",
            )
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
        """Of each target that was named and not called the likely reason."""
        called = {*self.record.functions, *early}
        silent = [
            t
            for t in self.targets
            if not any(missing.is_of(t, name) for name in called)
            and not ("/" in t.left and called)
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
        """Of each name of ``--latency`` without a request so far the likely reason."""
        silent = [one for one in found if not one.count]
        said = [
            f"{one.name}: what began has not ended yet" for one in silent if one.begun
        ]
        never = [one.name for one in silent if not one.begun]
        if not never:
            return said
        return said + missing.of_latencies(
            never,
            self.runner.command,
            program.imported(),
            program.marks_not_asked_for(),
        )

    def _say_uncalled(self, program: Workload) -> None:
        """Say which targets were not called, and why, while it is measured."""
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
            # To ask the program's interpreter takes a while.
            self._asking = threading.Thread(target=say, daemon=True)
            self._asking.start()

    def _first_census(self, program: Workload, run: Run, units: int) -> bool:
        """See what is called how often and where time is spent; False: the end."""
        seconds = CENSUS_PART * self.options.budget_s
        seconds = min(max(seconds, MIN_CENSUS_S), MAX_CENSUS_S, max(self._left(), 0.1))
        if self.runs > 1:
            # A short program is measured in what a run has left: the look is made up of
            # those at the beginnings of several.
            missing_s = seconds - self._samples.clock_ns / 1e9
            seconds = min(max(missing_s, 0.0), AGAIN_CENSUS_S)
        self.watcher.now("counting calls and looking at the stacks, nothing is delayed")
        self._census(program, run, seconds, AGAIN_SLOTS if self.runs > 1 else 0)
        if self.runs == 1 and run.reporters > units:
            # Units that overlap must fall mostly in a slot and its successor.
            units = run.reporters
            run.set_slot_units(units)
            run.forget()
        if self.runs == 1 and run.slot_ns:
            units = self._lengthened(run, units)
        self.record.slot_units = units
        until = time.monotonic() + MAX_CENSUS_PART * self.options.budget_s
        ended = self._ended(program)
        if self.runs == 1:
            slots = CENSUS_SLOTS if program.durations is None else CENSUS_LONG_SLOTS
            run.rest(0, slots, lambda: ended() or time.monotonic() > until)
        return not ended()

    def _lengthened(self, run: Run, units: int) -> int:
        """Make slots of time longer where the metric counts nothing in many; the units.

        Raises:
            RankError: the budget has no room for that
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
            self._samples = _added(self._samples, found)
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
        total = reading.run_ns + reading.wait_ns
        if total:
            machine.share = reading.run_ns / total
            machine.threads = total / max((time.monotonic() - self._begin) * 1e9, 1)

    def _look_at_delays(self) -> None:
        """How much of a CPU the threads of each function had while they were delayed."""
        record = self.record
        if self._done and self._is_at_work:
            self._away[self.runs] = self._done[-1].away_ns()
        delivered = np.nansum(record.slots.delivered_ns, axis=0)
        for k, name in enumerate(record.functions):
            away = [ns[name] for ns in self._away.values() if name in ns]
            if away and delivered[k] > 0:
                record.shares[name] = float(delivered[k] / (delivered[k] + sum(away)))

    def _take_over(self) -> None:
        """Bring the record up to date with what was read."""
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
        record.self_times = self_times(self._samples)
        if record.ranks:
            for name, count in zip(names, record.ranks.callers(), strict=True):
                if name in record.self_times:
                    # Of a rank, as the delays are.
                    record.self_times[name].share /= max(int(count), 1)
        self._look_at_delays()
        if self._samples.native and self._samples.native.refused:
            record.header["self_time_refused"] = self._samples.native.refused
        self.changed(record)

    def _take_metered(self) -> None:
        """What the metric said, and what slots of time are."""
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
        """Those of the runs that are kept, the newest if they are very many."""
        if not self.runner.latencies:
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
        """Slots that are kept, the newest."""
        return max(MAX_CELLS // max(functions, 1), MIN_KEPT)

    def _fold_blocks(self) -> None:
        """Forget what was drawn for slots that are forgotten."""
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


def _added(a: Samples, b: Samples) -> Samples:
    """What two looks found together."""
    python = dict(a.python)
    for name, n in b.python.items():
        python[name] = python.get(name, 0) + n
    native = b.native or a.native
    if a.native and b.native:
        native = a.native.added(b.native)
    return Samples(
        a.clock_ns + b.clock_ns, a.ticks + b.ticks, python, native, a.seen or b.seen
    )


def self_times(samples: Samples) -> dict[str, SelfTime]:
    """Of each function that was looked for, how long threads were in it."""
    found: dict[str, SelfTime] = {}
    if samples.seen and samples.ticks:
        for name, n in samples.python.items():
            found[name] = SelfTime(n / samples.ticks, samples.ticks)
    native = samples.native
    if native and native.clock_ns:
        for name, ns in native.self_ns.items():
            found[name] = SelfTime(ns / native.clock_ns, native.looks.get(name, 0))
    return found
