# SPDX-License-Identifier: MIT
"""The experiment on real programs; for simulated programs see test_stages.py.

Other load on the machine makes an answer take longer; bench/rank/coverage.py tests how
often answers are right.
"""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import schemas
from ranking import (
    Ranked,
    command_line,
    environment,
    program,
    python,
    says,
    says_with_cpus_of_its_own,
    speed_bump,
)
from speed_bump.experiment import archive
from speed_bump.experiment.record import BESIDE

pytestmark = pytest.mark.one_python

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
    right = says(f="matters", g="matters", h="matters")
    html = ("--html", str(where / "page.html"))
    return Ranked(where, python("__main__:[fgh]"), program("serial"), *html, fits=right)


@pytest.mark.timed
def test_a_run_lists_all_that_it_measured(serial):
    for name, f in serial.findings.items():
        assert f"__main__:{name}" in serial.done.stdout
        assert f["calls_per_unit"] == pytest.approx(1, abs=0.2)
        c = f["criticality"]
        assert c["low"] <= c["value"] <= c["high"]
        assert 0.7 < c["value"] < 1.3
    assert serial.result["seed"] >= 1
    # Time for work in progress on a busy machine.
    assert serial.record.end["seconds"] < 2 * serial.budget + 30
    page = pathlib.Path(serial.output).with_name("page.html").read_text("utf-8")
    assert "__main__:f" in page


@pytest.mark.timed
def test_the_plan_was_kept(serial):
    slots = serial.record.slots
    ruled = slots.delivered_ns.sum(axis=1) > 0
    assert ruled[slots.good & (slots.mask == 0)].mean() < 0.02
    assert serial.result["slowdown"] < 0.25


@pytest.mark.timed
def test_slots_in_which_the_tool_works_are_told_apart(serial):
    """Stacks are sampled first; then there is a rest; later, the tool computes."""
    block = serial.record.slots.block
    assert block[0] == BESIDE
    first = int((block >= 0).argmax())
    assert (block[:first] == -1).sum() >= 20
    assert (block[first:] == BESIDE).any()


@pytest.mark.timed
@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("stages", {"record": "matters", "cpu": "hidden"}),
        ("fork_join", {"long_branch": "matters", "short_branch": "hidden"}),
    ],
)
def test_what_is_hidden_and_what_is_not(tmp_path, name, truth):
    patterns = python(*(f"__main__:{function}" for function in truth))
    fits = says_with_cpus_of_its_own(**truth)
    Ranked(tmp_path, patterns, program(name), fits=fits, budgets=(6, 25))


@pytest.mark.timed
def test_the_file_says_what_the_run_said(serial):
    file = str(serial.output)
    again = schemas.read("report", speed_bump("report", file, "--json").stdout)
    assert again["findings"] == serial.result["findings"]
    assert speed_bump("report", file).stdout.strip() == serial.done.stdout.strip()
    same = speed_bump("compare", file, file)
    assert same.returncode == 0
    assert "__main__:f" in same.stdout


def burn():
    parent = os.getppid()
    while os.getppid() == parent:
        sum(range(100_000))


@pytest.mark.one_python
@pytest.mark.timed
def test_a_program_that_is_half_as_fast_from_the_middle_on(tmp_path):
    """An answer that is right in both halves, or a reason; the change is reported."""
    truth = {"record": 1, "write_out": 1, "parse": 0, "pack": 0}
    right = {"record": "matters", "write_out": "matters", "parse": "hidden"}
    right["pack"] = "hidden"

    def fits(ranked):
        said = list(ranked.result["warnings"])
        for name, f in ranked.findings.items():
            assert f["verdict"] in (right[name], "inconclusive"), f
            assert f["reason"]
            if (c := f["criticality"]) is not None:
                # One interval in twenty does not contain the truth, by a small margin.
                assert c["low"] - 0.1 <= truth[name] <= c["high"] + 0.1, f
            said += f["notes"]
        answered = sum(f["verdict"] == right[n] for n, f in ranked.findings.items())
        told = any("as long at the end" in w or "it changed" in w for w in said)
        return (answered >= 2 and told) or ranked.is_last

    command = ["env", "BENCH_MIDDLE=4", *program("half_speed")]
    patterns = python(*(f"__main__:{name}" for name in truth))
    Ranked(tmp_path, patterns, command, fits=fits, budgets=(8, 16))


