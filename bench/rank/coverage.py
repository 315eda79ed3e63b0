# SPDX-License-Identifier: MIT
"""How often ``speed-bump rank`` is right about programs whose answer is known.

``coverage.py [--runs N] [--budget TIME] [--load N] [--only NAME,...]`` prints a table
with a line for each function. "inside" counts the runs in which the 95% interval contains
the truth, of those that gave a number. "right" counts the right verdicts, "open" the runs
with the verdict inconclusive and a reason, "WRONG" all others: another verdict, no
verdict, or no reason. "half" is the median of half the interval. "first" is the median
time after which the final verdict of a run no longer changed, from its record. "tie"
counts the runs that describe the relation of two functions rightly, of those that
describe it.

``--native PATH`` runs the programs of native.c, with native targets; this needs root, and
a machine on which native functions can be delayed. ``--load N`` keeps N processes busy
meanwhile: then "open" is right too, and a wrong verdict is still wrong.

Each run is appended to a file of JSON lines (``--results``). A run that is there already,
with the same program, seed, budget and load, is not repeated, so that long measurements
can be interrupted. ``--table`` prints the table of the existing runs and runs nothing.

The exit status is 1 if in more than one of ten runs of a program a verdict was wrong or
an interval missed the truth, or if more than one of a hundred verdicts was wrong.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, fields, replace
from typing import Any

from truth import CLOSE, ENVIRON, PROGRAMS, Program, Truth, by_name, command_of

HERE = pathlib.Path(__file__).parent
FOREVER_S = 100_000
# Limits for the runs of a program, and for all verdicts.
ALLOWED, ALLOWED_OF_ALL = 0.1, 0.01
INCONCLUSIVE = "inconclusive"
# What the results have of the relation of functions.
JOINT = ("targets", "kind")
# A run is examined again after each of these parts of it.
LOOKS = 20
# Time after the budget that a run may need for its report.
PATIENCE_S = 120


def name_of(finding: dict[str, Any]) -> str:
    """Without module, path and backend."""
    return str(finding["target"]).rpartition(":")[2]


# --------------------------------------------------------------------------------- a run


def rank_command(
    program: Program, options: argparse.Namespace, seed: int, directory: str
) -> list[str]:
    """The arguments of rank: the functions, the unit, and the program."""
    words = [
        *(sys.executable, "-m", "speed_bump", "rank", "--seed", str(seed)),
        *("--budget", options.budget, "--json", f"{directory}/json"),
        *("-o", record_of(program, options, seed, directory)),
    ]
    for name in program.functions:
        if options.native:
            words += ["--native", f"{options.native}:{name}"]
        else:
            words += ["-t", f"__main__:{name}"]
    if options.native:
        words += ["--progress", f"{options.native}:unit_done"]
    return [*words, "--", *command_of(program, FOREVER_S, options.native)]


def record_of(
    program: Program, options: argparse.Namespace, seed: int, directory: str
) -> str:
    kind = "-native" if options.native else ""
    return f"{options.keep or directory}/{program.name}{kind}-{seed}.speedbump"


def once(program: Program, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """A run, as a line of the results."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        command = rank_command(program, options, seed, directory)
        try:
            done = subprocess.run(
                command,
                env={**ENVIRON, **program.placed},
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds_of(options.budget) + PATIENCE_S,
            )
            status, said = done.returncode, done.stderr
        except subprocess.TimeoutExpired as late:
            status, said = -1, f"still running after {late.timeout:.0f} s"
        line = {
            **key_of(program, options, seed),
            "status": status,
            "seconds": time.monotonic() - begin,
        }
        path = pathlib.Path(f"{directory}/json")
        if not path.exists():
            return {**line, "said": said[-4000:], "findings": {}, "warnings": []}
        found = json.loads(path.read_text("utf-8"))
        first = first_answers(record_of(program, options, seed, directory))
    return {
        **line,
        "findings": {
            name_of(f): kept(f, first.get(str(f["target"]))) for f in found["findings"]
        },
        "warnings": found.get("warnings", []),
        "joints": [{key: j[key] for key in JOINT} for j in found.get("joints", [])],
    }


def kept(finding: dict[str, Any], first_s: float | None) -> dict[str, Any]:
    """What the results say of a function; the record has all (``--keep``)."""
    return {
        **{key: finding[key] for key in ("verdict", "reason", "delayed_slots")},
        "dose": round(finding["dose"], 4),
        "criticality": rounded(finding["criticality"], 4),
        "slack_unit_ns": rounded(finding["slack_ns"], 0),
        "first_s": first_s and round(first_s, 1),
    }


