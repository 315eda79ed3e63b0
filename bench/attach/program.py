# SPDX-License-Identifier: MIT
"""A running subject.py, what is seen of it from outside, and traces of a failure."""

from __future__ import annotations

import functools
import json
import mmap
import operator
import os
import select
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import subject

SUBJECT = Path(subject.__file__)
# The first epoch tells what each of them adds.
EPOCH = subject.epoch()
# For a program to become ready, or to end, when other programs use the machine.
PATIENCE_S = 120.0
# After this it is as it was, if it will be.
SETTLE_S = 20.0
SAMPLES = 5
EXECUTABLE = "memory that can be executed"


class Failure(Exception):
    """What is not as it must be."""


class State:
    """What a program has, seen from outside.

    Threads and descriptors as a sample shows them; files that are mapped in each of
    several samples, and in any of them, because a program may map and unmap.
    """

    def __init__(self, pid: int) -> None:
        where = Path(f"/proc/{pid}")
        samples = []
        for _ in range(SAMPLES):
            samples.append(Counter(_mapped(where)))
            time.sleep(0.005)
        # The smallest and the largest number of mappings of a file.
        self.always = functools.reduce(operator.and_, samples)
        self.ever = functools.reduce(operator.or_, samples)
        self.threads = len(os.listdir(where / "task"))
        self.descriptors: Counter[str] = Counter()
        for file in (where / "fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                self.descriptors[_kind(os.readlink(file))] += 1
        text = (where / "status").read_text()
        self.size_kb = int(text.partition("VmSize:")[2].split()[0])

    def worse_than(self, before: State, allowed: str = "") -> str:
        """What there is more of; "" if nothing. Mappings of that name are allowed."""
        found = []
        if self.threads > before.threads:
            found.append(f"{self.threads} threads instead of {before.threads}")
        opened = self.descriptors - before.descriptors
        if opened:
            found.append(f"descriptors: {', '.join(opened)}")
        more = self.always - before.ever
        left = [path for path in more if _is_of_tool(path) and path != allowed]
        if left:
            found.append(f"mapped: {', '.join(left)}")
        return "; ".join(found)

    def new_files(self, before: State) -> list[str]:
        """The files that have more mappings now than before."""
        return sorted(os.path.basename(path) for path in self.always - before.ever)


def _mapped(where: Path) -> list[str]:
    """The files of its mappings, and memory without a file that can be executed."""
    found = []
    for line in (where / "maps").read_text(errors="replace").splitlines():
        words = line.split(None, 5)
        if len(words) == 6 and words[5].startswith("/"):
            found.append(words[5])
        elif len(words) == 5 and "x" in words[1]:
            found.append(EXECUTABLE)
    return found


def _kind(link: str) -> str:
    """A descriptor without its number."""
    return link.partition("[")[0]


def _is_of_tool(path: str) -> bool:
    """Whether a mapping is memory of the tool, which must not stay.

    What the kernel calls /dev/zero is memory without a file, of the program itself.
    """
    return ".table" in path or "memfd:" in path or path == EXECUTABLE


class Program:
    """A subject of a shape, until it is closed."""

    def __init__(
        self, shape: str, where: Path, environ: dict[str, str], prefix: list[str]
    ) -> None:
        self.shape = shape
        self.where = where
        self.allowed = ""  # what may stay mapped
        where.mkdir(parents=True)
        flags = where / "flags"
        flags.write_bytes(bytes(subject.FILE_SIZE))
        with flags.open("r+b") as file:
            self.flags = mmap.mmap(file.fileno(), subject.FILE_SIZE)
        self._errors = (where / "stderr").open("wb")
        self._output = b""
        self.process = subprocess.Popen(
            # Forking beside the tool's thread is what is tried here.
            [*prefix, sys.executable, "-W", "ignore::DeprecationWarning", str(SUBJECT),
             shape, str(flags)],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )  # fmt: skip
        self.pid = self.process.pid
        try:
            self.line("it did not become ready")
            if prefix:  # it is a child of unshare
                children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
                self.pid = int(children.read_text())
        except BaseException:
            self.close()
            raise

    def line(self, otherwise: str) -> bytes:
        """The next line that it prints."""
        assert self.process.stdout
        until = time.monotonic() + PATIENCE_S
        while b"\n" not in self._output:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Failure(otherwise)
            part = os.read(self.process.stdout.fileno(), 1 << 16)
            if not part:
                code = self.process.wait(PATIENCE_S)
                raise Failure(f"it ended with status {code}: {self.errors()[-300:]}")
            self._output += part
        line, _, self._output = self._output.partition(b"\n")
        return line

    def ask(self, what: bytes = b"x") -> None:
        """Send a byte, which some shapes wait for."""
        if self.shape in ("reading", "timed"):
            assert self.process.stdin
            os.write(self.process.stdin.fileno(), what)

    def pace(self) -> tuple[int, int]:
        """How many epochs there were, and how long the last took, ns."""
        count, took = subject.PACE.unpack_from(self.flags, subject.PACE_AT)
        return count, took

    def check_alive(self) -> None:
        code = self.process.poll()
        if code is not None:
            raise Failure(f"it ended with status {code}")

    def settled(self, as_before: State | None = None) -> State:
        """Its state, as soon as it is no worse than before."""
        until = time.monotonic() + SETTLE_S
        while True:
            self.check_alive()
            now = State(self.pid)
            worse = now.worse_than(as_before, self.allowed) if as_before else ""
            if not worse:
                return now
            if time.monotonic() > until:
                raise Failure(f"left behind: {worse}")
            time.sleep(0.05)

    def finish(self, same_hooks: bool = True) -> None:
        """Have it end, and check its answer."""
        self.flags[0] = 1
        assert self.process.stdin
        self.process.stdin.close()
        said = json.loads(self.line("it did not end"))
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Failure("it printed its answer and did not end") from None
        if code:
            raise Failure(f"it ended with status {code}")
        if said["total"] != said["epochs"] * EPOCH:
            raise Failure(f"a wrong answer: {said}")
        if same_hooks and said["before"] != said["after"]:
            raise Failure(f"hooks: {said['before']}, and at the end {said['after']}")
        if self.errors():
            raise Failure(f"it printed {self.errors()[-300:]!r}")

    def errors(self) -> str:
        """What it printed on stderr."""
        return (self.where / "stderr").read_text(errors="replace").strip()

    def keep_traces(self, place: Path) -> None:
        """Save what tells why it does not go on."""
        place.mkdir(parents=True, exist_ok=True)
        for name in ("maps", "status", "stack", "wchan", "syscall"):
            with suppress(OSError):
                text = Path(f"/proc/{self.pid}/{name}").read_bytes()
                (place / name).write_bytes(text)
        if shutil.which("gdb") and self.process.poll() is None:
            with suppress(subprocess.TimeoutExpired), (place / "gdb").open("wb") as file:
                subprocess.run(
                    ["gdb", "-nx", "-batch", "-p", str(self.pid),
                     "-ex", "thread apply all backtrace"],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    timeout=PATIENCE_S,
                    check=False,
                )  # fmt: skip
        (place / "stdout").write_bytes(self._output)
        shutil.copy(self.where / "stderr", place / "stderr")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self._errors, self.flags):
            if file:
                with suppress(OSError):
                    file.close()
        shutil.rmtree(self.where, ignore_errors=True)
