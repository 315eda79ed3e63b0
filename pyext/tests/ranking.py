# SPDX-License-Identifier: MIT
"""Run ``speed-bump rank`` on programs with known answers (bench/rank)."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import schemas
from speed_bump.experiment import archive

BENCH = pathlib.Path(__file__).parents[2] / "bench" / "rank"
# Seconds; on a busy machine the first is not sufficient.
BUDGETS = (6, 20, 60)


def command_line(*arguments):
    return [sys.executable, "-m", "speed_bump", *arguments]


def environment():
    environ = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith("SPEED_BUMP_") or k == "SPEED_BUMP_BACKEND"
    }
    return {**environ, "XDG_STATE_HOME": "/nonexistent"}


def speed_bump(*arguments, **options):
    options = {"capture_output": True, "text": True, "timeout": 400, **options}
    return subprocess.run(
        command_line(*arguments), env=environment(), check=False, **options
    )


class Ranked:
    """The result of ``rank``; repeated, with more time, until it ``fits``."""

    def __init__(
        self, tmp_path, targets, command, *more, verb="rank", fits, budgets=BUDGETS
    ):
        self.output = tmp_path / "record.speedbump"
        numbers = tmp_path / "numbers.json"
        for seed, self.budget in enumerate(budgets, 1):
            self.done = speed_bump(
                verb, *targets, "--budget", f"{self.budget}s", "--seed", str(seed),
                "-o", str(self.output), "--json", str(numbers), *more, "--", *command,
            )  # fmt: skip
            if self.done.returncode == 0:
                self.record = archive.load(str(self.output))
                # Where others have the CPUs, still more time seldom says more.
                shared = seed > 1 and self.record.machine.share < 0.9
                self.is_last = shared or seed == len(budgets)
                self.result = schemas.read("report", numbers.read_text())
                self.findings = {
                    f["target"].rpartition(":")[2]: f for f in self.result["findings"]
                }
                if fits(self):
                    return
        assert self.done.returncode == 0, self.done.stderr
        raise AssertionError((self.done.stdout, self.done.stderr))


def python(*patterns):
    """The options for Python functions."""
    return [word for pattern in patterns for word in ("-t", pattern)]


def program(name, seconds=300):
    """The command of one of the programs with a known answer."""
    return [sys.executable, str(BENCH / "programs.py"), name, str(seconds)]


def says(**truth):
    """Every label is right; every finding has a reason, and help if inconclusive."""

    def fits(ranked):
        assert sorted(ranked.findings) == sorted(truth)
        for f in ranked.findings.values():
            assert f["reason"]
            assert f["help"] or f["verdict"] != "inconclusive"
        return all(ranked.findings[name]["verdict"] == truth[name] for name in truth)

    return fits


def says_with_cpus_of_its_own(**truth):
    """The same, of a program that does two things at once.

    Where others have a part of the CPUs, or these take turns, what is hidden on a machine
    at rest is not: one thing waits for the CPU of the other.
    """
    right = says(**truth)

    def fits(ranked):
        if right(ranked):
            return True
        shared = ranked.record.machine.share < 0.9 or "SPEED_BUMP_GUEST" in os.environ
        return shared and ranked.is_last

    return fits
