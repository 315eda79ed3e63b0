# SPDX-License-Identifier: MIT
"""The accuracy of the self time of native functions, and the cost of sampling.

``self_time.py [--runs N] [--pairs N]``. Programs of libsb/tests/sampled.c, whose shares
are known, N times for a second; then pairs of runs of a loop, sampled or not, in random
order, and of two threads that only wake each other. Run as root, after ``make build``.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import re
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from speed_bump import _core
from speed_bump.duration import human
from speed_bump.experiment.runs.estimate import mean_interval

TESTS = pathlib.Path(__file__).parents[2] / "build" / "libsb" / "tests"
PROGRAM, FAR = TESTS / "sampled", TESTS / "libsbsampled.so"
# Programs, functions, and their shares by construction where waiting for CPUs and
# wake-ups have no effect.
PROGRAMS = (
    ("ratio", ("two", "one"), "67% 33%"),
    ("nested", ("outer", "one"), "75% 25%"),
    ("jumps", ("jumping", "one"), "67% 33%"),
    ("far_jumps", ("far", "one"), "67% 33%"),
    ("threads", ("two", "one"), "2 : 1"),
    ("children", ("two", "one"), "2 : 1"),
    ("renewed", ("two", "one"), "2 : 1"),
    ("naps", ("nap", "one"), "100% 0%"),
    ("asleep", ("nap", "sleep_for_ages"), "100% 100%"),
)
SECOND = 10**9
LOOPS = 20_000


def symbols(path: pathlib.Path) -> dict[str, int]:
    """Addresses of functions, which are file offsets in files linked this way."""
    text = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
    words = [line.split() for line in text.splitlines()]
    return {w[2]: int(w[0], 16) for w in words if len(w) == 3 and w[1] in "tT"}


def sampler_of(functions: tuple[str, ...]) -> _core.NativeSampler:
    sampler = _core.NativeSampler()
    files = {
        name: (path, at) for path in (FAR, PROGRAM) for name, at in symbols(path).items()
    }
    for name in functions:
        sampler.add_function(*files[name])
    return sampler


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([PROGRAM, *arguments])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def looking(pid: int, functions: tuple[str, ...]) -> Iterator[None]:
    sampler = sampler_of(functions)
    sampler.add_process(pid)
    thread = threading.Thread(target=sampler.run, args=(3600 * SECOND,))
    thread.start()
    try:
        yield
    finally:
        sampler.stop()
        thread.join()


def right(runs: int) -> None:
    print(
        f"{'program':10} {'truth':10} {'first':>16} {'second':>16} {'ratio':>6} "
        "unseen lost"
    )
    for what, functions, truth in PROGRAMS:
        sampler = sampler_of(functions)
        shares: list[list[float]] = [[], []]
        unseen, lost = 0.0, 0
        with running(what) as process:
            for _ in range(runs):
                sampler.add_process(process.pid)
                times = sampler.run(SECOND)
                for found, own in zip(shares, times.own, strict=True):
                    found.append(own.self_ns / times.clock_ns)
                unseen += times.unseen_ns / times.clock_ns / runs
                lost += times.lost
        first, second = (
            f"{statistics.mean(s):.1%} ± {statistics.stdev(s):.1%}" for s in shares
        )
        ratio = sum(shares[0]) / max(sum(shares[1]), 1e-9)
        print(
            f"{what:10} {truth:10} {first:>16} {second:>16} "
            f"{ratio:6.3g} {unseen:6.1%} {lost}",
            flush=True,
        )


def loop_s(looked: bool) -> float:
    """The CPU time of the loop."""
    process = subprocess.Popen([PROGRAM, "ratio", str(LOOPS)])
    if looked:
        with looking(process.pid, ("two", "one")):
            used = os.wait4(process.pid, 0)[2]
    else:
        used = os.wait4(process.pid, 0)[2]
    process.returncode = 0
    return used.ru_utime + used.ru_stime


def switches(pid: int) -> int:
    text = pathlib.Path(f"/proc/{pid}/status").read_text("utf-8")
    found = re.search(r"\nvoluntary_ctxt_switches:\s+(\d+)", text)
    assert found
    return int(found[1])


def waking_s(looked: bool) -> float:
    """The time of a switch."""

    def measured(pid: int) -> float:
        time.sleep(0.3)
        before, begin = switches(pid), time.monotonic()
        time.sleep(1)
        return (time.monotonic() - begin) / (switches(pid) - before)

    with running("pingpong") as process:
        if not looked:
            return measured(process.pid)
        with looking(process.pid, ("ask",)):
            return measured(process.pid)


def cost(pairs: int) -> None:
    for what, measure in (("a loop, CPU time", loop_s), ("a switch, time", waking_s)):
        changes = []
        for _ in range(pairs):
            order = [False, True]
            random.shuffle(order)
            took = {looked: measure(looked) for looked in order}
            changes.append(took[True] / took[False] - 1)
        change = mean_interval(changes)
        print(
            f"{what}: {change.value:+.2%} [{change.low:+.2%}, {change.high:+.2%}] in "
            f"{pairs} pairs, {human(took[False] * 1e9)} unwatched",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=12)
    options = parser.parse_args()
    if options.runs > 1:
        right(options.runs)
    if options.pairs > 1:
        cost(options.pairs)


if __name__ == "__main__":
    main()
