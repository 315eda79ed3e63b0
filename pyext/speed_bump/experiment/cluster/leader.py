# SPDX-License-Identifier: MIT
"""The leader of a run: what the nodes sent, what is decided, and the next epoch.

It knows nothing of the network: ``receive()`` gets what a node sent and returns the
answer, which are JSON and bytes.
"""

from __future__ import annotations

import io
import json
import math
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from speed_bump.experiment.cluster import epochs, meeting, rows
from speed_bump.experiment.cluster.epochs import Epoch
from speed_bump.experiment.cluster.join import Effect, Job
from speed_bump.experiment.cluster.plan import ATTEMPT, Setup
from speed_bump.experiment.cluster.rows import Rows

# A function is decided if its interval was narrow enough in this many successive
# estimations, and the function was delayed in at least this many steps.
LOOKS = 2
MIN_DELAYED = 24
# Estimations take at most this part of the time.
MAX_COST = 0.2
# An epoch begins this much later than the newest known step: by then it has reached all
# nodes, and no node has begun the steps from there on.
LEAD_S = 4.0
MIN_LEAD = 4
# With more rows, of all ranks, an estimation would take minutes and gigabytes.
MAX_ROWS = 4_000_000
# A node that has been silent for this part of the lease is named.
LATE = 0.5


@dataclass
class Node:
    """The helper of a node, as its worker describes it."""

    host: str
    offset: int = 0
    step: int = 0
    rate: float = 0.0
    heard_s: float = 0.0
    # The newest epoch that it has.
    epoch: int = 0
    is_over: bool = False
    # Why it is not followed; "": it is.
    refused: str = ""


