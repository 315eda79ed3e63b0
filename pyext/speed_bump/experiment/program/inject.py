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
from speed_bump.experiment.program.ways import (
    PATIENCE_S,
    AttachError,
    Link,
    NotOffered,
    environ_of,
    owner,
    peer,
    status_of,
)
from speed_bump.process import command_of

# The interpreter of the program prints a description of itself.
PROBE = """
import json, sys, sysconfig
found = {"version": sys.version_info[:3], "abi": sysconfig.get_config_var("SOABI")}
try:
    import speed_bump
    from speed_bump import _core
    found["package"] = [speed_bump.__version__, speed_bump.__file__, _core.__file__]
except ImportError as error:
    found["missing"] = str(error)
print(json.dumps(found))
"""
PROBE_S = 30.0

# Executed in the program.
CODE = """
def come():
    import sys
    sys.path.append({directory!r})
    try:
        from speed_bump.link import visit
    except BaseException as error:
        with open({why!r}, "w") as file:
            file.write(f"{{type(error).__name__}}: {{error}}")
        return
    finally:
        sys.path.remove({directory!r})
    visit.call({path!r})
import _thread
_thread.start_new_thread(come, ())
"""

# Interval at which a debugger checks whether the program is in a safe place.
TRIES = 100
DEBUGGER_S = 20.0


@dataclass(frozen=True)
class Interpreter:
    """The interpreter of a program: its executable and the package to load."""

    path: str
    version: tuple[int, ...]
    directory: str
    extension: str


def interpreter_of(pid: int) -> Interpreter:
    """The interpreter of a program, with its own package or the tool's.

    Raises:
        AttachError: it is unknown, or there is no package for it
    """
    try:
        exe = os.readlink(f"/proc/{pid}/exe")
        same_root = os.path.samefile(f"/proc/{pid}/root", "/")
        cwd = os.readlink(f"/proc/{pid}/cwd")
    except OSError as error:
        raise NotOffered(
            f"process {pid}: {error.strerror}: it is another user's, or protected"
        ) from None
    if not same_root:
        raise NotOffered(
            f"process {pid} is in a container: run speed-bump in it, or start the "
            "program with SPEED_BUMP_ATTACH=1"
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
    return Interpreter(path, version, os.path.dirname(os.path.dirname(file)), extension)


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
        "group": int(status_of(pid)["Gid"].split()[1]),
        "extra_groups": [],
    }


class _Waiting:
    """A socket, the lines that make a program connect to it, and the wait for that.

    Args:
        directory: of the files; readable by the program's user
    """

    def __init__(self, pid: int, interpreter: Interpreter, directory: str) -> None:
        stem = f"{directory}/enter-{pid}"
        self._pid = pid
        self._why = f"{stem}.why"
        self._path = f"{stem}.socket"
        self.script = f"{stem}.py"
        self.clean()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self._path)
        self._socket.listen(4)
        with open(self.script, "w", encoding="utf-8") as file:
            file.write(
                CODE.format(
                    directory=interpreter.directory, why=self._why, path=self._path
                )
            )
        for path in (directory, self._path, self.script):
            with suppress(OSError):
                os.chown(path, owner(pid), -1)

    def accept(self, way: str, seconds: float) -> Link | None:
        """Wait for the connection; None if there was none in time.

        Raises:
            AttachError: the program connected and can't be attached to
        """
        until = time.monotonic() + seconds
        self._socket.settimeout(0.1)
        while time.monotonic() < until:
            if os.path.exists(self._why):
                with open(self._why, encoding="utf-8") as file:
                    raise AttachError(f"process {self._pid}: {file.read()}")
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            if peer(connection)[0] == self._pid:
                return Link(self._pid, way, connection)
            connection.close()
        return None

    def clean(self) -> None:
        """Remove the files."""
        for path in (self._why, self._path, self.script):
            with suppress(OSError):
                os.unlink(path)

    def close(self) -> None:
        """Wait no more."""
        self._socket.close()
        self.clean()


def _through(
    pid: int, way: str, directory: str, found: Interpreter, do: Callable[[str], None]
) -> Link | None:
    waiting = _Waiting(pid, found, directory)
    try:
        do(waiting.script)
        return waiting.accept(way, PATIENCE_S)
    finally:
        waiting.close()


