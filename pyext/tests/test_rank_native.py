# SPDX-License-Identifier: MIT
"""The experiment on functions of C programs, which the kernel delays.

The programs are bench/rank/native.c; their times are by the clock, so that a guest, in
which the same work takes longer, changes nothing of what is true. SB_RANK_NATIVE is where
they are.
"""

from __future__ import annotations

import os

import pytest
from ranking import Ranked, check_labels, check_pairs

# Times so long that the switches of a slow guest are short beside them.
SCALE = "3"
# Seconds.
BUDGETS = (20, 40, 80)


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
    ranked = check_labels(
        tmp_path, targets, [path, "serial", SCALE], truth, budgets=BUDGETS
    )
    check_pairs(ranked.record)
    for name, f in ranked.functions.items():
        assert f["function"] == f"{path}:{name}"
        assert f["calls_per_unit"] == pytest.approx(1, abs=0.2)
    assert ranked.result["unit"] == f"call of native:{path}:unit_done"


@pytest.mark.ranks_native
def test_a_stage_of_c_that_is_hidden(tmp_path):
    targets, path = options("cpu", "record")
    truth = {"cpu": "hinge", "record": "linear"}
    check_labels(tmp_path, targets, [path, "stages", SCALE], truth, budgets=BUDGETS)


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
