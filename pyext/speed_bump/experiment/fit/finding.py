# SPDX-License-Identifier: MIT
"""The results of an experiment: a finding for each function, and what all have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from speed_bump.experiment.fit.bill import Bill
from speed_bump.experiment.fit.diagnostics import Diagnostics
from speed_bump.experiment.fit.interval import TOO_NOISY, Interval
from speed_bump.experiment.fit.ties import Joint
from speed_bump.experiment.record import Machine, SelfTime


@dataclass(frozen=True)
class Finding:
    """The result for one function.

    Args:
        verdict: "matters", "partly", "hidden" or "inconclusive"
        criticality: extra time over delay; None: the data support no number
        headroom: at most this part of the time can be gained
        shape: "linear", "hinge", "amplified", "negative" or "" if unknown
        slack_ns: how long a unit may be delayed by it at no cost
        dose: delay delivered in a slot in which it was delayed, of the undelayed slot
        delayed: slots in which it was delayed
        p: the probability of such a number if the function did not matter at all
        false_discovery: the false discovery rate at which it would be called
        reason: of the verdict, in plain words
        help: the cheapest thing that would help; "" if nothing is needed
        share: of the wall clock's time, threads in the function itself
        while_busy: of an inconclusive one, the verdict that is certain for as long as the
            program has no more CPU time than it had; "" if there is none
        beside: the function that works at the same time, and takes what limits the
            headroom (limits.py); "" if there is none
    """

    name: str
    verdict: str
    criticality: Interval | None
    headroom: Interval | None
    shape: str
    slack_ns: Interval | None
    dose: float
    delayed: int
    p: float
    false_discovery: float
    reason: str
    help: str
    notes: tuple[str, ...] = ()
    share: Interval | None = None
    while_busy: str = ""
    beside: str = ""

    @property
    def label(self) -> str:
        """The verdict in a table."""
        return f"{self.while_busy} while busy" if self.while_busy else self.verdict

    @property
    def is_too_noisy(self) -> bool:
        """Whether more time would give it a number."""
        return self.reason.startswith(TOO_NOISY)


@dataclass
class Verdict:
    """The results of a whole experiment.

    ``slowdown`` is the largest part of its throughput that the program lost to the
    delays; ``cpu_share`` the part of the wanted CPU time that its threads had;
    ``sham_alarms``: the sham, which delays nothing, certainly seems to cost something;
    ``shared``: other programs used the CPUs enough that it had to be taken into
    account; ``vague``: there is no label because bills exclude too little.
    """

    findings: list[Finding]
    bills: list[Bill] = field(default_factory=list)
    sham: Interval | None = None
    sham_alarms: bool = False
    cpu_share: float = math.nan
    delivered_share: float = math.nan
    diagnostics: Diagnostics | None = None
    joints: list[Joint] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    slot_ns: float = 0.0
    slots: int = 0
    slowdown: float = 0.0
    shared: bool = False
    vague: bool = False

    def of(self, name: str) -> Finding:
        """The finding of a function."""
        return next(finding for finding in self.findings if finding.name == name)


def lasting(value: float) -> str:
    """A time, rounded."""
    if value < 100:
        return f"{max(value, 1):.0f} s"
    if value < 100 * 60:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.0f} h"


def own_share(
    times: Mapping[str, SelfTime], name: str, machine: Machine | None = None
) -> Interval | None:
    """The part of the time that is spent in the function itself.

    Args:
        machine: if it is crowded, threads wait for the CPUs that other threads of the
            program have, and this is no part of a function's time
    """
    own = times.get(name)
    if own is None or own.looks <= 0:
        return None
    # Wilson, JASA 22 (1927), at 1.96.
    share, n, z = own.share, own.looks, 1.96
    if machine and machine.is_crowded:
        computes = share - own.queued - own.asleep
        given = machine.given if 0 < machine.given < 1 else 1.0
        share = own.asleep + computes / given
    inside = min(max(share, 0.0), 1.0)
    middle = (inside + z * z / (2 * n)) / (1 + z * z / n)
    half = (
        z * math.sqrt(inside * (1 - inside) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    )
    if share > 1:
        half = z * math.sqrt(share / n)
        return Interval(share, max(share - half, 0.0), share + half)
    return Interval(share, max(middle - half, 0.0), min(middle + half, 1.0))


def headroom_of(criticality: Interval | None, share: Interval | None) -> Interval | None:
    """Criticality times own time; relative errors add as squares."""
    if criticality is None or share is None:
        return None
    c = max(criticality.value, 0.0)
    value = c * share.value
    up = math.hypot(
        (criticality.high - criticality.value) * share.value,
        max(criticality.high, 0.0) * (share.high - share.value),
    )
    down = math.hypot(
        (criticality.value - criticality.low) * share.value,
        c * (share.value - share.low),
    )
    return Interval(
        *(min(max(part, 0.0), 1.0) for part in (value, value - down, value + up))
    )


def self_and_headroom(
    times: Mapping[str, SelfTime], name: str, criticality: Interval | None
) -> tuple[Interval | None, Interval | None]:
    """The part of the time in a function itself, and the headroom."""
    share = own_share(times, name)
    return share, headroom_of(criticality, share)
