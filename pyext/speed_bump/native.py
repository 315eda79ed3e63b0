# SPDX-License-Identifier: MIT
"""Delays in native functions, by uprobes of the kernel module ``speed_bump`` or of BPF.

    with native.probe("libz.so.1", "deflate", delay_ns=10_000):
        serve()

A binary is a path, or the bare name of a library or program, looked up as the loader
would. A symbol may be versioned, a glob, a demangled C++ or Rust name, ``sym+0x10``,
``@0xOFFSET``, or a source line, ``util.c:42``; every match is slowed. A probe takes
effect when it is made, and ends when it is removed or when this process ends in whatever
way. A forked child is slowed like its parent, but the probes belong to the parent and end
with it.

The module is used if it is loaded, else BPF (Linux 6.1 or later, as root);
``SPEED_BUMP_BACKEND`` can be set to ``driver`` or ``bpf``.
"""

from __future__ import annotations

import errno
import os
import weakref
from _thread import RLock  # not from threading, which is slow to import

from speed_bump import _core

TYPE_CHECKING = False  # not from typing, which is slow to import
if TYPE_CHECKING:
    from speed_bump.config import Config, Target
    from speed_bump.statistics import FunctionStatistics

__all__ = [
    "NativeError",
    "add_probe",
    "backend",
    "caveats",
    "is_available",
    "probe",
    "remove_probe",
]

_NO_DEVICE = (errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.EACCES, errno.EPERM)


class NativeError(OSError):
    """A native function can't be slowed; the message says why and what to do.

    ``target`` is the index of the function among several; None: each other one would be
    refused, too.
    """

    target: int | None = None

    def __str__(self) -> str:
        """The message, without the number of the error."""
        return str(self.strerror)


def _native_error(error: OSError, *, device: bool = False) -> NativeError:
    text = error.strerror or str(error)
    if device and error.errno in _NO_DEVICE and "sbctl doctor" not in text:
        text += " ('sbctl doctor' says what is missing)"
    found = NativeError(error.errno, text)
    found.target = getattr(error, "target", None)
    return found


def is_available() -> bool:
    """Whether this user can slow native functions now."""
    return backend() is not None


def backend() -> str | None:
    """The backend that slows native functions now; None if there is none.

    ``"driver"`` is the kernel module, ``"bpf"`` needs none.
    """
    try:
        session = _core.Session()
    except OSError:
        return None
    name = session.backend
    session.close()
    return name


def caveats() -> list[str]:
    """Sentences about what the kernel module guarantees and this backend does not.

    Raises:
        NativeError: there is no backend, with the reason
    """
    try:
        session = _core.Session()
    except OSError as error:
        raise _native_error(error, device=True) from None
    sentences = session.caveats
    session.close()
    return sentences


def from_target(target: Target, config: Config) -> _core.NativeTarget:
    """The text of a ``native:`` target, with the defaults of ``config``.

    The kernel counts the window from now on.
    """
    import time

    delay_ns = config.delay_ns if target.delay_ns is None else target.delay_ns
    if target.delay_ppm:
        delay_ns = 0
    every = config.frequency if target.every is None else target.every
    if target.start_ns is None and target.duration_ns is None:
        now = time.monotonic_ns()
        start_ns = max(config.start_ns - now, 0)
        if config.end_ns is None:
            duration_ns = 0
        else:
            duration_ns = max(config.end_ns - now - start_ns, 1)
    else:
        start_ns = target.start_ns or 0
        duration_ns = target.duration_ns or 0
    return _core.native_target(
        target.left,
        target.right,
        delay_ns=delay_ns,
        every=every,
        start_ns=start_ns,
        duration_ns=duration_ns,
        sleeps=target.mode == "sleep",
        delay_ppm=target.delay_ppm,
    )


class Probes:
    """Native targets of one process tree, in a session of their own.

    Usable only in the process that made it: in a forked child it is closed, because the
    descriptor would keep it alive there. The child's calls are delayed all the same, as
    it is in the tree.
    """

    def __init__(self, pid: int) -> None:
        """Open a session.

        Raises:
            NativeError: there is no backend, or this user may not use it
        """
        self._owner = os.getpid()
        self._pid = pid
        self._targets: dict[int, str] = {}
        self._unarmed: set[int] = set()
        self._missed: set[int] = set()
        try:
            self._session = _core.Session()
        except OSError as error:
            raise _native_error(error, device=True) from None
        _shared.open.add(self)

    @property
    def session(self) -> _core.Session:
        """The number of this process in the kernel's view."""
        return self._session

    @property
    def is_ours(self) -> bool:
        """Whether this process made it, and not a process that it was forked from."""
        return self._owner == os.getpid()

    def scope_to(self, pid: int) -> None:
        """Slow the process ``pid`` and its descendants with what is added from now on."""
        self._pid = pid

    def add(
        self, targets: list[_core.NativeTarget], *, enabled: bool = True
    ) -> list[_core.NativePlace]:
        """Add all of them or none; returns each place.

        Raises:
            NativeError: no such file or symbol, not allowed, too many
        """
        try:
            places = self._session.add(targets, _core.SB_SCOPE_TREE, self._pid, enabled)
        except OSError as error:
            raise _native_error(error) from None
        for place in places:
            target = targets[place.target]
            self._targets[place.id] = f"native:{target.path}:{target.symbol}"
        return places

    def remove(self, ids: list[int]) -> None:
        """Remove targets by the ids that ``add`` returned.

        Raises:
            NativeError: there is no such target
        """
        try:
            self._session.remove(ids)
        except OSError as error:
            raise _native_error(error) from None
        for place in ids:
            self._targets.pop(place, None)

    def set_enabled(self, ids: list[int], enabled: bool) -> None:
        """Switch the delays of some targets; they count in any case."""
        try:
            self._session.set_targets_enabled(ids, enabled)
        except OSError as error:
            raise _native_error(error) from None

    def read(self) -> list[FunctionStatistics]:
        """The counts, an entry for each place; warns once if calls are missing."""
        from speed_bump.control import say
        from speed_bump.statistics import FunctionStatistics

        if not self.is_ours:
            return []
        try:
            sites = self._session.list()
        except OSError as error:
            raise _native_error(error) from None
        for site in sites:
            if site.unarmed and site.id not in self._unarmed:
                self._unarmed.add(site.id)
                say(
                    f"{site.label}: calls are missing: a breakpoint could not be "
                    f"inserted {site.unarmed} times, because the process may no longer "
                    "be delayed or the kernel had no memory for it"
                )
            if site.missed and site.id not in self._missed:
                self._missed.add(site.id)
                say(
                    f"{site.label}: {site.missed} calls were not delayed: of nested "
                    "calls in a thread the kernel catches 64 returns"
                )
        return [
            FunctionStatistics(
                name=site.label,
                target=self._targets.get(site.id, site.label),
                pid=0,
                calls=site.calls,
                delayed=site.delayed,
                requested_ns=site.requested_ns,
                delivered_ns=site.delivered_ns,
            )
            for site in sites
        ]

    def close(self) -> None:
        """Remove all targets."""
        self._session.close()
        _shared.open.discard(self)

    def close_after_fork(self) -> None:
        """Close it in a forked child, without removing any target."""
        self._session.close_after_fork()


