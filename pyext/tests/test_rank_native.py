# SPDX-License-Identifier: MIT
"""The experiment on functions of C programs, which the kernel delays.

The programs are those of bench/rank/native.c, at SB_RANK_NATIVE.
"""

from __future__ import annotations

import os

import pytest
from ranking import Ranked, says, says_with_cpus_of_its_own

pytestmark = pytest.mark.ranks_native

# The program ends after this time.
SECONDS = "300"
# Seconds.
IN_GUEST = "SPEED_BUMP_GUEST" in os.environ
BUDGETS = (15, 40) if IN_GUEST else (15, 40, 90)


def options(*functions):
    path = os.environ.get("SB_RANK_NATIVE")
    if not path:
        pytest.skip("SB_RANK_NATIVE is not set")
    found = [word for name in functions for word in ("--native", f"{path}:{name}")]
    return [*found, "--progress", f"{path}:unit_done"], path


def share(f):
    return f["self_share"]


def test_functions_of_c_are_ranked(tmp_path):
    targets, path = options("f", "g", "h")
    right = says(f="matters", g="matters", h="matters")

    def fits(ranked):
        # The CPUs of a guest are emulated in turns, so an answer may be impossible there.
        labels = {f["verdict"] for f in ranked.findings.values()}
        open_ones = IN_GUEST and ranked.is_last and "hidden" not in labels
        return right(ranked) or open_ones

    ranked = Ranked(
        tmp_path, targets, [path, "serial", SECONDS], fits=fits, budgets=BUDGETS
    )
    for name, f in ranked.findings.items():
        assert f["target"] == f"{path}:{name}"
        assert f["calls_per_unit"] == pytest.approx(1, abs=0.2)
        if f["criticality"]:
            assert 0.5 < f["criticality"]["value"] < 1.5
    # In each slot, the delivered delay is the planned one.
    slots = ranked.record.slots
    ruled = slots.delivered_ns.sum(axis=1) > 0
    assert ruled[slots.good & (slots.mask == 0)].mean() < 0.02
    assert ruled.sum() > 10
    # Each slot has the kernel's counts.
    assert (slots.calls[slots.good] == slots.units[slots.good][:, None]).mean() > 0.97
    assert ranked.record.header["unit"] == f"call of native:{path}:unit_done"
    # 900, 600 and 300 us, and no other delays.
    f, g, h = (ranked.findings[name] for name in "fgh")
    assert 0.3 < share(f) < 0.7
    assert share(f) + share(g) + share(h) == pytest.approx(1, abs=0.25)
    assert share(f) > share(h)
    if f["headroom"]:
        expected = share(f) * f["criticality"]["value"]
        assert f["headroom"]["value"] == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("stages", {"record": "matters", "cpu": "hidden"}),
        ("fork_join", {"long_branch": "matters", "short_branch": "hidden"}),
    ],
)
def test_what_is_hidden_and_what_is_not(tmp_path, name, truth):
    targets, path = options(*truth)
    fits = says_with_cpus_of_its_own(**truth)
    Ranked(tmp_path, targets, [path, name, SECONDS], fits=fits, budgets=BUDGETS)


def test_a_unit_of_work_that_is_measured_too(tmp_path):
    """A glob names it: its calls are units all the same."""
    _, path = options()
    ranked = Ranked(
        tmp_path, ["--native", f"{path}:unit_*"], [path, "serial", SECONDS],
        "--progress", f"{path}:unit_done", fits=lambda _: True, budgets=(6,),
    )  # fmt: skip
    assert ranked.result["unit"] == f"call of native:{path}:unit_done"
    assert ranked.findings["unit_done"]["calls_per_unit"] == pytest.approx(1, abs=0.1)
