# SPDX-License-Identifier: MIT
"""Checks of a regression: remaining noise, late effects, phases."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace

import numpy as np

from speed_bump.experiment.fit.effects import (
    LONG,
    Effects,
    Fit,
    regress,
    spacing_of,
)
from speed_bump.experiment.fit.interval import chi_square_tail
from speed_bump.experiment.record import Floats, Integers

LAGS = 20
# For all functions together, how often chance alone would report something.
RATE = 0.01
# With more arms, the fits of late effects and of phases take too long.
MAX_ARMS = 48
PARTS = 3
# With fewer delays in a part than these, its errors are not known.
MIN_IN_PART = 8
# Late effects whose sum is smaller change no verdict.
LATE = 0.1


@dataclass
class Diagnostics:
    """The checks of one fit.

    ``whiteness`` is the p value of Ljung & Box over 20 lags of the residuals; ``noise``
    their deviation in parts of the undelayed slot; ``phi`` the autoregression; ``late``
    has the criticality and error by column if effects come after the next slot;
    ``phases`` the criticality by thirds of the run if they differ.
    """

    rows: int
    columns: int
    noise: float
    phi: tuple[float, ...]
    whiteness: float
    late: dict[int, tuple[float, float, int]] = field(default_factory=dict)
    phases: dict[int, tuple[float, ...]] = field(default_factory=dict)


def ljung_box(residuals: Floats) -> float:
    """The p value: Ljung & Box, Biometrika 65 (1978)."""
    n = len(residuals)
    lags = min(LAGS, n // 5)
    spread = float(residuals @ residuals)
    if lags < 1 or spread <= 0:
        return 1.0
    limit = 4 * float(np.median(np.abs(residuals))) * 1.4826
    r = np.clip(residuals, -limit, limit) if limit > 0 else residuals
    r = r - r.mean()
    spread = float(r @ r)
    if spread <= 0:
        return 1.0
    q = sum(
        (float(r[lag:] @ r[:-lag]) / spread) ** 2 / (n - lag)
        for lag in range(1, lags + 1)
    )
    return chi_square_tail(n * (n + 2) * q, lags)


def diagnose(effects: Effects, y: Floats | None = None) -> Diagnostics:
    """Run once, at the end. ``y``: the regressed time, if not wall time."""
    table, fit = effects.table, effects.fit
    times = table.y if y is None else y
    noise = float(np.median(np.abs(fit.residuals * fit.scale)) * 1.4826)
    found = Diagnostics(
        len(fit.rows),
        len(fit.b),
        noise,
        fit.phi,
        ljung_box(fit.residuals),
    )
    real = [k for k, column in enumerate(table.columns) if column.functions]
    if len(table.columns) > MAX_ARMS or len(fit.rows) < 200 or not real:
        return found
    limit = RATE / len(real)
    spacing = spacing_of(table)
    wide = regress(times, table.x, table.other, table, table.plans, LONG, spacing=spacing)
    if wide is not None and wide.bins == LONG:
        for k in real:
            at = [2 * wide.delays + k, 3 * wide.delays + k]
            # At least as wide as the design says.
            ratio = max(
                float(np.nan_to_num(wide.design[k] / wide.model[k], nan=1.0)), 1.0
            )
            p = _chi(wide.b[at], wide.cov[np.ix_(at, at)] * ratio**2)
            if (
                p < limit
                and abs(2 * wide.b[at[0]] + 4 * wide.b[at[1]]) > LATE
                and math.isfinite(wide.c[k])
                and math.isfinite(wide.se[k])
            ):
                found.late[k] = (float(wide.c[k]), float(wide.se[k]), wide.df)
    thirds = _thirds(effects, times, spacing)
    if thirds:
        for k in real:
            if any(part.delayed[k] < MIN_IN_PART for part in thirds):
                continue
            parts = [(part.fit.c[k], part.fit.se[k]) for part in thirds]
            if any(not math.isfinite(c) or not s > 0 for c, s in parts):
                continue
            weights = [1 / s**2 for _, s in parts]
            mean = sum(w * c for w, (c, _) in zip(weights, parts, strict=True)) / sum(
                weights
            )
            x = sum(w * (c - mean) ** 2 for w, (c, _) in zip(weights, parts, strict=True))
            if chi_square_tail(x, len(parts) - 1) < limit:
                found.phases[k] = tuple(float(c) for c, _ in parts)
    return found


@dataclass(frozen=True)
class _Third:
    """A part of the run: its fit, and by column how many of its slots are delayed."""

    fit: Fit
    delayed: Integers


def _thirds(effects: Effects, times: Floats, spacing: float) -> list[_Third]:
    """The parts of a run in which each function was delayed."""
    table = effects.table
    busy = np.flatnonzero((table.age >= 0) & (table.x > 0).any(1))
    if len(busy) < 60 * PARTS:
        return []
    cuts = busy[np.linspace(0, len(busy) - 1, PARTS + 1).astype(int)]
    found = []
    for low, high in itertools.pairwise(cuts):
        index = np.arange(len(times))
        age = np.where((index >= low) & (index < high), table.age, -1)
        part = replace(table, age=age)
        fit = regress(times, table.x, table.other, part, table.plans, spacing=spacing)
        if fit is None:
            return []
        delayed = ((age >= 0)[:, None] & (table.x > 0)).sum(0)
        found.append(_Third(fit, delayed))
    return found


def _chi(b: Floats, cov: Floats) -> float:
    """The p value of these coefficients being 0 together."""
    if not np.all(np.diag(cov) > 0):
        return 1.0
    return chi_square_tail(float(b @ np.linalg.solve(cov, b)), len(b))
