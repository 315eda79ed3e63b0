# SPDX-License-Identifier: MIT
"""An inference server under an open load: front, batcher, and workers that compute.

The front reads prompts from connections and answers them (asyncio). A batcher collects
requests for up to ``--window`` ms, or until a batch is full, and pads them to one length.
A pool of threads runs the model: products of matrices, with torch or numpy where one of
them is there, else in Python. Usage is written by a thread of its own, for which no
request waits. Requests arrive at random, ``--rate`` a second, from another process that
does not wait for answers.

By construction

- a delay in ``tokenise`` or ``respond`` is one of its own request, and of those that wait
  for the event loop;
- a delay in ``pad`` is one of all requests of a batch, once;
- a delay in ``model`` is one of a whole batch, and of batches that wait for a worker;
- a delay in ``note_usage`` is of none.

``--seconds S`` ends it after this time and prints the number of requests.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import json
import queue
import random
import signal
import sys
import threading
import time
from typing import Any

BATCH, WORKERS, LAYERS, WIDTH = 8, 2, 6, 192
TEXT = "a delay of a known length in one function and what of it reaches the clock"

with contextlib.suppress(ImportError):
    import torch

    torch.set_num_threads(1)

if "torch" not in sys.modules:
    with contextlib.suppress(ImportError):
        import numpy as np


def tokenise(text: str) -> list[int]:
    """Part of each request."""
    return [hash(word) % 50_000 for word in text.split() for _ in range(4)]


def pad(prompts: list[list[int]]) -> list[list[int]]:
    """Once for each batch."""
    longest = max(map(len, prompts))
    return [tokens + [0] * (longest - len(tokens)) for tokens in prompts]


def weights() -> list[Any]:
    if "torch" in sys.modules:
        draw = torch.Generator().manual_seed(1)
        return [torch.randn(WIDTH, WIDTH, generator=draw) for _ in range(LAYERS)]
    if "numpy" in sys.modules:
        rng = np.random.default_rng(1)
        return [rng.standard_normal((WIDTH, WIDTH)) for _ in range(LAYERS)]
    rows = random.Random(1)
    return [[rows.random() for _ in range(WIDTH)] for _ in range(LAYERS)]


def model(batch: list[list[int]], layers: list[Any]) -> list[int]:
    """Compute an answer to each prompt of a batch, in a thread of the pool."""
    if "torch" in sys.modules:
        x = torch.tensor(batch, dtype=torch.float32)
        x = torch.nn.functional.pad(x / 50_000, (0, WIDTH - x.shape[1]))
        x = x.repeat_interleave(64, 0)
        for layer in layers:
            x = torch.relu(x @ layer) / WIDTH
        return [int(n) for n in x.sum(1)[::64].tolist()]
    if "numpy" in sys.modules:
        a = np.zeros((len(batch), WIDTH))
        a[:, : len(batch[0])] = np.array(batch) / 50_000
        a = np.repeat(a, 64, 0)
        for layer in layers:
            a = np.maximum(a @ layer, 0) / WIDTH
        return [int(n) for n in a.sum(1)[::64]]
    return [
        int(sum(t * w for layer in layers for t, w in zip(one, layer, strict=False)))
        for one in batch
    ]


def respond(number: int) -> bytes:
    """Part of each request."""
    return json.dumps({"text": [f"token{number % k}" for k in range(1, 40)]}).encode()


def note_usage(tokens: int) -> None:
    """No request waits for it."""
    json.dumps({"tokens": tokens, "at": time.time()})


class Server:
    """One model, whose requests are answered in batches."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self.layers = weights()
        self.pool = concurrent.futures.ThreadPoolExecutor(WORKERS, "worker")
        self.requests: asyncio.Queue[tuple[list[int], asyncio.Future[int]]] = (
            asyncio.Queue()
        )
        self.usage: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.answered = 0
        self.running: set[asyncio.Task[None]] = set()

    async def handle(self, text: str) -> bytes:
        """A request, from its prompt to its answer."""
        tokens = tokenise(text)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.requests.put_nowait((tokens, answer))
        found = respond(await answer)
        self.usage.put(len(tokens))
        self.answered += 1
        return found

    async def batch(self) -> None:
        """Collect requests, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            waiting = [await self.requests.get()]
            until = loop.time() + self.window_s
            while len(waiting) < BATCH and (left := until - loop.time()) > 0:
                with contextlib.suppress(asyncio.TimeoutError):
                    waiting.append(await asyncio.wait_for(self.requests.get(), left))
            prompts = pad([tokens for tokens, _ in waiting])
            answers = [answer for _, answer in waiting]
            self.running.add(task := loop.create_task(self.compute(prompts, answers)))
            task.add_done_callback(self.running.discard)

    async def compute(
        self, prompts: list[list[int]], answers: list[asyncio.Future[int]]
    ) -> None:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self.pool, model, prompts, self.layers)
        for answer, number in zip(answers, found, strict=True):
            answer.set_result(number)

    async def connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Requests of a connection are answered side by side."""

        async def answer(line: bytes) -> None:
            writer.write(await self.handle(line.decode()) + b"\n")

        tasks: set[asyncio.Task[None]] = set()
        while line := await reader.readline():
            tasks.add(task := asyncio.get_running_loop().create_task(answer(line)))
            task.add_done_callback(tasks.discard)

    def note(self) -> None:
        while True:
            note_usage(self.usage.get())


async def serve(args: argparse.Namespace) -> int:
    """Serve until the load has ended; returns the number of answers."""
    server = Server(args.window / 1000)
    threading.Thread(target=server.note, daemon=True).start()
    listener = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    batcher = asyncio.get_running_loop().create_task(server.batch())
    # Not a child of Python's own: nothing is measured or delayed there.
    load = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", "-E", "-s", __file__, "--load", str(port)),
        *("--rate", str(args.rate), "--seconds", str(args.seconds)),
    )
    try:
        await load.wait()
    finally:
        batcher.cancel()
        with contextlib.suppress(ProcessLookupError):
            load.kill()
        server.pool.shutdown(cancel_futures=True)
    return server.answered


async def send(port: int, rate: float, seconds: float) -> None:
    """Requests at random times, whatever the answers do."""
    draw = random.Random(1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def drain() -> None:
        while await reader.readline():
            pass

    drained = asyncio.get_running_loop().create_task(drain())
    at = time.monotonic()
    until = at + (seconds or 1e9)
    while at < until and not drained.done():
        at += draw.expovariate(rate)
        await asyncio.sleep(max(at - time.monotonic(), 0))
        words = TEXT.split() * draw.choice((1, 1, 1, 2))
        writer.write(" ".join(words).encode()[:1000] + b"\n")
        await writer.drain()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=float, default=120.0, help="requests a second")
    parser.add_argument("--window", type=float, default=4.0, help="of the batcher, ms")
    parser.add_argument("--seconds", type=float, default=0.0, help="0: for ever")
    parser.add_argument("--load", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if args.load:
        asyncio.run(send(args.load, args.rate, args.seconds))
        return
    print(asyncio.run(serve(args)), "requests")


if __name__ == "__main__":
    main()
