# SPDX-License-Identifier: MIT
"""The record of an experiment by slots, and data types that its parts share.

A *slot* is one unit of work or a few; the arms that are delayed in it are drawn in
advance. A *block* is a sequence of slots that were drawn together, with the same arms and
doses. Slots between two blocks are *rests*, in which nothing is delayed, as in the slots
of a block of the stage "census", which has no arms. Times are ns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from speed_bump.experiment.account import Looks

# isort: off
import speed_bump.experiment.algebra  # noqa: F401
import numpy as np
import numpy.typing as npt
# isort: on

if TYPE_CHECKING:
    from speed_bump.experiment.job_ranks import Ranks

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

# The arrival time of a request (CLOCK_MONOTONIC, like the ends of slots), and its
# duration.
REQUEST = np.dtype([("begin_ns", "<i8"), ("duration_ns", "<i8"), ("name", "<u4")])
# The maximal number of arms of a block: bits of a mask.
MAX_ARMS = 48
# The maximal number of levels of dose of an arm in a block.
MAX_LEVELS = 7


@dataclass(frozen=True)
class Delay:
    """The delay of each ``every`` th call of a function, in CPU time."""

    delay_ns: int
    every: int = 1


@dataclass(frozen=True)
class Arm:
    """Functions that are delayed together.

    One function, a group while screening, or the sham, which has none. ``delays`` has a
    row for each function, with the delay of each level.
    """

    functions: tuple[str, ...]
    delays: tuple[tuple[Delay, ...], ...] = ()

    @property
    def is_sham(self) -> bool:
        """Whether it is switched like the others but delays nothing."""
        return not self.functions


@dataclass(frozen=True)
class Block:
    """A part of the plan.

    Args:
        stage: what it is for: "census", "groups", "single", "longer", "levels", "ties",
            "pedestal", "rare", "few", "confirm"
        arms: their index is their bit in a mask
        masks: of each slot the arms that are on (uint64)
        levels: of each slot the level of dose that is in force (uint8)
        chance: of each arm to be on in a hold
        holds: lengths of a hold in slots, each as likely
        one: at most one arm is on at a time; else each has a coin of its own
        doses: of each level the delay a slot that is aimed at, in parts of the undelayed
            slot, of an arm that is on
        coins: how many of the last arms are functions that are called seldom: each has a
            coin of its own in each slot, whatever ``one`` and ``holds`` say
        stretches: of a pedestal, lengths in slots of its parts, from the highest pedestal
            down; the first part begins with the slots in which buffers run empty
    """

    stage: str
    arms: tuple[Arm, ...]
    masks: npt.NDArray[np.uint64]
    levels: npt.NDArray[np.uint8]
    chance: tuple[float, ...]
    holds: tuple[int, ...]
    one: bool
    doses: tuple[float, ...]
    coins: int = 0
    stretches: tuple[int, ...] = ()

    def __len__(self) -> int:
        """In slots."""
        return len(self.masks)


# For the block of a slot: nothing is delayed, while the tool samples or computes, which
# makes a program slower that needs all CPUs.
BESIDE = -2


@dataclass
class Slots:
    """The results of consecutive slots: arrays with an entry, or row, per slot.

    ``block`` is the index of the block, -1 in a rest without one, and ``BESIDE`` if the
    tool worked meanwhile. ``time_ns`` is from the end of the previous slot to its own.
    ``good`` is False if something of the slot is missing (the first one of a run, lost
    records, a stopped program); such a slot keeps its place in the order. ``cpu_ns`` is
    the CPU time of the threads that report units and ``wait_ns`` their time waiting for a
    CPU; the rest of the time they were blocked. Both are NaN if unknown, and means if
    there are several such threads. ``calls`` and ``delivered_ns`` have a column for each
    function of the record.
    """

    number: Integers
    block: Integers
    run: Integers
    end_ns: Integers
    time_ns: Floats
    units: Integers
    mask: npt.NDArray[np.uint64]
    level: npt.NDArray[np.uint8]
    good: npt.NDArray[np.bool_]
    cpu_ns: Floats
    wait_ns: Floats
    calls: Floats
    delivered_ns: Floats

    def __len__(self) -> int:
        return len(self.number)


@dataclass
class Metered:
    """The values of a metric that counts units, per slot: arrays with a row per slot.

    ``uncertain_ns`` is the uncertainty of the time at which the server counted for the
    end of the slot. ``count`` and, for a histogram, ``sum_ns`` and ``buckets`` (a column
    for each of ``bounds``, cumulative) are the increases in the slot. NaN: unknown.
    """

    uncertain_ns: Floats
    count: Floats
    sum_ns: Floats
    buckets: Floats
    bounds: Floats

    @classmethod
    def of(cls, rows: Sequence[Any], bounds: Sequence[float]) -> Metered:
        """From the values that a meter kept for each slot; None if it kept none."""
        width = len(bounds)
        lost = [math.nan] * width
        buckets = [r.buckets if r and len(r.buckets) == width else lost for r in rows]
        return cls(
            np.array([r.uncertain_ns if r else math.nan for r in rows], float),
            np.array([r.count if r else math.nan for r in rows], float),
            np.array([1e9 * r.sum if r else math.nan for r in rows], float),
            np.array(buckets, float).reshape(len(rows), width),
            np.array(bounds, float),
        )

    @classmethod
    def together(cls, parts: Sequence[Metered]) -> Metered:
        """Join several runs, one after the other."""
        bounds = parts[-1].bounds
        buckets = [
            part.buckets
            if np.array_equal(part.bounds, bounds)
            else np.full((len(part.count), len(bounds)), math.nan)
            for part in parts
        ]
        return cls(
            np.concatenate([part.uncertain_ns for part in parts]),
            np.concatenate([part.count for part in parts]),
            np.concatenate([part.sum_ns for part in parts]),
            np.concatenate(buckets),
            bounds,
        )


@dataclass
class SelfTime:
    """How long threads were in a function itself while nothing was delayed.

    ``share`` is the average number of threads in it, over the wall time of the program;
    ``looks`` is the number of independent samples that it is worth. ``asleep`` is the
    part of the share in which they slept. While a thread waits for a CPU, it is where it
    is by chance: these waits are divided among its functions by what they compute, and
    ``queued`` is the part of the share that came so. ``beside`` is the part that
    other threads than those that report units, of the same process, computed, if its
    delays held their GIL. ``twice`` is the part of the time in which several threads were
    in it; NaN: unknown.
    """

    share: float
    looks: float
    queued: float = 0.0
    asleep: float = 0.0
    beside: float = 0.0
    twice: float = math.nan

    def over(self, count: int) -> SelfTime:
        """The number of ranks of which this is the mean."""
        n = max(int(count), 1)
        return SelfTime(
            self.share / n,
            self.looks,
            self.queued / n,
            self.asleep / n,
            self.beside / n,
            self.twice,
        )


# A program that has a larger share of a CPU does not wait. If at most this part of its
# waiting is for other programs, its own threads wait for each other.
MIN_WAIT, MAX_OTHERS = 0.99, 0.5


@dataclass
class Machine:
    """Other properties of the time of the slots.

    ``share`` is run / (run + wait) of all threads of the program, NaN if unknown;
    ``threads`` is the average number of runnable threads, on ``cpus``, and ``crowd`` what
    it would be without other programs; ``steal`` is the part of the time that the
    hypervisor took; ``given`` is what ``share`` would be if threads of the program never
    waited for each other. NaN: unknown.
    """

    share: float = float("nan")
    threads: float = float("nan")
    cpus: int = 1
    steal: float = 0.0
    given: float = float("nan")
    crowd: float = float("nan")

    @property
    def rivals(self) -> float:
        """The threads of the program that would want a CPU without other programs."""
        # Records of 0.1 have no crowd.
        return self.threads if math.isnan(self.crowd) else self.crowd

    @property
    def is_full(self) -> bool:
        """Whether the program alone could use more CPUs than there are.

        Other programs, with ``given`` left, make it take 1 / ``given`` times as long.
        """
        return self.rivals > 1.05 * self.cpus

    @property
    def is_crowded(self) -> bool:
        """Whether threads of the program mainly wait for CPUs that its others have."""
        if self.is_full:
            return True
        others = (1 - self.given) / (1 - self.share) if self.share < MIN_WAIT else 1.0
        return others <= MAX_OTHERS


@dataclass
class Record:
    """All that is known of an experiment.

    ``header`` says what was run, where and how (JSON). ``functions`` are in the order of
    the columns of the slots. ``unit_ns`` and ``slot_units`` are the undelayed time of a
    unit and the units of a slot. ``self_times`` is by function; a function that could not
    be seen is not in it. ``idle`` are candidates that were never called. ``looks`` are at
    whole stacks; None where there were none. ``ranks`` is of a job of several processes
    that each count units of their own: the slots are then means over them; None: units
    are those of all processes together. ``metered`` is there where a metric counts units:
    slots are then of time, which the tool ended, and ``Slots.time_ns`` is as long as each
    would have taken for ``slot_units``, of which the undelayed ones take ``unit_ns``.
    ``requests`` are durations that were recorded (``--latency``), with the fields of
    ``REQUEST``, in the order in which they were read; their names are the header's
    "latency", in the order of "name". None: none were asked. ``side_by_side`` is how
    many threads do units at the same time, as if all did as many.
    """

    header: dict[str, Any]
    functions: tuple[str, ...]
    slots: Slots
    blocks: list[Block] = field(default_factory=list)
    unit_ns: float = 0.0
    slot_units: int = 1
    self_times: dict[str, SelfTime] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)
    shares: dict[str, float] = field(default_factory=dict)
    idle: tuple[str, ...] = ()
    end: dict[str, Any] = field(default_factory=dict)
    looks: Looks | None = None
    ranks: Ranks | None = None
    metered: Metered | None = None
    requests: npt.NDArray[np.void] | None = None
    side_by_side: float = 1.0

    @property
    def sleeping(self) -> frozenset[str]:
        """The functions whose delays sleep instead of using a CPU."""
        return frozenset(self.header.get("sleeping", ()))
