# SPDX-License-Identifier: MIT
"""Other tools in the same process: both sides give right results."""

from __future__ import annotations

import bdb
import io
import os
import pdb
import sys
import threading
from typing import Any

import pytest
import speed_bump
from conftest import Run, calls
from speed_bump import Config

HERE = __name__


def plain() -> int:
    value = 1
    return value + 1


def driver() -> None:
    for _ in range(20):
        plain()


def install() -> None:
    speed_bump.install(Config([f"{HERE}:plain"], delay_ns=1_000))


@pytest.mark.parametrize("ours_first", [True, False])
def test_coverage(ours_first: bool, python: Run) -> None:
    pytest.importorskip("coverage")
    program = """
import sys, coverage, speed_bump
def ours(): speed_bump.install(speed_bump.Config(["__main__:plain"], delay_ns=1_000))
if FIRST: ours()
cover = coverage.Coverage(data_file=None, include=[__file__], branch=True)
cover.start()
if not FIRST: ours()
def plain(n):
    if n > 100:
        return "never"
    return n
for n in range(20): plain(n)
cover.stop()
plain(1)
_, lines, _, missing, _ = cover.analysis2(__file__)
print([open(__file__).readlines()[n - 1].strip() for n in missing if n > 8])
(only,) = speed_bump.stats().functions
print(only.calls)
""".replace("FIRST", str(ours_first))
    done = python(program)
    assert done.returncode == 0, done.stderr
    missing, counted = done.stdout.splitlines()
    assert 'return "never"' in missing and "return n" not in missing.replace("n >", "")
    assert counted == "21"


class Stepper(bdb.Bdb):
    def __init__(self) -> None:
        super().__init__()
        self.lines = 0
        self.entered = 0

    def user_call(self, frame: Any, arguments: object) -> None:
        self.entered += frame.f_code.co_name == "plain"

    def user_line(self, frame: Any) -> None:
        self.lines += frame.f_code.co_name == "plain"


def test_a_debugger_that_steps() -> None:
    install()
    stepper = Stepper()
    stepper.runcall(driver)
    assert (stepper.entered, stepper.lines) == (20, 40)
    assert calls("plain") == 20


def test_a_breakpoint_of_pdb() -> None:
    install()
    output = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("continue\n" * 30), stdout=output, nosigint=True)
    debugger.rcLines = []
    line = plain.__code__.co_firstlineno + 2
    assert debugger.set_break(__file__, line) is None
    try:
        debugger.runcall(driver)
    finally:
        debugger.clear_all_breaks()
        sys.settrace(None)
    assert output.getvalue().count("-> return value + 1") == 20
    assert calls("plain") == 20


def test_a_profiler_of_all_threads() -> None:
    seen: list[str] = []

    def theirs(frame: Any, event: str, argument: object) -> None:
        if event == "call":
            seen.append(frame.f_code.co_name)

    threading.setprofile(theirs)
    try:
        install()
        thread = threading.Thread(target=driver)
        thread.start()
        thread.join()
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    assert seen.count("plain") == 20
    assert calls("plain") == 20


# Events that another tool has switched off stay off if nothing changes for this tool.
SWITCHED_OFF = """
import sys
import speed_bump
from speed_bump import Config
def plain(): pass
def other(): pass
def inner(): pass
def work(): plain(), other(), inner()
monitoring, START = sys.monitoring, sys.monitoring.events.PY_START
def theirs(code, offset):
    if code.co_name == "work": seen.append(1)
    return monitoring.DISABLE
seen = []
monitoring.use_tool_id(2, "theirs")
monitoring.register_callback(2, START, theirs)
monitoring.set_events(2, START)
work()
speed_bump.install(Config(["__main__:plain"], delay_ns=0))
work()
with speed_bump.slow("__main__:other", 0):
    work()
print(len(seen))
work()
{end}
work()
print(len(seen))
count = {{f.name: f.calls for f in speed_bump.stats().functions}}
print(count["__main__:plain"], count["__main__:other"], count.get("__main__:inner"))
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
@pytest.mark.parametrize(
    ("end", "more", "counts"),
    [
        # No new function matches now.
        ("speed_bump.uninstall()", 0, "3 1 None"),
        # A new function may match, which is found out by restarting all events.
        ("kept = speed_bump.slow('__main__:inner', 0).__enter__()", 1, "4 1 1"),
    ],
)
def test_what_another_tool_has_switched_off(
    python: Run, end: str, more: int, counts: str
) -> None:
    done = python(SWITCHED_OFF.format(end=end))
    assert (done.returncode, done.stderr) == (0, "")
    # slow() restarts events of functions that were not slowed before.
    before, after, counted = done.stdout.splitlines()
    assert (int(before), int(after)) == (2, 2 + more)
    assert counted == counts


@pytest.mark.skipif(sys.version_info < (3, 13), reason="earlier ones stop there anyway")
def test_set_trace_of_pdb_stops_at_the_next_line_at_the_latest(python: Run) -> None:
    program = """
