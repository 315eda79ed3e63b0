# SPDX-License-Identifier: MIT
"""What to measure where nothing was named, found by looking at a run of the program.

All of its Python functions are counted, and its stacks looked at, until it works at an
even pace. Candidates are those that take time; the unit of work is what the program says,
or what a framework is known by, or the call that is steadiest.
"""

from __future__ import annotations

import glob
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from speed_bump import _core
from speed_bump.config import Target, parse_targets
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner, why_nobody_reported
from speed_bump.experiment.program.workload import Workload
from speed_bump.experiment.rank import RankError

# What no program is made faster by: how it is imported, and what measures it.
NEVER = (
    "!_frozen_importlib*:*",
    "!importlib*:*",
    "!<frozen *:*",
    "!speed_bump*:*",
    "!*:<genexpr>",
)
# A candidate has this part of the time that was seen, at the least.
MIN_SHARE = 0.002
MAX_CANDIDATES = 24
# The pace is looked at so often; it is even when the last so many looks agree.
WINDOW_S = 0.5
WINDOWS = 8
# Fewer calls in all these windows are no pace.
MIN_CALLS = 20
# How far a window may be from the mean: in parts of it, and in calls.
UNEVEN, UNEVEN_CALLS = 0.35, 1.5
# Modules that may still be imported meanwhile.
MAX_IMPORTS = 2
# What is imported for longer than this is work.
MAX_IMPORT_S = 120.0
# Frameworks by the call that is their unit, first come first served.
KNOWN = (
    ("torch.optim.*:*.step", "a step of the optimizer"),
    ("aiohttp.web_protocol:RequestHandler._handle_request", "a request"),
)


@dataclass
class Aim:
    """What was found.

    ``candidates`` by their part of the time, the largest first; ``others`` are those
    that take time too and are left out. ``why`` says how the unit was found.
    """

    candidates: dict[str, float] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    progress: Progress = field(default_factory=Progress)
    why: str = ""

    def targets(self) -> list[Target]:
        """A target for each candidate, whatever characters its name has."""
        return [_exactly(name) for name in self.candidates]


def _exactly(name: str) -> Target:
    left, _, right = name.rpartition(":")
    return parse_targets(f"{glob.escape(left)}:{glob.escape(right)}", "function")[0]


@dataclass
class _Window:
    """What was seen in one: calls by function in the main process and in all, samples."""

    main: dict[str, int]
    calls: dict[str, int]
    samples: dict[str, int]
    ticks: int


def aim(
    runner: Runner,
    progress: Progress,
    seconds: float,
    now: Callable[[str], None],
    named: list[Target] | None = None,
) -> Aim:
    """Run the program until it works at an even pace, at most so long, and end it.

    Args:
        progress: what a unit is, where that was said
        named: targets that were named; only the unit is looked for then

    Raises:
        RankError: nothing was seen to measure; it says why
        LaunchError: of starting the program
    """
    excluded = [t for text in NEVER for t in parse_targets(text, "found")]
    looking = replace(runner, excludes=[*runner.excludes, *excluded])
    looking.borrow(runner)
    windows: list[_Window] = []
    points: dict[str, int] = {}
    begin = time.monotonic()
    end = begin + seconds
    with Workload(looking, parse_targets("*:*", "found"), progress, LARGE) as program:
        while program.is_running() and time.monotonic() < end:
            windows.append(_look(program))
            if _imports(windows[-1:]) and time.monotonic() < begin + MAX_IMPORT_S:
                end = time.monotonic() + seconds
                now("waiting for the program to have imported what it needs")
            else:
                now("looking at the program: what takes time, what is a unit of work")
            if len(windows) >= WINDOWS and _is_even(windows[-WINDOWS:]):
                break
        points = {name: n for name, n in program.points().items() if n}
        processes = program.processes
        if not program.is_running():
            ended = program.wait()
            if ended.status and not ended.interrupted:
                raise RankError(
                    f"the program failed with status {ended.status}",
                    ended.status,
                    program.output(),
                )
    if not processes:
        raise RankError(why_nobody_reported(runner.command))
    return _found(windows[-WINDOWS:], progress, points, named)


# Functions times processes: all that a large program ever calls.
LARGE = 1 << 16


def _look(program: Workload) -> _Window:
    main, calls = program.calls_of_main(), program.calls()
    samples = program.sample(int(WINDOW_S * 1e9), lambda: None)
    main_after, after = program.calls_of_main(), program.calls()
    return _Window(
        _less(main_after, main), _less(after, calls), samples.python, samples.ticks
    )


