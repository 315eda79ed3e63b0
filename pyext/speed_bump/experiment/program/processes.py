# SPDX-License-Identifier: MIT
"""Running processes: which ones there are, and their properties."""

from __future__ import annotations

import errno
import fnmatch
import os
from collections.abc import Sequence
from contextlib import suppress

from speed_bump import native
from speed_bump.experiment.program.machine import descendants
from speed_bump.process import command_of


def is_python(pid: int) -> bool:
    """Whether CPython is in a process. True if that is unknown."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            files = {line.split(None, 5)[5] for line in file if line.count(b"/")}
    except OSError:
        return True
    names = {os.path.basename(path).strip() for path in files}
    return any(name.startswith((b"libpython3.", b"python3")) for name in names)


def named(pattern: str) -> list[int]:
    """The processes with a name that the glob matches, except this one.

    The names of a process are the kernel's, that of its program, and that of the script
    or module that its interpreter runs.
    """
    ours = _ancestors(os.getpid())
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in ours:
            pid = int(name)
            if any(fnmatch.fnmatchcase(n, pattern) for n in _names(pid)):
                found.append(pid)
    return sorted(found)


def apart(pids: Sequence[int]) -> int:
    """The first of them that is not below the first one; 0: all are."""
    if len(pids) < 2:
        return 0
    below = descendants(pids[0])
    return next((pid for pid in pids if pid not in below), 0)


def check_one_tree(pids: Sequence[int]) -> None:
    """The kernel delays native functions of a process and those below it.

    Raises:
        NativeError: some of these processes are elsewhere
    """
    if pid := apart(pids):
        raise native.NativeError(
            errno.EINVAL,
            "native functions are delayed in one process and those below it, and "
            f"process {pid} is not below {pids[0]}: give one of them, or their parent "
            "with --pid-tree",
        )


def tree(pid: int) -> list[int]:
    """A process and the Python processes below it."""
    below = sorted(descendants(pid) - {pid})
    return [pid, *(p for p in below if is_python(p) and command_of(p))]


def _names(pid: int) -> set[str]:
    found: set[str] = set()
    with suppress(OSError), open(f"/proc/{pid}/comm", "rb") as file:
        found.add(os.fsdecode(file.read()).rstrip("\n"))
    words = command_of(pid)
    if words:
        found.add(os.path.basename(words[0]))
        found.add(_script(words[1:]))
    return found - {""}


def _script(words: list[str]) -> str:
    """The script (without directory) or module among an interpreter's arguments."""
    for before, word in zip(["", *words], words, strict=False):
        if before == "-m":
            return word
        if word == "-c":
            return ""
        if not word.startswith("-") and before not in ("-W", "-X"):
            return os.path.basename(word)
    return ""


def _ancestors(pid: int) -> set[int]:
    found = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found
