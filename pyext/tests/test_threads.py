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
from conftest import Run, calls
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


@pytest.mark.skipif(sys.version_info < (3, 11), reason="3.10 itself needs as much stack")
@pytest.mark.parametrize("kib", [64, 96, 128, 256, 512])
def test_a_small_stack_ends_in_a_recursion_error(python: Run, kib: int) -> None:
    """Where the hook makes a call need C stack, what is left of it is asked first."""
    if sysconfig.get_config_var("Py_GIL_DISABLED") and sys.version_info < (3, 14):
        pytest.skip("free-threaded 3.13 itself needs as much stack, without the hook too")
    program = """
import sys, threading, speed_bump
def plain(n):
    return plain(n - 1) if n else 0
class Indexed:
    def __getitem__(self, n): return self[n - 1] if n else 0
def generate(n):
    if n: yield from generate(n - 1)
    yield n
def dive(deed):
    deepest = 0
    for depth in (5, 20, 50, 100, 200, 400, 950):
        try:
            deed(depth)
            deepest = depth
        except RecursionError as error:
            refused.add(str(error).split(" of this thread")[0])
    reached.append(deepest)
def work():
    for deed in (plain, Indexed().__getitem__, lambda n: list(generate(n))): dive(deed)
reached, refused = [], set()
threading.stack_size(KIB * 1024)
speed_bump.install(speed_bump.Config(["__main__:*"], delay_ns=0))
for _ in range(3):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
def count():
    found = speed_bump.stats().functions
    return [f.calls for f in found if f.name == "__main__:plain"][0]
before = count()
thread = threading.Thread(target=plain, args=(5,))
thread.start()
thread.join()
assert count() - before == 6
print(len(reached), min(reached) >= 20)
"""
    done = python(program.replace("KIB", str(kib)))
    assert (done.stdout, done.returncode) == ("9 True\n", 0), done.stderr
    assert "Traceback" not in done.stderr
