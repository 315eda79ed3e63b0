# SPDX-License-Identifier: MIT
"""The experiment on real programs; what it says of simulated ones is in test_judge.py.

Other load on the machine may take any label away, and does; what is tested here holds
whatever the load. bench/rank/coverage.py tests the answers.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from ranking import (
    Ranked,
    check_labels,
    check_pairs,
    command_line,
    environment,
    has_pairs,
    program,
    python,
    speed_bump,
)
from speed_bump.experiment import records

pytestmark = pytest.mark.ranks

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


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    where = tmp_path_factory.mktemp("serial")
    return Ranked(where, python("__main__:[fgh]"), program("serial"))


def test_a_run_lists_all_that_it_measured(serial):
    assert sorted(serial.functions) == ["f", "g", "h"]
    check_pairs(serial.record)
    for name, f in serial.functions.items():
        assert name in serial.done.stdout
        assert f["pairs"] > 0
        assert f["calls_per_unit"] == pytest.approx(1, abs=0.2)
        known = f["shape"] != "inconclusive"
        assert (f["criticality"] is not None) == known
        assert not f["matters"] or known
        if known:
            c = f["criticality"]
            assert c["low"] <= c["value"] <= c["high"]
    assert serial.result["seed"] == 1
    # Time for a block that is under way, on a machine that has none to spare.
    assert serial.result["end"]["seconds"] < 2 * serial.budget + 30


@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("serial", {"f": "linear", "g": "linear", "h": "linear"}),
        ("stages", {"record": "linear", "cpu": "hinge"}),
        ("fork_join", {"long_branch": "linear", "short_branch": "hinge"}),
    ],
)
def test_no_label_is_wrong(tmp_path, name, truth):
    patterns = python(*(f"__main__:{function}" for function in truth))
    check_labels(tmp_path, patterns, program(name), truth)


def test_the_file_says_what_the_run_said(serial):
    file = str(serial.output)
    again = json.loads(speed_bump("report", file, "--json").stdout)
    assert again["functions"] == serial.result["functions"]
    assert speed_bump("report", file).stdout.strip() == serial.done.stdout.strip()


def test_a_seed_repeats_the_plan(serial, tmp_path):
    def plan(seed):
        again = Ranked(
            tmp_path,
            python("__main__:[fgh]"),
            program("serial"),
            seed=seed,
            enough=lambda record: len(record.pairs) >= 4,
        )
        return first_block(again.record)

    def first_block(record):
        return [(p.kind, p.names, p.share, p.on_first) for p in record.pairs[:4]]

    assert plan("1") == first_block(serial.record)
    assert plan("2") != first_block(serial.record)


def burn():
    parent = os.getppid()
    while os.getppid() == parent:
        sum(range(100_000))


def test_no_label_on_a_machine_that_is_busy(tmp_path):
    context = multiprocessing.get_context("fork")
    count = 2 * len(os.sched_getaffinity(0))
    burning = [context.Process(target=burn, daemon=True) for _ in range(count)]
    for process in burning:
        process.start()
    try:
        ranked = Ranked(tmp_path, python("__main__:[fgh]"), program("serial"))
    finally:
        for process in burning:
            process.kill()
            process.join()
    assert len(ranked.functions) == 3
    for f in ranked.functions.values():
        assert f["shape"] == "inconclusive"
        assert "contended" in f["verdict"]
        assert not f["matters"]
    assert "measured under contention" in ranked.done.stdout


def test_a_sweep_has_all_levels(tmp_path):
    def enough(record):
        found = {pair.share for pair in record.pairs if pair.kind == "solo"}
        return found >= {0.1, 0.5, 1.0} and has_pairs(record)

    ranked = Ranked(
        tmp_path,
        python("__main__:f"),
        program("serial"),
        *("--levels", "0.1,0.5,1"),
        verb="sweep",
        enough=enough,
    )
    solo = [pair for pair in ranked.record.pairs if pair.kind == "solo"]
    assert {pair.share for pair in solo} == {0.1, 0.5, 1.0}
    # The delay of a call is that part of a unit, as long as others found it then.
    for one, other in ((0.1, 0.5), (0.5, 1.0)):
        short, long = (
            next(pair.delays_ns[0] for pair in solo if pair.share == share)
            for share in (one, other)
        )
        assert short < long
    assert ranked.record.header["verb"] == "sweep"
    check_pairs(ranked.record)


@pytest.mark.parametrize(
    ("progress", "option", "unit"),
    [
        ("json.dumps([1])", ("--progress", "json:dumps"), "call of json:dumps"),
        (
            "print('step done')",
            ("--progress-regex", "step [a-z]+"),
            "line of output with 'step [a-z]+'",
        ),
        (
            "__import__('speed_bump').progress('here')",
            ("--progress", "here"),
            "progress point 'here'",
        ),
    ],
)
def test_what_a_unit_of_work_is(tmp_path, progress, option, unit):
    source = SLOW.format(imports="json", seconds=300, progress=progress)
    ranked = Ranked(
        tmp_path, python("__main__:[fg]"), [sys.executable, "-uc", source], *option
    )
    assert ranked.result["unit"] == unit
    assert sorted(ranked.functions) == ["f", "g"]
    assert ranked.functions["f"]["calls_per_unit"] == pytest.approx(1, abs=0.3)
    check_pairs(ranked.record)
    assert "step done" not in ranked.done.stdout


def test_a_short_program_is_measured_in_whole_runs(tmp_path):
    source = SLOW.format(imports="sys", seconds=0, progress="").replace(
        "while time.monotonic() < end:", "for _ in range(300):"
    )
    ranked = Ranked(
        tmp_path,
        python("__main__:f"),
        [sys.executable, "-c", source],
        enough=lambda record: len(record.pairs) >= 2,
    )
    assert ranked.functions["f"]["calls_per_unit"] == 300
    assert all(pair.length_ns == 0 for pair in ranked.record.pairs)
    assert ranked.result["end"]["runs"] > 4
    assert "whole runs" in ranked.done.stderr


def test_an_interrupt_ends_with_what_is_known(tmp_path):
    output = tmp_path / "pairs.jsonl"
    process = subprocess.Popen(
        command_line(
            # Not decided as soon as it has begun: a hinge takes long.
            "rank", *python("__main__:record", "__main__:cpu"), "--budget", "300s",
            "-o", str(output), "--", *program("stages"),
        ),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end and process.poll() is None:
            if output.exists() and b'"what":"pair"' in output.read_bytes():
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "stopped before the end" in out
    assert "__main__:record" in out
    assert "Traceback" not in err
    assert records.read(str(output)).end["interrupted"]


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
        (
            ["rank", "-t", "a:*", "-t", "!a:b*", "--progress", "a:bc", "--", "x"],
            "takes it out",
        ),
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
