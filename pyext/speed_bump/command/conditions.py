# SPDX-License-Identifier: MIT
"""Conditions on the results, for scripts: ``--fail-if``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from speed_bump.command.options import say
from speed_bump.config import ConfigError
from speed_bump.experiment.fit.interval import Interval
from speed_bump.experiment.fit.verdict import INCONCLUSIVE, Finding, Verdict

FAILED_CONDITION = 3


class Condition:
    """A condition such as ``headroom(mod:func) > 0.1``.

    It holds if it is certain: for the whole interval of a function with the given name,
    which may be a glob.

    Raises:
        ConfigError: the text can't be parsed
    """

    def __init__(self, text: str) -> None:
        match = re.fullmatch(
            r"\s*(headroom|criticality)\(\s*(.+?)\s*\)\s*(<|>)\s*([-+.\deE]+)\s*", text
        )
        if not match:
            raise ConfigError(
                f"--fail-if: {text!r} is not like 'headroom(mod:func) > 0.1' "
                "(headroom or criticality, < or >)"
            )
        self.text = text.strip()
        self.what, self.pattern, self.sign = match[1], match[2], match[3]
        try:
            self.limit = float(match[4])
        except ValueError:
            raise ConfigError(f"--fail-if: {match[4]!r} is not a number") from None

    def matching(self, verdict: Verdict) -> list[Finding]:
        """The functions that the condition applies to."""
        from speed_bump import _core

        return [f for f in verdict.findings if _core.glob_match(self.pattern, f.name)]

    def interval(self, finding: Finding) -> Interval | None:
        """The interval of a function that the condition compares."""
        return finding.headroom if self.what == "headroom" else finding.criticality

    def holds(self, finding: Finding) -> bool | None:
        """Whether it holds; None if the data don't decide it."""
        interval = self.interval(finding)
        if interval is None or finding.verdict == INCONCLUSIVE:
            return None
        if self.sign == ">":
            surely, possibly = interval.low > self.limit, interval.high > self.limit
        else:
            surely, possibly = interval.high < self.limit, interval.low < self.limit
        return True if surely else None if possibly else False


def status(conditions: Sequence[Condition], verdict: Verdict) -> int:
    """The exit status for the conditions; each one that does not pass is printed."""
    found = 0
    for condition in conditions:
        functions = condition.matching(verdict)
        if not functions:
            say(f"--fail-if: no function has the name {condition.pattern}")
            found = found or 1
        for finding in functions:
            holds = condition.holds(finding)
            if holds:
                interval = condition.interval(finding)
                assert interval is not None
                say(
                    f"failed: {condition.text} ({finding.name}, {interval.value:.3g} "
                    f"[{interval.low:.3g}, {interval.high:.3g}])"
                )
                found = FAILED_CONDITION
            elif holds is None:
                say(f"not known: {condition.text} ({finding.name}: {finding.verdict})")
    return found
