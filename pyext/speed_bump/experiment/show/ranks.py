# SPDX-License-Identifier: MIT
"""The ranks of a job, as text and JSON: names, functions by rank, waits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from speed_bump.duration import human
from speed_bump.experiment.cluster.groups import Group, common_label
from speed_bump.experiment.cluster.places import Places, merged
from speed_bump.experiment.fit.interval import Interval
from speed_bump.experiment.job_ranks import Rank
from speed_bump.experiment.show.encode import interval_json
from speed_bump.experiment.show.table import LEFT, RIGHT, table

MAX_PLACES = 10
MAX_FUNCTIONS = 6
# For a job with ranks without known places.
NO_WAITS = (
    "on which ranks: not known, because no wait for others was seen; waits are seen in "
    "the collectives of torch.distributed and of MPI in which the host waits"
)
LEGEND = (
    "own work: of a step, without waiting for others. last in: the part of the steps in "
    "which others waited for it. Columns of functions: the part of a delay that arrives "
    "in the own work of that rank."
)


def named(ranks: Sequence[Rank], groups: Sequence[Group] = ()) -> str:
    """Such as "1", "0, 2", "node n7", or "62 others"."""
    label = common_label(ranks, groups)
    if label:
        return label
    if len(ranks) > 4:
        return f"{len(ranks)} others"
    return ", ".join(str(r.rank) if r.rank >= 0 else str(r.pid) for r in ranks)


def called(ranks: Sequence[Rank], groups: Sequence[Group] = ()) -> str:
    """As in a sentence: such as "rank 1", "pp=1", or "62 others"."""
    name = named(ranks, groups)
    return name if common_label(ranks, groups) or len(ranks) > 4 else f"rank {name}"


def option(ranks: Sequence[Rank]) -> str:
    """In the form of --confirm: "1" or "0-3,6"."""
    parts: list[list[int]] = []
    for number in sorted(rank.rank for rank in ranks):
        if parts and parts[-1][1] + 1 == number:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _number(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    return f"{interval.value:.2f} ± {interval.half:.2f}".replace("-0.00", "0.00")


def _time(ns: float) -> str:
    return human(ns) if math.isfinite(ns) else "-"


def places_table(found: Places, names: Sequence[str]) -> str:
    """The second part of the table.

    Args:
        names: the functions to show, the most interesting first
    """
    few = merged(found, MAX_PLACES)
    at = [few.functions.index(name) for name in names if name in few.functions]
    at = at[:MAX_FUNCTIONS]
    heads = [("rank", LEFT), ("own work", RIGHT), ("waits", RIGHT), ("last in", RIGHT)]
    heads += [(few.functions[k].rpartition(":")[2], RIGHT) for k in at]
    rows = [
        [
            named(place.ranks, found.groups),
            _time(place.own_ns),
            _time(place.wait_ns),
            f"{100 * place.last:.1f}%",
            *(_number(place.cells[k]) for k in at),
        ]
        for place in few.places
    ]
    return table(heads, rows)


def waiting(found: Places) -> str:
    """Which rank the others wait for, in a sentence."""
    limiting = found.limiting
    step = found.step_ns
    if limiting is None:
        most = max((place.last for place in found.places), default=0.0)
        waits = [p.wait_ns for p in found.places if math.isfinite(p.wait_ns)]
        mean = sum(waits) / max(len(waits), 1)
        part = 100 * mean / step if step else 0.0
        return (
            f"no rank limits: none is last in more than {100 * most:.0f}% of the steps; "
            f"ranks wait {human(mean)} of {human(step)} ({part:.1f}%) for others"
        )
    wait = found.others_wait_ns
    return (
        f"{called(limiting.ranks, found.groups)} limits: it is last in "
        f"{100 * limiting.last:.1f}% of the steps, and the others wait {human(wait)} of "
        f"{human(step)} for it; a delay elsewhere arrives only beyond that slack"
    )


def as_json(found: Places | None, who: Sequence[Rank]) -> dict[str, Any]:
    """The ranks as JSON; ``places`` is None if waits were not seen."""
    limiting = found.limiting if found else None
    return {
        "ranks": [asdict(rank) for rank in who],
        "places": found
        and [
            {
                "ranks": [rank.rank for rank in place.ranks],
                "own_ns": place.own_ns,
                "wait_ns": place.wait_ns,
                "last": place.last,
                "targets": {
                    name: interval_json(cell)
                    for name, cell in zip(found.functions, place.cells, strict=True)
                },
            }
            for place in found.places
        ],
        "limiting": [rank.rank for rank in limiting.ranks] if limiting else None,
        "groups": _groups_json(found) if found else [],
    }


def _groups_json(found: Places) -> list[dict[str, Any]]:
    place_of = {rank: place for place in found.places for rank in place.ranks}
    shown = []
    for group in found.groups:
        inside = [place_of[rank] for rank in sorted(group.ranks, key=lambda r: r.rank)]
        shown.append(
            {
                "name": group.label,
                "ranks": [rank.rank for place in inside for rank in place.ranks],
                "own_ns": sum(place.own_ns for place in inside) / len(inside),
                "wait_ns": sum(place.wait_ns for place in inside) / len(inside),
                "last": sum(place.last for place in inside),
            }
        )
    return shown
