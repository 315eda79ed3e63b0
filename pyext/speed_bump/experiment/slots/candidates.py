# SPDX-License-Identifier: MIT
"""The functions that are measured: those of the targets that the work calls."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from speed_bump.config import Target, matches
from speed_bump.duration import human
from speed_bump.experiment import missing
from speed_bump.experiment.errors import RankError
from speed_bump.experiment.program.latency import Histogram
from speed_bump.experiment.program.runner import why_nobody_reported
from speed_bump.experiment.program.workload import Workload
from speed_bump.experiment.record import Record
from speed_bump.experiment.slots.measure import Run
from speed_bump.experiment.symbols import short
from speed_bump.experiment.watcher import Watcher

# Functions that were found are left out if there is time for less than this part of them.
FEWER = 0.75
# In a line that names functions.
MAX_NAMED = 3


@dataclass(frozen=True)
class Search:
    """How the targets and the unit of work were found. By default they were named.

    Args:
        found: the unit was found, and the targets, unless they were named
        order: the functions that were found, the best first; empty: they were named
        room: how many of them there is time for, by units of work a second
        has_native: C functions are among the targets by the names that they give
        without_python: they are those of a program that was seen without Python
        patience_s: how much longer than the budget the first unit of work is waited for
        to_first_s: the time from the start to the first unit, in an earlier run
    """

    found: bool = False
    order: Sequence[str] = ()
    room: Callable[[float], int] = lambda _: 1 << 30
    has_native: bool = False
    without_python: bool = False
    patience_s: float = 0.0
    to_first_s: float = 0.0


@dataclass
class Candidates:
    """Lets the plan control functions, and says why others were not called.

    Args:
        command: the program
    """

    targets: Sequence[Target]
    search: Search
    command: Sequence[str]
    record: Record
    watcher: Watcher
    _before: Mapping[str, int] = field(default_factory=dict)
    _unit_ns: float = math.nan
    _left_out: frozenset[str] | None = None
    _asking: threading.Thread | None = None

    def begin(self, calls: Mapping[str, int], unit_ns: float) -> None:
        """A run begins its work, in units of this length; these calls came before it.

        This comes before all else.
        """
        self._before, self._unit_ns = calls, unit_ns

    def works(self, calls: Mapping[str, int]) -> list[str]:
        """The functions that the work has called so far."""
        return sorted(n for n in calls if calls[n] > self._before.get(n, 0))

    def rule(self, run: Run) -> None:
        """Let the plan control functions that the work calls, not those called before.

        Raises:
            RankError: none was called; why
        """
        program, record = run.program, self.record
        calls = program.calls()
        if run.by_rank:
            calls = {n: c for n, c in calls.items() if not program.is_native(n)}
        names = self.works(calls)
        early = sorted(set(calls) - set(names) - set(record.functions))
        record.header["called_before_only"] = early
        if not names and not record.functions:
            raise RankError(self._why_none(program, early))
        kept = [name for name in names if name not in self.without_time()]
        names = kept if kept or record.functions else names
        known = [name for name in names if name not in record.functions]
        record.functions = (*record.functions, *known)
        run.rule([name for name in record.functions if name in calls])

    def _why_none(self, program: Workload, early: Sequence[str]) -> str:
        if not program.processes and not any(t.native for t in self.targets):
            return why_nobody_reported(self.command)
        why = self._why_uncalled(program, early)
        return (
            "none of the targets was called while the program worked"
            + (f" (called before: {', '.join(early[:3])})" if early else "")
            + "".join(f"\nspeed-bump: {line}" for line in missing.lines(why))
        )

    def without_time(self) -> frozenset[str]:
        """The functions found for which there is no time, because units of work take
        longer than they did during the search. Decided once.
        """
        if self._left_out is not None:
            return self._left_out
        order = self.search.order
        most = self.search.room(1e9 / self._unit_ns)
        left = order[most:] if most < FEWER * len(order) else ()
        self._left_out = frozenset(left)
        if left:
            shares = self.record.header["found"]["shares"]
            others = {name: shares.pop(name) for name in left}
            self.record.header["found"]["others"] |= others
            names = ", ".join(map(short, left[:MAX_NAMED]))
            self.watcher.event(
                f"a unit of work takes {human(self._unit_ns)} now: there is time for "
                f"{most} of the functions, and {len(left)} are left out ({names}"
                + (", ..." if len(left) > MAX_NAMED else "")
                + "): name them with -t, or give a longer --budget"
            )
        return self._left_out

    def in_mode(self, *modes: str) -> list[str]:
        """The functions that are delayed in one of these modes."""
        patterns = [target.pattern for target in self.targets if target.mode in modes]
        names = self.record.functions
        return [name for name in names if any(matches(p, name) for p in patterns)]

    # ------------------------------------------------------------- what is not called

    def say_uncalled(self, program: Workload) -> None:
        """Report targets that were not called, with the reason, while measuring."""
        durations = program.durations_so_far()

        def say() -> None:
            said = self._why_no_requests(program, durations)
            if not self.search.found:
                early = self.record.header["called_before_only"]
                found = self._why_uncalled(program, early)
                if found:
                    self.record.header["never_called"] = found
                said += missing.lines(found)
            for line in said:
                self.watcher.event(f"warning: {line}")

        if not self.search.found or durations:
            # Asking the program's interpreter takes a while.
            self._asking = threading.Thread(target=say, daemon=True)
            self._asking.start()

    def join(self) -> None:
        """Wait until nothing asks the program's interpreter any more."""
        if self._asking:
            self._asking.join()
            self._asking = None

    def _why_uncalled(self, program: Workload, early: Sequence[str]) -> dict[str, str]:
        """For each named target that was not called, the likely reason."""
        called = {*self.record.functions, *early}
        silent = [
            t
            for t in self.targets
            if not any(
                missing.is_of(t, name) or program.is_of_native(t, name) for name in called
            )
        ]
        return missing.reasons(
            silent, self.command, program.imported(), program.refused(), called
        )

    def _why_no_requests(
        self, program: Workload, found: Sequence[Histogram]
    ) -> list[str]:
        """For each name of ``--latency`` without a request so far, the likely reason."""
        silent = [one for one in found if not one.count]
        said = [missing.unended(one.name, "yet") for one in silent if one.begun]
        never = [one.name for one in silent if not one.begun]
        if not never:
            return said
        return said + missing.of_latencies(
            never,
            self.command,
            program.imported(),
            program.marks_not_asked_for(),
            running=True,
        )
