# SPDX-License-Identifier: MIT
"""The directory for the files of a tool's runs, in memory that programs share.

The tool holds a lock of its directory (flock(2)), which the kernel releases however the
tool ends. A directory without a lock was left by a tool that was killed; the next tool
of that user removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from speed_bump import _core
from speed_bump.experiment.program.machine import is_alive

# Files of a run are best kept in memory: counts need never be written back.
SHARED_MEMORY = "/dev/shm"
PREFIX = "speed-bump-run-"
# The beginning of the names of files that a process, whose number follows, was told to
# open. It may be about to open them after the end of the tool.
ENTER = "enter-"


@contextmanager
def directory(capacity: int) -> Iterator[str]:
    """A directory, in memory if that has room for a table; removed at the end."""
    with ExitStack() as stack:
        if os.path.isdir(SHARED_MEMORY) and os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
            path = stack.enter_context(_made(SHARED_MEMORY))
            room = os.path.join(path, "room")
            try:
                _core.Table(room, capacity).close()
                os.unlink(room)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                stack.close()
            else:
                yield path
                return
        yield stack.enter_context(_made(tempfile.gettempdir()))


@contextmanager
def _made(where: str) -> Iterator[str]:
    sweep(where)
    with ExitStack() as stack:
        while True:
            made = tempfile.TemporaryDirectory(
                prefix=PREFIX, dir=where, ignore_cleanup_errors=True
            )
            try:
                stack.callback(os.close, _lock(made.name))
            except (BlockingIOError, FileNotFoundError):
                # Another tool took it for a left one before it was locked.
                made.cleanup()
                continue
            except OSError:
                # This file system has no such locks, and so nothing is removed there.
                pass
            with made:
                yield made.name
            return


def _lock(path: str) -> int:
    """Lock a directory; returns the descriptor that holds the lock.

    Raises:
        BlockingIOError: it is locked
        FileNotFoundError: it was removed
        OSError: it can't be locked
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # It may have been removed, and made again, before it was locked.
        if not os.path.samestat(os.fstat(fd), os.lstat(path)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def sweep(where: str) -> None:
    """Remove what killed tools of this user have left in a directory."""
    with suppress(OSError), os.scandir(where) as entries:
        for entry in entries:
            if not entry.name.startswith(PREFIX):
                continue
            with suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                    continue
                lock = _lock(entry.path)
                try:
                    if not _is_used(entry.path):
                        _remove(entry.path)
                finally:
                    os.close(lock)


def _is_used(path: str) -> bool:
    """Whether a program of the tool is still running, or attached.

    Programs that the tool has started have the path in their environment, others have
    mapped a file of it.
    """
    text = os.fsencode(path) + b"/"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "maps"):
            with suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
                if text in file.read():
                    return True
    return False


def _remove(path: str) -> None:
    with os.scandir(path) as entries:
        for entry in entries:
            pid = entry.name.removeprefix(ENTER).partition(".")[0]
            if entry.name.startswith(ENTER) and pid.isdigit() and is_alive(int(pid)):
                continue
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
    os.rmdir(path)