@pytest.mark.one_python
@pytest.mark.timed
def test_others_make_an_answer_wider_and_not_wrong(tmp_path):
    context = multiprocessing.get_context("fork")
    count = len(os.sched_getaffinity(0)) + 1
    burning = [context.Process(target=burn, daemon=True) for _ in range(count)]
    for process in burning:
        process.start()
    right = says(f="matters", g="matters", h="matters")

    def fits(ranked):
        # Beside other programs, too little CPU time may be left, which is reported.
        refused = [
            f
            for f in ranked.findings.values()
            if "of the CPU time" in f["reason"] or "of a CPU the thread" in f["reason"]
        ]
        few = len(refused) == 3 and ranked.record.machine.share < 0.35
        return few or right(ranked)

    try:
        ranked = Ranked(tmp_path, python("__main__:[fgh]"), program("serial"), fits=fits)
    finally:
        for process in burning:
            process.kill()
            process.join()
    assert ranked.record.machine.share < 0.95
    assert "CPU" in ranked.done.stdout


@pytest.mark.one_python
@pytest.mark.timed
def test_a_sweep_has_all_levels(tmp_path):
    def fits(ranked):
        slots = ranked.record.slots
        on = slots.good & (slots.delivered_ns[:, 0] > 0)
        return len(set(slots.level[on].tolist())) == 3 and on.sum() > 30

    ranked = Ranked(
        tmp_path,
        python("__main__:f"),
        program("serial"),
        *("--levels", "0.1,0.3,0.6", "--max-slowdown", "50%"),
        verb="sweep",
        fits=fits,
    )
    slots = ranked.record.slots
    means = [
        slots.delivered_ns[slots.good & (slots.mask == 1) & (slots.level == level), 0]
        for level in range(3)
    ]
    assert means[0].mean() < means[1].mean() < means[2].mean()
    assert ranked.record.header["verb"] == "sweep"


