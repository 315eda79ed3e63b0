# SPDX-License-Identifier: MIT
"""Attaching by gdb leaves the stopped thread as it was, with every build of CPython.

Debian's is no position-independent executable and can be unwound to its entry point.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from attaching import WATCH, Start, programs, run_by, until

pytestmark = pytest.mark.skipif(shutil.which("gdb") is None, reason="there is no gdb")

# The main thread waits in a system call when it is stopped, and returns to the end.
WAITS = (
    WATCH
    + """
_thread.start_new_thread(watch, ())
def works():
    while True:
        work()
        time.sleep(0.001)
_thread.start_new_thread(works, ())
def end():
    while not os.path.exists(sys.argv[0] + ".end"):
        time.sleep(0.02)
"""
)
CALLS = {
    "in a lock": "lock.acquire()",
    "reading": "assert os.read(pipe[0], 1) == b'x'",
    "asleep": "while not os.path.exists(sys.argv[0] + '.end'): time.sleep(1)",
}
PROGRAM = """
lock = threading.Lock()
lock.acquire()
pipe = os.pipe()
def release():
    end()
    lock.release()
    os.write(pipe[1], b"x")
_thread.start_new_thread(release, ())
{call}
print("returned", flush=True)
"""


@pytest.fixture
def start(tmp_path: Path, environ: dict[str, str]) -> Iterator[Start]:
    with programs(tmp_path, environ) as begin:
        yield begin


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_a_thread_that_waits_goes_on_and_returns(
    start: Start, tmp_path: Path, call: str
) -> None:
    text = WAITS + PROGRAM.format(call=call)
    program = start(text, wait=False, SPEED_BUMP_ATTACH="0")
    until(lambda: b"off" in program.output.read_bytes())
    done = run_by("debugger", program)
    assert program.process.poll() is None, program.output.read_bytes()[-200:]
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["targets"][0]["delayed"] > 0
    (tmp_path / "0/program.py.end").touch()
    assert program.process.wait(60) == 0, program.output.read_bytes()[-200:]
    assert program.output.read_bytes().split()[-1] in (b"returned", b"off")
    assert b"returned" in program.output.read_bytes()
