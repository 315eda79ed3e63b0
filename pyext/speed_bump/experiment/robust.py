# SPDX-License-Identifier: MIT
"""Estimates from noisy pairs that a few bad pairs can't spoil.

A pair is a change ``e`` (of the time per unit of work) and the delay ``x`` that was
delivered per unit in it. The criticality is the ``c`` of ``e = c x + noise``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import lru_cache

from speed_bump.experiment.estimate import CONFIDENCE, Interval, student_quantile

# The share of pairs cut off at each end. 0.2 is the usual choice: Wilcox, Introduction to
# Robust Estimation and Hypothesis Testing, 3rd ed., 3.2.
TRIM = 0.2
RESAMPLES = 500
# Slopes that Theil-Sen looks at; more say nothing more.
MOST_SLOPES = 20_000


@lru_cache(maxsize=4096)
def quantile(df: int, confidence: float = CONFIDENCE) -> float:
    """The two-sided quantile of Student's t; that of the normal where it is near."""
    if df > 400:
        return normal_quantile((1 + confidence) / 2)
    return student_quantile(max(df, 1), (1 + confidence) / 2)


def normal_cdf(z: float) -> float:
    """P(Z < z) of the standard normal distribution."""
    return math.erfc(-z / math.sqrt(2)) / 2


@lru_cache(maxsize=256)
def normal_quantile(p: float) -> float:
    """The ``p`` quantile of the standard normal distribution, by bisection."""
    low, high = -10.0, 10.0
    for _ in range(80):
        middle = (low + high) / 2
        if normal_cdf(middle) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def trimmed_mean(values: Sequence[float], trim: float = TRIM) -> float:
    """The mean of what is left without the ``trim`` largest and smallest shares."""
    cut = int(trim * len(values))
    left = sorted(values)[cut : len(values) - cut]
    return math.fsum(left) / len(left)


def _winsorized_deviation(values: Sequence[float], trim: float) -> float:
    """The standard deviation once the cut-off values are drawn in to those left."""
    count = len(values)
    cut = int(trim * count)
    ordered = sorted(values)
    drawn = [
        *([ordered[cut]] * cut),
        *ordered[cut : count - cut],
        *([ordered[count - cut - 1]] * cut),
    ]
    mean = math.fsum(drawn) / count
    return math.sqrt(math.fsum((v - mean) ** 2 for v in drawn) / (count - 1))


def trimmed_interval(
    values: Sequence[float], confidence: float = CONFIDENCE, trim: float = TRIM
) -> Interval:
    """The trimmed mean with its interval; two values at least.

    Of paired differences this is the trimmed paired comparison of Yuen, The two-sample
    trimmed t for unequal population variances, Biometrika 61 (1974), with the standard
    error and the degrees of freedom of Tukey & McLaughlin, Sankhya A 25 (1963).
    """
    count = len(values)
    left = count - 2 * int(trim * count)
    if left < 2:
        trim, left = 0.0, count
    mean = trimmed_mean(values, trim)
    error = _winsorized_deviation(values, trim) / ((1 - 2 * trim) * math.sqrt(count))
    half = quantile(left - 1, confidence) * error
    return Interval(mean, mean - half, mean + half)


def trimmed_ratio(
    changes: Sequence[float],
    delivered: Sequence[float],
    confidence: float = CONFIDENCE,
    trim: float = TRIM,
) -> Interval:
    """The ``c`` for which the trimmed mean of ``e - c x`` is 0, with its interval.

    The delay delivered differs from pair to pair, so that it is the residuals that are
    trimmed: a pair with more delay than others is no outlier. Where ``x`` is the same in
    all pairs this is ``trimmed_interval(changes)`` divided by it.
    """
    count = len(changes)
    scale = math.fsum(delivered) / count
    if scale <= 0:
        raise ValueError("no delay was delivered")
    ratio = math.fsum(changes) / count / scale
    residuals = list(changes)
    for _ in range(50):
        residuals = [e - ratio * x for e, x in zip(changes, delivered, strict=True)]
        step = trimmed_mean(residuals, trim) / scale
        ratio += step
        if abs(step) < 1e-7 * (1 + abs(ratio)):
            break
    around = trimmed_interval(residuals, confidence, trim)
    half = (around.high - around.low) / 2 / scale
    return Interval(ratio, ratio - half, ratio + half)


