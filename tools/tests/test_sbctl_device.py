# SPDX-License-Identifier: MIT
"""sbctl where native functions can be delayed.

The backend is the module (in a guest: selftests/guest/run), or that in
SPEED_BUMP_BACKEND; both must give the same results. Each command has its tests here, with
the same helpers: hence the length.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import schemas
import storage
from conftest import BACKEND, Sbctl, line_of, lines_program, with_two_capabilities

pytestmark = pytest.mark.usefixtures("device")
by_bpf = pytest.mark.skipif(BACKEND != "bpf", reason="of BPF alone")
with_returns = pytest.mark.skipif(
    BACKEND == "bpf" and bool(storage.refused()), reason=storage.refused()
)
of_the_module = pytest.mark.skipif(BACKEND != "driver", reason="of the module alone")


def targets(sbctl: Sbctl) -> list[dict[str, Any]]:
    found = sbctl.json("list")["targets"]
    assert isinstance(found, list)
    return found


def names(sbctl: Sbctl) -> set[str]:
    return {target["target"].rpartition(":")[2] for target in targets(sbctl)}


def loop_ns(loop: str, function: str, count: int) -> int:
    done = subprocess.run(
        [loop, function, str(count)], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[2])


def add_or_skip(sbctl: Sbctl, *args: object) -> None:
    """Add a target with an option that not every version of the module supports."""
    done = subprocess.run(
        [sbctl.program, "add", *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "the loaded module can't delay" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- add and remove


def test_add_delays_while_enabled(sbctl: Sbctl, library: str, loop: str) -> None:
    done = sbctl("add", f"{library}:fixture_second", "2ms")
    assert done.stdout == f"added {library}:fixture_second 2ms\n"
    assert "sbctl enable" in done.stderr
    loop_ns(loop, "fixture_second", 10)
    assert sbctl("enable").stdout == "1 persistent target on\n"
    assert loop_ns(loop, "fixture_second", 10) >= 20_000_000
    sbctl("disable")
    (target,) = targets(sbctl)
    assert target["calls"] == 20
    assert target["delayed"] == 10
    assert target["skipped_disabled"] == 10
    assert target["requested_ns"] == 20_000_000
    assert target["delivered_ns"] >= 20_000_000
    assert target["delay_ns"] == 2_000_000
    assert target["owner"] == "persistent"
    assert target["scope"] == "all"
    assert target["pid"] is None


@pytest.mark.any_backend
def test_no_hint_while_enabled(sbctl: Sbctl, library: str) -> None:
    sbctl("enable")
    assert sbctl("add", f"{library}:fixture_second", "2ms").stderr == ""


def test_add_takes_the_default_delay(sbctl: Sbctl, library: str) -> None:
    assert sbctl("delay", "12.5us").stdout == "12.5us\n"
    assert sbctl("delay").stdout == "12.5us\n"
    assert sbctl("add", f"{library}:fixture_second").stdout.endswith(" 12.5us\n")
    (target,) = targets(sbctl)
    assert target["delay_ns"] == 12_500


@pytest.mark.any_backend
def test_add_json(sbctl: Sbctl, library: str) -> None:
    sbctl("add", f"{library}:fixture_plain", "1us")
    added = sbctl.json("add", f"{library}:fixture_second", "10us")["targets"]
    assert [target["target"] for target in added] == [f"{library}:fixture_second"]


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("symbol", "added"),
    [
        ("fixture_sec*", {"fixture_second"}),
        ("fixture_[pn]*", {"fixture_plain", "fixture_push", "fixture_nop"}),
        ("fixture_second+0x0", {"fixture_second"}),
        ("fixture_versioned@SBFIX_1", {"fixture_versioned@SBFIX_1"}),
    ],
)
def test_ways_to_name(sbctl: Sbctl, library: str, symbol: str, added: set[str]) -> None:
    sbctl("add", f"{library}:{symbol}", "1us")
    found = {re.sub(r"\+0x0$", "", name) for name in names(sbctl)}
    # One place can have two names.
    found = {"fixture_plain" if name == "fixture_alias" else name for name in found}
    assert found == added


def test_add_by_offset(sbctl: Sbctl, library: str, loop: str) -> None:
    offset = sbctl.json("symbols", library, "fixture_second")["symbols"][0]["offset"]
    sbctl("add", f"{library}:@{offset:#x}", "1us")
    sbctl("enable")
    loop_ns(loop, "fixture_second", 7)
    (target,) = targets(sbctl)
    assert target["calls"] == 7
    assert target["offset"] == offset


def middle_of_an_instruction(sbctl: Sbctl, library: str) -> str:
    """A place in fixture_second where no instruction begins."""
    for distance in range(1, 8):
        done = subprocess.run(
            [sbctl.program, "add", "--off", f"{library}:fixture_second+{distance}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if "in the middle of an instruction" in done.stderr:
            assert done.returncode == 1
            assert "instructions begin at fixture_second+0x0 and fixt" in done.stderr
            return f"fixture_second+{distance}"
    raise AssertionError("each byte of it is taken for an instruction")


def test_the_middle_of_an_instruction_is_refused(
    sbctl: Sbctl, library: str, loop: str
) -> None:
    symbol = middle_of_an_instruction(sbctl, library)
    sbctl("clear")
    # A program that such a breakpoint would crash, whatever the switches are.
    loop_ns(loop, "fixture_second", 10)
    assert targets(sbctl) == []
    with subprocess.Popen(["sleep", "100"]) as other:
        sbctl("add", "--unsafe", "--off", f"--pid={other.pid}", f"{library}:{symbol}")
        assert names(sbctl) == {symbol}
        sbctl("remove", f"{library}:{symbol}")
        other.kill()
    assert targets(sbctl) == []


def test_overlapping_names_are_one_target(sbctl: Sbctl, library: str, loop: str) -> None:
    done = sbctl(
        "add",
        f"{library}:fixture_plain",
        f"{library}:fixture_alias",
        f"{library}:fixture_p[l]*",
        f"{library}:fixture_plain+0",
        "1us",
    )
    assert done.stdout.count("added ") == len(targets(sbctl))
    sbctl("enable")
    loop_ns(loop, "fixture_plain", 7)
    assert [target["calls"] for target in targets(sbctl)] == [7] * len(targets(sbctl))
    assert len(targets(sbctl)) <= 2  # the entry, and a cheaper place
    line = sbctl.fails(
        "add", f"{library}:fixture_nop delay=1us", f"{library}:fixture_nop delay=2us"
    )
    assert f"{library}:fixture_nop is named twice, with different settings" in line


def test_add_many_at_once(sbctl: Sbctl, library: str) -> None:
    sbctl("add", f"{library}:fixture_second", f"{library}:fixture_nop", "5us")
    assert names(sbctl) == {"fixture_second", "fixture_nop"}
    assert {target["delay_ns"] for target in targets(sbctl)} == {5_000}


def test_nothing_is_half_applied(sbctl: Sbctl, library: str) -> None:
    sbctl("add", f"{library}:fixture_second", "1us")
    line = sbctl.fails(
        "add", f"{library}:fixture_nop", f"{library}:fixture_second", "2us"
    )
    assert f"{library}:fixture_second is already a target" in line
    assert names(sbctl) == {"fixture_second"}
    assert targets(sbctl)[0]["delay_ns"] == 1_000
    line = sbctl.fails("remove", f"{library}:fixture_second", f"{library}:fixture_nop")
    assert (
        line == f"{library}:fixture_nop is not a target ('sbctl list' shows the targets)"
    )
    sbctl.fails("update", f"{library}:fixture_second", f"{library}:fixture_nop", "9us")
    assert names(sbctl) == {"fixture_second"}
    assert targets(sbctl)[0]["delay_ns"] == 1_000


@pytest.mark.any_backend
def test_target_file(sbctl: Sbctl, library: str, tmp_path: Path) -> None:
    file = tmp_path / "targets.txt"
    file.write_text(
        f"# comment\n{library}:fixture_second delay=7us\n  {library}:fixture_nop\n"
    )
    sbctl("add", "--file", file, "3us")
    delays = {t["target"].rpartition(":")[2]: t["delay_ns"] for t in targets(sbctl)}
    assert delays == {"fixture_second": 7_000, "fixture_nop": 3_000}
    sbctl("clear")
    file.write_text(f"*/app/*:Model.*\nnative:{library}:fixture_push delay=7us\n")
    done = sbctl("add", "--file", file)
    assert "1 Python pattern skipped" in done.stderr
    assert names(sbctl) == {"fixture_push"}
    sbctl("clear")
    sbctl("add", "--file=-", stdin=f"{library}:fixture_nop\n")
    assert names(sbctl) == {"fixture_nop"}


def test_remove(sbctl: Sbctl, library: str, loop: str) -> None:
    sbctl("add", f"{library}:fixture_*", "1us")
    done = sbctl("remove", f"{library}:fixture_second")
    assert done.stdout == f"removed {library}:fixture_second\n"
    assert "fixture_second" not in names(sbctl)
    assert "fixture_nop" in names(sbctl)
    assert "is not a target" in sbctl.fails("remove", f"{library}:fixture_second")
    # A target that several globs match is added once.
    sbctl("remove", f"{library}:fixture_*", f"{library}:fixture_n*")
    assert targets(sbctl) == []


@pytest.mark.any_backend
def test_remove_by_another_path(sbctl: Sbctl, library: str, tmp_path: Path) -> None:
    link = tmp_path / "link.so"
    link.symlink_to(library)
    sbctl("add", f"{library}:fixture_plain", "1us")
    sbctl("remove", f"{link}:fixture_alias")
    assert targets(sbctl) == []


def test_remove_when_the_file_is_gone(sbctl: Sbctl, library: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.so"
    shutil.copy(library, copy)
    sbctl("add", f"{copy}:fixture_second", "1us")
    copy.unlink()
    sbctl("remove", f"{copy}:fixture_second")
    assert targets(sbctl) == []


def test_update(sbctl: Sbctl, library: str) -> None:
    sbctl("add", f"{library}:fixture_second", "1us", f"--pid={os.getpid()}")
    done = sbctl("update", f"{library}:fixture_second", "1.5ms")
    assert done.stdout == f"updated {library}:fixture_second 1.5ms\n"
    (target,) = targets(sbctl)
    assert target["delay_ns"] == 1_500_000
    # An update without a pid does not change it.
    assert target["scope"] == "tree"
    assert target["pid"] == os.getpid()


def test_pid_selects(sbctl: Sbctl, library: str) -> None:
    sbctl("add", f"{library}:fixture_second", "1us")
    sbctl("add", f"{library}:fixture_second", "1us", f"--pid={os.getpid()}")
    sbctl("update", f"{library}:fixture_second", "2us", f"--pid={os.getpid()}")
    assert {t["scope"]: t["delay_ns"] for t in targets(sbctl)} == {
        "all": 1_000,
        "tree": 2_000,
    }
    line = sbctl.fails("remove", f"{library}:fixture_second", "--pid=1")
    assert line.startswith(f"{library}:fixture_second is not a target of process 1 ")
    sbctl("remove", f"{library}:fixture_second", f"--pid={os.getpid()}")
    assert [t["scope"] for t in targets(sbctl)] == ["all"]


def test_pid_of_nobody(sbctl: Sbctl, library: str) -> None:
    line = sbctl.fails("add", f"{library}:fixture_second", "--pid=4000000")
    assert line == f"{library}:fixture_second: there is no process 4000000"


def test_pid_limits_to_a_tree(sbctl: Sbctl, library: str, loop: str) -> None:
    sbctl("enable")
    with subprocess.Popen(["sleep", "100"]) as other:
        sbctl("add", f"{library}:fixture_second", "1ms", f"--pid={other.pid}")
        loop_ns(loop, "fixture_second", 20)
        assert targets(sbctl)[0]["calls"] == 0
        other.kill()


def test_ifunc_is_pointed_out(sbctl: Sbctl, library: str) -> None:
    assert "IFUNC" in sbctl("add", f"{library}:fixture_ifunc").stderr
    # An error is one line, also if there is more to report.
    sbctl.fails("add", f"{library}:fixture_ifunc")
    assert "IFUNC" not in sbctl("add", f"{library}:fixture_second").stderr


def test_every(sbctl: Sbctl, library: str, loop: str) -> None:
    add_or_skip(sbctl, f"{library}:fixture_second", "1us", "--every=5")
    sbctl("enable")
    loop_ns(loop, "fixture_second", 50)
    (target,) = targets(sbctl)
    assert (target["every"], target["calls"], target["delayed"]) == (5, 50, 10)
    assert target["skipped_every"] == 40


def test_window(sbctl: Sbctl, library: str, loop: str) -> None:
    add_or_skip(sbctl, f"{library}:fixture_second", "1us", "--start=100s")
    sbctl("enable")
    loop_ns(loop, "fixture_second", 50)
    (target,) = targets(sbctl)
    assert (target["calls"], target["delayed"], target["skipped_window"]) == (50, 0, 50)
    sbctl("clear")
    sbctl("add", f"{library}:fixture_second", "1us", "--duration=100s")
    loop_ns(loop, "fixture_second", 50)
    assert targets(sbctl)[0]["delayed"] == 50


def test_off(sbctl: Sbctl, library: str, loop: str) -> None:
    sbctl("add", f"{library}:fixture_second", "1us", "--off")
    sbctl("enable")
    loop_ns(loop, "fixture_second", 50)
    (target,) = targets(sbctl)
    assert (target["enabled"], target["calls"], target["delayed"]) == (False, 50, 0)


def test_thread(sbctl: Sbctl, library: str) -> None:
    add_or_skip(sbctl, f"{library}:fixture_second", "1us", f"--tid={os.getpid()}")
    (target,) = targets(sbctl)
    assert (target["scope"], target["pid"]) == ("thread", os.getpid())


def test_cgroup(sbctl: Sbctl, library: str, loop: str, tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    root.mkdir()
    subprocess.run(["mount", "-t", "cgroup2", "none", root], check=True)
    group = root / "sbctl-test"
    group.mkdir()
    try:
        add_or_skip(sbctl, f"{library}:fixture_second", "1us", f"--cgroup={group}")
        sbctl("enable")
        loop_ns(loop, "fixture_second", 50)
        assert targets(sbctl)[0]["calls"] == 0
        script = f"echo $$ > {group}/cgroup.procs; exec {loop} fixture_second 7"
        subprocess.run(["sh", "-c", script], check=True, capture_output=True)
        (target,) = targets(sbctl)
        assert (target["scope"], target["calls"]) == ("cgroup", 7)
    finally:
        sbctl("clear")
        group.rmdir()
        subprocess.run(["umount", root], check=True)


def test_clear(sbctl: Sbctl, library: str) -> None:
    sbctl("add", f"{library}:fixture_second", f"{library}:fixture_nop")
    assert sbctl("clear").stdout == "removed 2 targets\n"
    assert sbctl("list").stdout == "no targets\n"


# ------------------------------------------------------------------- list, status


def test_list(sbctl: Sbctl, library: str, loop: str) -> None:
    sbctl("add", f"{library}:fixture_second", "1.5us")
    sbctl("enable")
    loop_ns(loop, "fixture_second", 1234)
    heading, row = sbctl("list").stdout.splitlines()
    assert heading.split() == [
        "ID",
        "DELAY",
        "EVERY",
        "SCOPE",
        "STATE",
        "OWNER",
        "CALLS",
        "DELAYED",
        "DELIVERED",
        "TARGET",
    ]
    assert heading.index("TARGET") == row.index(library)
    cells = row.split()
    assert cells[1] == "1.5us"
    assert cells[3:8] == ["all", "on", "persistent", "1,234", "1,234"]
    sbctl("disable")
    assert " off " in sbctl("list").stdout


def test_list_shows_sessions(sbctl: Sbctl, library: str, loop: str) -> None:
    with subprocess.Popen(
        [
            sbctl.program,
            "run",
            "-q",
            f"{library}:fixture_second",
            "--",
            loop,
            "fixture_second",
            "5",
            "wait",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout
        assert running.stdin
        assert running.stdout.readline() == "ready\n"
        (target,) = targets(sbctl)
        assert target["owner"] == "session"
        assert sbctl.json("list", "--persistent")["targets"] == []
        assert sbctl.json("status")["sessions"] == 1
        running.communicate("")
    assert running.returncode == 0
    assert targets(sbctl) == []


def test_status(sbctl: Sbctl, library: str, loop: str) -> None:
    before = sbctl.json("status")
    assert before["enabled"] is False
    assert before["targets"] == before["persistent"] == before["sessions"] == 0
    assert before["default_delay_ns"] == 1_000
    assert before["backend"] == BACKEND
    assert (before["caveats"] == []) == (BACKEND == "driver")
    sbctl("add", f"{library}:fixture_second", "1us")
    sbctl("enable")
    loop_ns(loop, "fixture_second", 50)
    after = sbctl.json("status")
    assert after["enabled"] is True
    assert after["targets"] == after["persistent"] == 1
    assert after["total_calls"] - before["total_calls"] == 50
    assert after["total_delivered_ns"] - before["total_delivered_ns"] >= 50_000
    text = sbctl("status").stdout
    assert re.search(r"^switch +on$", text, re.M)
    assert re.search(r"^default delay +1us$", text, re.M)
    assert re.search(r"^targets +1 persistent, 0 of sessions", text, re.M)
    assert re.search(rf"^calls +{after['total_calls']}$", text, re.M)
    assert re.search(r"^delivered +[\d.]+ ?[mu]?s$", text, re.M)
    assert re.search(rf"^backend +{BACKEND}$", text, re.M)
    assert re.findall(r"^  - (.*)$", text, re.M) == after["caveats"]


@pytest.mark.any_backend
def test_watch(sbctl: Sbctl, library: str, loop: str) -> None:
    sbctl("add", f"{library}:fixture_second", "1us")
    sbctl("enable")
    with subprocess.Popen(
        [loop, "fixture_second", "1000000000"], stdout=subprocess.PIPE
    ) as busy:
        end = time.monotonic() + 60
        while not targets(sbctl)[0]["calls"]:
            assert busy.poll() is None
            assert time.monotonic() < end
        text = sbctl("watch", "--interval=500ms", "--count=2").stdout
        busy.kill()
    tables = [table.splitlines() for table in text.strip().split("\n\n")]
    assert len(tables) == 2
    for heading, row in tables:
        heads = ["CALLS/S", "DELAYED/S", "DELIVERED/S", "CALLS", "TARGET"]
        assert heading.split() == heads
        assert int(row.split()[0].replace(",", "")) > 0
    first, second = (int(row.split()[3].replace(",", "")) for _, row in tables)
    assert second > first


# --------------------------------------------------------------------------- run


def test_run(sbctl: Sbctl, library: str, loop: str) -> None:
    done = sbctl(
        "run", "-d", "2ms", f"{library}:fixture_second", "--", loop, "fixture_second", 10
    )
    function, count, took = done.stdout.split()
    assert (function, count) == ("fixture_second", "10")
    assert int(took) >= 20_000_000
    heading, row = done.stderr.strip().splitlines()
    columns = ["CALLS", "DELAYED", "REQUESTED", "DELIVERED", "COST", "TARGET"]
    assert heading.split() == columns
    assert row.split()[:3] == ["10", "10", "20ms"]
    assert row.endswith(f"{library}:fixture_second")
    assert targets(sbctl) == []
    assert sbctl.json("status")["enabled"] is False


def test_run_reaches_descendants_only(sbctl: Sbctl, library: str, loop: str) -> None:
    with subprocess.Popen(
        [
            sbctl.program,
            "run",
            "-j",
            f"{library}:fixture_second delay=1us",
            "--",
            "sh",
            "-c",
            f"read line; {loop} fixture_second 30; {loop} fixture_second 5 | cat",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        while not targets(sbctl):
            time.sleep(0.05)
        loop_ns(loop, "fixture_second", 100)
        _, stats = running.communicate("\n")
    (target,) = schemas.read("sbctl-run", stats)["targets"]
    assert target["calls"] == target["delayed"] == 35


# ------------------------------------------------------------ what runs already


class Busy:
    """fixture-loop, running until the end of the test."""

    def __init__(self, loop: str) -> None:
        self.process = subprocess.Popen(
            [loop, "fixture_second", "1000000000000"], stdout=subprocess.DEVNULL
        )
        self.pid = self.process.pid

    def __enter__(self) -> Busy:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def attached(sbctl: Sbctl, *args: object) -> subprocess.Popen[str]:
    """``sbctl run`` for a running process, once its first call is counted."""
    process = subprocess.Popen(
        [sbctl.program, "run", "--json", *map(str, args)],
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 60
    # Not for the function with which sbctl measures the breakpoint.
    while not any(t["calls"] for t in targets(sbctl) if "fixture" in t["target"]):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
    return process


def test_run_slows_what_runs_already(sbctl: Sbctl, library: str, loop: str) -> None:
    with Busy(loop) as one, Busy(loop) as other:
        done = sbctl(
            "run", "--json", "-d", "200us", "--gross", f"--pid={one.pid}", "--for=1s",
            f"{library}:fixture_second",
        )  # fmt: skip
        said = schemas.read("sbctl-run", done.stderr)
        assert said["pids"] == [one.pid]
        assert said["wall_ns"] >= 1_000_000_000
        (target,) = said["targets"]
        assert target["pid"] == one.pid
        # A call in progress may not be counted as delayed yet. The breakpoint is set
        # before the delay is in force.
        since = target["calls"] - target["skipped_disabled"]
        assert 0 < since - 1 <= target["delayed"] <= since
        # The upper limit follows from the time that the process ran.
        assert since * 200_000 <= said["wall_ns"] + 200_000
        assert targets(sbctl) == []
        assert one.process.poll() is other.process.poll() is None


@pytest.mark.any_backend
def test_run_slows_several_and_none_twice(sbctl: Sbctl, library: str, loop: str) -> None:
    with subprocess.Popen(
        ["sh", "-c", f"'{loop}' fixture_second 1000000000000 & echo $!; wait"],
        stdout=subprocess.PIPE, text=True,
    ) as shell, Busy(loop) as other:  # fmt: skip
        assert shell.stdout
        child = int(shell.stdout.readline())
        try:
            done = sbctl(
                "run", "--json", "-d", "100us", f"--pid={shell.pid},{child}",
                f"--pid-tree={other.pid}", "--for=500ms", f"{library}:fixture_second",
            )  # fmt: skip
            said = schemas.read("sbctl-run", done.stderr)
            assert sorted(said["pids"]) == sorted([shell.pid, other.pid])
            assert [target["calls"] > 0 for target in said["targets"]] == [True, True]
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.any_backend
def test_run_by_name(sbctl: Sbctl, library: str, loop: str, tmp_path: Path) -> None:
    program = tmp_path / "a loop of ours"
    shutil.copy(loop, program)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(Path(library).parent)}
    with subprocess.Popen(
        [program, "fixture_second", "1000000000000"],
        stdout=subprocess.DEVNULL, env=environment,
    ) as busy:  # fmt: skip
        try:
            done = sbctl(
                "run", "--json", "--name=a lo*ours", "--for=500ms",
                f"{library}:fixture_second",
            )  # fmt: skip
            assert schemas.read("sbctl-run", done.stderr)["pids"] == [busy.pid]
        finally:
            busy.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_run_leaves_what_it_slowed(
    sbctl: Sbctl, library: str, loop: str, number: int
) -> None:
    with Busy(loop) as busy:
        run = attached(
            sbctl, "-d", "1ms", f"--pid={busy.pid}", f"{library}:fixture_second"
        )
        run.send_signal(number)
        said = run.communicate(timeout=60)[1]
        if number != signal.SIGKILL:
            assert run.returncode == 0
            assert schemas.read("sbctl-run", said)["targets"][0]["delayed"] > 0
        end = time.monotonic() + 60
        while targets(sbctl):
            assert time.monotonic() < end
        assert busy.process.poll() is None


@pytest.mark.any_backend
def test_run_of_a_process_leaves_ignored_signals_ignored(
    sbctl: Sbctl, library: str, loop: str
) -> None:
    """As under nohup and in the background of a shell, which ignore these signals."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Busy(loop) as busy:
            run = attached(sbctl, f"--pid={busy.pid}", f"{library}:fixture_second")
            run.send_signal(signal.SIGINT)
            status = Path(f"/proc/{run.pid}/status").read_text()
            blocked = int(re.findall(r"SigBlk:\s*(\w+)", status)[0], 16)
            assert not blocked & 1 << signal.SIGINT - 1
            assert blocked & 1 << signal.SIGTERM - 1
            assert run.poll() is None
            run.terminate()
            said = schemas.read("sbctl-run", run.communicate(timeout=60)[1])
            assert said["targets"][0]["calls"] > 0
            assert run.returncode == 0
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.any_backend
def test_run_ends_with_what_it_slowed(sbctl: Sbctl, library: str, loop: str) -> None:
    with Busy(loop) as busy:
        run = attached(sbctl, f"--pid={busy.pid}", f"{library}:fixture_second")
        busy.process.kill()
        said = run.communicate(timeout=60)[1]
        assert run.returncode == 0
        assert schemas.read("sbctl-run", said)["targets"][0]["calls"] > 0


