# SPDX-License-Identifier: MIT
"""How all reports write numbers, names and notes, and in which order functions stand."""

from __future__ import annotations

import math
from collections.abc import Sequence

from speed_bump.experiment.fit.interval import Interval
from speed_bump.experiment.fit.verdict import Finding, Verdict
from speed_bump.experiment.symbols import short

# More names than these are counted, not listed.
MAX_NAMES = 3


def squeezed(name: str, most: int) -> str:
    """Shorten a name in the middle, to this many columns."""
    if len(name) <= most:
        return name
    tail = (most - 1) * 2 // 3
    return f"{name[: most - 1 - tail]}…{name[-tail:]}"


def listed(names: Sequence[str], most: int = MAX_NAMES) -> str:
    """Names in a sentence: some of them, and how many more."""
    some = [short(name) for name in names]
    if len(some) > most + 1:
        return f"{', '.join(some[:most])} and {len(some) - most} more"
    if len(some) < 2:
        return "".join(some)
    return f"{', '.join(some[:-1])} and {some[-1]}"


def number(interval: Interval | None) -> str:
    """A value with half of its interval; if that is not symmetric, with its ends."""
    if interval is None:
        return "-"
    low, value, high = interval.low, interval.value, interval.high
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{value:.2f}"
    if abs((high - value) - (value - low)) < 0.02 * (high - low) + 1e-9:
        return f"{value:.2f} ± {interval.half:.2f}".replace("-0.00", "0.00")
    if low == 0:
        return f"< {high:.2f}"
    return f"{low:.2f} to {high:.2f}"


def percent(interval: Interval | None) -> str:
    """The value alone, in percent."""
    return "-" if interval is None else f"{100 * interval.value:.1f}%"


def percent_between(interval: Interval) -> str:
    """A value in percent, with its interval."""
    low, high = 100 * interval.low, 100 * interval.high
    return f"{percent(interval)} ({low:.1f} to {high:.1f})"


def count(value: float) -> str:
    """Calls per unit."""
    if not math.isfinite(value) or value == 0:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def own_part(finding: Finding) -> float:
    """The part of the time in the function itself; 0 if unknown."""
    return finding.share.value if finding.share else 0.0


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """Those with the most headroom first, then the most critical ones; those without
    numbers by their self time.
    """

    def key(finding: Finding) -> tuple[float, float, float, str]:
        headroom, c = finding.headroom, finding.criticality
        return (
            -round(headroom.value, 3) if headroom else 0.0,
            -c.value if c else 9.0,
            -own_part(finding),
            finding.name,
        )

    return sorted(findings, key=key)


def shared_note(verdict: Verdict) -> str:
    """A qualification of every number, such as the share of a CPU; "" for none."""
    noted = [set(f.notes) for f in verdict.findings if f.criticality is not None]
    # Without a number, notes of what was measured stand beside the reasons.
    noted = noted or [set(f.notes) for f in verdict.findings if f.notes]
    if not noted:
        return ""
    common = set.intersection(*noted)
    for note in sorted(common):
        if note.startswith(("with a CPU", "on ")):
            return note
    return ""
