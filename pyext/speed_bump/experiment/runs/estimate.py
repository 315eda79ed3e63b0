# SPDX-License-Identifier: MIT
"""Estimates from whole runs with 95% intervals, and when there are none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from speed_bump.experiment.fit.interval import (
    HIDDEN,
    INCONCLUSIVE,
    THRESHOLD,
    TOO_NOISY,
    WIDEST,
    Interval,
    label_of,
    student_quantile,
)

# Half an interval need never be narrower than this.
FINEST = 0.05
# The program's waits for a CPU are subtracted from its time. If they were a larger part
# than this, what it was blocked for had waited, too.
BUSY = 0.5
# More runs than these are too many for one answer.
MAX_PAIRS = 1000
QUIETER = "run it when the machine has less to do"


@dataclass(frozen=True)
class Estimate:
    """The effect of slowing one target. Times are ns: per run, or per unit of work.

    ``requested_ns`` is the delay asked for, ``delivered_ns`` the delay delivered,
    ``change_ns`` the change of the program's time, ``criticality`` the change divided by
    the delay delivered; None: there are no two pairs yet, or nothing was delivered.
    ``verdict`` is one of those of an experiment by slots, with its ``reason`` and what
    would ``help``; ``supported`` says whether the data support a number for the
    criticality.
    """

    pairs: int
    base_ns: float
    requested_ns: float
    delivered_ns: float
    change_ns: Interval | None
    criticality: Interval | None
    verdict: str
    reason: str
    help: str
    supported: bool

    @property
    def said(self) -> str:
        """The verdict in words; with what is missing, if it is inconclusive."""
        if self.verdict != INCONCLUSIVE:
            return self.verdict
        return f"{INCONCLUSIVE}: {self.reason}; {self.help}"


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean with its t interval, of two values or more."""
    count = len(values)
    mean = math.fsum(values) / count
    spread = math.fsum((v - mean) ** 2 for v in values) / (count - 1)
    half = student_quantile(count - 1) * math.sqrt(spread / count)
    return Interval(mean, mean - half, mean + half)


def ratio_interval(changes: Sequence[float], delivered: Sequence[float]) -> Interval:
    """The ratio of two totals, sum(changes) / sum(delivered), with its interval.

    The error is that of the residuals ``change - ratio * delivered`` of the pairs, with
    pairs - 1 degrees of freedom: the ratio estimator of Cochran, Sampling Techniques, 3rd
    ed., 6.3-6.4. With equal delays in all pairs, it is the t interval of the paired
    differences, divided by the delay.
    """
    count = len(changes)
    total = math.fsum(delivered)
    ratio = math.fsum(changes) / total
    residuals = (c - ratio * i for c, i in zip(changes, delivered, strict=True))
    spread = math.fsum(r * r for r in residuals) / (count - 1)
    half = student_quantile(count - 1) * math.sqrt(spread / count) / (total / count)
    return Interval(ratio, ratio - half, ratio + half)


def estimate(
    base: Sequence[float],
    delayed: Sequence[float],
    requested: Sequence[float],
    delivered: Sequence[float],
    waited: float = 0.0,
) -> Estimate:
    """Estimate from pairs of an undelayed and a delayed time, and the delay.

    Args:
        requested: the delay asked for
        delivered: the delay delivered
        waited: the part of its time that the program waited for a CPU
    """
    pairs = len(base)
    mean_base, mean_requested, mean_delivered = (
        math.fsum(values) / pairs if pairs else 0.0
        for values in (base, requested, delivered)
    )

    def found(
        change: Interval | None,
        ratio: Interval | None,
        verdict: str,
        reason: str,
        helps: str,
    ) -> Estimate:
        supported = verdict != INCONCLUSIVE
        return Estimate(
            *(pairs, mean_base, mean_requested, mean_delivered, change, ratio),
            *(verdict, reason, helps, supported),
        )

    if pairs < 2:
        runs = f"{pairs} pair{'s' * (pairs != 1)} of runs are too few"
        return found(None, None, INCONCLUSIVE, runs, "more time, or a shorter run")
    changes = [d - b for b, d in zip(base, delayed, strict=True)]
    change = mean_interval(changes)
    if mean_delivered <= 0:
        return found(
            change,
            None,
            INCONCLUSIVE,
            "no delay was delivered",
            "a longer delay, or targets that the program calls",
        )
    ratio = ratio_interval(changes, delivered)
    if waited > BUSY:
        reason = f"the machine is busy, the program waited {waited:.0%} of its time"
        return found(change, ratio, INCONCLUSIVE, reason, QUIETER)
    return found(change, ratio, *judge(ratio, pairs))


def judge(criticality: Interval, pairs: int) -> tuple[str, str, str]:
    """A verdict, its reason, and what would help."""
    half = criticality.half
    says = f"{criticality.value:.2f} ± {half:.2f} of its delay arrives"
    label = label_of(criticality) if half <= WIDEST else INCONCLUSIVE
    if label == HIDDEN:
        return label, f"{says}: something else is always later", ""
    if label != INCONCLUSIVE:
        return label, f"{says}: delaying it costs throughput", ""
    more = more_pairs(criticality, pairs)
    if more > MAX_PAIRS:
        return label, "the delay is lost in the noise", "use a longer one"
    reason = f"{TOO_NOISY}: ± {half:.1f} after {pairs} pairs of runs"
    if half <= WIDEST:
        reason = f"{says}: above or below {THRESHOLD} is not certain"
    return label, reason, f"needs about {more} more run{'s' * (more != 1)}"


def more_pairs(criticality: Interval, pairs: int) -> int:
    """How many more pairs would decide, if they scatter like those made.

    The half width of an interval shrinks with the root of the number of pairs; it must
    become the distance to the threshold, and ``WIDEST`` at most.
    """
    half = (criticality.high - criticality.low) / 2
    error = half / student_quantile(pairs - 1) * math.sqrt(pairs)
    distance = min(max(abs(criticality.value - THRESHOLD), FINEST), WIDEST)

    def decides(count: int) -> bool:
        return student_quantile(count - 1) * error / math.sqrt(count) < distance

    return max(_first(decides, pairs + 1, pairs + MAX_PAIRS + 1) - pairs, 1)


def _first(true_from: Callable[[int], bool], low: int, most: int) -> int:
    """The first number from ``low`` on for which ``true_from`` holds, or ``most``."""
    high = low
    while high < most and not true_from(high):
        high = min(2 * high, most)
    while low < high:
        middle = (low + high) // 2
        if true_from(middle):
            high = middle
        else:
            low = middle + 1
    return low
