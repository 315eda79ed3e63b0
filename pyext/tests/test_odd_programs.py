# SPDX-License-Identifier: MIT
# ruff: noqa: E402
"""Unusual programs: an answer or a reason, and never a wrong number."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

np = pytest.importorskip("numpy")

import model
from speed_bump.config import parse_targets
from speed_bump.experiment import archive
from speed_bump.experiment.fit.verdict import verdict
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner
from speed_bump.experiment.record import Record
from speed_bump.experiment.slots import experiment as slots
from speed_bump.experiment.slots import ledger, stages
from speed_bump.experiment.slots.measure import empty
from speed_bump.experiment.slots.stages import Options, Stages

pytestmark = [pytest.mark.one_python, pytest.mark.timed]
PATIENCE_S = 240

# At least ten units in a microsecond or two.
FLOOD = """
import speed_bump
def f(): pass
while True:
    f()
    for _ in range(20):
        speed_bump.progress()
"""
# Stopped for two of three seconds, by a child of its own.
STOPPED = """
import os, signal, speed_bump, time
def f():
    end = time.thread_time() + 0.003
    while time.thread_time() < end: pass
parent = os.getpid()
if os.fork() == 0:
    while os.getppid() == parent:
        time.sleep(0.5)
        os.kill(parent, signal.SIGSTOP)
        time.sleep(1)
        os.kill(parent, signal.SIGCONT)
    os._exit(0)
while True:
    f()
    speed_bump.progress()
"""
SLOW = """
import speed_bump, time
def f(): time.sleep(0.01)
while True:
    end = time.monotonic() + 1.5
    while time.monotonic() < end: f()
    speed_bump.progress()
"""


def rank(source: str, seconds: int, tmp_path: pathlib.Path):
    """The text of a run, and its numbers; None: there are none."""
    path = tmp_path / "json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "speed_bump", "rank", "-t", "__main__:f"),
            *("--budget", f"{seconds}s", "--seed", "1", "--json", str(path)),
            *("-o", str(tmp_path / "record"), "--", sys.executable, "-c", source),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    return done, json.loads(path.read_text("utf-8")) if path.exists() else None


@pytest.mark.parametrize("source", [FLOOD, STOPPED], ids=["flood", "stopped"])
def test_a_right_answer_or_a_reason(source, tmp_path):
    done, found = rank(source, 10, tmp_path)
    assert found is not None, done.stderr
    (finding,) = found["findings"]
    assert not model.wrong(finding["verdict"], 1.0)
    assert finding["reason"]
    c = finding["criticality"]
    # A hook and its call take time too, which is not part of any delay.
    assert c is None or c["low"] - 0.1 <= 1 <= c["high"] + 0.1


class Silent:
    """A watcher that observes nothing."""

    def now(self, text):
        pass

    def event(self, text):
        pass

    def known(self, record, left_s):
        pass


WORKS = """
import speed_bump, time
def f():
    end = time.thread_time() + 0.001
    while time.thread_time() < end: pass
while True:
    f()
    speed_bump.progress()
"""


def test_a_long_experiment_stays_in_memory_and_in_its_file(tmp_path, monkeypatch):
    """The plan of a forgotten slot is forgotten with it; the other slots are used."""
    monkeypatch.setattr(ledger, "MAX_CELLS", 100)
    # More than end on a busy machine while a block is planned.
    monkeypatch.setattr(ledger, "MIN_KEPT", 1000)
    monkeypatch.setattr(stages, "MAX_BLOCK", stages.BLOCK)
    record = Record({}, (), empty(0))
    runner = Runner([sys.executable, "-c", WORKS], show_output=False)
    sizes, path = [], str(tmp_path / "record")

    def changed(record):
        sizes.append(len(record.slots))

    with runner:
        experiment = slots.Experiment(
            runner,
            parse_targets("__main__:f", "test"),
            Progress(("default",)),
            slots.Options(18),
            record,
            Stages(Options(18, precision=1e-9), 1),
            Silent(),
            changed,
        )
        experiment.run()
    assert len(record.blocks) > 2 and max(sizes) < 3000
    drawn = [len(block) for block in record.blocks]
    first = int(record.slots.block[record.slots.block >= 0].min())
    assert first > 0 and not any(drawn[:first]) and all(drawn[first:])
    archive.save(record, path)
    (finding,) = verdict(archive.load(path)).findings
    assert finding.reason and not model.wrong(finding.verdict, 1.0)


def test_a_unit_that_takes_long_is_said_to(tmp_path):
    done, found = rank(SLOW, 6, tmp_path)
    assert found is None and done.returncode == 1
    assert "a unit of work takes" in done.stderr and "--budget" in done.stderr
    assert "--progress" in done.stderr