@pytest.mark.any_backend
def test_run_json_output(sbctl: Sbctl, library: str, loop: str, tmp_path: Path) -> None:
    output = tmp_path / "stats.json"
    output.write_text("what was there before, and more of it than is written " * 100)
    done = sbctl(
        "run",
        "-d",
        "1us",
        "--json",
        "--output",
        output,
        f"{library}:fixture_second",
        "--",
        loop,
        "fixture_second",
        10,
    )
    assert done.stderr == ""
    stats = schemas.read("sbctl-run", output.read_text())
    assert stats["command"] == [loop, "fixture_second", "10"]
    assert stats["exit_status"] == 0
    assert stats["wall_ns"] > 0
    (target,) = stats["targets"]
    assert target["calls"] == 10
    assert target["requested_ns"] == 10_000


@pytest.mark.any_backend
def test_run_quiet(sbctl: Sbctl, library: str, loop: str) -> None:
    done = sbctl(
        "run", "-q", f"{library}:fixture_second", "--", loop, "fixture_second", 3
    )
    assert done.stderr == ""


@pytest.mark.any_backend
def test_run_says_when_nothing_was_called(sbctl: Sbctl, library: str) -> None:
    assert (
        "no target was called"
        in sbctl("run", f"{library}:fixture_second", "--", "true").stderr
    )


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)],
)
def test_run_exit_status(sbctl: Sbctl, library: str, script: str, code: int) -> None:
    sbctl("run", "-q", f"{library}:fixture_second", "--", "sh", "-c", script, code=code)


