# SPDX-License-Identifier: MIT
"""Attaching to running programs."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import schemas
import speed_bump
from attaching import (
    BUSY,
    FORKS_TWICE,
    SHAPES,
    WATCH,
    Running,
    Start,
    attach,
    calls,
    check_grandchild,
    leave,
    made_table,
    programs,
    run,
    tool,
    until,
)
from speed_bump import _core, native
from speed_bump.experiment.program import attached, processes, ways
from speed_bump.experiment.program.native_times import sample
from speed_bump.experiment.program.runner import Slowed
from speed_bump.link import message, place, visit

pytestmark = pytest.mark.two_pythons


@pytest.fixture
def start(tmp_path: Path, environ: dict[str, str]) -> Iterator[Start]:
    with programs(tmp_path, environ) as begin:
        yield begin


@pytest.fixture
def table() -> Iterator[str]:
    with made_table() as path:
        yield path


def test_a_run_slows_what_runs_already_and_leaves_it(start: Start) -> None:
    program = start(BUSY)
    before = program.state()
    done = run(
        "run", "-t", "__main__:work", "-d", "50us", "--pid", str(program.pid),
        "--for", "1s", "--json", "-",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"process {program.pid} (by its control socket)" in done.stderr
    result = json.loads(done.stdout)
    assert result["attached"] == [{"pid": program.pid, "way": "socket"}]
    (work,) = result["targets"]
    assert work["calls"] > 0
    assert work["requested_ns"] == work["delayed"] * 50_000 > 0
    program.says_soon(b"off")
    assert program.state() == before


def test_nothing_waits_before_a_tool_comes(start: Start) -> None:
    program = start(WATCH + "watch()")
    threads, descriptors, _ = program.state()
    assert threads == 1
    assert sum(name.startswith("socket:") for name in descriptors) == 1
    (path,) = Path(ways._socket_path(program.pid) or "").parent.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


# A tool waits for an answer for 5 s, whatever else runs.
@pytest.mark.timed
@pytest.mark.parametrize("shape", SHAPES)
def test_any_program_can_be_attached_to(start: Start, shape: str, table: str) -> None:
    program = start(WATCH + "_thread.start_new_thread(watch, ())\n" + SHAPES[shape])
    for _ in range(5):
        with closing(_core.Table.open(table)) as counted:
            before = calls(counted)
            link = attach(program, table, b"__main__:work delay=2us\n")
            until(lambda: calls(counted) > before)  # noqa: B023
            leave(link)
    program.says_soon(b"off")
    assert program.process.poll() is None
    if shape != "forking":
        assert not program.state()[2]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_tool_that_ends_leaves_nothing(start: Start, number: int) -> None:
    program = start(BUSY)
    before = program.state()
    for round in range(3):
        process = tool(
            "run", "-t", "__main__:work", "-d", "1ms", "--pid", str(program.pid)
        )
        until(lambda: program.says(b"on"))
        time.sleep(0.1 * round)
        process.send_signal(number)
        process.communicate(timeout=60)
        program.says_soon(b"off")
    until(lambda: program.state() == before)


def test_a_child_that_is_forked_in_a_hurry_is_not_in_one() -> None:
    before = sys.getswitchinterval()
    with visit._Hurry():
        hurried = sys.getswitchinterval()
        pid = os.fork()
        if not pid:
            visit.after_fork()
            os._exit(int(sys.getswitchinterval() != before))
    assert os.waitpid(pid, 0)[1] == 0
    assert hurried < before == sys.getswitchinterval()


def test_children_forked_meanwhile_are_slowed_and_left_too(
    start: Start, table: str
) -> None:
    program = start(
        WATCH
        + """
while not speed_bump.is_installed():
    os.write(1, b"off\\n")
    time.sleep(0.01)
if os.fork():
    time.sleep(1000)
os.write(1, b"child\\n")
_thread.start_new_thread(watch, ())
while True:
    work()
