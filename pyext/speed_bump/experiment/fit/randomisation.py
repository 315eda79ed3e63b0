# SPDX-License-Identifier: MIT
"""The probability of a number if a function did not matter, for few slots.

With few slots, no quantile of Student's t can be trusted with the tails of real noise.
The times of slots stay as they are, the delays of one function are drawn again in each
block, and the rank of the observed value among those is the p value: Fisher, The Design
of Experiments (1935). A delay that is held for some slots counts as one of each, because
noise is whitened first. The effects of other functions are subtracted from both sides
first (Freedman & Lane, Journal of Business & Economic Statistics 1, 1983).
"""

from __future__ import annotations

import numpy as np

from speed_bump.experiment.fit.columns import Table
from speed_bump.experiment.fit.effects import FEW, Fit
from speed_bump.experiment.fit.noise import HUBER, deviation, psi, whitened
from speed_bump.experiment.record import Floats, Integers

SCHEDULES = 999
# More draws would not be more informative.
FLOOR = 1 / (SCHEDULES + 1)


def p_values(y: Floats, table: Table, fit: Fit, block: Integers) -> dict[int, float]:
    """By column of delays, of functions; empty with many slots.

    With more slots a number is normal enough, and its delays extend over several slots.

    Args:
        y: the regressed time
        block: of each row
    """
    rows = np.intersect1d(fit.rows, np.flatnonzero(table.age >= len(fit.phi)))
    if not len(rows) or (table.age >= 0).sum() >= FEW:
        return {}
    # None of the rows is preceded by a gap.
    y = np.nan_to_num(y)
    # The same schedules for the same record, so that reports can be repeated.
    draw = np.random.default_rng(len(rows))
    real = [k for k, column in enumerate(table.columns) if column.functions]
    time = np.arange(len(y)) - len(y) / 2
    found = {}
    for k in real:
        others = np.delete(table.x, k, 1)
        fixed = np.column_stack([np.ones(len(y)), time, others, table.other])
        basis = _basis(whitened(fixed, fit.phi)[rows])
        left = _without(whitened(y, fit.phi)[rows], basis)
        limit = HUBER * deviation(left)
        left = psi(left, limit) if limit > 0 else left
        schedules = np.repeat(table.x[:, k][:, None], SCHEDULES + 1, 1)
        for number in np.unique(block[rows]):
            inside = np.flatnonzero(block == number)
            if (table.x[inside, k] > 0).any():
                again = draw.permuted(schedules[inside, 1:], axis=0)
                schedules[inside, 1:] = again
        columns = _without(whitened(schedules, fit.phi)[rows], basis)
        size = np.sqrt((columns**2).sum(0))
        seen = (left @ columns) / np.maximum(size, 1e-12 * max(size.max(), 1e-300))
        found[k] = float((1 + (seen[1:] >= seen[0]).sum()) / (SCHEDULES + 1))
    return found


def _basis(columns: Floats) -> Floats:
    """A basis of what these columns span, without redundant ones."""
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(left[:, sizes > 1e-9 * max(float(sizes.max()), 1e-300)])


def _without(values: Floats, basis: Floats) -> Floats:
    out: Floats = values - basis @ (basis.T @ values)
    return out
