# SPDX-License-Identifier: MIT
"""Where the nodes of a run find its leader: files in the run's directory.

``DIR/live`` has the leader's address and, made for this leader alone, a key and its
certificate. The leader and the workers of the nodes accept only connections with this
key, so only the user may have access to the directory; otherwise it is refused.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import stat
from dataclasses import dataclass
from typing import Any

from speed_bump.experiment.cluster import epochs

FOLDER = "live"
ADDRESS = "leader.json"
EPOCHS = "epochs.json"
CERTIFICATE, KEY = "certificate.pem", "key.pem"
NEEDED = ("distributed", "cryptography")
REACH_S = 2.0


class MeetingError(Exception):
    """There is no leader to be found; the message says why and what to do."""


@dataclass(frozen=True)
class Meeting:
    """A leader: its address, such as "tls://10.0.0.1:41234", and where its key is."""

    address: str
    where: str

    def security(self) -> dict[str, Any]:
        """The arguments of ``distributed.Security``: TLS, with certificates required."""
        certificate = os.path.join(self.where, CERTIFICATE)
        key = os.path.join(self.where, KEY)
        found: dict[str, Any] = {"require_encryption": True, "tls_ca_file": certificate}
        for role in ("client", "scheduler", "worker"):
            found[f"tls_{role}_cert"] = certificate
            found[f"tls_{role}_key"] = key
        return found


def check_installed() -> None:
    """Raise ``MeetingError`` if what the leader and the workers need is not there."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise MeetingError(
            f"live needs {' and '.join(missing)}: pip install 'speed-bump[cluster]'"
        )


def folder(run: str) -> str:
    return os.path.join(run, FOLDER)


def _check_private(path: str) -> None:
    """Raise ``MeetingError`` if others than this user may read or replace the file."""
    found = os.stat(path, follow_symlinks=False)
    if found.st_uid != os.getuid():
        raise MeetingError(f"{path} belongs to another user")
    if stat.S_IMODE(found.st_mode) & 0o077 or stat.S_ISLNK(found.st_mode):
        raise MeetingError(
            f"{path} is open to other users: live needs a directory of a file system "
            "with permissions, for the key of the run"
        )


def make_key(run: str) -> Meeting:
    """Make the folder and a key, replacing those of an earlier leader.

    Raises:
        MeetingError: no file there is private, or another leader is at work
    """
    import distributed

    where = folder(run)
    os.makedirs(where, mode=0o700, exist_ok=True)
    _check_private(where)
    before = find(run)
    if before and not unreachable(before):
        raise MeetingError(f"another leader of {run} is at work ({before.address})")
    forget(run)
    made = distributed.Security.temporary()
    for name, text in ((CERTIFICATE, made.tls_ca_file), (KEY, made.tls_worker_key)):
        path = os.path.join(where, name)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w", encoding="ascii") as out:
            out.write(text)
        _check_private(path)
    return Meeting("", where)


def announce(run: str, address: str) -> None:
    """From now on the nodes find the leader."""
    value = {"address": address, "host": socket.gethostname(), "pid": os.getpid()}
    epochs.write(os.path.join(folder(run), ADDRESS), value)


def forget(run: str) -> None:
    """Remove the address, the key and the certificate."""
    for name in (ADDRESS, KEY, CERTIFICATE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder(run), name))


def find(run: str) -> Meeting | None:
    """The leader of a run; None: there is none yet.

    Raises:
        MeetingError: the files are not private, or not those of a leader
    """
    where = folder(run)
    path = os.path.join(where, ADDRESS)
    try:
        for name in (where, os.path.join(where, KEY), os.path.join(where, CERTIFICATE)):
            _check_private(name)
        with open(path, encoding="ascii") as file:
            address = json.load(file)["address"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise MeetingError(f"{path}: not the address of a leader ({error})") from None
    if not isinstance(address, str) or not address.startswith("tls://"):
        raise MeetingError(f"{path}: not the address of a leader")
    return Meeting(address, where)


def unreachable(meeting: Meeting) -> str:
    """Why nothing listens at the leader's address; "" if something does."""
    host, _, port = meeting.address.removeprefix("tls://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__
    return ""


def is_local(address: str) -> bool:
    """Whether only this machine can connect to the address."""
    host = address.removeprefix("tls://").rpartition(":")[0].strip("[]")
    return host.startswith("127.") or host in ("::1", "localhost")


def doubt(run: str) -> str:
    """What a member has to say of the leader before its program begins; "" if nothing."""
    fixed = "all functions stay delayed as without --live"
    try:
        meeting = find(run)
    except MeetingError as error:
        return f"{error}; {fixed}"
    if meeting is None:
        return (
            f"no leader is at work in {run} yet, or this node does not share it; until "
            f"'speed-bump live --run {run}' is, {fixed}"
        )
    why = unreachable(meeting)
    if why:
        return f"the leader at {meeting.address} can't be reached ({why}); {fixed}"
    return ""
