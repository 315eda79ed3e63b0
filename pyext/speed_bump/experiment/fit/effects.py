# SPDX-License-Identifier: MIT
"""The part of its delay that each arm costs: a regression with errors by design.

Slot times are regressed on the delay delivered in the slot and in the previous one. The
noise is whitened by an autoregression and outliers are limited, which makes intervals
narrow: Cochrane & Orcutt, JASA 44 (1949), Huber, Ann. Math. Stat. 35 (1964). That they
are wide enough does not depend on that model of the noise: residuals stay as they are and
the schedules are drawn again, hypothetically (Fisher, Design of Experiments, 1935;
Bojinov, Simchi-Levi & Zhao, Management Science 69, 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from speed_bump.experiment.fit.columns import Column, Plan, Table
from speed_bump.experiment.fit.interval import Interval, around, quantile
from speed_bump.experiment.fit.noise import (
    HUBER,
    Drift,
    Lines,
    autoregression,
    deviation,
    local_scale,
    psi,
    unwhitened,
    whitened,
)
from speed_bump.experiment.record import Floats, Integers

# Lags in slots; lags in one bracket share a coefficient.
AT_ONCE = ((0,),)
SHORT = ((0,), (1,))
LONG = ((0,), (1,), (2, 3), (4, 5, 6, 7))
# In 62 records whose residuals had a pattern (Ljung & Box, below 1e-4), an order of 8 did
# not remove it, and made intervals wider by 4% in the median and by up to three times.
ORDER = 3
# Slots between two knots of the drift; with rests the bill needs them further apart.
SPACING = 60
SPACING_RESTS = 300
# Fewer rows than these are regressed on the slot's own delay alone.
FEW = 64
# Slots over which long-lasting delays allow for noise of their own.
SLOW = 80
# Fewer cycles of blocks and rests than these have no error of their own.
MIN_CYCLES = 4
# A sham beyond this many standard errors means that something other than delays acts. If
# it had few slots, their own noise decides, whose tails the model does not know: the
# quantile is then that of Student's t.
SHAM = 3.3
# Outliers are limited step by step: small steps would not converge from least squares,
# which units of a second among units of 3 ms throw far off. The iteration ends when no
# coefficient moves by more than a part of its error.
SHRINKS, SMALL, MAX_DRAWN = 0.5, 0.05, 100
# A column that the others explain up to this part has no coefficient.
TOLERANCE = 1e-5


@dataclass
class Fit:
    """Coefficients of a regression.

    ``b`` and their covariance ``cov`` are of all columns: delays bin by bin, then others.
    ``c`` are the sums over lags of each delay, ``model`` and ``design`` their standard
    errors by the noise model and by the schedule; NaN without an answer. ``residuals``
    are whitened, of the ``rows``.
    """

    b: Floats
    cov: Floats
    c: Floats
    c_cov: Floats
    model: Floats
    design: Floats
    df: int
    phi: tuple[float, ...]
    rows: Integers
    residuals: Floats
    scale: Floats
    delays: int
    bins: tuple[tuple[int, ...], ...]
    slow: Floats
    # For each other column, each cycle's contribution to its coefficient; empty: unknown.
    parts: list[Floats]

    @property
    def se(self) -> Floats:
        """The larger of the two standard errors."""
        return np.fmax(self.model, self.design)

    def other(self, k: int) -> tuple[float, float]:
        """The coefficient of another column and its standard error.

        The largest error of three: by the noise model; allowing for noise that is
            correlated
        over ``SLOW`` slots (Newey & West, Econometrica 55, 1987); and by cycles of blocks
        and a rest (Liang & Zeger, Biometrika 73, 1986).
        """
        at = self.delays * len(self.bins) + k
        model = math.sqrt(max(float(self.cov[at, at]), 0.0))
        return float(self.b[at]), max(model, float(self.slow[k]))


def lagged(x: Floats, bins: Sequence[Sequence[int]]) -> Floats:
    """Columns of delays, bin by bin."""
    n, k = x.shape
    out = np.zeros((n, k * len(bins)))
    for place, lags in enumerate(bins):
        for lag in lags:
            if lag < n:
                out[lag:, place * k : (place + 1) * k] += x[: n - lag]
    return out


@dataclass
class _Design:
    """What is regressed: normed columns, and which rows they are known in."""

    y: Floats
    a: Floats
    age: Integers
    rows: Integers
    live: Integers
    norms: Floats
    width: int
    bins: tuple[tuple[int, ...], ...]
    order: int
    bound: float
    run: Integers
    spacing: float


@dataclass
class _Solution:
    """The result of the last pass: ``aw`` and ``r`` are whitened columns and residuals,
    ``known`` the columns with an answer.
    """

    aw: Floats
    r: Floats
    b: Floats
    inverse: Floats
    known: npt.NDArray[np.bool_]
    df: int
    phi: tuple[float, ...]
    scale: Floats
    drift: Drift

    @property
    def few(self) -> float:
        """How much larger errors are with this number of coefficients."""
        return len(self.r) / self.df


def _design(
    y: Floats,
    x: Floats,
    other: Floats,
    table: Table,
    bins: tuple[tuple[int, ...], ...],
    order: int,
    spacing: float,
) -> _Design | None:
    """Columns and rows of a regression; None with too few rows."""
    age = _without_gaps(y, table.age)
    y = np.where(age >= 0, y, 0.0)
    count = int((age >= 0).sum())
    bound = HUBER
    if count < FEW:
        bins, order, bound = AT_ONCE, min(order, 1), 3.0
    if count < 16:
        order = 0
    while order and (age > order).sum() < 0.8 * count:
        order -= 1
    a = np.concatenate([lagged(x, bins), other], axis=1)
    # The delay before a gap is unknown.
    rows = np.flatnonzero(age >= order + min(bins[-1][-1], 1))
    if len(rows) < max(8, x.shape[1] + 5):
        return None
    norms = np.sqrt((a[rows] ** 2).mean(0))
    live = np.flatnonzero(norms > 1e-9)
    return _Design(
        y,
        a[:, live] / norms[live],
        age,
        rows,
        live,
        norms,
        a.shape[1],
        bins,
        order,
        bound,
        table.run,
        spacing,
    )


def _inverted(aw: Floats, weight: Floats) -> tuple[Floats, npt.NDArray[np.bool_], Floats]:
    """The inverse of the normal matrix of columns scaled to 1, which columns have an
    answer, and their sizes.

    A column that is empty, or that others explain, has no answer. The ridge makes sure
    that there is an inverse all the same: if numpy finds none, its BLAS is broken, and
    the error is not caught.
    """
    gram = aw.T @ aw
    size = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    free = size > 1e-4 * np.sqrt(len(aw)) * np.median(weight)
    gram = gram / size[:, None] / size[None, :]
    gram[~free] = 0
    gram[:, ~free] = 0
    gram[~free, ~free] = 1
    inverse = np.linalg.inv(gram + 1e-9 * np.eye(len(gram)))
    inverse[~free] = 0
    inverse[:, ~free] = 0
    known = free & (np.diag(inverse) < 1 / TOLERANCE)
    return inverse, known, size


def _without_outliers(solution: _Solution, bound: float) -> None:
    """Limit outliers, step by step."""
    aw, inverse = solution.aw, solution.inverse
    errors = np.sqrt(np.maximum(np.diag(inverse), 0))
    ceiling = float(np.abs(solution.r).max())
    for _ in range(MAX_DRAWN):
        r = solution.r
        least = bound * deviation(r) * math.sqrt(solution.few)
        if least <= 0:
            break
        limit = max(least, ceiling)
        u = psi(r, limit)
        kappa = max(float((np.abs(r) <= limit).mean()), 0.3)
        change = inverse @ (aw.T @ u) / kappa
        solution.b = solution.b + change
        solution.r = r - (aw @ change) - (u - solution.drift.without(u)) / kappa
        if limit == least and np.all(np.abs(change) <= SMALL * errors * limit):
            break
        ceiling *= SHRINKS


def _solved(design: _Design) -> _Solution | None:
    """Coefficients and the noise model in turn; None with too few rows."""
    y, a, age, rows, order = design.y, design.a, design.age, design.rows, design.order
    everywhere = np.flatnonzero(age >= 0)
    clean = Drift(Lines(design.run[everywhere], design.spacing), np.ones(len(everywhere)))
    lines = Lines(design.run[rows], design.spacing)
    phi: tuple[float, ...] = ()
    scale = np.ones(len(rows))
    passes = (3 if design.width > 200 else 4) if order else 2
    solution = None
    for step in range(passes):
        weight = 1 / scale
        drift = Drift(lines, weight)
        aw = drift.without(whitened(a, phi)[rows] * weight[:, None])
        r = drift.without(whitened(y, phi)[rows] * weight)
        inverse, known, size = _inverted(aw, weight)
        df = len(rows) - int(known.sum()) - drift.knots
        if df < 3:
            return None
        inverse = inverse / size[:, None] / size[None, :]
        b = inverse @ (aw.T @ r)
        solution = _Solution(aw, r - aw @ b, b, inverse, known, df, phi, scale, drift)
        _without_outliers(solution, design.bound)
        if step < passes - 1:
            e = np.zeros(len(y))
            e[everywhere] = _residual(y, a, solution.b, everywhere, clean)
            if order:
                phi = autoregression(e, age, order)
            # In whitened times, with the current coefficients.
            scale = local_scale(solution.r * scale)
    return solution


def regress(
    y: Floats,
    x: Floats,
    other: Floats,
    table: Table,
    plans: Sequence[Plan] | None = None,
    bins: tuple[tuple[int, ...], ...] = SHORT,
    order: int = ORDER,
    spacing: float = SPACING,
) -> Fit | None:
    """Regress slot times on delays and other columns; None with too few rows.

    Args:
        y: of each slot
        x: delay delivered in it, a column per arm
        other: columns that have no lags
        table: which rows are usable, and of which run
        plans: how the delays were drawn; None: only the noise model's errors
        bins: lags of the delays
        order: of the autoregression
        spacing: slots between two knots of the drift
    """
    design = _design(y, x, other, table, bins, order, spacing)
    solution = _solved(design) if design is not None else None
    if design is None or solution is None:
        return None
    bins, live, norms, width = design.bins, design.live, design.norms, design.width
    r, few, known = solution.r, solution.few, solution.known
    limit = design.bound * deviation(r) * math.sqrt(few)
    u = psi(r, limit) if limit > 0 else r
    kappa = max(float((np.abs(r) <= limit).mean()), 0.3) if limit > 0 else 1.0
    variance = few * float((u * u).mean()) / kappa**2
    full_b, full_inverse = np.zeros(width), np.zeros((width, width))
    keep = live[known]
    full_b[keep] = (solution.b / norms[live])[known]
    full_inverse[np.ix_(keep, keep)] = (
        solution.inverse / norms[live][:, None] / norms[live][None]
    )[np.ix_(known, known)]
    sums = _sums(x.shape[1], bins, width)
    cov = full_inverse * variance
    c = sums @ full_b
    c_cov = sums @ cov @ sums.T
    lost = np.setdiff1d(np.arange(width), keep)
    answered = ~(np.abs(sums[:, lost]) > 0).any(1)
    model = np.where(answered, np.sqrt(np.maximum(np.diag(c_cov), 0)), np.nan)
    slow, parts = _slow_columns(design, solution, table, u / kappa, other.shape[1])
    wanted = np.full(len(c), np.nan)
    if plans:
        scores = np.zeros(len(y))
        scores[design.rows] = u / kappa / solution.scale
        wanted = by_design(
            unwhitened(scores, solution.phi),
            x,
            sums @ full_inverse,
            table.age,
            plans,
            bins,
        ) * math.sqrt(few)
    return Fit(
        full_b,
        cov,
        np.where(answered, c, np.nan),
        c_cov,
        model,
        np.where(answered, wanted, np.nan),
        solution.df,
        solution.phi,
        design.rows,
        r,
        solution.scale,
        x.shape[1],
        bins,
        slow * math.sqrt(few),
        parts,
    )


def _slow_columns(
    design: _Design, solution: _Solution, table: Table, u: Floats, others: int
) -> tuple[Floats, list[Floats]]:
    """Errors of columns that are on for a long time, and their parts by cycle.

    Args:
        u: the limited residuals
        others: how many columns have no lags
    """
    begin = design.width - others
    keep = design.live[solution.known]
    slow = np.zeros(others)
    parts: list[Floats] = []
    for k in range(min(others, 8)):
        place = np.flatnonzero(keep == begin + k)
        if not len(place):
            parts.append(np.zeros(0))
            continue
        at = np.flatnonzero(solution.known)[place[0]]
        g = (solution.aw @ solution.inverse[:, at]) * u
        norm = design.norms[begin + k]
        slow[k] = _slow_error(g, design.age[design.rows]) / norm
        by_cycle = _by_cycle(g, table, design.rows) / norm
        parts.append(by_cycle * math.sqrt(solution.few))
        slow[k] = max(slow[k], _cycle_error(by_cycle))
    return slow, parts


def _by_cycle(g: Floats, table: Table, rows: Integers) -> Floats:
    """Sums over cycles of blocks and a rest."""
    if table.cycles is None:
        return np.zeros(0)
    _, cycle = np.unique(table.cycles[rows], return_inverse=True)
    return np.asarray(np.bincount(cycle, g), float)


def _cycle_error(sums: Floats) -> float:
    """The error of a coefficient with these contributions of cycles."""
    count = len(sums)
    if count < MIN_CYCLES:
        return 0.0
    return math.sqrt(float(sums @ sums) * count / (count - 1))


def _without_gaps(y: Floats, age: Integers) -> Integers:
    """The age of each row; rows without a time are gaps."""
    known = np.isfinite(y)
    if known.all():
        return age
    index = np.arange(len(y))
    gap = np.maximum.accumulate(np.where(known, -1, index))
    return np.where(known, np.minimum(age, index - gap - 1), -1)


def _slow_error(g: Floats, age: Integers) -> float:
    """The variance of the sum of ``g``, correlated over up to ``SLOW`` rows."""
    if len(g) < 4 * SLOW:
        return 0.0
    total = float(g @ g)
    for lag in range(1, SLOW):
        same = age[lag:] >= lag
        product = float((g[lag:] * g[:-lag])[same].sum())
        total += 2 * (1 - lag / SLOW) * product
    return math.sqrt(max(total, 0.0))


def _residual(y: Floats, a: Floats, b: Floats, rows: Integers, clean: Drift) -> Floats:
    """Scores of times that are not whitened, without slow changes."""
    raw = y[rows] - a[rows] @ b
    e = clean.without(raw)
    limit = 5 * deviation(e)
    if limit > 0:
        # Lines through outliers would not be slow.
        slow = raw - e
        e = raw - slow - (psi(e, limit) - clean.without(psi(e, limit)))
    return e


def _sums(count: int, bins: Sequence[Sequence[int]], width: int) -> Floats:
    """Rows that add up a delay's coefficients over its lags."""
    sums = np.zeros((count, width))
    for place, lags in enumerate(bins):
        sums[np.arange(count), place * count + np.arange(count)] = len(lags)
    return sums


