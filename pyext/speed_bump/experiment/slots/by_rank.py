# SPDX-License-Identifier: MIT
"""Whether each rank of a job counts its own units."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from speed_bump import _core
from speed_bump.experiment import job_ranks as cluster
from speed_bump.experiment.slots.measure import Run
from speed_bump.experiment.watcher import Watcher


def count_by_rank(
    run: Run,
    reported: Sequence[_core.Rank],
    first: Run | None,
    works: Collection[str],
    watcher: Watcher,
) -> int:
    """Count units by rank if there are several ranks; returns how many work, at least 1.

    Args:
        reported: the ranks a while ago
        first: an earlier run of the same job
        works: the functions that the work calls
    """
    program = run.program
    now = program.plan.ranks()
    at_work = cluster.advanced(reported, now)
    # A later run belongs to the same job, and the ranks have just been examined.
    run.by_rank = first.by_rank if first else cluster.is_job(reported, now)
    if program.durations is not None:
        # The workers of a server: requests are those of all of them together.
        run.by_rank = False
    if not run.by_rank:
        return 1
    # The kernel has one slot number, not one for each rank.
    kinds = set(map(program.is_native, works))
    if kinds == {True}:
        run.by_rank = False
        if run.number == 1:
            told = cluster.told(cluster.who(at_work))
            watcher.event(
                f"{told}; native functions are delayed in all of them at the same time, "
                "and their units counted together"
            )
        return 1
    if True in kinds:
        watcher.event(
            "native functions are left out, because they can't be measured for each "
            "rank; name no Python functions to have native ones delayed in all "
            "processes at the same time"
        )
    if run.number == 1:
        told = cluster.told(cluster.who(at_work))
        watcher.event(f"{told}; each counts its own units")
    # Of a later run none may have reported since.
    return max(len(at_work), 1)