def rounded(
    interval: dict[str, float | None] | None, digits: int
) -> dict[str, float | None] | None:
    return interval and {k: v and round(v, digits) for k, v in interval.items()}


def seconds_of(budget: str) -> float:
    from speed_bump.command.options import budget as read

    return read(budget)


def first_answers(path: str) -> dict[str, float]:
    """By function, the time in s of the last verdict that stayed."""
    from speed_bump.experiment import archive
    from speed_bump.experiment.fit.verdict import verdict

    try:
        record = archive.load(path)
    except archive.ArchiveError:  # there is none for whole runs
        return {}
    slots = record.slots
    if not len(slots):
        return {}
    last = {f.name: f.verdict for f in verdict(record).findings}
    ends = (slots.end_ns - slots.end_ns[0]) / 1e9
    took: dict[str, float] = {
        n: float(ends[-1]) for n, v in last.items() if v != INCONCLUSIVE
    }
    standing = set(took)
    for look in range(LOOKS - 1, 0, -1):
        at = float(ends[-1]) * look / LOOKS
        some = int((ends <= at).sum())
        if not standing or some < 2:
            break
        cut = {f.name: getattr(slots, f.name)[:some] for f in fields(slots)}
        said = verdict(replace(record, slots=type(slots)(**cut)), final=False)
        standing &= {f.name for f in said.findings if f.verdict == last[f.name]}
        took.update(dict.fromkeys(standing, at))
    return took


