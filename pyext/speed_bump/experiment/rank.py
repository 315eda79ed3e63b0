# SPDX-License-Identifier: MIT
"""A ranking of functions: by slots, or by whole runs of a program that is too short."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from speed_bump.config import Target
from speed_bump.experiment import symbols
from speed_bump.experiment.aim import Aim, aim
from speed_bump.experiment.aim.shares import room
from speed_bump.experiment.errors import RankError
from speed_bump.experiment.program.late_python import PythonStarted
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner
from speed_bump.experiment.record import Record
from speed_bump.experiment.runs.whole import look_at_a_whole_run
from speed_bump.experiment.show import found as showing
from speed_bump.experiment.slots.candidates import Search
from speed_bump.experiment.slots.doubts import Doubts
from speed_bump.experiment.slots.experiment import Experiment, Options, Stages
from speed_bump.experiment.slots.measure import empty
from speed_bump.experiment.watcher import Watcher

# A program is observed for at most a part of the budget plus a time in s.
LOOK_PART, LOOK_S = 0.25, 10.0


@dataclass
class Ranking:
    """What the user asks for; then, in ``record``, what is known.

    Args:
        targets: empty: they are to be found
        make_stages: what decides on the blocks, and the seed that it draws from
        make_header: that of a record with this seed
        changed: called when the record has grown
        max_slowdown: by how much the program may become slower, as a part
    """

    runner: Runner
    targets: Sequence[Target]
    progress: Progress
    options: Options
    make_stages: Callable[[], tuple[Stages, int]]
    make_header: Callable[[int], dict[str, Any]]
    watcher: Watcher
    changed: Callable[[Record], None]
    max_slowdown: float
    seed: int = 0
    record: Record = field(default_factory=lambda: Record({}, (), empty(0)))
    experiment: Experiment | None = None
    failure: RankError | None = None

    @property
    def interrupted(self) -> bool:
        return bool(self.experiment and self.experiment.interrupted)

    @property
    def is_too_short(self) -> bool:
        """The program ends before slots can be measured; nothing else went wrong."""
        return bool(
            self.experiment
            and self.experiment.too_short
            and not self.failure
            and not self.interrupted
        )

    def by_slots(self) -> None:
        """Find what is to be found, and measure; ``failure`` says why not.

        Raises:
            LaunchError, NativeError: from starting the program
            KeyboardInterrupt: while something is to be found
        """
        try:
            try:
                self._attempt()
            except PythonStarted as started:
                self.watcher.event(f"{started}: looking at it")
                self._attempt(started)
        except RankError as error:
            self.failure = error

    def _has_all(self) -> bool:
        """Whether all was named.

        A program that continues has no end that could complete a whole run as a unit.
        """
        is_endless = bool(self.runner.attached_to and self.progress.is_open)
        return bool(self.targets) and not is_endless

    def _attempt(self, late: PythonStarted | None = None) -> None:
        """Look for what was not named, and measure.

        Args:
            late: Python had started in an attempt that did not know of it
        """
        stages, self.seed = self.make_stages()
        self.runner.seed = self.seed
        self.record = Record(self.make_header(self.seed), (), empty(0))
        self.experiment = None
        doubts = Doubts(self.watcher.event)
        search, targets, progress = Search(), self.targets, self.progress
        if late or not self._has_all():
            begin = time.monotonic()
            found = self._look(doubts, late.seconds if late else 0.0)
            search = self._search(found, time.monotonic() - begin)
            if late:
                search = replace(search, without_python=False)
            progress = found.progress
            self.record.header["unit"] = progress.text or self.record.header["unit"]
            if not targets:
                targets = self._take_targets(found)
        self.experiment = Experiment(
            runner=self.runner,
            targets=targets,
            progress=progress,
            options=self.options,
            record=self.record,
            stages=stages,
            watcher=self.watcher,
            changed=self.changed,
            search=search,
            doubts=doubts,
        )
        self.experiment.run()
        self.failure = self.experiment.failed
        self.record.header["attached"] = [
            {"pid": pid, "way": way} for pid, way in self.runner.attached.items()
        ]

    # ------------------------------------------------------------------------ looking

    def _look(self, doubts: Doubts, python_s: float) -> Aim:
        """Find targets, and a unit of work where none was named.

        Args:
            python_s: the time from the start until Python came, in an earlier run
        """
        named, budget_s = bool(self.targets), self.options.budget_s

        def first(found: Aim) -> None:
            texts = [showing.unit_line(found)] if named else showing.first_lines(found)
            for text in texts:
                self.watcher.event(text)
            doubts.about_share(found.cpu_share)

        return aim(
            self.runner,
            self.progress,
            LOOK_PART * budget_s + LOOK_S,
            self.watcher.now,
            event=self.watcher.event,
            first=first,
            budget_s=budget_s,
            max_slowdown=self.max_slowdown,
            named=named,
            python_s=python_s,
        )

    def _search(self, found: Aim, took_s: float) -> Search:
        budget_s = self.options.budget_s
        # It takes as long again to come to its first unit.
        patience_s = 3 * took_s
        if found.progress.is_open and not found.unit_name and found.goes_on:
            patience_s = 0.0
            self.watcher.event(
                "no unit of work was found, and the program is still running: waiting up "
                f"to {budget_s:.0f} s for it to end or to call progress() (--progress "
                "names a unit)"
            )
        search = Search(
            found=True,
            has_native=found.has_native,
            without_python=bool(found.machine_code),
            patience_s=patience_s,
            to_first_s=found.to_first_s,
        )
        if self.targets:
            return search
        order = list(found.candidates)
        return replace(search, order=order, room=lambda rate: room(budget_s, rate))

    def _take_targets(self, found: Aim) -> Sequence[Target]:
        """The functions that were found, also for the report.

        Raises:
            RankError: none can be measured
        """
        if not found.candidates:
            name, why = next(iter(found.left_out.items()))
            raise RankError(
                "the functions that take time are called too often to be measured: "
                f"{symbols.short(name)} is {why}; give a larger --max-slowdown, or name "
                "functions with --native"
            )
        targets = found.targets()
        header = self.record.header
        header["targets"] = [target.pattern for target in targets]
        header["found"] = found.as_json()
        header["look"] = found.stacks.as_json()
        for text in showing.lines(found):
            self.watcher.event(text)
        return targets

    # --------------------------------------------------------------------- whole runs

    def look_at_a_whole_run(self) -> bool:
        """Where the time of a program goes that is too short; False: interrupted.

        Raises:
            LaunchError, NativeError: from starting the program
        """
        experiment = self.experiment
        assert experiment
        self.watcher.event("the program is too short for slots: measuring whole runs")
        return look_at_a_whole_run(
            self.runner,
            experiment.targets,
            self.record,
            self.watcher,
            experiment.search.has_native,
        )
