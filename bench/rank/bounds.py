# SPDX-License-Identifier: MIT
"""The bounds that ``speed-bump rank`` promises: ``bounds.py [BOUND]...``.

speed: 1, 6 and 13 serial functions in units of 50 ms are known to ± 0.05 in a fifth of
the time that pairs of windows took. screening: of 256 functions, with units of 1 ms, the
4 that are critical are found in 60 s, and no others. overhead: with all targets in place
and none of them delayed, a program takes at most 0.5% more CPU time: the steps of
bench/workloads/train.py, in turns with and without targets within a run, because runs
differ by percents; ``--python`` selects the Pythons. member: a rank with ``speed-bump
member`` in front of it and delays of 1 ns has steps, of about 20 ms, that certainly take
at most 0.5% longer. A line is printed for each bound. The exit status is 1 if one is
missed.
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
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from speed_bump.config import parse_targets
from speed_bump.experiment.fit.interval import Interval
from speed_bump.experiment.program import progress
from speed_bump.experiment.program.runner import Runner
from speed_bump.experiment.record import Block, Record
from speed_bump.experiment.runs.estimate import mean_interval
from speed_bump.experiment.slots.experiment import Experiment, Options
from speed_bump.experiment.slots.measure import empty
from speed_bump.experiment.slots.plan import rest

HERE = pathlib.Path(__file__).parent
WORKLOADS = HERE.parent / "workloads"
ENVIRON = {k: v for k, v in os.environ.items() if not k.startswith("SPEED_BUMP_")}

# By functions, s: a fifth of 197 s, 20 min and 42 min.
MAX_S = {1: 39, 6: 240, 13: 504}
MAX_OVERHEAD = 0.005
FUNCTIONS, CRITICAL = 256, 4

# Serial functions, 50 ms of CPU time together.
SERIAL = """\
import time, speed_bump
source = "def f{{0}}():\\n    end = time.thread_time() + 0.05 / {functions}\\n"
source += "    while time.thread_time() < end:\\n        pass\\n"
for i in range({functions}):
    exec(source.format(i))
ours = [globals()[f"f{{i}}"] for i in range({functions})]
while True:
    for function in ours:
        function()
    speed_bump.progress()
"""

# Functions that are all called once per unit: the critical ones in the thread that makes
# the units, the others elsewhere.
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

# The median of its steps, ns. They wait for a device most of the time, as in training: of
# steps that compute for 20 ms, runs differ by several percent on a shared machine.
STEPS = """\
import statistics, sys, time
def work():
    return sum(k * k for k in range(200))
def step():
    for _ in range(25):
        work()
    time.sleep(0.0193)
times = [time.perf_counter_ns()]
for _ in range(int(sys.argv[1])):
    step()
    times.append(time.perf_counter_ns())
