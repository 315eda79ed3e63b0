# SPDX-License-Identifier: MIT
"""Which plan holds from which step on, in a run with a leader (``member --live``).

An epoch says "from step k on, only these functions are delayed". Epoch 0 is the plan
without a leader: all functions. The leader publishes the whole list, so that a node that
comes late has the right plan for each step. The node's worker puts the list into the
node's shared memory; the node's helper plans by it, as far as steps are not begun.

Seed, block and dose belong to a plan and are those of the run's settings in all epochs:
what a delay costs may depend on its length, so a fit over epochs needs one dose. They
are in each epoch so that a node never follows the plan of another run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from speed_bump.experiment.cluster.plan import BLOCK, Setup

# In the room of the node: what the leader said, and what the helper tells the worker.
COURSE = "course.json"
STATE = "state.json"
# The number of the time after the lease of a leader ended: there are no delays.
OFF = -1


@dataclass(frozen=True)
class Epoch:
    """From step ``first`` on, of all functions only these are delayed.

    ``dose`` and ``delay_ns`` are as in ``Setup``.
    """

    number: int
    first: int
    functions: tuple[str, ...]
    seed: int
    block: int
    dose: float
    delay_ns: int


def epoch(number: int, first: int, functions: Sequence[str], setup: Setup) -> Epoch:
    """An epoch of a run with these settings."""
    first += -first % BLOCK
    return Epoch(
        number,
        first,
        tuple(sorted(functions)),
        setup.seed,
        BLOCK,
        setup.dose,
        setup.delay_ns,
    )


def as_json(epochs: Sequence[Epoch]) -> list[dict[str, Any]]:
    return [asdict(one) for one in epochs]


def from_json(values: Any, setup: Setup) -> tuple[Epoch, ...]:
    """Read what ``as_json()`` made.

    Raises:
        ValueError: it is not a list of epochs, or of a run with other settings
    """
    try:
        found = tuple(
            Epoch(
                int(one["number"]),
                int(one["first"]),
                tuple(str(name) for name in one["functions"]),
                int(one["seed"]),
                int(one["block"]),
                float(one["dose"]),
                int(one["delay_ns"]),
            )
            for one in values
        )
    except (TypeError, KeyError) as error:
        raise ValueError(f"not a list of epochs ({error})") from None
    if any(one.number != k for k, one in enumerate(found, 1)):
        raise ValueError("epochs are missing")
    mine = (setup.seed, BLOCK, setup.dose, setup.delay_ns)
    if any((e.seed, e.block, e.dose, e.delay_ns) != mine for e in found):
        raise ValueError("epochs of a run with another --seed, --dose or --delay")
    return found


def write(path: str, value: Any) -> None:
    """Put JSON into a file that others read: the whole of it or nothing."""
    with open(f"{path}.new", "w", encoding="ascii") as file:
        json.dump(value, file)
    os.replace(f"{path}.new", path)


def now_s() -> float:
    """The clock of leases, which all processes of a node share."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Course:
    """What a node's helper knows of the epochs: what held, holds and will hold.

    Args:
        where: the directory of the node in shared memory
    """

    def __init__(self, where: str, setup: Setup) -> None:
        self._path = os.path.join(where, COURSE)
        self._setup = setup
        self._seen = 0
        self._epochs: tuple[Epoch, ...] = ()
        # The end of the lease; None: no leader was there yet, or the last epoch has come.
        self._until: float | None = None
        self.is_off = False
        # Pairs (first step, number of the epoch).
        self._held = [(0, 0)]

    @property
    def number(self) -> int:
        """Of the newest epoch."""
        return len(self._epochs)

    @property
    def is_final(self) -> bool:
        """Whether nothing will be delayed any more."""
        return bool(self._epochs) and not self._epochs[-1].functions

    def look(self) -> bool:
        """Read what the leader said; whether other steps than before are delayed now."""
        before = self._epochs, self.is_off
        try:
            changed = os.stat(self._path).st_mtime_ns
        except OSError:
            changed = 0
        if changed != self._seen:
            self._seen = changed
            self._read()
        self.is_off = self._until is not None and now_s() > self._until
        return (self._epochs, self.is_off) != before

    def _read(self) -> None:
        try:
            with open(self._path, encoding="ascii") as file:
                told = json.load(file)
            found = from_json(told["epochs"], self._setup)
            until = None if told["until"] is None else float(told["until"])
        except (OSError, ValueError, TypeError, KeyError):
            return
        if len(found) >= len(self._epochs):
            self._epochs, self._until = found, until

    def _at(self, step: int) -> int:
        """The number of the epoch that holds in a step that is not settled yet."""
        if self.is_off:
            return OFF
        return max((e.number for e in self._epochs if e.first <= step), default=0)

    def settle(self, first: int) -> None:
        """From step ``first`` on, steps are as the newest epochs say; others stay."""
        held = [one for one in self._held if one[0] < first]
        starts = [first, *(e.first for e in self._epochs if e.first > first)]
        for start in sorted(set(starts)):
            number = self._at(start)
            if not held or held[-1][1] != number:
                held.append((start, number))
        self._held = held

    def held(self, first: int, last: int) -> list[list[int]]:
        """Pairs as in ``_held`` that cover these steps."""
        begin = max(k for k, one in enumerate(self._held) if one[0] <= max(first, 0))
        return [list(one) for one in self._held[begin:] if one[0] <= last]

    def allowed(
        self, functions: Sequence[str], first: int, count: int
    ) -> npt.NDArray[np.uint64]:
        """The arms that may be on in each step: of a function its index."""
        numbers = numbers_of(self._held, np.arange(first, first + count))
        every = (1 << len(functions)) - 1
        by_number = {0: every, OFF: 0}
        for one in self._epochs:
            names = set(one.functions)
            by_number[one.number] = sum(
                1 << arm for arm, name in enumerate(functions) if name in names
            )
        found = np.zeros(count, np.uint64)
        for number, arms in by_number.items():
            found[numbers == number] = np.uint64(arms)
        return found


def numbers_of(
    held: Sequence[Sequence[int]], steps: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The number of the epoch in each of the steps; 0 before the first pair."""
    starts = np.array([one[0] for one in held], np.int64)
    numbers = np.array([0, *(one[1] for one in held)], np.int64)
    return np.asarray(numbers[np.searchsorted(starts, steps, side="right")])


def of_setup(setup: Mapping[str, Any], steps: npt.NDArray[np.int64]) -> Any:
    """The numbers of the epochs in steps of rows with this ``setup``."""
    return numbers_of(setup.get("epochs", ()), steps)
