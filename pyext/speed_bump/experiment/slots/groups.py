# SPDX-License-Identifier: MIT
"""Screening many functions in groups, which are split where something matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from speed_bump.experiment.fit.contention import of_groups
from speed_bump.experiment.fit.effects import Effect
from speed_bump.experiment.fit.interval import THRESHOLD
from speed_bump.experiment.record import Record
from speed_bump.experiment.slots.known import MIN_HOLDS
from speed_bump.experiment.slots.now import Now

Group = tuple[str, ...]

# With more candidates than this, they are screened in groups.
MAX_SINGLE = 24
GROUP_COUNT = 16
# For each round of groups: the dose of a member, the part of the time, the maximal number
# of groups that continue, and the number of parts into which each is split.
ROUNDS = ((0.1, 0.35, 6, 4), (0.2, 0.25, 8, 1000))
# A group whose members together cost less than this is not examined further.
GROUP_DONE = 0.3
# The maximal number of groups after the first round, and of functions after the last.
MAX_LAST = 40


@dataclass(frozen=True)
class Round:
    """A round of screening.

    Args:
        number: from 0; after the last one, screening is over
        groups: that are delayed, or those that remain when screening is over
        until_s: since the first slot
        whole_s: the time of all rounds and of what follows
        looked_at: slots until the last look at the effects of groups
    """

    number: int
    groups: tuple[Group, ...]
    until_s: float
    whole_s: float
    looked_at: int = 0

    @property
    def is_over(self) -> bool:
        return self.number >= len(ROUNDS)

    @property
    def functions(self) -> list[str]:
        """Those that remain when screening is over."""
        return [name for group in self.groups for name in group][:MAX_LAST]

    @property
    def dose(self) -> float:
        """Of each member of a group."""
        return ROUNDS[self.number][0]

    def after(self, record: Record, now: Now) -> Round:
        """The round after one more block: the same one, or the next."""
        is_late = now.elapsed_s >= self.until_s
        if not is_late and now.seen < max(1.3 * self.looked_at, self.looked_at + 200):
            return self
        found = of_groups(record)
        known = {e.column.functions: e for e in found.effects if e.known} if found else {}
        if not is_late and not _are_clear(self.groups, known):
            return replace(self, looked_at=now.seen)
        return self._next(known, now)

    def _next(self, known: Mapping[Group, Effect], now: Now) -> Round:
        """Split the groups that may matter, or end with single functions."""
        most, pieces = ROUNDS[self.number][2:]
        chosen = _that_may_matter(self.groups, known)[:most]
        number = self.number + 1
        if number < len(ROUNDS):
            smaller = [part for group in chosen for part in _split(group, pieces)]
            if any(len(group) > 1 for group in smaller):
                until = now.elapsed_s + ROUNDS[number][1] * self.whole_s
                groups = tuple(smaller[:MAX_LAST])
                return Round(number, groups, until, self.whole_s, now.seen)
        return replace(self, number=len(ROUNDS), groups=tuple(chosen))


def first_round(names: Sequence[str], draw: np.random.Generator, now: Now) -> Round:
    """Groups of the functions, drawn at random."""
    order = [names[k] for k in draw.permutation(len(names))]
    groups = tuple(_split(order, GROUP_COUNT))
    return Round(0, groups, now.elapsed_s + ROUNDS[0][1] * now.left_s, now.left_s)


def _split(names: Sequence[str], count: int) -> list[Group]:
    """Parts that are about as large as each other."""
    parts = np.array_split(np.arange(len(names)), min(count, len(names)))
    return [tuple(names[k] for k in part) for part in parts if len(part)]


def _are_clear(groups: Sequence[Group], known: Mapping[Group, Effect]) -> bool:
    """Whether every group is either finished or certain to continue."""
    for group in groups:
        effect = known.get(group)
        if effect is None or effect.delayed < 2 * MIN_HOLDS:
            return False
        if effect.interval.half * len(group) > THRESHOLD / 2:
            return False
    return True


def _that_may_matter(
    groups: Sequence[Group], known: Mapping[Group, Effect]
) -> list[Group]:
    """The groups whose members may cost something, the costliest first; then those of
    which nothing is known.
    """
    some, unknown = [], []
    for group in groups:
        effect = known.get(group)
        if effect is None:
            unknown.append(group)
            continue
        total, error = effect.c * len(group), effect.se * len(group)
        # With much data a small number is certain, though it is below all thresholds.
        over = total + 1.64 * error > min(GROUP_DONE, THRESHOLD + 4 * error)
        if over and total > 0.5 * error:
            some.append((total, group))
    return [*(group for _, group in sorted(some, reverse=True)), *unknown]
