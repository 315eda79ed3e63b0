# SPDX-License-Identifier: MIT
"""Attaching without a control socket, in containers, and repeatedly."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import speed_bump
from attaching import (
    BUSY,
    FORKS_TWICE,
    SHAPES,
    WATCH,
    Running,
    Start,
    check_grandchild,
    programs,
    run,
    run_by,
    until,
)
from speed_bump import _core
from speed_bump.experiment.program import attached, debugger, inject, ways
from speed_bump.experiment.program.ways import AttachError

pytestmark = pytest.mark.two_pythons

# The programs of build-aux/check-attach.
BENCH = Path(__file__).parents[2] / "bench/attach"

with_gdb = pytest.mark.skipif(shutil.which("gdb") is None, reason="there is no gdb")
with_lldb = pytest.mark.skipif(shutil.which("lldb") is None, reason="there is no lldb")
with_remote = pytest.mark.skipif(
    sys.version_info < (3, 14), reason="sys.remote_exec is from 3.14 on"
)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a container")
in_tree = pytest.mark.skipif(not BENCH.exists(), reason="the tests are not in the tree")


@pytest.fixture
def start(tmp_path: Path, environ: dict[str, str]) -> Iterator[Start]:
    with programs(tmp_path, environ) as begin:
        yield begin


@pytest.fixture
def lldbs(tmp_path: Path) -> str:
    """A PATH with lldb and the system's Python, behind a broken one of any version."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/lldb").symlink_to(shutil.which("lldb") or "")
    (tmp_path / "bin/python3").symlink_to("/usr/bin/python3")
    for minor in range(8, 16):
        (tmp_path / f"other/lib/python3.{minor}/lib-dynload").mkdir(parents=True)
        (tmp_path / f"other/lib/python3.{minor}/os.py").touch()
    (tmp_path / "other/bin").mkdir()
    shutil.copy("/bin/false", tmp_path / "other/bin/python3")
    return f"{tmp_path}/other/bin:{tmp_path}/bin"


def start_without_socket(start: Start, text: str) -> Running:
    program = start(text, wait=False, SPEED_BUMP_ATTACH="0")
    until(lambda: b"off" in program.output.read_bytes())
    return program


@pytest.mark.parametrize(
    ("way", "shape"),
    [
        pytest.param("debugger", "busy", marks=with_gdb),
        pytest.param("debugger", "in a library", marks=with_gdb),
        pytest.param("debugger", "joining a thread", marks=with_gdb),
        # The tool's thread takes turns with the others, and has 5 s.
        pytest.param(
            *("debugger", "50 threads"),
            marks=[with_gdb, pytest.mark.timed, pytest.mark.one_python],
        ),
        pytest.param("debugger", "asyncio", marks=with_gdb),
        pytest.param("remote", "busy", marks=with_remote),
        pytest.param("remote", "asyncio", marks=with_remote),
        pytest.param("remote", "importing", marks=with_remote),
    ],
)
def test_other_ways_in(start: Start, way: str, shape: str) -> None:
    text = WATCH + "_thread.start_new_thread(watch, ())\n" + SHAPES[shape]
    program = start_without_socket(start, text)
    if shape == "50 threads":
        # Starting a thread takes long while others use the GIL.
        until(lambda: program.state()[0] == 52)
    threads = program.state()[0]
    done = run_by(way, program)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["attached"] == [{"pid": program.pid, "way": way}]
    assert result["targets"][0]["delayed"] > 0
    program.says_soon(b"off")
    until(lambda: program.state()[::2] == (threads, False))
    said = set(program.output.read_bytes().split())
    # Of 50 threads that one may have no turn in a second.
    assert said == {b"on", b"off"} or (said == {b"off"} and shape == "50 threads")


FLOATS = """
def compute():
    x = 0.5
    for i in range(2000):
        x = x * 1.0000001 + i * 0.25 - x / 3.0
        work()
    return x
first = compute()
while True:
    if compute() != first:
        os.write(1, b"wrong\\n")
"""


