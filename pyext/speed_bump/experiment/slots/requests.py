# SPDX-License-Identifier: MIT
"""Blocks for the latency of requests: small delays, in slots that outlast requests.

The effect of a delay on a queue depends on the load, and a delay that increases the load
much would answer another question. So doses stay small, and the time is used to repeat
them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from speed_bump.experiment.fit.columns import usual
from speed_bump.experiment.fit.load import CLOSED, load
from speed_bump.experiment.record import Arm, Block, Delay, Record
from speed_bump.experiment.slots.plan import (
    HOLDS,
    SHAM,
    chance_of_one,
    delay_for,
    least_ns,
    one_at_a_time,
    rest,
)

# The minimal length of a slot: a time, a number of ordinary requests, and a number of
# slow ones; but the available time is divided into at least this many slots.
SLOT_NS = 100_000_000
MEDIANS, P99S = 20, 5
MIN_SLOTS = 200
# The delay in a slot as a part of its time: maximum, minimum, and as a part of the time
# without any request. It is also limited to this part of an ordinary request's time.
MAX_DOSE, MIN_DOSE = 0.1, 0.03
OF_IDLE = 0.3
OF_REQUEST = 0.25
# The maximal number of functions: those that take the most time.
MAX_FUNCTIONS = 24
SHAM_SHARE = 0.3
BLOCK, REST = 60, 12
BLOCKS_A_REST = 2
# The load is that of the newest requests; fewer than these are not enough.
NEWEST, FEW = 50_000, 10


def slot_ns(took_ns: np.typing.NDArray[np.float64], budget_s: float) -> float:
    """The length of a slot, from the durations of requests."""
    wanted = float(SLOT_NS)
    if len(took_ns):
        median, slow = np.quantile(took_ns, (0.5, 0.99))
        wanted = max(wanted, MEDIANS * float(median), P99S * float(slow))
    return min(wanted, budget_s * 1e9 / MIN_SLOTS)


@dataclass
class Requests:
    """Decides on blocks: each function in turn, until the time is up.

    Args:
        max_slowdown: limit for the delays over the whole run
        min_delay_ns: the shortest delay of a call
        fixed: given delays of functions, ns; not below the shortest
    """

    max_slowdown: float
    min_delay_ns: int
    seed: int
    fixed: Mapping[str, int] = field(default_factory=dict)
    _queue: deque[Block] = field(default_factory=deque)

    def next_block(self, record: Record) -> Block | None:
        """The next block; None: there is nothing to delay."""
        if not self._queue:
            self._fill(record)
        return self._queue.popleft() if self._queue else None

    def _fill(self, record: Record) -> None:
        slots = record.slots
        quiet = slots.good & (slots.mask == 0)
        if not record.functions:
            return
        if not quiet.any():
            # Slots are not known yet.
            self._queue.append(rest(BLOCK))
            return
        slot = usual(slots.time_ns[quiet])
        calls = np.nan_to_num(slots.calls[quiet]).mean(axis=0)
        called = [k for k in range(len(record.functions)) if calls[k] > 0]
        called.sort(key=lambda k: -self._share(record, record.functions[k]))
        called = sorted(called[:MAX_FUNCTIONS])
        if not called:
            # Requests may still arrive.
            self._queue.append(rest(BLOCK))
            return
        dose, longest = self._dose(record, slot)
        arms = (
            SHAM,
            *(
                Arm((name,), ((self._delay(name, dose, slot, calls[k], longest),),))
                for k in called
                for name in (record.functions[k],)
            ),
        )
        # A given delay, or the shortest one, may be a dose of its own.
        dose = max(
            d.delay_ns / d.every * calls[k] / slot
            for k, arm in zip(called, arms[1:], strict=True)
            for (d,) in arm.delays
        )
        each = chance_of_one(len(called))
        cap = self.max_slowdown / (1 - self.max_slowdown)
        each = min(each, cap / max(dose * len(called), 1e-9))
        chances = (SHAM_SHARE * each, *[each] * len(called))
        for number in range(BLOCKS_A_REST):
            draw = np.random.default_rng((self.seed, len(record.blocks) + number))
            masks, _ = one_at_a_time(draw, BLOCK, chances, HOLDS)
            levels = np.zeros(BLOCK, np.uint8)
            doses = (float(f"{dose:.2g}"),)
            self._queue.append(
                Block("single", arms, masks, levels, chances, HOLDS, True, doses)
            )
        self._queue.append(rest(REST))

    @staticmethod
    def _share(record: Record, name: str) -> float:
        own = record.self_times.get(name)
        return own.share if own is not None else 0.0

    def _dose(self, record: Record, slot: float) -> tuple[float, float]:
        """The delay in a slot as a part of its time, and the maximum for a call, ns."""
        events = record.requests
        if events is None or len(events) < FEW:
            return MIN_DOSE, slot
        events = events[-NEWEST:]
        took = events["duration_ns"].astype(float)
        median, slow = np.quantile(took, (0.5, 0.99))
        now = load(events, None)
        dose = MAX_DOSE
        if now.kind != CLOSED:
            dose = min(MAX_DOSE, max(MIN_DOSE, OF_IDLE * (1 - now.busy)))
        # The number of requests per slot.
        span = float(np.ptp(events["begin_ns"].astype(np.int64)))
        come = len(events) * slot / max(span, 1.0)
        return float(f"{min(dose, OF_REQUEST * median * come / slot):.2g}"), float(slow)

    def _delay(
        self, name: str, dose: float, slot: float, calls: float, longest: float
    ) -> Delay:
        try:
            return Delay(max(int(self.fixed[name]), self.min_delay_ns, 1))
        except KeyError:
            pass
        most = longest * calls / slot
        found = delay_for(min(dose, most), slot, calls, least_ns(name, self.min_delay_ns))
        return Delay(math.ceil(found.delay_ns), found.every)
