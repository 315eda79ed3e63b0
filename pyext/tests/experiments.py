# SPDX-License-Identifier: MIT
"""Records of experiments on programs with known answers, run in the simulator."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import replace

import model
import numpy as np
from speed_bump.experiment.record import Record
from speed_bump.experiment.slots.stages import Options, Stages

UNITS_FIRST = 80


def run(name: str, budget_s: float = 60.0, kind: str = "heavy") -> Record:
    """All that the tool would have of a program of ``model.PROGRAMS``: a copy."""
    return copy.deepcopy(_run(name, budget_s, kind))


@functools.cache
def _run(name: str, budget_s: float, kind: str) -> Record:
    draw = np.random.default_rng(1)
    return run_of(model.PROGRAMS[name](draw), draw, budget_s=budget_s, kind=kind)


def run_of(
    program: model.Program,
    draw: np.random.Generator,
    seed: int = 1,
    budget_s: float = 60.0,
    kind: str = "heavy",
) -> Record:
    """The same for any program."""
    run = model.Run(program, kind, draw)
    run.undelayed(UNITS_FIRST)
    stages = Stages(Options(budget_s=budget_s), seed)
    while run.time_ns < budget_s * 1e9:
        block = stages.next_block(run.record)
        if block is None:
            break
        run.run(block, budget_s * 1e9)
    record = run.record
    record.header = {
        "command": ["python3", "-m", "app", "--epochs", "3"],
        "seed": seed,
        "unit": "call of app:step",
        "budget_s": budget_s,
        "environment": {"host": "here", "cpus": 2, "load": [0.1, 0.2, 0.3]},
    }
    record.end = {"runs": 1, "seconds": run.time_ns / 1e9, "interrupted": False}
    return record


def renamed(record: Record, names: Sequence[str]) -> Record:
    """The same with other names for the first functions."""
    new = dict(zip(record.functions, names, strict=False))

    def of(name: str) -> str:
        return new.get(name, name)

    record.self_times = {of(k): v for k, v in record.self_times.items()}
    record.functions = tuple(map(of, record.functions))
    record.blocks = [
        replace(
            block,
            arms=tuple(
                replace(arm, functions=tuple(map(of, arm.functions)))
                for arm in block.arms
            ),
        )
        for block in record.blocks
    ]
    return record
