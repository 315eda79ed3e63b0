# SPDX-License-Identifier: MIT
"""A server of several processes, one of which limits throughput, with metrics.

One process prepares orders, a second one answers them, and this one serves the metrics.
Work is sleeping, so that load from other programs has little effect.
"""

from __future__ import annotations

import http.server
import multiprocessing
import os
import sys
import time

CONTEXT = multiprocessing.get_context("fork")
BOUNDS = (0.01, 0.05, 0.1, 0.2, 1.0, float("inf"))
PREPARED_S, ANSWERED_S = 0.02, 0.06


def prepare():
    time.sleep(PREPARED_S)


def answer():
    time.sleep(ANSWERED_S)


def prepare_all(ready):
    while True:
        prepare()
        ready.acquire()


def answer_all(ready, lock, seen, seconds):
    before = time.monotonic()
    while True:
        answer()
        ready.release()
        now = time.monotonic()
        with lock:
            for k, bound in enumerate(BOUNDS):
                seen[k] += now - before <= bound
            seconds.value += now - before
        before = now


def exposition(seen, seconds):
    """A counter for each of two kinds, a histogram, and metrics that count no work."""
    count = seen[-1]
    return "\n".join(
        [
            "# HELP app_orders_total Orders that were answered.",
            "# TYPE app_orders_total counter",
            f'app_orders_total{{kind="new",code="200"}} {count}',
            'app_orders_total{kind="old",code="200"} 3',
            "# TYPE app_order_seconds histogram",
            *(
                f'app_order_seconds_bucket{{le="{bound}"}} {n}'
                for bound, n in zip(BOUNDS, seen, strict=True)
            ),
            f"app_order_seconds_sum {seconds}",
            f"app_order_seconds_count {count}",
            "# TYPE app_order_queue gauge",
            "app_order_queue 4",
            "# TYPE app_size summary",
            'app_size{quantile="0.5"} 7',
            f"app_size_sum {count}",
            f"app_size_count {count}",
            "",
        ]
    )


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    pause_s = 0.0

    def do_GET(self):
        time.sleep(self.pause_s)
        with self.server.lock:
            seen, seconds = list(self.server.seen), self.server.seconds.value
        data = exposition(seen, seconds).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


def main(port, pause_s):
    ready = CONTEXT.Semaphore(1)
    lock = CONTEXT.Lock()
    seen = CONTEXT.RawArray("q", len(BOUNDS))
    seconds = CONTEXT.RawValue("d", 0.0)
    for target, arguments in (
        (prepare_all, (ready,)),
        (answer_all, (ready, lock, seen, seconds)),
    ):
        CONTEXT.Process(target=target, args=arguments, daemon=True).start()
    Handler.pause_s = pause_s
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.lock, server.seen, server.seconds = lock, seen, seconds
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(os.environ.get("PAUSE_S", "0")))
