# SPDX-License-Identifier: MIT
"""Durations of calls and between marks, which a program records in shared memory."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from speed_bump import _core
from speed_bump.kinds import LatencyKind

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# With more processes than this, several share a ring.
RINGS = 8
# An event that is not complete after this time never will be: its process was killed.
PATIENCE_S = 1.0
# Shorter durations have a bucket per ns; above, each power of two has half as many
# buckets.
EXACT_NS = 2 << _core.LATENCY_SHIFT

_KIND: dict[int, str] = {
    LatencyKind.FUNCTIONS: "functions",
    LatencyKind.MARKS: "marks",
}


def lowest(bucket: int) -> int:
    """The shortest duration in a bucket of the histograms, ns."""
    if bucket < EXACT_NS:
        return bucket
    shift = (bucket >> _core.LATENCY_SHIFT) - 1
    return (bucket - (shift << _core.LATENCY_SHIFT)) << shift


def middle(bucket: int) -> float:
    """The value that represents a bucket, ns: off by at most 1/128."""
    return (lowest(bucket) + lowest(bucket + 1) - 1) / 2


@dataclass(frozen=True)
class Histogram:
    """The recorded durations of one name, in all processes together.

    Results of two runs are combined by ``merged()``, without loss. ``begun`` tells
    whether anything began. For marks, ``unended`` is the number of beginnings that have
    no end so far, and ``unbegun`` the number of ends without a beginning; for functions
    both are 0.
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
        return sum(self.buckets)

    @property
    def mean_ns(self) -> float:
        """Their mean, which is exact; 0 if there are none."""
        count = self.count
        return self.sum_ns / count if count else 0.0

    def quantile_ns(self, q: float) -> float:
        """The duration that a part ``q`` of them does not exceed; 0 if there are none.

        Exact to 1/128. It is the least recorded duration with this property, as for
        ``numpy.quantile(..., method="inverted_cdf")``.
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
        """Combine two histograms, under the name of this one."""
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
    """The durations that a table has recorded so far, in the order of its names."""
    found = []
    for latency in table.latencies():
        if latency.kind not in _KIND:
            continue
        buckets = array("Q", latency.buckets)
        found.append(
            Histogram(
                name=latency.name,
                kind=_KIND[latency.kind],
                begun=latency.begun,
                # Read one after the other while the program runs.
                unended=max(0, latency.begins - sum(buckets)),
                unbegun=latency.unbegun,
                sum_ns=latency.sum_ns,
                max_ns=latency.max_ns,
                buckets=buckets,
            )
        )
    return found


def marks_not_asked_for(table: _core.Table) -> list[str]:
    """The names of marks that the program sets and that are not recorded."""
    return [
        latency.name
        for latency in table.latencies()
        if latency.kind == LatencyKind.NOT_ASKED
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
        """The recorded names; an event's ``name`` is an index in it."""
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
            found = self._table.latency_events(ring, at, skip)
            self._at[ring] = found.at
            self.lost += found.lost
            yield found.data
            if found.behind and found.at != at:
                continue  # a call has a ring's worth at most, and skips one event
            if found.behind:
                self._since.setdefault(ring, (at, time.monotonic()))
            break

    def _is_stuck(self, ring: int) -> bool:
        at, since = self._since.get(ring, (-1, 0.0))
        if at != self._at[ring]:
            self._since.pop(ring, None)
            return False
        return time.monotonic() - since > PATIENCE_S
