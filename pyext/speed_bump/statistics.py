# SPDX-License-Identifier: MIT
"""What was counted, as it was at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from speed_bump import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias


@dataclass(frozen=True)
class FunctionStatistics:
    """A function that matched, in one process.

    ``name`` is ``module:qualname`` or, of a native function, ``PATH:SYMBOL``; ``target``
    the text of the target that it matched; ``pid`` 0 where the kernel counts for a whole
    process tree, and of processes that have ended, together, where their room is used
    again. ``delayed`` of the ``calls`` were delayed, by ``requested_ns`` as was
    asked and by ``measured_ns`` as it was.
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
    """All functions that matched, the native ones apart, and the progress points.

    ``lost`` is how many functions found no room to be counted in some process, each once;
    they were not delayed, but in a child that was forked.
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
        """All delays together as they were, ns."""
        return sum(f.measured_ns for f in (*self.functions, *self.native))


# What tells a site of a table from another: kind, name, pid, target.
Key: TypeAlias = tuple[int, str, int, int]
# calls, delayed, requested_ns, measured_ns
Counts: TypeAlias = tuple[int, int, int, int]


def baseline(table: _core.Table) -> dict[Key, Counts]:
    """What ``table`` has counted so far, for ``read()`` to count from."""
    return {site[:4]: site[5:] for site in table.read()}


def _of_the_ended(
    sites: list[_core.Site], since: dict[Key, Counts] | None
) -> dict[Key, Counts]:
    """``since``, where counts of processes that have ended may be those of pid 0 now."""
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
    """Read ``table``, of process ``pid`` alone unless that is None.

    ``targets`` are the texts of the targets by their numbers in the table. ``since`` is
    taken off, and what has not been called since is left out.
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
