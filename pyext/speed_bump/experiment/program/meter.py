# SPDX-License-Identifier: MIT
"""Units of work that are counted by a metric, and slots of time.

The program does not report its units, so none of its threads can end a slot: a thread of
the tool does. It reads the metric, and then ends the slot with the new count and the time
in the middle of the reading; the uncertainty is half of the reading's duration.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from dataclasses import dataclass, field

from speed_bump import _core
from speed_bump.duration import human
from speed_bump.experiment.program.metric import MetricError, Reading, Source, Value

# The interval between readings while units are counted and no slot ends.
POLL_S, LOOK_POLL_S = 0.1, 0.01
# A value that decreases in a larger part of the readings was not restarted.
MAX_RESETS, MAX_RESET_PART = 3, 0.02

# The length of a slot. Shorter ones cost the server too much:
MIN_SLOT_NS = 50_000_000
# minimal numbers of units, updates of the metric and durations of a reading per slot; the
# second values are used if the budget is too short for longer slots.
UNITS, MIN_UNITS = 16, 4
UPDATES, MIN_UPDATES = 5, 3
READINGS, MIN_READINGS = 20, 5
# A request should begin and end in one slot.
LATENCIES = 2
# Slots that a budget should have, and must have.
SLOTS, MIN_SLOTS = 150, 40
# An update by fewer units happens with each unit.
SINGLE = 1.5
# A value that changes in a larger part of the readings is up to date.
PROMPT = 0.8
# Changes that are needed to know a pace.
CHANGES = 6


@dataclass(frozen=True)
class Pace:
    """How a metric changes.

    Args:
        unit_ns: time of a unit of work
        update_ns: between two changes
        reading_ns: duration of a reading
        latency_ns: mean of a histogram of times; 0 otherwise
        readings: number of readings, of which ``changes`` differed from the previous one
    """

    unit_ns: float
    update_ns: float
    reading_ns: float
    latency_ns: float
    readings: int
    changes: int

    @property
    def late_ns(self) -> float:
        """The maximal delay of the metric; 0: each unit is counted immediately."""
        is_single = self.update_ns < SINGLE * self.unit_ns
        is_prompt = self.changes > PROMPT * self.readings
        return 0.0 if is_single or is_prompt else self.update_ns


def slot_of(pace: Pace, budget_s: float, series: str) -> int:
    """The length of a slot, ns.

    Raises:
        MetricError: the budget is too short for useful slots
    """
    wanted = max(
        MIN_SLOT_NS,
        UNITS * pace.unit_ns,
        UPDATES * pace.late_ns,
        READINGS * pace.reading_ns,
        LATENCIES * pace.latency_ns,
    )
    needed = {
        f"a unit of it takes {human(pace.unit_ns)}": MIN_UNITS * pace.unit_ns,
        f"it is updated once in {human(pace.late_ns)}": MIN_UPDATES * pace.late_ns,
        f"reading it takes {human(pace.reading_ns)}": MIN_READINGS * pace.reading_ns,
    }
    why, least = max(needed.items(), key=lambda item: item[1])
    if MIN_SLOTS * least > budget_s * 1e9:
        raise MetricError(
            f"{series}: {why}, so that slots must be {human(least)} or longer: give "
            f"--budget {math.ceil(MIN_SLOTS * least / 1e9)}s or more, or a metric that "
            "is updated more often"
        )
    room = budget_s * 1e9 / SLOTS
    return int(min(wanted, max(MIN_SLOT_NS, least, room)))


@dataclass
class Metered:
    """The values read at the end of a slot, relative to the end of the previous slot."""

    uncertain_ns: int
    count: float
    sum: float
    buckets: tuple[float, ...]


@dataclass
class _Moves:
    """The observations since ``watch()``."""

    begin_ns: int
    readings: int = 0
    changes: int = 0
    count: float = 0.0
    sum: float = 0.0
    last_ns: int = 0
    first_ns: int = 0
    took: list[int] = field(default_factory=list)


class Meter:
    """Reads a metric repeatedly, in a thread, and reports units to a plan.

    Args:
        source: used only by that thread
        plan: ends its slots when requested
    """

    def __init__(self, source: Source, plan: _core.Plan) -> None:
        self._source = source
        self._plan = plan
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._end = threading.Event()
        self._again = threading.Event()
        self._lock = threading.Lock()
        self._last: Reading | None = None
        self._done = 0.0
        self._reported = 0
        self._resets = self._readings = 0
        self._slot_ns = 0
        self._moves: _Moves | None = None
        # By the number of the slot.
        self.slots: dict[int, Metered] = {}
        self.bounds: tuple[float, ...] = ()
        self.is_histogram = False
        self.refused = ""
        self.trouble = ""
        # Whether the server is up: then errors are due to its answers.
        self._has_answer = False

    @property
    def series(self) -> str:
        """The description of the metric, for display."""
        return self._source.metric.series

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._again.set()
        if self._thread.is_alive():
            # It may be in the middle of a reading.
            self._thread.join(1.0)
        if not self._thread.is_alive():
            self._source.close()

    @property
    def state(self) -> str:
        """What is waited for, for display."""
        if self.trouble:
            # Some servers export it only after their first request.
            hint = "; put a load on the server" if self._has_answer else ""
            return f"waiting: {self.trouble}{hint}"
        return f"waiting for {self.series} to count"

    def why_nothing(self, waited_s: float) -> str:
        """Why no unit of work was seen and what to do, for display."""
        if not self.trouble:
            return (
                f"{self.series} did not count anything in {waited_s:.0f} s: give the "
                "server work, or name another metric"
            )
        what = "give more --budget"
        if self._has_answer:
            what = "put a load on the server, or name another metric"
        return f"{self.trouble}; gave up after {waited_s:.0f} s: {what}"

    def begin_look(self) -> None:
        """Observe the pace from now on, with frequent readings."""
        with self._lock:
            self._moves = _Moves(time.monotonic_ns())
        self._again.set()

    def pace(self) -> Pace | None:
        """The observations since; None: too few. For the look that continues."""
        with self._lock:
            moves = self._moves
            if not moves or moves.changes < 2 or moves.count <= 0:
                return None
            # From change to change: the time before the first one is incomplete.
            elapsed = moves.last_ns - moves.first_ns
            if elapsed <= 0:
                return None
            return Pace(
                elapsed / moves.count,
                elapsed / (moves.changes - 1),
                statistics.median(moves.took),
                1e9 * moves.sum / moves.count if self.is_histogram else 0.0,
                moves.readings,
                moves.changes,
            )

    def measure(self, slot_ns: int) -> None:
        """End slots at this interval, ns, from now on."""
        with self._lock:
            self._slot_ns = slot_ns
            self._moves = None
        self._again.set()

    # --------------------------------------------------------------------- thread

    def _run(self) -> None:
        try:
            self._read_on()
        except Exception as error:
            # Without this thread no slot ends, so code that waits for one has to be told.
            why = " ".join(str(error).split()) or type(error).__name__
            self.refused = f"{self.series} can't be read ({why})"

    def _read_on(self) -> None:
        due = time.monotonic_ns()
        took = 0
        while not self._end.is_set() and not self.refused:
            begin = time.monotonic_ns()
            reading = self._read()
            took = time.monotonic_ns() - begin
            if reading:
                self._take(reading)
            with self._lock:
                slot_ns, looks = self._slot_ns, self._moves is not None
            if slot_ns:
                # The middle of the reading should be at the end of the slot.
                due = max(due, begin + took // 2 - slot_ns // 2) + slot_ns
                pause_ns = due - took // 2 - time.monotonic_ns()
            else:
                due = time.monotonic_ns()
                pause_ns = int(1e9 * (LOOK_POLL_S if looks else POLL_S))
            # A reading that failed is not repeated at once.
            pause_ns = max(pause_ns, 0 if reading else int(1e9 * POLL_S))
            if self._again.wait(pause_ns / 1e9):
                self._again.clear()

    def _read(self) -> Reading | None:
        try:
            reading = self._source.read()
        except MetricError as error:
            self._note(error)
            return None
        self.trouble = ""
        self.bounds, self.is_histogram = reading.bounds, reading.is_histogram
        return reading

    def _note(self, error: MetricError) -> None:
        if not error.waits:
            self.refused = str(error)
        self._has_answer = error.has_answer
        self.trouble = str(error)

    def _take(self, reading: Reading) -> None:
        """Report the units since the previous reading."""
        before, self._last = self._last, reading
        self._readings += 1
        if before is None:
            return
        more = since(before, reading)
        if more is None:
            self._resets += 1
            if self._resets > max(MAX_RESETS, MAX_RESET_PART * self._readings):
                self.refused = (
                    f"{self.series} went down {self._resets} times in {self._readings} "
                    "readings: one process of several answers each time; give the URL of "
                    "one that adds them up"
                )
        count = more.count if more else 0.0
        self._done += count
        units = int(self._done) - self._reported
        self._reported += units
        with self._lock:
            self._watch(reading, count, more.sum if more else 0.0)
            slot_ns = self._slot_ns
        if not slot_ns:
            self._plan.report(units)
            return
        number = self._plan.end_slot(units, reading.time_ns if more else 0)
        if more:
            self.slots[number] = Metered(
                reading.uncertain_ns, more.count, more.sum, more.buckets
            )

    def _watch(self, reading: Reading, count: float, seconds: float) -> None:
        moves = self._moves
        if not moves or reading.begin_ns < moves.begin_ns:
            return
        moves.readings += 1
        moves.took.append(reading.end_ns - reading.begin_ns)
        if count <= 0:
            return
        moves.changes += 1
        moves.last_ns = reading.time_ns
        if moves.changes == 1:
            moves.first_ns = reading.time_ns
            return
        moves.count += count
        moves.sum += seconds


def since(before: Reading, now: Reading) -> Value | None:
    """The increase of all series in between; None: one of them was reset."""
    count = total = 0.0
    buckets = [0.0] * len(now.bounds)
    for key, value in before.series.items():
        if key not in now.series or now.series[key].went_down(value):
            return None
    for key, value in now.series.items():
        # A new series has counted from 0.
        old = before.series.get(key)
        count += value.count - (old.count if old else 0.0)
        total += value.sum - (old.sum if old else 0.0)
        for k, n in enumerate(value.buckets[: len(buckets)]):
            buckets[k] += n - (old.buckets[k] if old and k < len(old.buckets) else 0.0)
    return Value(count, total, tuple(buckets))