@pytest.mark.any_backend
def test_run_of_what_can_not_run(sbctl: Sbctl, library: str, tmp_path: Path) -> None:
    target = f"{library}:fixture_second"
    done = sbctl("run", target, "--", "no-such-command", code=127)
    assert done.stderr == "sbctl: can't run no-such-command: No such file or directory\n"
    file = tmp_path / "file"
    file.write_text("x")
    done = sbctl("run", target, "--", file, code=126)
    assert done.stderr == f"sbctl: can't run {file}: Permission denied\n"
    assert targets(sbctl) == []


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "target",
    [
        "{}:no_such_function",
        "{}:fixture_second pid=1",
        "/nowhere:f",
        "{}:fixture_second delay=11s",
    ],
)
def test_run_runs_nothing_with_a_bad_target(
    sbctl: Sbctl, library: str, tmp_path: Path, target: str
) -> None:
    mark, output = tmp_path / "mark", tmp_path / "output"
    sbctl.fails(
        "run",
        f"{library}:fixture_nop",
        target.format(library),
        "-o",
        output,
        "--",
        "touch",
        mark,
    )
    assert not mark.exists()
    assert not output.exists()
    assert targets(sbctl) == []


def run_in_background(sbctl: Sbctl, library: str, script: str) -> subprocess.Popen[str]:
    running = subprocess.Popen(
        [
            sbctl.program,
            "run",
            "-q",
            f"{library}:fixture_second",
            "--",
            "sh",
            "-c",
            script,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stdout
    assert running.stdout.readline() == "ready\n"
    return running


def end_group(running: subprocess.Popen[str]) -> None:
    """sbctl and its command."""
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]
)
def test_run_passes_signals_on(
    sbctl: Sbctl, library: str, number: signal.Signals
) -> None:
    name = number.name.removeprefix("SIG")
    running = run_in_background(
        sbctl,
        library,
        f"trap 'echo got; exit 5' {name}; echo ready; while :; do sleep 0.1; done",
    )
    running.send_signal(number)
    out, _ = running.communicate(timeout=60)
    assert out == "got\n"
    assert running.returncode == 5


