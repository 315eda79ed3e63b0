#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Attach to programs of all kinds and leave them, again and again.

    many.py [--way socket] [--times 1000] [--shape NAME]...

Each program checks its own answers, and ends with an error if one is wrong. After each
attach that was let in its function must have been counted. In the end the program must
run, with the threads and descriptors of before and without memory of ours, and a call
must cost what it did before (the fastest of many batches in the same process; the time
of each kind of program is shared between its attaches). Run it with the interpreter that
is to be tested, with speed_bump and pytest installed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "pyext/tests"))

from speed_bump import _core
from speed_bump.experiment.program.attached import WAYS
from speed_bump.experiment.program.ways import AttachError, Link
from speed_bump.experiment.program.ways import _socket_path as socket_path
from test_attach import SHAPES

CHECKED = """
import os, sys, time, threading, _thread
def work():
    total = sum(range(300))
    if total != 44850:
        os._exit(3)
    return total
"""
MORE = {
    "allocating": "while True:\n    [bytes(n) for n in range(0, 5000, 7)]\n    work()",
    "starting threads": """
while True:
    t = threading.Thread(target=work)
    t.start()
    t.join()
""",
}
EXITING = CHECKED + "end = time.time() + {life}\nwhile time.time() < end: work()\n"
# It times its own calls, and says what the fastest of 20 batches took.
TIMED = """
import os, time
def work(): pass
def batch():
    begin = time.perf_counter_ns()
    for _ in range(20000): work()
    return time.perf_counter_ns() - begin
os.write(1, b"ready\\n")
while True:
    os.write(1, b"%d\\n" % min(batch() for _ in range(20)))
"""
TARGETS = b"__main__:work delay=1us\n"
PATIENCE_S = 60.0


def wait_for(condition: object, seconds: float = PATIENCE_S) -> bool:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


