# SPDX-License-Identifier: MIT
"""Alternating undelayed and delayed runs, and the effect of each target."""

from __future__ import annotations

import glob
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from speed_bump import _core
from speed_bump.config import Target, parse_targets
from speed_bump.duration import human
from speed_bump.experiment.program.runner import Result, Runner, Slowed
from speed_bump.experiment.runs import design
from speed_bump.experiment.runs.design import BASELINE, Arm, Trial
from speed_bump.experiment.runs.estimate import Estimate, estimate
from speed_bump.experiment.show.table import Ticker
from speed_bump.experiment.symbols import short
from speed_bump.statistics import FunctionStatistics

# numpy is for commands that compute numbers, not for each run of a program.
if TYPE_CHECKING:
    from speed_bump.experiment.record import Record

# More functions than these would each have too few runs.
MAX_IN_RUNS = 16
MIN_BLOCKS = 2
# Functions that were found, and not named, are measured in at least this many blocks: as
# many of the best as there is time for, and at least this many.
USEFUL_BLOCKS, MIN_FOUND = 5, 2
# In a line that names functions.
MAX_NAMED = 3
# A thread that is awake for a smaller part of the time is no measure of a CPU's share.
MIN_AWAKE = 0.1
# From this part of the time on, the wait for a CPU is reported during the measurement.
DOUBTFUL_WAIT = 0.3


class FailedRun(Exception):
    """The program failed; ``result`` is that run, ``status`` the exit status."""

    def __init__(self, which: str, result: Result, how: str = "") -> None:
        """``which`` run it was, and how it failed if not by its status."""
        super().__init__(f"{which} {how or f'failed with status {result.status}'}")
        self.result = result
        self.status = result.status or 1