def together(holds: Sequence[int], apart: int) -> float:
    """The probability that slots so far apart are in one hold (renewal theory)."""
    lengths = np.asarray(holds, float)
    return float(np.maximum(lengths - abs(apart), 0).mean() / lengths.mean())


def by_design(
    v: Floats,
    x: Floats,
    weights: Floats,
    age: Integers,
    plans: Sequence[Plan],
    bins: Sequence[Sequence[int]],
) -> Floats:
    """Standard errors of weighted sums of T_i = sum_t v_t x_it over schedules.

    Args:
        v: the factor of a change of each slot's time
        weights: a row for each answer, a column for each delay and bin
    """
    count = x.shape[1]
    last = bins[-1][-1]
    total = np.zeros(len(weights))
    for plan in plans:
        rows = plan.rows & (age >= 0)
        if not rows.any():
            continue
        near = rows.copy()
        for lag in range(1, last + 1):
            near[lag:] |= rows[:-lag]
        own = np.where(near, v, 0.0)
        at = np.array(plan.columns)
        squares = (x[rows][:, at] ** 2).mean(0)
        chance = np.clip(plan.chance, 1e-6, 1)
        delay = np.sqrt(squares / chance)
        for coin in (False, True):
            which = np.flatnonzero(plan.coin == coin)
            if not len(which):
                continue
            holds = (1,) if coin else plan.holds
            spread = _spread(own, bins, holds)
            h = np.stack(
                [weights[:, place * count + at[which]] for place in range(len(bins))]
            )
            h = h * delay[which]
            p = chance[which]
            if plan.alone and not coin:
                mean = h @ p
                middle = np.einsum("lij,mij,j->lmi", h, h, p, optimize=True)
                middle -= np.einsum("li,mi->lmi", mean, mean)
            else:
                middle = np.einsum("lij,mij,j->lmi", h, h, p * (1 - p), optimize=True)
            total += np.einsum("lm,lmi->i", spread, middle)
    return np.sqrt(np.maximum(total, 0))


