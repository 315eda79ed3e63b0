# SPDX-License-Identifier: MIT
"""The record of an experiment, as its runs fill it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from speed_bump.experiment import job_ranks as cluster
from speed_bump.experiment.account import Looks
from speed_bump.experiment.account import together as looks_together
from speed_bump.experiment.program.machine import cpus
from speed_bump.experiment.program.metric import Metric
from speed_bump.experiment.program.samples import Samples, added, self_times
from speed_bump.experiment.program.workload import Workload
from speed_bump.experiment.record import REQUEST, Metered, Record
from speed_bump.experiment.slots.candidates import Candidates
from speed_bump.experiment.slots.measure import Run, together

# The maximal number of slots times functions, so that an experiment of days fits in
# memory and in its file. Each new block joins all of them again.
MAX_CELLS = 6_000_000
MIN_KEPT = 2000
# The same for requests: 80 MB.
MAX_REQUESTS = 4_000_000


@dataclass
class Ledger:
    """Keeps the runs, and takes what they have counted into the record.

    What is known beside that, others write there: which functions are measured
    (``Candidates``), how many units a slot has (``Census``), and the blocks.

    Args:
        has_requests: durations are recorded, of what ``--latency`` names
        changed: called when the record has grown
    """

    record: Record
    candidates: Candidates
    metric: Metric | None
    has_requests: bool
    changed: Callable[[Record], None]
    runs: list[Run] = field(default_factory=list)
    samples: Samples = field(default_factory=Samples)
    # The slots that are not stored any more, and the blocks of which none is.
    forgotten: int = 0
    _folded: int = 0
    _live: Run | None = None
    _reporters: set[int] = field(default_factory=set)
    # By the number of a run.
    _looks: dict[int, Looks] = field(default_factory=dict)
    _away: dict[int, dict[str, float]] = field(default_factory=dict)

    def measure(self, run: Run) -> None:
        """This run is measured from now on."""
        self.runs.append(run)
        self._live = run

    def leave(self) -> None:
        """The last run is not measured any more."""
        self._live = None

    def sampled(self, found: Samples) -> None:
        """More samples of where time is spent."""
        self.samples = added(self.samples, found)

    def take_looks(self, run: Run) -> None:
        """Where a unit's time goes, by the stacks of this run so far."""
        looks = run.program.sampler.looks()
        tids = run.tids
        looks.mark(tids, run.program.pid)
        if tids:
            self._reporters.update(t.tid for t in looks.threads if t.reports)
        self._looks[run.number] = looks
        self.record.looks = looks_together(self._looks.values())

    def look_at_machine(self, program: Workload) -> None:
        """What the program has of the machine."""
        machine = self.record.machine
        reading = program.machine.look(program.pids)
        machine.cpus = cpus()
        machine.steal = program.machine.steal()
        machine.given = reading.given
        total = reading.run_ns + reading.wait_ns
        if total:
            machine.share = reading.run_ns / total
            machine.threads = total / max(reading.clock_ns, 1)
            machine.crowd = reading.crowd

    def update(self) -> None:
        """Bring the record up to date."""
        record = self.record
        names = record.functions
        if self.runs:
            kept = max(MAX_CELLS // max(len(names), 1), MIN_KEPT)
            self.runs[-1].trim(kept)
            while sum(run.count() for run in self.runs[1:]) >= kept:
                self.forgotten += self.runs.pop(0).count()
        parts = [run.slots(names) for run in self.runs]
        record.slots = together(parts, len(names))
        self._take_metered()
        self._fold_blocks()
        self.take_requests()
        record.ranks = cluster.appended(
            [run.ranks(names) for run in self.runs], list(map(len, parts))
        )
        slots = record.slots
        undelayed = slots.good & (slots.mask == 0)
        if undelayed.any():
            record.unit_ns = float(
                slots.time_ns[undelayed].sum() / slots.units[undelayed].sum()
            )
        self._take_self_times()
        self._look_at_delays()
        self.changed(record)

    def _take_self_times(self) -> None:
        record, names = self.record, self.record.functions
        slots, in_mode = record.slots, self.candidates.in_mode
        called = set(np.asarray(names)[(slots.calls > 0).any(axis=0)]) if names else set()
        record.idle = tuple(name for name in names if name not in called)
        tids = self._reporters.union(*(run.tids for run in self.runs))
        record.header["sleeping"] = in_mode("sleep", "wait")
        record.self_times = self_times(self.samples, called, tids, in_mode("wait"))
        if record.ranks:
            for name, count in zip(names, record.ranks.callers(), strict=True):
                if name in record.self_times:
                    # Per rank, like the delays.
                    record.self_times[name] = record.self_times[name].over(count)
        if self.samples.native and self.samples.native.refused:
            record.header["self_time_refused"] = self.samples.native.refused

    def _look_at_delays(self) -> None:
        """The share of a CPU of each function's threads while they were delayed."""
        record = self.record
        if self._live:
            self._away[self._live.number] = self._live.away_ns()
        delivered = np.nansum(record.slots.delivered_ns, axis=0)
        for k, name in enumerate(record.functions):
            away = [ns[name] for ns in self._away.values() if name in ns]
            if away and delivered[k] > 0:
                record.shares[name] = float(delivered[k] / (delivered[k] + sum(away)))

    def _take_metered(self) -> None:
        """The metric's values, and the length of slots of time."""
        found = [part for run in self.runs if (part := run.metered())]
        if not found:
            return
        metered = self.record.metered = Metered.together(found)
        known = metered.uncertain_ns[np.isfinite(metered.uncertain_ns)]
        assert self.metric
        self.record.header["metric"] = {
            "url": self.metric.url,
            "name": self.metric.name,
            "labels": dict(self.metric.labels),
            "slot_ns": self.runs[-1].slot_ns,
            "uncertain_ns": float(np.median(known)) if len(known) else None,
            "histogram": bool(len(metered.bounds)),
        }

    def take_requests(self) -> None:
        """The requests of the stored runs; the newest if there are very many."""
        if not self.has_requests:
            return
        left = MAX_REQUESTS
        said = self.record.header.setdefault(
            "requests_dropped", {"count": 0, "until_ns": 0}
        )
        for run in reversed(self.runs):
            count, until_ns = run.trim_requests(left)
            said["count"] += count
            said["until_ns"] = max(said["until_ns"], until_ns)
            left -= sum(map(len, run.requests))
        parts = [part for run in self.runs for part in run.requests]
        self.record.requests = np.concatenate([np.zeros(0, REQUEST), *parts])

    def _fold_blocks(self) -> None:
        """Drop the plans of blocks whose slots are not stored any more."""
        record = self.record
        seen = record.slots.block[record.slots.block >= 0]
        if not len(seen):
            return
        for k in range(self._folded, int(seen.min())):
            block = record.blocks[k]
            record.blocks[k] = replace(
                block, masks=block.masks[:0].copy(), levels=block.levels[:0].copy()
            )
            self._folded = k + 1