@dataclass
class Leader:
    """Gathers, decides and publishes.

    Args:
        run: the directory of the run
        precision: half-width of an interval that is narrow enough
        lease_s: the time after which nodes end the delays if they do not hear of it
    """

    run: str
    precision: float
    lease_s: float
    setup: Setup | None = None
    epochs: list[Epoch] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict)
    parts: list[Rows] = field(default_factory=list)
    decided: dict[str, Effect] = field(default_factory=dict)
    job: Job | None = None
    # Ranks of the newest attempt that have not come. With them missing, delays are not on
    # all ranks, and nothing is decided.
    missing: tuple[int, ...] = ()
    # The last epoch was published: nothing will be delayed any more.
    is_final: bool = False
    # Lines to be printed once.
    news: list[str] = field(default_factory=list)
    _narrow: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _named: set[str] = field(default_factory=set)
    # By an earlier leader.
    _dropped: set[str] = field(default_factory=set)
    _new: bool = False
    _next_look_s: float = 0.0

    def was_ended(self) -> bool:
        """Whether an earlier leader has published the last epoch of this run."""
        try:
            with open(self._path, encoding="ascii") as file:
                return not json.load(file)["epochs"][-1]["functions"]
        except (OSError, ValueError, TypeError, LookupError):
            return False

    @property
    def _path(self) -> str:
        return os.path.join(meeting.folder(self.run), meeting.EPOCHS)

    # ---------------------------------------------------------------- what nodes send

    def receive(self, message: str, data: bytes) -> str:
        """What a worker sent; returns the answer, as JSON.

        Raises:
            ValueError: it is not what a worker sends
        """
        told = json.loads(message)
        try:
            name, host = str(told["file"]), str(told["host"])
            setup = Setup.of(told["setup"])
            step, number = int(told["step"]), int(told["epoch"])
            offset, is_over = int(told["offset"]), bool(told["over"])
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a message of a node ({error})") from None
        self._begin(setup)
        node = self.nodes.setdefault(name, Node(host))
        node.refused = self._refusal(setup)
        if node.refused:
            self._once(f"{host}: {node.refused}; it continues with its own plan")
            return json.dumps({"refused": node.refused})
        now = time.monotonic()
        # Another attempt has other numbers.
        if node.heard_s and node.step < step < node.step + ATTEMPT // 2:
            node.rate = (step - node.step) / max(now - node.heard_s, 0.1)
        node.heard_s, node.step, node.epoch = now, max(step, node.step), number
        if offset == node.offset and data:
            self._take(data, name)
            node.offset += len(data)
        node.is_over = is_over and offset == node.offset
        return json.dumps(
            {
                "offset": node.offset,
                "epochs": epochs.as_json(self.epochs),
                "lease_s": None if self.is_final else self.lease_s,
            }
        )

    def _begin(self, setup: Setup) -> None:
        """The first node says what the run is; epochs of an earlier leader stay."""
        if self.setup is not None:
            return
        self.setup = setup
        try:
            with open(self._path, encoding="ascii") as file:
                told = json.load(file)
            self.epochs = list(epochs.from_json(told["epochs"], setup))
            self._dropped = set(told["decided"])
        except FileNotFoundError:
            pass
        except (ValueError, TypeError, KeyError) as error:
            self._once(f"{self._path}: {error}; they are left out")
        if self.epochs:
            self._once(f"continues after {len(self.epochs)} epochs of an earlier leader")

    def _refusal(self, setup: Setup) -> str:
        assert self.setup is not None
        if setup.seed != self.setup.seed:
            return f"has --seed {setup.seed}, the first node {self.setup.seed}"
        if setup.version != self.setup.version:
            return f"has speed-bump {setup.version}, the first node {self.setup.version}"
        if setup.key != self.setup.key:
            return "was given other targets, --progress, --delay or --dose"
        return ""

    def _take(self, data: bytes, name: str) -> None:
        # All of it, or nothing.
        self.parts += list(rows.parse(io.BytesIO(data), name))
        self._new = True

    def _once(self, line: str) -> None:
        if line not in self._named:
            self._named.add(line)
            self.news.append(line)

    # ------------------------------------------------------------------- what follows

    def due(self, is_last: bool = False) -> list[Rows] | None:
        """The rows of all ranks, if there are new ones and an estimation is due.

        Args:
            is_last: it is time
        """
        now = time.monotonic()
        self._name_late(now)
        if not self._new or (now < self._next_look_s and not is_last):
            return None
        self._forget()
        self.missing = self._missing()
        if not any(len(part.number) for part in self.parts):
            return None
        self._new = False
        # A fit empties those that it is given.
        return [replace(part) for part in self.parts]

    def look(self, job: Job, took_s: float) -> None:
        """What ``join.measured()`` says of the rows, and how long it took."""
        self._next_look_s = time.monotonic() + took_s / MAX_COST
        self.job = job
        if not self.is_final and not self.missing:
            self._decide(job)

    def _missing(self) -> tuple[int, ...]:
        at_work = [part.rank for part in self.parts if len(part.number)]
        newest = max((rank.attempt for rank in at_work), default=0)
        mine = [rank for rank in at_work if rank.attempt == newest]
        world = max((rank.world for rank in mine), default=0)
        return tuple(sorted(set(range(world)) - {rank.rank for rank in mine}))

    def _forget(self) -> None:
        """Leave out the older half of the steps if there are too many rows."""
        if sum(len(part.number) for part in self.parts) > MAX_ROWS:
            ends = [int(part.number[-1]) for part in self.parts if len(part.number)]
            middle = statistics.median(ends)
            self.parts = [
                part
                for part in self.parts
                if not len(part.number) or part.number[-1] >= middle
            ]

    def _name_late(self, now: float) -> None:
        for node in self.nodes.values():
            if self.is_late(node, now) and not self.is_final:
                self._once(
                    f"{node.host} has not been heard from for "
                    f"{LATE * self.lease_s:.0f} s; after {self.lease_s:.0f} s its delays "
                    "end, and nothing is decided without it"
                )

    def is_late(self, node: Node, now: float) -> bool:
        """Whether a node that should be heard is not."""
        silent_s = now - node.heard_s
        return not node.is_over and not node.refused and silent_s > LATE * self.lease_s

    def _decide(self, job: Job) -> None:
        for effect in job.effects:
            found = effect.criticality
            if (
                found is not None
                and found.half <= self.precision
                and effect.delayed >= MIN_DELAYED
            ):
                self._narrow[effect.name] += 1
            else:
                self._narrow[effect.name] = 0
            if self._narrow[effect.name] >= LOOKS or effect.name in self._dropped:
                self.decided.setdefault(effect.name, effect)
        open_ = self.not_decided
        known = self.epochs[-1].functions if self.epochs else job.functions
        if set(open_) != set(known) and job.functions:
            self.publish(open_)

    @property
    def not_decided(self) -> list[str]:
        names = self.job.functions if self.job else ()
        return [name for name in names if name not in self.decided]

    def publish(self, functions: Sequence[str]) -> None:
        """A new epoch, in which these functions are delayed; none: the delays end."""
        if self.setup is None:
            return
        step = max((node.step for node in self.nodes.values()), default=0)
        rate = max((node.rate for node in self.nodes.values()), default=0.0)
        first = step + max(MIN_LEAD, math.ceil(LEAD_S * rate))
        if self.epochs:
            first = max(first, self.epochs[-1].first)
        new = epochs.epoch(len(self.epochs) + 1, first, functions, self.setup)
        value = {
            "epochs": epochs.as_json([*self.epochs, new]),
            "decided": sorted(self.decided),
        }
        # First for a leader that may come after this one.
        epochs.write(self._path, value)
        self.epochs.append(new)
        self.is_final = not functions

    @property
    def is_told(self) -> bool:
        """Whether all nodes that are at work have the newest epoch."""
        return all(
            node.is_over or node.refused or node.epoch >= len(self.epochs)
            for node in self.nodes.values()
        )

    def is_idle(self, now: float) -> bool:
        """Whether there were nodes, and none is left."""
        return bool(self.nodes) and all(
            node.is_over or node.refused or now - node.heard_s > self.lease_s
            for node in self.nodes.values()
        )

    @property
    def steps(self) -> int:
        """The steps that all ranks had, and that count."""
        return int(self.job.good.sum()) if self.job else 0
