# SPDX-License-Identifier: MIT
"""How many units of work a slot should have where they end in bursts.

An event loop that has eight connections ends eight requests in each of its rounds, and
then none for a while: a slot of two units is a fraction of a millisecond, three times,
and then ten. Slots of a whole round all take as long.
"""

from __future__ import annotations

import numpy as np

from speed_bump.experiment.record import Floats, Slots

# Slots that are joined, at most.
LONGEST = 64
# Joined slots that must have been seen, and that must be left.
MIN_SEEN, MIN_LEFT = 12, 120
# Slots are joined if the variance per slot is less than this part of what it was; of such
# numbers the smallest that is nearly as good as the best.
WORTH, NEARLY = 0.35, 1.6
# What takes longer than this multiple of a long slot is a pause.
PAUSE = 2.0


def factor(slots: Slots, left_ns: float) -> int:
    """By which to multiply the units of a slot.

    The error of the effect of a delay for each unit is sd(m) / m / sqrt(N / m), where
    sd(m) is that of the time of m slots together: its square is Var(m) / m, except
    for a constant.

    Args:
        slots: without delays
        left_ns: the remaining time
    """
    waited = np.nan_to_num(slots.wait_ns)
    times = (slots.time_ns - waited)[slots.good & (slots.time_ns > 0)]
    if len(times) < 2 * MIN_SEEN:
        return 1
    most = min(LONGEST, len(times) // MIN_SEEN, int(left_ns / times.mean() / MIN_LEFT))
    if most < 2:
        return 1
    # A pause of the program says nothing about its rounds.
    times = np.minimum(times, PAUSE * np.quantile(times, 0.98))
    variances = np.array([_variance(times, m) / m for m in range(1, most + 1)])
    best = variances.min()
    if best >= WORTH * variances[0]:
        return 1
    return int(np.flatnonzero(variances <= NEARLY * best)[0]) + 1


def _variance(times: Floats, count: int) -> float:
    """Of the sum of this number of successive times."""
    return float(np.convolve(times, np.ones(count), "valid").var())