class probe:
    """Slow a native function while inside: a context manager.

    Args:
        binary_path: the executable or library
        symbol: the function, or a line
        delay_ns: delay of each call, ns, at most 10 s
        pid: slow this process and its descendants; None is the current process

    Raises:
        NativeError: on entry; it says what is missing
    """

    def __init__(
        self,
        binary_path: str | os.PathLike[str],
        symbol: str,
        delay_ns: int = 1000,
        pid: int | None = None,
    ) -> None:
        """Store the arguments; nothing is slowed yet."""
        _check_delay(delay_ns)
        self._target = _core.native_target(
            os.fspath(binary_path), symbol, delay_ns=delay_ns
        )
        self._pid = pid
        self._probes: list[Probes] = []

    def __enter__(self) -> probe:
        """Put it into force."""
        probes = Probes(os.getpid() if self._pid is None else self._pid)
        try:
            probes.add([self._target])
        except BaseException:
            probes.close()
            raise
        self._probes.append(probes)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Take it out."""
        self._probes.pop().close()

    def stats(self) -> list[FunctionStatistics]:
        """The counts so far, an entry for each place; inside only."""
        return self._probes[-1].read() if self._probes else []


def _check_delay(delay_ns: int) -> None:
    if not 0 <= delay_ns <= _core.MAX_DELAY_NS:
        raise NativeError(errno.ERANGE, f"a delay of {delay_ns} ns is not 0 to 10 s")


class _Shared:
    """State shared by all copies of this module in the interpreter."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.open: weakref.WeakSet[Probes] = weakref.WeakSet()
        # Added by add_probe(): (path, symbol, pid) to ids in the session of that pid.
        self.added: dict[tuple[str, str, int], list[int]] = {}
        self.sessions: dict[int, Probes] = {}
        os.register_at_fork(after_in_child=self.after_fork)

    def after_fork(self) -> None:
        self.lock = RLock()  # a thread that no longer exists may have held it
        for probes in list(self.open):
            probes.close_after_fork()
        self.open.clear()
        self.sessions.clear()
        self.added.clear()


_shared: _Shared = _core.kept().get("native") or _Shared()
_core.kept()["native"] = _shared


def add_probe(
    binary_path: str | os.PathLike[str],
    symbol: str,
    delay_ns: int = 1000,
    pid: int | None = None,
) -> None:
    """Slow a native function until ``remove_probe()`` or the end of this process.

    Arguments as those of ``probe``.

    Raises:
        NativeError: it says what is missing; EEXIST: it is slowed already
    """
    _check_delay(delay_ns)
    pid = os.getpid() if pid is None else pid
    path = os.fspath(binary_path)
    with _shared.lock:
        if (path, symbol, pid) in _shared.added:
            raise NativeError(errno.EEXIST, f"{path}:{symbol} is slowed already")
        probes = _shared.sessions.get(pid) or Probes(pid)
        try:
            places = probes.add([_core.native_target(path, symbol, delay_ns=delay_ns)])
        except BaseException:
            if pid not in _shared.sessions:
                probes.close()
            raise
        _shared.sessions[pid] = probes
        _shared.added[path, symbol, pid] = [place.id for place in places]


def remove_probe(
    binary_path: str | os.PathLike[str], symbol: str, pid: int | None = None
) -> None:
    """Remove the probe that ``add_probe()`` added with the same path, symbol and pid.

    Raises:
        NativeError: ENOENT, there is no such probe
    """
    path = os.fspath(binary_path)
    pid = os.getpid() if pid is None else pid
    key = (path, symbol, pid)
    with _shared.lock:
        if key not in _shared.added:
            raise NativeError(errno.ENOENT, f"{path}:{symbol} is not slowed")
        _shared.sessions[pid].remove(_shared.added[key])
        del _shared.added[key]
        if not any(other == pid for _, _, other in _shared.added):
            _shared.sessions.pop(pid).close()
