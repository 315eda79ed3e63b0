# SPDX-License-Identifier: MIT
"""Longer delays of functions that seem hidden: what they say, and when they say nothing.

What is hidden of a longer delay is of a shorter one, too, because slack only bends the
response upwards; and of a delay that is twice as long, half the width of the interval is
left. But a part of a longer delay that arrives, or slack that it uses up, says nothing of
shorter ones. Such blocks are put aside, with all that they do to the noise, late effects
and the bill.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from speed_bump.experiment.fit.bill import Bill, bills
from speed_bump.experiment.fit.columns import SINGLE, table
from speed_bump.experiment.fit.contention import contention
from speed_bump.experiment.fit.effects import Effect, Effects, effects
from speed_bump.experiment.fit.interval import THRESHOLD
from speed_bump.experiment.record import Block, Record

LONGER, ASIDE = "longer", "aside"
# A bill that is below 0 by this part of its half interval may be of slack used up.
DOUBTFUL = 0.5


@dataclass(frozen=True)
class Sorted:
    """A record in which blocks that say nothing are put aside.

    ``visible`` are the functions of which longer delays are of no use.
    """

    record: Record
    visible: frozenset[str] = frozenset()


def doses_of(record: Record) -> set[float]:
    """The doses of longer delays."""
    return {block.doses[0] for block in record.blocks if block.stage == LONGER}


def seems_hidden(effect: Effect) -> bool:
    """Whether nothing of its delays may arrive."""
    return effect.c < THRESHOLD + effect.se


def uses_slack(bill: Bill) -> bool:
    """Whether its delays may well have used up slack, though it is no alarm."""
    return bill.cost.value < -DOUBTFUL * bill.cost.half


def sort(record: Record) -> Sorted:
    """Put blocks of longer delays aside that say nothing of shorter ones."""
    if all(block.stage != LONGER for block in record.blocks):
        return Sorted(record)
    data = table(record, SINGLE)
    how = contention(record, data) if data is not None else None
    found = effects(data, how.y if how else None)
    if found is None:
        return Sorted(record)
    tried = doses_of(record)
    billed = bills(found)
    false = {bill.dose for bill in billed if bill.dose in tried and bill.alarm}
    found = found.of_thread(record.side_by_side)
    visible = {
        name
        for block in record.blocks
        if block.stage == LONGER
        for name in _functions(block)
        if block.doses[0] in false or not _seems_hidden_at(found, name, block.doses[0])
    }
    if visible and any(uses_slack(bill) for bill in billed if bill.dose not in tried):
        # Shorter ones may be as wrong: the bill of the longer ones stands.
        return Sorted(record, frozenset(visible))
    blocks = [
        replace(block, stage=ASIDE)
        if block.stage == LONGER and not visible.isdisjoint(_functions(block))
        else block
        for block in record.blocks
    ]
    return Sorted(replace(record, blocks=blocks), frozenset(visible))


def _seems_hidden_at(found: Effects, name: str, dose: float) -> bool:
    same = (e for e in found.of((name,)) if e.column.dose == dose)
    return all(map(seems_hidden, same))


def _functions(block: Block) -> set[str]:
    """Without those that are called seldom, whose delays are as in other blocks."""
    arms = block.arms[: len(block.arms) - block.coins]
    return {name for arm in arms for name in arm.functions}
