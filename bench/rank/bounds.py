# SPDX-License-Identifier: MIT
"""What ``speed-bump rank`` promises in numbers: ``bounds.py [BOUND]...``.

precision: in 30 s, with a delay of 5% of a unit and windows of 8 ms, half the interval of
the criticality of a serial function is at most 0.05. screening: of 256 functions the 4
that are critical are found, and none else, with at most 60 group tests in one run.
overhead: with all delays off, a program that is watched all the time takes at most 2%
longer (a training loop, bench/workloads/train.py). A line for each; exit status 1 if a
bound is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

from speed_bump.config import parse_targets
from speed_bump.experiment import progress, robust
from speed_bump.experiment.live import Planned, Workload
from speed_bump.experiment.records import SPIN
from speed_bump.experiment.runner import Runner

HERE = pathlib.Path(__file__).parent
TRAIN = HERE.parent / "workloads" / "train.py"
ENVIRON = {k: v for k, v in os.environ.items() if not k.startswith("SPEED_BUMP_")}

MOST_HALF = 0.05
MOST_TESTS = 60
MOST_OVERHEAD = 0.02
FUNCTIONS, CRITICAL = 256, 4

# Functions that are all called once a unit, the critical ones by who makes the units and
# the others by somebody else.
MANY = """\
import os, time, speed_bump
def spin(us):
    end = time.perf_counter_ns() + 1000 * us
    while time.perf_counter_ns() < end:
        pass
critical = {critical}
source = "def f{{0}}():\\n    spin({{1}})\\n"
for i in range({functions}):
    exec(source.format(i, 300 if i in critical else 3))
ours = [globals()[f"f{{i}}"] for i in critical]
others = [globals()[f"f{{i}}"] for i in range({functions}) if i not in critical]
if os.fork() == 0:
    parent = os.getppid()
    while os.getppid() == parent:
        for function in others:
            function()
        time.sleep(0.001)
while True:
    for function in ours:
        function()
    time.sleep(0.0004)
    speed_bump.progress()
"""

# A program's own time, without that of the interpreter's start.
TIMED = """\
import runpy, sys, time
del sys.argv[0]
begin = time.monotonic_ns()
runpy.run_path(sys.argv[0], run_name="__main__")
print(time.monotonic_ns() - begin)
"""


def rank(verb: str, *arguments: str) -> dict:
    """What it says, as JSON."""
    with tempfile.TemporaryDirectory() as directory:
        output = ("-o", f"{directory}/pairs", "--json", f"{directory}/json")
        subprocess.run(
            [sys.executable, "-m", "speed_bump", verb, *output, *arguments],
            env=ENVIRON,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        return json.loads(pathlib.Path(f"{directory}/json").read_text("utf-8"))


def precision(options: argparse.Namespace) -> bool:
    """Half the interval, from a run of 30 s at one level."""
    found = rank(
        "sweep", *("--levels", "0.05", "--window", "8ms", "--budget", "30s"),
        *("--precision", "0.001", "--seed", str(options.seed), "-t", "__main__:f"),
        *("--", sys.executable, str(HERE / "programs.py"), "serial", "100000"),
    )  # fmt: skip
    (function,) = found["functions"]
    (level,) = function["levels"]
    c = level["criticality"]
    half = (c["high"] - c["low"]) / 2
    print(
        f"precision: {c['value']:.3f} ± {half:.3f} from {level['pairs']} pairs in "
        f"{found['end']['seconds']:.0f} s (bound ± {MOST_HALF})"
    )
    return half <= MOST_HALF


def screening(options: argparse.Namespace) -> bool:
    """Whether the right four are found, and with how many tests."""
    draw = random.Random(options.seed)
    critical = sorted(draw.sample(range(FUNCTIONS), CRITICAL))
    source = MANY.format(critical=critical, functions=FUNCTIONS)
    found = rank(
        "rank", *("-t", "__main__:f*", "--budget", options.budget),
        *("--seed", str(options.seed), "--", sys.executable, "-c", source),
    )  # fmt: skip
    right = {f"__main__:f{i}" for i in critical}
    names = {f["function"] for f in found["functions"] if f["matters"]}
    print(
        f"screening: {len(names & right)} of {CRITICAL} found among "
        f"{len(found['functions'])}, {len(names - right)} others, {found['tests']} group "
        f"tests in {found['end']['runs']} run, {found['end']['seconds']:.0f} s (bound "
        f"{MOST_TESTS})"
    )
    if names != right:
        verdicts = {f["function"]: f["verdict"] for f in found["functions"]}
        print({name: verdicts.get(name) for name in names ^ right})
    return names == right and found["tests"] <= MOST_TESTS


def overhead(options: argparse.Namespace) -> bool:
    """Of the training loop, watched without end, over the same left alone."""
    command = [sys.executable, "-c", TIMED, str(TRAIN), "--steps", str(options.steps)]
    ratios = []
    draw = random.Random(options.seed)
    for _ in range(options.pairs):
        order = [False, True]
        draw.shuffle(order)
        took = {watch: watched(command) if watch else alone(command) for watch in order}
        ratios.append(took[True] / took[False] - 1)
    found = robust.trimmed_interval(ratios)
    print(
        f"overhead: {found.value:+.2%} [{found.low:+.2%}, {found.high:+.2%}] of "
        f"{options.steps} steps, {options.pairs} pairs of runs (bound "
        f"{MOST_OVERHEAD:.0%})"
    )
    return found.low <= MOST_OVERHEAD


def alone(command: list[str]) -> int:
    """Its time, ns."""
    done = subprocess.run(command, env=ENVIRON, stdout=subprocess.PIPE, check=True)
    return int(done.stdout.split()[-1])


def watched(command: list[str]) -> int:
    """Its time, ns, while windows without delays are made all along."""
    functions = ("pygments.lexer:Lexer.get_tokens", "__main__:prepare", "json:dumps")
    targets = [t for name in functions for t in parse_targets(name, "function")]
    unit = progress.read(["__main__:record"], None)
    window = Planned((), SPIN, False, 20_000_000, 5_000_000, 0, 0, 1)
    with (
        Runner(command, show_output=False) as runner,
        Workload(runner, targets, unit) as program,
    ):
        while program.is_running():
            program.measure([window])
        ended = program.wait()
        output = program.output()
        if ended.status:
            raise SystemExit(output.decode())
        return int(output.split()[-1])


BOUNDS = {"precision": precision, "screening": screening, "overhead": overhead}


def main() -> int:
    """A line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bound", nargs="*", choices=[[], *BOUNDS], help=", ".join(BOUNDS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", default="120s", help="of the screening")
    parser.add_argument("--pairs", type=int, default=10, help="of runs, for the overhead")
    parser.add_argument("--steps", type=int, default=150, help="of each")
    options = parser.parse_args()
    chosen = options.bound or list(BOUNDS)
    good = [BOUNDS[name](options) for name in chosen]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