import io, pdb, speed_bump
def inner():
    x = 1
def outer():
    debugger.set_trace()
    inner()
output = io.StringIO()
debugger = pdb.Pdb(stdin=io.StringIO("step\\n" * 4), stdout=output, nosigint=True)
speed_bump.install(speed_bump.Config(["__main__:inner"], delay_ns=0))
try: outer()
except pdb.bdb.BdbQuit: pass
stops = [line for line in output.getvalue().splitlines() if line[0] == ">"]
print(*[line.partition("(")[2].partition(")")[0] for line in stops])
"""
    stops = python(program).stdout.split()
    # The first event, at set_trace() itself, is CPython's (docs/reference/python.md).
    assert stops[stops[0] == "6" :][:3] == ["7", "3", "4"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
def test_another_tool_of_sys_monitoring() -> None:
    monitoring = sys.monitoring
    events = monitoring.events
    seen: list[str] = []

    def theirs(code: Any, offset: int) -> Any:
        seen.append(code.co_name)
        return monitoring.DISABLE if code.co_name == "driver" else None

    install()
    monitoring.use_tool_id(monitoring.PROFILER_ID, "theirs")
    try:
        monitoring.register_callback(monitoring.PROFILER_ID, events.PY_START, theirs)
        monitoring.set_events(monitoring.PROFILER_ID, events.PY_START)
        driver()
        speed_bump.clear_cache()  # which restarts events that they have disabled
        driver()
        speed_bump.uninstall()
        driver()
    finally:
        monitoring.set_events(monitoring.PROFILER_ID, 0)
        monitoring.free_tool_id(monitoring.PROFILER_ID)
    assert seen.count("plain") == 60
    assert calls("plain") == 40


def test_greenlets() -> None:
    greenlet = pytest.importorskip("greenlet")
    install()

    def work() -> None:
        for _ in range(10):
            plain()
            greenlet.getcurrent().parent.switch()

    tasks = [greenlet.greenlet(work) for _ in range(3)]
    for _ in range(11):
        for task in tasks:
            task.switch()
    assert all(task.dead for task in tasks)
    assert calls("plain") == 30


def test_gevent(python: Run) -> None:
    pytest.importorskip("gevent")
    done = python(
        """
from gevent import monkey
monkey.patch_all()
import gevent, speed_bump
def plain(): pass
def work():
    for _ in range(10):
        plain()
        gevent.sleep(0)
