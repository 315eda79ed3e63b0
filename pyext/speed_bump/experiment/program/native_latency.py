# SPDX-License-Identifier: MIT
"""How long calls of native functions take, as the kernel sees both of their ends."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from speed_bump import _core, native
from speed_bump.config import parse_targets
from speed_bump.experiment.program.latency import Histogram


class NativeLatencies:
    """Records durations of calls in a process tree.

    Args:
        names: ``native:PATH:SYMBOL``, each of which may match several functions

    Raises:
        NativeError: there is no backend
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._probes = native.Probes(0)
        self._places: list[_core.NativePlace] = []

    def start(self, pid: int) -> None:
        """Record in the process ``pid`` and its descendants.

        Raises:
            NativeError: no such file or function, or the backend sees no ends of calls
        """
        wanted = []
        for name in self._names:
            (target,) = parse_targets(name, "--latency")
            wanted.append(_core.native_target(target.left, target.right, record=True))
        self._probes.scope_to(pid)
        self._places = self._probes.add(wanted)

    def histograms(self) -> list[Histogram]:
        """The durations so far, in the order of the names."""
        session = self._probes.session
        sites = {site.id: site for site in session.list()}
        found = []
        for number, name in enumerate(self._names):
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

    def close(self) -> None:
        self._probes.close()


_BUCKETS = _core.DURATION_BUCKETS
