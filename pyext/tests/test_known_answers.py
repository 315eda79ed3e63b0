# SPDX-License-Identifier: MIT
"""The programs of bench/rank with known criticality, and how answers are counted."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

RANK = pathlib.Path(__file__).parents[2] / "bench" / "rank"


def module(name):
    """Modules of bench/rank; PyPI has a package with the name of one of them."""
    spec = importlib.util.spec_from_file_location(name, RANK / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    spec.loader.exec_module(found)
    return found


truth, coverage = module("truth"), module("coverage")
del sys.modules["coverage"], sys.modules["truth"]

NATIVE = os.environ.get("SB_RANK_NATIVE")


def run(command, change=""):
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SPEED_BUMP_")}
    return subprocess.run(
        command,
        env={**environ, "BENCH_CHANGE": change},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "program", [*truth.PROGRAMS, *truth.TRAINING], ids=lambda p: p.name
)
def test_program_runs_and_each_of_its_functions_can_be_changed(program):
    if not program.everywhere and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    change = ",".join(f"{name}+0.01" for name in program.functions)
    done = run(truth.command_of(program, 0.2, None), change)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["units"] > 0
    assert found["seconds"] >= 0.2


@pytest.mark.skipif(not NATIVE, reason="SB_RANK_NATIVE is not set")
@pytest.mark.parametrize(
    "program", [p for p in truth.PROGRAMS if p.native], ids=lambda p: p.name
)
def test_native_program_is_the_same(program):
    change = ",".join(f"{name}+0.01" for name in program.functions)
    done = run(truth.command_of(program, 0.2, NATIVE), change)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["units"] > 0
    assert run(truth.command_of(program, 0.2, NATIVE), "nothing+1").returncode == 2


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU")
@pytest.mark.parametrize("apart", ["", "1"])
def test_stages_have_a_cpu_each_where_the_answer_depends_on_it(apart):
    code = """if True:
        import os, programs
        found = programs.context.Queue()
        programs.begin_process(lambda: found.put(os.sched_getaffinity(0))).join()
        print(len(found.get() & os.sched_getaffinity(0)))
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=RANK,
        env={**truth.ENVIRON, "BENCH_APART": apart},
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    assert int(done.stdout) == (0 if apart else len(os.sched_getaffinity(0)))
    assert {p.name for p in truth.PROGRAMS if p.placed} >= {"buffer_1", "balanced_10"}


def test_change_of_an_unknown_function_is_an_error():
    done = run(truth.command_of(truth.PROGRAMS[0], 0.2, None), "nothing*0.5")
    assert done.returncode == 1
    assert "no function nothing" in done.stderr


def test_what_is_added_makes_a_unit_longer():
    (serial,) = truth.by_name(["serial"], False)
    # A unit computes for 1.8 ms of CPU time, and ten times as long with 16 ms more.
    plain, longer = (truth.run_once(serial, 1, None, change) for change in ("", "f+16"))
    assert longer > 2 * plain


def finding(name, verdict, low, high, reason="so it is"):
    value = (low + high) / 2
    return {
        "target": f"__main__:{name}",
        "verdict": verdict,
        "criticality": {"value": value, "low": low, "high": high},
        "slack_ns": None,
        "reason": reason,
        "first_s": 1.0,
    }


def lines(*runs):
    """For stages, one of which is hidden: wrong verdicts, and whether it passes."""
    (stages,) = truth.by_name(["stages"], False)
    found = [{"findings": {coverage.name_of(f): f for f in run}} for run in runs]
    _, verdicts, wrong, good = coverage.lines_of(stages, found)
    assert verdicts == 2 * len(runs)
    return wrong, good


RIGHT = (finding("record", "matters", 0.95, 1.05), finding("cpu", "hidden", -0.05, 0.05))


def test_right_answers_are_good():
    assert lines(RIGHT, RIGHT) == (0, True)


def test_open_with_a_reason_is_good_and_without_one_is_wrong():
    def record(reason):
        return finding("record", "inconclusive", 0.0, 1.5, reason)

    assert lines((record("too noisy"), RIGHT[1])) == (0, True)
    assert lines((record(""), RIGHT[1])) == (1, False)


def test_another_verdict_or_none_is_wrong():
    wrong = (RIGHT[0], finding("cpu", "matters", -0.05, 0.5))
    assert lines(RIGHT, wrong) == (1, False)
    assert lines((RIGHT[0],)) == (1, False)


def test_interval_that_misses_the_truth_is_not_good():
    assert lines((finding("record", "matters", 0.5, 0.9), RIGHT[1])) == (0, False)


def test_run_that_is_in_the_results_is_not_made_again(tmp_path, monkeypatch):
    made = []

    def once(program, options, seed):
        made.append(seed)
        found = {coverage.name_of(f): f for f in RIGHT}
        key = coverage.key_of(program, options, seed)
        return {**key, "seconds": 1.0, "said": "", "findings": found}

    monkeypatch.setattr(coverage, "once", once)
    results = str(tmp_path / "results.jsonl")
    command = ["coverage.py", "--only", "stages", "--results", results, "--runs"]
    monkeypatch.setattr(sys, "argv", [*command, "2"])
    assert coverage.main() == 0
    monkeypatch.setattr(sys, "argv", [*command, "3"])
    assert coverage.main() == 0
    assert made == [1, 2, 3]
