# SPDX-License-Identifier: MIT
"""Estimating effects again and again while the experiment runs, but not too often."""

from __future__ import annotations

from dataclasses import dataclass

from speed_bump.experiment.fit.columns import SINGLE, table
from speed_bump.experiment.fit.contention import contention
from speed_bump.experiment.fit.effects import Effects, effects
from speed_bump.experiment.fit.longer import LONGER, sort
from speed_bump.experiment.record import Record
from speed_bump.experiment.slots.now import Now

# The estimated cost of a fit in ns per slot and column, and its maximal part of the time.
FIT_NS = 0.55
FIT_SHARE = 0.15
# It needs more slots than the previous one by this factor, and by this number.
GROWTH, MIN_NEW = 1.12, 40


@dataclass(frozen=True)
class Estimate:
    """A fit of the record.

    Args:
        effects: of delays on the unit of the thread that had them
        threads: that do units at the same time
        is_refused: whether other programs are in the way of any label
        seen: slots until then
        at_s: since the first slot
        visible: functions of which longer delays are of no use
    """

    effects: Effects
    threads: float
    is_refused: bool
    seen: int
    at_s: float
    visible: frozenset[str]


def estimate(
    record: Record, now: Now, previous: Estimate | None, most: int
) -> Estimate | None:
    """Fit again, or return the previous estimate; None: nothing can be said yet.

    The duration of a fit is computed, not measured, so that a seed gives the same result.

    Args:
        most: the maximal number of functions that are fitted
    """
    if previous is not None and not _is_due(record, now, previous, most):
        return previous
    kept = sort(record)
    record = kept.record
    data = table(record, SINGLE)
    if data is None:
        return None
    how = contention(record, data)
    found = effects(data, how.y)
    if found is None:
        return None
    return Estimate(
        found.of_thread(record.side_by_side),
        record.side_by_side,
        bool(how.refusal),
        now.seen,
        now.elapsed_s,
        kept.visible,
    )


def _is_due(record: Record, now: Now, previous: Estimate, most: int) -> bool:
    if now.seen < max(GROWTH * previous.seen, previous.seen + MIN_NEW):
        return False
    width = 2 * min(len(record.functions), most) + 10
    takes = FIT_NS * now.slots * width * (0.15 * width + 400) / 1e9
    # One more, to sort out blocks of longer delays.
    takes *= 1 + any(block.stage == LONGER for block in record.blocks)
    return now.elapsed_s - previous.at_s >= takes / FIT_SHARE