def _spread(v: Floats, bins: Sequence[Sequence[int]], holds: Sequence[int]) -> Floats:
    """Sums of v_t v_t+j times the chance of one hold, between bins of lags."""
    last = bins[-1][-1]
    reach = max(holds) + last
    n = len(v)
    product = [float(v[: n - j] @ v[j:]) if j < n else 0.0 for j in range(reach + 1)]
    by_lag = np.zeros((last + 1, last + 1))
    for one in range(last + 1):
        for two in range(last + 1):
            by_lag[one, two] = sum(
                together(holds, j - one + two) * product[abs(j)]
                for j in range(-reach, reach + 1)
            )
    pick = np.array([[float(lag in lags) for lags in bins] for lag in range(last + 1)])
    return np.asarray(pick.T @ by_lag @ pick)


def sham_bound(slots: int) -> float:
    """The standard errors beyond which a sham with this number of slots is not 0."""
    return quantile(slots - 1, math.erf(SHAM / math.sqrt(2)))


@dataclass
class Effect:
    """One column: its criticality, and its errors."""

    column: Column
    c: float
    se: float
    df: int
    delayed: int

    @property
    def interval(self) -> Interval:
        return around(self.c, self.se, self.df)

    @property
    def known(self) -> bool:
        """Whether there is an answer at all."""
        return math.isfinite(self.c) and math.isfinite(self.se) and self.se > 0


