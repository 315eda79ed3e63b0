# SPDX-License-Identifier: MIT
"""The way into a program by a debugger, which loads the extension there."""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from speed_bump.experiment.program import gdb
from speed_bump.experiment.program.inject import PTRACE, interpreter_of, through
from speed_bump.experiment.program.ways import (
    PATIENCE_S,
    AttachError,
    Entry,
    Link,
    NotOffered,
    has_ended,
    status_of,
)
from speed_bump.process import command_of

# A debugger stops looking for a safe place so long before the program should have
# answered, so that a refusal comes in time; but it looks for this time at least.
END_S = 0.5
MIN_SEARCH_S = 1
# For the calls in the program, after which a debugger is ended.
DEBUGGER_S = 20.0
# Libraries that allocate memory, or watch over it, or load others: their code may hold a
# lock while it runs.
HOLDS_LOCKS = re.compile(
    r"(libc|ld|libpthread|libdl)[-.]|libgcc_s|libunwind|lib\w*san\b|libclang_rt"
    r"|lib(hoard|mesh|efence|duma)\b"
    r"|.*(malloc|memray|heaptrack|preload|scalene|scudo|bytehound)"
)
# Where code is made while the program runs.
MADE = ("/memfd:", "/dev/")
# The script that lldb runs.
IN_LLDB = os.path.join(os.path.dirname(__file__), "in_lldb.py")

Range = tuple[int, int]


def _check_tracer(pid: int) -> None:
    tracer = status_of(pid).get("TracerPid", "0")
    if tracer != "0":
        name = " ".join(command_of(int(tracer))[:1])
        raise AttachError(
            f"process {pid} is traced already, by {name or 'process'} {tracer}: end that "
            "first"
        )


def has_debugger() -> bool:
    """Whether there is one."""
    return any(map(shutil.which, DEBUGGERS))


def by_debugger(pid: int, directory: str, until: float) -> Link:
    """A debugger, which loads the extension of the package into the program and detaches.

    It looks until the main thread is in the interpreter itself, or in the kernel in a
    call that waits, where it holds no lock of the allocator or of the loader. In the
    second half of its time other libraries will do as well: a program that computes may
    be in the interpreter too seldom to be found there.

    Args:
        directory: of the files; readable by the program's user
        until: when it should have answered, s of ``time.monotonic()``

    Raises:
        NotOffered: there is no debugger
        AttachError: it can't be attached to
    """
    begin = time.monotonic()
    paths = {name: shutil.which(name) for name in DEBUGGERS}
    name, path = next(((n, p) for n, p in paths.items() if p), ("", None))
    if path is None:
        packages = " or ".join(DEBUGGERS)
        raise NotOffered(f"there is no debugger: install the package {packages}")
    _check_tracer(pid)
    found = interpreter_of(pid, directory)
    if not _has_loader(f"/proc/{pid}/exe"):
        raise AttachError(
            f"process {pid} is linked statically and can't load the extension: start it "
            "with SPEED_BUMP_ATTACH=1"
        )

    def enter(script: str) -> None:
        places = _places(pid)
        waits_at = _waits_at(pid)
        left_s = until - time.monotonic() - END_S
        search = int(time.time() + left_s), MIN_SEARCH_S
        _debug(
            name, path, Entry(pid, found.extension, script, *places, waits_at, *search)
        )

    link = through(pid, "debugger", directory, found, enter, until, until)
    if link is None:
        took_s = time.monotonic() - begin
        raise AttachError(
            f"process {pid} did not answer in {took_s:.0f} s: C code, or many busy "
            "threads, held the GIL all that time; nothing was changed there; try again"
        )
    return link


def _places(pid: int) -> tuple[list[Range], list[Range], Range]:
    """The address ranges of the interpreter's own code, and of libraries whose code holds
    no lock that loading the extension takes; and that of the main thread's stack.
    """
    interpreter: list[Range] = []
    libraries: list[Range] = []
    stack = 0, 0
    with suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        exe = os.readlink(f"/proc/{pid}/exe")
        for line in file:
            words = line.split(None, 5)
            if len(words) < 6:
                continue
            path = words[5].rstrip("\n")
            name = os.path.basename(path)
            first, last = (int(word, 16) for word in words[0].split("-"))
            if path == "[stack]":
                stack = first, last
            elif "x" not in words[1]:
                continue
            elif path == exe or name.startswith("libpython3"):
                interpreter.append((first, last))
            elif _is_safe(path):
                libraries.append((first, last))
    return interpreter, libraries, stack


