# SPDX-License-Identifier: MIT
"""The experiment on a program, by slots while it runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from speed_bump.config import Target
from speed_bump.experiment.errors import RankError
from speed_bump.experiment.program import jit
from speed_bump.experiment.program.late_python import Lookout
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner
from speed_bump.experiment.program.workload import Workload
from speed_bump.experiment.record import Block, Record
from speed_bump.experiment.slots.beginning import Beginning
from speed_bump.experiment.slots.budget import PAUSE_S, Budget
from speed_bump.experiment.slots.by_rank import count_by_rank
from speed_bump.experiment.slots.candidates import Candidates, Search
from speed_bump.experiment.slots.census import Census
from speed_bump.experiment.slots.doubts import Doubts, Vigil
from speed_bump.experiment.slots.ledger import Ledger
from speed_bump.experiment.slots.measure import Run
from speed_bump.experiment.slots.of_time import SlotsOfTime, check_meter
from speed_bump.experiment.watcher import Watcher

# A program with fewer units than this, in slots, or with fewer measured slots per run, is
# measured by whole runs.
MIN_RUN_SLOTS, MIN_MADE_SLOTS = 24, 8
# With fewer slots the stages can't begin: they would take this for the end.
MIN_KNOWN_SLOTS = 3
# How long the duration of a unit of work is measured, and that of requests.
UNIT_LOOK_NS, UNIT_LOOK_LONG_NS = 300_000_000, 1_500_000_000


class Stages(Protocol):
    """Decides on the next block (``stages.py``, or a sweep)."""

    def next_block(self, record: Record) -> Block | None:
        """The next block; None: everything is decided."""
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
class Experiment:
    """An experiment by slots. What is known is in ``record`` whatever happens.

    Args:
        stages: decides on the blocks
        changed: called when the record has grown
        search: how the targets and the unit were found; by default they were named
        doubts: what was doubted already; by default nothing
        unit_ns: how long a unit of work takes, since that is known
    """

    runner: Runner
    targets: Sequence[Target]
    progress: Progress
    options: Options
    record: Record
    stages: Stages
    watcher: Watcher
    changed: Callable[[Record], None]
    search: Search = field(default_factory=Search)
    doubts: Doubts | None = None
    # The result, beside the record.
    interrupted: bool = False
    decided: bool = False
    too_short: bool = False
    failed: RankError | None = None
    unit_ns: float = 0.0
    _runs: int = 0
    _processes: int = 0
    _lost: int = 0
    _requests_lost: int = 0
    _lost_before: int = 0
    _lookout: Lookout | None = None
    _ahead: tuple[Block | None, int] = (None, 0)

    def __post_init__(self) -> None:
        budget = Budget(self.options.budget_s)
        doubts = self.doubts or Doubts(self.watcher.event)
        self._budget, self._doubts = budget, doubts
        self._of_time = SlotsOfTime(budget, self.watcher, doubts)
        self._candidates = Candidates(
            self.targets, self.search, self.runner.command, self.record, self.watcher
        )
        self._ledger = Ledger(
            self.record,
            self._candidates,
            self.progress.metric,
            bool(self.runner.latencies or self.runner.native_latencies),
            self.changed,
        )

    def run(self) -> None:
        """Measure until everything is decided, the budget is used up, or Ctrl-C.

        Raises:
            RankError: nothing can be measured
            PythonStarted: the program is not without Python
            LaunchError, NativeError: from starting the program
        """
        self._budget.wait_for_work(self.search.patience_s)
        try:
            while not self._is_over() and not self.failed and not self.too_short:
                self._one_run()
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self._ledger.update()
            self.record.end = {
                "interrupted": self.interrupted,
                "decided": self.decided,
                "runs": self._runs,
                "seconds": self._budget.spent_s,
                "processes": self._processes,
                "lost": self._lost,
                "requests_lost": self._requests_lost,
            }
        if self.failed and not len(self.record.slots):
            raise self.failed

    def _is_over(self) -> bool:
        return self.decided or self.interrupted or self._budget.left_s <= 0

    # ------------------------------------------------------------------------- a run

    def _one_run(self) -> None:
        self._runs += 1
        self._lost_before = 0
        with Workload(
            self.runner, self.targets, self.progress, calls=self.search.has_native
        ) as program:
            self._lookout = Lookout(program) if self.search.without_python else None
            try:
                self._look_at_jit()
                if self._beginning(program).settle():
                    self._measure(program)
                    self._ledger.update()
                    check_meter(program)
            finally:
                self._ledger.leave()
                self._processes = max(self._processes, program.processes)
                self._lost = max(self._lost, program.lost)
                if program.durations is not None:
                    self._requests_lost += program.durations.lost - self._lost_before
                self._candidates.join()
            if program.is_running():
                self._leave(program)
            else:
                self._take_end(program)

    def _look_at_jit(self) -> None:
        if self._runs > 1:
            return
        if pids := self.runner.attached_to:
            found = map(jit.warning_of_process, pids)
            text = next(filter(None, found), "")
        else:
            text = jit.warning(self.runner.command)
        if text:
            self.record.header["jit"] = text
            self._doubts.say("jit", text)

    def _beginning(self, program: Workload) -> Beginning:
        def check() -> None:
            check_meter(program)
            self._check_python()

        return Beginning(
            program=program,
            progress=self.progress,
            candidates=self._candidates,
            budget=self._budget,
            watcher=self.watcher,
            doubts=self._doubts,
            check=check,
            is_first=not self._ledger.runs,
        )

    def _check_python(self) -> None:
        if self._lookout:
            self._lookout.check()

    def _leave(self, program: Workload) -> None:
        """All is measured: let the program go on, or have it terminated."""
        if not self.options.keep_running or self.interrupted:
            return
        program.plan.renew(0)
        if program.meter:
            # A reading costs the server time.
            program.meter.close()
        self.watcher.now("all measured; the program goes on until it ends")
        program.wait()

    def _take_end(self, program: Workload) -> None:
        """The program has ended by itself: it is run once more, or that is a failure."""
        ended = program.wait()
        self.interrupted = self.interrupted or ended.interrupted
        if ended.status and not ended.interrupted:
            self.failed = RankError(
                f"the program failed with status {ended.status} in run {self._runs}",
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
        made = [run.count() for run in self._ledger.runs]
        # One short run among long ones is not a reason.
        if self._ledger.forgotten or sum(made) >= MIN_RUN_SLOTS * self._runs:
            return False
        if made[1:] and sum(made[1:]) < MIN_MADE_SLOTS * (self._runs - 1):
            return True
        return not made or units < MIN_RUN_SLOTS * max(self.record.slot_units, 1)

    # --------------------------------------------------------------------- measuring

    def _measure(self, program: Workload) -> None:
        before, began = program.calls(), time.monotonic()
        reported = program.plan.ranks()
        run = Run(program, self._runs)
        if program.durations is not None:
            # This is the first read: requests that were lost before it belong to no slot.
            run.poll()
            self._lost_before = program.durations.lost
        if program.meter:
            unit_ns = self._of_time.choose(program, run)
        else:
            unit_ns = self.unit_ns or self._unit_ns(program)
        if math.isnan(unit_ns):
            return
        self.unit_ns = unit_ns
        self._candidates.begin(before, unit_ns)
        works = self._candidates.works(program.calls())
        first = self._ledger.runs[0] if self._ledger.runs else None
        unit_ns *= count_by_rank(run, reported, first, works, self.watcher)
        if not program.meter:
            self._doubts.about_units(unit_ns, self.options.budget_s)
        self._ledger.measure(run)
        self._candidates.rule(run)
        ended = self._ended(program)
        census = Census(
            run=run,
            unit_ns=unit_ns,
            began=began,
            budget=self._budget,
            watcher=self.watcher,
            ledger=self._ledger,
            candidates=self._candidates,
            of_time=self._of_time,
            ended=ended,
        )
        if not census.first():
            return
        if run.number == 1:
            self._candidates.say_uncalled(program)
        while not self._is_over() and program.is_running():
            census.again_if_due()
            if run.number > 1:
                # A short run has no later opportunity to notice calls.
                self._candidates.rule(run)
            block = self._block_ahead() or self._next_block()
            if block is None:
                return
            self.record.blocks.append(block)
            run.make(block, len(self.record.blocks) - 1, ended)
            self._of_time.watch(program)
            self._ledger.look_at_machine(program)

    def _unit_ns(self, program: Workload) -> float:
        """The time of a unit of work, from observation of the program."""
        begin, units = time.monotonic_ns(), program.plan.units
        # Requests arrive at random: few of them give no reliable rate.
        wanted_ns = UNIT_LOOK_NS if program.durations is None else UNIT_LOOK_LONG_NS
        while program.is_running() and self._budget.left_s > 0:
            time.sleep(PAUSE_S)
            took, done = time.monotonic_ns() - begin, program.plan.units - units
            if done and (took > wanted_ns or done > 1000):
                return took / done
        return math.nan

    def _ended(self, program: Workload) -> Callable[[], bool]:
        """Whether the run is over; meanwhile, what speaks against it is said."""
        vigil = Vigil(program, self.record, self._doubts, self.unit_ns)

        def ended() -> bool:
            if vigil.is_due():
                self._check_python()
                self._ledger.look_at_machine(program)
                self._doubts.about_share(self.record.machine.share)
                vigil.look()
            # Slots of time no longer end if the metric is given up.
            is_refused = bool(program.meter and program.meter.refused)
            return self._is_over() or is_refused or not program.is_running()

        return ended

    def _next_block(self) -> Block | None:
        """The next block to be measured; None: everything is decided."""
        self._ledger.update()
        self._doubts.about_share(self.record.machine.share)
        self._doubts.about_functions(self.record)
        self.watcher.known(self.record, self._budget.left_s)
        block = self.stages.next_block(self.record)
        self.decided = block is None
        return block

    def _block_ahead(self) -> Block | None:
        """The block computed between two runs, if it includes all functions."""
        (block, functions), self._ahead = self._ahead, (None, 0)
        return block if functions == len(self.record.functions) else None
