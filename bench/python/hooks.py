# SPDX-License-Identifier: MIT
"""The cost of the hook and the accuracy of delays: ``python bench/python/hooks.py``.

The variants alternate in one process, block by block, in changing order, and the median
of the blocks is used for each; for calls and delays, the median of seven processes.
Ratios can be compared between machines, times can't. The reference for 3.12 and later is
an empty C callback of the same kind (empty.c, compiled here). The last column says
whether the value is within the package's limit.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
import json
import math
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path

import speed_bump
from speed_bump import Config, _core

Step = Callable[[], object]
Way = tuple[Step, Step]  # set it up, take it down

MONITORING = sys.version_info >= (3, 12)
UNMATCHED = ["not.here:nothing", *(f"app{i}.*:handle_{i}*" for i in range(19))]


def function() -> None:
    pass


def nothing() -> None:
    pass


def call(calls: int) -> float:
    """ns of one call."""
    begin = time.perf_counter_ns()
    for _ in range(calls):
        function()
    return (time.perf_counter_ns() - begin) / calls


# ------------------------------------------------------------------------- ways


def bare() -> Way:
    return nothing, nothing


def slowed(targets: list[str], delay_ns: int) -> Way:
    config = Config(targets, delay_ns=delay_ns)
    return lambda: speed_bump.install(config), speed_bump.uninstall


def switched_off(target: str) -> Way:
    table = _core.Table(None, 8, False)
    policy = _core.policy()

    def begin() -> None:
        _core.start(table, f"{target}\n".encode(), [policy], None)

    return begin, _core.stop


def recorded(name: str, rings: int) -> Way:
    """Its durations are recorded in a histogram and, with a ring, also as events."""
    table = _core.Table(None, 8, latencies=[name], rings=rings)
    policy = _core.policy()

    def begin() -> None:
        _core.start(table, b"not.here:nothing\n", [policy], None)

    return begin, _core.stop


def callback(object_: object) -> Way:
    monitoring = sys.monitoring
    tool, event = 3, monitoring.events.PY_START

    def begin() -> None:
        monitoring.use_tool_id(tool, "yardstick")
        monitoring.register_callback(tool, event, object_)
        monitoring.set_events(tool, event)

    def end() -> None:
        monitoring.set_events(tool, 0)
        monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)

    return begin, end


def empty() -> types.ModuleType:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"empty{sysconfig.get_config_var('EXT_SUFFIX')}"
        source = Path(__file__).with_name("empty.c")
        include = sysconfig.get_path("include")
        flags = ["-shared", "-fPIC", "-O2", f"-I{include}"]
        subprocess.run(["cc", *flags, str(source), "-o", str(path)], check=True)
        spec = importlib.util.spec_from_file_location("empty", path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def profiled() -> Way:
    profile = empty().profile
    return lambda: profile(True), lambda: profile(False)


def take_turns(
    ways: dict[str, Way], measure: Callable[[], float], blocks: int, warm: int = 1
) -> dict[str, float]:
    """The median of the results of ``measure`` for each variant."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    rng = random.Random(1)
    for _ in range(blocks):
        rng.shuffle(order)
        for name in order:
            begin, end = ways[name]
            begin()
            for _ in range(warm):
                measure()
            found[name].append(measure())
            end()
    return {name: statistics.median(times) for name, times in found.items()}


# ------------------------------------------------------------------------ table


def row(figure: str, value: str, limit: str = "", held: bool | None = None) -> None:
    verdict = "" if held is None else "yes" if held else "NO"
    print(f"{figure:<56} {value:>12}  {limit:>14}  {verdict}".rstrip(), flush=True)


def cost_of_a_call() -> dict[str, float]:
    """The additional cost of a call with each variant, ns; "bare" is the call itself.

    "both ends": both ends are reported with the switch off, as in most slots of an
    experiment. "timed": the delay, a millionth of almost nothing, is shorter than the
    time of the hooks. "recorded": the duration is recorded in a histogram, "events": in a
    ring too.
    """
    ways = {
        "bare": bare(),
        "matched": slowed(["__main__:function"], 0),
        "unmatched": slowed(UNMATCHED, 0),
        "both ends": switched_off("__main__:function delay=5%"),
        "timed": slowed(["__main__:function delay=0.0001%"], 0),
        "other ends": slowed(["__main__:nothing delay=5%"], 0),
        "recorded": recorded("__main__:function", 0),
        "events": recorded("__main__:function", 1),
    }
    if MONITORING:
        ways["empty"] = callback(empty().Callback())
    ns = take_turns(ways, lambda: call(2000), blocks=301)
    return {n: ns[n] if n == "bare" else ns[n] - ns["bare"] for n in ns}