@dataclass
class Comparison:
    """An experiment by whole runs: its parameters, and its results so far.

    Args:
        command: the program
        blocks: in each of which every arm has one run
        seed: of the order of the runs
        arms: the targets, each with its delay; besides, there are undelayed runs
        uncalled: targets that the pilot run did not call
        unit: the progress point whose units times refer to; None: times are of a whole
            run
        before: of an experiment by slots for which the program was too short. Then
            functions are measured, not patterns, and the best if it found them
        until: no run begins after that, on time.monotonic()
    """

    command: Sequence[str]
    blocks: int
    seed: int
    arms: list[Arm] = field(default_factory=list)
    uncalled: list[Target] = field(default_factory=list)
    unit: str | None = None
    before: Record | None = None
    until: float | None = None
    trials: list[tuple[Trial, Result]] = field(default_factory=list)
    interrupted: bool = False
    pilot: Result | None = None
    _doubted: bool = field(default=False, init=False)

    def run(
        self,
        runner: Runner,
        targets: Sequence[Target],
        delay_ns: int | None,
        tick: Ticker,
    ) -> None:
        """Make the runs. Results so far are kept in this object whatever happens.

        Args:
            delay_ns: of targets without a delay; None: chosen for each from the pilot run

        Raises:
            FailedRun: the program ended with a status other than 0, or made no progress
                though it did in the pilot run
        """
        pilot = self._pilot(runner, targets, tick)
        if self.interrupted:
            return
        self.unit = _unit(pilot.progress)
        if self.before is not None:
            targets = self._choose(pilot, tick)
            if not targets:
                raise FailedRun("the pilot run", pilot, "called none of the targets")
        for target in targets:
            counted = pilot
            if _may_be_shadowed(target, pilot):
                counted = self._pilot_run(runner, [target], tick)
                if self.interrupted:
                    return
            calls = counted.calls(target)
            if not calls:
                self.uncalled.append(target)
                continue
            own = delay_ns if target.delay_ns is None else target.delay_ns
            if own is None:
                calls //= target.every or 1
                own = design.choose_delay(calls, pilot.wall_ns)
            self.arms.append(Arm(target, own))
        if self.arms:
            self._make_trials(runner, tick)

    def _choose(self, pilot: Result, tick: Ticker) -> list[Target]:
        """A target for each function that was called; of those that were found, as many
        as there is time for.

        Raises:
            FailedRun: there are too many for whole runs
        """
        called = [f for f in pilot.functions if f.calls]
        order = self.before.header.get("found", {}).get("shares") if self.before else ()
        if not order:
            return _targets_of(called, pilot)
        at = {name: k for k, name in enumerate(order)}
        called.sort(key=lambda f: at.get(f.name, len(at)))
        assert self.until is not None
        left_s, run_s = self.until - time.monotonic(), pilot.wall_ns / 1e9
        most = int(left_s / run_s / USEFUL_BLOCKS) - 1
        chosen = called[: min(max(most, MIN_FOUND), MAX_IN_RUNS)]
        others = [short(f.name) for f in called[len(chosen) :]]
        if others:
            tick.event(
                f"a run takes {human(pilot.wall_ns)}: whole runs are made of the "
                f"{len(chosen)} functions that take most time; {len(others)} more are "
                f"left out ({', '.join(others[:MAX_NAMED])}"
                + (", ..." if len(others) > MAX_NAMED else "")
                + "): name them with -t, give a longer --budget, or name a unit of work "
                "with --progress"
            )
        need_s = USEFUL_BLOCKS * (len(chosen) + 1) * run_s
        if chosen and need_s > 2 * left_s:
            tick.event(
                f"warning: for an answer of each, whole runs take about "
                f"{human(need_s * 1e9)}: give --budget, or name a unit of work with "
                "--progress"
            )
        return _targets_of(chosen, pilot)

    def _pilot(self, runner: Runner, targets: Sequence[Target], tick: Ticker) -> Result:
        """One run without delays, which warms caches and counts calls."""
        self.pilot = self._pilot_run(runner, targets, tick)
        return self.pilot

    def _pilot_run(
        self, runner: Runner, targets: Sequence[Target], tick: Ticker
    ) -> Result:
        tick.now("pilot run, no delays")
        result = runner.run([Slowed(target, 0, on=False) for target in targets])
        self.interrupted = result.interrupted
        if result.status and not result.interrupted:
            raise FailedRun("the pilot run, without delays,", result)
        return result

    def _make_trials(self, runner: Runner, tick: Ticker) -> None:
        block = 1
        for trial in design.plan(self.arms, self.blocks, self.seed):
            if trial.block != block:
                if self._is_over(trial):
                    self.blocks = block
                    return
                block = trial.block
                self._doubt(tick)
                tick.event(f"{block - 1} of {self.blocks} blocks: {self.so_far()}")
            tick.now(
                f"run {trial.number} of {trial.total}: {trial.arm.short} | "
                f"{self.so_far()}"
            )
            result = runner.run(self._slowed(trial.arm))
            self.interrupted = result.interrupted
            if result.interrupted:
                return
            which = (
                f"run {trial.number} of {trial.total} ({trial.arm.name}, "
                f"block {trial.block})"
            )
            if result.status:
                raise FailedRun(which, result)
            if self.unit and not result.progress.get(self.unit):
                how = f"made no progress ({self.unit}); the pilot run did"
                raise FailedRun(which, result, how)
            self.trials.append((trial, result))

    def _doubt(self, tick: Ticker) -> None:
        """Warn once when other programs use the machine."""
        if self.waited > DOUBTFUL_WAIT and not self._doubted:
            self._doubted = True
            tick.event(
                f"warning: the program waited {self.waited:.0%} of its time for a CPU so "
                "far: other programs use this machine, and answers take longer"
            )

    def _is_over(self, trial: Trial) -> bool:
        """Whether there is no time for one more block; two are made in any case."""
        if self.until is None or trial.block <= MIN_BLOCKS or self.pilot is None:
            return False
        block_s = (len(self.arms) + 1) * self.pilot.wall_ns / 1e9
        return time.monotonic() + block_s > self.until

    def _slowed(self, arm: Arm) -> list[Slowed]:
        return [
            Slowed(other.target, other.delay_ns, on=other is arm)
            for other in self.arms
            if other.target and (other is arm or other.target.native)
        ]

    def of(self, arm: Arm) -> Estimate:
        """The estimate of one arm so far."""
        bases = self.times(BASELINE)
        times = self.times(arm)
        delays = {
            trial.block: [
                delay_ns / self.units(result)
                for delay_ns in (
                    result.requested_ns(arm.target),
                    result.delivered_ns(arm.target),
                )
            ]
            for trial, result in self.trials
            if trial.arm == arm and arm.target
        }
        blocks = [block for block in times if block in bases]
        return estimate(
            [bases[b] for b in blocks],
            [times[b] for b in blocks],
            [delays[b][0] for b in blocks],
            [delays[b][1] for b in blocks],
            self.waited,
        )

    @property
    def waited(self) -> float:
        """The part of their time that all runs so far waited for a CPU."""
        wall = sum(result.wall_ns for _, result in self.trials)
        return sum(result.wait_ns for _, result in self.trials) / wall if wall else 0.0

    @property
    def share(self) -> float:
        """The share of a CPU that the first thread had when it wanted one.

        1 if it hardly wanted one: then it waits for others, whose share is not known.
        """
        wall = sum(result.wall_ns for _, result in self.trials)
        wait = sum(result.wait_ns for _, result in self.trials)
        awake = wall - sum(result.blocked_ns for _, result in self.trials)
        return 1 - wait / awake if awake > MIN_AWAKE * wall else 1.0

    def times(self, arm: Arm) -> dict[int, float]:
        """Time of each block's run of an arm, ns: of the run, or per unit of work.

        Without waits for a CPU, which are due to other programs and no effect of a delay.
        With a share of a CPU, a delay takes longer, and so also replaces more of the time
        that the thread sleeps: of that time, the share counts (fit/contention.py).
        """
        sleeps = 1 - self.share
        return {
            trial.block: (result.wall_ns - result.wait_ns - sleeps * result.blocked_ns)
            / self.units(result)
            for trial, result in self.trials
            if trial.arm == arm
        }

    def units(self, result: Result) -> int:
        """That a run did; 1 if times are of whole runs."""
        return result.progress[self.unit] if self.unit else 1

    def calls(self, arm: Arm) -> float:
        """Mean calls per run, or per unit of work."""
        counts = [
            result.calls(arm.target) / self.units(result)
            for trial, result in self.trials
            if trial.arm == arm and arm.target
        ]
        return sum(counts) / len(counts) if counts else 0.0

    @property
    def lost(self) -> int:
        """How many functions found no room to be counted, in the worst of the runs."""
        results = [result for _, result in self.trials]
        results += [self.pilot] if self.pilot else []
        return max((result.lost for result in results), default=0)

    def so_far(self) -> str:
        """The estimates so far, in a line."""
        parts = []
        for arm in self.arms:
            found = self.of(arm)
            if found.criticality is None:
                continue
            number = f"{found.criticality.value:.2f}" if found.supported else "?"
            parts.append(f"{arm.short} {number}")
        return "criticality " + ", ".join(parts) if parts else "nothing known yet"


