# SPDX-License-Identifier: MIT
"""An asyncio server with a known answer, and requests that don't wait for each other.

``serve_latency.py [REQUESTS_A_SECOND] [SECONDS]``. Each request sleeps, as if for a
database, and then computes on the event loop, which does one thing at a time; one in five
also makes a long query. ``note`` is called for each as well, in a separate process, where
no request waits for it.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time

DATABASE_S, COMPUTE_S, QUERY_S = 0.003, 0.001, 0.008
SLOW = 0.2


def spin(seconds: float) -> None:
    """Use the CPU."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def compute() -> None:
    """The work of each request."""
    spin(COMPUTE_S)


def query() -> None:
    """The additional work of slow requests."""
    spin(QUERY_S)


def note() -> None:
    """Work that no request waits for."""


async def handle(slow: bool, out: int) -> None:
    """Answer a request."""
    await asyncio.sleep(DATABASE_S)
    compute()
    if slow:
        query()
    os.write(out, b".")


async def serve(rate: float, seconds: float, out: int) -> None:
    """Requests arrive at random, independently of the answers."""
    draw = random.Random(1)
    running: set[asyncio.Task[None]] = set()
    at = time.monotonic()
    end = at + seconds
    while at < end:
        at += draw.expovariate(rate)
        await asyncio.sleep(max(at - time.monotonic(), 0))
        task = asyncio.create_task(handle(draw.random() < SLOW, out))
        running.add(task)
        task.add_done_callback(running.discard)


def take_notes(into: int) -> None:
    """In a separate process, until the server has ended."""
    while os.read(into, 1):
        note()


def main() -> None:
    """Serve."""
    rate = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 300.0
    into, out = os.pipe()
    if os.fork() == 0:
        os.close(out)
        take_notes(into)
        os._exit(0)
    os.close(into)
    os.set_blocking(out, False)
    asyncio.run(serve(rate, seconds, out))


if __name__ == "__main__":
    main()
