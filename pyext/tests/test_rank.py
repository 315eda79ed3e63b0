# SPDX-License-Identifier: MIT
"""The experiment on real programs; what it says of simulated ones is in test_judge.py.

Each program runs in one thread, so that what others do on the machine makes it slower and
changes nothing of what is true. Where data are too few for an answer, more are taken.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

PROGRAMS = pathlib.Path(__file__).parents[2] / "bench" / "rank" / "programs.py"
# Seconds. An experiment ends as soon as all is decided.
BUDGETS = (20, 60, 120)

# Until they have been seen to hold on a machine that is as busy as one may be.
measures = pytest.mark.skipif(
    not os.environ.get("SB_MEASURE"), reason="measures for minutes; SB_MEASURE=1 runs it"
)

SLOW = """
import time, {imports}
def f():
    return sum(range(9000))
def g():
    return sum(range(3000))
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    f()
    g()
    {progress}
"""


def speed_bump(*arguments, **options):
    options = {"capture_output": True, "text": True, "timeout": 400, **options}
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SPEED_BUMP_")}
    environ["XDG_STATE_HOME"] = options.pop("state", "/nonexistent")
    return subprocess.run(
        [sys.executable, "-m", "speed_bump", *arguments],
        env=environ,
        check=False,
        **options,
    )


def rank(tmp_path, patterns, command, *more, verb="rank", enough=None):
    """The functions of the JSON by name; measured again, longer, until ``enough``."""
    output = tmp_path / "pairs.jsonl"
    numbers = tmp_path / "numbers.json"
    targets = [word for pattern in patterns for word in ("-t", pattern)]
    for budget in BUDGETS:
        done = speed_bump(
            verb, *targets, "--budget", f"{budget}s", "--seed", "1", "-o", str(output),
            "--json", str(numbers), "--precision", "0.2", *more, "--", *command,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        result = json.loads(numbers.read_text())
        functions = {f["function"].rpartition(":")[2]: f for f in result["functions"]}
        if enough is None or enough(functions):
            break
    return functions, result, done, output


def decided(functions):
    return all(f["shape"] != "inconclusive" for f in functions.values())


def program(name, seconds=300):
    return [sys.executable, str(PROGRAMS), name, str(seconds)]


@measures
def test_serial_functions_matter_and_are_in_order(tmp_path):
    functions, result, done, output = rank(
        tmp_path, ["__main__:[fgh]"], program("serial"), enough=decided
    )
    assert list(functions) == ["f", "g", "h"], done.stdout
    for f in functions.values():
        assert f["shape"] == "linear", done.stdout
        assert f["matters"]
        assert 0.5 < f["criticality"]["value"] < 1.5
        assert f["calls_per_unit"] == pytest.approx(1, abs=0.1)
    heads = [f["headroom"]["value"] for f in functions.values()]
    assert heads == sorted(heads, reverse=True)
    assert not result["sham"]["alarm"]

    # The same from the file, in each form.
    again = speed_bump("report", str(output), "--json")
    assert json.loads(again.stdout)["functions"] == result["functions"]
    text = speed_bump("report", str(output)).stdout
    assert "__main__:f" in text
    assert text.splitlines()[2].split()[0] == "function"
    table = speed_bump("report", str(output), "--csv").stdout.splitlines()
    assert table[0].startswith("function,calls_per_unit")
    assert len(table) == 4
    assert "| `__main__:g` |" in speed_bump("report", str(output), "--md").stdout
    page = speed_bump("report", str(output), "--html").stdout
    assert page.startswith("<!doctype html>")
    assert "<svg" in page
    assert not re.search(r"(src|href)\s*=|https?://|<script", page)

    # What continuous integration asks.
    low = f"{functions['f']['headroom']['low'] / 2:.3f}"
    for condition, status in (
        (f"headroom(__main__:f) > {low}", 3),
        ("headroom(__main__:f) < 0.001", 0),
        ("criticality(__main__:nothing) > 0", 1),
    ):
        done = speed_bump("report", str(output), "--fail-if", condition)
        assert done.returncode == status, (condition, done.stderr)


@measures
def test_what_hides_in_a_timers_slack_is_a_hinge(tmp_path):
    # 20 ms each, hardly any of it used: what is left hides what others on the machine do.
    source = """
import time, speed_bump
def step():
    return sum(range(3000))
