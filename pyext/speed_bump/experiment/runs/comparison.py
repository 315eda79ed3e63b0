# SPDX-License-Identifier: MIT
"""Alternating undelayed and delayed runs, and the effect of each target."""

from __future__ import annotations

import glob
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from speed_bump import _core
from speed_bump.config import Target, parse_targets
from speed_bump.duration import human
from speed_bump.experiment.account import Looks
from speed_bump.experiment.program.runner import Result, Runner, Slowed
from speed_bump.experiment.runs import design
from speed_bump.experiment.runs.design import BASELINE, Arm, Trial
from speed_bump.experiment.runs.estimate import Estimate, estimate
from speed_bump.experiment.show import table as report
from speed_bump.experiment.show.encode import interval_json
from speed_bump.experiment.show.table import LEFT, RIGHT, Ticker
from speed_bump.experiment.symbols import short
from speed_bump.statistics import FunctionStatistics

# numpy is for commands that compute numbers, not for each run of a program.
if TYPE_CHECKING:
    from speed_bump.experiment.fit.verdict import Finding, Verdict
    from speed_bump.experiment.record import Record, SelfTime

# From the header of the experiment by slots, if there was one, for reports.
# Of the JSON.
FORMAT = 3
FOUND_BEFORE = ("found", "jit", "native_refused")
# More functions than these would each have too few runs.
MAX_IN_RUNS = 16
MIN_BLOCKS = 2
# Functions that were found, and not named, are measured in at least this many blocks: as
# many of the best as there is time for, and at least this many.
USEFUL_BLOCKS, MIN_FOUND = 5, 2
# In a line that names functions.
MAX_NAMED = 3
# A wider half interval of a change, in parts of the time, says nothing.
MAX_CHANGE = 0.5
# A thread that is awake for a smaller part of the time is no measure of a CPU's share.
MIN_AWAKE = 0.1
# From this part of the time on, the wait for a CPU is reported.
WAIT_TOLD = 0.02
# From this part on, it is reported during the measurement, too.
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
    """An experiment: its parameters, and its results so far.

    ``uncalled`` are targets that the pilot run did not call. ``unit`` is the progress
    point whose units times refer to; None: times are of a whole run.
    """

    command: Sequence[str]
    blocks: int
    seed: int
    arms: list[Arm] = field(default_factory=list)
    uncalled: list[Target] = field(default_factory=list)
    unit: str | None = None
    trials: list[tuple[Trial, Result]] = field(default_factory=list)
    interrupted: bool = False
    pilot: Result | None = None
    # For functions rather than patterns: no run begins after that.
    each: bool = False
    until: float | None = None
    doubted: bool = False
    # The functions that were found, the best first; empty: they were named.
    order: Sequence[str] = ()
    # Samples of a whole run without delays, if there was one.
    looks: Looks | None = None
    self_times: dict[str, SelfTime] = field(default_factory=dict)
    # Findings of an experiment by slots for which the program was too short.
    header: dict[str, Any] = field(default_factory=dict)

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
        if self.each:
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
        if not self.order:
            return _targets_of(called, pilot)
        at = {name: k for k, name in enumerate(self.order)}
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
        if self.waited > DOUBTFUL_WAIT and not self.doubted:
            self.doubted = True
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
        bases = self._times(BASELINE)
        times = self._times(arm)
        delays = {
            trial.block: [
                delay_ns / self._units(result)
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

    def _times(self, arm: Arm) -> dict[int, float]:
        """Time of each block's run of an arm, ns: of the run, or per unit of work.

        Without waits for a CPU, which are due to other programs and no effect of a delay.
        With a share of a CPU, a delay takes longer, and so also replaces more of the time
        that the thread sleeps: of that time, the share counts (fit/contention.py).
        """
        sleeps = 1 - self.share
        return {
            trial.block: (result.wall_ns - result.wait_ns - sleeps * result.blocked_ns)
            / self._units(result)
            for trial, result in self.trials
            if trial.arm == arm
        }

    def _units(self, result: Result) -> int:
        return result.progress[self.unit] if self.unit else 1

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

    # ------------------------------------------------------------------ results

    def text(self) -> str:
        heads = [
            ("target", LEFT),
            ("delay", RIGHT),
            ("calls", RIGHT),
            ("delivered", RIGHT),
            ("time change [95%]", RIGHT),
            ("criticality [95%]", RIGHT),
            ("verdict", LEFT),
        ]
        rows = [self._row(arm) for arm in self.arms]
        rows += [
            [t.pattern, "-", "0", "-", "-", "-", "never called"] for t in self.uncalled
        ]
        lines = [self._summary(), "", report.table(heads, rows)]
        if self.lost:
            lines += ["", report.lost_text(self.lost)]
        if self.looks:
            from speed_bump.experiment.show import text

            record, found, width = self.record(), self.verdict(), text.columns()
            lines += text.account_lines(record, found, width)
            lines += text.last_lines(record, found, width)
        return "\n".join(lines)

    @property
    def lost(self) -> int:
        """How many functions found no room to be counted, in the worst of the runs."""
        results = [result for _, result in self.trials]
        results += [self.pilot] if self.pilot else []
        return max((result.lost for result in results), default=0)

    def _row(self, arm: Arm) -> list[str]:
        found = self.of(arm)
        known = found.pairs > 0
        shown = found.criticality if found.supported else None
        change = found.change_ns
        says = change is not None and change.half < MAX_CHANGE * found.base_ns
        return [
            arm.short,
            human(arm.delay_ns),
            f"{self._calls(arm):,.0f}" if known else "-",
            human(found.delivered_ns) if known else "-",
            report.percent(change, found.base_ns) if change and says else "-",
            report.plain(shown) if shown else "-",
            found.said,
        ]

    def _calls(self, arm: Arm) -> float:
        """Mean calls per run, or per unit of work."""
        counts = [
            result.calls(arm.target) / self._units(result)
            for trial, result in self.trials
            if trial.arm == arm and arm.target
        ]
        return sum(counts) / len(counts) if counts else 0.0

    def _summary(self) -> str:
        times = list(self._times(BASELINE).values())
        base = human(sum(times) / len(times)) if times else "not known"
        what = f"for a unit of {self.unit}" if self.unit else "a run"
        stopped = ", stopped before the end" if self.interrupted else ""
        return (
            f"{len(self.trials)} runs in {self.blocks} blocks{stopped}, "
            f"seed {self.seed}; undelayed {base} {what}"
            + (
                f", of which {self.waited:.0%} is left out: it waited for a CPU"
                if self.waited > WAIT_TOLD
                else ""
            )
        )

    def json(self) -> dict[str, Any]:
        """The same numbers as JSON. Times are ns, per run or per unit."""
        from speed_bump.experiment.show.text import as_json, finding_json

        record, found = self.record(), self.verdict()
        return {
            **as_json(record, found),
            "findings": [
                finding_json(self.finding(arm), self._calls(arm)) for arm in self.arms
            ],
            "format": FORMAT,
            "blocks": self.blocks,
            "unit": self.unit,
            "targets": [self._json_of(arm) for arm in self.arms],
            "functions_lost": self.lost,
            "never_called": {target.pattern: None for target in self.uncalled},
            "trials": [_json_trial(trial, result) for trial, result in self.trials],
        }

    def finding(self, arm: Arm) -> Finding:
        """The numbers of an experiment by slots, as far as whole runs give them."""
        from speed_bump.experiment.fit.finding import Finding, self_and_headroom

        found = self.of(arm)
        shown = found.criticality if found.supported else None
        share, headroom = self_and_headroom(
            self.self_times, arm.name.removeprefix("native:"), shown
        )
        return Finding(
            name=arm.name,
            verdict=found.verdict,
            criticality=shown,
            headroom=headroom,
            share=share,
            shape="",
            slack_ns=None,
            dose=found.delivered_ns / found.base_ns if found.base_ns else 0.0,
            delayed=found.pairs,
            p=1.0,
            false_discovery=1.0,
            reason=found.reason,
            help=found.help,
            notes=(f"by {found.pairs} pairs of whole runs",),
        )

    def verdict(self) -> Verdict:
        """The warning of an experiment by slots."""
        from speed_bump.experiment.fit.verdict import Verdict

        times = list(self._times(BASELINE).values())
        found = Verdict([self.finding(arm) for arm in self.arms])
        found.slot_ns = sum(times) / len(times) if times else 0.0
        if self.header.get("jit"):
            found.warnings.append(self.header["jit"])
        if self.waited > WAIT_TOLD:
            found.warnings.append(
                f"the program waited {self.waited:.0%} of its time for a CPU; that is "
                "left out"
            )
        if self.lost:
            found.warnings.append(report.lost_text(self.lost))
        return found

    def record(self) -> Record:
        """The fields that an experiment by slots has besides its slots."""
        from speed_bump.experiment.program.environment import environment
        from speed_bump.experiment.record import Record
        from speed_bump.experiment.slots.measure import empty

        results = [result for _, result in self.trials]
        record = Record(
            {
                "command": list(self.command),
                "environment": environment(),
                "seed": self.seed,
                "unit": self.unit or "a run",
                "whole_runs": True,
                **{key: self.header[key] for key in FOUND_BEFORE if key in self.header},
            },
            tuple(arm.name for arm in self.arms),
            empty(len(self.arms)),
            unit_ns=self.verdict().slot_ns,
            idle=tuple(target.pattern for target in self.uncalled),
            looks=self.looks,
            self_times=self.self_times,
        )
        record.end = {
            "interrupted": self.interrupted,
            "runs": len(results),
            "seconds": sum(result.wall_ns for result in results) / 1e9,
        }
        return record

    def _json_of(self, arm: Arm) -> dict[str, Any]:
        found = self.of(arm)
        return {
            "target": arm.name,
            "delay_ns": arm.delay_ns,
            "pairs": found.pairs,
            "calls_per_unit": self._calls(arm),
            "requested_per_unit_ns": found.requested_ns,
            "delivered_per_unit_ns": found.delivered_ns,
            "change_ns": interval_json(found.change_ns),
            "criticality": interval_json(found.criticality) if found.supported else None,
            "verdict": found.verdict,
            "reason": found.reason,
            "help": found.help,
        }


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


def _json_trial(trial: Trial, result: Result) -> dict[str, Any]:
    target = trial.arm.target
    return {
        "block": trial.block,
        "target": target and trial.arm.name,
        "wall_ns": result.wall_ns,
        "wait_ns": result.wait_ns,
        "calls": result.calls(target) if target else 0,
        "requested_ns": result.requested_ns(target) if target else 0,
        "delivered_ns": result.delivered_ns(target) if target else 0,
        "progress": result.progress,
    }