@pytest.mark.any_backend
def test_run_takes_a_signal_of_the_terminal_once(
    sbctl: Sbctl, library: str, tmp_path: Path
) -> None:
    """Ctrl-C reaches the whole group: the command must not get it twice."""
    script, count = tmp_path / "count.py", tmp_path / "count"
    # No print() in the handler, which may interrupt another print(), and none to the
    # terminal at the end, where unread output is lost when the session ends.
    script.write_text(
        "import os, signal, sys, time\n"
        "n = 0\n"
        "def count(*_):\n"
        "    global n\n"
        "    n += 1\n"
        "    os.write(1, b'got\\n')\n"
        "signal.signal(signal.SIGINT, count)\n"
        "print('ready', flush=True)\n"
        "end = time.monotonic() + 60\n"
        "while not n and time.monotonic() < end: time.sleep(0.05)\n"
        "time.sleep(2)\n"
        "open(sys.argv[1], 'w').write(str(n))\n"
    )
    master, slave = os.openpty()
    target = f"{library}:fixture_second"
    command = [
        *[sbctl.program, "run", "-q", target],
        *["--", "/usr/bin/python3", str(script), str(count)],
    ]
    text = b""

    def read_until(word: bytes) -> None:
        nonlocal text
        while word not in text:
            text += os.read(master, 1000)

    with subprocess.Popen(
        ["setsid", "--ctty", *command], stdin=slave, stdout=slave, stderr=slave
    ) as running:
        os.close(slave)
        read_until(b"ready")
        # sbctl gets the signal after the command, so that two signals do not merge.
        running.send_signal(signal.SIGSTOP)
        os.write(master, b"\x03")
        read_until(b"got")
        running.send_signal(signal.SIGCONT)
        running.wait(120)
    os.close(master)
    assert (running.returncode, count.read_text()) == (0, "1"), text


