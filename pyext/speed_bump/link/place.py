# SPDX-License-Identifier: MIT
"""Where the control socket of a program is: in its user's runtime directory."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False  # not from typing, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Mapping

SUFFIX = ".attach"
# At most this many leftover sockets are looked at whenever one is made.
MAX_SWEPT = 16


def directories(uid: int, environ: Mapping[str, str], root: str = "") -> list[str]:
    """Directories for sockets of this user's programs, in order of preference.

    Args:
        environ: of the program
        root: of the program's file system, as the tool sees it
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    found = [f"{runtime}/speed-bump"] if runtime.startswith("/") else []
    found += [f"/run/user/{uid}/speed-bump", f"/tmp/speed-bump-{uid}"]
    return [root + path for path in dict.fromkeys(found)]


def make(uid: int, environ: Mapping[str, str]) -> str:
    """The directory, created if needed.

    Raises:
        OSError: there is no directory that belongs to this user alone
    """
    failure: OSError | None = None
    for path in directories(uid, environ):
        try:
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                pass
            check(path, uid)
        except OSError as error:
            failure = failure or error
        else:
            return path
    assert failure is not None
    raise failure


def check(path: str, uid: int) -> None:
    """Check that a directory belongs to this user alone.

    Raises:
        OSError: it does not
    """
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise PermissionError(1, "not a directory of this user alone", path)


def name(pid: int, namespace: int) -> str:
    """The name of a process's socket; ``namespace`` is its pid namespace."""
    return f"{namespace}-{pid}{SUFFIX}"


def namespace(pid: int | str = "self") -> int:
    """The pid namespace of a process.

    Raises:
        OSError: it can't be read
    """
    return os.stat(f"/proc/{pid}/ns/pid").st_ino


def sweep(directory: str, space: int) -> None:
    """Remove sockets of programs that ended without removing them."""
    try:
        found = [f for f in os.listdir(directory) if f.endswith(SUFFIX)]
    except OSError:
        return
    # A random few, so that it never takes long.
    first = os.getpid() % max(len(found), 1)
    for file in (found[first:] + found[:first])[:MAX_SWEPT]:
        there, _, pid = file[: -len(SUFFIX)].partition("-")
        if there == str(space) and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            try:
                os.unlink(f"{directory}/{file}")
            except OSError:
                pass
