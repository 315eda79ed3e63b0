# SPDX-License-Identifier: MIT
"""Servers with queues, simulated event by event under a plan of delays, and their truth.

Requests come in an open loop (Poisson) or a closed one (clients that wait for the answer
and think). A slot ends with a number of completions, as in a real program, and a function
reads the plan when it is entered. Times are in s internally and in ns in results.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from speed_bump.experiment.record import REQUEST, Arm, Block, Delay, Record, Slots
from speed_bump.experiment.slots import plan

Works = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Function:
    """What can be delayed.

    ``place``: "before" the queue, side by side with other requests; at "work", holding
    the worker; "slow": the same, of slow requests alone; once a "batch", holding the
    worker; "aside", where nothing waits for it.
    """

    name: str
    place: str
    delay_s: float


@dataclass(frozen=True)
class Server:
    """Args:

    works: draws how long requests take of a worker, of the ordinary and the slow ones
    rate: requests a second, open loop; 0: closed
    clients, think_s: of a closed loop; the mean of an exponential
    slow: the part of the requests that is slow
    batch: requests that are taken at once at most
    """

    works: tuple[Works, Works]
    functions: tuple[Function, ...]
    rate: float = 0.0
    workers: int = 1
    clients: int = 0
    think_s: float = 0.0
    slow: float = 0.0
    batch: int = 1
    a_batch_s: float = 0.0


@dataclass
class Seen:
    """The results of a run."""

    events: list[tuple[float, float]] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    calls: list[np.ndarray] = field(default_factory=list)
    delivered: list[np.ndarray] = field(default_factory=list)


def run(
    server: Server,
    masks: Sequence[int],
    slot_units: int,
    draw: np.random.Generator,
    seconds: float = float("inf"),
) -> Seen:
    """Serve until all slots of the plan are over, or for a time.

    Its parts change the state of one simulation: hence the length.
    """
    seen = Seen()
    count = len(server.functions)
    places = [
        (k, f.place, f.delay_s, np.int64(1) << (k + 1))
        for k, f in enumerate(server.functions)
    ]
    by_place = {
        p: [(k, d, int(bit)) for k, place, d, bit in places if place == p]
        for p in ("before", "work", "slow", "batch", "aside")
    }
    masks = [int(mask) for mask in masks]
    calls, delivered = [0.0] * count, [0.0] * count
    slot = units = 0
    number = 0
    free = server.workers
    queue: deque[tuple[float, float, bool]] = deque()
    heap: list[tuple[float, int, int, object]] = []
    pool: list[tuple[float, bool, float]] = []

    def another() -> tuple[float, bool, float]:
        if not pool:
            size = 4096
            slow = draw.random(size) < server.slow
            work = np.where(slow, *(w(draw, size) for w in reversed(server.works)))
            if server.rate:
                gap = draw.exponential(1 / server.rate, size)
            else:
                gap = draw.exponential(1, size) * server.think_s
            pool.extend(zip(work.tolist(), slow.tolist(), gap.tolist(), strict=True))
        return pool.pop()

    def entered(place: str) -> float:
        mask, total = masks[slot], 0.0
        for k, delay, bit in by_place[place]:
            calls[k] += 1
            if mask & bit:
                delivered[k] += delay
                total += delay
        return total

    def push(at: float, kind: int, what: object) -> None:
        nonlocal number
        number += 1
        heapq.heappush(heap, (at, number, kind, what))

    def start(now: float) -> None:
        nonlocal free
        while free and queue:
            taken = [queue.popleft() for _ in range(min(server.batch, len(queue)))]
            took = server.a_batch_s + entered("batch")
            for _, work, slow in taken:
                took += work + entered("work") + (entered("slow") if slow else 0.0)
            free -= 1
            push(now + took, 2, taken)

    for _ in range(server.clients or 1):
        push(another()[2], 0, None)
    while slot < len(masks):
        now, _, kind, what = heapq.heappop(heap)
        if now > seconds:
            break
        if kind == 0:
            work, slow, gap = another()
            if server.rate:
                push(now + gap, 0, None)
            entered("aside")
            before = entered("before")
            if before:
                push(now + before, 1, (now, work, slow))
            else:
                queue.append((now, work, slow))
                start(now)
        elif kind == 1:
            queue.append(what)
            start(now)
        else:
            free += 1
            for came, _, _ in what:
                seen.events.append((came, now - came))
                if server.clients:
                    push(now + another()[2], 0, None)
                units += 1
                if units == slot_units and slot < len(masks):
                    units = 0
                    seen.ends.append(now)
                    seen.calls.append(np.array(calls))
                    seen.delivered.append(np.array(delivered))
                    calls, delivered = [0.0] * count, [0.0] * count
                    slot += 1
            if slot < len(masks):
                start(now)
    return seen


def names(server: Server) -> tuple[str, ...]:
    return tuple(f.name for f in server.functions)


def block(server: Server, draw: np.random.Generator, count: int) -> Block:
    """One function at a time, as the real plan does it."""
    arms = (
        plan.SHAM,
        *(Arm((f.name,), ((Delay(round(f.delay_s * 1e9)),),)) for f in server.functions),
    )
    each = plan.chance_of_one(len(arms) - 1)
    chances = (0.3 * each, *[each] * (len(arms) - 1))
    masks, _ = plan.one_at_a_time(draw, count, chances, plan.HOLDS)
    levels = np.zeros(count, np.uint8)
    return Block("single", arms, masks, levels, chances, plan.HOLDS, True, (0.1,))


def experiment(
    server: Server, slot_units: int, seed: int, cycles: int = 3, count: int = 200
) -> tuple[Record, np.ndarray]:
    """A record of blocks and rests, with the events of its requests."""
    draw = np.random.default_rng(seed)
    blocks = [plan.rest(30)]
    for _ in range(cycles):
        blocks += [block(server, draw, count), plan.rest(30)]
    masks = np.concatenate([b.masks for b in blocks])
    seen = run(server, masks.astype(np.int64).tolist(), slot_units, draw)
    end = (np.array(seen.ends) * 1e9).astype(np.int64) + 1_000_000_000
    n = len(end)
    time_ns = np.full(n, np.nan)
    time_ns[1:] = np.diff(end)
    unknown = np.full(n, np.nan)
    slots = Slots(
        number=np.arange(n),
        block=np.repeat(np.arange(len(blocks)), [len(b) for b in blocks])[:n],
        run=np.ones(n, np.int64),
        end_ns=end,
        time_ns=time_ns,
        units=np.full(n, slot_units),
        mask=masks[:n],
        level=np.zeros(n, np.uint8),
        good=np.arange(n) > 0,
        cpu_ns=unknown,
        wait_ns=unknown,
        calls=np.array(seen.calls),
        delivered_ns=np.array(seen.delivered) * 1e9,
    )
    record = Record({}, names(server), slots, blocks, slot_units=slot_units)
    came, took = (np.array(seen.events) * 1e9).T
    events = np.zeros(len(came), REQUEST)
    events["begin_ns"] = came.astype(np.int64) + 1_000_000_000
    events["duration_ns"] = took.astype(np.int64)
    return record, events


# ------------------------------------------------------------------------------- truth


def durations(
    server: Server, delayed: str, count: int, seed: int = 1, burn: float = 0.02
) -> np.ndarray:
    """Durations in ns in a run in which one function is always delayed ("": none).

    The requests are the same for each function, so only the delay differs.
    """
    bit = 0
    if delayed:
        bit = 1 << (names(server).index(delayed) + 1)
    draw = np.random.default_rng(seed)
    if server.rate and server.workers == 1 and server.batch == 1:
        return _lindley(server, delayed, count, draw)[int(burn * count) :]
    seen = run(server, [bit], count, draw)
    return (np.array(seen.events)[int(burn * count) :, 1]) * 1e9


def _lindley(
    server: Server, delayed: str, count: int, draw: np.random.Generator
) -> np.ndarray:
    """One worker that takes requests one after the other, computed in one step."""
    come = np.cumsum(draw.exponential(1 / server.rate, count))
    slow = draw.random(count) < server.slow
    work = np.where(slow, *(w(draw, count) for w in reversed(server.works)))
    ready = come
    for f in server.functions:
        if f.name != delayed:
            continue
        if f.place == "before":
            ready = come + f.delay_s
        elif f.place == "slow":
            work = work + f.delay_s * slow
        elif f.place in ("work", "batch"):
            work = work + f.delay_s
    done = np.cumsum(work)
    free = done + np.maximum.accumulate(ready - done + work)
    return np.asarray((free - come) * 1e9)


def statistics(took: np.ndarray) -> dict[str, float]:
    """The quantity to estimate, ns."""
    p50, p90, p99 = np.quantile(took, (0.5, 0.9, 0.99))
    return {"mean": took.mean(), "p50": p50, "p90": p90, "p99": p99}


def truth(server: Server, count: int, seed: int = 1) -> dict[str, dict[str, float]]:
    """The effect of each function's delay, always on against never, ns."""
    never = statistics(durations(server, "", count, seed))
    found = {}
    for name in names(server):
        always = statistics(durations(server, name, count, seed))
        found[name] = {key: always[key] - never[key] for key in never}
    return found