def test_killed_run_leaves_nothing(sbctl: Sbctl, library: str) -> None:
    running = run_in_background(sbctl, library, "echo ready; exec sleep 1000")
    assert len(targets(sbctl)) == 1
    running.kill()
    running.wait()
    assert targets(sbctl) == []
    end_group(running)


def test_run_does_not_leak_its_session(sbctl: Sbctl, library: str) -> None:
    done = sbctl(
        "run", "-q", f"{library}:fixture_second", "--", "ls", "-l", "/proc/self/fd"
    )
    assert "speed_bump" not in done.stdout
    assert len(re.findall(r"\d+ -> ", done.stdout)) == 4


# ------------------------------------------------------------------------ module


@of_the_module
def test_unload_is_refused_while_in_use(sbctl: Sbctl, library: str) -> None:
    running = run_in_background(sbctl, library, "echo ready; exec sleep 1000")
    try:
        assert "fuser -v /dev/speed_bump" in sbctl.fails("unload")
    finally:
        end_group(running)


@of_the_module
def test_unload_and_load(sbctl: Sbctl, library: str) -> None:
    module = os.environ.get("SPEED_BUMP_KO")
    if not module:
        pytest.skip("SPEED_BUMP_KO does not name the module")
    sbctl("add", f"{library}:fixture_second")
    sbctl("unload")
    sbctl("unload")
    assert "sbctl load" in sbctl.fails("list")
    try:
        sbctl("load", "--file", module, "max_targets=3")
        assert sbctl.json("status")["max_targets"] == 3
        line = sbctl.fails("add", f"{library}:fixture_*")
        assert "max_targets" in line
        assert targets(sbctl) == []
        sbctl("load")
    finally:
        sbctl("unload")
        sbctl("load", "--file", module)
    assert sbctl("doctor").returncode == 0


def test_nobody_may_not(sbctl: Sbctl) -> None:
    # In a directory that all users can read: the tree may be in a private home directory.
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        program = shutil.copy(sbctl.program, place)
        library = sbctl.program.parent / "../libsb/libsb.so.1"
        if library.exists():
            shutil.copy(library, place)
        as_nobody = {
            "user": 65534,
            "group": 65534,
            "env": os.environ | {"LD_LIBRARY_PATH": place},
        }
        nobodys = Sbctl(Path(program))
        done = nobodys("list", code=1, **as_nobody)
        text = nobodys("doctor", code=1, **as_nobody).stdout
    assert "run as root" in done.stderr
    if BACKEND == "driver":
        assert "FAIL  device" in text
        assert "-> run as root" in text
    else:
        assert re.search(r"^FAIL  BPF +not allowed .* run as root", text, re.M)


# ------------------------------------------------------------------ what a hit costs


@pytest.mark.any_backend
def test_list_verbose(sbctl: Sbctl, library: str) -> None:
    sbctl("add", f"{library}:fixture_step", f"{library}:fixture_push", "1us")
    text = sbctl("list", "-v").stdout
    assert {"HIT", "COST", "UNARMED"} <= set(text.splitlines()[0].split())
    found = {
        target["target"].rpartition(":")[2]: target
        for target in sbctl.json("list", "-v")["targets"]
    }
    assert found["fixture_step"]["hit"] == "stepped"
    assert found["fixture_step"]["hit_cost_ns"] > 0
    if os.uname().machine == "x86_64":
        assert found["fixture_push"]["hit"] == "emulated"
        assert found["fixture_push"]["hit_cost_ns"] > 0
    # The function that was used for the measurement is not listed any more.
    assert names(sbctl) == {"fixture_step", "fixture_push"}


@pytest.mark.any_backend
def test_run_says_what_cannot_be_less(sbctl: Sbctl, library: str, loop: str) -> None:
    command = ("--", loop, "fixture_step", "100")
    done = sbctl("run", "-d", "0", f"{library}:fixture_step", *command)
    assert "The breakpoint alone takes" in done.stderr
    assert "a call can't be slowed by less than that" in done.stderr
    done = sbctl("run", "-d", "5ms", f"{library}:fixture_step", *command)
    assert "The breakpoint alone takes" not in done.stderr


def run_stepped(
    sbctl: Sbctl, library: str, loop: str, calls: int, *options: str
) -> tuple[int, dict[str, Any]]:
    """The time of the calls in ns, as measured by the command, and the target."""
    output = ("-j", f"{library}:fixture_step")
    done = sbctl("run", *options, *output, "--", loop, "fixture_step", calls)
    (target,) = schemas.read("sbctl-run", done.stderr)["targets"]
    return int(done.stdout.split()[2]), target