due = time.monotonic()
while True:
    due += 0.02
    time.sleep(max(due - time.monotonic(), 0))
    step()
    speed_bump.progress()
"""
    functions, _, done, _ = rank(
        tmp_path,
        ["__main__:step"],
        [sys.executable, "-c", source],
        enough=lambda functions: functions["step"]["shape"] == "hinge",
    )
    step = functions["step"]
    assert step["shape"] == "hinge", done.stdout
    assert step["criticality"]["value"] < 0.3
    assert not step["matters"]
    assert "slack" in done.stdout


@measures
def test_progress_is_the_calls_of_a_function(tmp_path):
    source = SLOW.format(imports="json", seconds=300, progress="json.dumps([1])")
    functions, result, done, _ = rank(
        tmp_path,
        ["__main__:f"],
        [sys.executable, "-c", source],
        "--progress",
        "json:dumps",
        enough=decided,
    )
    assert functions["f"]["matters"], done.stdout
    assert result["unit"] == "call of json:dumps"


@measures
def test_progress_is_a_line_of_output(tmp_path):
    source = SLOW.format(imports="sys", seconds=300, progress="print('step done')")
    functions, _, done, _ = rank(
        tmp_path,
        ["__main__:f"],
        [sys.executable, "-c", source],
        "--progress-regex",
        "step [a-z]+",
        enough=decided,
    )
    assert functions["f"]["matters"], done.stdout
    assert "step done" not in done.stdout


@measures
def test_a_short_program_is_measured_in_whole_runs(tmp_path):
    source = SLOW.format(imports="sys", seconds=0, progress="").replace(
        "while time.monotonic() < end:", "for _ in range(1500):"
    )
    functions, result, done, _ = rank(
        tmp_path, ["__main__:f"], [sys.executable, "-c", source], enough=decided
    )
    assert functions["f"]["matters"], done.stdout
    assert functions["f"]["window_ns"] == 0
    assert result["end"]["runs"] > 4
    assert "whole runs" in done.stderr


def test_what_does_not_run_is_said_in_one_line(tmp_path):
    where = ["-o", str(tmp_path / "x")]
    for arguments, status, text in (
        (["-t", "a:b", *where, "--", "/no/such/program"], 127, "No such file"),
        (["-t", "a:b", *where, "--", sys.executable, "-c", "exit(3)"], 3, "status 3"),
        (["-t", "a:b", "--budget", "2s", *where, "--", "sleep", "60"], 1, "no Python"),
        (["-t", "a:b", *where, "--", sys.executable, "-c", "0"], 1, "none of the"),
    ):
        done = speed_bump("rank", *arguments)
        assert done.returncode == status, done.stderr
        assert text in done.stderr
        assert "Traceback" not in done.stderr
    for arguments, text in (
        (["rank", "-t", "a:b"], "no command to run"),
        (["rank", "--", "x"], "nothing to slow"),
        (["rank", "-t", "a:b", "--budget", "soon", "--", "x"], "--budget"),
        (["rank", "-t", "a:b", "--fail-if", "speed > 1", "--", "x"], "--fail-if"),
        (["rank", "-t", "a:b", "--progress-regex", "(", "--", "x"], "--progress-regex"),
        (["sweep", "-t", "a:b", "--levels", "x", "--", "x"], "--levels"),
        (["report", __file__, "--fail-if", "what"], "--fail-if"),
    ):
        done = speed_bump(*arguments)
        assert done.returncode == 2, arguments
        assert text in done.stderr
    done = speed_bump("report", __file__)
    assert done.returncode == 1
    assert "not a file of speed-bump" in done.stderr


def test_nothing_is_left_running(tmp_path):
    """The program is ended, and its workers, when all is measured."""
    marker = f"left-{os.getpid()}"
    source = (
        "import os, subprocess, sys, time, speed_bump\n"
        "subprocess.Popen(['sleep', '600'], env={**os.environ, 'MARKER': "
        f"{marker!r}}})\n"
        "while True:\n    sum(range(5000))\n    speed_bump.progress()\n"
        "    f = compile('0', 'x', 'eval')\n"
        "    exec('def f(): pass\\nf()', {'__name__': 'work'})\n"
    )
    speed_bump(
        "rank", "-t", "work:f", "--budget", "2s", "-o", str(tmp_path / "x"), "--",
        sys.executable, "-c", source,
    )  # fmt: skip
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        assert f"MARKER={marker}".encode() not in environ
