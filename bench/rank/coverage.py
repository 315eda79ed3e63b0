# SPDX-License-Identifier: MIT
"""How often ``speed-bump rank`` is right about programs whose answer is known.

``coverage.py [--runs N] [--budget TIME] [--load N] [PROGRAM]...``: a table with a line
for each function. "holds" counts runs in which the 95% interval holds the truth, "label"
those with the right label, both of the runs that gave an answer; "silent" the others,
which said inconclusive; "WRONG" the answers with another label. "order" counts the runs
in which functions that matter more came first, "tie" those that say rightly whether two
that were delayed together are serial or parallel, both of the runs that could tell.

``--native PATH`` is of the programs of native.c, with native targets: as root, where
delays in native functions are possible.

``--load N`` keeps N processes busy meanwhile: then silence is right, and a wrong label is
as wrong as ever. Exit status 1: a label was wrong, or an interval missed, in more than
one run of ten; or, without --load, a function was silent in half of the runs or more.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from truth import HINGE, NATIVE, PROGRAMS, Program, Truth

HERE = pathlib.Path(__file__).parent
# What is done by construction is done to this part, by a clock and a scheduler.
CLOSE = 0.03
ALLOWED = 0.1


@dataclass
class Tally:
    """Of one function, over runs."""

    runs: int = 0
    holds: int = 0
    labels: int = 0
    silent: int = 0

    @property
    def answers(self) -> int:
        return self.runs - self.silent

    def add(self, truth: Truth, found: dict | None) -> None:
        """What one run said; None: nothing of this function."""
        self.runs += 1
        if found is None or found["shape"] == "inconclusive":
            self.silent += 1
            return
        c, slack = found["criticality"], found["slack_ns"]
        holds = c["low"] - CLOSE <= truth.high and truth.low <= c["high"] + CLOSE
        if truth.shape == HINGE and truth.slack_us and slack:
            most = slack["high"]  # None: the hinge was not reached
            holds = holds and (most is None or most >= 0.9 * 1000 * truth.slack_us)
        self.holds += holds
        self.labels += found["shape"] == truth.shape


def command_of(program: Program, options: argparse.Namespace) -> list[str]:
    """What rank is told: the functions, what a unit is, and the program."""
    if not options.native:
        targets = [w for f in program.functions for w in ("-t", f"__main__:{f}")]
        programs = str(HERE / "programs.py")
        return [*targets, "--", sys.executable, programs, program.name, "100000"]
    path = options.native
    targets = [w for f in program.functions for w in ("--native", f"{path}:{f}")]
    return [*targets, "--progress", f"{path}:unit_done", "--", path, program.name, "1"]


def once(
    program: Program, options: argparse.Namespace, seed: int
) -> tuple[dict, str, str]:
    """Functions by name, in order; the tie; and what was said where there is nothing."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SPEED_BUMP_")}
    with tempfile.TemporaryDirectory() as directory:
        pairs = f"{options.keep or directory}/{program.name}-{seed}.jsonl"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "speed_bump", "rank", "--seed", str(seed)),
                *("--budget", options.budget, "-o", pairs, "--json", f"{directory}/json"),
                *command_of(program, options),
            ],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            text = pathlib.Path(f"{directory}/json").read_text("utf-8")
        except OSError:
            return {}, "", done.stderr
    found = json.loads(text)
    functions = {f["function"].rpartition(":")[2]: f for f in found["functions"]}
    return functions, tie_of(program, found["together"]), ""


def tie_of(program: Program, together: list[dict]) -> str:
    """What was said of the program's pair; "": nothing, or inconclusive."""
    for both in together:
        names = {name.rpartition(":")[2] for name in both["names"]}
        if program.pair and names == set(program.pair):
            said = both["verdict"].partition(":")[0]
            return "" if said == "inconclusive" else str(said)
    return ""


def in_order(program: Program, functions: dict) -> bool | None:
    """Whether those with more headroom come first; None: not all had an answer."""
    if any(f["shape"] == "inconclusive" for f in functions.values()):
        return None
    place = {name: i for i, name in enumerate(functions)}
    if any(name not in place for group in program.order for name in group):
        return None
    worst = [max(place[name] for name in group) for group in program.order]
    best = [min(place[name] for name in group) for group in program.order]
    return all(a < b for a, b in zip(worst, best[1:], strict=False))


def measure(program: Program, options: argparse.Namespace) -> bool:
    """All runs of a program, its lines of the table; whether they are as they must."""
    tallies = {name: Tally() for name in program.functions}
    ordered = asked = 0
    ties = []
    for run in range(options.runs):
        functions, tie, said = once(program, options, options.seed + run)
        if said:
            sys.stderr.write(f"{program.name}, run {run + 1}: {said}")
        for name, tally in tallies.items():
            tally.add(program.functions[name], functions.get(name))
            if options.verbose and name in functions:
                f = functions[name]
                sys.stderr.write(
                    f"{program.name}:{name} {f['verdict']} {f['criticality']} "
                    f"{f['notes']}\n"
                )
        order = in_order(program, functions) if functions else None
        asked += order is not None
        ordered += bool(order)
        ties += [tie] if tie else []
    good = True
    tied = ties.count(program.tie)
    for name, t in tallies.items():
        wrong = t.answers - t.labels
        first = name == next(iter(tallies))
        most = ALLOWED * t.runs
        bad = wrong > most or t.answers - t.holds > most
        bad = bad or (not options.load and 2 * t.silent >= t.runs)
        good = good and not bad
        order = f"{ordered}/{asked}" if first else ""
        tie = f"{tied}/{len(ties)}" if first and program.tie else ""
        print(
            f"{program.name:16} {name:14} {t.runs:4} {t.holds:4}/{t.answers:<3} "
            f"{t.labels:4}/{t.answers:<3} {t.silent:6} {wrong:6} {order:>7} {tie:>7}"
            f"{'  <-' if bad else ''}",
            flush=True,
        )
    allowed = ALLOWED * options.runs
    return good and ordered >= asked - allowed and tied >= len(ties) - allowed


def burn() -> None:
    """Be busy until we are ended, or nobody is there to end us."""
    parent = os.getppid()
    while os.getppid() == parent:
        for _ in range(200_000):
            pass


def main() -> int:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [p.name for p in PROGRAMS]
    parser.add_argument("program", nargs="*", metavar="PROGRAM", help=", ".join(names))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--budget", default="30s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load", type=int, default=0, metavar="N")
    parser.add_argument("--keep", metavar="DIR", help="keep the pairs of all runs there")
    parser.add_argument(
        "--native", metavar="PATH", help="programs of native.c, which is there compiled"
    )
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.program) - set(names):
        parser.error(f"no program {', '.join(unknown)}: {', '.join(names)}")
    known = NATIVE if options.native else [p.name for p in PROGRAMS]
    chosen = [p for p in PROGRAMS if p.name in (options.program or known)]
    if options.keep:
        os.makedirs(options.keep, exist_ok=True)
    print(
        f"{'program':16} {'function':14} runs    holds    label silent  WRONG   order"
        "     tie",
        flush=True,
    )
    load = [
        multiprocessing.Process(target=burn, daemon=True) for _ in range(options.load)
    ]
    for process in load:
        process.start()
    try:
        good = [measure(p, options) for p in chosen]
        return 0 if all(good) else 1
    finally:
        for process in load:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
