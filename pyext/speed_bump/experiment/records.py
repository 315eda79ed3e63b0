# SPDX-License-Identifier: MIT
"""What an experiment leaves behind: a file of JSON lines, from which all else follows.

The first line is the header (what was run, where, how), then come the census (what is
called how often, and where time is spent), one line for each pair of windows, and a last
line that says how it ended. A file that was cut off is read as far as it goes.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

FORMAT = 1


class RecordError(Exception):
    """A file is not one of ours, or damaged; the message says where."""


@dataclass(frozen=True)
class Window:
    """What was read of one window. Times are ns; see libsb.h for each."""

    begin_ns: int
    clock_ns: int
    time_ns: int
    units: int
    hits: int = 0
    delayed: int = 0
    requested_ns: int = 0
    measured_ns: int = 0
    run_delay_ns: int = 0
    stall_ns: int = 0
    steal_ns: int = 0

    @property
    def unit_ns(self) -> float:
        """The time of a unit of work."""
        return self.time_ns / self.units

    def values(self) -> list[int]:
        """As in the file."""
        return list(asdict(self).values())


# What a pair is for.
SOLO, GROUP, JOINT, SHAM = "solo", "group", "joint", "sham"
SPIN, SLEEP = "spin", "sleep"


@dataclass(frozen=True)
class Pair:
    """Two windows that differ in the delays of ``names`` only, in random order.

    ``delays_ns`` and ``every`` are of a call, in the order of ``names``; ``share`` is
    what was aimed at, delay per unit of work of each name in parts of the undelayed time.
    ``length_ns`` is the nominal length of the windows; 0: they are whole runs.
    """

    at_ns: int
    run: int
    kind: str
    names: tuple[str, ...]
    delays_ns: tuple[int, ...]
    every: tuple[int, ...]
    share: float
    length_ns: int
    mode: str
    on_first: bool
    off: Window
    on: Window

    @property
    def is_good(self) -> bool:
        """Whether both windows have work in them."""
        return min(self.off.units, self.on.units, self.off.time_ns, self.on.time_ns) > 0

    @property
    def change_ns(self) -> float:
        """Of the time of a unit."""
        return self.on.unit_ns - self.off.unit_ns

    @property
    def delivered_ns(self) -> float:
        """Delay per unit of work as it was."""
        return self._per_unit(self.on.measured_ns)

    @property
    def requested_ns(self) -> float:
        """Delay per unit of work as it was asked for."""
        return self._per_unit(self.on.requested_ns)

    def _per_unit(self, ns: int) -> float:
        # Counters are read at the ends of the window, and units end somewhere within it.
        return ns / self.on.clock_ns * self.on.unit_ns if self.on.clock_ns else 0.0


@dataclass(frozen=True)
class NativeTimes:
    """How long threads were in native functions, of all of them together. Times are ns.

    ``thread_ns`` is the time of all threads of the program, on a CPU or off it; of
    ``unseen_ns`` of it is not known where they were. ``stacks`` were looked at; ``lost``
    records were not seen. ``looks`` is the number of looks, apart from each other, that
    the ``self_ns`` of a function is worth. ``refused`` says why functions are not in
    them, "" if all are.
    """

    clock_ns: int = 0
    thread_ns: int = 0
    unseen_ns: int = 0
    stacks: int = 0
    lost: int = 0
    self_ns: dict[str, int] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)
    refused: str = ""


@dataclass(frozen=True)
class Census:
    """What was seen while nothing was delayed, in ``clock_ns``.

    ``calls`` of each function and ``units`` of work in that time. In ``ticks`` looks at
    the stacks, ``samples`` found a thread in each function of Python; several may be in
    one. ``self_from`` says how ("stack samples"), "" if it could not be seen. ``native``
    is of native functions, None where there were none.
    """

    at_ns: int
    run: int
    clock_ns: int
    units: int
    calls: dict[str, int]
    ticks: int
    samples: dict[str, int]
    self_from: str
    native: NativeTimes | None = None


@dataclass(frozen=True)
class GroupTest:
    """A group that was screened: ``effect`` is in parts of the time of a unit."""

    names: tuple[str, ...]
    pairs: int
    share: float
    effect: float
    low: float
    high: float
    matters: bool


@dataclass
class Record:
    """All that is known of an experiment."""

    header: dict[str, Any]
    censuses: list[Census] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    tests: list[GroupTest] = field(default_factory=list)
    joint: list[tuple[str, ...]] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """What all random choices came from."""
        return int(self.header.get("seed", 0))


class Writer:
    """Keeps a record in memory and, line by line, in a file."""

    def __init__(self, header: dict[str, Any], file: TextIO | None) -> None:
        """The header is written at once."""
        self.record = Record(header)
        self._file = file
        self._line("header", header)

    def census(self, census: Census) -> None:
        """Add a census."""
        self.record.censuses.append(census)
        self._line("census", asdict(census))

    def pair(self, pair: Pair) -> None:
        """Add a pair."""
        self.record.pairs.append(pair)
        line = asdict(pair)
        line["off"] = pair.off.values()
        line["on"] = pair.on.values()
        self._line("pair", line)

    def test(self, test: GroupTest) -> None:
        """Add a group test."""
        self.record.tests.append(test)
        self._line("test", asdict(test))

    def joint(self, names: Sequence[str]) -> None:
        """Add a group that matters together and not one by one."""
        self.record.joint.append(tuple(names))
        self._line("joint", {"names": list(names)})

    def end(self, end: dict[str, Any]) -> None:
        """Say how it ended."""
        self.record.end = end
        self._line("end", end)

    def _line(self, what: str, values: dict[str, Any]) -> None:
        if self._file:
            # "what" comes first, so that a person who looks at the file sees it; a pair
            # has a kind of its own.
            text = json.dumps({"what": what, **values}, separators=(",", ":"))
            self._file.write(text + "\n")
            if what != "pair":
                self._file.flush()


def read(path: str) -> Record:
    """Read a file of a ``Writer``.

    Raises:
        RecordError: it is not one, or a line before the last is damaged
        OSError: it can't be read
    """
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return parse(file, path)


def parse(lines: Iterable[str], name: str) -> Record:
    """Read the lines of a file; ``name`` stands for it in messages."""
    record: Record | None = None
    damaged = 0
    for number, line in enumerate(lines, 1):
        if damaged and record is None:
            break
        if damaged:
            raise RecordError(f"{name}:{damaged}: not a line of an experiment")
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            what = values.pop("what")
            if record is None:
                record = Record(_check_header(what, values, name))
            else:
                _take(record, what, values)
        except (ValueError, TypeError, KeyError, AttributeError):
            # The last line of a run that was killed may be cut off.
            damaged = number
    if record is None:
        raise RecordError(f"{name}: not a file of speed-bump rank")
    return record


def _check_header(what: str, values: dict[str, Any], name: str) -> dict[str, Any]:
    if what != "header":
        raise RecordError(f"{name}: not a file of speed-bump rank")
    if values.get("format") != FORMAT:
        raise RecordError(
            f"{name}: made by another version of speed-bump (format "
            f"{values.get('format')}, this one reads {FORMAT})"
        )
    return values


def _take(record: Record, what: str, values: dict[str, Any]) -> None:
    if what == "pair":
        for key in ("names", "delays_ns", "every"):
            values[key] = tuple(values[key])
        values["off"] = Window(*values["off"])
        values["on"] = Window(*values["on"])
        record.pairs.append(Pair(**values))
    elif what == "census":
        native = values.pop("native", None)
        times = None if native is None else NativeTimes(**native)
        record.censuses.append(Census(**values, native=times))
    elif what == "test":
        values["names"] = tuple(values["names"])
        record.tests.append(GroupTest(**values))
    elif what == "joint":
        record.joint.append(tuple(values["names"]))
    elif what == "end":
        record.end = values


def environment() -> dict[str, Any]:
    """The machine and the interpreter, for those who read the file later."""
    from speed_bump import _core

    return {
        "host": platform.node(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
        "hook": _core.HOOK,
        "clock": _core.clock_name(),
        "least_delay_ns": _core.min_delay_ns(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "load": list(os.getloadavg()),
    }


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""
