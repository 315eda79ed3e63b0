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

# The name that the thread has in the kernel: for people who look at the program, and for
# the tool, which does not sample it.
THREAD = b"speed-bump"
# The tool's activity for each message.
PATIENCE_S = 5.0
# A tool gets into all processes of a tree, by a debugger one after the other, before it
# puts delays into force. If it ends meanwhile, the connection is closed at once.
ATTACH_S = 600.0
# The switch interval while the thread works, s. If many threads wait for the GIL, each of
# them runs first whenever this one has released it.
HURRY_S = 0.0005
# A forked child waits there for the end of the tool that is attached to its parent.
KEEPER = ".keeper"
# A tool sends two files, or none.
MAX_FILES = 2
# This many refused connections are reported in one line.
MAX_REFUSED = 32

_lock = _thread.allocate_lock()
_here: _Visit | None = None
# Connections refused because another tool was attached.
_refused = 0
# The kinds of lines that were printed.
_said: set[str] = set()
# The original switch interval, s; None: it is not changed now.
_unhurried: float | None = None


class _Visit:
    """One tool, from attaching to detaching."""

    def __init__(self, connection: _socket.socket) -> None:
        self.connection = connection
        self.table = ""  # "": nothing is in force
        # Received from a tool whose files this process does not see: the table, and a
        # pipe that the tool keeps open.
        self.files: list[int] = []

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes, and the files that come with them."""
        ints = struct.Struct("i")
        data, extra, _, _ = self.connection.recvmsg(
            size, _socket.CMSG_SPACE(MAX_FILES * ints.size), _socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, text in extra:
            if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
                whole = text[: len(text) - len(text) % ints.size]
                self.files += [fd for (fd,) in ints.iter_unpack(whole)]
        while len(self.files) > MAX_FILES:
            os.close(self.files.pop())
        return data

    def close(self) -> None:
        """Close all that was received."""
        while self.files:
            os.close(self.files.pop())
        self.connection.close()


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
    global _here, _refused  # noqa: PLW0603
    reason = ""
    _, uid = peer(connection)
    if uid not in (0, os.geteuid()):
        reason = f"user {uid} may not attach to a program of user {os.geteuid()}"
        _say_once("user", f"user {uid} tried to attach, and was refused")
    elif not _lock.acquire(False):
        reason = "another tool is attached"
        _refused += 1
        if _refused == MAX_REFUSED:
            _say_once("flood", f"{_refused} tools were refused: another is attached")
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
    _lock = _thread.allocate_lock()
    # The child does not have the thread that would restore the switch interval.
    _calm_down()
    visit = _here
    if visit is None:
        return
    visit.connection.close()
    if visit.table:
        _lock.acquire()
        try:
            # It stays here for children of this child.
            _thread.start_new_thread(_outlive, (visit,))
            return
        except RuntimeError:
            _lock.release()
    _here = None
    visit.close()


def _say_once(kind: str, text: str) -> None:
    """Print a line, the first time in this process and its children."""
    if kind in _said:
        return
    _said.add(kind)
    try:
        # Not here: the interrupted code may have locked stderr.
        _thread.start_new_thread(control.say, (f"{text} (this is said once)",))
    except RuntimeError:
        pass  # the program is about to end


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


def _name_thread() -> None:
    if _thread.get_native_id() == os.getpid():
        return  # gevent may run it in the main thread
    try:
        file = os.open("/proc/thread-self/comm", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return  # without it, time in this thread counts as the program's
    try:
        os.write(file, THREAD)
    except OSError:
        pass
    finally:
        os.close(file)


def _serve(visit: _Visit) -> None:
    global _here  # noqa: PLW0603
    _name_thread()
    last = b""
    is_gone = False
    try:
        last = _converse(visit)
    except MessageError as error:
        _say_once("message", f"a tool sent a damaged message, and was refused: {error}")
        last = message.pack(REFUSED, {"reason": str(error).encode()})
    except TimeoutError:
        pass
    except (OSError, EOFError):
        is_gone = True
    finally:
        try:
            if visit.table:
                with _Hurry():
                    _take_out()
                if is_gone and not visit.files:
                    _remove(visit.table)
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
        visit.close()


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
    connection.settimeout(ATTACH_S)
    kind, said = message.receive(visit.read)
    connection.settimeout(PATIENCE_S)
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
    if not path and len(visit.files) == MAX_FILES:
        path = f"/proc/self/fd/{visit.files[0]}"
    targets = config.parse_targets(said["targets"], "attach")
    table = _core.Table.open(path, "attach")
    seed = config.seed_here(int(said["seed"])) if said["seed"] else None
    # From here on it must be removed, whatever happens, also in a child that is forked
    # meanwhile.
    visit.table = path
    control.install_quietly(config.Config(targets, seed=seed), table)
    table.share()
    table.progress(control.PROCESS_POINT, 1)


def _take_out() -> None:
    """Remove the hook and the tool's memory."""
    # Later counts, by slow() or progress(), are the program's own.
    table = _core.Table(None, 1, label=None)
    control.install_quietly(config.Config(), table)
    control.uninstall()
    table.share()


def _remove(path: str) -> None:
    """Remove the memory of a tool that was killed; the next tool removes the rest."""
    try:
        os.unlink(path)
    except OSError:
        pass  # another program has removed it, or it is another user's


def _outlive(visit: _Visit) -> None:
    """In a process forked while a tool was attached: wait for its end."""
    global _here  # noqa: PLW0603
    _name_thread()
    try:
        if len(visit.files) == MAX_FILES:
            _wait_for(visit.files[1])
        else:
            _wait_at(visit.table + KEEPER)
    finally:
        try:
            _take_out()
        finally:
            visit.table = ""
            _here = None
            _lock.release()
            visit.close()


def _wait_at(path: str) -> None:
    connection = _socket.socket(
        _socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC
    )
    try:
        connection.connect(path)
        while connection.recv(1):
            pass
    except OSError:
        pass
    finally:
        connection.close()


def _wait_for(end: int) -> None:
    try:
        while os.read(end, 1):
            pass
    except OSError:
        pass


os.register_at_fork(after_in_child=after_fork)