""",
    )
    done = run(
        "run", "-t", "__main__:work", "-d", "1us", "--pid", str(program.pid),
        "--for", "2s", "--json", "-",
    )  # fmt: skip
    assert schemas.read("run", done.stdout)["targets"][0]["calls"] > 0, done
    program.says_soon(b"off")
    assert b"child" in program.output.read_bytes()
    (child,) = (
        Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
    )
    # The child has a socket of its own, and is then the process to attach to.
    leave(ways.by_socket(int(child)))
    os.kill(int(child), signal.SIGKILL)


def test_children_of_children_are_left_too(start: Start) -> None:
    program = start(FORKS_TWICE)
    done = run(
        "run", "-t", "__main__:work", "--pid", str(program.pid), "--for", "2s"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_grandchild(program)


def test_a_program_that_sees_other_files_is_given_them(start: Start, table: str) -> None:
    program = start(FORKS_TWICE)
    before = program.state()
    read, write = os.pipe()
    opened = os.open(table, os.O_RDWR)
    link = ways.by_socket(program.pid)
    link.attach("/nonexistent", b"__main__:work delay=2us\n", files=(opened, read))
    os.close(read)
    with closing(_core.Table.open(table)) as counted:
        until(lambda: calls(counted) > 0)
    leave(link)
    until(lambda: program.state() == before)
    # The children wait for the end of the tool.
    time.sleep(0.2)
    assert program.says(b"on")
    os.close(write)
    os.close(opened)
    check_grandchild(program)


def test_delays_are_drawn_there(start: Start) -> None:
    program = start(BUSY)
    targets = ["__main__:work mode=sleep dist=uniform"]
    with speed_bump.attach(program.pid, targets, "30us", seed=7) as attached:
        until(lambda: attached.stats().delayed > 1)
    (work,) = attached.stats().functions
    assert work.delayed * 60_000 > work.requested_ns != work.delayed * 30_000
    assert work.delivered_ns > work.requested_ns


def test_from_python(start: Start) -> None:
    program = start(BUSY)
    with speed_bump.attach(program.pid, ["__main__:wor?"], "30us") as attached:
        until(lambda: attached.stats().calls > 0)
        program.says_soon(b"on")
        assert attached.ways == {program.pid: "socket"}
    program.says_soon(b"off")
    (work,) = attached.stats().functions
    assert (work.name, work.target) == ("__main__:work", "__main__:wor?")
    assert work.requested_ns == 30_000 * work.delayed > 0
    with pytest.raises(speed_bump.AttachError, match="there is no process"):
        speed_bump.attach(2**22 - 1, ["a:b"]).__enter__()
    with pytest.raises(speed_bump.ConfigError):
        speed_bump.attach(program.pid, ["a:b"], way="window")


def test_the_thread_that_serves_the_tool_is_not_sampled(start: Start) -> None:
    """It sleeps in recv(): with it, that had all of the time."""
    program = start(BUSY)
    left_out: list[int] = []
    sampler: Any = SimpleNamespace(
        add_process=lambda pid: None, leave_out_thread=left_out.append
    )
    # A child that has not executed its program yet has the name of the command.
    comm = Path(f"/proc/{os.getpid()}/comm")
    name = comm.read_bytes()
    comm.write_bytes(visit.THREAD)
    try:
        sample(sampler, os.getpid())
    finally:
        comm.write_bytes(name)
    sample(sampler, program.pid)
    assert not left_out
    with speed_bump.attach(program.pid, ["__main__:work"], "1us"):
        sample(sampler, program.pid)
    (tid,) = left_out
    assert tid != program.pid


def test_a_program_that_ends_meanwhile(start: Start) -> None:
    program = start(
        WATCH
        + """
os.write(1, b"off")
while not speed_bump.is_installed():
    time.sleep(0.01)
end = time.time() + 1
while time.time() < end:
    work()
