# SPDX-License-Identifier: MIT
"""What whole runs have shown: as text, as JSON, and in the terms of slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from speed_bump.duration import human
from speed_bump.experiment.program.runner import Result
from speed_bump.experiment.runs.comparison import Comparison
from speed_bump.experiment.runs.design import BASELINE, Arm, Trial
from speed_bump.experiment.show import table as report
from speed_bump.experiment.show.encode import interval_json
from speed_bump.experiment.show.table import LEFT, RIGHT

# numpy is for commands that compute numbers, not for each run of a program.
if TYPE_CHECKING:
    from speed_bump.experiment.fit.verdict import Finding, Verdict
    from speed_bump.experiment.record import Record

# Of the JSON.
FORMAT = 3
# From the header of the experiment by slots, if there was one.
FOUND_BEFORE = ("found", "jit", "native_refused")
# A wider half interval of a change, in parts of the time, says nothing.
MAX_CHANGE = 0.5
# From this part of the time on, the wait for a CPU is reported.
WAIT_TOLD = 0.02


def as_text(runs: Comparison) -> str:
    """A table, and where the time of a whole run goes if that is known."""
    heads = [
        ("target", LEFT),
        ("delay", RIGHT),
        ("calls", RIGHT),
        ("delivered", RIGHT),
        ("time change [95%]", RIGHT),
        ("criticality [95%]", RIGHT),
        ("verdict", LEFT),
    ]
    rows = [_row(runs, arm) for arm in runs.arms]
    rows += [[t.pattern, "-", "0", "-", "-", "-", "never called"] for t in runs.uncalled]
    lines = [_summary(runs), "", report.table(heads, rows)]
    if runs.lost:
        lines += ["", report.lost_text(runs.lost)]
    if runs.before and runs.before.looks:
        from speed_bump.experiment.show import text

        record, found, width = as_record(runs), as_verdict(runs), text.columns()
        lines += text.account_lines(record, found, width)
        lines += text.last_lines(record, found, width)
    return "\n".join(lines)


def _row(runs: Comparison, arm: Arm) -> list[str]:
    found = runs.of(arm)
    known = found.pairs > 0
    shown = found.criticality if found.supported else None
    change = found.change_ns
    says = change is not None and change.half < MAX_CHANGE * found.base_ns
    return [
        arm.short,
        human(arm.delay_ns),
        f"{runs.calls(arm):,.0f}" if known else "-",
        human(found.delivered_ns) if known else "-",
        report.percent(change, found.base_ns) if change and says else "-",
        report.plain(shown) if shown else "-",
        found.said,
    ]


def _summary(runs: Comparison) -> str:
    times = list(runs.times(BASELINE).values())
    base = human(sum(times) / len(times)) if times else "not known"
    what = f"for a unit of {runs.unit}" if runs.unit else "a run"
    stopped = ", stopped before the end" if runs.interrupted else ""
    return (
        f"{len(runs.trials)} runs in {runs.blocks} blocks{stopped}, "
        f"seed {runs.seed}; undelayed {base} {what}"
        + (
            f", of which {runs.waited:.0%} is left out: it waited for a CPU"
            if runs.waited > WAIT_TOLD
            else ""
        )
    )


def as_json(runs: Comparison) -> dict[str, Any]:
    """The same numbers as JSON. Times are ns, per run or per unit."""
    from speed_bump.experiment.show import text

    found = as_verdict(runs)
    return {
        **text.as_json(as_record(runs), found),
        "findings": [
            text.finding_json(finding, runs.calls(arm))
            for finding, arm in zip(found.findings, runs.arms, strict=True)
        ],
        "format": FORMAT,
        "blocks": runs.blocks,
        "unit": runs.unit,
        "targets": [_json_of(runs, arm) for arm in runs.arms],
        "functions_lost": runs.lost,
        "never_called": {target.pattern: None for target in runs.uncalled},
        "trials": [_json_trial(trial, result) for trial, result in runs.trials],
    }


def _finding(runs: Comparison, arm: Arm) -> Finding:
    """The numbers of an experiment by slots, as far as whole runs give them."""
    from speed_bump.experiment.fit.finding import Finding, self_and_headroom

    found = runs.of(arm)
    shown = found.criticality if found.supported else None
    times = runs.before.self_times if runs.before else {}
    name = arm.name.removeprefix("native:")
    share, headroom = self_and_headroom(times, name, shown)
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


def as_verdict(runs: Comparison) -> Verdict:
    """The numbers and warnings of an experiment by slots."""
    from speed_bump.experiment.fit.verdict import Verdict

    times = list(runs.times(BASELINE).values())
    found = Verdict([_finding(runs, arm) for arm in runs.arms])
    found.slot_ns = sum(times) / len(times) if times else 0.0
    if jit := _known(runs).get("jit"):
        found.warnings.append(jit)
    if runs.waited > WAIT_TOLD:
        found.warnings.append(
            f"the program waited {runs.waited:.0%} of its time for a CPU; that is "
            "left out"
        )
    if runs.lost:
        found.warnings.append(report.lost_text(runs.lost))
    return found


def as_record(runs: Comparison) -> Record:
    """The fields that an experiment by slots has besides its slots."""
    from speed_bump.experiment.program.environment import environment
    from speed_bump.experiment.record import Record
    from speed_bump.experiment.slots.measure import empty

    known = _known(runs)
    record = Record(
        {
            "command": list(runs.command),
            "environment": environment(),
            "seed": runs.seed,
            "unit": runs.unit or "a run",
            "whole_runs": True,
            **{key: known[key] for key in FOUND_BEFORE if key in known},
        },
        tuple(arm.name for arm in runs.arms),
        empty(len(runs.arms)),
        unit_ns=as_verdict(runs).slot_ns,
        idle=tuple(target.pattern for target in runs.uncalled),
        looks=runs.before.looks if runs.before else None,
        self_times=runs.before.self_times if runs.before else {},
    )
    record.end = {
        "interrupted": runs.interrupted,
        "runs": len(runs.trials),
        "seconds": sum(result.wall_ns for _, result in runs.trials) / 1e9,
    }
    return record


def _known(runs: Comparison) -> dict[str, Any]:
    """What the header of the experiment by slots says, if there was one."""
    return runs.before.header if runs.before else {}


def _json_of(runs: Comparison, arm: Arm) -> dict[str, Any]:
    found = runs.of(arm)
    return {
        "target": arm.name,
        "delay_ns": arm.delay_ns,
        "pairs": found.pairs,
        "calls_per_unit": runs.calls(arm),
        "requested_per_unit_ns": found.requested_ns,
        "delivered_per_unit_ns": found.delivered_ns,
        "change_ns": interval_json(found.change_ns),
        "criticality": interval_json(found.criticality) if found.supported else None,
        "verdict": found.verdict,
        "reason": found.reason,
        "help": found.help,
    }


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