def block_length(count: int) -> int:
    """Pairs in a block: n^(1/3), Hall, Horowitz & Jing, Biometrika 82 (1995)."""
    return max(1, round(math.pow(count, 1 / 3)))


def bootstrap_ratio(
    changes: Sequence[float],
    delivered: Sequence[float],
    seed: int = 0,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
) -> Interval:
    """The ratio of the plain means with a moving-block bootstrap interval.

    Pairs are in the order of time. Blocks of neighbours are drawn, so that what pairs
    near each other have in common stays together: Kuensch, The jackknife and the
    bootstrap for general stationary observations, Annals of Statistics 17 (1989). The
    interval is the basic one of Davison & Hinkley, Bootstrap Methods, 5.2.
    """
    count = len(changes)
    total = math.fsum(delivered)
    if total <= 0:
        raise ValueError("no delay was delivered")
    ratio = math.fsum(changes) / total
    length = block_length(count)
    starts = count - length + 1
    sums = [
        (math.fsum(changes[i : i + length]), math.fsum(delivered[i : i + length]))
        for i in range(starts)
    ]
    draw = random.Random(seed)
    blocks = -(-count // length)
    ratios = []
    for _ in range(resamples):
        chosen = draw.choices(sums, k=blocks)
        below = sum(x for _, x in chosen)
        if below > 0:
            ratios.append(sum(e for e, _ in chosen) / below)
    if not ratios:
        return Interval(ratio, -math.inf, math.inf)
    ratios.sort()
    low, high = (
        ratios[min(int(p * len(ratios)), len(ratios) - 1)]
        for p in ((1 - confidence) / 2, (1 + confidence) / 2)
    )
    return Interval(ratio, 2 * ratio - high, 2 * ratio - low)


def theil_sen(
    changes: Sequence[float],
    delivered: Sequence[float],
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Interval | None:
    """The median slope of change over delay between pairs of different delay.

    Sen, Estimates of the regression coefficient based on Kendall's tau, Journal of the
    American Statistical Association 63 (1968), whose interval this is too; of many slopes
    a sample. Pairs whose delays hardly differ say nothing of a slope and are left out.
    None: there are no two pairs of different delay.
    """
    count = len(changes)
    if count < 3:
        return None
    order = sorted(range(count), key=lambda i: delivered[i])
    least = (delivered[order[-1]] - delivered[order[0]]) / 10
    if least <= 0:
        return None
    draw = random.Random(seed)
    every = count * (count - 1) // 2
    if every <= MOST_SLOPES:
        couples = [(i, j) for i in range(count) for j in range(i + 1, count)]
    else:
        couples = [
            (draw.randrange(count), draw.randrange(count)) for _ in range(MOST_SLOPES)
        ]
    slopes = sorted(
        (changes[j] - changes[i]) / (delivered[j] - delivered[i])
        for i, j in couples
        if abs(delivered[j] - delivered[i]) > least
    )
    if len(slopes) < 3:
        return None
    middle = slopes[len(slopes) // 2]
    # The share of slopes between the limits does not depend on how many were sampled.
    error = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    part = normal_quantile((1 + confidence) / 2) * error / every / 2
    low = slopes[max(int((0.5 - part) * len(slopes)), 0)]
    high = slopes[min(int((0.5 + part) * len(slopes)), len(slopes) - 1)]
    return Interval(middle, low, high)


def standard_error(interval: Interval, pairs: int) -> float:
    """Of an estimate whose interval is a Student one of ``pairs`` trimmed pairs."""
    left = max(pairs - 2 * int(TRIM * pairs), 2)
    return (interval.high - interval.low) / 2 / quantile(left - 1)


def false_discovery(p_values: Sequence[float]) -> list[float]:
    """For each p value the rate of false discoveries if it is called one.

    Benjamini & Hochberg, Journal of the Royal Statistical Society B 57 (1995), as
    adjusted values: taking all below 0.05 holds the rate at 0.05.
    """
    count = len(p_values)
    order = sorted(range(count), key=lambda i: p_values[i])
    adjusted = [1.0] * count
    least = 1.0
    for rank in range(count, 0, -1):
        i = order[rank - 1]
        least = min(least, p_values[i] * count / rank)
        adjusted[i] = least
    return adjusted