# The process becomes undumpable: a session without CAP_SYS_ADMIN may not delay it.
CLOSES_ITSELF = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.fixture_second(1)
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
library.fixture_second(1)
"""


@of_the_module
def test_calls_that_are_missing_are_said(sbctl: Sbctl, library: str) -> None:
    target = ("-d", "1us", f"{library}:fixture_second")
    command = ("--", sys.executable, "-c", CLOSES_ITSELF, library)
    done = with_two_capabilities(sbctl.program, "run", "-j", *target, *command)
    assert done.returncode == 0, done.stderr
    (only,) = schemas.read("sbctl-run", done.stderr)["targets"]
    assert only["calls"] == 1
    assert only["unarmed"] > 0
    done = with_two_capabilities(sbctl.program, "run", *target, *command)
    assert "Calls are missing: " in done.stderr
    done = sbctl("run", *target, *command)
    assert "Calls are missing: " not in done.stderr


def signed_rank(changes: list[float]) -> float:
    """Wilcoxon's signed-rank test whether they are about 0, in standard deviations."""
    n = len(changes)
    ordered = sorted(changes, key=abs)
    above = sum(rank for rank, change in enumerate(ordered, 1) if change > 0)
    return (above - n * (n + 1) / 4) / math.sqrt(max(n * (n + 1) * (2 * n + 1), 1) / 24)


@pytest.mark.any_backend
def test_run_is_net_of_the_breakpoint(sbctl: Sbctl, library: str, loop: str) -> None:
    calls = 2_000
    _, target = run_stepped(sbctl, library, loop, calls, "-d", "0")
    cost = target["hit_cost_ns"]
    # The shorter the run, the larger the part of the breakpoint's cost.
    delay = 2 * cost
    changes: list[float] = []
    while len(changes) < 48 and signed_rank(changes) < 2.5:
        for _ in range(8):
            net, target = run_stepped(sbctl, library, loop, calls, "-d", str(delay))
            assert target["delay_ns"] == delay
            assert target["requested_ns"] == calls * delay
            assert target["delivered_ns"] >= target["requested_ns"]
            gross, target = run_stepped(
                sbctl, library, loop, calls, "--gross", "-d", str(delay)
            )
            assert target["requested_ns"] == calls * delay
            changes.append(math.log(gross / net))
    assert signed_rank(changes) >= 2.5, (cost, changes)


@pytest.mark.any_backend
def test_run_cannot_be_less_than_the_breakpoint(
    sbctl: Sbctl, library: str, loop: str
) -> None:
    _, target = run_stepped(sbctl, library, loop, 100, "-d", "1")
    assert (target["delay_ns"], target["requested_ns"]) == (1, 100)
    assert target["delivered_ns"] >= 100 * target["hit_cost_ns"] > 100


@pytest.mark.any_backend
def test_add_net(sbctl: Sbctl, library: str) -> None:
    name = f"{library}:fixture_step"
    assert sbctl("add", "--net", name, "5ms").stdout == f"added {name} 5ms\n"
    (target,) = targets(sbctl)
    assert 0 < target["delay_ns"] < 5_000_000


# ------------------------------------------------------------ files, static probes


