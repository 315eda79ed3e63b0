# SPDX-License-Identifier: MIT
"""An asyncio HTTP server under load: aiohttp, with clients in a separate process.

A request contains an order as JSON; the server parses and checks it, looks up prices in
an SQLite database in memory, renders a receipt, and writes a line of log. Clients send
the next request as soon as they are answered, so that the server is never idle:
``--visitors`` of them at a time; or, with ``--rate``, at this rate per second, where
latency is measured. A third process packs old receipts all the time; no request waits for
it.

By construction a delay in a function of the server delays a request by the same time
(with clients that wait for the answer), and a delay in the packer's functions does not:
``SERVER``, ``PACKER``. Measured, it delays it by more. On two otherwise idle CPUs, with
85 us of additional CPU time per request in ``read_order``, in blocks of 100 in random
order, wall time increased by 1.11 +- 0.08 times that, and the CPU time of the server's
thread by 1.17 +- 0.05 times. With 30 us it was 1.27 +- 0.23 and 1.30 +- 0.13. The server
then does not sleep any more (0.03 times per request before) and its clients do; the CPU
time for waking them is the likely reason. If its own processes use all CPUs, the packer's
functions may have an effect too.

Needs aiohttp. ``--seconds S`` ends it after this time and prints requests and latencies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sqlite3
import sys
import time
import zlib
from typing import TextIO

from aiohttp import ClientSession, TCPConnector, web

try:
    from speed_bump import progress
except ImportError:

    def progress() -> None:
        pass


SERVER = ("read_order", "find_prices", "render_receipt", "write_log")
PACKER = ("pack_receipt",)
GOODS = 500
LINES = 20


def read_order(body: bytes) -> list[tuple[str, int]]:
    """Parse an order; ValueError: it is not one."""
    order = json.loads(body)
    found = [(str(line["name"]), int(line["count"])) for line in order["lines"]]
    if any(not 0 < count < 100 for _, count in found):
        raise ValueError("count")
    return found


def find_prices(db: sqlite3.Connection, order: list[tuple[str, int]]) -> list[int]:
    ask = "SELECT price FROM goods WHERE name = ?"
    return [db.execute(ask, (name,)).fetchone()[0] for name, _ in order]


def render_receipt(order: list[tuple[str, int]], prices: list[int]) -> str:
    rows = [
        f"<tr><td>{name:>12}</td><td>{count}</td><td>{count * price / 100:.2f}</td></tr>"
        for (name, count), price in zip(order, prices, strict=True)
    ]
    total = sum(count * price for (_, count), price in zip(order, prices, strict=True))
    return f"<table>{''.join(rows)}</table><p>{total / 100:.2f}</p>"


def write_log(file: TextIO, order: list[tuple[str, int]], took_s: float) -> None:
    file.write(json.dumps({"lines": len(order), "us": round(1e6 * took_s)}) + "\n")


def shop() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE goods (name TEXT PRIMARY KEY, price INTEGER)")
    draw = random.Random(1)
    goods = [(f"good{i}", draw.randrange(100, 10_000)) for i in range(GOODS)]
    db.executemany("INSERT INTO goods VALUES (?, ?)", goods)
    return db


async def serve(ready: int, log: TextIO) -> None:
    """Serve for ever; the port is written to ``ready``."""
    db = shop()

    async def order(request: web.Request) -> web.Response:
        begin = time.perf_counter()
        found = read_order(await request.read())
        page = render_receipt(found, find_prices(db, found))
        write_log(log, found, time.perf_counter() - begin)
        progress()
        return web.Response(text=page, content_type="text/html")

    app = web.Application()
    app.router.add_post("/order", order)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    os.write(ready, f"{runner.addresses[0][1]}\n".encode())
    await asyncio.Event().wait()


async def visit(session: ClientSession, url: str, draw: random.Random) -> float:
    """A request; its latency in seconds."""
    lines = [
        {"name": f"good{draw.randrange(GOODS)}", "count": draw.randrange(1, 100)}
        for _ in range(LINES)
    ]
    begin = time.perf_counter()
    async with session.post(url, json={"lines": lines}) as answer:
        await answer.read()
        if answer.status != 200:
            raise SystemExit(f"status {answer.status}")
    return time.perf_counter() - begin


async def visitors(args: argparse.Namespace, port: int) -> list[float]:
    url = f"http://127.0.0.1:{port}/order"
    until = time.monotonic() + (args.seconds or 1e9)
    took: list[float] = []
    async with ClientSession(connector=TCPConnector(limit=0)) as session:

        async def again(seed: int) -> None:
            draw = random.Random(seed)
            while time.monotonic() < until:
                took.append(await visit(session, url, draw))

        async def at_a_rate() -> None:
            draw, tasks = random.Random(1), set()
            due = time.monotonic()

            def ended(task: asyncio.Task[float]) -> None:
                tasks.discard(task)
                took.append(task.result())

            while due < until:
                due += draw.expovariate(args.rate)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                task = asyncio.create_task(visit(session, url, draw))
                tasks.add(task)
                task.add_done_callback(ended)

        if args.rate:
            await at_a_rate()
        else:
            await asyncio.gather(*(again(seed) for seed in range(args.visitors)))
    return took


def pack_receipt(text: bytes) -> int:
    return len(zlib.compress(text, 9))


def pack(parent: int) -> None:
    """Repeatedly, for as long as the server runs."""
    text = os.urandom(2000).hex().encode()
    while os.getppid() == parent:
        pack_receipt(text)
        time.sleep(0.005)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--visitors", type=int, default=4)
    parser.add_argument("--rate", type=float, default=0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=0, help="0: without end")
    args = parser.parse_args()
    there, here = os.pipe()
    server = os.getpid()
    if os.fork() == 0:
        pack(server)
        os._exit(0)
    if os.fork() == 0:
        port = int(os.read(there, 100))
        begin = time.monotonic()
        took = sorted(asyncio.run(visitors(args, port)))
        spent = time.monotonic() - begin
        print(
            json.dumps(
                {
                    "units": len(took),
                    "seconds": spent,
                    "p50_ms": 1000 * took[len(took) // 2],
                    "p99_ms": 1000 * took[len(took) * 99 // 100],
                }
            ),
            flush=True,
        )
        os.kill(server, signal.SIGTERM)
        os._exit(0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with open(os.devnull, "w", encoding="utf-8") as log:
        asyncio.run(serve(here, log))


if __name__ == "__main__":
    main()