"""
    )
    done = run("run", "-t", "__main__:work", "--pid", str(program.pid), "--json", "-")
    assert done.returncode == 0
    assert schemas.read("run", done.stdout)["targets"][0]["calls"] > 0
    assert program.process.wait(60) == 0


def test_the_time_of_a_run_is_that_of_the_delays(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = start(BUSY)
    entered = []

    def enter(*arguments: str) -> ways.Link:
        time.sleep(1)
        link = attached.WAYS["socket"](*arguments)
        entered.append(time.monotonic_ns())
        return link

    monkeypatch.setitem(attached.WAYS, "remote", enter)
    (work,) = speed_bump.Config(["__main__:work"]).targets
    with attached.AttachedRunner(
        (), pids=[program.pid], way="remote", seconds=0.5
    ) as runner:
        result = runner.run([Slowed(work, 1000)])
    assert result.calls(work) > 0
    assert result.wall_ns <= time.monotonic_ns() - entered[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sum(range(10**12))", "its main thread was in C code"),
        (
            "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])\n"
            "time.sleep(1000)",
            "block SIGURG",
        ),
    ],
)
def test_what_can_not_be_attached_to_is_left_alone(
    start: Start, text: str, words: str
) -> None:
    program = start(WATCH + "os.write(1, b'off\\n')\n" + text)
    before = program.state()
    done = run("run", "-t", "a:b", "--pid", str(program.pid), "--attach", "socket")
    assert done.returncode == 1
    assert words in done.stderr
    assert program.process.poll() is None
    assert program.state()[0] == before[0]


def test_a_program_without_a_socket(start: Start) -> None:
    program = start(BUSY, wait=False, SPEED_BUMP_ATTACH="0")
    until(program.output.read_bytes)
    done = run("run", "-t", "a:b", "--pid", str(program.pid), "--attach", "socket")
    assert done.returncode == 1
    assert "SPEED_BUMP_ATTACH=1" in done.stderr


def test_only_one_tool_at_a_time(start: Start, table: str) -> None:
    program = start(BUSY)
    link = attach(program, table, b"__main__:work delay=2us\n")
    with pytest.raises(ways.AttachError, match="another tool is attached"):
        ways.by_socket(program.pid)
    leave(link)
    until(lambda: program.state()[0] == 2)
    leave(attach(program, table, b"__main__:work\n"))


def test_what_the_program_slows_itself_stays(start: Start, table: str) -> None:
    program = start(
        WATCH + "os.write(1, b'off\\n')\n"
        "speed_bump.install(speed_bump.Config(['__main__:work']))\nwatch()\n"
    )
    until(lambda: program.says(b"on"))
    with pytest.raises(ways.AttachError, match="in force there already"):
        attach(program, table, b"__main__:work\n")
    program.says_soon(b"on")


def connect(program: Running) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(30)
    connection.connect(ways._socket_path(program.pid) or "")
    return connection


def test_damaged_messages_and_floods_change_nothing(start: Start, table: str) -> None:
    program = start(BUSY)
    before = program.state()
    values = {"table": table.encode(), "targets": b"a:b", "seed": b"1"}
    good = message.pack(message.ATTACH, {"version": b"x", **values})
    for data in (b"\0" * 500, good[:-1], good + b"x", good[:4] + b"\xff\xff" + good[6:]):
        with connect(program) as connection:
            assert message.receive(connection.recv)[0] == message.HELLO
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):  # it did not read all of it
                while connection.recv(1 << 12):
                    pass
    many = []
    for _ in range(100):
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        connection.connect_ex(ways._socket_path(program.pid) or "")
        many.append(connection)
    for connection in many:
        connection.close()
    program.says_soon(b"off")
    until(lambda: program.state() == before)
    said = program.output.read_bytes()
    assert b"Traceback" not in said
    assert said.count(b"a tool sent a damaged message, and was refused: ") == 1
    # While a tool is attached, all others are refused.
    link = attach(program, table, b"__main__:work delay=2us\n")
    for _ in range(40):
        with connect(program) as connection:
            assert message.receive(connection.recv)[0] == message.REFUSED
    leave(link)
    program.says_soon(b"off")
    until(lambda: program.state() == before)
    assert program.output.read_bytes().count(b"tools were refused") == 1
    # New connections are still accepted.
    leave(attach(program, table, b"__main__:work delay=2us\n"))


def test_a_tool_may_get_into_other_processes_first(start: Start, table: str) -> None:
    """By a debugger, each of them takes seconds on a busy machine."""
    program = start(BUSY)
    before = program.state()
    link = ways.by_socket(program.pid)
    time.sleep(ways.PATIENCE_S + 1)
    assert len(link.attach(table, b"__main__:work delay=2us\n")) > 1
    leave(link)
    program.says_soon(b"off")
    # One that ends in between leaves nothing.
    ways.by_socket(program.pid).leave()
    until(lambda: program.state() == before)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_user_is_refused(start: Start, table: str) -> None:
    with tempfile.TemporaryDirectory() as runtime:
        program = start(BUSY, wait=False, XDG_RUNTIME_DIR=runtime)
        where = Path(runtime, "speed-bump")
        until(lambda: list(where.glob("*")))
        until(lambda: b"off" in program.output.read_bytes())
        (path,) = where.iterdir()

        def connect_as_nobody() -> bytes:
            read, write = os.pipe()
            pid = os.fork()
            if not pid:
                try:
                    os.setgroups([])
                    os.setgid(65534)
                    os.setuid(65534)
                    with socket.socket(socket.AF_UNIX) as connection:
                        connection.settimeout(30)
                        connection.connect(str(path))
                        os.write(write, connection.recv(1 << 12))
                except OSError as error:
                    os.write(write, str(error.strerror).encode())
                finally:
                    os._exit(0)
            os.close(write)
            with open(read, "rb") as said:
                answer = said.read()
            os.waitpid(pid, 0)
            return answer

        assert connect_as_nobody() == b"Permission denied"
        # Also if the permissions of the file system allow it.
        for place_of in (Path(runtime), where, path):
            place_of.chmod(0o777)
        for _ in range(3):
            assert b"user 65534 may not attach" in connect_as_nobody()
        said = b"user 65534 tried to attach, and was refused (this is said once)"
        until(lambda: said in program.output.read_bytes())
        assert program.output.read_bytes().count(b"tried to attach") == 1
        program.says_soon(b"off")
        where.chmod(0o700)
        leave(attach(program, table, b"__main__:work delay=2us\n"))


def test_the_socket_of_another_process_is_not_believed(
    start: Start, tmp_path: Path
) -> None:
    program = start(BUSY, wait=False, SPEED_BUMP_ATTACH="0")
    until(program.output.read_bytes)
    directory = place.make(os.geteuid(), {"XDG_RUNTIME_DIR": str(tmp_path)})
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(f"{directory}/{place.name(program.pid, place.namespace())}")
        impostor.listen()
        with pytest.raises(ways.AttachError, match=f"that of process {os.getpid()} "):
            ways.by_socket(program.pid)


def test_messages_are_read_back_or_refused() -> None:
    rng = random.Random(1)
    values = {"version": b"1", "table": b"/t", "targets": b"a:b\n" * 20, "seed": b""}
    good = message.pack(message.ATTACH, values)

    def read(data: bytes) -> tuple[int, dict[str, bytes]]:
        rest = [data]

        def take(size: int) -> bytes:
            # Like a socket: the available bytes, at most the size.
            part, rest[0] = rest[0][: min(size, 7)], rest[0][min(size, 7) :]
            return part

        return message.receive(take)

    assert read(good) == (message.ATTACH, values)
    for cut in range(len(good)):
        with pytest.raises(message.Closed):
            read(good[:cut])
    for _ in range(20_000):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            kind, said = read(bytes(data))
        except (message.MessageError, message.Closed):
            continue
        # Accepted messages differ only in values.
        assert message.pack(kind, said) == bytes(data)
    with pytest.raises(message.MessageError, match="too long"):
        read(struct.pack("<4sHHI", message.MAGIC, message.VERSION, 2, 1 << 30))
    with pytest.raises(message.MessageError, match="protocol 9"):
        read(struct.pack("<4sHHI", message.MAGIC, 9, 2, 0))


def test_sockets_of_dead_programs_are_removed(tmp_path: Path) -> None:
    directory = place.make(os.geteuid(), {"XDG_RUNTIME_DIR": str(tmp_path)})
    assert directory == str(tmp_path / "speed-bump")
    space = place.namespace()
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    dead = tmp_path / "speed-bump" / place.name(process.pid, space)
    alive = tmp_path / "speed-bump" / place.name(os.getpid(), space)
    elsewhere = tmp_path / "speed-bump" / place.name(process.pid, space + 1)
    for path in (dead, alive, elsewhere):
        path.touch()
    place.sweep(directory, space)
    assert [path.exists() for path in (dead, alive, elsewhere)] == [False, True, True]


def test_a_directory_of_others_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "speed-bump").mkdir(0o755)
    os.chmod(tmp_path / "speed-bump", 0o755)
    with pytest.raises(PermissionError):
        place.check(str(tmp_path / "speed-bump"), os.geteuid())
    found = place.make(os.geteuid(), {"XDG_RUNTIME_DIR": str(tmp_path)})
    assert found != str(tmp_path / "speed-bump")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pid", "0"], "not the number of a process"),
        (["--pid", str(2**22 - 1)], "there is no process"),
        (["--name", "no such program"], "no process is called"),
        (["--attach", "socket"], "no command to run"),
        (["--pid", "1", "--", "true"], "give a command or processes, not both"),
        (["--for", "3s", "--", "true"], "--for needs --pid"),
        (["--pid", "1", "--compare"], "--compare runs CMD"),
    ],
)
def test_usage(arguments: list[str], words: str) -> None:
    done = run("run", "-t", "a:b", *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_a_process_without_python() -> None:
    process = subprocess.Popen(["sleep", "1000"])
    try:
        done = run("run", "-t", "a:b", "--pid", str(process.pid))
        assert done.returncode == 1
        assert f"there is no CPython in process {process.pid}" in done.stderr
    finally:
        process.kill()
    # A process that has exited and was not reaped.
    until(lambda: ways.status_of(process.pid).get("State", "").startswith("Z"))
    done = run("run", "-t", "a:b", "--pid", str(process.pid))
    assert done.returncode == 1
    assert f"process {process.pid} has ended" in done.stderr
    process.wait()


def test_native_functions_of_two_processes_are_not_those_of_one() -> None:
    with subprocess.Popen(["sleep", "99"]) as a, subprocess.Popen(["sleep", "99"]) as b:
        try:
            assert processes.apart([a.pid, b.pid]) == b.pid
            assert not processes.apart([a.pid])
            assert not processes.apart([os.getpid(), a.pid, b.pid])
            with pytest.raises(native.NativeError, match=r"not below .*--pid-tree"):
                processes.check_one_tree([a.pid, b.pid])
        finally:
            a.kill()
            b.kill()


def test_names_and_trees(start: Start, tmp_path: Path) -> None:
    worker = tmp_path / "a worker.py"
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
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
    until(children.read_text)
    child = int(children.read_text())
    until(lambda: ways._socket_path(child))
    names = ["--name", "a w*r.py", "--pid", str(program.pid)]
    try:
        for chosen in (["--pid-tree", str(program.pid)], names):
            done = run(
                "run", "-t", "__main__:work", *chosen, "--for", "1s", "--json", "-"
            )
            assert done.returncode == 0, done.stderr
            result = json.loads(done.stdout)
            assert {a["pid"] for a in result["attached"]} == {program.pid, child}
            assert result["processes"] == 2
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.timed
def test_rank_of_what_runs_already(start: Start, tmp_path: Path) -> None:
    program = start(
        WATCH
        + """
def small():
    return sum(range(3000))
def large():
    return sum(range(9000))
_thread.start_new_thread(watch, ())
while True:
    small()
    large()
"""
    )
    before = program.state()
    for budget in ("6s", "20s", "60s"):
        numbers = tmp_path / "numbers.json"
        done = run(
            "rank", "-t", "__main__:small", "-t", "__main__:large", "--pid",
            str(program.pid), "--budget", budget, "--json", str(numbers),
            "-o", str(tmp_path / "record"),
        )  # fmt: skip
        program.says_soon(b"off")
        assert program.state() == before
        if done.returncode == 0:
            found = json.loads(numbers.read_text())
            names = {f["target"] for f in found["findings"]}
            assert names == {"__main__:small", "__main__:large"}
            # On a busy machine there may be too little CPU time, which is reported.
            if all(
                f["verdict"] == "matters" or "of the CPU time" in f["reason"]
                for f in found["findings"]
            ):
                break
    else:
        raise AssertionError((done.stdout, done.stderr))
    assert found["attached"] == [{"pid": program.pid, "way": "socket"}]
    assert "by its control socket" in done.stdout
