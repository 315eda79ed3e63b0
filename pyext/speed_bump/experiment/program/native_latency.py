# SPDX-License-Identifier: MIT
"""How long calls of native functions take, as the kernel sees both of their ends."""

from __future__ import annotations

import errno
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from speed_bump import _core, native
from speed_bump.config import parse_targets
from speed_bump.experiment.program.latency import Events, Histogram

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class NativeLatencies:
    """Records durations of calls in a process tree.

    With ``events`` each call is an event too, as those of ``latency.Events``. The kernel
    keeps 32,767 of them until ``events()`` is called, and others are in ``lost``.

    Args:
        names: ``native:PATH:SYMBOL``, each of which may match several functions
        events: each call is an event
        first: what an event has as ``name`` for the first name

    Raises:
        NativeError: the backend does not see how long calls last, or has no events
    """

    def __init__(
        self, names: Sequence[str], *, events: bool = False, first: int = 0
    ) -> None:
        self.names = tuple(names)
        self._how = _core.SB_RECORD_EVENTS if events else 1
        self._first = first
        self._probes = native.Probes(0)
        self._places: list[_core.NativePlace] = []
        self.lost = 0
        features = self._probes.session.features
        if events and features & _core.SB_FEATURE_EVENTS:
            return
        if not events and features & _core.SB_FEATURE_DURATIONS:
            return
        self._probes.close()
        what = (
            "the module reports no single calls"
            if features & _core.SB_FEATURE_DURATIONS
            else "the loaded module does not see how long calls last"
        )
        raise native.NativeError(
            errno.EOPNOTSUPP, f"{names[0]}: {what}: use BPF (SPEED_BUMP_BACKEND=bpf)"
        )

    def start(self, pid: int) -> None:
        """Record in the process ``pid`` and its descendants.

        What is to be a part of the durations, such as delays of the same functions, must
        have been added before: the kernel runs what was added last first.

        Raises:
            NativeError: no such file or function
        """
        wanted = []
        for name in self.names:
            (target,) = parse_targets(name, "--latency")
            wanted.append(
                _core.native_target(target.left, target.right, record=self._how)
            )
        self._probes.scope_to(pid)
        self._places = self._probes.add(wanted)

    def histograms(self) -> list[Histogram]:
        """The durations so far, in the order of the names."""
        session = self._probes.session
        sites = {site.id: site for site in session.list()}
        found = []
        for number, name in enumerate(self.names):
            all_of_it = Histogram(
                name, "functions", False, 0, 0, 0, 0, array("Q", bytes(8 * _BUCKETS))
            )
            for place in self._places:
                if place.target == number:
                    site = sites[place.id]
                    one = session.durations(place.id)
                    left = site.unreturned + site.missed
                    all_of_it = all_of_it.merged(
                        Histogram(
                            name,
                            "functions",
                            begun=site.calls > 0,
                            unended=left,
                            unbegun=0,
                            sum_ns=one.sum_ns,
                            max_ns=one.max_ns,
                            buckets=array("Q", one.buckets),
                        )
                    )
            found.append(all_of_it)
        return found

    def events(self) -> npt.NDArray[np.void]:
        """The calls that have ended since the last time: an array of ``Events.dtype()``.

        They are in the order of their ends. ``pid`` is the number of the process in the
        initial pid namespace.
        """
        import numpy as np

        dtype = np.dtype(
            [
                ("begin_ns", "u8"),
                ("duration_ns", "u8"),
                ("id", "u8"),
                ("pid", "u4"),
                ("reserved", "u4"),
            ]
        )
        parts, more = [], bool(self._places)
        while more:
            taken = self._probes.session.events()
            self.lost, more = taken.lost, taken.more
            parts.append(taken.data)
        raw = np.frombuffer(b"".join(parts), dtype)
        found = np.empty(len(raw), Events.dtype())
        for field in ("begin_ns", "duration_ns", "pid"):
            found[field] = raw[field]
        if len(raw):
            places = sorted(self._places, key=lambda place: place.id)
            at = np.searchsorted([place.id for place in places], raw["id"])
            found["name"] = self._first + np.array([p.target for p in places])[at]
        return found

    def close(self) -> None:
        self._probes.close()


class AllEvents:
    """The events of both: those that a program records, and those of native functions.

    Args:
        python: None: there are none
        native: the same
    """

    def __init__(self, python: Events | None, native: NativeLatencies | None) -> None:
        self._python = python
        self._native = native

    @property
    def names(self) -> tuple[str, ...]:
        """The recorded names; an event's ``name`` is an index in it."""
        python = self._python.names if self._python else ()
        return (*python, *(self._native.names if self._native else ()))

    @property
    def lost(self) -> int:
        python = self._python.lost if self._python else 0
        return python + (self._native.lost if self._native else 0)

    def events(self, *, ended: bool = False) -> npt.NDArray[np.void]:
        """What has come since the last time, of one after the other.

        Args:
            ended: the program is over
        """
        import numpy as np

        parts = [np.zeros(0, Events.dtype())]
        if self._python:
            parts.append(self._python.events(ended=ended))
        if self._native:
            parts.append(self._native.events())
        return np.concatenate(parts)


_BUCKETS = _core.DURATION_BUCKETS