# A function, a method, and objects whose type has the pointer that is replaced.
C_CALLS = {
    "C function": ("math:sqrt", "math.sqrt(2.0)"),
    "method in C": ("builtins:dict.get", "table.get(1)"),
    "lru_cache object": ("__main__:cached", "cached(1)"),
}


@functools.lru_cache
def cached(value: int) -> int:
    return value


def cost_of_c_calls() -> dict[str, float]:
    """The cost of counting for a call of each kind, ns: from the best blocks of each."""
    found = {}
    space: dict[str, object] = {"math": math, "cached": cached, "table": {}}
    for name, (pattern, expression) in C_CALLS.items():
        ten = "; ".join([expression] * 10)
        exec(f"def loop(n):\n for _ in range(n): {ten}\n", space)
        loop = space["loop"]
        assert callable(loop)

        def ns(loop: Callable[[int], None] = loop) -> float:
            begin = time.perf_counter_ns()
            loop(100)
            return (time.perf_counter_ns() - begin) / 1000

        ways = {"bare": bare(), "matched": slowed([pattern], 0)}
        ns_of = take_turns(ways, lambda ns=ns: min(ns() for _ in range(20)), blocks=51)
        found[name] = ns_of["matched"] - ns_of["bare"]
    return found


def matched_in_c() -> None:
    runs = in_processes("cost_of_c_calls")
    for name in C_CALLS:
        ns = statistics.median(run[name] for run in runs)
        row(f"matched call of a {name}, more", f"{ns:.1f} ns", "5 ns", ns <= 5)


def in_processes(what: str) -> list[dict[str, float]]:
    """The results of several processes, which have objects at different addresses."""
    command = [sys.executable, __file__, what]
    return [json.loads(subprocess.check_output(command)) for _ in range(7)]


def matched() -> None:
    runs = in_processes("cost_of_a_call")
    ns = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    row("bare call", f"{ns['bare']:.1f} ns")
    row("matched call without a spin, more", f"{ns['matched']:.1f} ns")
    row("the same, told of at both ends, more", f"{ns['both ends']:.1f} ns")
    added, whole = (
        statistics.median(
            (run["both ends"] + run["bare"] * of) / (run["matched"] + run["bare"] * of)
            for run in runs
        )
        for of in (0, 1)
    )
    row("both ends / start alone, of what they add", f"{added:.2f}", "1.6", added <= 1.6)
    row("both ends / start alone, of the whole call", f"{whole:.2f}", "1.6", whole <= 1.6)
    row("the same, timed, the least delay", f"{ns['timed']:.1f} ns")
    for name, what in (
        ("recorded", "duration recorded, more than both ends"),
        ("events", "the same, and an event of each"),
    ):
        more = statistics.median(run[name] - run["both ends"] for run in runs)
        row(what, f"{more:.1f} ns", "30 ns", more <= 30)
        clock = speed_bump.clock_overhead_ns
        row("of that in two readings of the clock", f"{2 * clock / more:.2f}")
    if MONITORING:
        row("empty C callback, more", f"{ns['empty']:.1f} ns")
        ratio = statistics.median(run["matched"] / run["empty"] for run in runs)
        row("matched / empty, of what they add", f"{ratio:.2f}", "1.25", ratio <= 1.25)
        whole = statistics.median(
            (run["bare"] + run["matched"]) / (run["bare"] + run["empty"]) for run in runs
        )
        row("matched / empty, of the whole call", f"{whole:.2f}", "1.25", whole <= 1.25)
        for name, what in (
            ("unmatched", "unmatched call after its first, more"),
            ("other ends", "the same where ends of another function are told of"),
        ):
            row(what, f"{ns[name]:.2f} ns", "1 ns", ns[name] <= 1)
    else:
        row("unmatched call, more", f"{ns['unmatched']:.1f} ns")


def many_small_functions() -> Callable[[], float]:
    lines = [f"def f{i}(n): return n + {i}" for i in range(500)]
    lines += [
        f"def g{i}(n): return " + " + ".join(f"f{(7 * i + j) % 500}(n)" for j in range(5))
        for i in range(500)
    ]
    lines += ["def all(): return " + " + ".join(f"g{i}({i})" for i in range(500))]
    space: dict[str, object] = {"__name__": "small"}
    exec("\n".join(lines), space)
    work = space["all"]
    assert callable(work)

    def measure() -> float:
        begin = time.perf_counter_ns()
        for _ in range(4):
            work()
        return float(time.perf_counter_ns() - begin)

    return measure


