# SPDX-License-Identifier: MIT
"""Functions that are made faster by turns, while a program runs.

A program of this directory has ``PROGRESS``, the name of its unit of work, and
``FASTER``, the functions that can be made faster, and how. Without arguments it runs for
ever, unchanged, for ``rank``. ``program.py FUNCTION SECONDS`` runs it for that time: in
turns of half a second, in random order, the function is itself or the faster one. In the
end the list of turns is printed as JSON: whether it was the faster one, and the time of
a unit in ns. Turns are compared within a run, because runs differ by several percent.
"""

from __future__ import annotations

import functools
import json
import mmap
import random
import sys
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

# ns, and the part of a turn that is left out, in which buffers fill or empty.
TURN_NS, SETTLING = 500_000_000, 0.3

Function = Callable[..., Any]


@dataclass(frozen=True)
class Faster:
    """An attribute of a class or module; the faster function is made of the real one."""

    owner: Any
    name: str
    made: Callable[[Function], Function]


def remembered(
    function: Function, key: Callable[..., Hashable] = lambda *a: a
) -> Function:
    """Its results are kept, by their arguments."""
    known: dict[Hashable, Any] = {}

    @functools.wraps(function)
    def quick(*args: Any, **more: Any) -> Any:
        at = key(*args)
        if at not in known:
            known[at] = function(*args, **more)
        return known[at]

    return quick


def nothing(_: Function) -> Function:
    """It does nothing."""
    return lambda *args, **more: None


class Turns:
    """The turns of the function that the command line names, if any.

    It must be made before other processes are forked: they take the same turns.
    """

    def __init__(self, faster: dict[str, Faster]) -> None:
        self.now = mmap.mmap(-1, mmap.PAGESIZE)
        self.turns: list[tuple[bool, float]] = []
        self.draw = random.Random(1)
        self.order: list[bool] = []
        self.end = self.counted_from = self.units = 0
        self.seconds = 0.0
        if len(sys.argv) > 1:
            self.seconds = float(sys.argv[2])
            self._replace(faster[sys.argv[1]])

    def _replace(self, faster: Faster) -> None:
        real = getattr(faster.owner, faster.name)
        quick, now = faster.made(real), self.now

        @functools.wraps(real)
        def either(*args: Any, **more: Any) -> Any:
            return (quick if now[0] else real)(*args, **more)

        setattr(faster.owner, faster.name, either)

    def unit(self) -> bool:
        """A unit is done; whether the program goes on."""
        if not self.seconds:
            return True
        ns = time.perf_counter_ns()
        if ns >= self.end:
            if self.units:
                each = (ns - self.counted_from) / self.units
                self.turns.append((bool(self.now[0]), each))
            # Complete pairs only, and a first one to warm up.
            if len(self.turns) * TURN_NS >= self.seconds * 1e9 and not self.order:
                print(json.dumps(self.turns[2:]), flush=True)
                return False
            if not self.order:
                self.order = [True, False]
                self.draw.shuffle(self.order)
            self.now[0] = self.order.pop()
            self.end = ns + TURN_NS
            self.units = self.counted_from = 0
        elif ns >= self.end - (1 - SETTLING) * TURN_NS:
            if self.counted_from:
                self.units += 1
            else:
                self.counted_from = ns
        return True
