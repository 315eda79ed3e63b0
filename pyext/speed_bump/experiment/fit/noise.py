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


class Lines:
    """Straight lines between knots, separate for each run of the program.

    Cosines, which the simulations used, do the same; each row involves two knots only, so
    that thousands of knots are cheap. Few rows of a run have a constant in their place.

    Args:
        run: of each row, in order
        spacing: rows between two knots
    """

    def __init__(self, run: Integers, spacing: float) -> None:
        bounds: list[int] = []
        knots: list[tuple[int, int]] = []
        first = 0
        starts = np.flatnonzero(np.diff(run)) + 1 if len(run) else np.zeros(0, int)
        edges = [0, *(int(start) for start in starts), len(run)]
        for low, high in itertools.pairwise(edges):
            length = high - low
            if length == 0:
                continue
            pieces = round(length / spacing) if length >= 24 else 0
            bounds += np.linspace(low, high, max(pieces, 1) + 1).astype(int).tolist()[:-1]
            if pieces == 0:
                knots.append((first, first))
            knots += ((first + k, first + k + 1) for k in range(pieces))
            first += pieces + 1
        self.knots = first
        # Of each piece: its first row, and the knots at its ends.
        self.starts = np.array(bounds, int)
        self.ends = np.array(knots, int).reshape(-1, 2).T
        self.lengths = np.diff(self.starts, append=len(run))
        self.pieces = [
            (slice(start, start + length), slice(left, right + 1))
            for start, length, (left, right) in zip(
                bounds, self.lengths.tolist(), knots, strict=True
            )
        ]
        # Of each row: the part of the second knot.
        at = np.arange(len(run)) - np.repeat(self.starts, self.lengths) + 0.5
        self.second = at / np.repeat(self.lengths, self.lengths)
        self.second[np.repeat(self.ends[0] == self.ends[1], self.lengths)] = 0


class Drift:
    """Slow changes: lines of which each row is multiplied by its weight."""

    def __init__(self, lines: Lines, weight: Floats) -> None:
        self.knots = lines.knots
        self._lines = lines
        one, two = (1 - lines.second) * weight, lines.second * weight
        self._parts = one, two
        gram = np.zeros((self.knots, self.knots))
        left, right = lines.ends
        # No knot is the left one of two pieces, or the right one.
        gram[left, left] = self._sums(one * one)
        gram[right, right] += self._sums(two * two)
        both = self._sums(one * two)
        gram[left, right] += both
        gram[right, left] += both
        ridge = 1e-9 * max(float(np.trace(gram)) / max(self.knots, 1), 1e-300)
        self._inverse = np.linalg.inv(gram + ridge * np.eye(self.knots))

    def _sums(self, values: Floats) -> Floats:
        """The sums over each piece."""
        if not len(values):
            return np.zeros(0)
        return np.asarray(np.add.reduceat(values, self._lines.starts))

    def without(self, values: Floats) -> Floats:
        """The rest of columns, or of one, after subtracting the best lines."""
        if values.ndim == 2:
            return self._columns_without(values)
        lines = self._lines
        left, right = lines.ends
        one, two = self._parts
        products = np.zeros(self.knots)
        products[left] = self._sums(one * values)
        products[right] += self._sums(two * values)
        heights = self._inverse @ products
        rest = values - one * np.repeat(heights[left], lines.lengths)
        rest -= two * np.repeat(heights[right], lines.lengths)
        return np.asarray(rest)

    def _columns_without(self, values: Floats) -> Floats:
        """The same of several columns, piece by piece, as products of matrices."""
        parts = np.stack(self._parts, axis=1)
        pieces = [
            (rows, knots, parts[rows, : knots.stop - knots.start])
            for rows, knots in self._lines.pieces
        ]
        products = np.zeros((self.knots, values.shape[1]))
        for rows, knots, lines in pieces:
            products[knots] += lines.T @ values[rows]
        heights = self._inverse @ products
        rest = values.copy()
        for rows, knots, lines in pieces:
            rest[rows] -= lines @ heights[knots]
        return np.asarray(rest)
