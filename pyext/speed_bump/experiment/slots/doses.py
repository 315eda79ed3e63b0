# SPDX-License-Identifier: MIT
"""The dose of single functions: the first one, and which one follows.

Small doses do not change the program's behaviour, large ones have a visible effect
sooner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from speed_bump.experiment.fit.bill import Bill
from speed_bump.experiment.slots.blocks import BUSY_SHARE
from speed_bump.experiment.slots.known import MIN_HOLDS, Alarms, Known
from speed_bump.experiment.slots.now import Now
from speed_bump.experiment.slots.plan import chance_of_one

DOSES = (0.05, 0.1, 0.3)


@dataclass(frozen=True)
class Doses:
    """The dose that is in use, in parts of the undelayed slot.

    Args:
        dose: the current one
        first: the one that the experiment began with
        alarms: until now
    """

    dose: float = 0.0
    first: float = 0.0
    alarms: Alarms = field(default_factory=Alarms)

    @classmethod
    def largest(cls, functions: int, cap: float) -> Doses:
        """The largest dose that keeps the slowdown, with some arms on in the blocks."""
        on = functions * chance_of_one(functions) * BUSY_SHARE
        dose = float(f"{min(DOSES[-1], max(DOSES[0], 0.9 * cap / on)):.2g}")
        return cls(dose, dose)

    def after(self, bills: Sequence[Bill]) -> Doses:
        """After an alarm: a smaller dose, then single holds far apart."""
        alarms = self.alarms
        if not any(
            bill.alarm and bill.dose <= self.dose * 1.01 and bill.apart == alarms.apart
            for bill in bills
        ):
            return self
        alarmed = (*alarms.doses, self.dose)
        if not alarms:
            smaller = max(self.dose / 3, DOSES[0] / 2)
            return replace(self, dose=smaller, alarms=replace(alarms, doses=alarmed))
        return replace(
            self,
            dose=self.dose if alarms.apart else min(self.dose, DOSES[0]),
            alarms=Alarms(alarmed, apart=True),
        )

    def chosen(self, known: Known, now: Now, part: float) -> Doses:
        """The smallest dose that reaches the precision in the remaining time.

        Args:
            part: of the budget, after which there are other questions
        """
        if self.alarms or self.dose < self.first:
            return self
        current = [
            e
            for e in known.effects.effects
            if e.known
            and e.column.functions
            and e.column.dose < 1
            and abs(e.column.dose - self.dose) < 0.01 * self.dose
        ]
        if not current or min(e.delayed for e in current) < MIN_HOLDS:
            return self
        busy = max(now.slots, 1)
        left = 0.8 * (part + 0.2) * now.left_slots
        worst = max(known.half(e) * e.column.dose for e in current)
        for dose in DOSES:
            if dose >= self.first:
                break
            reached = worst / dose * math.sqrt(busy / max(left, 1.0))
            if reached <= 0.8 * known.precision:
                return replace(self, dose=dose)
        return self
