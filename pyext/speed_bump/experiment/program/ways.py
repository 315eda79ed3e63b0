# SPDX-License-Identifier: MIT
"""The ways into a running program, and the messages exchanged there."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from speed_bump.config import MAX_SEED
from speed_bump.link import message, place, visit
from speed_bump.link.message import Closed, MessageError

# A program that can be attached to answers in this time.
PATIENCE_S = 5.0
# What is left of it at least for the answers of one that has connected.
MIN_PATIENCE_S = 1.0
# The ways in words; a process without Python is slowed by the kernel alone.
BY = {
    "socket": "by its control socket",
    "remote": "by sys.remote_exec",
    "debugger": "by a debugger",
    "kernel": "by the kernel alone",
}


class AttachError(Exception):
    """The process can't be attached to; the message says why and what to do."""


class NotOffered(AttachError):
    """This way does not work for the program; another may."""


@dataclass(frozen=True)
class Entry:
    """What a debugger is to do.

    Args:
        text: address ranges of the interpreter's own code
        libraries: of the code of libraries that don't allocate memory, a safe place only
            if the main thread is on its ``stack``, and never in the interpreter for long
        stack: an address range
        waits_at: instruction and stack of a main thread that waits in the kernel; else 0
        until: when to stop looking for a safe place, s of ``time.time()``
        min_search_s: it looks for so long at least
    """

    pid: int
    extension: str
    script: str
    text: list[tuple[int, int]]
    libraries: list[tuple[int, int]]
    stack: tuple[int, int]
    waits_at: tuple[int, int]
    until: int
    min_search_s: int


class Link:
    """An attached program. It has no delays in force yet.

    Args:
        pid: in the tool's pid namespace
        way: the way in
        connection: to ``visit`` there; owned from now on
        until: when it should have answered everything, s of ``time.monotonic()``
    """

    def __init__(
        self, pid: int, way: str, connection: socket.socket, until: float
    ) -> None:
        """Receive its first message.

        Raises:
            AttachError: it refuses
        """
        self.pid = pid
        self.way = way
        self._connection = connection
        self._is_attached = False
        begin = time.monotonic()
        # For both answers together.
        self._patience_s = max(until - begin, MIN_PATIENCE_S)
        try:
            self._hear(message.HELLO)
        except BaseException:
            connection.close()
            raise
        self._patience_s -= time.monotonic() - begin

    def attach(
        self,
        table: str,
        targets: bytes,
        seed: int | None = None,
        files: Sequence[int] = (),
    ) -> tuple[int, ...]:
        """Put targets into force, counted in ``table``; returns where its stacks are.

        Args:
            seed: of delays that are drawn; None: a new one
            files: for a program that can't open ``table`` by its path: the table, and a
                pipe whose other end is open until the tool ends

        Raises:
            AttachError: it refuses
        """
        values = {
            "version": visit.version(),
            "table": b"" if files else os.fsencode(table),
            "targets": targets,
            "seed": b"" if seed is None else str(seed & MAX_SEED).encode(),
        }
        self._say(message.pack(message.ATTACH, values), files)
        layout = self._hear(message.ATTACHED)["layout"]
        self._is_attached = True
        self._patience_s = PATIENCE_S
        try:
            return tuple(int(word) for word in layout.split())
        except ValueError:
            raise AttachError(f"process {self.pid}: an unexpected answer") from None

    def is_open(self) -> bool:
        """Whether the same program is still running."""
        # It sends nothing without a request.
        watched = select.poll()
        watched.register(self._connection, select.POLLIN)
        return not watched.poll(0)

    def begin_to_leave(self) -> None:
        """Request the removal of everything."""
        if self._is_attached:
            with suppress(AttachError):
                self._say(message.pack(message.DETACH))

    def leave(self) -> str:
        """Wait until everything is removed; returns the refused C functions, a line each.

        Without an answer, the program notices that the connection is closed.
        """
        try:
            if self._is_attached:
                return self._hear(message.DETACHED)["refused"].decode(errors="replace")
        except AttachError:
            pass
        finally:
            self._is_attached = False
            self._connection.close()
        return ""

    def _say(self, data: bytes, files: Sequence[int] = ()) -> None:
        try:
            if files:
                data = data[socket.send_fds(self._connection, [data], list(files)) :]
            self._connection.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            raise AttachError(
                f"process {self.pid} closed the connection: it has ended, or was too "
                "busy to answer in time; try again"
            ) from None
        except OSError as error:
            raise AttachError(f"process {self.pid}: {error.strerror or error}") from None

    def _hear(self, expected: int) -> dict[str, bytes]:
        until = time.monotonic() + max(self._patience_s, MIN_PATIENCE_S)

        def read(size: int) -> bytes:
            # Also of a program that sends a byte now and then.
            self._connection.settimeout(max(until - time.monotonic(), 0.001))
            return self._connection.recv(size)

        try:
            kind, said = message.receive(read)
        except TimeoutError:
            raise AttachError(f"process {self.pid} {_silent(self.pid)}") from None
        except Closed:
            raise AttachError(f"process {self.pid} has ended, or is about to") from None
        except (OSError, MessageError) as error:
            raise AttachError(f"process {self.pid}: {error}") from None
        if kind == message.REFUSED:
            reason = said["reason"].decode(errors="replace")
            raise AttachError(f"process {self.pid} refuses: {reason}")
        if kind != expected:
            raise AttachError(f"process {self.pid}: an unexpected answer")
        return said