def _targets_of(called: Sequence[FunctionStatistics], pilot: Result) -> list[Target]:
    """A target for each of these functions.

    Raises:
        FailedRun: there are too many for whole runs
    """
    if len(called) > MAX_IN_RUNS:
        raise FailedRun(
            "the pilot run",
            pilot,
            f"called {len(called)} functions, too many to be measured in whole runs: "
            f"name {MAX_IN_RUNS} at most, or measure a longer run of the program",
        )
    found = []
    for f in called:
        if f.target.startswith("native:"):
            found += parse_targets(f"native:{f.name}", "function")
            continue
        left, _, right = f.name.rpartition(":")
        found += parse_targets(f"{glob.escape(left)}:{glob.escape(right)}", "function")
    return found


def _may_be_shadowed(target: Target, pilot: Result) -> bool:
    """Whether ``pilot`` counted for another target what matches this one too.

    A call counts for the first target that matches. Only the name of a function is known
    here, not the file that the module side may match.
    """
    return not target.native and any(
        f.target != target.pattern
        and not f.target.startswith("native:")
        and _core.glob_match(target.right, f.name.rpartition(":")[2])
        for f in pilot.functions
    )


def _unit(progress: dict[str, int]) -> str | None:
    """The progress point to measure by: "default", else the one with most units."""
    counted = {name: n for name, n in progress.items() if n}
    if not counted or "default" in counted:
        return "default" if counted else None
    return max(sorted(counted), key=lambda name: counted[name])
