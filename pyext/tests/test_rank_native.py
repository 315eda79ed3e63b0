# SPDX-License-Identifier: MIT
"""The experiment on functions of C programs, which the kernel delays.

The programs are those of bench/rank/native.c, at SB_RANK_NATIVE.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from ranking import Ranked, says, says_with_cpus_of_its_own, speed_bump
from speed_bump import native

pytestmark = pytest.mark.ranks_native

# The program ends after this time.
SECONDS = "300"
# Seconds.
IN_GUEST = "SPEED_BUMP_GUEST" in os.environ
BUDGETS = (15, 40) if IN_GUEST else (15, 40, 90)
IN_SHORT = (15,) if IN_GUEST and os.environ.get("SPEED_BUMP_SHORT") else BUDGETS


def program():
    path = os.environ.get("SB_RANK_NATIVE")
    if not path:
        pytest.skip("SB_RANK_NATIVE is not set")
    return path


def natives(*functions):
    path = program()
    return [word for name in functions for word in ("--native", f"{path}:{name}")]


def options(*functions):
    path = program()
    return [*natives(*functions), "--progress", f"{path}:unit_done"], path


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
        tmp_path, targets, [path, "serial", SECONDS], fits=fits, budgets=IN_SHORT
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


@pytest.mark.any_backend
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
    path = program()
    ranked = Ranked(
        tmp_path, ["--native", f"{path}:unit_*"], [path, "serial", SECONDS],
        "--progress", f"{path}:unit_done", fits=lambda _: True, budgets=(6, 25),
    )  # fmt: skip
    assert ranked.result["unit"] == f"call of native:{path}:unit_done"
    assert ranked.findings["unit_done"]["calls_per_unit"] == pytest.approx(1, abs=0.1)


COMPRESSES = """
import os, time, zlib
data = os.urandom(1 << 15)
def unit():
    zlib.compress(data)
    time.sleep(0.004)
while True:
    unit()
