# SPDX-License-Identifier: MIT
"""The effects of delays on the mean of a server's histogram: text and JSON."""

from __future__ import annotations

import math
from typing import Any

from speed_bump.duration import human
from speed_bump.experiment.fit.mean_latency import MeanLatency
from speed_bump.experiment.record import Record
from speed_bump.experiment.show.encode import finite, interval_json

HEADS = ("function", "1 ms of delay a unit adds to the mean")


def rows(found: MeanLatency, order: list[str]) -> list[list[str]]:
    """A row for each function with an answer, in this order."""
    return [
        [name, f"{found.added[name].value:.2f} ± {found.added[name].half:.2f} ms"]
        for name in order
        if name in found.added and math.isfinite(found.added[name].half)
    ]


def lines(record: Record, found: MeanLatency) -> list[str]:
    """Sentences about all of them."""
    name = (record.header.get("metric") or {}).get("name", "the histogram")
    text = f"latency: a request takes {human(found.mean_ns)} in the mean by {name}"
    parts = [
        f"p{100 * q:g} is between {human(low)} and "
        + (human(high) if math.isfinite(high) else "any time")
        for q, (low, high) in found.between.items()
    ]
    said = [f"{text}, undelayed" + (f"; {', '.join(parts)}" if parts else "")]
    if parts:
        said.append(
            "a histogram bounds its quantiles by its buckets; what a delay adds is "
            "measured of the mean alone"
        )
    if found.refusal:
        said.append(f"what delays add to it is not known: {found.refusal}")
    return said


def as_json(found: MeanLatency | None) -> dict[str, Any] | None:
    """JSON; times are ns."""
    if found is None:
        return None
    return {
        "mean_ns": found.mean_ns,
        "reason": found.refusal,
        "per_ms": {
            name: interval_json(i)
            for name, i in found.added.items()
            if math.isfinite(i.half)
        },
        "quantiles": [
            {
                "quantile": q,
                "low_ns": low,
                "high_ns": finite(high),
            }
            for q, (low, high) in found.between.items()
        ],
    }