class Program:
    """A program of one kind, until it is not wanted any more."""

    def __init__(self, text: str, directory: str, way: str) -> None:
        path = Path(directory, "program.py")
        path.write_text(text)
        environ = {k: v for k, v in os.environ.items() if not k.startswith("SPEED_BUMP")}
        environ["XDG_RUNTIME_DIR"] = directory
        if way == "socket":
            environ["SPEED_BUMP_ATTACH"] = "1"
        self.process = subprocess.Popen(
            [sys.executable, str(path)], env=environ, stdout=subprocess.PIPE
        )
        self.pid = self.process.pid

    def state(self) -> tuple[int, list[str], bool]:
        """Threads, descriptors, and whether it has memory of ours."""
        where = Path(f"/proc/{self.pid}")
        descriptors = []
        for file in (where / "fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                descriptors.append(os.readlink(file))
        maps = (where / "maps").read_text()
        threads = len(list((where / "task").iterdir()))
        return threads, sorted(descriptors), "/many-" in maps and ".table" in maps

    def settled(self) -> tuple[int, list[str], bool]:
        """Its state, once that was the same for a second."""
        end = time.monotonic() + PATIENCE_S
        found = self.state()
        since = time.monotonic()
        while time.monotonic() < min(since + 1, end):
            time.sleep(0.1)
            now = self.state()
            if now != found:
                found, since = now, time.monotonic()
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def enter(way: str, pid: int, directory: str) -> Link:
    return WAYS[way](pid, directory)


def calls(table: _core.Table) -> int:
    return sum(site[5] for site in table.read() if site[0] == _core.SB_SITE_FUNCTION)


def leave(link: Link) -> None:
    link.begin_to_leave()
    link.leave()


def run_shape(shape: str, text: str, way: str, times: int) -> str:
    """Attach so often; what there is to say of it. AssertionError: it went wrong."""
    refused: dict[str, int] = {}
    slowest = 0.0
    with tempfile.TemporaryDirectory(prefix="many-") as directory:
        program = Program(CHECKED + text, directory, way)
        try:
            time.sleep(0.5)
            if way == "socket":
                assert wait_for(lambda: socket_path(program.pid)), "no socket"
            if shape == "50 threads":
                assert wait_for(lambda: program.state()[0] > 50, 300), "no 50 threads"
            before = program.settled()
            path = f"{directory}/1.table"
            with closing(_core.Table(path, 1 << 10)) as table:
                for _ in range(times):
                    counted = calls(table)
                    begin = time.monotonic()
                    try:
                        link = enter(way, program.pid, directory)
                        link.attach(path, TARGETS)
                    except AttachError as error:
                        reason = str(error).replace(str(program.pid), "PID")[:60]
                        refused[reason] = refused.get(reason, 0) + 1
                        continue
                    slowest = max(slowest, time.monotonic() - begin)
                    assert wait_for(lambda: calls(table) > counted), "nothing counted"  # noqa: B023
                    leave(link)
                    assert program.process.poll() is None, program.process.returncode
            if shape not in ("forking", "starting threads", "waiting for a child"):
                assert wait_for(lambda: program.state() == before), (
                    before,
                    program.state(),
                )
            assert program.process.poll() is None, program.process.returncode
        finally:
            program.end()
    said = f", {sum(refused.values())} refused {refused}" if refused else ""
    return f"{times} times, slowest {slowest:.2f} s{said}"


def run_exiting(way: str, times: int) -> str:
    """Attach to programs that are about to end: they end well, with or without us."""
    entered = refused = 0
    rng = random.Random(1)
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="many-") as directory:
            life = rng.uniform(0, 0.1)
            program = Program(EXITING.format(life=life), directory, way)
            path = f"{directory}/1.table"
            with closing(_core.Table(path, 1 << 10)):
                if way == "socket":
                    wait_for(
                        lambda: (
                            program.process.poll() is not None  # noqa: B023
                            or socket_path(program.pid)  # noqa: B023
                        )
                    )
                time.sleep(rng.uniform(0, 0.1))
                try:
                    link = enter(way, program.pid, directory)
                    link.attach(path, TARGETS)
                    entered += 1
                    leave(link)
                except AttachError:
                    refused += 1
            try:
                code = program.process.wait(PATIENCE_S)
            finally:
                program.end()
            assert code == 0, code
    return f"{times} times, {entered} entered, {refused} came too late or too early"


def run_ratio(way: str, times: int) -> str:
    """What a call costs after detach, compared with before."""
    with tempfile.TemporaryDirectory(prefix="many-") as directory:
        program = Program(TIMED, directory, way)
        out = program.process.stdout
        assert out
        try:
            assert out.readline() == b"ready\n"

            def fastest(n: int) -> int:
                out.readline()  # begun before
                return min(int(out.readline()) for _ in range(n))

            before = fastest(20)
            path = f"{directory}/1.table"
            with closing(_core.Table(path, 1 << 10)):
                for _ in range(times):
                    link = enter(way, program.pid, directory)
                    link.attach(path, TARGETS)
                    out.readline()
                    leave(link)
                after = fastest(20)
        finally:
            program.end()
    return f"a call after {times} attaches / before: {after / before:.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--way", choices=list(WAYS), default="socket")
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--shape", action="append", help="of these alone")
    options = parser.parse_args()
    shapes = SHAPES | MORE
    each = max(options.times // (len(shapes) + 1), 1)
    failed = False
    signal.signal(signal.SIGALRM, lambda *_: sys.exit("it hangs"))
    for shape in options.shape or [*shapes, "exiting", "ratio"]:
        signal.alarm(1200)
        begin = time.monotonic()
        try:
            if shape == "exiting":
                said = run_exiting(options.way, each)
            elif shape == "ratio":
                said = run_ratio(options.way, 10)
            else:
                said = run_shape(shape, shapes[shape], options.way, each)
        except AssertionError as error:
            failed, said = True, f"FAILED: {error}"
        took = time.monotonic() - begin
        version = "{}.{}".format(*sys.version_info[:2]) + sys.abiflags
        print(f"{version} {options.way:8} {shape:20} {said} ({took:.0f} s)", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
