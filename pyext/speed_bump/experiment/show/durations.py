# SPDX-License-Identifier: MIT
"""How long calls took, as ``run --latency`` shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from speed_bump.duration import human
from speed_bump.experiment.program.latency import Histogram, lowest
from speed_bump.experiment.show.table import LEFT, RIGHT, table

QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))


def text(found: Sequence[Histogram], wall_ns: int) -> str:
    """A line for each name, all processes together."""
    heads = [("count", RIGHT), ("rate", RIGHT), ("mean", RIGHT)]
    heads += [(name, RIGHT) for name, _ in QUANTILES]
    heads += [("max", RIGHT), ("latency", LEFT)]
    lines = [table(heads, [_row(one, wall_ns) for one in found])]
    for one in found:
        if one.unended:
            lines.append(
                f"{one.name}: {one.unended:,} of {one.count + one.unended:,} begun have "
                "not ended, and are left out"
            )
        if one.unbegun:
            lines.append(f"{one.name}: {one.unbegun:,} ends had no beginning")
    return "\n".join(lines)


def _row(one: Histogram, wall_ns: int) -> list[str]:
    count = one.count
    if not count:
        return ["0", *["-"] * (len(QUANTILES) + 3), one.name]
    return [
        f"{count:,}",
        f"{_rate(one, wall_ns):,.4g}/s",
        human(one.mean_ns),
        *(human(one.quantile_ns(q)) for _, q in QUANTILES),
        human(one.max_ns),
        one.name,
    ]


def _rate(one: Histogram, wall_ns: int) -> float:
    return one.count / wall_ns * 1e9 if wall_ns else 0.0


def as_json(found: Sequence[Histogram], wall_ns: int) -> list[dict[str, Any]]:
    """The same for programs. Times are ns.

    Each of ``buckets`` is [shortest, longest, count] of the durations in it.
    """
    return [
        {
            "name": one.name,
            "kind": one.kind,
            "requests": one.count,
            "requests_per_s": _rate(one, wall_ns),
            "mean_ns": one.mean_ns,
            **{f"{name}_ns": one.quantile_ns(q) for name, q in QUANTILES},
            "max_ns": one.max_ns,
            "unended": one.unended,
            "unbegun": one.unbegun,
            "buckets": [[lowest(b), lowest(b + 1) - 1, n] for b, n in one.used()],
        }
        for one in found
    ]
