# SPDX-License-Identifier: MIT
"""Starting a program, held back before its first instruction, and waiting for its end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


class LaunchError(Exception):
    """The program could not be started; ``status`` is what a shell would exit with."""

    def __init__(self, command: str, code: int) -> None:
        """``code`` is the errno of execve(2)."""
        super().__init__(f"{command}: {os.strerror(code)}")
        self.status = 127 if code == 2 else 126


@dataclass(frozen=True)
class Ended:
    """How a program ended: a shell's exit status, and its time from exec to end, ns."""

    status: int
    wall_ns: int
    interrupted: bool


def run(
    command: Sequence[str],
    environ: Mapping[str, str],
    output: int | None,
    before_exec: Callable[[int], None],
) -> Ended:
    """Run ``command`` to its end.

    Args:
        output: descriptor for its stdout and stderr; None: ours
        before_exec: called with its pid while it waits to execute the program, so that
            the kernel's delays are in force from its first instruction

    Raises:
        LaunchError: there is no such program, or it can't be executed
    """
    gate_read, gate_write = os.pipe()
    error_read, error_write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(gate_write)
        os.close(error_read)
        _execute(command, environ, output, gate_read, error_write)
    os.close(gate_read)
    os.close(error_write)
    try:
        before_exec(pid)
        begin = time.monotonic_ns()
        os.write(gate_write, b"!")
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(error_read)
        raise
    finally:
        os.close(gate_write)
    status, interrupted = _wait(pid)
    wall_ns = time.monotonic_ns() - begin
    with os.fdopen(error_read, "rb") as errors:
        code = errors.read()
    if code:
        raise LaunchError(command[0], int(code))
    return Ended(status, wall_ns, interrupted)


def _execute(
    command: Sequence[str],
    environ: Mapping[str, str],
    output: int | None,
    gate: int,
    errors: int,
) -> None:
    """The child: wait for the gate, become the program. Never returns."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        if output is not None:
            os.dup2(output, 1)
            os.dup2(output, 2)
        if os.read(gate, 1):
            os.execvpe(command[0], list(command), dict(environ))
    except OSError as error:
        os.write(errors, str(error.errno).encode())
    finally:
        os._exit(127)


def _wait(pid: int) -> tuple[int, bool]:
    """Its exit status as a shell has it, and whether Ctrl-C was pressed.

    Ctrl-C goes to the program too, which may end in its own way; a second one ends it.
    """
    interrupted = False
    while True:
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            return (128 - status if status < 0 else status), interrupted
        except KeyboardInterrupt:
            if interrupted:
                os.kill(pid, signal.SIGKILL)
            interrupted = True
