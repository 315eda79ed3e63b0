# SPDX-License-Identifier: MIT
"""The times of a job's steps, regressed on what was delayed in them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from speed_bump.experiment.cluster.plan import ATTEMPT, CENSUS
from speed_bump.experiment.fit.columns import Table
from speed_bump.experiment.fit.effects import Fit, regress
from speed_bump.experiment.fit.noise import ages
from speed_bump.experiment.record import Floats, Integers

# A delay after the collective arrives in the next step.
LAGS = ((0,), (1,), (2,))
MIN_STEPS = 24
MIN_DELAYED = 8


def fit(
    number: Integers, good: npt.NDArray[np.bool_], time: Floats, x: Floats
) -> Fit | None:
    """The part of each column of delays that arrives; None with too few steps.

    Args:
        number, good: of each step; those of the census are left out
        time, x: ns
    """
    usable = good & (number % ATTEMPT >= CENSUS // 2)
    if usable.sum() < MIN_STEPS or not x.shape[1]:
        return None
    base = float(np.median(time[usable]))
    run = (number // ATTEMPT).astype(np.int64)
    y = np.where(usable, time, np.nan) / base
    nothing = np.zeros((len(y), 0))
    table = Table(
        base, y, y, y, ages(number, run, usable), run, [], x / base,
        np.zeros(0, np.int64), nothing, {}, None, [], 0.0,
    )  # fmt: skip
    return regress(y, table.x, nothing, table, None, LAGS)
