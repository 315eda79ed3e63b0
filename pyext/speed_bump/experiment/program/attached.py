# SPDX-License-Identifier: MIT
"""Programs that are already running, instead of one that is started."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from speed_bump.experiment.program.debugger import by_debugger, has_debugger
from speed_bump.experiment.program.inject import by_remote
from speed_bump.experiment.program.launch import Child, Ended, Streams
from speed_bump.experiment.program.processes import is_python
from speed_bump.experiment.program.runner import NO_PYTHON, Runner
from speed_bump.experiment.program.ways import (
    BY,
    PATIENCE_S,
    AttachError,
    Link,
    NotOffered,
    by_socket,
    give,
    owner,
    sees,
)
from speed_bump.link.visit import KEEPER
from speed_bump.process import command_of

# Each with the time, s of ``time.monotonic()``, when the program should have answered.
WAYS: dict[str, Callable[..., Link]] = {
    "socket": by_socket,
    "remote": by_remote,
    "debugger": by_debugger,
}
# Interval at which the end of a program, or of the time, is noticed.
LOOK_S = 0.2
# A program that can be entered by ``sys.remote_exec()`` mostly answers in far less; later
# ways are to have time too.
REMOTE_S = 1.0


def enter(pid: int, way: str | None, directory: str) -> Link:
    """Enter a process, by the given way or by the first that works.

    Args:
        directory: for files shared with the process

    Raises:
        AttachError: no way works
    """
    owner(pid)
    refused: list[str] = []
    until = time.monotonic() + PATIENCE_S
    for name in [way] if way else WAYS:
        enter_by = WAYS[name]
        if name == "remote" and not way and has_debugger():
            enter_by = partial(enter_by, connect_s=REMOTE_S)
        try:
            return enter_by(pid, directory, until)
        except NotOffered as error:
            refused.append(str(error))
    raise AttachError("; ".join(refused))


@dataclass
class AttachedRunner(Runner):
    """Processes to attach to instead of a program to start.

    Args:
        pids: of the processes, the first is the main one
        way: the name of the way in; None: the first that works
        seconds: duration of ``run()``; None: until Ctrl-C, or until they end
    """

    pids: Sequence[int] = ()
    way: str | None = None
    seconds: float | None = None
    served: dict[int, str] = field(default_factory=dict)

    def start(
        self,
        stem: str,
        streams: Streams,
        before_exec: Callable[[int], None],
        *,
        calls: bool = False,
    ) -> Child:
        """Attach; ``stem`` as for a program that is started.

        Args:
            calls: ignored: C functions are identified from the start of a program only

        Raises:
            AttachError: one of them can't be attached to; none is attached to then
        """
        return Attached(self, stem, before_exec)

    @property
    def attached_to(self) -> Sequence[int]:
        return self.pids

    @property
    def attached(self) -> Mapping[int, str]:
        """The way into each process."""
        return self.served

    @property
    def text(self) -> str:
        """The processes and the ways in, for display."""
        return ", ".join(f"process {pid} ({BY[way]})" for pid, way in self.served.items())


class Attached(Child):
    """The attached processes, until they end or are left."""

    def __init__(
        self, runner: AttachedRunner, stem: str, before_exec: Callable[[int], None]
    ) -> None:
        """Attach to all of them, or none."""
        self.pid = runner.pids[0]
        self._runner = runner
        self._table = f"{stem}.table"
        self._links: list[Link] = []
        self._ended: Ended | None = None
        self._stack = ExitStack()
        try:
            self._attach(stem, before_exec)
        except BaseException:
            self._detach()
            raise
        # No delay was in force before.
        self._begin = time.monotonic_ns()

    @property
    def pids(self) -> set[int]:
        return set(self._runner.pids)

    def _attach(self, stem: str, before_exec: Callable[[int], None]) -> None:
        runner = self._runner
        self._pidfds = {pid: self._pidfd(pid) for pid in runner.pids}
        self._keep(self._table + KEEPER)
        before_exec(self.pid)
        with open(f"{stem}.targets", "rb") as file:
            targets = file.read()
        for pid in runner.pids:
            if not command_of(pid):
                raise AttachError(f"process {pid} has ended, or is a kernel thread")
            if not is_python(pid):
                runner.served[pid] = "kernel"
                continue
            self._hand_over(pid)
            link = enter(pid, runner.way, runner.directory)
            self._links.append(link)
            runner.served[pid] = link.way
        if not self._links and not targets.startswith(NO_PYTHON.encode()):
            raise AttachError(
                f"there is no CPython in process {self.pid}: only native functions can "
                "be slowed there, with --native"
            )
        for link in self._links:
            with self._files_for(link.pid) as files:
                layout = link.attach(self._table, targets, runner.seed, files)
            with open(f"{self._table}.layout.{link.pid}", "w", encoding="ascii") as file:
                file.write(" ".join(map(str, layout)))

    def _pidfd(self, pid: int) -> int:
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            raise AttachError(f"there is no process {pid}") from None
        self._stack.callback(os.close, fd)
        return fd

    def _keep(self, path: str) -> None:
        """Listen on a socket at which forked children wait for the end of the tool."""
        keeper = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._stack.callback(keeper.close)
        keeper.bind(path)
        # They stay in the queue: no connection is accepted.
        keeper.listen(4096)

    @contextmanager
    def _files_for(self, pid: int) -> Iterator[Sequence[int]]:
        """What a program in a container is given, which does not see the table."""
        if sees(pid, self._table):
            yield ()
            return
        with ExitStack() as sent:
            table = os.open(self._table, os.O_RDWR | os.O_CLOEXEC)
            sent.callback(os.close, table)
            end, kept = os.pipe()
            sent.callback(os.close, end)
            self._stack.callback(os.close, kept)
            yield table, end

    def _hand_over(self, pid: int) -> None:
        """Give another user's process access to the files. Only root gets this far."""
        give(pid, self._runner.directory, self._table, self._table + KEEPER)

    # ------------------------------------------------------------------- as a child

    def is_running(self) -> bool:
        """Whether all of them run and are attached."""
        if self._ended:
            return False
        watched = select.poll()
        for fd in self._pidfds.values():
            watched.register(fd, select.POLLIN)
        return not watched.poll(0) and all(link.is_open() for link in self._links)

    def end(self) -> None:
        """Detach from all of them."""
        self._finish(False)

    def wait(self) -> Ended:
        """Wait until one ends, the time is over, or Ctrl-C; then detach."""
        seconds = self._runner.seconds
        interrupted = False
        try:
            until = None if seconds is None else time.monotonic() + seconds
            while self.is_running() and (until is None or time.monotonic() < until):
                left = LOOK_S if until is None else until - time.monotonic()
                time.sleep(max(min(left, LOOK_S), 0))
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self._finish(interrupted)
        assert self._ended
        return self._ended

    def _finish(self, interrupted: bool) -> None:
        if self._ended is None:
            self._ended = Ended(0, time.monotonic_ns() - self._begin, interrupted)
            self._detach()

    def _detach(self) -> None:
        for link in self._links:
            link.begin_to_leave()
        for link in self._links:
            refused = link.leave()
            if refused:
                path = f"{self._table}.refused.{link.pid}"
                with suppress(OSError), open(path, "w", encoding="utf-8") as file:
                    file.write(refused)
        self._links = []
        self._stack.close()
