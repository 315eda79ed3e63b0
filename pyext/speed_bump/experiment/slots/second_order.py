# SPDX-License-Identifier: MIT
"""Questions that only first answers raise.

Where a part of a delay arrives, or more than all of it: is it the same of shorter delays?
How long is the slack of a function that is hidden, or partly so? Do the functions that
matter cost together what they cost alone?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from speed_bump.experiment.fit.interval import THRESHOLD
from speed_bump.experiment.fit.number import is_certain, is_jump, tells
from speed_bump.experiment.record import Block, SelfTime
from speed_bump.experiment.slots.arms import Delays
from speed_bump.experiment.slots.doses import DOSES
from speed_bump.experiment.slots.known import MIN_HOLDS, Known
from speed_bump.experiment.slots.now import Now
from speed_bump.experiment.slots.plan import (
    HOLDS,
    PEDESTAL_HOLDS,
    each_on_its_own,
    pedestal,
)

# Effects of smaller doses than this are not looked for.
MIN_LEVEL = 0.04
# Slots of each height of a pedestal, and before the highest one.
PEDESTAL_SLOTS, PEDESTAL_SETTLE, PEDESTAL_STEPS = 80, 60, 6
PEDESTAL_STEP = 0.15
MIN_PEDESTAL_STEP = 0.05
TIES_CHANCE = 0.25
MAX_TIED = 6


def between(known: Known, names: Sequence[str]) -> dict[str, float]:
    """Functions of which a part arrives, if small doses don't tell whether always.

    The value is the dose with which shorter ones are to be compared.
    """
    some = {}
    for name in names:
        best = known.headline(name)
        if best is None:
            continue
        interval = best.interval
        part = interval.low > THRESHOLD and best.c < 0.9 and interval.half < 0.3
        if not (part or is_jump(best, known.threads)):
            continue
        far = max(2 * known.precision, 0.1)
        told = [e for e in known.valid(name) if tells(e, far)] or [best]
        least = min(e.column.dose for e in told)
        # Slack that a third of a delay uses up may hide a ninth of it.
        if least > MIN_LEVEL and not is_certain(told, known.threads):
            some[name] = least
    return some


def jumps(known: Known, name: str) -> bool:
    """Whether more than all of a delay arrives."""
    effect = known.headline(name)
    return effect is not None and is_jump(effect, known.threads)


def only_shorter_are_left(known: Known, names: Sequence[str]) -> bool:
    """Whether shorter delays are the only remaining question."""
    for name in names:
        effect = known.headline(name)
        if effect is None or effect.delayed < MIN_HOLDS:
            return False
        interval = effect.interval
        is_clear = interval.low > THRESHOLD or interval.high < THRESHOLD
        if not is_clear or interval.half > 0.2:
            return False
    return bool(between(known, names))


def shorter(wanted: Mapping[str, float]) -> tuple[list[str], tuple[float, float]]:
    """The functions of ``between()`` with the longest delays, and a longer and a shorter
    dose.
    """
    dose = max(wanted.values())
    names = [name for name, largest in wanted.items() if largest > 0.9 * dose]
    return names, (float(f"{dose:.6g}"), float(f"{dose / 3:.6g}"))


def pedestal_block(
    known: Known,
    names: Sequence[str],
    self_times: Mapping[str, SelfTime],
    delays: Delays,
    now: Now,
    cap: float,
    draw: np.random.Generator,
) -> Block | None:
    """Measure the slack of a function in between, or of the busiest hidden one.

    None: there is no such function, or too little is left of the time or the slowdown.

    Args:
        names: of which one is chosen
        cap: the ratio of delay to undelayed time over the whole run
    """
    wanted = []
    for name in names:
        effect = known.headline(name)
        if effect is None:
            continue
        own = self_times.get(name)
        share = own.share if own is not None else 0.0
        if THRESHOLD < effect.c < 0.85 and effect.interval.high < 1:
            wanted.append((2.0 + share, name))
        elif effect.interval.high < THRESHOLD and share > 0.02:
            wanted.append((share, name))
    if not wanted:
        return None
    _, name = max(wanted)
    count = PEDESTAL_SETTLE + PEDESTAL_SLOTS * PEDESTAL_STEPS
    # In steps: each height with half of the next one, the highest while settling.
    total = PEDESTAL_SLOTS * PEDESTAL_STEPS**2 / 2
    total += PEDESTAL_SETTLE * (PEDESTAL_STEPS - 0.5)
    step = min(PEDESTAL_STEP, 0.95 * now.room(cap, count) / total)
    longer = count + total * step
    if step < MIN_PEDESTAL_STEP or longer > 0.95 * now.left_slots:
        return None
    doses = tuple(step * (k + 1) for k in range(PEDESTAL_STEPS))
    masks, levels, parts = pedestal(draw, PEDESTAL_STEPS, PEDESTAL_SLOTS, PEDESTAL_SETTLE)
    return Block(
        "pedestal",
        (delays.arm((name,), doses, now),),
        masks,
        levels,
        (0.5,),
        PEDESTAL_HOLDS,
        False,
        doses,
        0,
        parts,
    )


def tied_block(
    known: Known,
    names: Sequence[str],
    largest: float,
    count: int,
    delays: Delays,
    now: Now,
    cap: float,
    draw: np.random.Generator,
) -> Block | None:
    """Delay those that matter together: do they matter as they do alone?

    None: there are not two, or too little is left of the time or the slowdown.

    Args:
        names: of which those that matter are chosen
        largest: the dose, if the slowdown allows it
        count: of slots
        cap: the ratio of delay to undelayed time over the whole run
    """
    strong = []
    for name in names:
        effect = known.headline(name)
        if effect is not None and effect.interval.low > THRESHOLD:
            strong.append((effect.c, name))
    if len(strong) < 2:
        return None
    tied = sorted(name for _, name in sorted(strong, reverse=True)[:MAX_TIED])
    room = 0.95 * now.room(cap, count)
    dose = min(largest, room / (TIES_CHANCE * len(tied) * count))
    longer = count * (1 + TIES_CHANCE * len(tied) * dose)
    if dose < DOSES[1] or longer > now.left_slots:
        return None
    dose = float(f"{dose:.2g}")
    arms = tuple(delays.arm((name,), (dose,), now) for name in tied)
    chances = (TIES_CHANCE,) * len(arms)
    masks = each_on_its_own(draw, count, chances, HOLDS)
    levels = np.zeros(count, np.uint8)
    return Block("ties", arms, masks, levels, chances, HOLDS, False, (dose,))