"""


@pytest.mark.any_backend
def test_two_processes_that_do_units_are_delayed_at_the_same_time(tmp_path):
    """The kernel has one slot number for both, so their units are counted together."""
    path = tmp_path / "compresses.py"
    path.write_text(COMPRESSES)
    both = f"for i in 1 2; do '{sys.executable}' '{path}' & done; wait"

    def fits(ranked):
        # The CPUs of a guest are emulated in turns, so an answer may be impossible there.
        is_open = IN_GUEST and ranked.is_last
        return ranked.findings["deflate"]["verdict"] == "matters" or is_open

    ranked = Ranked(
        tmp_path, ["--native", "libz.so.1:deflate"], ["sh", "-c", both],
        "--progress", "__main__:unit", fits=fits, budgets=BUDGETS,
    )  # fmt: skip
    assert "was never called" not in ranked.done.stderr
    told = "2 processes that work in step" in ranked.done.stderr
    if IN_GUEST and not told:
        pytest.skip("they did not work in step: this guest's CPUs are emulated in turns")
    assert told
    assert "native functions are delayed in all of them at the same time" in (
        ranked.done.stderr
    )
    (found,) = ranked.findings.values()
    if found["verdict"] == "matters":
        assert found["criticality"]["value"] == pytest.approx(0.5, abs=0.25)
    assert ranked.result["side_by_side"] == pytest.approx(2, rel=0.2)


# ----------------------------------------------------------------------------- latency


by_bpf = pytest.mark.skipif(
    native.backend() == "driver", reason="the module reports no single calls"
)


@by_bpf
def test_what_adds_to_the_latency_of_native_requests(tmp_path):
    """Each calls work(), one in five slow() too, and between() is called between them."""
    path = program()

    def of(ranked):
        (told,) = ranked.result["latency"]
        return told, {f["target"].rpartition(":")[2]: f for f in told["findings"]}

    def fits(ranked):
        _, found = of(ranked)
        assert sorted(found) == ["between", "slow", "work"]
        assert found["between"]["verdict"] in ("hidden", "inconclusive")
        right = (
            found["work"]["verdict"] in ("adds to every request", "moves the queue")
            and found["slow"]["verdict"] == "only to the slow ones"
            # The next request waits for it, and takes no longer.
            and found["between"]["verdict"] == "hidden"
            and found["between"]["throughput"]["high"] < 0
        )
        if right:
            return True
        # Beside other work means and throughput may say little, but the p50.
        return ranked.is_last and all("p50" in f["per_ms"] for f in found.values())

    ranked = Ranked(
        tmp_path, natives("work", "slow", "between"), [path, "requests", SECONDS],
        "--latency", f"{path}:request", fits=fits, budgets=BUDGETS[:2],
    )  # fmt: skip
    told, found = of(ranked)
    assert told["name"] == f"native:{path}:request"
    assert told["requests"] > 1000
    assert told["requests_lost"] == 0
    assert ranked.result["unit"] == f"call of native:{path}:request"
    work, slow, between = (found[name] for name in ("work", "slow", "between"))
    assert work["calls_per_request"] == pytest.approx(1, abs=0.1)
    assert slow["calls_per_request"] == pytest.approx(0.2, abs=0.1)
    assert between["calls_per_request"] == pytest.approx(1, abs=0.1)
    # 200 us in four of five, else 800 us.
    assert 190_000 < told["undelayed_ns"]["p50"] < 400_000
    assert told["undelayed_ns"]["p90"] > 790_000
    # Half of the requests never wait for a CPU.
    assert work["per_ms"]["p50"]["value"] == pytest.approx(1, abs=0.2)
    assert slow["per_ms"]["p50"]["value"] == pytest.approx(0, abs=0.1)
    assert between["per_ms"]["p50"]["value"] == pytest.approx(0, abs=0.1)
    if slow["verdict"] != "inconclusive":
        assert slow["per_ms"]["p90"]["value"] == pytest.approx(1, abs=0.5)


@by_bpf
@pytest.mark.parametrize("attached", ["--pid", "--pid-tree", "--name"])
def test_the_latency_of_a_running_native_program(tmp_path, attached):
    path = program()
    numbers = tmp_path / "numbers.json"
    with subprocess.Popen([path, "requests", SECONDS]) as server:
        who = os.path.basename(path) if attached == "--name" else str(server.pid)
        try:
            done = speed_bump(
                "rank", *natives("work"), attached, who, "--budget", "4s",
                "--latency", f"{path}:request", "--latency", f"{path}:slow",
                "--latency", f"{path}:record",
                "-o", str(tmp_path / "record.speedbump"), "--json", str(numbers),
            )  # fmt: skip
        finally:
            server.kill()
    assert done.returncode == 0, done.stderr
    request, slow, never = json.loads(numbers.read_text())["latency"]
    assert request["name"] == f"native:{path}:request"
    assert request["undelayed_ns"]["p50"] > 190_000
    assert slow["undelayed_ns"]["p50"] > 590_000
    assert request["requests"] == pytest.approx(5 * slow["requests"], rel=0.05)
    assert never["requests"] == 0
    assert f"{path}:record: no call has ended so far" in done.stderr
    assert f"{path}:slow: no call" not in done.stderr


@by_bpf
def test_requests_are_measured_and_slowed_too(tmp_path):
    """A glob names the request itself; its calls are the unit of work all the same."""
    path = program()

    def per_ms(ranked):
        (finding,) = ranked.result["latency"][0]["findings"]
        assert finding["target"] == f"{path}:request"
        return finding["per_ms"].get("p50")

    def fits(ranked):
        found = per_ms(ranked)
        if found and found["value"] == pytest.approx(1, abs=0.2):
            return True
        # Where others have the CPU, it may still be a wide interval.
        shared = ranked.record.machine.share < 0.9
        return found and shared and ranked.is_last and found["low"] < 1 < found["high"]

    ranked = Ranked(
        tmp_path, natives("re*uest"), [path, "requests", SECONDS],
        "--latency", f"{path}:request", fits=fits, budgets=BUDGETS,
    )  # fmt: skip
    assert ranked.result["unit"] == f"call of native:{path}:request"
    # Its own delay is a part of it.
    assert per_ms(ranked)["high"] > 0.5


def test_the_module_reports_no_single_calls():
    path = program()
    if native.backend() != "driver":
        pytest.skip("BPF sees it")
    done = speed_bump(
        "rank", *natives("work"), "--latency", f"{path}:request",
        "--", path, "requests", SECONDS,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "the module reports no single calls: use BPF" in line
