# SPDX-License-Identifier: MIT
"""A training loop in small, with the shape of the big ones.

A worker process prepares batches: it reads real source files (Python's own
standard library), tokenises them with Pygments and packs the tokens with zlib. It
keeps a few batches ahead, as data loaders do. The main process takes a batch,
waits for the accelerator (a sleep stands in for it: the CPU is free and the GIL
released), then writes the step's record: JSON into an SQLite data base.

Nearly all CPU time is spent in the worker, so that is what a profiler points at.
But the worker hides behind the accelerator: only what the main process does
between two waits costs throughput.
"""

import argparse
import collections
import itertools
import json
import multiprocessing
import pathlib
import sqlite3
import sysconfig
import time
import zlib

from pygments.lexers import PythonLexer


def sources(count: int) -> list[str]:
    """The first `count` modules of the standard library of a middling size."""
    stdlib = pathlib.Path(sysconfig.get_paths()["stdlib"])
    chosen = (p for p in sorted(stdlib.glob("*.py")) if 2_000 < p.stat().st_size < 6_000)
    return [p.read_text("utf-8") for p in itertools.islice(chosen, count)]


def prepare(lexer: PythonLexer, text: str) -> tuple[bytes, dict[str, int]]:
    """One batch: the packed tokens of one file, and how often each kind occurs."""
    tokens = list(lexer.get_tokens(text))
    packed = zlib.compress("\n".join(value for _, value in tokens).encode())
    kinds = collections.Counter(str(kind) for kind, _ in tokens)
    return packed, dict(kinds)


def load(queue: "multiprocessing.Queue", steps: int, files: int) -> None:
    lexer = PythonLexer()
    for text in itertools.islice(itertools.cycle(sources(files)), steps):
        queue.put(prepare(lexer, text))


def record(
    db: sqlite3.Connection, step: int, packed: bytes, kinds: dict[str, int]
) -> None:
    entry = json.dumps(
        {"step": step, "bytes": len(packed), "kinds": kinds}, sort_keys=True
    )
    db.execute("INSERT INTO steps VALUES (?, ?)", (step, entry))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument(
        "--device-ms", type=float, default=16.0, help="accelerator time a step"
    )
    parser.add_argument(
        "--files", type=int, default=8, help="source files to cycle through"
    )
    args = parser.parse_args()

    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE steps (step INTEGER, entry TEXT)")
    context = multiprocessing.get_context("fork")
    queue = context.Queue(maxsize=4)
    loader = context.Process(
        target=load, args=(queue, args.steps, args.files), daemon=True
    )
    loader.start()
    for step in range(args.steps):
        packed, kinds = queue.get()
        time.sleep(args.device_ms / 1000)
        record(db, step, packed, kinds)
    loader.join()
    print(f"{args.steps} steps, {db.total_changes} records")


if __name__ == "__main__":
    main()