def _less(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {
        name: n - before.get(name, 0)
        for name, n in after.items()
        if n > before.get(name, 0)
    }


def _counts(windows: list[_Window], of_main: bool) -> dict[str, list[int]]:
    names = {name for w in windows for name in (w.main if of_main else w.calls)}
    return {
        name: [(w.main if of_main else w.calls).get(name, 0) for w in windows]
        for name in names
    }


def _steady(counts: dict[str, list[int]]) -> dict[str, list[int]]:
    """The functions that are called at an even pace.

    What others take from the program makes it slower as a whole: the pace of a window is
    that of the usual function in it, and calls are counted against that.
    """
    often = {name: c for name, c in counts.items() if sum(c) >= MIN_CALLS}
    if not often:
        return {}
    calls = np.array(list(often.values()), float)
    means = calls.mean(axis=1, keepdims=True)
    pace = np.median(calls / means, axis=0)
    expected = means * pace
    off = np.abs(calls - expected)
    near = off <= np.maximum(UNEVEN * expected, UNEVEN_CALLS)
    # A function that rests for a whole window has no pace, whatever others do.
    even = (near & (calls > 0)).all(axis=1)
    return {name: often[name] for name, good in zip(often, even, strict=True) if good}


def _is_even(windows: list[_Window]) -> bool:
    """Whether the program does the same thing again and again by now."""
    # A program that imports is not at work yet, however even that is.
    return _imports(windows) <= MAX_IMPORTS and bool(_steady(_counts(windows, True)))


def _imports(windows: list[_Window]) -> int:
    """How many modules were imported in them."""
    return sum(n for w in windows for name, n in w.calls.items() if _is_import(name))


def _is_import(name: str) -> bool:
    """Whether it is the body of a module."""
    return name.endswith(":<module>")


def _found(
    windows: list[_Window],
    progress: Progress,
    points: dict[str, int],
    named: list[Target] | None,
) -> Aim:
    ticks = sum(w.ticks for w in windows)
    samples: dict[str, int] = {}
    for w in windows:
        for name, n in w.samples.items():
            samples[name] = samples.get(name, 0) + n
    shares = {
        name: n / max(ticks, 1)
        for name, n in sorted(samples.items(), key=lambda item: -item[1])
        if n >= max(MIN_SHARE * ticks, 2) and not _is_import(name)
    }
    chosen = dict(list(shares.items())[:MAX_CANDIDATES])
    found = Aim(chosen, tuple(shares)[MAX_CANDIDATES:], progress, "as it was named")
    if progress.is_open and points:
        found.why = "the program says it, by progress()"
    elif progress.is_open:
        name, found.why = _unit(windows)
        if name:
            found.progress = Progress(functions=(_exactly(name),))
    if not named and not chosen:
        raise RankError(
            "no Python function was seen to take time while the program was looked at: "
            "name functions with -t, or native ones with --native"
        )
    return found


def _unit(windows: list[_Window]) -> tuple[str, str]:
    """The function whose calls are units of work, and why; "" for none."""
    counts = _counts(windows, False)
    for pattern, what in KNOWN:
        left, right = pattern.split(":")
        for name in sorted(counts, key=lambda n: -sum(counts[n])):
            module, _, qualname = name.rpartition(":")
            if (
                _core.glob_match(left, module)
                and _core.glob_match(right, qualname)
                and sum(counts[name]) > 1
            ):
                return name, what
    main = _steady(_counts(windows, True))
    if not main:
        return "", "no call of it is steady: a unit is a whole run"
    # Of calls at the same pace any will do; the slowest pace is that of the outermost.
    slowest = min(sum(c) for c in main.values())
    alike = [n for n, c in main.items() if sum(c) <= 1.15 * slowest + 1]
    samples: dict[str, int] = {}
    for w in windows:
        for name, n in w.samples.items():
            samples[name] = samples.get(name, 0) + n
    best = max(
        alike,
        key=lambda n: (n.startswith("__main__:"), samples.get(n, 0), n),
    )
    rate = sum(main[best]) / (len(windows) * WINDOW_S)
    spread = float(np.std(main[best])) / max(float(np.mean(main[best])), 1e-9)
    return best, f"its steadiest call, {rate:.3g} a second (give or take {spread:.0%})"
