# SPDX-License-Identifier: MIT
"""Functions without a number of their own: in a group while screening, or not called."""

from __future__ import annotations

from dataclasses import dataclass

# isort: off
import speed_bump.experiment.algebra  # noqa: F401
import numpy as np
# isort: on

from speed_bump.experiment.fit.contention import of_groups
from speed_bump.experiment.fit.finding import lasting
from speed_bump.experiment.fit.interval import (
    HIDDEN,
    INCONCLUSIVE,
    THRESHOLD,
    Interval,
    around,
)
from speed_bump.experiment.fit.number import MIN_DELAYED, MIN_ROWS
from speed_bump.experiment.record import Record

# With this part of its calls in slots that are left out, more of the same does not help.
NEARLY_ALL = 0.9


@dataclass
class Group:
    """The last group that a function was screened in."""

    members: int
    total: Interval


def grouped(record: Record) -> dict[str, Group]:
    """By function: the smallest group that it was in, and the cost of the group."""
    if all(block.stage != "groups" for block in record.blocks):
        return {}
    found = of_groups(record)
    groups: dict[str, Group] = {}
    if found is None:
        return groups
    for effect in sorted(found.effects, key=lambda e: -len(e.column.functions)):
        members = len(effect.column.functions)
        if members and effect.known:
            total = around(effect.c * members, effect.se * members, effect.df)
            groups.update(dict.fromkeys(effect.column.functions, Group(members, total)))
    return groups


def unmeasured(
    record: Record, name: str, group: Group | None, spent: float, flooded: float
) -> tuple[str, str, str]:
    """Reason, help and label of a function that has no number of its own.

    Args:
        spent: seconds so far
        flooded: the part of its calls that is in slots left out for floods
    """
    if name in record.idle or name not in record.functions:
        return "it was never called", "a workload that calls it", INCONCLUSIVE
    calls = record.slots.calls[:, record.functions.index(name)]
    total = float(np.nansum(calls)) if len(calls) else 0.0
    if total == 0:
        return (
            "it was never called while the experiment ran",
            "a longer run",
            INCONCLUSIVE,
        )
    threads = record.side_by_side
    if group is not None and group.total.high < THRESHOLD:
        return (
            f"all {group.members} functions of its group together cost "
            f"{group.total.value / threads:.2f} ± {group.total.half / threads:.2f} "
            "of their delay",
            "",
            HIDDEN,
        )
    if flooded > NEARLY_ALL:
        return (
            f"{flooded:.0%} of its calls are in slots that are left out",
            "a unit of work that contains them, --progress, and a run of minutes, as "
            "there are fewer such units",
            INCONCLUSIVE,
        )
    if group is not None:
        if group.total.high < 0.3:
            return (
                f"under {group.total.high / threads:.2f}, by a test of a group of "
                f"{group.members}",
                f"name it as the target, or run for {lasting(2 * spent)} more",
                INCONCLUSIVE,
            )
        return (
            f"only measured in a group of {group.members}, which together costs "
            f"{group.total.value / threads:.2f} ± {group.total.half / threads:.2f} of a "
            "delay",
            f"name fewer functions, run for {lasting(2 * spent)} more, or allow a "
            "larger --max-slowdown",
            INCONCLUSIVE,
        )
    if len(record.slots) < MIN_ROWS:
        return (
            f"only {len(record.slots)} slots were seen",
            "a longer run, or a shorter unit of work",
            INCONCLUSIVE,
        )
    delayed = float(
        np.nansum(record.slots.delivered_ns[:, record.functions.index(name)] > 0)
    )
    if delayed < MIN_DELAYED:
        seldom = int((np.nan_to_num(calls) > 0).sum())
        return (
            f"it was called in {seldom} of {len(record.slots)} slots, and delayed in "
            f"{delayed:.0f}",
            f"run it for {lasting(max(2 * spent, 10))} more, with fewer functions, or "
            "with a larger --max-slowdown",
            INCONCLUSIVE,
        )
    return (
        "its delays can't be separated from those of others yet",
        f"run it for {lasting(max(spent, 10))} more",
        INCONCLUSIVE,
    )
