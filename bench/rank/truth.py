# SPDX-License-Identifier: MIT
"""What is true of each of programs.py, by construction."""

from __future__ import annotations

from dataclasses import dataclass

LINEAR, HINGE = "linear", "hinge"


@dataclass(frozen=True)
class Truth:
    """Of one function: the criticality, or a span where it depends on what can't be
    controlled; the label; of a hinge the slack in µs, None: it is never used up."""

    low: float
    high: float
    shape: str
    slack_us: float | None = None


SERIAL = Truth(1.0, 1.0, LINEAR)


def hidden(slack_us: float | None = None) -> Truth:
    return Truth(0.0, 0.0, HINGE, slack_us)


@dataclass(frozen=True)
class Program:
    """Its functions, those with more headroom first; equals are in one tuple."""

    name: str
    functions: dict[str, Truth]
    order: tuple[tuple[str, ...], ...]
    # Two that matter, and what they are to one another: "serial" or "parallel".
    pair: tuple[str, str] | None = None
    tie: str = ""


PROGRAMS = (
    Program(
        "serial",
        {"f": SERIAL, "g": SERIAL, "h": SERIAL},
        (("f",), ("g",), ("h",)),
        pair=("f", "g"),
        tie="serial",
    ),
    Program(
        "phases",
        {"f_phase": SERIAL, "g_phase": SERIAL},
        (("f_phase", "g_phase"),),
    ),
    Program("stages", {"record": SERIAL, "cpu": hidden(3000)}, (("record",), ("cpu",))),
    Program("swapped", {"feed": SERIAL, "cpu": hidden(3000)}, (("feed",), ("cpu",))),
    Program(
        "fork_join",
        {"long_branch": SERIAL, "short_branch": hidden(2000)},
        (("long_branch",), ("short_branch",)),
    ),
    Program(
        "fork_join_equal",
        {"left_branch": SERIAL, "right_branch": SERIAL},
        (("left_branch", "right_branch"),),
        pair=("left_branch", "right_branch"),
        tie="parallel",
    ),
    Program(
        "barrier",
        {"straggler": SERIAL, "quick": hidden(2000)},
        (("straggler",), ("quick",)),
    ),
    Program(
        "lock", {"inside": SERIAL, "outside": hidden(1000)}, (("inside",), ("outside",))
    ),
    Program("gil_holding", {"holding": SERIAL}, (("holding",),)),
    # Each delays itself, and the other only where that wakes in the middle of a delay.
    Program(
        "gil_releasing",
        {"after_release": Truth(0.48, 0.58, LINEAR)},
        (("after_release",),),
    ),
    Program("tick", {"step": hidden(3000)}, (("step",),)),
    Program("shams", {"record": SERIAL, "aside": hidden()}, (("record",), ("aside",))),
)

# Those that are in native.c too.
NATIVE = ("serial", "stages", "fork_join", "lock", "tick")
