# SPDX-License-Identifier: MIT
"""Running ``speed-bump rank`` on programs whose answer is known (bench/rank)."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

from speed_bump.experiment import records

BENCH = pathlib.Path(__file__).parents[2] / "bench" / "rank"
# Seconds: on a busy machine the first is not enough for enough pairs.
BUDGETS = (2, 12, 60)


def command_line(*arguments):
    return [sys.executable, "-m", "speed_bump", *arguments]


def environment():
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SPEED_BUMP_")}
    return {**environ, "XDG_STATE_HOME": "/nonexistent"}


def speed_bump(*arguments, **options):
    options = {"capture_output": True, "text": True, "timeout": 400, **options}
    return subprocess.run(
        command_line(*arguments), env=environment(), check=False, **options
    )


def has_pairs(record):
    """Enough of each kind to say something of all."""
    solo = [pair for pair in record.pairs if pair.kind == "solo"]
    shams = [pair for pair in record.pairs if pair.kind == "sham"]
    return (
        len(solo) > 5
        and len(shams) > 0
        and sum(pair.off.hits for pair in solo) > 0
        and sum(pair.on.delayed for pair in solo) > 0
    )


class Ranked:
    """What ``rank`` said; measured again, longer, until there is ``enough``."""

    def __init__(
        self,
        tmp_path,
        targets,
        command,
        *more,
        verb="rank",
        enough=has_pairs,
        budgets=BUDGETS,
        seed="1",
    ):
        self.output = tmp_path / "pairs.jsonl"
        numbers = tmp_path / "numbers.json"
        for budget in budgets:
            self.budget = budget
            self.done = speed_bump(
                verb, *targets, "--budget", f"{budget}s", "--seed", seed,
                "-o", str(self.output), "--json", str(numbers), *more, "--", *command,
            )  # fmt: skip
            if self.done.returncode == 0:
                self.record = records.read(str(self.output))
                if enough(self.record):
                    break
        assert self.done.returncode == 0, self.done.stderr
        assert enough(self.record), (self.done.stdout, self.done.stderr)
        self.result = json.loads(numbers.read_text())
        self.functions = {
            f["function"].rpartition(":")[2]: f for f in self.result["functions"]
        }


def python(*patterns):
    """The options for functions of Python."""
    return [word for pattern in patterns for word in ("-t", pattern)]


def program(name, seconds=300):
    """One of the programs of which the answer is known."""
    return [sys.executable, str(BENCH / "programs.py"), name, str(seconds)]


def check_pairs(record):
    """Delays were on in one window of each pair and off in the other, and counted.

    One that is under way when it is switched off ends in the other window: on a busy
    machine that may be any time later.
    """
    for pair in record.pairs:
        assert pair.off.clock_ns > 0
        assert pair.on.clock_ns > 0
    solo = [pair for pair in record.pairs if pair.kind == "solo"]
    assert sum(pair.on.units for pair in solo) > 0
    assert sum(pair.off.hits for pair in solo) > 0
    assert sum(p.off.delayed for p in solo) < sum(p.on.delayed for p in solo) / 2
    shams = [pair for pair in record.pairs if pair.kind == "sham"]
    assert all(delay_ns == 0 for pair in shams for delay_ns in pair.delays_ns)
    asked = sum(pair.on.requested_ns for pair in solo)
    assert 0 < 0.9 * asked < sum(pair.on.measured_ns for pair in solo)


# What a label must not be taken for, by construction.
WRONG = {
    "linear": {"hinge", "negative", "amplified"},
    "hinge": {"linear", "negative", "amplified"},
}


def check_labels(tmp_path, targets, command, truth, *more, budgets=(5, 5, 10, 30)):
    """No label is wrong. "inconclusive" is none; other load may make it the only one.

    An interval of 95% is wrong now and then: a label must be wrong in each of several
    runs, with seeds of their own.
    """
    said = []
    for i, budget in enumerate(budgets):
        ranked = Ranked(
            tmp_path, targets, command, *more, seed=str(i), budgets=(budget, 60)
        )
        assert sorted(ranked.functions) == sorted(truth)
        wrong = [
            name
            for name, f in ranked.functions.items()
            if f["shape"] in WRONG[truth[name]]
        ]
        said.append(ranked.done.stdout)
        if not wrong:
            return ranked
    raise AssertionError("\n".join(said))
