# SPDX-License-Identifier: MIT
"""Ways into a program without a control socket, by making it execute a few lines.

The lines start a thread there that connects to a socket of the tool. From then on
everything is as with a control socket. Before anything in the program is touched, its
interpreter is started separately, and reports its version and whether it has the package.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import speed_bump
from speed_bump import _core
from speed_bump.experiment.program.directory import ENTER
from speed_bump.experiment.program.machine import is_alive
from speed_bump.experiment.program.ways import (
    AttachError,
    Link,
    NotOffered,
    environ_of,
    give,
    has_ended,
    owner,
    peer,
    sees,
    status_of,
)
from speed_bump.process import command_of

# The interpreter of the program prints a description of itself.
PROBE = """
import json, sys, sysconfig
found = {"version": sys.version_info[:3], "abi": sysconfig.get_config_var("SOABI"),
         "hex": sys.hexversion}
try:
    import speed_bump
    from speed_bump import _core
    found["package"] = [speed_bump.__version__, speed_bump.__file__, _core.__file__]
except ImportError as error:
    found["missing"] = str(error)
print(json.dumps(found))
"""
PROBE_S = 30.0
# The shortest wait for a program that was made to connect.
ANSWER_S = 1.0
# For a program that began to connect when its request was withdrawn.
LATE_S = 0.2
# For withdrawing the request before the program should have answered.
WITHDRAW_S = 0.5
# The oldest Python that the package is for.
MIN_VERSION = (3, 10)
# The last byte of the number of a released version.
FINAL = 0xF0
# CPython's words for a program that has switched it off, and for one that is ending.
DISABLED = "Remote debugging is not enabled"
ENDING = ("Can't find the main thread", "Can't find a running interpreter")

PTRACE = (
    " (this needs the right to trace it: root, CAP_SYS_PTRACE, or its own user if "
    "/proc/sys/kernel/yama/ptrace_scope is 0)"
)

# Executed in the program.
CODE = """
def come():
    import sys
    sys.path.append({directory!r})
    try:
        from speed_bump.link import visit
    except BaseException as error:
        try:
            with open({why!r}, "r+") as file:
                file.write(f"{{type(error).__name__}}: {{error}}")
        except OSError:  # the tool has given up
            pass
        return
    finally:
        sys.path.remove({directory!r})
    visit.call({path!r})
import _thread
try:
    _thread.start_new_thread(come, ())
except RuntimeError:  # the program is about to end
    pass
"""


@dataclass(frozen=True)
class Interpreter:
    """The interpreter of a program: its executable and the package to load.

    ``is_the_tools``: it is the same build as the tool's, as far as its memory goes.
    """

    path: str
    version: tuple[int, ...]
    directory: str
    extension: str
    is_the_tools: bool


def interpreter_of(pid: int, directory: str) -> Interpreter:
    """The interpreter of a program, with its own package or the tool's.

    Args:
        directory: the tool's, which the program must see at the same place

    Raises:
        AttachError: it is unknown, or there is no package for it
    """
    try:
        exe = os.readlink(f"/proc/{pid}/exe")
        same_root = os.path.samefile(f"/proc/{pid}/root", "/") and sees(pid, directory)
        cwd = os.readlink(f"/proc/{pid}/cwd")
    except OSError as error:
        raise NotOffered(
            f"process {pid}: {error.strerror}: it is another user's, or protected{PTRACE}"
        ) from None
    if not same_root:
        raise NotOffered(
            f"process {pid} is in a container, with other files than the tool: run "
            "speed-bump in it, or start the program with SPEED_BUMP_ATTACH=1"
        )
    environ = environ_of(pid)
    path = _called_as(pid, exe, cwd, environ.get("PATH", os.defpath))
    clean = {k: v for k, v in environ.items() if not k.startswith("SPEED_BUMP")}
    try:
        done = subprocess.run(
            [path, "-c", PROBE],
            env=clean,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_S,
            check=False,
            **as_owner(pid),
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        raise NotOffered(
            f"process {pid} runs {path}, which is not a python command that could report "
            "its version: start the program with SPEED_BUMP_ATTACH=1"
        ) from None
    return _checked(pid, path, found)


def _checked(pid: int, path: str, found: dict[str, Any]) -> Interpreter:
    version = tuple(int(part) for part in found["version"])
    if version < MIN_VERSION:
        raise AttachError(
            f"process {pid} runs Python {'.'.join(map(str, version))} ({path}): "
            f"speed_bump needs {'.'.join(map(str, MIN_VERSION))} or later"
        )
    package = found.get("package")
    if package:
        theirs, file, extension = package
        if theirs != speed_bump.__version__:
            raise AttachError(
                f"process {pid}: {path} has speed_bump {theirs}, and this is "
                f"{speed_bump.__version__}: install the same there: {path} -m pip "
                "install PATH-TO-SPEED-BUMP"
            )
    elif found["abi"] == sysconfig.get_config_var("SOABI"):
        file, extension = speed_bump.__file__, _core.__file__
    else:
        raise AttachError(
            f"process {pid}: speed_bump is not installed in {path} ({found['abi']}), and "
            f"this one is for {sysconfig.get_config_var('SOABI')}: install it there: "
            f"{path} -m pip install PATH-TO-SPEED-BUMP"
        )
    place = os.path.dirname(os.path.dirname(file))
    return Interpreter(path, version, place, extension, _is_the_tools(found))


def _is_the_tools(found: dict[str, Any]) -> bool:
    """Whether a description is that of an interpreter like the tool's."""
    releases = all(number & 0xFF == FINAL for number in (found["hex"], sys.hexversion))
    return found["abi"] == sysconfig.get_config_var("SOABI") and (
        releases or bool(found["hex"] == sys.hexversion)
    )


