# SPDX-License-Identifier: MIT
"""Whether requests wait for answers (a closed loop) or not, or there are too many."""

from __future__ import annotations

from dataclasses import dataclass

# isort: off
import speed_bump.experiment.algebra  # noqa: F401
import numpy as np
import numpy.typing as npt
# isort: on

from speed_bump.experiment.fit.interval import THRESHOLD, Interval

OPEN, CLOSED, PARTLY, OVERLOADED = "open", "closed", "partly open", "overloaded"
# In a closed loop throughput changes by as much as latency; in an open one not at all.
HALF = 0.5
# A nearly constant number of requests in progress belongs to clients that wait: mean over
# maximum, and variance over mean, which is 1 for random arrivals.
FULL, EVEN = 0.9, 0.2
# The queue has grown if it is longer by this factor in the last third of the time.
GROWS = 3.0


@dataclass(frozen=True)
class Load:
    """How requests arrive.

    Args:
        kind: "open": independently of the answers; "closed": after the answer to another
            request; "partly open": in between, as with clients that think; "overloaded":
            more arrive than are answered
        busy: part of the time with a request in progress
        under_way: requests in progress, on average
        most: their maximum, except for a thousandth of the time
        moves: the change of throughput over that of latency, 1 in a closed loop without
            pauses; None: no delay changed latency enough
    """

    kind: str
    busy: float
    under_way: float
    most: float
    moves: Interval | None = None

    def text(self) -> str:
        """The observation and the conclusion, for display."""
        seen = (
            f"{self.under_way:.2g} requests are under way on average, at least one "
            f"{self.busy:.0%} of the time"
        )
        if self.moves is not None:
            share = (
                f"throughput moves by {self.moves.value:.2f} ± {self.moves.half:.2f} of "
                "what it would if each client waited for its answer"
            )
        else:
            share = "no delay moved latency enough to compare throughput with it"
        follows = {
            OPEN: "open loop: requests do not wait for answers; below saturation, only "
            "latency shows what a function costs, and throughput shows nothing",
            CLOSED: "closed loop: the next request comes when one is answered, so "
            "throughput and latency show the same; requests that don't wait for each "
            "other would queue more, and their p99 may differ",
            PARTLY: "neither open nor closed: some requests wait for the answers of "
            "others; both throughput and latency count",
            OVERLOADED: "overloaded: more requests come than are answered, and the queue "
            "grows; latency has no value that it would settle at",
        }
        return f"{follows[self.kind]} ({seen}; {share})"


def load(events: npt.NDArray[np.void], moves: Interval | None) -> Load:
    """Classify the load by times of arrival and answer, and by changes of throughput."""
    begin = events["begin_ns"].astype(np.int64)
    end = begin + events["duration_ns"].astype(np.int64)
    at = np.concatenate([begin, end])
    change = np.concatenate([np.ones(len(begin), np.int64), -np.ones(len(end), np.int64)])
    # A request answered as another arrives is not in progress with it.
    order = np.lexsort((change, at))
    at, under = at[order], np.cumsum(change[order])[:-1]
    time = np.diff(at).astype(float)
    inside = (at[:-1] >= begin.min()) & (at[:-1] < begin.max())
    at, under, time = at[:-1][inside], under[inside], time[inside]
    if not len(time):
        # All arrived at the same time, or there is only one.
        return Load(OPEN, 0.0, 0.0, 0.0, moves)
    total = max(float(time.sum()), 1.0)
    mean = float((under * time).sum()) / total
    variance = float(((under - mean) ** 2 * time).sum()) / total
    by_size = np.argsort(under, kind="stable")
    share = np.cumsum(time[by_size]) / total
    most = float(under[by_size][min(np.searchsorted(share, 0.999), len(share) - 1)])
    thirds = np.minimum((3 * (at - at[0]) / max(at[-1] - at[0], 1)).astype(int), 2)
    part = np.bincount(thirds, under * time, 3) / np.maximum(
        np.bincount(thirds, time, 3), 1
    )
    busy = float(time[under > 0].sum()) / total
    full = mean >= FULL * most and variance <= EVEN * mean
    if busy > 0.99 and part[2] > GROWS * part[0] and part[2] > part[1] > part[0]:
        kind = OVERLOADED
    elif moves is None:
        kind = CLOSED if full else OPEN
    elif moves.high < HALF:
        kind = OPEN
    elif moves.low > HALF or full:
        kind = CLOSED
    else:
        kind = PARTLY if moves.low > THRESHOLD else OPEN
    return Load(kind, busy, mean, most, moves)
