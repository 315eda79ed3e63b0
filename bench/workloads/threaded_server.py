# SPDX-License-Identifier: MIT
"""A server with a thread for each connection, under load: the standard library's alone.

Clients in another process keep ``--connections`` open and send the next request as soon
as they are answered. A request names a text; the server reads it from an SQLite database
on disk, compresses it, and answers. The threads do requests side by side: a delay that
only its own thread waits for costs the throughput a part of 1 / connections; one that
holds what all need (the interpreter's lock, the last CPU) costs all of it. With delays
that spin, which hold the lock, the functions of the server lie between the two.

``--seconds S`` ends it after this time and prints the number of requests.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import http.server
import json
import multiprocessing
import os
import random
import signal
import socketserver
import sqlite3
import sys
import tempfile
import threading
import time
from typing import Any

TEXTS = 200
WORDS = 600


def make_texts(path: str) -> None:
    draw = random.Random(1)
    words = [f"word{draw.randrange(1000)}" for _ in range(2000)]
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE texts (name INTEGER PRIMARY KEY, body TEXT)")
        db.executemany(
            "INSERT INTO texts VALUES (?, ?)",
            [(i, " ".join(draw.choices(words, k=WORDS))) for i in range(TEXTS)],
        )


def find_text(db: sqlite3.Connection, name: int) -> str:
    ask = "SELECT body FROM texts WHERE name = ?"
    return str(db.execute(ask, (name,)).fetchone()[0])


def pack(body: str) -> bytes:
    return gzip.compress(body.encode(), 6)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers with a text."""

    protocol_version = "HTTP/1.1"
    # Head and body are sent separately: the second would wait for the first one's ACK.
    disable_nagle_algorithm = True
    path_of_db = ""

    def setup(self) -> None:
        super().setup()
        self.db = sqlite3.connect(self.path_of_db)

    def do_GET(self) -> None:
        body = pack(find_text(self.db, int(self.path[1:])))
        self.send_response(200)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def visit(port: int, seed: int, until: float, count: list[int]) -> None:
    """The requests of one connection."""
    draw = random.Random(seed)
    client = http.client.HTTPConnection("127.0.0.1", port)
    while time.monotonic() < until:
        client.request("GET", f"/{draw.randrange(TEXTS)}")
        client.getresponse().read()
        count[seed] += 1


def visitors(port: int, args: argparse.Namespace, server: int) -> None:
    begin = time.monotonic()
    until = begin + (args.seconds or 1e9)
    count = [0] * args.connections
    threads = [
        threading.Thread(target=visit, args=(port, seed, until, count), daemon=True)
        for seed in range(args.connections)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and os.getppid() == server:
        time.sleep(0.1)
    spent = time.monotonic() - begin
    if os.getppid() == server:
        print(json.dumps({"units": sum(count), "seconds": spent}), flush=True)
        os.kill(server, signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0, help="0: without end")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        Handler.path_of_db = f"{directory}/texts.sqlite"
        make_texts(Handler.path_of_db)
        socketserver.TCPServer.request_queue_size = args.connections
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            clients = multiprocessing.get_context("fork").Process(
                target=visitors, args=(server.server_port, args, os.getpid())
            )
            clients.start()
            server.daemon_threads = True
            server.serve_forever()


if __name__ == "__main__":
    main()