def test_a_replaced_file_is_marked(sbctl: Sbctl, library: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.so"
    shutil.copy(library, copy)
    sbctl("add", f"{copy}:fixture_second", f"{copy}:fixture_nop", "1us")
    assert {target["file_state"] for target in targets(sbctl)} == {"same"}
    other = tmp_path / "other.so"
    shutil.copy(library, other)
    other.rename(copy)
    assert {target["file_state"] for target in targets(sbctl)} == {"replaced"}
    assert "off, replaced" in sbctl("list").stdout
    # A target in the new file is another one.
    sbctl("add", f"{copy}:fixture_second", "2us")
    assert sorted(target["file_state"] for target in targets(sbctl)) == [
        "replaced",
        "replaced",
        "same",
    ]
    sbctl("remove", f"{copy}:fixture_second")
    assert names(sbctl) == {"fixture_nop"}
    copy.unlink()
    assert {target["file_state"] for target in targets(sbctl)} == {"gone"}
    assert "off, gone" in sbctl("list").stdout
    sbctl("remove", f"{copy}:fixture_nop")
    assert targets(sbctl) == []


def statics() -> str:
    return os.environ.get(
        "SB_STATICS",
        str(Path(os.environ["FIXTURE_DIR"]).parents[1] / "libsb/tests/libsbstatics.so"),
    )


@pytest.mark.any_backend
def test_a_static_function_of_a_file(sbctl: Sbctl) -> None:
    sbctl("add", f"{statics()}:statics.c:helper", "1us")
    (target,) = targets(sbctl)
    assert target["target"] == f"{statics()}:statics.c:helper"
    sbctl("add", f"{statics()}:statics_too.c:helper", "1us")
    assert len({target["offset"] for target in targets(sbctl)}) == 2
    sbctl("update", f"{statics()}:statics.c:helper", "5us")
    assert sorted(target["delay_ns"] for target in targets(sbctl)) == [1_000, 5_000]
    sbctl("remove", f"{statics()}:helper")
    assert targets(sbctl) == []


def test_a_static_probe(sbctl: Sbctl) -> None:
    sbctl("enable")
    sbctl("add", f"{statics()}:statics:exit", "1us")
    assert names(sbctl) == {"exit"}
    assert len(targets(sbctl)) == 2
    sbctl("clear")
    sbctl("add", f"{statics()}:statics:entry", "1us")
    script = f"import ctypes; ctypes.CDLL({statics()!r}).statics_first(1)"
    subprocess.run([sys.executable, "-c", script], check=True)
    (target,) = targets(sbctl)
    assert target["calls"] == 1
    sbctl("remove", f"{statics()}:statics:entry")
    assert targets(sbctl) == []


def calls_of_lines(sbctl: Sbctl, *targets: str) -> dict[str, int]:
    """Calls of each place in a run of the program with argument 7."""
    program = lines_program()
    named = [f"{program}:{target}" for target in targets]
    done = sbctl("run", "--json", *named, "--", program, 7)
    found = schemas.read("sbctl-run", done.stderr)["targets"]
    return {t["target"].removeprefix(f"{program}:"): t["calls"] for t in found}


@pytest.mark.any_backend
def test_lines_begin_as_often_as_they_are_run(sbctl: Sbctl) -> None:
    body, end = (f"lines.c:{line_of('lines.c', mark)}" for mark in ("body", "end"))
    inlined = f"lines.c:{line_of('lines.c', 'inlined')}"
    one = f"lines_one/unit.c:{line_of('lines_one/unit.c', 'one')}"
    assert calls_of_lines(sbctl, body, end, inlined, one) == {
        body: 7, end: 1, f"{inlined}@lines_once": 1, f"{inlined}@lines_loop": 7, one: 7
    }  # fmt: skip
    header = f"lines.c:{line_of('lines.c', 'header')}"
    assert sorted(calls_of_lines(sbctl, header).values()) == [1, 7]
    # A copy that is named twice is one target.
    assert len(calls_of_lines(sbctl, inlined, f"{inlined}@lines_once")) == 2


def test_a_line_is_delayed(sbctl: Sbctl) -> None:
    program, line = lines_program(), f"lines.c:{line_of('lines.c', 'body')}"
    done = sbctl("run", "-j", "-d", "3ms", f"{program}:{line}", "--", program, 7)
    report = schemas.read("sbctl-run", done.stderr)
    (target,) = report["targets"]
    assert target["delayed"] == 7
    assert report["wall_ns"] >= 7 * 3_000_000


@pytest.mark.any_backend
def test_a_line_is_removed_by_its_name(sbctl: Sbctl) -> None:
    program = lines_program()
    line = f"{program}:lines.c:{line_of('lines.c', 'inlined')}"
    sbctl("add", line, "1us")
    assert {t["target"] for t in targets(sbctl)} == {
        f"{line}@lines_once", f"{line}@lines_loop"
    }  # fmt: skip
    sbctl("update", f"{line}@lines_once", "5us")
    assert sorted(t["delay_ns"] for t in targets(sbctl)) == [1_000, 5_000]
    sbctl("remove", f"{line}@lines_loop")
    assert {t["target"] for t in targets(sbctl)} == {f"{line}@lines_once"}
    sbctl("remove", line)
    assert targets(sbctl) == []


@pytest.mark.any_backend
def test_what_an_ifunc_chooses(sbctl: Sbctl) -> None:
    """The C library's memcpy is one; the note names a target that works."""
    symbols = sbctl.json("symbols", "libc.so.6", "memcpy")["symbols"]
    if all(symbol["kind"] != "ifunc" for symbol in symbols):
        pytest.skip("no IFUNC here")
    script = f"import ctypes; ctypes.CDLL({statics()!r}).statics_first(1)"
    note = sbctl("run", "libc.so.6:memcpy", "--", "true").stderr
    chosen = re.search(r"on this CPU it chooses (\S+)", note)
    assert chosen, note
    done = sbctl("run", "--json", chosen[1], "--", sys.executable, "-c", script)
    (target,) = schemas.read("sbctl-run", done.stderr)["targets"]
    assert target["calls"] > 0


@pytest.mark.any_backend
def test_cgroup_of_something_else(sbctl: Sbctl, library: str, tmp_path: Path) -> None:
    line = sbctl.fails("add", f"{library}:fixture_second", f"--cgroup={tmp_path}")
    assert line.startswith(f"{tmp_path} is not a cgroup of version 2")
    assert library not in line


# ---------------------------------------------------------------- update, examples


def test_update_every(sbctl: Sbctl, library: str, loop: str) -> None:
    sbctl("add", f"{library}:fixture_second", "1us")
    sbctl("enable")
    done = sbctl("update", "--every=5", f"{library}:fixture_second")
    assert done.stdout == f"updated {library}:fixture_second 1us every=5\n"
    loop_ns(loop, "fixture_second", 50)
    (target,) = targets(sbctl)
    assert (target["every"], target["delayed"], target["delay_ns"]) == (5, 10, 1_000)
    sbctl("update", "-e", "2", f"{library}:fixture_second", "3us")
    loop_ns(loop, "fixture_second", 50)
    (target,) = targets(sbctl)
    assert (target["every"], target["delayed"], target["delay_ns"]) == (2, 35, 3_000)
    assert "the new delay is missing" in sbctl.misused(
        "update", f"{library}:fixture_second"
    )


@pytest.mark.any_backend
def test_watch_json(sbctl: Sbctl, library: str, loop: str) -> None:
    sbctl("add", f"{library}:fixture_second", "1us")
    loop_ns(loop, "fixture_second", 50)
    text = sbctl("watch", "--json", "--interval=10ms", "--count=2").stdout
    decoder = json.JSONDecoder()
    end = 0
    for _ in range(2):
        found, end = decoder.raw_decode(text, end)
        end += 1
        schemas.check("sbctl-watch", found)
        assert found["interval_ns"] >= 10_000_000
        (target,) = found["targets"]
        assert (target["calls"], target["total_calls"]) == (0, 50)
    assert end == len(text)


def examples(sbctl: Sbctl) -> list[str]:
    page = Path(__file__).resolve().parents[1] / "sbctl.1"
    text = page.read_text()
    (block,) = re.findall(r"^\.SH EXAMPLES\n\.EX\n(.*?)^\.EE", text, re.M | re.S)
    found = block.replace("\\-", "-").splitlines()
    for command in ("add", "run"):
        text = sbctl(command, "--help").stdout.partition("\nExample")[2]
        found += [line.strip() for line in text.splitlines()[1:]]
    return [line for line in found if line]


@pytest.mark.any_backend
def test_examples_work(sbctl: Sbctl, tmp_path: Path) -> None:
    """The examples of the manual page and of the help work as they are.

    Only the process and its time are replaced.
    """
    (tmp_path / "sbctl").symlink_to(sbctl.program)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    (tmp_path / "parse.c").write_text("\n" * 115 + "int main(void) {\nreturn 0;\n}\n")
    compiler = ["cc", "-g", "-O0", "-o", "server", "parse.c"]
    subprocess.run(compiler, cwd=tmp_path, check=True)
    here = f"--pid={os.getpid()} --for=1s"
    lines = [x.replace("--pid=4711 --for=30s", here) for x in examples(sbctl)]
    assert len(lines) > 8
    for line in lines:
        if "add" in line:
            sbctl("clear")
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        assert done.returncode == 0, (line, done.stderr)


# ------------------------------------------------------------- few capabilities


@by_bpf
def test_what_cannot_be_seen_is_said(sbctl: Sbctl, library: str) -> None:
    sbctl("add", f"{library}:fixture_second", "1us")
    for command in ("list", "status", "clear", "watch"):
        done = with_two_capabilities(sbctl.program, command)
        assert done.returncode == 1, done.stdout
        assert done.stdout == ""
        assert "not allowed" in done.stderr
        assert "root" in done.stderr
    done = with_two_capabilities(sbctl.program, "remove", f"{library}:fixture_second")
    assert done.returncode == 1
    done = with_two_capabilities(sbctl.program, "add", f"{library}:fixture_nop")
    assert done.returncode == 1
    assert "not allowed to keep persistent targets" in done.stderr
    assert names(sbctl) == {"fixture_second"}


def kernel_version() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])


@by_bpf
def test_two_capabilities_are_enough_to_run(
    sbctl: Sbctl, library: str, loop: str
) -> None:
    done = with_two_capabilities(
        sbctl.program,
        "run",
        "--json",
        "-d",
        "1us",
        f"{library}:fixture_second",
        f"{library}:fixture_nop",
        "--",
        loop,
        "fixture_second",
        "7",
    )
    if done.returncode and "before Linux 6.6" in done.stderr:
        assert kernel_version() < (6, 6)
        return
    assert done.returncode == 0, done.stderr
    found = schemas.read("sbctl-run", done.stderr)["targets"]
    assert sorted(target["calls"] for target in found) == [0, 7]


