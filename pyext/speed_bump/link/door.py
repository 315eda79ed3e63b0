# SPDX-License-Identifier: MIT
"""Inside a program started with SPEED_BUMP_ATTACH=1: the control socket.

A socket listens without a thread waiting at it: the kernel sends a signal when a tool
connects (O_ASYNC), and the handler lets the tool in. The signal is SIGURG, which is
rarely used otherwise and is ignored by default: a connection can't end a program that has
removed the handler.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import atexit
import fcntl
import os

from speed_bump.link import place, visit

SIGNAL = _signal.SIGURG
BACKLOG = 8

_socket_of: _Door | None = None


class _Door:
    """The socket, and the process that has it."""

    def __init__(self, directory: str) -> None:
        self.pid = os.getpid()
        space = place.namespace()
        place.sweep(directory, space)
        self.path = f"{directory}/{place.name(self.pid, space)}"
        self.socket = _socket.socket(
            _socket.AF_UNIX,
            _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK,
        )
        self.socket.settimeout(0.0)
        try:
            # Left by an earlier process with this number.
            if os.path.lexists(self.path):
                os.unlink(self.path)
            self.socket.bind(self.path)
            os.chmod(self.path, 0o600)
            fd = self.socket.fileno()
            fcntl.fcntl(fd, fcntl.F_SETOWN, self.pid)
            fcntl.fcntl(fd, fcntl.F_SETSIG, SIGNAL)
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | fcntl.FASYNC)
            self.socket.listen(BACKLOG)
        except BaseException:
            self.socket.close()
            raise

    def close(self) -> None:
        """Refuse all connections from now on."""
        self.socket.close()
        if os.getpid() == self.pid:
            try:
                os.unlink(self.path)
            except OSError:
                pass


def open_door() -> None:
    """Let tools attach from now on. Only in the main interpreter.

    Raises:
        OSError: there is no place for the socket, or the signal has a handler
    """
    global _socket_of  # noqa: PLW0603
    if _socket_of:
        return
    if _signal.getsignal(SIGNAL) not in (_signal.SIG_DFL, _signal.SIG_IGN):
        raise OSError("SIGURG has a handler already")
    directory = place.make(os.geteuid(), os.environ)
    # Install the handler first: a signal without a handler would be lost.
    try:
        _signal.signal(SIGNAL, _knocked)
    except ValueError:  # in another interpreter than the main one
        return
    _socket_of = _Door(directory)
    os.register_at_fork(after_in_child=_after_fork)
    atexit.register(_close)


def _knocked(_signal: int, _frame: object) -> None:
    """Let tools in. The main thread may be between any two instructions."""
    door = _socket_of
    while door:
        try:
            fd, _ = door.socket._accept()  # type: ignore[attr-defined]
        except OSError:  # no more connections
            return
        try:
            visit.begin(_socket.socket(fileno=fd))
        except OSError:
            pass  # the tool has closed the connection


def _after_fork() -> None:
    global _socket_of  # noqa: PLW0603
    door, _socket_of = _socket_of, None
    if door:
        door.socket.close()
        try:
            _socket_of = _Door(os.path.dirname(door.path))
        except OSError:
            pass  # the child has no control socket


def _close() -> None:
    global _socket_of
    door, _socket_of = _socket_of, None
    if door:
        door.close()
