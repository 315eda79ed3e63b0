# SPDX-License-Identifier: MIT
"""Starting a program, held back before its first instruction, and waiting for its end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from speed_bump.experiment.program.machine import busy_ns, part_of_own, schedstat

# The terminal sends Ctrl-C to the program too; these signals are sent to the tool alone.
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# A program that ends on request needs no more time than this.
GRACE_S = 5.0
STEP_S = 0.02


class LaunchError(Exception):
    """The program could not be started; ``status`` is a shell's exit status for it."""

    def __init__(self, command: str, code: int) -> None:
        """``code`` is the errno of execve(2)."""
        super().__init__(f"{command}: {os.strerror(code)}")
        self.status = 127 if code == 2 else 126


class Terminated(BaseException):
    """The tool was terminated by a signal; no program of the tool runs any more."""

    def __init__(self, number: int) -> None:
        """``number`` is the signal's."""
        super().__init__(f"ended by signal {number}")
        self.status = 128 + number


class _Forwarding:
    """The received signals of ``FORWARDED``, and the program to pass them to."""

    def __init__(self) -> None:
        self.pid = 0
        self.received = 0

    def handle(self, number: int, _: FrameType | None) -> None:
        """Pass a signal to the program; the second is SIGKILL. Without a program, end."""
        first = not self.received
        self.received = self.received or number
        if self.pid:
            os.kill(self.pid, number if first else signal.SIGKILL)
        elif first:
            raise Terminated(number)


_forwarding = _Forwarding()


@contextmanager
def forwarding_signals() -> Iterator[None]:
    """While inside, signals that end a program first end the one that ``run`` runs.

    Signals that were ignored at start, as under nohup, stay ignored.

    Raises:
        Terminated: a signal was received, and the program has ended
    """
    before = {}
    for number in FORWARDED:
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, _forwarding.handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _forwarding.received = 0


@dataclass(frozen=True)
class Ended:
    """How a program ended: a shell's exit status, and its time from exec to end, ns.

    For ``wait_ns`` of that time its first thread was runnable while other programs had
    its CPU, and for ``blocked_ns`` it slept; 0 if the kernel does not say.
    """

    status: int
    wall_ns: int
    interrupted: bool
    wait_ns: int = 0
    blocked_ns: int = 0


@dataclass(frozen=True)
class Streams:
    """Descriptors for a program's standard streams; None: those of the tool."""

    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None


class Child:
    """A program that was started and not yet waited for."""

    def __init__(self, command: Sequence[str], pid: int, errors: int) -> None:
        """Owns ``errors``, from which the errno of a failed exec is read."""
        self.pid = pid
        self._command = command
        self._errors = errors
        self._busy_ns = busy_ns()
        self._begin = time.monotonic_ns()

    def is_running(self) -> bool:
        done = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        return done is None

    @property
    def pids(self) -> set[int]:
        """The processes of the program that no other of its processes started."""
        return {self.pid}

    def end(self) -> None:
        """Terminate it, and kill it if it does not end; only before ``wait()``."""
        if not self.is_running():
            return
        os.kill(self.pid, signal.SIGTERM)
        until = time.monotonic() + GRACE_S
        while self.is_running():
            if time.monotonic() >= until:
                os.kill(self.pid, signal.SIGKILL)
                return
            time.sleep(STEP_S)

    def wait(self) -> Ended:
        """Wait for its end.

        Raises:
            LaunchError: there was no such program, or it could not be executed
            Terminated: a signal came while ``forwarding_signals``
        """
        status, interrupted, spent = _wait(self.pid)
        wall_ns = time.monotonic_ns() - self._begin
        wait_ns = spent.waited_for_others(busy_ns() - self._busy_ns)
        with os.fdopen(self._errors, "rb") as errors:
            code = errors.read()
        if _forwarding.received:
            raise Terminated(_forwarding.received)
        if code:
            raise LaunchError(self._command[0], int(code))
        blocked_ns = max(wall_ns - spent.first_ns - spent.first_waited_ns, 0)
        return Ended(status, wall_ns, interrupted, wait_ns, blocked_ns)


def start(
    command: Sequence[str],
    environ: Mapping[str, str],
    streams: Streams,
    before_exec: Callable[[int], None],
) -> Child:
    """Start ``command``.

    Args:
        streams: where it reads and writes
        before_exec: called with its pid while it waits to execute the program, so that
            the kernel's delays are in force from its first instruction

    Raises:
        Terminated: a signal came while ``forwarding_signals``
    """
    gate_read, gate_write = os.pipe()
    error_read, error_write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    # No signal may arrive while there is a child that the handler can't find yet.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    pid = os.fork()
    if pid == 0:
        os.close(gate_write)
        os.close(error_read)
        _execute(command, environ, streams, gate_read, error_write, mask)
    _forwarding.pid = pid
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(gate_read)
    os.close(error_write)
    try:
        before_exec(pid)
        child = Child(command, pid, error_read)
        with suppress(BrokenPipeError):  # a signal ended it at the gate
            os.write(gate_write, b"!")
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        _reap(pid)
        os.close(error_read)
        if _forwarding.received:
            raise Terminated(_forwarding.received) from None
        raise
    finally:
        os.close(gate_write)
    return child


def _execute(
    command: Sequence[str],
    environ: Mapping[str, str],
    streams: Streams,
    gate: int,
    errors: int,
    mask: Set[int],
) -> None:
    """The child: wait for the gate, then execute the program. Never returns."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        for number in FORWARDED:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for ours, fd in enumerate((streams.stdin, streams.stdout, streams.stderr)):
            if fd is not None:
                os.dup2(fd, ours)
        if os.read(gate, 1):
            os.execvpe(command[0], list(command), dict(environ))
    except OSError as error:
        os.write(errors, str(error.errno).encode())
    finally:
        os._exit(127)


@dataclass(frozen=True)
class _Spent:
    """CPU time of a program, and of its first thread, and how long that waited for a CPU.

    Times are ns.
    """

    all_ns: int
    first_ns: int
    first_waited_ns: int

    def waited_for_others(self, busy: int) -> int:
        """How long the first thread waited for CPUs that other programs had.

        Args:
            busy: how long all CPUs that it may use were busy, ns
        """
        own = part_of_own(self.all_ns, self.first_ns, busy)
        return round(self.first_waited_ns * (1 - own))


def _wait(pid: int) -> tuple[int, bool, _Spent]:
    """The exit status as in a shell, whether Ctrl-C was pressed, and the CPU time.

    Ctrl-C goes to the program too, which may end in its own way; a second one kills it.
    """
    interrupted = False
    while True:
        try:
            reaped, spent = _reap(pid)
            status = os.waitstatus_to_exitcode(reaped)
            return (128 - status if status < 0 else status), interrupted, spent
        except KeyboardInterrupt:
            if interrupted:
                os.kill(pid, signal.SIGKILL)
            interrupted = True


def _reap(pid: int) -> tuple[int, _Spent]:
    """The wait status, and the CPU time.

    Afterwards no signal is sent to its number.
    """
    # Until it is reaped, no other process can have the number.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    _forwarding.pid = 0
    first = 0, 0
    with suppress(OSError, ValueError):
        first = schedstat(pid, pid)
    _, status, usage = os.wait4(pid, 0)
    return status, _Spent(round(1e9 * (usage.ru_utime + usage.ru_stime)), *first)