def _called_as(pid: int, exe: str, cwd: str, search: str) -> str:
    """The name it was called by, which decides its modules, as in a venv."""
    words = command_of(pid)
    path = words[0] if words else ""
    if "/" in path:
        path = os.path.join(cwd, path)
    else:
        path = shutil.which(path, path=search) or ""
    try:
        return path if os.path.samefile(path, f"/proc/{pid}/exe") else exe
    except OSError:
        return exe


def as_owner(pid: int) -> dict[str, Any]:
    """For subprocess: do not run another user's command with the tool's rights."""
    uid = owner(pid)
    if uid == os.geteuid():
        return {}
    return {
        "user": uid,
        "group": int(status_of(pid).get("Gid", f"{uid} {uid}").split()[1]),
        "extra_groups": [],
    }


class Waiting:
    """A socket, the lines that make a program connect to it, and the wait for that.

    Args:
        directory: of the files; readable by the program's user
    """

    def __init__(self, pid: int, interpreter: Interpreter, directory: str) -> None:
        stem = f"{directory}/{ENTER}{pid}"
        self._pid = pid
        self._why = f"{stem}.why"
        self._path = f"{stem}.socket"
        self.script = f"{stem}.py"
        self.clean()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self._path)
        self._socket.listen(4)
        with open(self._why, "wb"):
            pass
        with open(self.script, "w", encoding="utf-8") as file:
            file.write(
                CODE.format(
                    directory=interpreter.directory, why=self._why, path=self._path
                )
            )
        give(pid, directory, self._why, self._path, self.script)

    def accept(self, way: str, connect_until: float, until: float) -> Link | None:
        """Wait for the connection; None if there was none in time.

        Args:
            until: when one that has connected should have answered everything

        Raises:
            AttachError: the program has ended, or can't be attached to
        """
        self._socket.settimeout(0.1)
        while time.monotonic() < connect_until:
            with open(self._why, encoding="utf-8") as file:
                reason = file.read()
            if reason:
                raise AttachError(f"process {self._pid}: {reason}")
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                if has_ended(self._pid):
                    raise AttachError(f"process {self._pid} has ended") from None
                continue
            if peer(connection)[0] == self._pid:
                return Link(self._pid, way, connection, until)
            connection.close()
        return None

    def clean(self) -> None:
        for path in (self._why, self._path, self.script):
            with suppress(OSError):
                os.unlink(path)

    def close(self) -> None:
        self._socket.close()
        self.clean()


def through(
    pid: int,
    way: str,
    directory: str,
    found: Interpreter,
    do: Callable[[str], None],
    connect_until: float,
    until: float,
    undo: Callable[[], None] = lambda: None,
) -> Link | None:
    """Have a program connect; None if it did not in time.

    Args:
        do: makes the program execute the file with that path
        connect_until: when to stop waiting for it, s of ``time.monotonic()``; later if
            ``do`` took long
        until: when it should have answered everything
        undo: the program is not to execute it any more
    """
    waiting = Waiting(pid, found, directory)
    try:
        do(waiting.script)
        link = waiting.accept(way, max(connect_until, time.monotonic() + ANSWER_S), until)
        if link is None:
            # Before the file is removed, which the program may be about to open.
            undo()
            link = waiting.accept(way, time.monotonic() + LATE_S, until)
        return link
    except AttachError:
        raise
    except BaseException:  # Ctrl-C
        undo()
        raise
    finally:
        waiting.close()


# ----------------------------------------------------------------------- remote


def by_remote(
    pid: int, directory: str, until: float, connect_s: float | None = None
) -> Link:
    """CPython's own interface, from 3.14 on (PEP 768).

    Args:
        directory: of the files; readable by the program's user
        until: when it should have answered everything, s of ``time.monotonic()``
        connect_s: the time in which it must connect; None: all there is

    Raises:
        NotOffered: the program is older, or has switched it off
        AttachError: it can't be attached to
    """
    found = interpreter_of(pid, directory)
    if found.version < (3, 14):
        version = ".".join(map(str, found.version))
        raise NotOffered(f"process {pid} has Python {version}: remote needs 3.14")

    def ask(script: str) -> None:
        _remote_exec(pid, found, script)

    def withdraw() -> None:
        with suppress(AttachError):
            _remote_exec(pid, found, os.devnull)

    begin = time.monotonic()
    connect_until = until - WITHDRAW_S
    if connect_s is not None:
        connect_until = min(connect_until, begin + connect_s)
    link = through(pid, "remote", directory, found, ask, connect_until, until, withdraw)
    if link is None:
        raise NotOffered(
            f"process {pid} did not answer in {time.monotonic() - begin:.0f} s: its main "
            "thread was in C code or waiting all that time"
        )
    return link


def _remote_exec(pid: int, found: Interpreter, script: str) -> None:
    code = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
    # It knows the memory of its own build only.
    path = sys.executable if found.is_the_tools else found.path
    how = {} if found.is_the_tools else as_owner(pid)
    try:
        done = subprocess.run(
            [path, "-I", "-S", "-c", code, str(pid), script],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            check=False,
            **how,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotOffered(f"process {pid}: sys.remote_exec: {error}") from None
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        if DISABLED in reason:
            raise NotOffered(
                f"process {pid} does not allow remote debugging: it was started with "
                "PYTHON_DISABLE_REMOTE_DEBUG or -X disable-remote-debug, or its Python "
                "was built without it"
            )
        if any(words in reason for words in ENDING) or not is_alive(pid):
            raise AttachError(f"process {pid} has ended, or is about to")
        raise NotOffered(
            f"process {pid}: {reason or 'sys.remote_exec failed'}"
            + (PTRACE if "ermission" in reason or "permitted" in reason else "")
        )