def real_work() -> Callable[[], float]:
    """The standard library's own Python at work."""
    source = Path(ast.__file__).read_text()
    lines = source.splitlines()[:300]
    other = [line for i, line in enumerate(lines) if i % 9]
    records = [{"id": i, "tags": ["a", "b"], "at": {"x": i, "y": -i}} for i in range(100)]

    def measure() -> float:
        begin = time.perf_counter_ns()
        ast.unparse(ast.parse(source[:30_000].rpartition("\ndef ")[0]))
        json.dumps(records, indent=1)
        textwrap.fill(source[:6000])
        list(difflib.unified_diff(lines, other))
        return float(time.perf_counter_ns() - begin)

    return measure


def unmatched_work() -> None:
    limit = 1.03 if MONITORING else 1.12 if sys.version_info >= (3, 11) else 1.05
    ways = {"bare": bare(), "unmatched": slowed(UNMATCHED, 0)}
    if not MONITORING:
        ways["profiled"] = profiled()
    for name, work in (
        ("unmatched: many small functions", many_small_functions()),
        ("unmatched: the standard library at work", real_work()),
    ):
        ns = take_turns(ways, work, blocks=41)
        ratio = ns["unmatched"] / ns["bare"]
        counts = MONITORING or name.endswith("work")
        row(
            name,
            f"{ratio:.3f}",
            f"{limit}" if counts else "",
            round(ratio, 2) <= limit if counts else None,
        )
        if not MONITORING:
            other = ns["profiled"] / ns["bare"]
            row(f"{name}, with a C profile function", f"{other:.3f}")


def first_sight() -> None:
    space: dict[str, object] = {"__name__": "somewhere.deep"}

    def measure() -> float:
        made = [
            types.FunctionType(function.__code__.replace(co_name=f"f{i}"), space)
            for i in range(400)
        ]
        begin = time.perf_counter_ns()
        for one in made:
            one()
        return (time.perf_counter_ns() - begin) / 400

    thousand = [f"app{i % 40}.part{i}:handle_{i}" for i in range(900)]
    thousand += [f"app{i}.*:*handle_{i}*" for i in range(50)]
    thousand += [f"*/app{i}/*:Class{i}.*" for i in range(50)]
    globs = [f"app{i}.*:*handle_{i}*" for i in range(1000)]
    ways = {
        "bare": bare(),
        "20": slowed(UNMATCHED, 0),
        "1,000": slowed(thousand, 0),
        "globs": slowed(globs, 0),
    }
    ns = take_turns(ways, measure, blocks=41)
    for count, limit in (("20", 500), ("1,000", 3000)):
        more = ns[count] - ns["bare"]
        row(
            f"first sight of an unmatched function, {count} patterns",
            f"{more:.0f} ns",
            f"{limit} ns",
            more <= limit,
        )
    more = ns["globs"] - ns["bare"]
    row(
        "first sight of an unmatched function, 1,000 globs",
        f"{more:.0f} ns",
        "3000 ns",
        more <= 3000,
    )


