# SPDX-License-Identifier: MIT
"""How long a function may be delayed before that costs anything.

A buffer averages: short delays show the slope at the mean delay. So the function is
delayed by a pedestal of k steps, and one more step is toggled. Pedestals go from the
highest down: a full buffer hides everything for a long time; an emptied one shows the
effect at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from speed_bump.experiment.fit.columns import Plan, Table, base_time, block_index
from speed_bump.experiment.fit.effects import Fit, regress
from speed_bump.experiment.fit.interval import Interval, quantile
from speed_bump.experiment.fit.noise import Booleans, ages
from speed_bump.experiment.record import Block, Floats, Integers, Record

# A slope that marks the end of the slack, though not all of a delay arrives there.
MIN_STEEP, SURE = 0.2, 3.3
# A program that is faster by this part, in spite of the pedestal, is catching up.
CATCHES_UP = 0.1


@dataclass(frozen=True)
class Slack:
    """The slack of one function, ns a unit; ``over``: it is longer than the top step, and
    ``ns`` has no upper end.

    ``slopes`` are the parts of a step that arrive on each pedestal, the lowest first, as
    far as it is known, with their standard ``errors``; ``step`` is in parts of the
    undelayed slot, which has this number of ``units``, on average.
    """

    function: str
    ns: Interval
    over: bool
    slopes: tuple[float, ...]
    errors: tuple[float, ...]
    step: float
    units: float
    df: int


def slacks(record: Record) -> dict[str, Slack]:
    """The slack of all functions that were on pedestals."""
    found = {}
    base = base_time(record)
    index = block_index(record)
    for k, block in enumerate(record.blocks):
        if block.stage == "pedestal" and block.stretches and base > 0:
            slack = _slack(record, index == k, block, base)
            if slack is not None:
                found[slack.function] = slack
    return found


def _steepest(slope: Floats, error: Floats, reached: Booleans, threads: float) -> float:
    """The part of a step that arrives beyond the slack.

    All of it, unless it is certainly less: a half for two functions that alternate, and
    for two threads side by side.
    """
    sure = reached & (slope > SURE * error) & (slope > MIN_STEEP / threads)
    return float(np.clip(slope[sure].max(), 0.0, 1.0)) if sure.any() else 1 / threads


def _never_late(times: Floats, heights: Integers, plain: Booleans, steps: int) -> int:
    """How many of the lowest pedestals never made the program late.

    One that keeps to a schedule, as a clock's, is late after a pedestal that is too high,
    and does units without a pause until it has caught up: each delay arrives meanwhile.
    """
    for h in range(steps):
        undelayed = times[plain & (heights == h)]
        if len(undelayed) and np.median(undelayed) < 1 - CATCHES_UP:
            return h
    return steps


def _stairs(
    block: Block,
    y: Floats,
    age: Integers,
    run: Integers,
    good: Booleans,
    heights: Integers,
    probe: Floats,
    reached: Booleans,
) -> Fit | None:
    """The part of a step that arrives on each pedestal, by regression; row by slot.

    Args:
        y: the time of a slot, in parts of an undelayed one
        probe: how much of the toggled step was delivered, in the same parts
    """
    steps = len(reached)
    x = probe[:, None] * (heights[:, None] == np.arange(steps))
    stairs = (heights[:, None] >= np.arange(1, steps)).astype(float)
    plans = [
        Plan(
            (heights == h) & good,
            [h],
            np.array([0.5]),
            False,
            np.array([False]),
            block.holds,
        )
        for h in range(steps)
        if reached[h]
    ]
    none = np.zeros(0)
    columns = np.zeros(0, int)
    table = Table(
        1.0, y, none, none, age, run, [], x, columns, stairs, {}, None, plans, 0.0
    )
    return regress(y, x, stairs, table, plans, spacing=10 * len(y))


def _slack(record: Record, mine: Floats, block: Block, base: float) -> Slack | None:
    names = [arm.functions[0] for arm in block.arms if arm.functions]
    steps = len(block.stretches)
    if not names or names[0] not in record.functions or steps < 2:
        return None
    slots = record.slots
    rows = np.flatnonzero(mine)
    heights = np.repeat(np.arange(steps)[::-1], block.stretches)[: len(rows)]
    settle = max(block.stretches[0] - block.stretches[-1], 0)
    if len(rows) < sum(block.stretches) // 2:
        return None
    at = record.functions.index(names[0])
    delays = block.arms[0].delays[0]
    on = (slots.mask[rows] & np.uint64(1)).astype(bool) & (slots.level[rows] == heights)
    rate = np.array([0.0, *(delay.delay_ns / delay.every for delay in delays)])
    under = rate[np.minimum(heights, len(rate) - 1)] * slots.calls[rows, at]
    probe = np.where(on, slots.delivered_ns[rows, at] - under, 0.0) / base
    good = slots.good[rows] & (np.arange(len(rows)) >= settle)
    reached = np.array([bool(((heights == h) & good).sum() >= 20) for h in range(steps)])
    if reached.sum() < 2 or not reached[-1]:
        return None
    plain = good & ~on & reached[heights]
    known = _never_late(slots.time_ns[rows] / base, heights, plain, steps)
    reached[known:] = False
    if reached.sum() < 2:
        return None
    y = np.where(good, slots.time_ns[rows] / base, 0.0)
    age = ages(slots.number[rows], slots.run[rows], good)
    fit = _stairs(block, y, age, slots.run[rows], good, heights, probe, reached)
    if fit is None:
        return None
    slope = np.where(np.isfinite(fit.c), fit.c, 1.0)[:known]
    error = np.where(np.isfinite(fit.se), fit.se, 1.0)[:known]
    most = _steepest(slope, error, reached[:known], record.side_by_side)
    steep = np.flatnonzero((slope > most / 2) & reached[:known])
    first = int(steep[0]) if len(steep) else known - 1
    step = float(np.mean(probe[on])) if on.any() else block.doses[0]
    upto = slice(0, first + 1)
    value = step * float((1 - np.clip(slope[upto] / most, 0, 1)).sum())
    noise = quantile(fit.df) * step * math.sqrt(float((error[upto] ** 2).sum()))
    # An end of slack is only known to a step.
    half = math.hypot(noise, step) if len(steep) else noise
    # A slot with several units is late if its units are.
    units = float(np.mean(slots.units[rows][good])) or 1.0
    high = (value + half) * base / units if len(steep) else math.inf
    return Slack(
        names[0],
        Interval(value * base / units, max(value - half, 0.0) * base / units, high),
        not len(steep),
        tuple(float(v) for v in slope),
        tuple(float(v) for v in error),
        step,
        units,
        fit.df,
    )