@with_gdb
@pytest.mark.one_python
@pytest.mark.skipif(not _core.loader_code(), reason="gdb makes all calls itself here")
def test_gdb_need_not_write_vector_registers(start: Start, tmp_path: Path) -> None:
    """As where the kernel keeps more of them than it knows: gdb 13 with AMX."""
    text = WATCH + "_thread.start_new_thread(watch, ())\n" + FLOATS
    program = start_without_socket(start, text)
    maps = Path(f"/proc/{program.pid}/maps")
    (tmp_path / "bin").mkdir()
    gdb = tmp_path / "bin/gdb"
    gdb.write_text(
        f"#!/bin/sh\nexec '{shutil.which('gdb')}' -iex 'set $own_calls = 1' \"$@\" "
        f"| tee '{tmp_path}/said'\n"
    )
    gdb.chmod(0o755)
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    for _ in range(4):
        done = run_by("debugger", program, PATH=path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["targets"][0]["delayed"] > 0
        assert "hit Temporary breakpoint 3" in (tmp_path / "said").read_text()
        program.says_soon(b"off")
    assert set(program.output.read_bytes().split()) == {b"on", b"off"}
    assert "rwxp" not in maps.read_text()


def test_a_debugger_of_a_program_that_was_killed_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = tmp_path / "gdb"
    deaf.write_text("#!/bin/sh\ntrap '' INT TERM\nwhile :; do sleep 0.1; done\n")
    deaf.chmod(0o755)
    monkeypatch.setattr(debugger, "DEBUGGER_S", 0.2)
    monkeypatch.setattr(debugger, "PATIENCE_S", 0.2)
    program = subprocess.Popen(["sleep", "1000"])
    threading.Timer(1.0, program.kill).start()
    entry = ways.Entry(
        program.pid, "", str(tmp_path / "script"), [], [], (0, 0), (0, 0), 0, 1
    )
    with pytest.raises(AttachError, match="has ended"):
        debugger._debug("gdb", str(deaf), entry)
    program.wait()


def test_code_that_may_hold_a_lock_is_no_safe_place() -> None:
    safe = (
        "/usr/lib/libz.so.1.2.13",
        "/venv/torch/lib/libtorch_cpu.so",
        "/opt/libcuda.so.1",
    )
    held = (
        *("/lib/libc.so.6", "/lib/libc-2.31.so", "/lib/ld-linux-x86-64.so.2"),
        *("/lib/ld-musl-x86_64.so.1", "/lib/libgcc_s.so.1", "/lib/libjemalloc.so.2"),
        *("/lib/libtcmalloc_minimal.so.4", "/lib/libasan.so.8", "/lib/libmesh.so"),
        *("/lib/clang/libclang_rt.asan-x86_64.so", "/v/memray/_memray.cpython-313.so"),
        *("/memfd:code (deleted)", "[vdso]", ""),
    )
    assert all(map(debugger._is_safe, safe))
    assert not any(map(debugger._is_safe, held))


IN_LIBRARY = WATCH + "_thread.start_new_thread(watch, ())\n" + SHAPES["in a library"]


@with_lldb
def test_lldb_finds_its_own_python(start: Start, lldbs: str) -> None:
    program = start_without_socket(start, BUSY)
    done = run_by("debugger", program, PATH=lldbs)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["targets"][0]["delayed"] > 0


@with_lldb
@pytest.mark.parametrize("text", [BUSY, IN_LIBRARY], ids=["busy", "in a library"])
def test_lldb_serves_where_there_is_no_gdb(
    start: Start, tmp_path: Path, text: str
) -> None:
    program = start_without_socket(start, text)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/lldb").symlink_to(shutil.which("lldb") or "")
    done = run_by("debugger", program, PATH=str(tmp_path / "bin"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["targets"][0]["delayed"] > 0
    program.says_soon(b"off")
    assert set(program.output.read_bytes().split()) == {b"on", b"off"}


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("debugger", marks=with_gdb),
        pytest.param("remote", marks=with_remote),
    ],
)
def test_children_are_left_without_a_socket_too(start: Start, way: str) -> None:
    program = start_without_socket(start, FORKS_TWICE)
    done = run_by(way, program)
    assert done.returncode == 0, done.stderr
    check_grandchild(program)


@with_remote
def test_what_remote_did_not_reach_is_not_run_later(start: Start) -> None:
    program = start_without_socket(
        start, WATCH + "os.write(1, b'off\\n')\nos.read(os.pipe()[0], 1)"
    )
    done = run_by("remote", program)
    assert done.returncode == 1
    assert "did not answer in" in done.stderr
    assert program.process.poll() is None


@with_gdb
def test_a_program_that_is_traced_already(start: Start) -> None:
    program = start_without_socket(start, BUSY)
    gdb = subprocess.Popen(
        ["gdb", "-nx", "-q", "-iex", "set auto-solib-add off", "-p", str(program.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: ways.status_of(program.pid)["TracerPid"] != "0")
        done = run_by("debugger", program)
        assert done.returncode == 1
        assert f"is traced already, by gdb {gdb.pid}" in done.stderr
    finally:
        gdb.communicate(b"detach\nquit\n")


@with_gdb
def test_an_interpreter_without_the_package_is_told(
    start: Start, tmp_path: Path, environ: dict[str, str]
) -> None:
    other = next(
        (
            path
            for path in map(str, Path("/usr/bin").glob("python3.[0-9]*"))
            if not path.endswith(("config", "dbg", "d"))
            and path.partition("python")[2] != f"3.{sys.version_info[1]}"
        ),
        None,
    )
    if other is None:
        pytest.skip("there is no other Python")
    process = subprocess.Popen(
        [other, "-I", "-c", "import time; time.sleep(1000)"], env=environ
    )
    try:
        time.sleep(0.5)
        done = run("run", "-t", "a:b", "--pid", str(process.pid), "--attach", "debugger")
        assert done.returncode == 1
        assert f"speed_bump is not installed in {other}" in done.stderr
        assert f"{other} -m pip install" in done.stderr
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def described(**changes: object) -> dict[str, object]:
    """What an interpreter prints about itself, as far as it differs from this one."""
    return {
        "version": sys.version_info[:3],
        "abi": sysconfig.get_config_var("SOABI"),
        "hex": sys.hexversion,
        "package": [speed_bump.__version__, speed_bump.__file__, _core.__file__],
        **changes,
    }


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            described(version=[3, 9, 18]),
            "process 7 runs Python 3.9.18 (/python): speed_bump needs 3.10 or later",
        ),
        (
            described(package=None, abi="cpython-399t-linux-gnu"),
            "speed_bump is not installed in /python (cpython-399t-linux-gnu), and this",
        ),
        (
            described(package=["0.0.1", "/speed_bump/__init__.py", "/core.so"]),
            "/python has speed_bump 0.0.1, and this is",
        ),
    ],
)
def test_what_an_interpreter_lacks_is_told(found: dict[str, object], words: str) -> None:
    with pytest.raises(ways.AttachError, match=re.escape(words)):
        inject._checked(7, "/python", found)


