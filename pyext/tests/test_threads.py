# SPDX-License-Identifier: MIT
"""Many threads at once: exact counts and, without a GIL, parallel delays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
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
    """The seconds that all of them take."""
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
@pytest.mark.timed
def test_delays_run_side_by_side() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU")
    speed_bump.install(Config([f"{HERE}:plain"], delay_ns=1_000_000_000))

    # A spin ends when its time is over, however busy the machine is; in turns, spins add
    # up. Long ones are used: threads that share a CPU do short ones in turns by
    # themselves.
    wall = in_threads(2, plain)
    for _ in range(7):
        if wall < 1.8:
            break
        wall = in_threads(2, plain)  # if both waited for other programs
    assert wall < 1.8


# Without Py_mod_gil: from its import on, the GIL is in use.
NEEDS_GIL = """
#include <Python.h>
static struct PyModuleDef def = { PyModuleDef_HEAD_INIT, "needs_gil", NULL, -1 };
PyMODINIT_FUNC PyInit_needs_gil(void) { return PyModule_Create(&def); }
"""
# A call of outer() takes the time of a delay in another thread.
IN_ANOTHER = """
import sys, threading
import speed_bump
from speed_bump import Config
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
def other(): pass
def outer():
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
def requested_ms():
    return sum(f.requested_ns for f in speed_bump.stats().functions
               if f.name == "__main__:outer") / 1e6
speed_bump.install(Config(["__main__:outer delay=100%", "__main__:other delay=400ms"]))
outer()
side_by_side = requested_ms()
import needs_gil
outer()
in_turns = requested_ms() - side_by_side
print(sys._is_gil_enabled(), side_by_side > 300, in_turns < 200)
"""


@free_threaded
@pytest.mark.timed
def test_a_gil_that_an_import_turns_on_is_noticed(tmp_path: Path, python: Run) -> None:
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("there is no C compiler")
    source = tmp_path / "needs_gil.c"
    source.write_text(NEEDS_GIL)
    library = tmp_path / f"needs_gil{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_path("include")
    build = [compiler, "-shared", "-fPIC", "-I", include, "-o", library, source]
    subprocess.run(build, check=True)
    done = python(IN_ANOTHER, PYTHONWARNINGS="ignore")
    assert (done.stdout, done.returncode) == ("True True True\n", 0), done.stderr


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


# Functions of which lines are targets and whose ends are told of, too, so that there are
# two reasons for local events of each.
LOCAL = """
import random, sys, threading, time
from speed_bump import Config, _core, control, install, stats, uninstall
from speed_bump.experiment.program.latency import histograms
SIZE, COUNT = 40, 6
text = "".join(f"def f{i}(n):\\n n += 1\\n return n\\n" for i in range(SIZE))
lines = [f"made:{3 * i + 2} delay=0" for i in range(SIZE)]
def define():
    space = {"__name__": "made"}
    exec(compile(text, "made.py", "exec"), space)
    return [space[f"f{i}"] for i in range(SIZE)]
def in_threads(work):
    threads = [threading.Thread(target=work) for _ in range(COUNT)]
    for thread in threads: thread.start()
    return threads
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring")
def test_threads_that_call_a_function_first_at_once(python: Run) -> None:
    """What one of them asks to be told of its code takes nothing from the others."""
    done = python(
        LOCAL
        + """
table = _core.Table(latencies=["made:f*"])
control._install(Config(lines), table)
ROUNDS = 5
for _ in range(ROUNDS):
    functions = define()
    turn = threading.Barrier(COUNT)
    def work():
        for function in functions:
            turn.wait()
            function(0)
    for thread in in_threads(work): thread.join()
    for function in functions: function(0)
found = [f.calls for f in stats().functions if f.name.startswith("made:")]
print(histograms(table)[0].count == ROUNDS * SIZE * (COUNT + 1))
print(sum(found) == ROUNDS * SIZE * (COUNT + 1))
"""
    )
    assert (done.stdout, done.stderr) == ("True\nTrue\n", "")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring")
def test_nothing_is_left_of_what_threads_asked_for_at_the_end(python: Run) -> None:
    done = python(
        LOCAL
        + """
monitoring, left = sys.monitoring, 0
for _ in range(60):
    install(Config(["made:f* delay=1%", *lines]))
    (tool,) = [i for i in range(6) if monitoring.get_tool(i) == "speed_bump"]
    functions = define()
    def work():
        for function in functions: function(0)
    threads = in_threads(work)
    time.sleep(random.uniform(0, 0.004))
    uninstall()
    for thread in threads: thread.join()
    monitoring.use_tool_id(tool, "test")
    for function in functions:
        left += monitoring.get_local_events(tool, function.__code__) != 0
    monitoring.free_tool_id(tool)
print(left)
"""
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="3.10 itself needs as much stack")
@pytest.mark.parametrize("kib", [64, 96, 128, 256, 512])
def test_a_small_stack_ends_in_a_recursion_error(python: Run, kib: int) -> None:
    """If the hook makes a call need C stack, the remaining stack is checked first."""
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
