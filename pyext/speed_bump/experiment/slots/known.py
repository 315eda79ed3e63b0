# SPDX-License-Identifier: MIT
"""What is known of each function while the experiment runs, and whether it is enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speed_bump.experiment.fit.columns import Column
from speed_bump.experiment.fit.effects import Effect, Effects
from speed_bump.experiment.fit.finding import own_share
from speed_bump.experiment.fit.interval import THRESHOLD
from speed_bump.experiment.fit.longer import seems_hidden
from speed_bump.experiment.fit.number import TOLD
from speed_bump.experiment.record import Record

# No answer is final, and no dose changed, before each arm has this many holds.
MIN_HOLDS = 20
# Before so many slots have its delay, nothing is guessed of a function.
MIN_SEEN = 5
# Functions that are decided, or whose headroom is below a hundredth, are delayed less
# often by this factor.
DECIDED, SMALL_HEADROOM, LITTLE = 0.4, 0.6, 0.01


@dataclass(frozen=True)
class Alarms:
    """Bills that were false: effects of such doses are not valid.

    Args:
        doses: of which a bill was
        apart: whether single holds are far apart since then
    """

    doses: tuple[float, ...] = ()
    apart: bool = False

    def __bool__(self) -> bool:
        return bool(self.doses)

    def refuse(self, column: Column) -> bool:
        if column.dose >= 1 or not self.doses:
            return False
        return not (column.apart and self.apart) and column.dose >= min(self.doses) * 0.99


@dataclass(frozen=True)
class Known:
    """The newest effects.

    Args:
        effects: of delays on the unit of the thread that had them
        threads: that do units at the same time
        precision: the half-width of the intervals that the user wants
        alarms: until now
        visible: functions of which longer delays are of no use
    """

    effects: Effects
    threads: float
    precision: float
    alarms: Alarms
    visible: frozenset[str]

    def valid(self, name: str) -> list[Effect]:
        """The effects of a function that are still valid after alarms."""
        every = self.effects.of((name,))
        return [e for e in every if not self.alarms.refuse(e.column)]

    def headline(self, name: str) -> Effect | None:
        """The narrowest interval of a function that is still valid."""
        return min(self.valid(name), key=lambda e: e.se, default=None)

    def half(self, effect: Effect) -> float:
        """Of the interval; of a delay that all threads wait for, a part of the number."""
        return self.effects.half(effect) / min(max(effect.c, 1.0), self.threads)

    def widest(self) -> float:
        """The half-width of the widest interval; 1 if there is none."""
        effects = (e for e in self.effects.effects if e.column.functions)
        return max((self.half(e) for e in effects), default=1)

    def are_narrow(self, names: Sequence[str]) -> bool:
        """Whether all intervals are as narrow as the user wants."""
        for name in names:
            effect = self.headline(name)
            if effect is None or effect.delayed < MIN_HOLDS / 2:
                return False
            if effect.column.dose < 1 and effect.delayed < MIN_HOLDS:
                return False
            if self.half(effect) > self.precision:
                return False
        return True

    def are_clear(self, names: Sequence[str]) -> bool:
        """Whether most labels would stay as they are."""
        clear = 0
        for name in names:
            effect = self.headline(name)
            if effect is not None:
                interval = effect.interval
                clear += interval.high < THRESHOLD or interval.low > THRESHOLD
        return clear >= 0.5 * len(names)

    def are_open(self, names: Sequence[str]) -> bool:
        """Whether there is a function of which hardly anything is known."""
        some = (self.headline(name) for name in names)
        return any(e is None or self.half(e) > TOLD for e in some)

    def seem_hidden(self, names: Sequence[str]) -> list[str]:
        """Functions that may well be hidden, of which that is not certain yet."""
        some = []
        for name in names:
            effect = self.headline(name)
            if effect is None or effect.delayed < MIN_SEEN or name in self.visible:
                continue
            is_open = effect.interval.low <= THRESHOLD <= effect.interval.high
            if is_open and seems_hidden(effect):
                some.append(name)
        return some

    def are_settled(self, names: Sequence[str]) -> bool:
        """After an alarm: whether the smaller dose has been seen for long enough."""
        return all(
            (e := self.headline(name)) is not None and e.delayed >= 2 * MIN_HOLDS
            for name in names
        )

    def weights(self, names: Sequence[str], record: Record) -> dict[str, float]:
        """How often functions are delayed, so that time is for those with headroom."""
        weights = {}
        for name in names:
            effect = self.headline(name)
            if effect is None:
                continue
            interval = effect.interval
            far = 2 * interval.half
            is_sure = effect.c - far > THRESHOLD or effect.c + far < THRESHOLD
            own = own_share(record.self_times, name, record.machine)
            most = 1.0
            if own:
                most = max(interval.high, 0.0) / self.threads * own.high
            weights[name] = (
                DECIDED if is_sure else SMALL_HEADROOM if most < LITTLE else 1.0
            )
        return weights


def is_little(record: Record, name: str) -> bool:
    """Whether a function's headroom is small, whatever part of a delay arrives."""
    share = own_share(record.self_times, name, record.machine)
    return share is not None and share.high < LITTLE