def by_socket(pid: int, _directory: str = "", until: float | None = None) -> Link:
    """The control socket of a program that was started with SPEED_BUMP_ATTACH=1.

    Args:
        until: when it should have answered, s of ``time.monotonic()``; None: in
            PATIENCE_S

    Raises:
        NotOffered: it has none
        AttachError: it refuses
    """
    path = _socket_path(pid)
    if path is None:
        raise NotOffered(
            f"process {pid} has no control socket: start it with SPEED_BUMP_ATTACH=1 in "
            "its environment, and speed_bump installed in its Python"
        )
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if until is None:
        until = time.monotonic() + PATIENCE_S
    # Its queue may be full: then it is not serving what is there.
    connection.settimeout(max(until - time.monotonic(), MIN_PATIENCE_S))
    try:
        connection.connect(path)
    except TimeoutError:
        connection.close()
        raise AttachError(f"process {pid} {_silent(pid)}") from None
    except (ConnectionRefusedError, FileNotFoundError):
        connection.close()
        raise NotOffered(f"process {pid} has closed its control socket") from None
    except OSError as error:
        connection.close()
        raise AttachError(f"{path}: {error.strerror or error}") from None
    there, uid = peer(connection)
    if there != pid or uid not in (os.geteuid(), owner(pid)):
        connection.close()
        raise AttachError(f"{path} is that of process {there} of user {uid}, not {pid}")
    return Link(pid, "socket", connection, until)


def _silent(pid: int) -> str:
    text = f"did not answer in {PATIENCE_S:.0f} s"
    if _blocks_signal(pid):
        return text + (
            ": its threads block SIGURG, which announces a connection; nothing was "
            "changed there (another way: --attach=remote or --attach=debugger)"
        )
    return text + (
        ": its main thread was in C code, or stopped, all that time; nothing was "
        "changed there; try again (or another way: --attach=debugger)"
    )


def owner(pid: int) -> int:
    """The user of a process.

    Raises:
        AttachError: there is no such process
    """
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        raise AttachError(f"there is no process {pid}") from None


def give(pid: int, directory: str, *files: str) -> None:
    """Give a process of another user files in a directory, but not the directory.

    That user must not be able to put a link there, which root would follow.
    """
    uid = owner(pid)
    if uid == os.geteuid():
        return
    with suppress(OSError):
        os.chmod(directory, 0o711)
        for path in files:
            os.chown(path, uid, -1)


def environ_of(pid: int) -> Mapping[str, str]:
    """The environment that a process was started with; empty if it may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def status_of(pid: int) -> Mapping[str, str]:
    """The contents of /proc/PID/status; empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return dict(
                line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line
            )
    except OSError:
        return {}


def has_ended(pid: int) -> bool:
    """Whether a process does not exist any more, or is only waited for."""
    return status_of(pid).get("State", "X")[0] in "XZ"


def sees(pid: int, path: str) -> bool:
    """Whether a process finds the same file at a path; True if that is unknown."""
    try:
        there = os.stat(f"/proc/{pid}/root{path}")
    except PermissionError:
        return True
    except OSError:
        return False
    return os.path.samestat(there, os.stat(path))


def _has_same_files(pid: int) -> bool:
    """Whether a process has the tool's root and mounts."""
    mounts = "/proc/{}/ns/mnt"
    return os.path.samefile(f"/proc/{pid}/root", "/") and os.path.samefile(
        mounts.format(pid), mounts.format("self")
    )


def _socket_path(pid: int) -> str | None:
    uid = owner(pid)
    # Its number in its own pid namespace, which may be a container's.
    inside = int(status_of(pid).get("NSpid", str(pid)).split()[-1])
    root = f"/proc/{pid}/root"
    try:
        space = place.namespace(pid)
        if _has_same_files(pid):
            root = ""
    except OSError:
        space, root = place.namespace(), ""
    environs = [environ_of(pid), os.environ]
    for environ in environs:
        for directory in place.directories(uid, environ, root):
            path = f"{directory}/{place.name(inside, space)}"
            try:
                place.check(directory, uid)
                if os.path.lexists(path):
                    return path
            except OSError:
                pass
    return None


def peer(connection: socket.socket) -> tuple[int, int]:
    """The pid and the uid of the other side."""
    size = struct.calcsize("iII")
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = struct.unpack("iII", found)
    return pid, uid


def _blocks_signal(pid: int) -> bool:
    """Whether every thread of a process blocks the signal of a connection."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    bit = 1 << (signal.SIGURG - 1)
    return all(int(status_of(int(t)).get("SigBlk", "0"), 16) & bit for t in tasks)
