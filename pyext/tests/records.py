# SPDX-License-Identifier: MIT
"""Records of the extension, made by tests."""

from typing import Any, TypeVar

# Their names: those of core/records.c.
RECORDS = (
    "ControlTarget",
    "Entry",
    "Latency",
    "LatencyEvents",
    "NativeDurations",
    "NativeEvents",
    "NativePlace",
    "NativeSite",
    "NativeStack",
    "NativeTarget",
    "NativeTimes",
    "ParsedTarget",
    "Policy",
    "Rank",
    "SelfTime",
    "ShownProcess",
    "Site",
    "Slots",
    "Stack",
    "StackCode",
    "StackTarget",
    "StackThread",
    "StackTotals",
    "State",
    "Symbol",
    "TakenStacks",
)

T = TypeVar("T")


def made(kind: type[T], /, **values: object) -> T:
    """A record with these fields, and 0 in the others."""
    names: Any = kind.__match_args__  # type: ignore[attr-defined]
    assert values.keys() <= set(names), values
    build: Any = kind
    found: T = build([values.get(name, 0) for name in names])
    return found