@pytest.mark.one_python
@pytest.mark.timed
def test_a_short_program_is_measured_in_whole_runs(tmp_path):
    source = SLOW.format(imports="sys", seconds=0, progress="").replace(
        "while time.monotonic() < end:", "for _ in range(300):"
    )
    numbers, page = tmp_path / "numbers.json", tmp_path / "page.html"
    done = speed_bump(
        "rank", "-t", "__main__:[fg]", "--budget", "8s", "--json", str(numbers), "-o",
        str(tmp_path / "x"), "--html", str(page), "--", sys.executable, "-c", source,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "whole runs" in done.stderr
    found = schemas.read("runs", numbers.read_text())
    assert sorted(f["target"] for f in found["findings"]) == ["__main__:f", "__main__:g"]
    assert all(f["reason"] for f in found["findings"])
    assert len(found["trials"]) >= 6
    assert [t["calls_per_unit"] for t in found["targets"]] == [300, 300]
    # The keys of an experiment with slots, and its page.
    assert {"unit_ns", "warnings", "advice", "joints", "bill", "end"} <= set(found)
    assert "__main__:f" in page.read_text()
    # The time of a whole run, which has no unit of work.
    account = found["account"]
    assert sum(row["share"] for row in account["rows"]) == pytest.approx(1)
    own = account["functions"]["__main__:f"]
    assert own["computing"] + own["asleep"] > 0.05
    assert "where a run's time goes" in done.stdout
    assert "class='flame'" in page.read_text()
    for f in found["findings"]:
        assert f["self_share"] > 0.01
        assert f["headroom"] or f["criticality"] is None
    # One sentence at the end, and nothing below it.
    last = " ".join(done.stdout.rstrip().split("\n\n")[-1].split())
    assert last == found["advice"] and last.endswith(".")
    assert sorted(tmp_path.iterdir()) == [numbers, page]


FEW_UNITS = """
import time
def f():
    end = time.process_time() + 0.004
    while time.process_time() < end:
        pass
def unit():
    f()
    time.sleep(0.01)
for _ in range(60):
    unit()
"""


@pytest.mark.one_python
@pytest.mark.timed
def test_a_program_of_few_units_carries_its_slots_over_runs(tmp_path):
    done = speed_bump(
        "rank", "-t", "__main__:f", "--progress", "__main__:unit", "--budget", "15s",
        "-o", str(tmp_path / "x"), "--", sys.executable, "-c", FEW_UNITS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # With whole runs, two of them would be one slot each.
    assert "whole runs" not in done.stderr
    record = archive.load(str(tmp_path / "x"))
    slots = record.slots
    # The number depends on the load of the machine.
    assert record.end["runs"] >= 2
    assert 2 in slots.run[slots.mask != 0]
    # The first run passes while it is observed; most of the later ones are used.
    later = slots.run > 1
    assert (slots.block[later] >= 0).mean() > 0.3
    assert later.sum() > 20


@pytest.mark.one_python
def test_an_interrupt_ends_with_what_is_known(tmp_path):
    output = tmp_path / "record"
    process = subprocess.Popen(
        command_line(
            "rank", *python("__main__:record", "__main__:cpu"), "--budget", "300s",
            "--precision", "0.001", "-o", str(output), "--", *program("stages"),
        ),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + 120
        # The results so far can be read during the measurement.
        while time.monotonic() < end and process.poll() is None:
            if output.exists() and output.stat().st_size:
                break
            time.sleep(0.1)
        assert len(archive.load(str(output)).slots) > 0
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "__main__:record" in out
    assert "Traceback" not in err
    assert archive.load(str(output)).end["interrupted"]


@pytest.mark.one_python
def test_what_does_not_run_is_said_in_one_line(tmp_path):
    where = ["-o", str(tmp_path / "x")]
    for arguments, status, text in (
        (["-t", "a:b", *where, "--", "/no/such/program"], 127, "No such file"),
        (["-t", "a:b", *where, "--", sys.executable, "-c", "exit(3)"], 3, "status 3"),
        (["-t", "a:b", "--budget", "2s", *where, "--", "sleep", "60"], 1, "no Python"),
        (["-t", "a:b", *where, "--", sys.executable, "-c", "0"], 1, "called none of"),
        (["-t", "a:b", "-o", "/no/such/dir/x", "--", "x"], 1, "No such file"),
    ):
        done = speed_bump("rank", *arguments)
        assert done.returncode == status, (arguments, done.stderr)
        assert text in done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "x").exists()
    for arguments, text in (
        (["rank", "-t", "a:b"], "no command to run"),
        (["sweep", "--", "x"], "nothing to slow"),
        (["rank", "-t", "a:b", "--budget", "soon", "--", "x"], "--budget"),
        (["rank", "-t", "a:b", "--max-slowdown", "much", "--", "x"], "--max-slowdown"),
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
    assert "not a record" in done.stderr


@pytest.mark.timed
def test_conditions_fail_a_script(serial):
    file = str(serial.output)
    failed = speed_bump("report", file, "--fail-if", "criticality(__main__:f) > 0.1")
    assert failed.returncode == 3
    assert "failed: criticality(__main__:f) > 0.1" in failed.stderr
    passed = speed_bump("report", file, "--fail-if", "criticality(__main__:f) < 0.1")
    assert passed.returncode == 0
    unknown = speed_bump("report", file, "--fail-if", "criticality(m:none) < 0.1")
    assert unknown.returncode == 1


def test_nothing_is_left_running(tmp_path):
    """The program and its workers are terminated when everything is measured."""
    marker = f"left-{os.getpid()}"
    source = (
        "import os, subprocess, sys, time, speed_bump\n"
        "subprocess.Popen(['sleep', '600'], env={**os.environ, 'MARKER': "
        f"{marker!r}}})\n"
        "while True:\n    sum(range(5000))\n    speed_bump.progress()\n"
        "    f = compile('0', 'x', 'eval')\n"
        "    exec('def f(): pass\\nf()', {'__name__': 'work'})\n"
    )
    done = speed_bump(
        "rank", "-t", "work:f", "--budget", "2s", "-o", str(tmp_path / "x"), "--",
        sys.executable, "-c", source,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        assert f"MARKER={marker}".encode() not in environ