@pytest.mark.parametrize(
    ("found", "same"),
    [
        (described(), True),
        (described(abi="cpython-399t-linux-gnu"), False),
        (described(hex=sys.hexversion & ~0xFF | 0xA1), False),
    ],
)
def test_only_an_interpreter_of_the_same_build_is_used_for_another(
    found: dict[str, object], same: bool
) -> None:
    assert inject._checked(7, "/python", found).is_the_tools == same


def test_the_ways_are_tried_in_turn(start: Start, environ: dict[str, str]) -> None:
    program = start_without_socket(start, BUSY)
    process = subprocess.Popen(
        [sys.executable, "-m", "speed_bump", "run", "-t", "a:b", "--pid",
         str(program.pid), "--for", "1s"],
        env=environ | {"PATH": "/nonexistent"},
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    said = process.communicate(timeout=300)[1]
    if sys.version_info >= (3, 14):
        assert "by sys.remote_exec" in said
        return
    assert process.returncode == 1
    assert "no control socket" in said
    assert "remote needs 3.14" in said
    assert "there is no debugger: install the package gdb or lldb" in said


@pytest.mark.parametrize(("path", "is_shared"), [("bin", True), ("empty", False)])
def test_all_ways_together_have_the_time_of_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str, is_shared: bool
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/gdb").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path / path))
    deadlines: list[float] = []
    to_connect: list[float | None] = []

    def refuse(
        _pid: int, _directory: str, until: float, connect_s: float | None = None
    ) -> ways.Link:
        deadlines.append(until)
        to_connect.append(connect_s)
        raise ways.NotOffered("no")

    for way in attached.WAYS:
        monkeypatch.setitem(attached.WAYS, way, refuse)
    begin = time.monotonic()
    with pytest.raises(ways.AttachError, match="no; no; no"):
        attached.enter(os.getpid(), None, str(tmp_path))
    end = time.monotonic()
    assert len(set(deadlines)) == 1
    assert begin <= deadlines[0] - ways.PATIENCE_S <= end
    # Where a debugger can follow, it must have time left.
    assert to_connect == [None, attached.REMOTE_S if is_shared else None, None]
    with pytest.raises(ways.AttachError):
        attached.enter(os.getpid(), "remote", str(tmp_path))
    assert deadlines[-1] >= end + ways.PATIENCE_S
    assert to_connect[-1] is None


def test_what_has_connected_has_what_is_left_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ways, "PATIENCE_S", 10_000)
    monkeypatch.setattr(ways, "MIN_PATIENCE_S", 0.1)
    here, _there = socket.socketpair()
    with pytest.raises(AttachError, match="did not answer"):
        ways.Link(os.getpid(), "remote", here, time.monotonic())