each = [b - a for a, b in zip(times[len(times) // 3:], times[len(times) // 3 + 1:])]
with open(sys.argv[2], "w") as file:
    file.write(str(int(statistics.median(each))))
"""

# The work of both processes of the training loop in one, by turns with targets in place
# and without, in random order. Of each pair of turns, the CPU time of a step, ns: the
# first of a turn warms up what has changed, and of the next two the shorter one counts,
# because others on the machine make steps longer.
TURNS = """\
import json, os, random, sqlite3, sys, time
import speed_bump
from pygments.lexers import PythonLexer
from speed_bump import control
where, pairs = sys.argv[1], int(sys.argv[2])
sys.path.insert(0, sys.argv[3])
import train
config, table = control.get_config(), os.environ.get("SPEED_BUMP_TABLE")
lexer, texts = PythonLexer(), train.sources(8)
db = sqlite3.connect(":memory:")
db.execute("CREATE TABLE steps (step INTEGER, entry TEXT)")
def turn(on, text):
    if on:
        control.install_shared(config, table)
    else:
        speed_bump.uninstall()
    times = []
    for step in range(3):
        begin = time.process_time_ns()
        train.record(db, step, *train.prepare(lexer, text))
        times.append(time.process_time_ns() - begin)
    return min(times[1:])
draw, took = random.Random(1), []
for k in range(pairs):
    order = [False, True]
    draw.shuffle(order)
    took.append({on: turn(on, texts[k % 8]) for on in order})
with open(where + ".new", "w") as file:
    json.dump([(pair[False], pair[True]) for pair in took], file)
os.rename(where + ".new", where)
while True:
    turn(True, texts[0])  # until the experiment ends
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


def speed(options: argparse.Namespace) -> bool:
    """The time until each of some serial functions is known to half of 0.05."""
    good = True
    for count, most_s in MAX_S.items():
        found = rank(
            "rank", *("-t", "__main__:f*", "--budget", f"{1.2 * most_s:.0f}s"),
            *("--precision", "0.05", "--seed", str(options.seed)),
            *("--", sys.executable, "-c", SERIAL.format(functions=count)),
        )  # fmt: skip
        intervals = [f["criticality"] for f in found["findings"]]
        halves = [(c["high"] - c["low"]) / 2 if c else 9.0 for c in intervals]
        within = len(halves) == count and max(halves) <= 0.05
        good = good and within and found["wall_ns"] <= 1e9 * most_s
        print(
            f"speed: {count} function{'s' * (count > 1)}, units of 50 ms: widest ± "
            f"{max(halves, default=9.0):.3f} after {found['wall_ns'] / 1e9:.0f} s (bound "
            f"± 0.05 after {most_s:.0f} s)"
        )
    return good


def screening(options: argparse.Namespace) -> bool:
    """Whether the right four are found, and the number of tests."""
    draw = random.Random(options.seed)
    critical = sorted(draw.sample(range(FUNCTIONS), CRITICAL))
    source = MANY.format(critical=critical, functions=FUNCTIONS)
    found = rank(
        "rank", *("-t", "__main__:f*", "--budget", options.budget),
        *("--seed", str(options.seed), "--", sys.executable, "-c", source),
    )  # fmt: skip
    right = {f"__main__:f{i}" for i in critical}
    verdicts = {f["target"]: f["verdict"] for f in found["findings"]}
    names = {name for name, said in verdicts.items() if said in ("matters", "partly")}
    print(
        f"screening: {len(names & right)} of {CRITICAL} found among {len(verdicts)}, "
        f"{len(names - right)} others, {found['wall_ns'] / 1e9:.0f} s "
        f"(bound {options.budget})"
    )
    if names != right:
        print({name: verdicts.get(name) for name in names ^ right})
    return names == right


def overhead(options: argparse.Namespace) -> bool:
    """The CPU time of the training loop's steps, observed and not: the ratio."""
    good = [overhead_of(python, options) for python in options.python]
    return all(good)


def overhead_of(python: str, options: argparse.Namespace) -> bool:
    """The same for one Python, with the package installed, by turns within a run."""
    with tempfile.TemporaryDirectory() as directory:
        where = f"{directory}/took"
        turns = [TURNS, where, str(options.turns), str(WORKLOADS)]
        watched([python, "-c", *turns], where)
        took = json.loads(pathlib.Path(where).read_text("ascii"))
    found = median_interval([on / off - 1 for off, on in took])
    print(
        f"overhead: {found.value:+.2%} [{found.low:+.2%}, {found.high:+.2%}] of "
        f"{median_interval([off for off, _ in took]).value / 1e6:.1f} ms, {len(took)} "
        f"pairs of turns, {python} (bound {MAX_OVERHEAD:.1%})"
    )
    return found.low <= MAX_OVERHEAD


def median_interval(values: list[float]) -> Interval:
    """The median and its 95% interval, by order statistics, of 40 values or more.

    Source: Conover, Practical Nonparametric Statistics, 3rd ed., 3.2 (the binomial
    distribution of the ranks, as a normal one).
    """
    values = sorted(values)
    n = len(values)
    half = 0.98 * math.sqrt(n)
    low, high = math.floor(n / 2 - half), math.ceil(n / 2 + half)
    return Interval(statistics.median(values), values[low], values[min(high, n - 1)])


def more(took_ns: Callable[[bool], int], options: argparse.Namespace) -> Interval:
    """How much longer the second of two ways takes, as a part, by pairs of runs."""
    ratios = []
    draw = random.Random(options.seed)
    for _ in range(options.pairs):
        order = [False, True]
        draw.shuffle(order)
        took = {second: took_ns(second) for second in order}
        ratios.append(took[True] / took[False] - 1)
    return mean_interval(ratios)


def member(options: argparse.Namespace) -> bool:
    """The median step of a rank, as a member and not: the ratio."""
    found = more(lambda is_member: step_ns(is_member, options.steps), options)
    print(
        f"member: {found.value:+.2%} [{found.low:+.2%}, {found.high:+.2%}] of a step, "
        f"{options.pairs} pairs of runs of {options.steps} steps (bound "
        f"{MAX_OVERHEAD:.1%})"
    )
    return found.high <= MAX_OVERHEAD


def step_ns(is_member: bool, steps: int) -> int:
    """The median step of a run."""
    with tempfile.TemporaryDirectory() as directory:
        program = f"{directory}/program.py"
        pathlib.Path(program).write_text(STEPS, "ascii")
        command = [sys.executable, program, str(steps), f"{directory}/took"]
        if is_member:
            words = ("member", "--run", f"{directory}/run", "-t", "__main__:work")
            words += ("-d", "1ns", "--progress", "__main__:step", "--")
            command = [sys.executable, "-m", "speed_bump", *words, *command]
        environ = {**ENVIRON, "RANK": "0", "WORLD_SIZE": "1"}
        subprocess.run(command, env=environ, stderr=subprocess.DEVNULL, check=True)
        if is_member and not list(pathlib.Path(directory, "run").glob("*.rows")):
            raise SystemExit("the member left no rows")
        return int(pathlib.Path(f"{directory}/took").read_text("ascii"))


@dataclass
class Rests:
    """Stages that never delay anything, until there is a file ``last``."""

    last: str

    def next_block(self, record: Record) -> Block | None:
        return None if os.path.exists(self.last) else rest(120)


class Silent:
    """A watcher that observes nothing."""

    def now(self, text: str) -> None:
        pass

    def event(self, text: str) -> None:
        pass

    def known(self, record: Record, left_s: float) -> None:
        pass


def watched(command: list[str], last: str) -> None:
    """Run it with all targets in place and no arm on, until there is a file ``last``."""
    functions = ("pygments.lexer:Lexer.get_tokens", "train:prepare", "json:dumps")
    targets = [t for name in functions for t in parse_targets(name, "function")]
    unit = progress.read(["train:record"], None)
    record = Record({"command": command}, (), empty(0))
    with Runner(command, show_output=False) as runner:
        experiment = Experiment(
            runner,
            targets,
            unit,
            Options(3600),
            record,
            Rests(last),
            Silent(),
            lambda record: None,
        )
        experiment.run()
    if experiment.failed:
        raise SystemExit(str(experiment.failed))


BOUNDS = {
    "speed": speed, "screening": screening, "overhead": overhead, "member": member,
}  # fmt: skip


def main() -> int:
    """Print a line for each bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bound", nargs="*", choices=[[], *BOUNDS], help=", ".join(BOUNDS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", default="60s", help="of the screening")
    parser.add_argument("--pairs", type=int, default=10, help="of runs, of the member")
    parser.add_argument("--turns", type=int, default=2000, help="pairs, of an overhead")
    parser.add_argument("--steps", type=int, default=150, help="of each run")
    parser.add_argument(
        "--python", nargs="+", default=[sys.executable], help="of the overhead"
    )
    options = parser.parse_args()
    chosen = options.bound or list(BOUNDS)
    good = [BOUNDS[name](options) for name in chosen]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
