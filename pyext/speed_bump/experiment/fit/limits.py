# SPDX-License-Identifier: MIT
"""The most that a function can gain where another one works at the same time.

A function that takes 0.7 of a unit, one thread at a time, and whose delays arrive, still
takes that long when the others are faster. So none of them gains more than 0.3: the
utilization bound of queueing networks (Denning & Buzen, ACM Computing Surveys 10:3,
1978). It is a limit only if both take more than a unit together, and so are not one after
the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from speed_bump.experiment.fit.finding import Finding
from speed_bump.experiment.fit.interval import THRESHOLD, Interval
from speed_bump.experiment.record import Record

# A function of whose time a larger part was in several threads can be faster by more of
# them.
MAX_TWICE = 0.02


def limited(record: Record, findings: Sequence[Finding]) -> list[Finding]:
    """The findings with headroom that leaves to the others what they take."""
    if record.ranks:
        return list(findings)
    lasting = [f for f in findings if _stays(record, f)]
    return [_limited(f, [g for g in lasting if g is not f]) for f in findings]


def _stays(record: Record, finding: Finding) -> bool:
    """Whether it would take as long as before if others were faster.

    A function that only waits for others, awake, would not: its delays do not arrive.
    """
    own = record.self_times.get(finding.name)
    if own is None or finding.criticality is None:
        return False
    alone = own.twice <= MAX_TWICE * own.share
    return alone and finding.criticality.low > THRESHOLD


def _limited(finding: Finding, lasting: Sequence[Finding]) -> Finding:
    own, headroom = finding.share, finding.headroom
    if own is None or headroom is None:
        return finding
    beside = [
        (other.share.value, other.name, other.share)
        for other in lasting
        if other.share and own.low + other.share.low > 1
    ]
    if not beside:
        return finding
    value, name, share = max(beside)
    most = Interval(1 - value, max(1 - share.high, 0.0), max(1 - share.low, 0.0))
    if most.value >= headroom.value:
        return finding
    note = (
        f"{name} takes {value:.0%} of the time, and works at the same time: unless it is "
        f"faster too, at most {most.value:.0%} is gained"
    )
    return replace(
        finding,
        headroom=Interval(
            most.value, min(most.low, headroom.low), min(most.high, headroom.high)
        ),
        notes=(*finding.notes, note),
        beside=name,
    )