@dataclass
class Effects:
    """The effects of all columns of a table."""

    table: Table
    fit: Fit
    effects: list[Effect]
    cov: Floats

    def of(self, functions: tuple[str, ...]) -> list[Effect]:
        """The effects at each dose, the smallest first."""
        found = [e for e in self.effects if e.column.functions == functions and e.known]
        return sorted(found, key=lambda e: (not e.column.apart, e.column.dose))

    def bill(self, key: tuple[float, bool]) -> tuple[float, float] | None:
        """The cost of delays beyond the sum of their effects, in a slot; its error."""
        if key not in self.table.on:
            return None
        value, error = self.fit.other(self.table.on[key])
        return (value, error) if error > 0 else None

    def half(self, effect: Effect) -> float:
        return quantile(effect.df) * effect.se

    def of_thread(self, threads: float) -> Effects:
        """What a delay does to the unit of the thread that had it.

        With ``threads`` threads side by side, a slot in which each was delayed once has
        that many delays.
        """
        scaled = [replace(e, c=e.c * threads, se=e.se * threads) for e in self.effects]
        return replace(self, effects=scaled, cov=self.cov * threads**2)


def spacing_of(table: Table) -> float:
    """The distance between the knots of the drift."""
    if not table.on:
        return SPACING
    return max(SPACING_RESTS, table.cycle)


