# SPDX-License-Identifier: MIT
"""Finding the few functions that matter among hundreds, by delaying groups of them.

A group whose members are all hidden is done with in one test. A group that matters is
split in two until single functions are left: with d of n functions mattering this takes
about 2 d log2(n / d) tests (Du & Hwang, Combinatorial Group Testing and Its Applications,
2nd ed., chapter 2). A group that matters though neither half does by itself is tested
again, with new data, and then narrowed down to what matters only jointly.

The search is a generator that asks for pairs and is sent them, so that whoever drives it
can take them from one run of the program or from several.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from speed_bump.experiment import robust
from speed_bump.experiment.records import GroupTest, Pair

# Groups to begin with, where there are many functions: small enough to be delayed by so
# much that one of them shows, large enough that most are gone at once.
FIRST_GROUPS = 8
# Delay of each function of a group, and of all of them together at most, in parts of the
# undelayed time.
SHARE = 0.10
MOST_SHARE = 4.0
# A test ends when its interval is above or below these parts of what one function that is
# fully critical would do.
ABOVE = 0.05
BELOW = 0.30
CONFIDENCE = 0.99
BATCH = 6
MOST_PAIRS = 240

Names = tuple[str, ...]


@dataclass(frozen=True)
class Request:
    """Pairs to make: all of ``names`` delayed by ``share`` each."""

    names: Names
    share: float
    pairs: int


@dataclass
class Screening:
    """A search, and what it has found so far.

    Args:
        names: neighbours are likely to matter together: by process, then by module
        on_test: told of each group test as it ends
    """

    names: Sequence[str]
    on_test: Callable[[GroupTest], None] = lambda test: None
    alone: list[str] = field(default_factory=list)
    jointly: list[Names] = field(default_factory=list)
    unsplit: list[Names] = field(default_factory=list)
    tests: int = 0

    def search(self) -> Generator[Request, list[Pair], None]:
        """Ask for pairs until everything is settled."""
        waiting = self._first_groups()
        while waiting:
            self.unsplit = list(waiting)
            group = waiting.pop(0)
            if not (yield from self._test(group)):
                continue
            if len(group) == 1:
                self.alone.append(group[0])
                continue
            yield from self._split(group, waiting)
        self.unsplit = []

    def _first_groups(self) -> list[Names]:
        size = max(-(-len(self.names) // FIRST_GROUPS), 1)
        return [tuple(self.names[i : i + size]) for i in range(0, len(self.names), size)]

    def _split(
        self, group: Names, waiting: list[Names]
    ) -> Generator[Request, list[Pair], None]:
        """What of a group that matters does so: depth first, to have answers early."""
        found = []
        for half in halves(group):
            if (yield from self._test(half)):
                found.append(half)
        for half in reversed(found):
            if len(half) == 1:
                self.alone.append(half[0])
            else:
                waiting.insert(0, half)
                # It has been tested; only its halves have not.
                waiting.pop(0)
                yield from self._split(half, waiting)
        if not found and (yield from self._test(group)):
            joint = yield from self._narrow(group)
            self.jointly.append(joint)

    def _narrow(self, group: Names) -> Generator[Request, list[Pair], Names]:
        """Leave out, piece by piece, what the joint effect does not need."""
        kept = group
        size = len(kept) // 2
        while size >= 1 and len(kept) > 2:
            for start in range(0, len(kept), size):
                rest = kept[:start] + kept[start + size :]
                if len(rest) > 1 and (yield from self._test(rest)):
                    kept = rest
                    break
            else:
                size //= 2
        return kept

    def _test(self, group: Names) -> Generator[Request, list[Pair], bool]:
        """Whether a group matters. Ends as soon as that is clear."""
        share = min(SHARE, MOST_SHARE / len(group))
        effects: list[float] = []
        asked = 0
        interval = None
        matters = False
        while asked < MOST_PAIRS:
            pairs = yield Request(group, share, BATCH)
            asked += BATCH
            effects += [p.change_ns / p.off.unit_ns for p in pairs]
            if len(effects) < BATCH:
                continue
            interval = robust.trimmed_interval(effects, CONFIDENCE)
            matters = interval.value > (ABOVE + BELOW) / 2 * share
            if interval.low > ABOVE * share or interval.high < BELOW * share:
                matters = interval.low > ABOVE * share
                break
        self.tests += 1
        if interval:
            self.on_test(
                GroupTest(
                    group,
                    len(effects),
                    share,
                    interval.value,
                    interval.low,
                    interval.high,
                    matters,
                )
            )
        return matters


def halves(group: Names) -> tuple[Names, Names]:
    """Both halves of a group of two or more."""
    middle = (len(group) + 1) // 2
    return group[:middle], group[middle:]
