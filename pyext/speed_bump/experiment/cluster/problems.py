# SPDX-License-Identifier: MIT
"""What is wrong with a run: ranks without steps, of other settings, of another world.

Each problem is one line, which names ranks and, where they are known, nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from speed_bump.experiment.cluster.plan import arms_of_group, ranks_of
from speed_bump.experiment.cluster.rows import Rows
from speed_bump.experiment.job_ranks import Rank

# A smaller share of a CPU than this while delays are on is reported.
CROWDED = 0.9
# A rank with less than this part of the steps of the others is named.
SHORT = 0.9
# More ranks than these are counted, not listed.
MAX_LISTED = 8
IN_FRONT = "is 'speed-bump member' in front of the program there"

Seen = Mapping[int, Rank]


@dataclass
class Column:
    """What one rank left: its rows, or only that it was a member (``silent``)."""

    rank: Rank
    setup: dict[str, Any]
    parts: list[Rows] = field(default_factory=list)
    silent: list[Rank] = field(default_factory=list)

    @property
    def ranks(self) -> list[Rank]:
        """The rank as it was in each part, with its attempt."""
        return [*self.silent, *(part.rank for part in self.parts)]


def where(rank: Rank) -> str:
    """Such as "rank 3 on n7"."""
    return f"{rank.name} on {rank.host}" if rank.host else rank.name


def problems(columns: Sequence[Column], groups: Sequence[str]) -> list[str]:
    """All problems of a run in which at least one rank finished a step.

    Args:
        groups: those of --confirm
    """
    attempts = _attempts(columns)
    at_work = [column for column in columns if column.parts]
    return [
        *_absent(columns, attempts),
        *_silent(columns, attempts),
        *_without_number(at_work),
        *_settings(columns),
        *_short(at_work, len(attempts) > 1),
        *_odd(at_work),
        *_unknown_groups(groups, attempts),
        *_functions(at_work, groups),
        *_crowded(at_work),
        *_restarts(attempts),
    ]


def _attempts(columns: Iterable[Column]) -> dict[int, dict[int, Rank]]:
    """By attempt, the ranks with a number that were there."""
    found: dict[int, dict[int, Rank]] = {0: {}}
    for column in columns:
        for rank in column.ranks:
            if rank.rank >= 0:
                found.setdefault(max(rank.attempt, 0), {})[rank.rank] = rank
    return {attempt: found[attempt] for attempt in sorted(found) if found[attempt]}


def _world(seen: Seen) -> int:
    return max(rank.world for rank in seen.values())


def _listed(numbers: Sequence[int]) -> str:
    some = ", ".join(map(str, numbers[:MAX_LISTED]))
    more = len(numbers) - MAX_LISTED
    return f"{some} and {more} more" if more > 0 else some


def _few(lines: Sequence[str]) -> list[str]:
    """The first lines, and the number of others: there may be thousands of ranks."""
    more = len(lines) - MAX_LISTED
    if more <= 0:
        return list(lines)
    return [*lines[:MAX_LISTED], f"the same of {more:,} more ranks"]


def _in(attempt: int, several: bool) -> str:
    return f"in attempt {attempt}, " if several else ""


# ------------------------------------------------------------------- nothing is there


def _absent(columns: Sequence[Column], attempts: Mapping[int, Seen]) -> list[str]:
    """Ranks that left nothing at all."""
    found = []
    nodes = _nodes_without_rows(columns)
    for attempt, seen in attempts.items():
        world = _world(seen)
        on = _node_by_rank(seen)
        by_node: dict[str, list[int]] = {}
        for rank in sorted(set(range(world)) - seen.keys()):
            by_node.setdefault(on(rank), []).append(rank)
        for node, ranks in by_node.items():
            line = f"{_in(attempt, len(attempts) > 1)}rank {_listed(ranks)} of {world}"
            if node:
                line += (
                    f" on {node} left nothing here, other ranks of that node did: "
                    f"{IN_FRONT}?"
                )
            else:
                line += f" (node {', '.join(nodes[:MAX_LISTED])})" if nodes else ""
                line += (
                    f" left nothing here: {IN_FRONT}, is speed-bump installed on that "
                    "node, and is the directory shared with it?"
                )
            found.append(line)
    return found


def _node_by_rank(seen: Seen) -> Callable[[int], str]:
    """Say the node of a rank that is absent; "" if that does not follow from the others.

    It follows where launchers number the ranks of a node one after the other: rank 5, the
    third of its node, has 3 and 4 beside it.
    """
    nodes: dict[str, range] = {}
    for number, rank in sorted(seen.items()):
        numbers = range(number - rank.local, number)
        before = nodes.setdefault(rank.host, numbers)
        is_next = all(seen[n].host == rank.host for n in numbers if n in seen)
        if rank.local < 0 or before.start != numbers.start or not is_next:
            return lambda _: ""
        nodes[rank.host] = numbers
    return lambda rank: next((host for host in nodes if rank in nodes[host]), "")


def nodes_of(text: str) -> tuple[str, ...]:
    """The nodes of a list as Slurm writes it, such as "n[1-3,7],m1".

    Those that are in a form that is not known are left out.
    """
    found = []
    for word in re.split(r",(?![^\[]*\])", text):
        match = re.fullmatch(r"([^\[\]]+)(?:\[([\d,-]+)\])?", word)
        if match is None:
            continue
        name, numbers = match[1], match[2]
        if numbers is None:
            found.append(name)
            continue
        for part in numbers.split(","):
            ends = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
            if ends is None:
                continue
            low, high = ends[1], ends[2] or ends[1]
            found += [f"{name}{n:0{len(low)}}" for n in range(int(low), int(high) + 1)]
    return tuple(found)


def _nodes_without_rows(columns: Sequence[Column]) -> list[str]:
    """Nodes that the launcher named and that left nothing."""
    setups = (part.setup for column in columns for part in column.parts)
    named = {node for setup in setups for node in setup.get("nodes", ())}
    seen = {rank.host.partition(".")[0] for column in columns for rank in column.ranks}
    return sorted(node for node in named if node.partition(".")[0] not in seen)


def _silent(columns: Sequence[Column], attempts: Mapping[int, Seen]) -> list[str]:
    """Members whose program reported no step.

    Beside a complete job, one without a number is no rank: with Ray, the tasks that a
    rank starts are members too.
    """
    is_complete = bool(attempts) and all(
        0 < _world(seen) <= len(seen) for seen in attempts.values()
    )
    lines = []
    for column in columns:
        at_work = {part.rank.attempt for part in column.parts}
        at_work |= {-1} if at_work else set()
        lines += [
            f"{where(rank)} is a member and reported no step: is speed-bump installed "
            "for the Python of its program, and does it reach --progress?"
            for rank in column.silent
            if rank.attempt not in at_work and (rank.rank >= 0 or not is_complete)
        ]
    return _few(lines)


def _without_number(columns: Sequence[Column]) -> list[str]:
    """Ranks without a number, where others have one or are on another node."""
    unknown = [column.rank for column in columns if column.rank.rank < 0]
    hosts = {column.rank.host for column in columns}
    if len(unknown) == len(columns) and len(hosts) < 2:
        return []
    return _few(
        [
            f"{where(rank)} does not know its rank: the variables of its launcher did "
            "not reach it, as after the environment was cleared"
            for rank in unknown
        ]
    )


# ------------------------------------------------------------------ something differs


def _settings(columns: Sequence[Column]) -> list[str]:
    found = []
    for key, words in (
        ("seed", "--seed"),
        ("key", "other targets, --progress, --delay or --dose"),
        ("version", "speed-bump"),
    ):
        usual = Counter(c.setup[key] for c in columns).most_common(1)[0][0]
        lines = []
        for column in columns:
            value = column.setup[key]
            if value == usual:
                continue
            if key == "key":
                lines.append(f"{where(column.rank)} was given {words} than the others")
            else:
                more = "; its steps are left out" if key == "seed" else ""
                lines.append(
                    f"{where(column.rank)} has {words} {value}, the others {usual}{more}"
                )
        found += _few(lines)
    return found


def _short(columns: Sequence[Column], several: bool) -> list[str]:
    """Ranks with fewer steps than the others of their attempt."""
    finished: dict[int, dict[Rank, int]] = {}
    for column in columns:
        for part in column.parts:
            count = int(np.isfinite(part.time_ns).sum())
            mine = finished.setdefault(max(part.rank.attempt, 0), {})
            mine[part.rank] = mine.get(part.rank, 0) + count
    lines = []
    for attempt, counts in sorted(finished.items()):
        most = max(counts.values())
        lines += [
            f"{_in(attempt, several)}{where(rank)} has {count:,} steps, others {most:,}: "
            "it ended early, began late, or counts other steps"
            for rank, count in counts.items()
            if count < SHORT * most
        ]
    return _few(lines)


def _odd(columns: Sequence[Column]) -> list[str]:
    uncalled = [
        f"{where(column.rank)}: none of the targets was called there"
        for column in columns
        if not any(part.functions for part in column.parts)
    ]
    twice = [
        f"{where(column.rank)}: two processes have this rank"
        for column in columns
        if len({(p.rank.attempt, p.rank.pid, p.rank.host) for p in column.parts})
        > len({p.rank.attempt for p in column.parts})
    ]
    return [*_few(uncalled), *_few(twice)]


def _unknown_groups(groups: Sequence[str], attempts: Mapping[int, Seen]) -> list[str]:
    """Groups of --confirm that don't match the ranks.

    Ranks that left nothing are reported elsewhere.
    """
    found = []
    ranks: set[int] = set()
    for seen in attempts.values():
        ranks |= seen.keys() | set(range(_world(seen)))
    for group in groups:
        inside = ranks_of(group)
        strange = sorted(inside - ranks)
        if strange == sorted(inside):
            found.append(f"--confirm {group}: no such rank")
        elif strange:
            found.append(f"--confirm {group}: no rank {_listed(strange)}")
        if inside >= ranks:
            found.append(
                f"--confirm {group}: these are all ranks; it is for a part of them"
            )
    return found


def _functions(columns: Sequence[Column], groups: Sequence[str]) -> list[str]:
    without = max(c.parts[-1].setup.get("without_arm", 0) for c in columns)
    if not without:
        return []
    of = f" with {len(groups)} group{'s' if len(groups) > 1 else ''}" if groups else ""
    return [
        f"{without} functions were called and not delayed: at most "
        f"{arms_of_group(len(groups))}{of}"
    ]


def _crowded(columns: Sequence[Column]) -> list[str]:
    shares = [share for c in columns for share in c.parts[-1].shares]
    if not shares or min(shares) >= CROWDED:
        return []
    return [
        f"while they were delayed functions had {100 * min(shares):.0f}% of a CPU: ranks "
        "share cores, with one another or with other programs, so that a delay takes "
        "longer than it should and also delays others; all ± are wider for it"
    ]


def _restarts(attempts: Mapping[int, Seen]) -> list[str]:
    """That the job was started again, and whether with all of its ranks."""
    if len(attempts) < 2:
        return []
    found = [f"the job was started {len(attempts)} times (attempts {list(attempts)})"]
    order = sorted(attempts)
    for before, now in pairwise(order):
        old, new = attempts[before], attempts[now]
        if _world(old) == _world(new):
            continue
        words = (
            f"attempt {now} has {_ranks(_world(new))}, attempt {before} had {_world(old)}"
        )
        gone, come = _besides(old, new), _besides(new, old)
        words += f"; no longer there: {gone}" if gone else ""
        words += f"; new: {come}" if come else ""
        found.append(words)
    return found


def _ranks(count: int) -> str:
    return f"{count} rank" if count == 1 else f"{count} ranks"


def _besides(these: Seen, those: Seen) -> str:
    """The ranks of these that those do not have: numbers are reassigned, places stay."""

    def place(rank: Rank) -> tuple[str, int]:
        return rank.host, rank.local if rank.local >= 0 else rank.rank

    known = {place(rank) for rank in those.values()}
    names = [where(these[n]) for n in sorted(these) if place(these[n]) not in known]
    more = len(names) - MAX_LISTED
    some = ", ".join(names[:MAX_LISTED])
    return f"{some} and {more} more" if more > 0 else some