def _is_safe(path: str) -> bool:
    """Whether code of a mapped file holds no lock that loading the extension takes."""
    is_file = path.startswith("/") and not path.startswith(MADE)
    return is_file and not HOLDS_LOCKS.match(os.path.basename(path))


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
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            offset = int.from_bytes(head[32:40], sys.byteorder)
            size = int.from_bytes(head[54:56], sys.byteorder)
            count = int.from_bytes(head[56:58], sys.byteorder)
            file.seek(offset)
            table = file.read(size * count)
    except OSError as error:
        raise AttachError(f"{path}: {error.strerror}: it has ended") from None
    kinds = (table[i : i + 4] for i in range(0, len(table), max(size, 1)))
    return any(int.from_bytes(kind, sys.byteorder) == 3 for kind in kinds)


def _gdb(path: str, entry: Entry) -> tuple[list[str], dict[str, str]]:
    """The command line of gdb, and what its environment has besides."""
    commands, tries = f"{entry.script}.gdb", f"{entry.script}.try"
    with open(commands, "w", encoding="utf-8") as file:
        file.write(gdb.commands(entry))
    with open(tries, "w", encoding="utf-8") as file:
        file.write(gdb.TRY)
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
    command = [
        path, "-nx", "-batch", *options, "-ex", "handle all nostop noprint pass",
        "-p", str(entry.pid), "-x", tries, "-x", commands,
    ]  # fmt: skip
    return command, {}


def _lldb(path: str, entry: Entry) -> tuple[list[str], dict[str, str]]:
    """The command line of lldb, and what its environment has besides."""
    _, _, calls = gdb.CALLS[os.uname().machine]
    asked = {
        **asdict(entry),
        "pause_s": gdb.PAUSE_S,
        "calls": calls,
    }
    settings = [
        "symbols.enable-external-lookup false",
        "target.preload-symbols false",
        "target.load-script-from-symbol-file false",
    ]
    options = [word for text in settings for word in ("-o", f"settings set {text}")]
    command = [
        path, "--no-lldbinit", "--batch", *options,
        "-o", f"command script import {shlex.quote(IN_LLDB)}",
    ]  # fmt: skip
    # Debian's lldb looks for its own Python package where it is not. It takes the
    # standard library of the first python3 of its own version in PATH, whosever it is.
    beside = os.path.join(os.path.dirname(os.path.realpath(path)), "../lib")
    packages = glob.glob(f"{glob.escape(beside)}/python3*/*-packages")
    return command, {
        "SPEED_BUMP_ENTER": json.dumps(asked),
        "PYTHONPATH": os.pathsep.join(packages),
        # An empty part would be the current directory.
        "PATH": os.pathsep.join(
            filter(None, [os.path.dirname(path), os.environ.get("PATH", "")])
        ),
    }


# The debuggers that can be used, in order of preference.
DEBUGGERS: dict[str, Callable[[str, Entry], tuple[list[str], dict[str, str]]]] = {
    "gdb": _gdb,
    "lldb": _lldb,
}


def _debug(name: str, path: str, entry: Entry) -> None:
    """Run a debugger until it has entered the program.

    Raises:
        AttachError: it could not
    """
    command, more = DEBUGGERS[name](path, entry)
    process = subprocess.Popen(
        command,
        env=os.environ | more,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # Ctrl-C is for the tool: a debugger must finish.
        start_new_session=True,
    )
    try:
        said = _said(process, entry.pid)
    finally:
        for suffix in (".gdb", ".try", ".code", ".clock"):
            with suppress(OSError):
                os.unlink(entry.script + suffix)
    if "speed-bump: entered 0\n" in said:
        return
    if "no safe place" in said:
        raise AttachError(
            f"process {entry.pid}: its main thread was never found in code that surely "
            "holds no lock of the allocator or of the loader; nothing was changed there; "
            "try again"
        )
    if has_ended(entry.pid):
        raise AttachError(f"process {entry.pid} has ended, or is about to")
    reason = [
        line
        for line in said.splitlines()
        if line.startswith(("ptrace:", "Could not attach", "speed-bump:", "No symbol"))
    ]
    denied = "not permitted" in said or "Could not attach" in said
    raise AttachError(
        f"process {entry.pid}: {name}: {'; '.join(reason) or said.strip()[-300:]}"
        + (PTRACE if denied else "")
    )


def _said(process: subprocess.Popen[str], pid: int) -> str:
    """What a debugger of a program said, after its end."""
    # By the first signal they restore the registers of the thread that makes the call.
    signals = [signal.SIGINT, signal.SIGTERM]
    wait_s = DEBUGGER_S
    while True:
        try:
            return process.communicate(timeout=wait_s)[0]
        except subprocess.TimeoutExpired:
            # gdb waits for ever, deaf to both, for threads of a program that was killed.
            # One of a program that lives is never killed, as it may be in the call.
            if has_ended(pid):
                process.kill()
            elif signals:
                process.send_signal(signals.pop(0))
            wait_s = PATIENCE_S
