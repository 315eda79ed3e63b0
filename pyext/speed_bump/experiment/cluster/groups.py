# SPDX-License-Identifier: MIT
"""Groups of the ranks of a job: its nodes, its roles, the dimensions of its layout."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from speed_bump.experiment.job_ranks import Rank

NODE, ROLE = "node", "role"


@dataclass(frozen=True)
class Group:
    """Ranks with something in common: ``kind`` is "node", "role", or a dimension."""

    kind: str
    name: str
    ranks: frozenset[Rank]

    @property
    def label(self) -> str:
        """Such as "node n7" or "pp=1"."""
        between = " " if self.kind in (NODE, ROLE) else "="
        return f"{self.kind}{between}{self.name}"


@dataclass(frozen=True)
class Layout:
    """The dimensions along which a program divides its ranks; the last varies fastest."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def world(self) -> int:
        """The number of ranks."""
        return math.prod(self.sizes)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """The position of a rank in each dimension."""
        found = []
        for size in reversed(self.sizes):
            rank, at = divmod(rank, size)
            found.append(at)
        return tuple(reversed(found))


def layout(text: str) -> Layout:
    """Parse such as "pp=2,dp=4,tp=8".

    Raises:
        ValueError: it is not a layout; the message says why
    """
    names, sizes = [], []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*([1-9]\d{0,8})\s*", part)
        if not match:
            raise ValueError(f"'{part}' is not such as tp=8")
        if match[1] in (NODE, ROLE):
            raise ValueError(f"'{match[1]}' is known without it")
        if match[1] in names:
            raise ValueError(f"'{match[1]}' is there twice")
        names.append(match[1])
        sizes.append(int(match[2]))
    return Layout(tuple(names), tuple(sizes))


def groups_of(who: Sequence[Rank], of: Layout | None = None) -> tuple[Group, ...]:
    """All groups that are a part of the ranks: nodes, roles, then dimensions."""
    found: list[Group] = []

    def add(kind: str, name: Callable[[Rank], str]) -> None:
        inside: dict[str, list[Rank]] = {}
        for rank in who:
            inside.setdefault(name(rank), []).append(rank)
        if len(inside) > 1:
            found.extend(Group(kind, n, frozenset(some)) for n, some in inside.items())

    add(NODE, lambda rank: rank.host)
    add(ROLE, lambda rank: rank.role)
    if of is not None:
        places = {rank: of.coordinates(rank.rank) for rank in who}
        for k, dimension in enumerate(of.names):
            add(dimension, {rank: str(at[k]) for rank, at in places.items()}.__getitem__)
    return tuple(found)


def common_label(ranks: Sequence[Rank], groups: Sequence[Group]) -> str:
    """The label of the group that these are, or are all but; "" if there is none."""
    some = frozenset(ranks)
    if len(some) < 2:
        return ""
    for group in groups:
        if group.ranks == some:
            return group.label
    known = frozenset(rank for group in groups for rank in group.ranks)
    others = known - some
    for group in groups:
        if others and group.ranks == others:
            return f"all but {group.label}"
    return ""