def effects(
    table: Table | None,
    y: Floats | None = None,
    bins: tuple[tuple[int, ...], ...] = SHORT,
) -> Effects | None:
    """The effects of a table's columns; ``y``: times other than wall time."""
    if table is None:
        return None
    fit = regress(
        table.y if y is None else y,
        table.x,
        table.other,
        table,
        table.plans,
        bins,
        spacing=spacing_of(table),
    )
    if fit is None:
        return None
    ratio = np.fmax(1, np.nan_to_num(fit.design / np.maximum(fit.model, 1e-300), nan=1.0))
    c, c_cov = _without_sham(table, fit, ratio)
    cov = c_cov * ratio[:, None] * ratio[None, :]
    se = np.where(np.isfinite(fit.se), np.sqrt(np.maximum(np.diag(cov), 0)), np.nan)
    found = [
        Effect(column, float(c[k]), float(se[k]), fit.df, int(table.delayed[k]))
        if column.functions
        else Effect(column, float(fit.c[k]), float(fit.se[k]), fit.df, _on(table, k))
        for k, column in enumerate(table.columns)
    ]
    return Effects(table, fit, found, cov)


def _on(table: Table, k: int | np.intp) -> int:
    """In how many slots an arm was on."""
    return int(((table.x[:, k] > 0) & (table.age >= 0)).sum())


def _without_sham(table: Table, fit: Fit, ratio: Floats) -> tuple[Floats, Floats]:
    """The sums over lags, and their covariance, with the sham's coefficients at 0.

    The sham is undelayed like the baseline, and becomes part of it once it has passed its
    test. Its own entries stay unchanged.
    """
    own = np.array([not column.functions for column in table.columns])
    sums = _sums(fit.delays, fit.bins, len(fit.b))
    shams = np.flatnonzero(own & np.isfinite(fit.c) & (fit.se > 0))
    bounds = np.array([sham_bound(_on(table, k)) for k in shams])
    if not len(shams) or (np.abs(fit.c[shams]) > bounds * fit.se[shams]).any():
        return fit.c, fit.c_cov
    at = np.concatenate([shams + place * fit.delays for place in range(len(fit.bins))])
    at = at[np.diag(fit.cov)[at] > 0]
    # Not singular: its columns are among those with an answer.
    inner = fit.cov[np.ix_(at, at)]
    gain = np.linalg.solve(inner, fit.cov[at]).T
    b = fit.b - gain @ fit.b[at]
    cov = fit.cov - gain @ fit.cov[at]
    c, c_cov = sums @ b, sums @ cov @ sums.T
    keep = own | ~np.isfinite(fit.c)
    c_cov[keep] = c_cov[:, keep] = 0
    c_cov[np.ix_(keep, keep)] = fit.c_cov[np.ix_(keep, keep)]
    return np.where(keep, fit.c, c), c_cov