speed_bump.install(speed_bump.Config(["__main__:plain"], delay_ns=1_000))
gevent.joinall([gevent.spawn(work) for _ in range(5)])
(only,) = speed_bump.stats().functions
print(only.calls)
"""
    )
    assert (done.stdout, done.returncode) == ("50\n", 0), done.stderr


def test_pytest_itself(tmp_path: Any, environ: dict[str, str]) -> None:
    import subprocess

    (tmp_path / "test_sample.py").write_text(
        "def helper(n): return n\n"
        "def test_one():\n"
        "    assert [helper(n) for n in range(30)] == list(range(30))\n"
    )
    (tmp_path / "targets").write_text("test_sample:helper\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "test_sample.py",
        ],
        cwd=tmp_path,
        env=environ | {"SPEED_BUMP_TARGETS": str(tmp_path / "targets")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout
    assert "30 calls, 30 of them delayed" in done.stderr


EVALUATOR = """
import ctypes, os, speed_bump
from speed_bump import Config
api, address = ctypes.pythonapi, ctypes.c_void_p
api.PyInterpreterState_Get.restype = address
interpreter = address(api.PyInterpreterState_Get())
api._PyInterpreterState_GetEvalFrameFunc.restype = address
def now(): return api._PyInterpreterState_GetEvalFrameFunc(interpreter)
def put(one): api._PyInterpreterState_SetEvalFrameFunc(interpreter, address(one))
library = ctypes.PyDLL(os.environ["EVALUATOR"])
theirs = ctypes.cast(library.evaluator_evaluate, address).value
below = address.in_dll(library, "evaluator_below")
passed = ctypes.c_ulong.in_dll(library, "evaluator_passed")
def put_theirs():
    below.value = now()
    put(theirs)
def plain(): pass
def counted():
    return sum(f.calls for f in speed_bump.stats().functions)
def install():
    speed_bump.install(Config(["__main__:plain"], delay_ns=1_000))
def seen():
    before = counted(), passed.value
    for _ in range(10): plain()
    return counted() - before[0], passed.value - before[1] >= 10
alone = now()
"""


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param(
            """
put_theirs(); install()
print(*seen(), now() != theirs)
speed_bump.uninstall()
print(*seen(), now() == theirs)
""",
            ["10 True True", "0 True True"],
            id="theirs first",
        ),
        pytest.param(
            """
install(); ours = now(); put_theirs()
print(*seen(), now() == theirs)
speed_bump.uninstall()
print(*seen(), now() == theirs)
install()
print(*seen(), now() == theirs)
put(below.value)
print(*seen(), now() == ours)
speed_bump.uninstall()
print(*seen(), now() == alone)
""",
            [
                "10 True True",
                "0 True True",
                "10 True True",
                "10 False True",
                "0 False True",
            ],
            id="ours first",
        ),
        pytest.param(
            """
put_theirs(); install(); put(alone)
print(*seen(), now() == alone)
speed_bump.uninstall(); install()
print(*seen(), now() != alone)
speed_bump.uninstall()
print(*seen(), now() == alone)
""",
            ["0 False True", "10 False True", "0 False True"],
            id="theirs takes ours away",
        ),
    ],
)
def test_another_evaluator_of_frames(
    steps: str, expected: list[str], python: Run
) -> None:
    """In the place that the hook uses before 3.12: ctypes and a C library set it."""
    if sys.version_info >= (3, 12):
        pytest.skip("3.12 and later have sys.monitoring")
    directory = os.environ.get("FIXTURE_DIR")
    if not directory:
        pytest.skip("FIXTURE_DIR is not set")
    done = python(EVALUATOR + steps, EVALUATOR=f"{directory}/libevaluator.so")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected


def test_torch_dynamo(python: Run) -> None:
    """Before 3.12 it uses the same place as the hook, the evaluation of frames."""
    pytest.importorskip("torch")
    done = python(
        """
import torch, speed_bump
from speed_bump import Config
def helper(x): return x.sin() + 1
def f(x): return helper(x).cos()
def outside(): pass
compiled = []
def backend(graph, inputs):
    compiled.append(graph)
    return graph.forward
def calls(name):
    found = speed_bump.stats().functions
    return sum(f.calls for f in found if f.name == "__main__:" + name)
x = torch.ones(4)
expected = f(x)
for theirs_first in (False, True):
    torch._dynamo.reset()
    compiled.clear()
    fast = torch.compile(f, backend=backend)
    if theirs_first:
        fast(x)
    speed_bump.install(Config(["__main__:*"], delay_ns=1_000))
    for _ in range(10):
        assert torch.allclose(fast(x), expected)
        outside()
    assert len(compiled) == 1, compiled
    before = calls("outside"), calls("helper")
    f(x)
    outside()
    after = calls("outside"), calls("helper")
    speed_bump.uninstall()
    outside()
    assert torch.allclose(fast(x), expected)
    print(before, after, calls("outside"))
"""
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == second == "(10, 0) (11, 1) 11"
