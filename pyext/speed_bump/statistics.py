# SPDX-License-Identifier: MIT
"""Snapshots of the counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from speed_bump import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias


@dataclass(frozen=True)
class FunctionStatistics:
    """A function that matched, in one process.

    ``name`` is ``module:qualname`` or, for a native function, ``PATH:SYMBOL``; ``target``
    is the text of the target that it matched. ``pid`` is 0 if the kernel counts for a
    whole process tree, and for the sum over processes that have ended, once their room is
    reused. ``delayed`` of the ``calls`` were delayed, by ``requested_ns`` as requested
    and by ``measured_ns`` as delivered.
    """

    name: str
    target: str
    pid: int
    calls: int
    delayed: int
    requested_ns: int
    measured_ns: int


@dataclass(frozen=True)
class Statistics:
    """All functions that matched, native ones separately, and the progress points.

    ``lost`` is how many functions found no room to be counted in some process, each once;
    they were not delayed, except in a forked child.
    """

    functions: tuple[FunctionStatistics, ...] = ()
    native: tuple[FunctionStatistics, ...] = ()
    progress: dict[str, int] = field(default_factory=dict)
    lost: int = 0

    @property
    def calls(self) -> int:
        """Calls of all functions."""
        return sum(f.calls for f in (*self.functions, *self.native))

    @property
    def delayed(self) -> int:
        """Calls that were delayed."""
        return sum(f.delayed for f in (*self.functions, *self.native))

    @property
    def injected_ns(self) -> int:
        """The sum of all delivered delays, ns."""
        return sum(f.measured_ns for f in (*self.functions, *self.native))


# The identity of a site in a table: kind, name, pid, target.
Key: TypeAlias = tuple[int, str, int, int]
# calls, delayed, requested_ns, measured_ns
Counts: TypeAlias = tuple[int, int, int, int]


def baseline(table: _core.Table) -> dict[Key, Counts]:
    """What ``table`` has counted so far, as a base for ``read()``."""
    return {site[:4]: site[5:] for site in table.read()}


def _of_the_ended(
    sites: list[_core.Site], since: dict[Key, Counts] | None
) -> dict[Key, Counts]:
    """``since``, adapted if counts of ended processes are now those of pid 0."""
    if not since:
        return {}
    found = dict(since)
    for kind, name, pid, target in since.keys() - {site[:4] for site in sites}:
        ended = kind, name, 0, target
        if pid:
            counts = zip(
                found.get(ended, (0, 0, 0, 0)),
                found.pop((kind, name, pid, target)),
                strict=True,
            )
            calls, delayed, requested, measured = (a + b for a, b in counts)
            found[ended] = calls, delayed, requested, measured
    return found


def read(
    table: _core.Table | None,
    targets: dict[int, str],
    pid: int | None,
    native: list[FunctionStatistics],
    since: dict[Key, Counts] | None = None,
) -> Statistics:
    """Read ``table``, only process ``pid`` unless that is None.

    ``targets`` are the texts of the targets by their numbers in the table. ``since`` is
    subtracted, and functions that have not been called since are left out.
    """
    functions: list[FunctionStatistics] = []
    progress: dict[str, int] = {}
    sites = table.read() if table else []
    since = _of_the_ended(sites, since)
    for site in sites:
        kind, name, its_pid, target = site[:4]
        if pid is not None and its_pid != pid:
            continue
        calls, delayed, requested, measured = site[5:]
        before = since.get(site[:4])
        if before:
            calls -= before[0]
            delayed -= before[1]
            requested -= before[2]
            measured -= before[3]
            if not calls:
                continue
        if kind == _core.SB_SITE_PROGRESS:
            progress[name] = progress.get(name, 0) + calls
        elif kind == _core.SB_SITE_FUNCTION:
            text = targets.get(target, "")
            functions.append(
                FunctionStatistics(
                    name, text, its_pid, calls, delayed, requested, measured
                )
            )
    functions.sort(key=lambda f: (-f.measured_ns, -f.calls, f.name))
    lost = table.lost if table else 0
    return Statistics(tuple(functions), tuple(native), progress, lost)
