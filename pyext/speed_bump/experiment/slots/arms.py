# SPDX-License-Identifier: MIT
"""Arms: which functions are delayed together, and the delay of each of their calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from speed_bump.experiment.record import Arm, Delay
from speed_bump.experiment.slots.now import Now
from speed_bump.experiment.slots.plan import MAX_DELAY_NS, delay_for, least_ns

RARE_DOSE = 1.0


@dataclass(frozen=True)
class Delays:
    """The delays that the user allows.

    Args:
        min_delay_ns: the shortest delay of a call
        fixed: functions with a given delay of a call, ns
    """

    min_delay_ns: int
    fixed: Mapping[str, int]

    def given(self, name: str) -> int | None:
        """The given delay of a call, ns, if need be as long as the shortest one."""
        try:
            return max(int(self.fixed[name]), self.min_delay_ns, 1)
        except KeyError:
            return None

    def arm(self, names: tuple[str, ...], doses: Sequence[float], now: Now) -> Arm:
        """An arm of the functions, with the delays of each for these doses."""
        rows = []
        for name in names:
            given = self.given(name)
            if given is not None:
                delays = tuple(
                    Delay(given)
                    if index == 0
                    else self._part(name, given, dose / doses[0])
                    for index, dose in enumerate(doses)
                )
            else:
                delays = tuple(
                    delay_for(dose, now.slot_ns, now.calls[name], self._least_ns(name))
                    for dose in doses
                )
            rows.append(delays)
        return Arm(names, tuple(rows))

    def rare_arm(self, name: str, dose: float, now: Now) -> Arm:
        """An arm of a function, with its delay in the slots in which it is called."""
        given = self.given(name)
        if given is not None:
            return Arm((name,), ((Delay(given),),))
        calls = max(now.calls[name] / max(now.part[name], 1e-9), 1.0)
        delay = delay_for(dose, now.slot_ns, calls, self._least_ns(name))
        return Arm((name,), ((delay,),))

    def _least_ns(self, name: str) -> int:
        return least_ns(name, self.min_delay_ns)

    def _part(self, name: str, given: int, share: float) -> Delay:
        """A part of a given delay: shorter, or for fewer calls."""
        wanted = given * share
        least = min(self._least_ns(name), given)
        if wanted >= least:
            return Delay(int(min(wanted, MAX_DELAY_NS)))
        return Delay(least, max(round(least / max(wanted, 1e-9)), 1))


def rare_dose(names: Sequence[str], now: Now, cap: float) -> float:
    """The dose of functions that are called seldom, each with a coin of its own."""
    rate = sum(now.calls[name] for name in names)
    return min(RARE_DOSE, 0.3 * cap / max(0.5 * rate, 1e-9))


def cost(arm: Arm, now: Now, level: int = 0) -> float:
    """The delay in a slot while the arm is on, in parts of the undelayed slot."""
    total = 0.0
    for name, delays in zip(arm.functions, arm.delays, strict=True):
        delay = delays[min(level, len(delays) - 1)]
        total += delay.delay_ns / delay.every * now.calls[name] / now.slot_ns
    return total
