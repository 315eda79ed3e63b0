# SPDX-License-Identifier: MIT
"""Where the control socket of a program is: in its user's runtime directory."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SUFFIX = ".attach"
# So many sockets that are left over are looked for whenever one is made.
MAX_SWEPT = 16


def directories(uid: int, environ: Mapping[str, str], root: str = "") -> list[str]:
    """Where sockets of programs of this user may be, the first choice first.

    Args:
        environ: that of the program
        root: of the program's file system, as we see it
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    found = [f"{runtime}/speed-bump"] if runtime.startswith("/") else []
    found += [f"/run/user/{uid}/speed-bump", f"/tmp/speed-bump-{uid}"]
    return [root + path for path in dict.fromkeys(found)]


def make(uid: int, environ: Mapping[str, str]) -> str:
    """The directory, made if need be.

    Raises:
        OSError: no directory can be had that is this user's alone
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
    """Whether a directory is this user's alone.

    Raises:
        OSError: it is not
    """
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise PermissionError(1, "not a directory of this user alone", path)


def name(pid: int, namespace: int) -> str:
    """Of the socket of a process; ``namespace`` is that of its number."""
    return f"{namespace}-{pid}{SUFFIX}"


def namespace(pid: int | str = "self") -> int:
    """The pid namespace of a process.

    Raises:
        OSError: it is not to be known
    """
    return os.stat(f"/proc/{pid}/ns/pid").st_ino


def sweep(directory: str, space: int) -> None:
    """Remove sockets of programs that ended without doing it."""
    try:
        found = [f for f in os.listdir(directory) if f.endswith(SUFFIX)]
    except OSError:
        return
    # Not always the same ones, and never so many that it takes long.
    first = os.getpid() % max(len(found), 1)
    for file in (found[first:] + found[:first])[:MAX_SWEPT]:
        there, _, pid = file[: -len(SUFFIX)].partition("-")
        if there == str(space) and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            try:
                os.unlink(f"{directory}/{file}")
            except OSError:
                pass
