# SPDX-License-Identifier: MIT
"""Snapshots of the counts."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, field

from speed_bump import _core

TYPE_CHECKING = False  # not from typing, which is slow to import
if TYPE_CHECKING:
    from typing import TypeAlias


@dataclass(frozen=True)
class FunctionStatistics:
    """A function that matched, in one process.

    ``name`` is ``module:qualname`` or, for a native function, ``PATH:SYMBOL``; ``target``
    is the text of the target that it matched. ``pid`` is 0 if the kernel counts for a
    whole process tree, and for the sum over processes that have ended, once their room is
    reused. ``delayed`` of the ``calls`` were delayed. ``requested_ns`` is the sum of the
    delays asked for, and ``delivered_ns`` that of the delays delivered.
    """

    name: str
    target: str
    pid: int
    calls: int
    delayed: int
    requested_ns: int
    delivered_ns: int


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
    def delivered_ns(self) -> int:
        """The sum of all delivered delays, ns."""
        return sum(f.delivered_ns for f in (*self.functions, *self.native))


# The identity of a site in a table: equal to that of another copy of this module.
_Key = namedtuple("_Key", ("kind", "name", "pid", "target"))


@dataclass
class _Counts:
    calls: int = 0
    delayed: int = 0
    requested_ns: int = 0
    delivered_ns: int = 0

    def __add__(self, other: _Counts) -> _Counts:
        return _Counts(
            self.calls + other.calls,
            self.delayed + other.delayed,
            self.requested_ns + other.requested_ns,
            self.delivered_ns + other.delivered_ns,
        )


Baseline: TypeAlias = dict[_Key, _Counts]
_NOTHING = _Counts()


def _key(site: _core.Site) -> _Key:
    return _Key(site.kind, site.name, site.pid, site.target)


def baseline(table: _core.Table) -> Baseline:
    """What ``table`` has counted so far, as a base for ``read()``."""
    return {
        _key(site): _Counts(
            site.calls, site.delayed, site.requested_ns, site.delivered_ns
        )
        for site in table.read()
    }


def _of_the_ended(sites: list[_core.Site], since: Baseline | None) -> Baseline:
    """``since``, adapted if counts of ended processes are now those of pid 0."""
    if not since:
        return {}
    found = dict(since)
    for key in since.keys() - {_key(site) for site in sites}:
        if key.pid:
            ended = key._replace(pid=0)
            found[ended] = found.get(ended, _NOTHING) + found.pop(key)
    return found


def read(
    table: _core.Table | None,
    targets: dict[int, str],
    pid: int | None,
    native: list[FunctionStatistics],
    since: Baseline | None = None,
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
        if pid is not None and site.pid != pid:
            continue
        before = since.get(_key(site)) if since else None
        if before and site.calls == before.calls:
            continue
        before = before or _NOTHING
        calls = site.calls - before.calls
        if site.kind == _core.SB_SITE_PROGRESS:
            progress[site.name] = progress.get(site.name, 0) + calls
        elif site.kind == _core.SB_SITE_FUNCTION:
            functions.append(
                FunctionStatistics(
                    name=site.name,
                    target=targets.get(site.target, ""),
                    pid=site.pid,
                    calls=calls,
                    delayed=site.delayed - before.delayed,
                    requested_ns=site.requested_ns - before.requested_ns,
                    delivered_ns=site.delivered_ns - before.delivered_ns,
                )
            )
    functions.sort(key=lambda f: (-f.delivered_ns, -f.calls, f.name))
    lost = table.lost if table else 0
    return Statistics(tuple(functions), tuple(native), progress, lost)
