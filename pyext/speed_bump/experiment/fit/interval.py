# SPDX-License-Identifier: MIT
"""Intervals, the quantiles that they are made of, and the thresholds of the verdicts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

CONFIDENCE = 0.95
# A function is hidden if certainly less than this part of its delay arrives, and matters
# if certainly more does. All commands use this threshold.
THRESHOLD = 0.1
# A function matters partly if certainly less than this part arrives.
WHOLE = 0.9
# A number with a wider half interval is not printed.
WIDEST = 0.5
NORMAL = NormalDist()

# How the reason begins where there is no number because its interval is too wide.
TOO_NOISY = "too noisy"

MATTERS, PARTLY, HIDDEN, INCONCLUSIVE = "matters", "partly", "hidden", "inconclusive"


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% confidence interval."""

    value: float
    low: float
    high: float

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    def hull(self, other: Interval) -> Interval:
        """An interval around this value, as wide as both."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Interval(self.value, low, high)


def label_of(interval: Interval) -> str:
    """The label that follows from an interval alone."""
    if interval.high < THRESHOLD:
        return HIDDEN
    if interval.low > THRESHOLD:
        return PARTLY if interval.high < WHOLE else MATTERS
    return INCONCLUSIVE


def around(value: float, error: float, df: float) -> Interval:
    """The t interval of an estimate with this standard error."""
    half = quantile(df) * error
    return Interval(value, value - half, value + half)


@lru_cache(maxsize=4096)
def _quantile(df: int, confidence: float) -> float:
    if df > 400:
        return NORMAL.inv_cdf((1 + confidence) / 2)
    return student_quantile(df, (1 + confidence) / 2)


def quantile(df: float, confidence: float = CONFIDENCE) -> float:
    """The two-sided quantile of Student's t, or of the normal if they are close."""
    return _quantile(max(int(df), 1), confidence)


def student_quantile(df: int, p: float = (1 + CONFIDENCE) / 2) -> float:
    """The ``p`` quantile of Student's t with ``df`` degrees of freedom, 0.5 < p < 1."""
    low, high = 0.0, 1.0
    while student_two_sided(high, df) < 2 * p - 1:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        if student_two_sided(middle, df) < 2 * p - 1:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def student_two_sided(t: float, df: int) -> float:
    """P(-t < T < t), by the finite series for whole degrees of freedom.

    Abramowitz & Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    theta = math.atan(t / math.sqrt(df))
    if df == 1:
        return 2 * theta / math.pi
    square = math.cos(theta) ** 2
    term = math.cos(theta) if df % 2 else 1.0
    total = term
    for k in range(3 if df % 2 else 2, df - 1, 2):
        term *= (k - 1) / k * square
        total += term
    if df % 2:
        return 2 / math.pi * (theta + math.sin(theta) * total)
    return math.sin(theta) * total


def upper_tail(t: float, df: float) -> float:
    """P(T > t) of Student's t, approximated by the normal if it is close."""
    if not math.isfinite(t):
        return 0.0 if t > 0 else 1.0
    if df > 400:
        return math.erfc(t / math.sqrt(2)) / 2
    two = student_two_sided(abs(t), max(int(df), 1))
    return max((1 - two) / 2 if t > 0 else (1 + two) / 2, 0.0)


def chi_square_tail(x: float, df: int) -> float:
    """P(X > x) of chi-square, by Wilson & Hilferty, PNAS 17 (1931)."""
    if x <= 0:
        return 1.0
    spread = 2 / (9 * df)
    z = ((x / df) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return math.erfc(z / math.sqrt(2)) / 2


def discoveries(p_values: list[float]) -> list[float]:
    """For each p value, the false discovery rate at which it would be called.

    Benjamini & Hochberg, JRSS B 57 (1995), as adjusted p values.
    """
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    rates = [1.0] * len(p_values)
    least = 1.0
    for rank in range(len(order), 0, -1):
        k = order[rank - 1]
        least = min(least, p_values[k] * len(order) / rank)
        rates[k] = least
    return rates
