# SPDX-License-Identifier: MIT
"""Whether headroom is right: make functions faster, and measure the gain.

Ranks functions of the standard library's web server (serve.py), then replaces each of
them in turn by something faster, in whole runs of the server, in pairs in random order.
The gain in time per page must not exceed the predicted headroom.

``honest.py [--budget TIME] [--pairs N] [--seconds S] [--html FILE]``: exit status 1 if a
gain is certainly larger (both 95% intervals), 2 if rank had no answer.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

from serve import FASTER
from speed_bump.experiment.runs.estimate import mean_interval

SERVER = pathlib.Path(__file__).parent / "serve.py"
PROGRESS = "http.server:SimpleHTTPRequestHandler.do_GET"
ENVIRON = {k: v for k, v in os.environ.items() if not k.startswith("SPEED_BUMP_")}


def rank(options: argparse.Namespace) -> dict[str, dict]:
    """The results for each function."""
    targets = [word for name in FASTER for word in ("-t", name)]
    with tempfile.TemporaryDirectory() as directory:
        more = ["--html", options.html] if options.html else []
        subprocess.run(
            [
                *(sys.executable, "-m", "speed_bump", "rank", *targets, *more),
                *("--progress", PROGRESS, "--budget", options.budget),
                *(
                    "--seed",
                    str(options.seed),
                    "-o",
                    options.keep or f"{directory}/pairs",
                ),
                *("--json", f"{directory}/json", "--", sys.executable, str(SERVER)),
            ],
            env=ENVIRON,
            check=True,
        )
        text = pathlib.Path(f"{directory}/json").read_text("utf-8")
    return {f["target"]: f for f in json.loads(text)["findings"]}


def page_ns(faster: list[str], seconds: float) -> int:
    """The time of a page, in a separate run."""
    done = subprocess.run(
        [sys.executable, str(SERVER), *faster],
        env={**ENVIRON, "SECONDS": str(seconds)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return int(done.stdout)


def gain(name: str, options: argparse.Namespace, draw: random.Random):
    """The gain as a part of the time of a page, with its interval."""
    gains = []
    for _ in range(options.pairs):
        order = [[], [name]]
        draw.shuffle(order)
        took = {tuple(faster): page_ns(faster, options.seconds) for faster in order}
        gains.append(1 - took[(name,)] / took[()])
    return mean_interval(gains)


def main() -> int:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="30s")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--html", help="the page of rank")
    parser.add_argument("--keep", help="the pairs of rank")
    options = parser.parse_args()
    found = rank(options)
    draw = random.Random(options.seed)
    print(f"\n{'made faster':50} {'at most':>20} {'gained':>22}")
    status = 0
    for name in sorted(FASTER, key=list(found).index):
        head = found[name]["headroom"]
        if head is None:
            print(f"{name:50} {found[name]['verdict']}")
            status = status or 2
            continue
        got = gain(name, options, draw)
        predicted = f"{head['value']:.1%} [{head['low']:.1%}, {head['high']:.1%}]"
        measured = f"{got.value:.1%} [{got.low:.1%}, {got.high:.1%}]"
        wrong = got.low > head["high"]
        print(f"{name:50} {predicted:>20} {measured:>22}{'  <-' if wrong else ''}")
        status = 1 if wrong else status
    return status


if __name__ == "__main__":
    sys.exit(main())