def delay_errors() -> dict[str, float]:
    """By delay, ns, in blocks of 0.1 ms if possible.

    Most blocks then have no timer interrupt, which takes some 10 us of every millisecond
    here, also without delays.
    """
    found = {}
    for delay_ns in (50, 100, 1_000, 10_000, 100_000, 1_000_000):
        calls = max(3, min(1000, 100_000 // delay_ns))
        ways = {"bare": bare(), "slowed": slowed(["__main__:function"], delay_ns)}
        blocks = 151 if delay_ns < 10_000 else 61
        ns = take_turns(ways, lambda n=calls: call(n), blocks)  # type: ignore[misc]
        found[str(delay_ns)] = ns["slowed"] - ns["bare"] - delay_ns
    return found


def delays() -> None:
    runs = in_processes("delay_errors")
    for delay in runs[0]:
        error = statistics.median(run[delay] for run in runs)
        limit = max(10.0, int(delay) / 100)
        row(
            f"net delay of {int(delay):,} ns, error",
            f"{error:+.1f} ns",
            f"{limit:.0f} ns",
            abs(error) <= limit,
        )
    least = speed_bump.min_delay_ns
    row("smallest net delay that can be set", f"{least} ns", "50 ns", least <= 50)


def threads() -> None:
    """How much two threads slow each other down, beside the effect of the GIL."""

    def work(calls: int) -> None:
        for _ in range(calls):
            function()

    def in_threads(count: int, calls: int) -> float:
        pool = [
            threading.Thread(target=work, args=(calls // count,)) for _ in range(count)
        ]
        begin = time.perf_counter_ns()
        for thread in pool:
            thread.start()
        for thread in pool:
            thread.join()
        return (time.perf_counter_ns() - begin) / calls

    ways = {
        "bare": (bare(), 1_000_000),
        "0 ns delay": (slowed(["*:work", "__main__:function"], 0), 500_000),
        "1,000 ns delay": (slowed(["__main__:function"], 1000), 40_000),
    }
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(15):
        for name, ((begin, end), calls) in ways.items():
            begin()
            for count in (1, 2):
                found.setdefault((name, count), []).append(in_threads(count, calls))
            end()
    ns = {which: statistics.median(times) for which, times in found.items()}
    ratios = {name: ns[name, 2] / ns[name, 1] for name in ways}
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    for name, ratio in ratios.items():
        row(f"two threads ({name}), a call, of one's time", f"{ratio:.3f}")
        if name != "bare":
            more = ratio / ratios["bare"]
            row(
                f"two threads ({name}), against bare Python's",
                f"{more:.3f}",
                "1.03" if gil else "",
                round(more, 2) <= 1.03 if gil else None,
            )


def start_up() -> None:
    """The cost of the file in site-packages if the variable is not set.

    Measured beside another such file, because the first one causes costs of the
    interpreter, and beside the cheapest possible line of code there.
    """
    package = Path(speed_bump.__file__).parent
    ours = package.with_name("speed_bump.pth").read_text()
    files = {
        "nothing": "# Not a line\n",
        "least": "# One\nimport sys\n",
        "ours": ours,
    }
    program = (
        "import os, site, sys, time\n"
        "os.environ.pop('SPEED_BUMP_TARGETS', None)\n"
        "site.addpackage(sys.argv[1], 'nothing.pth', set())\n"
        "begin = time.perf_counter_ns()\n"
        "site.addpackage(sys.argv[1], sys.argv[2], set())\n"
        "print(time.perf_counter_ns() - begin)\n"
    )
    found: dict[str, list[int]] = {name: [] for name in files}
    with tempfile.TemporaryDirectory() as directory:
        for name, text in files.items():
            (Path(directory) / f"{name}.pth").write_text(text)
        for _ in range(31):
            for name, times in found.items():
                command = [sys.executable, "-I", "-S", "-c", program, directory]
                times.append(int(subprocess.check_output([*command, f"{name}.pth"])))
    us = {name: statistics.median(times) / 1000 for name, times in found.items()}
    row(
        "start-up with the variable unset",
        f"{us['ours']:.0f} us",
        "100 us",
        us["ours"] <= 100,
    )
    row("start-up, of that a line with 'import sys' alone", f"{us['least']:.0f} us")


def recursion() -> None:
    program = (
        "import speed_bump, sys\n"
        "sys.setrecursionlimit(10**9)\n"
        "if {on}: speed_bump.install(speed_bump.Config(['a:b']))\n"
        "def down(n): return down(n - 1) if n else 0\n"
        "down({depth})\n"
    )

    def survives(depth: int, on: bool) -> bool:
        command = [sys.executable, "-c", program.format(on=on, depth=depth)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def deepest(on: bool) -> str:
        good, bad = 1000, 1_000_000
        if survives(bad, on):
            return f"over {bad:,}"
        while bad - good > good // 50:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if survives(middle, on) else (good, middle)
        return f"{good:,}"

    row("recursion, without a limit, bare", deepest(False))
    row("recursion, without a limit, with the hook", deepest(True))


def main() -> None:
    version = sys.version.split()[0] + sys.abiflags
    print(f"Python {version}, {_core.HOOK}, clock {_core.clock_name()}")
    row("figure (medians)", "measured", "at most", None)
    matched()
    matched_in_c()
    unmatched_work()
    first_sight()
    row("cost of the hook, measured at start and taken off", f"{_core.overhead_ns()} ns")
    delays()
    threads()
    start_up()
    if not MONITORING:
        recursion()


if __name__ == "__main__":
    figures = {
        "cost_of_a_call": cost_of_a_call,
        "cost_of_c_calls": cost_of_c_calls,
        "delay_errors": delay_errors,
    }
    if len(sys.argv) > 1:
        print(json.dumps(figures[sys.argv[1]]()))
    else:
        main()
