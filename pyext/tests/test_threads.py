# SPDX-License-Identifier: MIT
"""Many threads at once: exact counts, and where there is no GIL delays side by side."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import speed_bump
from conftest import calls
from speed_bump import Config

HERE = __name__

free_threaded = pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this CPython has a GIL"
)


def plain() -> None:
    pass


def in_threads(count: int, work: Callable[[], object]) -> float:
    """Seconds that all of them take."""
    ready = threading.Barrier(count + 1)
    failures: list[BaseException] = []

    def run() -> None:
        ready.wait()
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    begin = time.perf_counter()
    ready.wait()
    for thread in threads:
        thread.join()
    assert not failures
    return time.perf_counter() - begin


@free_threaded
def test_the_import_leaves_the_gil_off() -> None:
    program = "import sys, speed_bump; print(sys._is_gil_enabled())"
    command = [sys.executable, "-W", "error", "-c", program]
    assert subprocess.check_output(command, text=True) == "False\n"


def test_no_call_is_lost() -> None:
    speed_bump.install(Config([f"{HERE}:plain"], delay_ns=0))

    def work() -> None:
        for _ in range(20_000):
            plain()

    in_threads(8, work)
    assert calls("plain") == 160_000


@free_threaded
def test_delays_run_side_by_side() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU")
    speed_bump.install(Config([f"{HERE}:plain"], delay_ns=1_000_000_000))

    # A spin is over when its time is, however busy the machine; in turns they add up. A
    # long one: threads that have to share a CPU are in short ones in turns by themselves.
    wall = in_threads(2, plain)
    for _ in range(7):
        if wall < 1.8:
            break
        wall = in_threads(2, plain)  # where both waited for other work
    assert wall < 1.8


def test_patterns_change_while_threads_run() -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            space: dict[str, Any] = {"__name__": "made"}
            exec("def f(): pass\ndef g(): return f()", space)
            for _ in range(50):
                space["g"]()
                plain()

    def change() -> None:
        try:
            for i in range(60):
                with speed_bump.slow("made:*", 1_000):
                    speed_bump.install(
                        Config([f"{HERE}:plain", "made:f"], delay_ns=1_000)
                    )
                    speed_bump.clear_cache()
                    speed_bump.progress()
                    speed_bump.stats()
                if i % 3 == 0:
                    speed_bump.uninstall()
        finally:
            stop.set()

    changer = threading.Thread(target=change)
    changer.start()
    in_threads(3, work)
    changer.join()
    speed_bump.install(Config([f"{HERE}:plain"], delay_ns=0))
    in_threads(3, plain)
    assert calls("plain") == 3
