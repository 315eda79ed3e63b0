# SPDX-License-Identifier: MIT
"""The experiment on functions of C programs, which the kernel delays.

The programs are bench/rank/native.c; their times are by the clock, so that a guest, in
which the same work takes longer, changes nothing of what is true. SB_RANK_NATIVE is where
they are.
"""

from __future__ import annotations

import json
import os
import statistics

import pytest
from ranking import Ranked, check_labels, check_pairs, speed_bump

# Times so long that the switches of a slow guest are short beside them.
SCALE = "3"
# Less than would be chosen, to have pairs soon.
WINDOW = ("--window", "100ms")
# Seconds.
BUDGETS = (10, 20, 40)


def options(*functions):
    path = os.environ.get("SB_RANK_NATIVE")
    if not path:
        pytest.skip("SB_RANK_NATIVE is not set")
    found = [word for name in functions for word in ("--native", f"{path}:{name}")]
    return [*found, "--progress", f"{path}:unit_done"], path


@pytest.mark.ranks_native
def test_functions_of_c_are_ranked(tmp_path):
    targets, path = options("f", "g", "h")
    truth = dict.fromkeys("fgh", "linear")
    command = [path, "serial", SCALE]
    ranked = check_labels(tmp_path, targets, command, truth, *WINDOW, budgets=BUDGETS)
    check_pairs(ranked.record)
    for name, f in ranked.functions.items():
        assert f["function"] == f"{path}:{name}"
        assert f["calls_per_unit"] == pytest.approx(1, abs=0.2)
    assert ranked.result["unit"] == f"call of native:{path}:unit_done"


def share(f):
    return f["self_share"]["value"]


@pytest.mark.ranks_native
def test_self_time_of_functions_of_c(tmp_path):
    targets, path = options("f", "g", "h")
    ranked = Ranked(
        tmp_path,
        targets,
        [path, "serial", SCALE],
        *WINDOW,
        enough=lambda record: sum(c.native.stacks for c in record.censuses) > 1000,
        budgets=(10, 40, 160),
    )
    refused = {c.native.refused for c in ranked.record.censuses} - {""}
    assert not refused, refused
    f, g, h = (ranked.functions[name] for name in "fgh")
    # 900, 600 and 300 us, and nothing else.
    assert 0.35 < share(f) < 0.65
    assert 0.2 < share(g) < 0.47
    assert 0.08 < share(h) < 0.28
    assert share(f) + share(g) + share(h) == pytest.approx(1, abs=0.2)
    for finding in (f, g, h):
        assert finding["self_share"]["low"] < share(finding)
        if finding["headroom"]:
            assert finding["headroom"]["value"] == pytest.approx(
                share(finding) * finding["criticality"]["value"]
            )
    again = speed_bump("report", str(ranked.output), "--json")
    assert again.returncode == 0, again.stderr
    functions = {x["function"]: x for x in json.loads(again.stdout)["functions"]}
    assert share(functions[f"{path}:f"]) == share(f)
    assert "perf events" in ranked.done.stdout


@pytest.mark.ranks_native
def test_time_asleep_is_self_time(tmp_path):
    targets, path = options("long_branch", "short_branch")
    ranked = Ranked(
        tmp_path,
        targets,
        [path, "fork_join", SCALE],
        *WINDOW,
        enough=lambda record: sum(c.native.clock_ns for c in record.censuses) > 5e8,
        budgets=(10, 40, 160),
    )
    # 4 ms and 2 ms of 4 ms, in threads of their own, most of it in a sleep.
    long, short = (ranked.functions[n] for n in ("long_branch", "short_branch"))
    assert share(long) > 0.6
    assert 0.25 < share(short) < 0.85 * share(long)


@pytest.mark.ranks_native
def test_windows_begin_and_end_with_a_unit(tmp_path):
    """Though the kernel only counts units, and does not say when they were done."""
    if "SPEED_BUMP_GUEST" in os.environ:
        pytest.skip("the CPUs of a guest take turns, and whoever looks comes late")
    targets, path = options("step")
    # A unit every 4 ms, whatever else the machine does: times are multiples of that.
    unit_ns = 4e6 * float(SCALE)

    def fits(record):
        windows = [w for p in record.pairs for w in (p.off, p.on) if not w.delayed]
        beside = [abs(w.time_ns / unit_ns - w.units) for w in windows]
        # Cut anywhere they would be beside by 0.3 of a unit.
        return len(record.pairs) > 12 and statistics.median(beside) < 0.15

    command = [path, "tick", SCALE]
    Ranked(tmp_path, targets, command, *WINDOW, enough=fits, budgets=BUDGETS)


@pytest.mark.ranks_native
def test_a_stage_of_c_that_is_hidden(tmp_path):
    targets, path = options("cpu", "record")
    truth = {"cpu": "hinge", "record": "linear"}
    command = [path, "stages", SCALE]
    check_labels(tmp_path, targets, command, truth, *WINDOW, budgets=BUDGETS)


@pytest.mark.ranks_native
def test_a_function_that_is_not_there_is_said(tmp_path):
    targets, path = options("f")
    with pytest.raises(AssertionError, match="no_such_function"):
        Ranked(
            tmp_path,
            [*targets, "--native", f"{path}:no_such_function"],
            [path, "serial", SCALE],
            budgets=(1,),
        )