def key_of(program: Program, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    return {
        "program": program.name,
        "native": bool(options.native),
        "seed": seed,
        "budget": options.budget,
        "load": options.load,
    }


# ------------------------------------------------------------------------------- a table


@dataclass
class Tally:
    """Of one function, over runs, or of several functions together."""

    runs: int = 0
    numbers: int = 0
    inside: int = 0
    right: int = 0
    open: int = 0
    halves: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        return self.runs - self.right - self.open

    def join(self, other: Tally) -> None:
        """Of several functions together."""
        for one in fields(self):
            both = getattr(self, one.name) + getattr(other, one.name)
            setattr(self, one.name, both)

    def add(self, truth: Truth, found: dict[str, Any] | None) -> None:
        """The result of one run; None: nothing about this function."""
        self.runs += 1
        if found is None:
            return
        if found["verdict"] in truth.verdicts:
            self.right += 1
        elif found["verdict"] == INCONCLUSIVE and found["reason"]:
            self.open += 1
        if found.get("first_s") is not None:
            self.firsts.append(found["first_s"])
        if (c := found["criticality"]) is None:
            return
        self.numbers += 1
        self.halves.append((c["high"] - c["low"]) / 2)
        holds = c["low"] - CLOSE <= truth.high and truth.low <= c["high"] + CLOSE
        self.inside += holds and slack_holds(truth, found)


def slack_holds(truth: Truth, found: dict[str, Any]) -> bool:
    """Whether its interval contains the truth, to a tenth.

    Until 27 November 2026 the results had the slack of a slot, "slack_ns", of which only
    the upper end is known to be above that of a unit.
    """
    slack = found.get("slack_unit_ns") or found.get("slack_ns")
    if not slack or not truth.slack_us:
        return True
    true, most = 1000 * truth.slack_us, slack["high"]  # None: it was not used up
    low = slack["low"] if "slack_unit_ns" in found else 0
    return low <= 1.1 * true and (most is None or most >= 0.9 * true)


def tie_of(program: Program, joints: list[dict[str, Any]]) -> str:
    """The tie of the program's pair; "": none."""
    for joint in joints:
        names = {name.rpartition(":")[2] for name in joint["targets"]}
        if program.pair and names == set(program.pair):
            return str(joint["kind"])
    return ""


HEADS = "function         truth   runs   inside  right  open WRONG   half  first     tie"


def median(values: list[float], form: str) -> str:
    return form.format(statistics.median(values)) if values else "-"


def lines_of(
    program: Program, runs: list[dict[str, Any]]
) -> tuple[list[str], int, int, bool]:
    """Its lines of the table; the verdicts, the wrong ones; whether it passes."""
    tallies = {name: Tally() for name in program.functions}
    for run in runs:
        for name, tally in tallies.items():
            tally.add(program.functions[name], run["findings"].get(name))
    said = [tie for run in runs if (tie := tie_of(program, run.get("joints", [])))]
    allowed = ALLOWED * len(runs)
    tied = said.count(program.tie)
    good = len(said) - tied <= allowed
    lines = []
    for name, t in tallies.items():
        bad = t.wrong > allowed or t.numbers - t.inside > allowed
        good = good and not bad
        truth = program.functions[name]
        first = name == next(iter(tallies))
        tie = f"{tied}/{len(said)}" if first and program.tie else ""
        lines.append(
            f"{name:16} {truth.low:5.2g} {t.runs:6} {f'{t.inside}/{t.numbers}':>8} "
            f"{t.right:6} {t.open:5} {t.wrong:5} {median(t.halves, '{:.3f}'):>6} "
            f"{median(t.firsts, '{:.0f} s'):>6} {tie:>7}{'  <-' if bad else ''}"
        )
    verdicts = sum(t.runs for t in tallies.values())
    return lines, verdicts, sum(t.wrong for t in tallies.values()), good


def print_program(program: Program, runs: list[dict[str, Any]]) -> tuple[int, int, bool]:
    lines, verdicts, wrong, good = lines_of(program, runs)
    print(f"{program.name}:", *lines, sep="\n", flush=True)
    return verdicts, wrong, good


# ------------------------------------------------------------------------------ measuring


def burn() -> None:
    """Use the CPU until the parent exits or kills this process."""
    parent = os.getppid()
    while os.getppid() == parent:
        for _ in range(200_000):
            pass


def measure(
    program: Program, options: argparse.Namespace, lines: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """All its runs: those in the file, and the missing ones, which are made."""
    runs = []
    for seed in range(options.seed, options.seed + options.runs):
        key = key_of(program, options, seed)
        known = [line for line in lines if key.items() <= line.items()]
        if known:
            runs.append(known[-1])
            continue
        if options.table:
            continue
        run = once(program, options, seed)
        with open(options.results, "a", encoding="utf-8") as file:
            file.write(json.dumps(run) + "\n")
        runs.append(run)
        told = ", ".join(
            f"{name} {f['verdict']}" for name, f in run["findings"].items()
        ) or " ".join(run["said"].split("\n"))
        sys.stderr.write(f"{program.name}, seed {seed}, {run['seconds']:.0f} s: {told}\n")
    return runs


def results_file() -> str:
    """One for each state of the tree."""
    done = subprocess.run(
        ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--exclude", "*"],
        capture_output=True,
        text=True,
        check=False,
    )
    name = done.stdout.strip() or "unknown"
    directory = HERE.parents[1] / "build" / "coverage"
    directory.mkdir(parents=True, exist_ok=True)
    return str(directory / f"{name}.jsonl")


def main() -> int:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = ", ".join(p.name for p in PROGRAMS)
    parser.add_argument("--only", default="", metavar="NAME,...", help=names)
    parser.add_argument("--runs", type=int, default=int(os.environ.get("RUNS") or 20))
    parser.add_argument("--budget", default=os.environ.get("BUDGET") or "25s")
    parser.add_argument("--seed", type=int, default=1, help="of the first run, then +1")
    parser.add_argument("--load", type=int, default=0, metavar="N")
    parser.add_argument(
        "--keep", metavar="DIR", help="keep the records of all runs there"
    )
    parser.add_argument("--results", metavar="FILE", help="a line for each run")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--native", metavar="PATH", help="native.c, compiled")
    options = parser.parse_args()
    try:
        chosen = by_name(
            options.only.split(",") if options.only else [], bool(options.native)
        )
    except ValueError as error:
        parser.error(str(error))
    options.results = options.results or results_file()
    if options.keep:
        os.makedirs(options.keep, exist_ok=True)
    lines: list[dict[str, Any]] = []
    if os.path.exists(options.results):
        with open(options.results, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
    sys.stderr.write(f"results: {options.results}\n")
    print(HEADS, flush=True)
    load = [
        multiprocessing.Process(target=burn, daemon=True)
        for _ in range(0 if options.table else options.load)
    ]
    for process in load:
        process.start()
    try:
        found = [print_program(p, measure(p, options, lines)) for p in chosen]
    finally:
        for process in load:
            process.terminate()
    verdicts, wrong = sum(f[0] for f in found), sum(f[1] for f in found)
    print(f"{wrong} wrong of {verdicts} verdicts")
    all_good = all(good for _, _, good in found)
    return 0 if all_good and wrong <= max(ALLOWED_OF_ALL * verdicts, 0) else 1


if __name__ == "__main__":
    sys.exit(main())
