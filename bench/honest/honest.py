# SPDX-License-Identifier: MIT
"""Whether headroom is right: make functions faster, and measure the gain.

``honest.py [PROGRAM]...`` ranks functions of real programs (serve, site_preview, api,
thumbnails: see there), and then makes each of them faster in turn, while the program runs
(turns.py). The gain in time per unit must not exceed the headroom, and must be none where
rank says that the function is hidden, or that another one takes as long beside it. What a
function still takes when it is faster is not gained: gains may be smaller.

The exit status is 1 if a gain is certainly another one (by both 95% intervals), 2 if rank
had no answer.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from speed_bump.experiment.fit.interval import Interval
from speed_bump.experiment.runs.estimate import mean_interval

PROGRAMS = ("serve", "site_preview", "api", "thumbnails")
ENVIRON = {k: v for k, v in os.environ.items() if not k.startswith("SPEED_BUMP_")}
# A smaller gain than this part of the time is none.
NONE = 0.03


def rank(program: Any, options: argparse.Namespace) -> dict[str, Any]:
    """The report on the program's functions."""
    waits = getattr(program, "WAITS", ())
    names = [f"{n} mode=wait" if n in waits else n for n in program.FASTER]
    targets = [word for name in names for word in ("-t", name)]
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(
            [
                *(sys.executable, "-m", "speed_bump", "rank", *targets),
                *("--progress", program.PROGRESS, "--budget", options.budget),
                *("--seed", str(options.seed), "-o", f"{directory}/record"),
                *("--json", f"{directory}/json"),
                *("--", sys.executable, str(program.__file__)),
            ],
            env=ENVIRON,
            check=True,
        )
        found: dict[str, Any] = json.loads(
            pathlib.Path(f"{directory}/json").read_text("utf-8")
        )
    return found


def gain(program: Any, name: str, seconds: float) -> Interval:
    """The gain as a part of the time of a unit, by pairs of turns."""
    done = subprocess.run(
        [sys.executable, str(program.__file__), name, str(seconds)],
        env=ENVIRON,
        stdout=subprocess.PIPE,
        check=True,
    )
    turns = json.loads(done.stdout)
    gains = []
    for pair in zip(turns[::2], turns[1::2], strict=True):
        took = dict(pair)
        gains.append(1 - took[True] / took[False])
    return mean_interval(gains)


def percent(interval: Interval) -> str:
    return f"{interval.value:.1%} [{interval.low:.1%}, {interval.high:.1%}]"


def is_wrong(got: Interval, most: Interval, *, none: bool) -> bool:
    return got.low > (NONE if none else max(most.high, NONE))


def main() -> int:
    """A table for each program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", default=PROGRAMS)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--seconds", type=float, default=30.0, help="of turns")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    status = 0
    for word in options.programs:
        program = importlib.import_module(word)
        report = rank(program, options)
        parallel = {
            name
            for joint in report["joints"]
            if joint["kind"] == "parallel"
            for name in joint["targets"]
        }
        print(f"\n{word:48} {'verdict':13} {'at most':>22} {'gained':>22}")
        for finding in report["findings"]:
            name, head = finding["target"], finding["headroom"]
            verdict = finding["verdict"]
            if head is None or verdict == "inconclusive":
                print(f"{name:48} {verdict}", flush=True)
                status = status or 2
                continue
            most = Interval(head["value"], head["low"], head["high"])
            none = verdict == "hidden" or name in parallel
            got = gain(program, name, options.seconds)
            wrong = is_wrong(got, most, none=none)
            said = "parallel" if name in parallel else verdict
            predicted = "none" if none else percent(most)
            print(
                f"{name:48} {said:13} {predicted:>22} {percent(got):>22}"
                f"{'  <-' if wrong else ''}",
                flush=True,
            )
            status = 1 if wrong else status
    return status


if __name__ == "__main__":
    sys.exit(main())