# ----------------------------------------------------------------------------- servers


def fixed(seconds: float) -> Works:
    return lambda draw, count: np.full(count, seconds)


def exponential(seconds: float) -> Works:
    return lambda draw, count: draw.exponential(seconds, count)


def lognormal(seconds: float, sigma: float) -> Works:
    return lambda draw, count: seconds * np.exp(sigma * draw.standard_normal(count))


MS = 1e-3


def _three(delay_s: float) -> tuple[Function, ...]:
    return (
        Function("parse", "before", delay_s),
        Function("work", "work", delay_s),
        Function("log", "aside", delay_s),
    )


SERVERS = {
    # Requests that wait for nothing all take the same time; the p50 is not among them.
    "M/D/1": Server((fixed(MS), fixed(MS)), _three(0.05 * MS), rate=650),
    "M/M/1": Server((exponential(MS), exponential(MS)), _three(0.1 * MS), rate=500),
    "pool": Server(
        (lognormal(3.5 * MS, 0.5), fixed(0)), _three(0.5 * MS), rate=600, workers=4
    ),
    "batching": Server(
        (fixed(0.2 * MS), fixed(0)),
        (
            Function("collate", "batch", 0.5 * MS),
            Function("model", "work", 0.1 * MS),
            Function("log", "aside", 0.5 * MS),
        ),
        rate=1000,
        batch=16,
        a_batch_s=2 * MS,
    ),
    "two classes": Server(
        (lognormal(2 * MS, 0.3), lognormal(12 * MS, 0.3)),
        (
            Function("work", "work", 0.5 * MS),
            Function("query", "slow", 4 * MS),
            Function("log", "aside", 0.5 * MS),
        ),
        rate=300,
        workers=16,
        slow=0.08,
    ),
    "near saturation": Server(
        (lognormal(0.75 * MS, 0.5), fixed(0)), _three(0.05 * MS), rate=900
    ),
    "closed": Server((lognormal(2 * MS, 0.2), fixed(0)), _three(0.2 * MS), clients=4),
}