def _check_tracer(pid: int) -> None:
    tracer = status_of(pid).get("TracerPid", "0")
    if tracer != "0":
        name = " ".join(command_of(int(tracer))[:1])
        raise AttachError(
            f"process {pid} is traced already, by {name or 'process'} {tracer}: end that "
            "first"
        )


# ----------------------------------------------------------------------- remote


def by_remote(pid: int, directory: str) -> Link:
    """CPython's own interface, from 3.14 on (PEP 768).

    Raises:
        NotOffered: the program is older, or has switched it off
        AttachError: it can't be attached to
    """
    found = interpreter_of(pid)
    if found.version < (3, 14):
        version = ".".join(map(str, found.version))
        raise NotOffered(f"process {pid} has Python {version}: remote needs 3.14")
    link = _through(
        pid, "remote", directory, found, lambda script: _remote_exec(pid, found, script)
    )
    if link is None:
        # Withdraw the request, so that the program does not execute it later.
        with suppress(AttachError):
            _remote_exec(pid, found, os.devnull)
        raise NotOffered(
            f"process {pid} did not answer in {PATIENCE_S:.0f} s: its main thread was in "
            "C code or waiting all that time"
        )
    return link


def _remote_exec(pid: int, found: Interpreter, script: str) -> None:
    code = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
    mine = sys.version_info[:2] == found.version[:2]
    path = sys.executable if mine else found.path
    how = {} if mine else as_owner(pid)
    done = subprocess.run(
        [path, "-I", "-S", "-c", code, str(pid), script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROBE_S,
        check=False,
        **how,
    )
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise NotOffered(
            f"process {pid}: {reason or 'sys.remote_exec failed'}"
            + (PTRACE if "ermission" in reason or "permitted" in reason else "")
        )


PTRACE = (
    " (this needs the right to trace it: root, CAP_SYS_PTRACE, or its own user if "
    "/proc/sys/kernel/yama/ptrace_scope is 0)"
)


# --------------------------------------------------------------------- debugger


def by_debugger(pid: int, directory: str) -> Link:
    """Gdb, which loads the extension of the package into the program and detaches.

    It sets no breakpoint, so that the program is safe whenever gdb ends. It retries until
    the main thread is in the interpreter itself, or waits in the kernel, where it holds
    no lock of the allocator or of the loader.

    Raises:
        NotOffered: there is no gdb
        AttachError: it can't be attached to
    """
    gdb = shutil.which("gdb")
    if gdb is None:
        raise NotOffered("there is no gdb: install the package gdb")
    _check_tracer(pid)
    found = interpreter_of(pid)
    text = _text_of_interpreter(pid)
    if not _has_loader(f"/proc/{pid}/exe"):
        raise AttachError(
            f"process {pid} is linked statically and can't load the extension: start it "
            "with SPEED_BUMP_ATTACH=1"
        )
    link = _through(
        pid,
        "debugger",
        directory,
        found,
        lambda script: _debug(gdb, pid, found.extension, script, text),
    )
    if link is None:
        raise AttachError(
            f"process {pid} did not answer in {PATIENCE_S:.0f} s: C code held the GIL "
            "all that time; nothing was changed there; try again"
        )
    return link


def _text_of_interpreter(pid: int) -> list[tuple[int, int]]:
    """The address range of the interpreter's own code."""
    found = []
    with suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        exe = os.readlink(f"/proc/{pid}/exe")
        for line in file:
            words = line.split(None, 5)
            if len(words) < 6 or "x" not in words[1]:
                continue
            path = words[5].rstrip("\n")
            if path == exe or os.path.basename(path).startswith("libpython3"):
                first, last = (int(word, 16) for word in words[0].split("-"))
                found.append((first, last))
    return found


def _waits_at(pid: int) -> tuple[int, int]:
    """Instruction and stack of a main thread that waits in the kernel; else 0."""
    seen = set()
    for _ in range(4):
        try:
            with open(f"/proc/{pid}/task/{pid}/syscall", encoding="ascii") as file:
                words = file.read().split()
        except OSError:
            return 0, 0
        # "running", or the number of the system call, its arguments, sp and pc.
        if len(words) != 9:
            return 0, 0
        seen.add((int(words[8], 16), int(words[7], 16)))
        time.sleep(0.03)
    return seen.pop() if len(seen) == 1 else (0, 0)


def _has_loader(path: str) -> bool:
    """Whether a program is dynamically linked (has PT_INTERP)."""
    with open(path, "rb") as file:
        head = file.read(64)
        offset = int.from_bytes(head[32:40], sys.byteorder)
        size = int.from_bytes(head[54:56], sys.byteorder)
        count = int.from_bytes(head[56:58], sys.byteorder)
        file.seek(offset)
        table = file.read(size * count)
    kinds = (table[i : i + 4] for i in range(0, len(table), max(size, 1)))
    return any(int.from_bytes(kind, sys.byteorder) == 3 for kind in kinds)


def _commands(
    pid: int,
    extension: str,
    script: str,
    text: list[tuple[int, int]],
    waits_at: tuple[int, int],
) -> str:
    inside = " || ".join(f"($pc >= {a} && $pc < {b})" for a, b in text) or "0"
    if os.uname().machine == "x86_64":
        at_call = "*(unsigned short *)($pc - 2) == 0x050f"
    else:
        at_call = "*(unsigned int *)($pc - 4) == 0xd4000001"
    return f"""
set $tries = 0
set $same = 2
set $last_pc = {waits_at[0]}
set $last_sp = {waits_at[1]}
set $done = 0
while $tries < {TRIES} && !$done
  thread 1
  set $here = (unsigned long)$pc
  set $stack = (unsigned long)$sp
  if $here == $last_pc && $stack == $last_sp && {at_call}
    set $same = $same + 1
  else
    set $same = 0
  end
  set $last_pc = $here
  set $last_sp = $stack
  if ({inside}) || $same >= 3
    set $done = 1
  else
    set $tries = $tries + 1
    detach
    shell sleep 0.03
    attach {pid}
  end
end
if $done
  sharedlibrary libc
  sharedlibrary libdl
  sharedlibrary ld-
  set $handle = ((void *(*)(const char *, int))dlopen)("{extension}", 2)
  if $handle
    set $enter = ((void *(*)(void *, const char *))dlsym)($handle, "speed_bump_enter")
    printf "speed-bump: entered %d\\n", ((int (*)(const char *))$enter)("{script}")
  else
    printf "speed-bump: not loaded %s\\n", ((char *(*)(void))dlerror)()
  end
else
  printf "speed-bump: no safe place\\n"
end
detach
quit
"""


def _debug(
    gdb: str, pid: int, extension: str, script: str, text: list[tuple[int, int]]
) -> None:
    commands = f"{script}.gdb"
    with open(commands, "w", encoding="utf-8") as file:
        file.write(_commands(pid, extension, script, text, _waits_at(pid)))
    settings = [
        "debuginfod enabled off",
        "auto-load off",
        "auto-solib-add off",
        "pagination off",
        "confirm off",
        "unwindonsignal on",
        "scheduler-locking off",
        "python print-stack none",
    ]
    options = [word for text in settings for word in ("-iex", f"set {text}")]
    process = subprocess.Popen(
        [gdb, "-nx", "-batch", *options, "-ex", "handle all nostop noprint pass",
         "-p", str(pid), "-x", commands],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # Ctrl-C is for the tool: gdb must finish.
        start_new_session=True,
    )  # fmt: skip
    try:
        said = process.communicate(timeout=DEBUGGER_S)[0]
    except subprocess.TimeoutExpired:
        process.terminate()
        said = process.communicate()[0]
    finally:
        with suppress(OSError):
            os.unlink(commands)
    if "speed-bump: entered 0\n" in said:
        return
    if "no safe place" in said:
        raise AttachError(
            f"process {pid}: in {TRIES} attempts its main thread was never in the "
            "interpreter; nothing was changed there; try again"
        )
    reason = [
        line
        for line in said.splitlines()
        if line.startswith(("ptrace:", "Could not attach", "speed-bump:", "No symbol"))
    ]
    denied = "Operation not permitted" in said or "Could not attach" in said
    raise AttachError(
        f"process {pid}: gdb: {'; '.join(reason) or said.strip()[-300:]}"
        + (PTRACE if denied else "")
    )