def test_a_program_that_ends_is_not_waited_for(tmp_path: Path) -> None:
    program = subprocess.Popen(["true"])
    os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
    interpreter = cast(inject.Interpreter, SimpleNamespace(directory=""))
    later = time.monotonic() + 10_000
    with pytest.raises(AttachError, match="has ended"):
        inject.through(
            program.pid, "remote", str(tmp_path), interpreter, print, later, later
        )
    program.wait()


@with_gdb
def test_the_search_for_a_safe_place_ends_in_time(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All its time is spent where a lock of the allocator may be held.
    monkeypatch.setattr(debugger, "_places", lambda _pid: ([], [], (0, 0)))
    monkeypatch.setattr(debugger, "MIN_SEARCH_S", 1)
    program = start(BUSY)
    with pytest.raises(AttachError, match="never found in code"):
        debugger.by_debugger(program.pid, str(tmp_path), time.monotonic() - 10_000)
    with pytest.raises(AttachError, match="never found in code"):
        debugger.by_debugger(program.pid, str(tmp_path), time.monotonic() + 3)


def may_be_run_by_others(path: str) -> bool:
    parents = [Path(path).resolve(), *Path(path).resolve().parents]
    return all(parent.stat().st_mode & 0o001 for parent in parents)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which may be any user")
@pytest.mark.skipif(
    not may_be_run_by_others(sys.executable), reason="this Python is its user's alone"
)
@pytest.mark.parametrize(
    "way",
    [
        "socket",
        pytest.param("remote", marks=with_remote),
        pytest.param("debugger", marks=with_gdb),
    ],
)
def test_root_attaches_to_another_users_program(
    environ: dict[str, str], way: str
) -> None:
    with tempfile.TemporaryDirectory() as runtime:
        os.chown(runtime, 65534, 65534)
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "def work(): pass\nprint(flush=True)\nwhile 1: work()",
            ],
            env=environ | {"XDG_RUNTIME_DIR": runtime, "SPEED_BUMP_ATTACH": "1"},
            stdout=subprocess.PIPE,
            user=65534,
            group=65534,
            extra_groups=[],
        )
        try:
            assert process.stdout
            process.stdout.readline()
            with speed_bump.attach(process.pid, ["__main__:work"], way=way) as attached:
                until(lambda: attached.stats().calls)
                directory = Path(attached._runner.directory)
                # Root follows links; the other user must not be able to make one.
                assert directory.stat().st_uid == 0
                assert directory.stat().st_mode & 0o777 == 0o711
            assert process.poll() is None
        finally:
            process.kill()
            process.wait()


@in_tree
@pytest.mark.parametrize(
    ("way", "shape", "times"),
    [
        ("socket", "importing", 3),
        ("socket", "exiting", 2),
        pytest.param("remote", "exiting", 2, marks=with_remote),
        pytest.param("gdb", "reading", 2, marks=with_gdb),
        pytest.param("socket", "contained", 1, marks=as_root),
        pytest.param("socket", "paced", 2, marks=pytest.mark.timed),
    ],
)
def test_cells_of_check_attach(way: str, shape: str, times: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / "cell.py"), way, shape, str(times), str(tmp_path)],
        env=os.environ | {"SB_SLACK_S": "30"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    said = json.loads(done.stdout)
    assert said["verdict"] == "passed", said["text"]
