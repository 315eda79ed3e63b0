# SPDX-License-Identifier: MIT
"""The known answer of each program of programs.py and native.c, and of the training loop
bench/workloads/torch_train.py (``torch`` and ``torch_threads``, where PyTorch is), by
construction.

``truth.py [--native PATH] [--pairs N] [--seconds S] [--part P] [--function NAME]...
[PROGRAM]...`` measures it by definition, without speed-bump: whole runs with a small
amount of CPU time added to each call of one function, in pairs with runs without it, in
random order. The change of the time of a unit, divided by the added time per unit, is the
criticality. The exit status is 1 if the 95% interval lies outside the values here.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
from dataclasses import dataclass, field, replace

HERE = pathlib.Path(__file__).parent
MATTERS, PARTLY, HIDDEN = "matters", "partly", "hidden"
# The time added to a unit, as a part of it; where units differ much, it has to be more.
SMALL = 0.05
# Tolerance, because the programs use a clock and a scheduler.
CLOSE = 0.03
ENVIRON = {k: v for k, v in os.environ.items() if not k.startswith("SPEED_BUMP_")}
# Student's t, two-sided 95%, by degrees of freedom.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


@dataclass(frozen=True)
class Truth:
    """The answer for one function.

    The criticality for a small delay, or a span if it depends on something that can't be
    controlled; the right verdicts; the slack in us (None: it is never used up, or there
    is none); its calls per unit.
    """

    low: float
    high: float
    verdicts: tuple[str, ...]
    slack_us: float | None = None
    calls: float = 1


SERIAL = Truth(1, 1, (MATTERS,))


def hidden(slack_us: float | None = None) -> Truth:
    return Truth(0, 0, (HIDDEN,), slack_us)


@dataclass(frozen=True)
class Program:
    """``unit_ms`` is the time of a unit; ``functions`` are in the order of headroom, and
    the first one, or those of ``limits``, would be worth making faster; ``none``: no
    function alone gains anything.
    """

    name: str
    unit_ms: float
    functions: dict[str, Truth]
    limits: tuple[str, ...] = ()
    # Two that matter, and their relation: "serial" or "parallel".
    pair: tuple[str, str] | None = None
    tie: str = ""
    native: bool = True
    # Of runs in which it does not change its speed.
    environ: dict[str, str] = field(default_factory=dict)
    # Its stages compute at the same time: on one CPU, the hidden one is a rival. A kernel
    # that sees a hypervisor take time puts threads that sleep on one CPU, now and then.
    apart: bool = False
    # A program that is not in programs.py, and its arguments.
    script: tuple[str, ...] = ()

    @property
    def placed(self) -> dict[str, str]:
        """The environment that gives its stages a CPU each, where that is needed."""
        return {"BENCH_APART": "1"} if self.apart else {}

    @property
    def undisturbed(self) -> dict[str, str]:
        """The environment of runs in which it does not change its speed."""
        return {**self.placed, **self.environ}

    @property
    def everywhere(self) -> bool:
        """It needs nothing beside CPython."""
        return not self.script


PROGRAMS = (
    Program(
        "serial",
        1.8,
        {"f": SERIAL, "g": SERIAL, "h": SERIAL},
        ("f",),
        pair=("f", "g"),
        tie="serial",
    ),
    Program(
        "rare",
        2.08,
        {"often": SERIAL, "seldom": Truth(1, 1, (MATTERS,), calls=0.02)},
        ("often",),
    ),
    Program(
        "phases",
        0.9,
        {
            "f_phase": Truth(1, 1, (MATTERS,), calls=0.5),
            "g_phase": Truth(1, 1, (MATTERS,), calls=0.5),
        },
        ("f_phase", "g_phase"),
    ),
    Program("stages", 5, {"record": SERIAL, "cpu": hidden(3000)}, ("record",)),
    Program("swapped", 5, {"feed": SERIAL, "cpu": hidden(3000)}, ("feed",)),
    Program(
        "prefetch",
        5,
        {
            "record": SERIAL,
            "write_out": SERIAL,
            "parse": hidden(3000),
            "pack": hidden(3000),
        },
        ("record",),
    ),
    Program(
        "half_speed",
        5,
        {"record": SERIAL, "write_out": SERIAL, "parse": hidden(), "pack": hidden()},
        ("record",),
        environ={"BENCH_MIDDLE": "1000"},
    ),
    Program(
        "balanced_10",
        10,
        {"compute": SERIAL, "store": SERIAL, "decode": hidden(1000)},
        ("compute", "store"),
        apart=True,
    ),
    Program(
        "balanced_20",
        10,
        {"compute": SERIAL, "store": SERIAL, "decode": hidden(2000)},
        ("compute", "store"),
        apart=True,
    ),
    Program(
        "starved",
        13,
        {"decode": SERIAL, "compute": hidden(3000), "store": hidden(3000)},
        ("decode",),
        apart=True,
    ),
    Program("buffer_1", 5, {"use": SERIAL, "fill": hidden(1000)}, ("use",), apart=True),
    Program("buffer_4", 5, {"use": SERIAL, "fill": hidden(1000)}, ("use",), apart=True),
    Program("buffer_16", 5, {"use": SERIAL, "fill": hidden(1000)}, ("use",), apart=True),
    Program(
        "fork_join",
        4,
        {"long_branch": SERIAL, "short_branch": hidden(2000)},
        ("long_branch",),
    ),
    Program(
        "fork_join_equal",
        3,
        # The later branch counts: a delay as short as the variation of their sleeps
        # arrives in part.
        {
            "left_branch": Truth(0.8, 1, (MATTERS,)),
            "right_branch": Truth(0.8, 1, (MATTERS,)),
        },
        ("none",),
        pair=("left_branch", "right_branch"),
        tie="parallel",
    ),
    Program(
        "barrier",
        4,
        {"straggler": SERIAL, "quick": hidden(2000), "quick_too": hidden(2000)},
        ("straggler",),
        apart=True,
    ),
    # If each of the two processes counts its own units, a unit has both in the lock.
    Program(
        "lock",
        2,
        {"inside": Truth(1, 2, (MATTERS,)), "outside": hidden(1000)},
        ("inside",),
        apart=True,
    ),
    Program("gil_holding", 0.9, {"holding": SERIAL}, ("holding",), native=False),
    # Each delays itself, and the other only if that wakes up during a delay.
    Program(
        "gil_releasing",
        3.03,
        {"after_release": Truth(0.48, 0.58, (PARTLY, MATTERS))},
        ("after_release",),
        native=False,
    ),
    Program("tick", 4, {"step": hidden(3000)}, ("none",)),
    # A delay of more than its slack costs a whole frame.
    Program("frames", 8, {"render": hidden(1600)}, ("none",)),
    # A unit takes 2 ms, plus half of all time: 2 + T / 2 = T. An event's call and what
    # interrupts the CPU take up to 7 us of 250 more: 2 + 0.514 T = T.
    Program("amplified", 4, {"grow": Truth(2, 2.06, (MATTERS,))}, ("grow",)),
    Program("backlog", 4, {"grow": Truth(2, 2.06, (MATTERS,))}, ("grow",)),
    Program("shams", 3, {"record": SERIAL, "aside": hidden()}, ("record",)),
)
# A step's work is done once by the main process, and meanwhile once by the worker, which
# is done before it.
TORCH = Program(
    "torch",
    50,
    {
        **dict.fromkeys(
            (
                "train_step",
                "LanguageModel.forward",
                "compute_loss",
                "clip_gradients",
                "write_log",
            ),
            SERIAL,
        ),
        "Block.forward": Truth(1, 1, (MATTERS,), calls=3),
        "Attention.forward": Truth(1, 1, (MATTERS,), calls=3),
        "Sequences.make_batch": hidden(),
        "Sequences.load_text": Truth(0, 0, (HIDDEN,), calls=32),
        "Sequences.encode": Truth(0, 0, (HIDDEN,), calls=32),
    },
    ("train_step",),
    native=False,
    script=("bench/workloads/torch_train.py", "--steps", "0", "--seconds"),
)
# The same with four threads of torch and two workers on fewer CPUs. Workers are early,
# but what they compute takes CPU time from the main process: on two CPUs that are always
# in use, at most half of it costs wall-clock time. ``truth.py torch_threads --pairs 14
# --seconds 10 --part 0.2`` found 0.20 to 0.42 of what is added to load_text.
CROWDED = Truth(0.2, 0.5, (PARTLY,))
TORCH_THREADS = replace(
    TORCH,
    name="torch_threads",
    unit_ms=90,
    functions={
        **TORCH.functions,
        "Sequences.make_batch": CROWDED,
        "Sequences.load_text": replace(CROWDED, calls=32),
        "Sequences.encode": replace(CROWDED, calls=32),
    },
    script=(TORCH.script[0], "--threads", "4", "--workers", "2", *TORCH.script[1:]),
)
TRAINING = (TORCH, TORCH_THREADS)


def by_name(names: list[str], native: bool) -> list[Program]:
    """The selected programs, or all those that need nothing but CPython.

    Raises:
        ValueError: there is none with a given name
    """
    known = [p for p in (*PROGRAMS, *TRAINING) if p.native or not native]
    if unknown := set(names) - {p.name for p in known}:
        raise ValueError(
            f"no program {', '.join(sorted(unknown))}: "
            + ", ".join(p.name for p in known)
        )
    return [p for p in known if (p.name in names if names else p.everywhere)]


def command_of(program: Program, seconds: float, native: str | None) -> list[str]:
    if program.script:
        path, *arguments = program.script
        return [sys.executable, str(HERE.parents[1] / path), *arguments, str(seconds)]
    start = [native] if native else [sys.executable, str(HERE / "programs.py")]
    return [*start, program.name, str(seconds)]


def run_once(
    program: Program, seconds: float, native: str | None, change: str = ""
) -> float:
    """The time of a unit, ms."""
    done = subprocess.run(
        command_of(program, seconds, native),
        env={**ENVIRON, **program.undisturbed, "BENCH_CHANGE": change},
        stdout=subprocess.PIPE,
        check=True,
    )
    found = json.loads(done.stdout)
    return 1000 * float(found["seconds"]) / float(found["units"])


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half of its 95% interval."""
    n = len(values)
    t = STUDENT[n - 2] if n - 2 < len(STUDENT) else 2.2
    return statistics.mean(values), t * statistics.stdev(values) / math.sqrt(n)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", nargs="*", metavar="PROGRAM")
    parser.add_argument("--native", metavar="PATH", help="native.c, compiled")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=3, help="of each run")
    parser.add_argument("--part", type=float, default=SMALL, help="added to a unit")
    parser.add_argument("--function", action="append", metavar="NAME", help="only that")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    status = 0
    print(f"{'program':16} {'function':14} {'truth':>10} {'by definition':>16} unit, ms")
    for program in by_name(options.program, bool(options.native)):
        for name, truth in program.functions.items():
            if options.function and name not in options.function:
                continue
            added = options.part * program.unit_ms
            change = f"{name}+{added / truth.calls:.6f}"
            effects, units = [], []
            for _ in range(options.pairs):
                order = ["", change]
                draw.shuffle(order)
                took = {
                    what: run_once(program, options.seconds, options.native, what)
                    for what in order
                }
                effects.append((took[change] - took[""]) / added)
                units.append(took[""])
            mean, half = interval(effects)
            wrong = mean - half > truth.high + CLOSE or mean + half < truth.low - CLOSE
            status = status or int(wrong)
            said = f"{truth.low:g}" + (
                f" to {truth.high:g}" if truth.high > truth.low else ""
            )
            print(
                f"{program.name:16} {name:14} {said:>10} {mean:7.2f} ± {half:.2f}"
                f"{'  <-' if wrong else '    '} {statistics.median(units):.3f} "
                f"({program.unit_ms:g})",
                flush=True,
            )
    return status


if __name__ == "__main__":
    sys.exit(main())
