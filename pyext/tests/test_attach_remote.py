# SPDX-License-Identifier: MIT
"""Attaching by CPython's own remote debugging."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attaching import BUSY, WATCH, Running, Start, programs, run, tool, until
from speed_bump.experiment.program import directory, inject, ways

pytestmark = [
    pytest.mark.two_pythons,
    pytest.mark.skipif(
        sys.version_info < (3, 14), reason="sys.remote_exec is from 3.14 on"
    ),
]

# Reports that it was entered, and works when its input has a byte.
WAITING = """
import os, sys, threading
import speed_bump
def work():
    return sum(range(300))
os.write(1, b"off\\n")
os.read(os.open({path!r}, os.O_RDONLY), 1)
for _ in range(1000):
    work()
os.write(1, b"awake\\n")
threading.Event().wait()
"""


@pytest.fixture
def start(tmp_path: Path, environ: dict[str, str]) -> Iterator[Start]:
    with programs(tmp_path, environ) as begin:

        def without_socket(text: str, **variables: str) -> Running:
            program = begin(text, wait=False, SPEED_BUMP_ATTACH="0", **variables)
            until(lambda: b"off" in program.output.read_bytes())
            return program

        yield without_socket


def slow(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """``run``; repeated if the machine is so busy that attaching takes too long."""
    for _ in range(3):
        done = run(
            "run", "-t", "__main__:work", "-d", "20us", "--attach", "remote", "--json",
            "-", *arguments, **environ,
        )  # fmt: skip
        words = ("did not", "another tool", "try again")
        if done.returncode == 0 or not any(word in done.stderr for word in words):
            break
        time.sleep(1)
    return done


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_tool_that_ends_leaves_nothing(start: Start, number: int) -> None:
    program = start(BUSY)
    before = program.state()
    for round in range(3):
        process = tool(
            "run", "-t", "__main__:work", "-d", "1ms", "--pid", str(program.pid),
            "--attach", "remote",
        )  # fmt: skip
        until(lambda: program.says(b"on"))
        time.sleep(0.1 * round)
        process.send_signal(number)
        process.communicate(timeout=60)
        program.says_soon(b"off")
    until(lambda: program.state() == before)
    assert set(program.output.read_bytes().split()) == {b"on", b"off"}


def test_a_program_that_ends_meanwhile(start: Start) -> None:
    program = start(
        WATCH
        + """
os.write(1, b"off\\n")
while not speed_bump.is_installed():
    time.sleep(0.01)
end = time.time() + 1
while time.time() < end:
    work()
"""
    )
    done = slow("--pid", str(program.pid))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["targets"][0]["calls"] > 0
    assert program.process.wait(60) == 0


def test_several_processes(start: Start, tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(BUSY)
    program = start(
        WATCH
        + f"""
import subprocess
child = subprocess.Popen([sys.executable, {str(worker)!r}])
_thread.start_new_thread(watch, ())
while True:
    work()
"""
    )
    other = start(BUSY)
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
    until(children.read_text)
    child = int(children.read_text())
    try:
        for chosen, pids in (
            (["--pid-tree", str(program.pid)], {program.pid, child}),
            (["--pid", f"{program.pid},{other.pid}"], {program.pid, other.pid}),
        ):
            done = slow(*chosen, "--for", "1s")
            assert done.returncode == 0, done.stderr
            result = json.loads(done.stdout)
            assert {a["pid"] for a in result["attached"]} == pids
            assert {a["way"] for a in result["attached"]} == {"remote"}
            assert result["processes"] == 2
        for one in (program, other):
            one.says_soon(b"off")
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_program_that_does_not_allow_it(start: Start) -> None:
    program = start(BUSY, PYTHON_DISABLE_REMOTE_DEBUG="1")
    done = slow("--pid", str(program.pid))
    assert done.returncode == 1
    assert f"process {program.pid} does not allow remote debugging" in done.stderr
    assert program.state()[0] == 2
    # It is about the program: the tool may have the variable.
    allowing = start(BUSY)
    done = slow(
        "--pid", str(allowing.pid), "--for", "1s", PYTHON_DISABLE_REMOTE_DEBUG="1"
    )
    assert done.returncode == 0, done.stderr


def test_a_request_is_withdrawn_before_its_file_is_removed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = start(WAITING.format(path=str(fifo)))
    ask = inject._remote_exec

    def ask_late(pid: int, found: inject.Interpreter, script: str) -> None:
        if script == os.devnull:
            # It wakes up just before the request is withdrawn.
            fifo.write_bytes(b"x")
            until(lambda: b"awake" in program.output.read_bytes())
        ask(pid, found, script)

    monkeypatch.setattr(inject, "_remote_exec", ask_late)
    try:
        inject.by_remote(program.pid, str(tmp_path), time.monotonic()).leave()
    except ways.NotOffered as error:
        assert "did not answer in" in str(error)
    until(lambda: program.state()[0] == 1)
    assert program.output.read_bytes().split() == [b"off", b"awake"]


def test_a_request_of_a_killed_tool_does_no_harm(start: Start, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = start(WAITING.format(path=str(fifo)))
    left = tmp_path / "shared" / f"{directory.PREFIX}left"
    left.mkdir(parents=True)
    found = inject.interpreter_of(program.pid, str(left))
    waiting = inject.Waiting(program.pid, found, str(left))
    inject._remote_exec(program.pid, found, waiting.script)
    # The end of a process closes its files and removes none.
    waiting._socket.close()
    # The next tool.
    directory.sweep(str(left.parent))
    fifo.write_bytes(b"x")
    until(lambda: b"awake" in program.output.read_bytes())
    until(lambda: program.state()[0] == 1)
    assert program.output.read_bytes().split() == [b"off", b"awake"]
