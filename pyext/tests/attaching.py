# SPDX-License-Identifier: MIT
"""Programs that are attached to in tests, and the tool."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from speed_bump import _core
from speed_bump.experiment.program import ways
from speed_bump.kinds import SiteKind

# Prints repeatedly whether delays are in force.
WATCH = """
import os, sys, time, threading, _thread
import speed_bump
def work():
    return sum(range(300))
def watch():
    while True:
        time.sleep(0.02)
        os.write(1, b"on\\n" if speed_bump.is_installed() else b"off\\n")
"""
BUSY = WATCH + "_thread.start_new_thread(watch, ())\nwhile True: work()\n"
WORKING = "threading.Thread(target=lambda: [work() for _ in iter(int, 1)], daemon=True)"
SHAPES = {
    "busy": "while True: work()",
    # Nearly all the time; the interpreter is seldom seen.
    "in a library": """
import zlib
data = os.urandom(1 << 19)
while True:
    work()
    zlib.compress(data)
""",
    "in a lock": f"{WORKING}.start()\nthreading.Lock().acquire() and 0\n"
    "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "joining a thread": f"t = {WORKING}; t.start(); t.join()",
    "reading": f"{WORKING}.start()\nos.read(os.pipe()[0], 1)",
    "asleep": f"{WORKING}.start()\ntime.sleep(1000)",
    "waiting for a child": f"{WORKING}.start()\n"
    "import subprocess\nsubprocess.run(['sleep', '1000'])",
    "50 threads": f"[{WORKING}.start() for _ in range(50)]\ntime.sleep(1000)",
    "asyncio": """
import asyncio
async def main():
    while True:
        work()
        await asyncio.sleep(0.001)
asyncio.run(main())
""",
    "importing": """
import importlib
while True:
    for name in ("json", "csv", "decimal", "ast", "dis", "inspect"):
        importlib.reload(importlib.import_module(name))
    work()
""",
    "forking": """
while True:
    work()
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        os._exit(1)
""",
}


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


class Running:
    """A running program, with a control socket unless ``variables`` say otherwise."""

    def __init__(self, tmp_path: Path, text: str, environ: dict[str, str]) -> None:
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(text))
        self.output = tmp_path / "output"
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(path)], env=environ, stdout=file, stderr=file
            )
        self.pid = self.process.pid

    def wait_for_socket(self) -> None:
        until(lambda: ways._socket_path(self.pid))
        # Its imports are done, and it works.
        until(lambda: b"off" in self.output.read_bytes())

    def says(self, word: bytes) -> bool:
        """Whether the newest output is this."""
        return self.output.read_bytes().split()[-1:] == [word]

    def says_soon(self, word: bytes) -> None:
        """Wait until new output is this."""
        size = self.output.stat().st_size + 8
        until(lambda: self.output.stat().st_size > size and self.says(word))

    def state(self) -> tuple[int, list[str], bool]:
        """Threads, descriptors, and whether memory of a tool is mapped."""
        where = Path(f"/proc/{self.pid}")
        descriptors = []
        for file in (where / "fd").iterdir():
            # Descriptors that the program opens and closes may be gone when they are
            # read.
            with suppress(FileNotFoundError):
                descriptors.append(os.readlink(file))
        maps = (where / "maps").read_text()
        tables = "/speed-bump-" in maps and ".table" in maps
        return len(list((where / "task").iterdir())), sorted(descriptors), tables


Start = Callable[..., Running]


@contextmanager
def programs(tmp_path: Path, environ: dict[str, str]) -> Iterator[Start]:
    """What starts a program and waits until it works; all are ended."""
    running: list[Running] = []

    def begin(text: str, wait: bool = True, **variables: str) -> Running:
        where = tmp_path / str(len(running))
        where.mkdir()
        runtime = {"XDG_RUNTIME_DIR": str(tmp_path), "SPEED_BUMP_ATTACH": "1"}
        running.append(Running(where, text, environ | runtime | variables))
        if wait:
            running[-1].wait_for_socket()
        return running[-1]

    try:
        yield begin
    finally:
        for program in running:
            program.process.kill()
            program.process.wait()


def tool(*arguments: str, **environ: str) -> subprocess.Popen[str]:
    """The command ``speed-bump``."""
    return subprocess.Popen(
        [sys.executable, "-m", "speed_bump", *arguments],
        env=os.environ | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    process = tool(*arguments, **environ)
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def run_by(
    way: str, program: Running, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Slow ``work`` for a second by one way in.

    Repeated if the machine is so busy that attaching takes too long.
    """
    for _ in range(3):
        done = run(
            "run", "-t", "__main__:work", "-d", "20us", "--pid", str(program.pid),
            "--for", "1s", "--attach", way, "--json", "-", **environ,
        )  # fmt: skip
        # The late agent of the last attempt may still be there.
        if done.returncode == 0 or not any(
            words in done.stderr for words in ("did not", "another tool", "try again")
        ):
            break
        time.sleep(1)
    return done


@contextmanager
def made_table() -> Iterator[str]:
    """The path of a table, like that of the tool."""
    with tempfile.TemporaryDirectory(prefix="speed-bump-") as directory:
        path = f"{directory}/1.table"
        with closing(_core.Table(path, 1 << 10)):
            yield path


def attach(program: Running, table: str, text: bytes) -> ways.Link:
    link = ways.by_socket(program.pid)
    link.attach(table, text)
    return link


def leave(link: ways.Link) -> None:
    link.begin_to_leave()
    link.leave()


def calls(table: _core.Table) -> int:
    return sum(site.calls for site in table.read() if site.kind == SiteKind.FUNCTION)


def descendants(pid: int) -> list[int]:
    """The processes below, the lowest first."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    children = [int(word) for word in text.split()]
    return [*(p for child in children for p in descendants(child)), *children]


FORKS_TWICE = (
    WATCH
    + """
while not speed_bump.is_installed():
    os.write(1, b"off\\n")
    time.sleep(0.01)
if os.fork() or os.fork():
    time.sleep(1000)
os.write(1, b"grandchild\\n")
_thread.start_new_thread(watch, ())
while True:
    work()
"""
)


def check_grandchild(program: Running) -> None:
    """It was slowed, and is left; ends the children."""
    try:
        program.says_soon(b"off")
        said = program.output.read_bytes().partition(b"grandchild")[2]
        assert b"on" in said.split()
    finally:
        for pid in descendants(program.pid):
            os.kill(pid, signal.SIGKILL)
