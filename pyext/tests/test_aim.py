# SPDX-License-Identifier: MIT
"""Targets and the unit of work, found by looking."""

from __future__ import annotations

import json
import sys

import pytest
from ranking import speed_bump
from speed_bump.experiment.aim import aim
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner
from speed_bump.experiment.rank import RankError

pytestmark = pytest.mark.ranks

PROGRAM = """
import json, time
def parse():
    return sum(range(60000))
def render():
    return sum(range(30000))
def trifle():
    pass
def request():
    parse()
    for _ in range(3):
        render()
    trifle()
    time.sleep(0.002)
def main():
    while True:
        request()
        {more}
main()
"""


def look(source, seconds=20.0):
    said = []
    runner = Runner([sys.executable, "-c", source], show_output=False)
    with runner:
        return aim(runner, Progress(), seconds, said.append)


def test_what_takes_time_and_what_is_a_unit():
    found = look(PROGRAM.format(more=""))
    # What takes time itself, and what calls it.
    assert {"__main__:parse", "__main__:render", "__main__:request"} <= set(
        found.candidates
    )
    # Entered before the work began, and never again.
    assert "__main__:main" not in found.candidates
    assert "time:sleep" not in found.candidates
    assert "__main__:trifle" not in found.candidates
    assert "speed_bump" not in " ".join(found.candidates)
    # Once a unit, and not three times, nor once a run.
    (unit,) = found.progress.functions
    assert unit.right in ("parse", "request", "trifle")
    assert "a second" in found.why
    assert [t.right for t in found.targets()] == [
        name.rpartition(":")[2] for name in found.candidates
    ]


def test_what_the_program_says_is_the_unit():
    found = look(PROGRAM.format(more="__import__('speed_bump').progress()"))
    assert found.progress.is_open
    assert "progress()" in found.why


def test_nothing_to_look_at_is_said():
    with pytest.raises(RankError, match="name functions with -t"):
        look("import time\nwhile True: time.sleep(1)", 1.0)
    with pytest.raises(RankError, match="status 3"):
        look("exit(3)", 60.0)


def test_rank_needs_no_option(tmp_path):
    numbers = tmp_path / "numbers.json"
    for budget in (8, 30, 90):
        done = speed_bump(
            "rank", "--budget", f"{budget}s", "--json", str(numbers), "-o",
            str(tmp_path / "x"), "--", sys.executable, "-c", PROGRAM.format(more=""),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = {f["name"]: f for f in json.loads(numbers.read_text())["findings"]}
        said = found["__main__:parse"]
        # Where others leave it too little, that is the answer.
        if said["verdict"] == "matters" or "of the CPU time" in said["reason"]:
            break
    assert said["verdict"] == "matters" or "of the CPU time" in said["reason"]
    assert "a unit of work is call of __main__:" in done.stderr
    assert "functions that take time" in done.stderr
