# SPDX-License-Identifier: MIT
"""Noise of unit times: slow drift, an autoregression, outliers, changes of scale.

Rows are slots in the order in which they ran. The *age* of a row is the number of usable
rows before it without a gap; an autoregression of order p uses rows of age p and more.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from speed_bump.experiment.record import Floats, Integers

Booleans = npt.NDArray[np.bool_]

# Against least squares with normal noise this loses 5%: Huber, Ann. Math. Stat. 35
# (1964).
HUBER = 1.345
# Residuals beyond this many deviations are left out of the correlation of neighbours.
CLIP = 5.0
# An autoregression with a larger sum would not be stable.
MAX_SUM = 0.98
# The scale of noise is estimated from at least this many rows.
SCALE_ROWS = 200
MAX_SCALES = 60
# Up to this many rows times knots, the lines of a drift are one matrix.
DENSE = 1 << 16


def ages(number: Integers, run: Integers, usable: Booleans) -> Integers:
    """The number of usable rows before each row without a gap; -1 if it is not usable."""
    count = len(number)
    index = np.arange(count)
    broken = np.ones(count, bool)
    broken[1:] = (
        (number[1:] != number[:-1] + 1)
        | (run[1:] != run[:-1])
        | ~usable[1:]
        | ~usable[:-1]
    )
    last = np.maximum.accumulate(np.where(broken, index, 0)) if count else index
    return np.asarray(np.where(usable, index - last, -1))


def deviation(values: Floats) -> float:
    """The standard deviation, estimated by the median of absolute values."""
    count = len(values)
    if not count:
        return 0.0
    # np.median() takes several times as long for a thousand values.
    middle = (count - 1) // 2, count // 2
    low, high = np.partition(np.abs(values), middle)[list(middle)]
    return float(1.4826 * (low + high) / 2)


def psi(residuals: Floats, bound: float) -> Floats:
    """Huber's function: residuals limited to the bound."""
    return np.clip(residuals, -bound, bound)


def whitened(values: Floats, phi: Sequence[float]) -> Floats:
    """The part that the autoregression does not predict; garbage at too low an age."""
    out: Floats = values.copy()
    for lag, part in enumerate(phi, 1):
        if part and len(values) > lag:
            out[lag:] -= part * values[:-lag]
    return out


def unwhitened(scores: Floats, phi: Sequence[float]) -> Floats:
    """The transpose of whitened(): the factors of the scores for a change of each row."""
    out: Floats = scores.copy()
    for lag, part in enumerate(phi, 1):
        if part and len(scores) > lag:
            out[:-lag] -= part * scores[lag:]
    return out


def autoregression(residuals: Floats, age: Integers, order: int) -> tuple[float, ...]:
    """Coefficients from residuals limited to ``CLIP`` deviations, made stable."""
    rows = np.flatnonzero(age >= order)
    if order == 0 or len(rows) < 3 * order + 3:
        return ()
    scale = deviation(residuals[age >= 0])
    if scale <= 0:
        return ()
    e = psi(residuals, CLIP * scale)
    past = np.stack([e[rows - lag] for lag in range(1, order + 1)], 1)
    gram = past.T @ past
    gram += 1e-9 * np.trace(gram) * np.eye(order) + 1e-300
    phi = np.linalg.solve(gram, past.T @ e[rows])
    total = float(np.abs(phi).sum())
    if total > MAX_SUM:
        phi *= MAX_SUM / total
    return tuple(float(part) for part in phi)


def local_scale(residuals: Floats) -> Floats:
    """The deviation around each row: a change of speed changes the noise too."""
    count = len(residuals)
    whole = deviation(residuals)
    parts = min(count // SCALE_ROWS, MAX_SCALES)
    if whole <= 0:
        spread = float(np.std(residuals)) if count else 0.0
        return np.full(count, spread if spread > 0 else 1.0)
    if parts < 2:
        return np.full(count, whole)
    edges = np.linspace(0, count, parts + 1).astype(int)
    scales = np.empty(count)
    for low, high in itertools.pairwise(edges):
        scales[low:high] = deviation(residuals[low:high])
    return np.clip(scales, 0.2 * whole, 5 * whole)


class Drift:
    """Slow changes: straight lines between knots, separate for each run of the program.

    Cosines, which the simulations used, do the same; lines involve few rows each, so that
    thousands of knots are cheap.

    Args:
        run: of each row, in order
        spacing: rows between two knots
        weight: the factor of each row
    """

    def __init__(self, run: Integers, spacing: float, weight: Floats) -> None:
        self._parts: list[tuple[slice, slice, Floats]] = []
        knots = 0
        starts = np.flatnonzero(np.diff(run)) + 1 if len(run) else np.zeros(0, int)
        edges = [0, *(int(start) for start in starts), len(run)]
        for low, high in itertools.pairwise(edges):
            length = high - low
            if length == 0:
                continue
            pieces = round(length / spacing) if length >= 24 else 0
            if pieces == 0:
                self._parts.append(
                    (
                        slice(low, high),
                        slice(knots, knots + 1),
                        weight[low:high, None].copy(),
                    )
                )
                knots += 1
                continue
            cuts = np.linspace(low, high, pieces + 1).astype(int)
            for left, right in itertools.pairwise(cuts):
                at = (np.arange(left, right) - left + 0.5) / max(right - left, 1)
                lines = np.stack([1 - at, at], 1) * weight[left:right, None]
                self._parts.append((slice(left, right), slice(knots, knots + 2), lines))
                knots += 1
            knots += 1
        self.knots = knots
        # Few rows: one product of matrices takes less time than a loop over parts.
        if len(run) * knots <= DENSE:
            whole = np.zeros((len(run), knots))
            for rows, at_knots, lines in self._parts:
                whole[rows, at_knots] = lines
            self._parts = [(slice(None), slice(None), whole)]
        gram = np.zeros((knots, knots))
        for _, at_knots, lines in self._parts:
            gram[at_knots, at_knots] += lines.T @ lines
        ridge = 1e-9 * max(float(np.trace(gram)) / max(knots, 1), 1e-300)
        self._inverse = np.linalg.inv(gram + ridge * np.eye(knots))

    def without(self, values: Floats) -> Floats:
        """The rest of columns, or of one, after subtracting the best lines."""
        matrix = values if values.ndim == 2 else values[:, None]
        products = np.zeros((self.knots, matrix.shape[1]))
        for rows, knots, lines in self._parts:
            products[knots] += lines.T @ matrix[rows]
        heights = self._inverse @ products
        out: Floats = matrix.copy()
        for rows, knots, lines in self._parts:
            out[rows] -= lines @ heights[knots]
        return out if values.ndim == 2 else out[:, 0]
