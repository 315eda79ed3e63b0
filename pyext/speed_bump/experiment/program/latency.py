# SPDX-License-Identifier: MIT
"""Durations of calls and of marks, as a program records them in memory that it shares."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from speed_bump import _core

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Processes beyond so many share a ring.
RINGS = 8
# An event that is not written after so long never will be: its process was killed.
PATIENCE_S = 1.0
# Below it each ns has a bucket; from there on each power of two has half as many.
EXACT_NS = 2 << _core.LATENCY_SHIFT

_KIND = {_core.LATENCY_FUNCTIONS: "functions", _core.LATENCY_MARKS: "marks"}


def lowest(bucket: int) -> int:
    """The shortest duration that a bucket of the histograms has, ns."""
    if bucket < EXACT_NS:
        return bucket
    shift = (bucket >> _core.LATENCY_SHIFT) - 1
    return (bucket - (shift << _core.LATENCY_SHIFT)) << shift


def middle(bucket: int) -> float:
    """What stands for a bucket's durations, ns: off by 1/128 of it at most."""
    return (lowest(bucket) + lowest(bucket + 1) - 1) / 2


@dataclass(frozen=True)
class Histogram:
    """The durations that were recorded for one name, in all processes together.

    Those of two runs merge by ``merged()``, and nothing is lost by that. ``begun`` says
    whether anything began. Of marks ``unended`` is how many were begun and have not ended
    so far, ``unbegun`` how many ends had no beginning; of functions both are 0.
    """

    name: str
    kind: str
    begun: bool
    unended: int
    unbegun: int
    sum_ns: int
    max_ns: int
    buckets: array[int]

    @property
    def count(self) -> int:
        """How many."""
        return sum(self.buckets)

    @property
    def mean_ns(self) -> float:
        """Their mean, which is exact; 0 if there are none."""
        count = self.count
        return self.sum_ns / count if count else 0.0

    def quantile_ns(self, q: float) -> float:
        """The duration that a part ``q`` of them does not exceed; 0 if there are none.

        Off by 1/128 of it at most. It is the least recorded duration of which that is so,
        as of ``numpy.quantile(..., method="inverted_cdf")``.
        """
        wanted = q * self.count
        seen = 0
        for bucket, n in self.used():
            seen += n
            if seen >= wanted:
                return min(middle(bucket), self.max_ns)
        return 0.0

    def used(self) -> Iterator[tuple[int, int]]:
        """Each bucket that has durations, and how many."""
        return ((bucket, n) for bucket, n in enumerate(self.buckets) if n)

    def merged(self, other: Histogram) -> Histogram:
        """Both together, under the name of this one."""
        return Histogram(
            self.name,
            self.kind,
            self.begun or other.begun,
            self.unended + other.unended,
            self.unbegun + other.unbegun,
            self.sum_ns + other.sum_ns,
            max(self.max_ns, other.max_ns),
            array("Q", (a + b for a, b in zip(self.buckets, other.buckets, strict=True))),
        )


def histograms(table: _core.Table) -> list[Histogram]:
    """What a table has recorded so far, in the order of its names."""
    found = []
    for name, kind, begun, begins, unbegun, sum_ns, max_ns, data in table.latencies():
        if kind not in _KIND:
            continue
        buckets = array("Q", data)
        # Read one after the other while the program runs.
        unended = max(0, begins - sum(buckets))
        found.append(
            Histogram(name, _KIND[kind], begun, unended, unbegun, sum_ns, max_ns, buckets)
        )
    return found


def marks_not_asked_for(table: _core.Table) -> list[str]:
    """The names of marks that the program set, and that are not recorded."""
    return [
        name for name, kind, *_ in table.latencies() if kind == _core.LATENCY_NOT_ASKED
    ]


class Events:
    """Each duration that a program records, as it comes: drains the rings of a table.

    A process has a ring of ``_core.LATENCY_RING_EVENTS`` (32,768) events; from the ninth
    process on they share them. While ``events()`` is called before as many have come to a
    ring, it gives each event once, and none is lost. What was overwritten unread is in
    ``lost``. To call it costs little where nothing has come; each 100 ms will do for
    300,000 events a second in each ring.

    Threads of the tool must not call it at the same time. The table stays the caller's.

    Args:
        table: made with ``latencies`` and ``rings``
    """

    def __init__(self, table: _core.Table) -> None:
        """Begin at the first event there ever was."""
        self._table = table
        self._at = [0] * table.rings
        # Since when the next event of a ring is not there, though others are behind it.
        self._since: dict[int, tuple[int, float]] = {}
        self.lost = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The names that were asked for; an event's ``name`` is an index in it."""
        return tuple(one.name for one in histograms(self._table))

    @staticmethod
    def dtype() -> np.dtype[np.void]:
        """The fields of an event.

        ``begin_ns`` is on CLOCK_MONOTONIC, as the ends of slots are. ``name`` is an index
        in ``names``; ``pid`` is the process, by its number in its own namespace.
        """
        import numpy as np

        return np.dtype(
            [("begin_ns", "u8"), ("duration_ns", "u8"), ("name", "u4"), ("pid", "u4")]
        )

    def events(self, *, ended: bool = False) -> npt.NDArray[np.void]:
        """What has come since the last time: an array of ``dtype()``.

        In one ring events are in the order of their ends, but for those of threads that
        end at the same moment; rings come one after the other.

        Args:
            ended: the program is over, and nothing will be written any more
        """
        import numpy as np

        parts = [
            part for ring in range(len(self._at)) for part in self._drain(ring, ended)
        ]
        return np.frombuffer(b"".join(parts), dtype=self.dtype())

    def _drain(self, ring: int, ended: bool) -> Iterator[bytes]:
        while True:
            at = self._at[ring]
            skip = ended or self._is_stuck(ring)
            data, self._at[ring], behind, lost = self._table.latency_events(
                ring, at, skip
            )
            self.lost += lost
            yield data
            if behind and self._at[ring] != at:
                continue  # a call has a ring's worth at most, and skips one event
            if behind:
                self._since.setdefault(ring, (at, time.monotonic()))
            break

    def _is_stuck(self, ring: int) -> bool:
        at, since = self._since.get(ring, (-1, 0.0))
        if at != self._at[ring]:
            self._since.pop(ring, None)
            return False
        return time.monotonic() - since > PATIENCE_S