@pytest.mark.any_backend
def test_list_has_python_functions_too(sbctl: Sbctl, library: str) -> None:
    program = (
        "import json, time, speed_bump\n"
        "speed_bump.install(speed_bump.Config(['json:dumps']))\n"
        "json.dumps([])\nprint(flush=True)\ntime.sleep(1000)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as slowed:
        try:
            assert slowed.stdout
            slowed.stdout.readline()
            found = [
                function
                for function in sbctl.json("list")["functions"]
                if function["pid"] == slowed.pid
            ]
            assert [(f["target"], f["calls"]) for f in found] == [("json:dumps", 1)]
            assert "speed-bump ps" in sbctl("list").stderr
            assert sbctl("list", "--persistent").stderr == ""
            # If targets can't be read, that is reported; the list is never just empty.
            said = [few_descriptors(sbctl, n, slowed.pid) for n in range(3, 40)]
            assert said[-1] == ""
            assert any("what is slowed can't be read" in line for line in said)
        finally:
            slowed.kill()


def few_descriptors(sbctl: Sbctl, limit: int, pid: int) -> str:
    """Why so few descriptors do not suffice to list the functions; "" if they do."""
    done = subprocess.run(
        ["prlimit", f"--nofile={limit}", sbctl.program, "list", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.returncode:
        found = schemas.read("sbctl-list", done.stdout)
        assert pid in [function["pid"] for function in found["functions"]]
        assert found["incomplete_processes"] == 0
        assert done.stderr == ""
        return ""
    assert done.stdout == ""
    # The loader itself may fail, with status 127.
    assert done.returncode == 127 or done.stderr.startswith("sbctl: ")
    return done.stderr


# ------------------------------------------------------------------- percentages


@with_returns
def test_percentages_are_listed_as_given(sbctl: Sbctl, library: str, loop: str) -> None:
    done = sbctl("add", "-d", "2.5%", f"{library}:fixture_plain")
    assert done.stdout == f"added {library}:fixture_plain 2.5%\n"
    done = sbctl("add", f"{library}:fixture_second", "100%", "--every=2")
    assert done.stdout == f"added {library}:fixture_second 100%\n"
    sbctl("enable")
    loop_ns(loop, "fixture_second", 10)
    first, second = targets(sbctl)
    assert (first["delay_ns"], first["delay_ppm"]) == (0, 25_000)
    assert (second["delay_ns"], second["delay_ppm"]) == (0, 1_000_000)
    assert (second["calls"], second["delayed"]) == (10, 5)
    assert (second["skipped_every"], second["unreturned"]) == (5, 0)
    assert (second["missed"], second["cut"]) == (0, 0)
    table = sbctl("list").stdout
    assert re.search(r" 2\.5% .*fixture_plain$", table, re.M)
    assert re.search(r" 100% .*fixture_second$", table, re.M)
    done = sbctl("update", f"{library}:fixture_plain", "7%")
    assert done.stdout == f"updated {library}:fixture_plain 7%\n"
    assert "can't become a percentage" in sbctl.fails(
        "update", f"{library}:fixture_plain", "1us"
    )
    assert [target["delay_ppm"] for target in targets(sbctl)] == [70_000, 1_000_000]


@with_returns
def test_run_delays_by_a_percentage(sbctl: Sbctl, tmp_path: Path) -> None:
    program = tmp_path / "nested"
    (tmp_path / "nested.c").write_text(
        "#include <setjmp.h>\n"
        "#include <unistd.h>\n"
        "jmp_buf env;\n"
        "__attribute__((noinline)) void deep(int n)\n"
        '{ if (n > 1) deep(n - 1); __asm__ volatile(""); }\n'
        "__attribute__((noinline)) void leave(void) { longjmp(env, 1); }\n"
        "__attribute__((noinline)) void nap(void)\n"
        '{ usleep(20000); __asm__ volatile(""); }\n'
        "int main(void)\n"
        "{ nap(); deep(100); if (!setjmp(env)) leave(); deep(1); return 0; }\n"
    )
    subprocess.run(
        ["cc", "-g", "-O1", "-o", program, program.with_suffix(".c")], check=True
    )
    words = (f"{program}:nap", f"{program}:deep", f"{program}:leave")
    begin = time.monotonic_ns()
    done = sbctl("run", "-d", "100%", "--json", *words, "--", program)
    took_ns = time.monotonic_ns() - begin
    found = {
        target["target"].rpartition(":")[2]: target
        for target in schemas.read("sbctl-run", done.stderr)["targets"]
    }
    assert (found["nap"]["calls"], found["nap"]["delayed"]) == (1, 1)
    # As long again as it took, whatever that was.
    assert 20_000_000 <= found["nap"]["requested_ns"] < took_ns / 2
    assert (found["deep"]["calls"], found["deep"]["delayed"]) == (101, 65)
    assert found["deep"]["missed"] == 36
    assert (found["leave"]["calls"], found["leave"]["unreturned"]) == (1, 1)
    done = sbctl("run", "-d", "100%", *words, "--", program)
    assert "1 calls did not return and were not delayed" in done.stderr
    assert "36 calls were not delayed because the kernel could not catch" in done.stderr
    assert "has no duration" in sbctl.fails(
        "run", "-d", "5%", f"{program}:nested.c:6", "--", program
    )


@pytest.mark.any_backend
def test_percentages_of_what_may_throw_are_refused(sbctl: Sbctl) -> None:
    command = ("run", "-d", "5%", "libstdc++.so.6:*get_terminate*", "--", "true")
    refused = sbctl.fails(*command)
    assert "C++ exceptions" in refused
    assert "--unsafe" in refused
    sbctl(command[0], "--unsafe", *command[1:])


@with_returns
@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
def test_exceptions_caught_inside_do_no_harm(sbctl: Sbctl, tmp_path: Path) -> None:
    program = tmp_path / "throws"
    (tmp_path / "throws.cc").write_text(
        # Without headers of C++, which a guest compiles for half a minute.
        "#include <stdio.h>\n"
        "static int left;\n"
        "__attribute__((noinline)) void fail(int n)\n"
        '{ if (n) throw "no"; left++; }\n'
        'extern "C" __attribute__((noinline)) int catches(int n)\n'
        "{ try { fail(n % 2); } catch (const char *) { return 1; } return 0; }\n"
        "int main()\n"
        "{ int caught = 0; for (int i = 0; i < 100; i++) caught += catches(i);\n"
        '  printf("%d %d\\n", caught, left); }\n'
    )
    subprocess.run(["c++", "-O1", "-o", program, program.with_suffix(".cc")], check=True)
    words = ("-d", "100%", "--json", f"{program}:catches", "--", program)
    assert "C++ exceptions" in sbctl.fails("run", *words)
    done = sbctl("run", "--unsafe", *words)
    assert done.stdout == "50 50\n"
    (target,) = schemas.read("sbctl-run", done.stderr)["targets"]
    assert (target["calls"], target["delayed"], target["unreturned"]) == (100, 100, 0)
