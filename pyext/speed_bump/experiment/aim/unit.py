# SPDX-License-Identifier: MIT
"""The steadiest call, which is the unit of work if nothing better is known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from speed_bump.experiment.program.stacks import Stacks, is_idle, is_import, is_ours

# An even pace is the same in this many parts of the time.
PARTS = 8
# Fewer calls are no pace.
MIN_CALLS = 20
# A function with this many calls in a part of the time is called repeatedly.
MIN_AGAIN = 3
# How far a part may deviate from the mean: as a fraction, and in calls.
UNEVEN, UNEVEN_CALLS = 0.35, 1.5
# A run that has ended is short: fewer and less even parts are allowed.
MIN_PARTS, MIN_SPAN, UNEVEN_RUN = 4, 0.3, 0.6
# Functions whose calls differ by less than this have one pace.
ALIKE = 1.15
# Functions of one pace take at least this part of the working time together, and so does
# one of a library by itself; without an even pace it takes more.
MIN_COVER, REPEATED_COVER = 0.03, 0.2


# What is called in this part of the parts of the time is called again and again.
MOST = 0.75


@dataclass(frozen=True)
class Steady:
    """A function that is called at an even pace: calls a second, and their deviation."""

    name: str
    rate: float
    spread: float

    @property
    def why_uneven(self) -> str:
        """The same if the pace is not even."""
        return (
            f"the call that its work repeats, {self.rate:.3g} a second at no even pace "
            f"(give or take {self.spread:.0%})"
        )

    @property
    def why(self) -> str:
        return (
            f"its steadiest call, {self.rate:.3g} a second "
            f"(give or take {self.spread:.0%})"
        )


def in_parts(windows: Sequence[Mapping[str, int]], parts: int) -> dict[str, list[int]]:
    """The calls of each function in equal parts of the time, without the first if odd."""
    each = len(windows) // parts
    if not each:
        return {}
    used = windows[len(windows) - each * parts :]
    found: dict[str, list[int]] = {}
    for i, window in enumerate(used):
        for name, n in window.items():
            found.setdefault(name, [0] * parts)[i // each] += n
    return found


def steady(counts: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """The functions that are called at an even pace.

    Time taken by other programs slows the whole program, so the pace of a part is that
    of the median function in it, and calls are compared with that.
    """
    often = {name: c for name, c in counts.items() if sum(c) >= MIN_CALLS}
    if not often:
        return {}
    calls = np.array(list(often.values()), float)
    means = calls.mean(axis=1, keepdims=True)
    # A function that rests for a whole part has no pace, whatever others do.
    resting = (calls == 0).any(axis=1)
    if resting.all():
        return {}
    pace = np.median((calls / means)[~resting], axis=0)
    expected = means * pace
    near = np.abs(calls - expected) <= np.maximum(UNEVEN * expected, UNEVEN_CALLS)
    even = near.all(axis=1) & ~resting
    found = {name: often[name] for name, good in zip(often, even, strict=True) if good}
    return found | _beside(found, counts)


def repeated(counts: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """The functions that are called again and again, in most parts, at whatever pace."""
    return {
        name: parts
        for name, parts in counts.items()
        if sum(parts) >= MIN_CALLS and sum(n > 0 for n in parts) >= MOST * len(parts)
    }


def _beside(
    found: Mapping[str, list[int]], counts: Mapping[str, list[int]]
) -> dict[str, list[int]]:
    """Functions that are called whenever one of these is: they have the same pace, though
    they may have missed it by a call.
    """
    if not found:
        return {}
    seldom = min(map(sum, found.values())) * ALIKE
    paces = np.array(list(found.values()))
    return {
        name: parts
        for name, parts in counts.items()
        if name not in found
        and MIN_CALLS - 2 <= sum(parts) <= seldom
        and (np.abs(paces - np.array(parts)) <= 1).all(axis=1).any()
    }


def steady_in_runs(
    runs: Sequence[Sequence[Mapping[str, int]]],
) -> dict[str, list[int]]:
    """The functions that are called at an even pace in runs that have ended.

    Each is in use for a part of the run, with one pace in most of it and in most of the
    runs. Returns their calls in each part of that time, of all of these runs.
    """
    found: dict[str, list[int]] = {}
    often: dict[str, int] = {}
    for windows in runs:
        for name in {name for window in windows for name in window}:
            parts = _in_span([window.get(name, 0) for window in windows])
            if parts:
                often[name] = often.get(name, 0) + 1
                found.setdefault(name, []).extend(parts)
    return {n: parts for n, parts in found.items() if 2 * often[n] > len(runs)}


def repeated_in_runs(
    runs: Sequence[Sequence[Mapping[str, int]]],
) -> dict[str, list[int]]:
    """The functions that are called in most of the time of each run, and equally often in
    each of several runs.

    They are repeated by design, at whatever pace a busy machine or the program itself
    gives them. Returns their calls in each window, of all of these runs.
    """
    if len(runs) < 2 or min(map(len, runs)) < 2:
        return {}
    found: dict[str, list[int]] = {}
    for name in {name for window in runs[0] for name in window}:
        calls = [[window.get(name, 0) for window in windows] for windows in runs]
        if len(set(map(sum, calls))) == 1 and all(repeated({name: c}) for c in calls):
            found[name] = [n for c in calls for n in c]
    return found


def _in_span(calls: list[int]) -> list[int]:
    """The calls in parts of the time that it is in use, if that is long and even."""
    active = [i for i, n in enumerate(calls) if n]
    if sum(calls) < MIN_CALLS or active[-1] - active[0] < MIN_SPAN * len(calls):
        return []
    # The first and the last one are incomplete.
    span = calls[active[0] + 1 : active[-1]]
    parts = min(PARTS, len(span))
    if parts < MIN_PARTS:
        return []
    found = [
        sum(span[i * len(span) // parts : (i + 1) * len(span) // parts])
        for i in range(parts)
    ]
    sizes = np.diff([i * len(span) // parts for i in range(parts + 1)])
    expected = sizes * (sum(span) / len(span))
    off = np.abs(np.array(found) - expected)
    near = off <= np.maximum(UNEVEN_RUN * expected, UNEVEN_CALLS)
    # One part may contain a pause.
    return found if min(found) > 0 and np.count_nonzero(~near) <= 1 else []


def steadiest(
    even: Mapping[str, list[int]],
    seconds: float,
    stacks: Stacks,
    is_own: Callable[[str], bool],
    pids: Collection[int],
    library_cover: float = MIN_COVER,
) -> list[Steady]:
    """Possible units of work, the best first.

    The slowest pace is that of the outermost calls, if these take time. With equal pace,
    functions of the program come before those of libraries, then the one that takes the
    most time.

    Args:
        seconds: in which the calls were counted
        is_own: whether a function belongs to the program, not to a library
        pids: the processes whose calls they are
        library_cover: the part of the time in a function of a library, with what it calls
    """
    groups: list[list[str]] = []
    for name in sorted(even, key=lambda n: (sum(even[n]), n)):
        if is_import(name) or is_ours(name) or "<genexpr>" in name:
            continue
        if not groups or sum(even[name]) > ALIKE * sum(even[groups[-1][0]]) + 1:
            groups.append([])
        groups[-1].append(name)
    which = {name: i for i, names in enumerate(groups) for name in names}
    cover = [0] * len(groups)
    total: dict[str, int] = {}
    depth: dict[str, int] = {}
    busy = 0
    for stack, n in stacks.samples.items():
        if stack.pid not in pids or stack.waiting_in:
            continue
        busy += n
        for i in {which[name] for name in stack.frames if name in which}:
            cover[i] += n
        for at, name in enumerate(stack.frames):
            if name in which:
                total[name] = total.get(name, 0) + n
                depth.setdefault(name, at)
    order = sorted(range(len(groups)), key=lambda i: (cover[i] < MIN_COVER * busy, i))

    def may_be(name: str) -> bool:
        # Small calls of a library are no units because they are even.
        return is_own(name) or total.get(name, 0) >= library_cover * busy

    def worth(name: str) -> tuple[bool, bool, float, int, str]:
        mine = total.get(name, 0)
        # With equal time, prefer the outer function, whatever the samples say by chance.
        return is_idle(name), not is_own(name), -mine, depth.get(name, 1 << 20), name

    return [
        Steady(
            name,
            sum(even[name]) / seconds if seconds else 0.0,
            float(np.std(even[name]) / max(np.mean(even[name]), 1e-9)),
        )
        for i in order
        for name in sorted(filter(may_be, groups[i]), key=worth)
    ]


def outgrown(
    found: Sequence[Steady],
    calls: Mapping[str, int],
    stacks: Stacks,
    is_own: Callable[[str], bool],
) -> str:
    """A function of the program that calls the best one repeatedly and is not among those
    found, because it has just begun or is too slow to show a pace yet; or "".

    Args:
        calls: in a short time
        stacks: in that time
    """
    names = {one.name for one in found}
    below: dict[str, int] = {}
    seen = 0
    for stack, n in stacks.samples.items():
        if found[0].name not in stack.frames:
            continue
        seen += n
        for outer in set(stack.frames[: stack.frames.index(found[0].name)]) - names:
            below[outer] = below.get(outer, 0) + n
    return next(
        (
            outer
            for outer, n in below.items()
            if 2 * n > seen
            and calls.get(outer, 0) >= MIN_AGAIN
            and is_own(outer)
            and not (is_idle(outer) or is_import(outer) or is_ours(outer))
        ),
        "",
    )
