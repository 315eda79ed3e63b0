# SPDX-License-Identifier: MIT
"""What the hook costs, and how true a delay is: ``python bench/python/hooks.py``.

All is measured in one run, the kinds of call taking turns, by the lower quartile of many
short batches. The yardstick (3.12 and later) is an empty C callback for the same event:
``operator.is_``, which compares two pointers and returns. Ratios are what to compare
between machines; the times are of this one.
"""

from __future__ import annotations

import operator
import statistics
import sys
import time
from collections.abc import Callable

import speed_bump
from speed_bump import Config, _core

Step = Callable[[], object]


def function() -> None:
    pass


def other() -> None:
    pass


def batch_ns(calls: int) -> float:
    begin = time.perf_counter_ns()
    for _ in range(calls):
        function()
    return (time.perf_counter_ns() - begin) / calls


def slowed(target: str, delay_ns: int) -> tuple[Step, Step]:
    config = Config([target], delay_ns=delay_ns)
    return lambda: speed_bump.install(config), speed_bump.uninstall


def bare() -> tuple[Step, Step]:
    return lambda: None, lambda: None


def empty_callback() -> tuple[Step, Step]:
    monitoring = sys.monitoring
    tool, event = 3, monitoring.events.PY_START

    def begin() -> None:
        monitoring.use_tool_id(tool, "yardstick")
        monitoring.register_callback(tool, event, operator.is_)
        monitoring.set_events(tool, event)

    def end() -> None:
        monitoring.set_events(tool, 0)
        monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)

    return begin, end


def take_turns(
    ways: dict[str, tuple[Step, Step]], calls: int, batches: int
) -> dict[str, float]:
    """ns of a call in each way, which is set up and taken down around each batch."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(batches):
        for name, (begin, end) in ways.items():
            begin()
            for _ in range(5):
                function()
            times[name].append(batch_ns(calls))
            end()
    return {name: statistics.quantiles(t, n=4)[0] for name, t in times.items()}


def hook_costs() -> None:
    ways = {
        "bare": bare(),
        "unmatched": slowed("__main__:other", 0),
        "matched": slowed("__main__:function", 0),
    }
    if sys.version_info >= (3, 12):
        ways["empty"] = empty_callback()
    ns = take_turns(ways, calls=300, batches=150)
    cost = {name: ns[name] - ns["bare"] for name in ns}
    print(f"bare call                      {ns['bare']:8.1f} ns")
    print(f"unmatched call, more           {cost['unmatched']:8.1f} ns")
    print(f"matched call, no delay, more   {cost['matched']:8.1f} ns")
    if "empty" in cost:
        print(f"empty C callback, more         {cost['empty']:8.1f} ns")
        print(f"matched / empty                {cost['matched'] / cost['empty']:8.2f}")


def delay_errors() -> None:
    for delay_ns in (100, 1_000, 10_000, 100_000):
        calls = max(3, min(300, 300_000 // delay_ns))
        ways = {"bare": bare(), "slowed": slowed("__main__:function", delay_ns)}
        ns = take_turns(ways, calls, batches=150)
        error = ns["slowed"] - ns["bare"] - delay_ns
        print(
            f"net delay of {delay_ns:7,} ns: error {error:+7.1f} ns "
            f"({100 * error / delay_ns:+.2f}%)"
        )


def main() -> None:
    print(f"Python {sys.version.split()[0]}, {_core.HOOK}, clock {_core.clock_name()}")
    hook_costs()
    print(f"measured at install and taken off: {_core.overhead_ns()} ns")
    delay_errors()


if __name__ == "__main__":
    main()
