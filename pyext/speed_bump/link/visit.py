# SPDX-License-Identifier: MIT
"""Inside a program: serving an attached tool, which starts and ends delays.

A thread serves the tool for as long as it is attached. It waits for messages of the tool,
or for the end of the connection, even by SIGKILL, and then removes everything.
"""

from __future__ import annotations

import _socket
import _thread
import os
import struct
import sys

from speed_bump import _core, config, control
from speed_bump.link import message
from speed_bump.link.message import (
    ATTACH,
    ATTACHED,
    DETACH,
    DETACHED,
    HELLO,
    REFUSED,
    MessageError,
)

# The tool's activity for each message.
PATIENCE_S = 5.0
# The switch interval while the thread has work, s. Each of many threads that want the GIL
# comes first whenever this one has released it.
HURRY_S = 0.0005
# A forked child waits there for the end of the tool that is attached to its parent.
KEEPER = ".keeper"

_lock = _thread.allocate_lock()
_here: _Visit | None = None
# The original switch interval, s; None: it is not changed now.
_unhurried: float | None = None


class _Visit:
    """One tool, from attaching to detaching."""

    def __init__(self, connection: _socket.socket) -> None:
        self.connection = connection
        self.table = ""  # "": nothing is in force


def version() -> bytes:
    """What both sides must have in common."""
    from speed_bump import __version__

    return __version__.encode()


def peer(connection: _socket.socket) -> tuple[int, int]:
    """The pid and the uid of the other side."""
    size = struct.calcsize("iII")
    found = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, size)
    pid, uid, _ = struct.unpack("iII", found)
    return pid, uid


def begin(connection: _socket.socket) -> str:
    """Let a tool in; returns "" or the reason for refusing. Owns ``connection`` then."""
    global _here  # noqa: PLW0603
    reason = ""
    _, uid = peer(connection)
    if uid not in (0, os.geteuid()):
        reason = f"user {uid} may not attach to a program of user {os.geteuid()}"
    elif not _lock.acquire(False):
        reason = "another tool is attached"
    else:
        _here = _Visit(connection)
        try:
            _thread.start_new_thread(_serve, (_here,))
        except RuntimeError:
            _here = None
            _lock.release()
            reason = "the program can't start a thread: it is about to end"
    if reason:
        _refuse(connection, reason)
        connection.close()
    return reason


def call(path: str) -> None:
    """Connect to a waiting tool, and let it in. For code that the tool had executed."""
    connection = _socket.socket(
        _socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC
    )
    connection.settimeout(PATIENCE_S)
    try:
        connection.connect(path)
    except OSError:
        connection.close()  # it has not waited that long
        return
    begin(connection)


def after_fork() -> None:
    """In a forked child: it has no such thread, and the tool belongs to its parent."""
    global _here, _lock  # noqa: PLW0603
    visit, _here = _here, None
    _lock = _thread.allocate_lock()
    # The child does not have the thread that would restore the switch interval.
    _calm_down()
    if visit is None:
        return
    visit.connection.close()
    if visit.table:
        _lock.acquire()
        try:
            _thread.start_new_thread(_wait_for_end, (visit.table,))
        except RuntimeError:
            _lock.release()


def _refuse(connection: _socket.socket, reason: str) -> None:
    try:
        connection.settimeout(0.0)
        connection.send(message.pack(REFUSED, {"reason": reason.encode()}))
    except OSError:
        pass


class _Hurry:
    """While inside, threads take turns sooner."""

    def __enter__(self) -> None:
        global _unhurried  # noqa: PLW0603
        before = sys.getswitchinterval()
        if before > HURRY_S:
            _unhurried = before
            sys.setswitchinterval(HURRY_S)

    def __exit__(self, *exc_info: object) -> None:
        _calm_down()


def _calm_down() -> None:
    """Restore the switch interval."""
    global _unhurried
    before, _unhurried = _unhurried, None
    # Unless the program has set it meanwhile; it is kept in whole microseconds.
    if before is not None and abs(sys.getswitchinterval() - HURRY_S) < 1e-5:
        sys.setswitchinterval(before)


def _serve(visit: _Visit) -> None:
    global _here  # noqa: PLW0603
    last = b""
    try:
        last = _converse(visit)
    except MessageError as error:
        last = message.pack(REFUSED, {"reason": str(error).encode()})
    except (OSError, EOFError):
        pass
    finally:
        try:
            if visit.table:
                with _Hurry():
                    _take_out()
        finally:
            visit.table = ""
            _here = None
            _lock.release()
    # After this, the same or another tool may attach again at once.
    connection = visit.connection
    try:
        connection.settimeout(PATIENCE_S)
        connection.sendall(last)
    except OSError:
        pass
    finally:
        connection.close()


def _converse(visit: _Visit) -> bytes:
    """The last message, when everything is removed."""
    refused = _begin(visit)
    if refused:
        return refused
    connection = visit.connection
    connection.settimeout(None)
    kind, _ = message.receive(connection.recv)
    if kind != DETACH:
        raise MessageError("a tool that is attached can only detach")
    refusals = _core.refused()
    text = "".join(f"{pattern}\t{reason}\n" for pattern, reason in refusals)
    return message.pack(DETACHED, {"refused": text.encode(errors="replace")})


def _begin(visit: _Visit) -> bytes:
    """Receive and serve messages; returns b"", or a refusal to be sent at the end."""
    connection = visit.connection
    connection.settimeout(PATIENCE_S)
    hello = {"version": version(), "pid": str(os.getpid()).encode()}
    connection.sendall(message.pack(HELLO, hello))
    kind, said = message.receive(connection.recv)
    if kind != ATTACH:
        raise MessageError("the first message is not to attach")
    # Not before: the tool may take its time.
    with _Hurry():
        try:
            _put_in(visit, said)
        except Exception as error:
            reason = (str(error) or type(error).__name__).encode()
            return message.pack(REFUSED, {"reason": reason})
        layout = " ".join(map(str, _core.layout())).encode()
        connection.sendall(message.pack(ATTACHED, {"layout": layout}))
    return b""


def _put_in(visit: _Visit, said: dict[str, bytes]) -> None:
    if said["version"] != version():
        raise RuntimeError(
            f"the program has speed_bump {version().decode()}, and the tool is "
            f"{said['version'].decode(errors='replace')}: install the same there"
        )
    if control.is_installed():
        raise RuntimeError("delays are in force there already, by install() or otherwise")
    path = os.fsdecode(said["table"])
    targets = config.parse_targets(said["targets"], "attach")
    table = _core.Table.open(path, "attach")
    seed = config.seed_here(int(said["seed"])) if said["seed"] else None
    control.install_quietly(config.Config(targets, seed=seed), table)
    # From here on it must be removed, whatever happens.
    visit.table = path
    table.share()
    table.progress(control.PROCESS_POINT, 1)


def _take_out() -> None:
    """Remove the hook and the tool's memory."""
    # Later counts, by slow() or progress(), are the program's own.
    table = _core.Table(None, 1, label=None)
    control.install_quietly(config.Config(), table)
    control.uninstall()
    table.share()


def _wait_for_end(table: str) -> None:
    """In a child that was forked while the tool was attached to its parent."""
    connection = _socket.socket(
        _socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC
    )
    try:
        connection.connect(table + KEEPER)
        while connection.recv(1):
            pass
    except OSError:
        pass
    finally:
        connection.close()
        try:
            _take_out()
        finally:
            _lock.release()
