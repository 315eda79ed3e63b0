# SPDX-License-Identifier: MIT
"""The effect of delays on the mean latency, from a histogram that the server exports.

A histogram has the sum and the count of requests that ended in a slot. With m the mean
while nothing is delayed, sum - m x count is the additional time, which is regressed on
the delays like the time of slots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from speed_bump.duration import human
from speed_bump.experiment.fit.columns import table
from speed_bump.experiment.fit.effects import LONG, SHORT, effects
from speed_bump.experiment.fit.interval import Interval, around
from speed_bump.experiment.record import Record

# A request that lasts more slots than this ends too late to be counted; with more than
# the second number, later slots are included.
MAX_SLOTS, MANY_SLOTS = 4.0, 0.5
# The minimal number of slots for a mean.
MIN_SLOTS = 16
QUANTILES = (0.5, 0.9, 0.99)


@dataclass
class MeanLatency:
    """The effects on requests that a histogram counts.

    Args:
        mean_ns: the mean while nothing is delayed
        added: by function, the additional time of a request, on average, per ns of delay
            in a unit of work
        refusal: why there are no effects; "" if there are
        between: for each quantile the bounds of its bucket, ns
    """

    mean_ns: float
    added: dict[str, Interval] = field(default_factory=dict)
    refusal: str = ""
    between: dict[float, tuple[float, float]] = field(default_factory=dict)


def mean_latency(record: Record) -> MeanLatency | None:
    """Estimate the effects; None if no histogram was read."""
    metered = record.metered
    if not metered or not len(metered.bounds) or len(metered.count) != len(record.slots):
        return None
    slots = record.slots
    known = slots.good & np.isfinite(metered.sum_ns) & np.isfinite(metered.count)
    quiet = known & (slots.mask == 0)
    count = float(metered.count[quiet].sum())
    if quiet.sum() < MIN_SLOTS or count <= 0:
        return None
    mean_ns = float(metered.sum_ns[quiet].sum()) / count
    found = MeanLatency(mean_ns, between=_between(record, quiet))
    if not mean_ns > 0:
        found.refusal = "the histogram adds up no time"
        return found
    data = table(record)
    if data is None:
        found.refusal = "too few slots were delayed"
        return found
    in_slots = mean_ns / data.base_ns
    if in_slots > MAX_SLOTS:
        found.refusal = (
            f"a request takes {human(mean_ns)}, which is {in_slots:.0f} slots: the "
            "effect of a delay comes too late to be assigned to it; give more --budget, "
            "for longer slots"
        )
        return found
    mean = count / int(quiet.sum())
    longer = (metered.sum_ns - mean_ns * metered.count) / mean / data.base_ns
    y = np.where(known, longer, math.nan)[len(slots) - len(data.y) :]
    fitted = effects(data, y, LONG if in_slots > MANY_SLOTS else SHORT)
    if fitted is None:
        found.refusal = "too few slots were delayed"
        return found
    for name in record.functions:
        some = [e for e in fitted.of((name,)) if e.se > 0]
        if some:
            weights = [1 / e.se**2 for e in some]
            c = sum(w * e.c for w, e in zip(weights, some, strict=True)) / sum(weights)
            error = 1 / math.sqrt(sum(weights))
            # From a delay in a slot to one in each unit of it.
            found.added[name] = around(mean * c, mean * error, some[0].df)
    return found


def _between(
    record: Record, quiet: np.typing.NDArray[np.bool_]
) -> dict[float, tuple[float, float]]:
    """The buckets of quantiles, among requests that ended while nothing was delayed."""
    metered = record.metered
    assert metered
    total = np.nansum(metered.buckets[quiet], axis=0)
    if not len(total) or not total[-1] > 0:
        return {}
    bounds = 1e9 * metered.bounds
    found = {}
    for q in QUANTILES:
        at = int(np.searchsorted(total, q * total[-1]))
        at = min(at, len(bounds) - 1)
        found[q] = (float(bounds[at - 1]) if at else 0.0, float(bounds[at]))
    return found
