# SPDX-License-Identifier: MIT
"""Pairs of functions whose joint effect differs from the sum of both.

A few functions are delayed at once, each at random, and products of centred delays are in
the regression: Box, Hunter & Hunter, Statistics for Experimenters, 2nd ed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from speed_bump.experiment.fit.columns import table
from speed_bump.experiment.fit.effects import effects, regress, spacing_of
from speed_bump.experiment.fit.interval import Interval, around
from speed_bump.experiment.record import Record

# A product with a smaller t is left out again.
KEEP = 3.3
# For a function with slack, less than this arrives. Another function that uses the slack
# up, or adds to it, makes a product that says nothing of the pair.
WHOLE = 0.85
MAX_TIED = 6
# With less of a CPU, two functions that are delayed at once compete for it.
MIN_SHARE = 0.5


@dataclass(frozen=True)
class Joint:
    """Two functions: "serial", "parallel" or "amplifying".

    ``together`` is the cost of a delay of both at once beyond the sum of both, in parts
    of the delay of one: 0 if serial; minus the smaller criticality if parallel.
    """

    functions: tuple[str, str]
    kind: str
    together: Interval


def joints(record: Record) -> list[Joint]:
    """All pairs that were delayed together with enough of a CPU."""
    if record.machine.share < MIN_SHARE:
        return []
    found = effects(table(record, {"ties"}))
    if found is None:
        return []
    data, fit = found.table, found.fit
    names = [
        (k, column.functions[0])
        for k, column in enumerate(data.columns)
        if len(column.functions) == 1 and math.isfinite(fit.c[k])
    ]
    chance = np.zeros(len(data.columns))
    busy = np.zeros(len(data.y), bool)
    for plan in data.plans:
        busy |= plan.rows
        for k, p in zip(plan.columns, plan.chance, strict=True):
            chance[k] = p
    blocks = data.other[:, list(data.on.values())].sum(1) > 0 if data.on else busy
    dose = {k: _dose(data.x[:, k]) for k, _ in names}
    couples = [
        (i, j)
        for place, (i, _) in enumerate(names)
        for j, _ in names[place + 1 :]
        if dose[i] > 0 and dose[j] > 0
    ]
    every = list(couples)
    results: dict[tuple[int, int], tuple[float, float, int]] = {}
    for _ in range(3):
        if not couples:
            break
        products = np.stack(
            [
                (data.x[:, i] / dose[i] - chance[i])
                * (data.x[:, j] - dose[j] * chance[j])
                * blocks
                for i, j in couples
            ],
            1,
        )
        wide = regress(
            data.y,
            data.x,
            np.concatenate([products, data.other], 1),
            data,
            data.plans,
            spacing=spacing_of(data),
        )
        if wide is None:
            return []
        ratio = float(
            np.nanmedian(np.fmax(1, wide.design / np.maximum(wide.model, 1e-12)))
        )
        for place, couple in enumerate(couples):
            value, error = wide.other(place)
            results[couple] = (value, error * ratio, wide.df)
        kept = [c for c in couples if abs(results[c][0]) > KEEP * results[c][1] > 0]
        if kept == couples:
            break
        couples = kept
    label = dict(names)
    out = []
    for i, j in every:
        if (i, j) not in results:
            continue
        value, error, df = results[(i, j)]
        if error <= 0:
            continue
        if (i, j) in couples:
            kind = "parallel" if value < 0 else "amplifying"
            if value > 0 and min(fit.c[i], fit.c[j]) < WHOLE / record.side_by_side:
                continue
        elif error < 0.15 / record.side_by_side:
            kind = "serial"
        else:
            continue
        out.append(Joint((label[i], label[j]), kind, around(value, error, df)))
    return out


def _dose(x: np.ndarray) -> float:
    """The mean delay of a slot that had one."""
    some = x[x > 0]
    return float(np.median(some)) if len(some) else 0.0
