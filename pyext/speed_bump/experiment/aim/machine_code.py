# SPDX-License-Identifier: MIT
"""What to measure of a program without Python: functions of its executable."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from speed_bump import native
from speed_bump.config import Config, Target, parse_targets
from speed_bump.experiment.aim.unit import PARTS, Steady, in_parts, steady
from speed_bump.experiment.program.native_times import NativeSampling
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner
from speed_bump.experiment.program.workload import Workload

# A breakpoint costs a microsecond: what is called more often is no unit of work, and is
# not counted for longer than it takes to see it: so long after the last function that is
# new, and so long in all.
MAX_RATE = 2000.0
COUNT_S, MAX_COUNT_S = 0.5, 3.0
STEP_S = 0.05
WINDOW_S = 0.1
MIN_S = 2.0
MIN_SHARE = 0.002
# Parts of names that units of work have.
WHOLE = (
    *("finish", "done", "commit", "handle", "request", "process", "frame", "step"),
    *("iterat", "batch", "tick", "update", "render", "epoch", "transaction"),
)
# Of the compiler, or called once.
NEVER = frozenset(
    {"_init", "_fini", "_start", "main", "frame_dummy", "register_tm_clones"}
    | {"deregister_tm_clones", "__do_global_dtors_aux"}
)


@dataclass
class Seen:
    """What was seen: parts of the time in functions themselves, rates, what is steady.

    Names are ``PATH:SYMBOL``. ``refused`` says why times are not known; ``readable`` has
    mangled names that no pattern can have otherwise.
    """

    own: dict[str, float] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    steady: list[Steady] = field(default_factory=list)
    seconds: float = 0.0
    refused: str = ""
    goes_on: bool = False
    readable: dict[str, str] = field(default_factory=dict)


def is_executable(path: str) -> bool:
    """Whether it is machine code that may be looked at, and no shell."""
    if os.path.basename(path) in ("sh", "bash", "dash", "zsh", "busybox"):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def target_of(path: str, symbol: str) -> Target:
    """A target for a function."""
    return parse_targets(f"native:{path}:{symbol}", "function")[0]


def _readable(path: str) -> dict[int, str]:
    """Of offsets in a file the demangled names there."""
    probes = native.Probes(os.getpid())
    try:
        target = parse_targets(f"native:{path}:*::*", "found")[0]
        config = Config(delay_ns=0)
        places = probes.add([native.from_target(target, config)], enabled=False)
        offsets = probes.session.offsets()
    except native.NativeError:
        return {}  # there is no C++ and no Rust in it
    finally:
        probes.close()
    return {offsets[place]: label for place, label, _ in places}


def _is_pattern(symbol: str) -> bool:
    """Whether a pattern of this text is that name, and would not be read otherwise."""
    return not re.search(r"[][*?]|(?<!:):(?!:)", symbol)


def look(
    runner: Runner,
    path: str,
    seconds: float,
    now: Callable[[str], None],
) -> Seen:
    """Run the program twice: to see what is called too often to be counted, and to look.

    Raises:
        NativeError: native functions can't be had here; it says what is missing
    """
    now(f"counting the functions of {os.path.basename(path)}")
    everything = parse_targets(f"native:{path}:*", "found")
    with Workload(runner, everything, Progress()) as program:
        counted, seconds_counted = _count(program)
        mangled = program.native_places()
    names = _readable(path)
    places, calls, readable = {}, {}, {}
    for name, (file, offset) in mangled.items():
        symbol = name.removeprefix(f"{path}:")
        if not counted.get(name) or symbol in NEVER:
            continue
        text = names.get(offset, name)
        if not _is_pattern(text.removeprefix(f"{path}:")):
            readable[symbol] = text.removeprefix(f"{path}:")
            text = name
        places[text] = file, offset
        calls[text] = counted[name]
    few = [name for name, n in calls.items() if n <= MAX_RATE * seconds_counted]
    hot = {name: n / seconds_counted for name, n in calls.items() if name not in few}
    now("looking at the program: what takes time, what is a unit of work")
    with Workload(runner, _targets(path, few), Progress()) as program:
        found = _look(program, places, hot, seconds)
    found.readable = readable
    return found


def _count(program: Workload) -> tuple[dict[str, int], float]:
    """The calls of each function in the first seconds, until no more of them are new."""
    begin = last = time.monotonic()
    counted: dict[str, int] = {}
    while program.is_running():
        _wait(program, STEP_S)
        now = time.monotonic()
        known, counted = len(counted), program.calls()
        if len(counted) > known:
            last = now
        if now > begin + MAX_COUNT_S or (counted and now > last + COUNT_S):
            break
    # Of what ends at once no rate is known.
    return counted, max(time.monotonic() - begin, COUNT_S)


def _targets(path: str, names: Iterable[str]) -> list[Target]:
    return [target_of(path, name.removeprefix(f"{path}:")) for name in names]


def _wait(program: Workload, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and program.is_running():
        time.sleep(0.02)


def _look(
    program: Workload,
    places: Mapping[str, tuple[str, int]],
    hot: Mapping[str, float],
    seconds: float,
) -> Seen:
    sampling = NativeSampling(places)
    windows: list[dict[str, int]] = []
    found = Seen()
    begin = time.monotonic()
    _wait(program, WINDOW_S)
    last = program.calls()
    with sampling.running({program.pid}, int(min(seconds, MIN_S) * 1e9)):
        while program.is_running() and time.monotonic() < begin + seconds:
            _wait(program, WINDOW_S)
            calls = program.calls()
            windows.append({n: c - last.get(n, 0) for n, c in calls.items()})
            last = calls
            size = len(windows) // PARTS * PARTS
            if time.monotonic() > begin + MIN_S and size:
                found.steady = _steadiest(windows[-size:])
                if found.steady:
                    break
    found.goes_on = program.is_running()
    found.seconds = max(len(windows) * WINDOW_S, WINDOW_S)
    total: dict[str, int] = {}
    for window in windows:
        for name, n in window.items():
            total[name] = total.get(name, 0) + n
    found.rates = {n: c / found.seconds for n, c in total.items() if c} | dict(hot)
    times = sampling.times
    found.refused = sampling.refused
    if times and times.clock_ns:
        shares = {n: ns / times.clock_ns for n, ns in times.self_ns.items()}
        found.own = {
            name: share
            for name, share in sorted(shares.items(), key=lambda item: -item[1])
            if share >= MIN_SHARE and name in found.rates
        }
    found.steady.sort(key=lambda one: _rank(one, found))
    return found


def _rank(one: Steady, found: Seen) -> tuple[bool, bool, float, float]:
    """The order of what may be a unit: the slowest pace, and no library's own function.

    Of one pace, a name that says so; then what is no question itself.
    """
    symbol = one.name.rpartition("/")[2].partition(":")[2]
    pace = round(math.log(max(one.rate, 1e-9)) / math.log(2))
    is_library = symbol.startswith(("std::", "void std::", "__gnu"))
    says = any(word in symbol.lower() for word in WHOLE)
    return is_library, not says, float(pace), found.own.get(one.name, 0.0)


def _steadiest(windows: list[dict[str, int]]) -> list[Steady]:
    even = steady(in_parts(windows, PARTS))
    if not even:
        return []
    slowest = min(sum(parts) for parts in even.values())
    seconds = len(windows) * WINDOW_S
    found = []
    for name, parts in sorted(even.items(), key=lambda item: (sum(item[1]), item[0])):
        mean = sum(parts) / PARTS
        spread = (sum((n - mean) ** 2 for n in parts) / PARTS) ** 0.5 / mean
        if sum(parts) <= 3 * slowest:
            found.append(Steady(name, sum(parts) / seconds, spread))
    return found


def why_not() -> str:
    """Why native functions can't be looked at here; "" if they can."""
    try:
        native.Probes(0).close()
    except native.NativeError as error:
        return str(error)
    return ""
