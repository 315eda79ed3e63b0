# SPDX-License-Identifier: MIT
# ruff: noqa: E402
"""Programs that no experiment likes: an answer or a reason, and never a wrong number."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

np = pytest.importorskip("numpy")

import model

pytestmark = pytest.mark.ranks
PATIENCE_S = 240

# Ten units and more in a microsecond or two.
FLOOD = """
import speed_bump
def f(): pass
while True:
    f()
    for _ in range(20):
        speed_bump.progress()
"""
# In two seconds of three it is stopped: by a child of its own.
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
    end = time.monotonic() + 3
    while time.monotonic() < end: f()
    speed_bump.progress()
"""


def rank(source: str, seconds: int, tmp_path: pathlib.Path):
    """What it says, and the numbers; None: there are none."""
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
    # A hook and its call take time, too, of which no function's delay knows.
    assert c is None or c["low"] - 0.1 <= 1 <= c["high"] + 0.1


def test_a_unit_that_takes_long_is_said_to(tmp_path):
    done, found = rank(SLOW, 12, tmp_path)
    assert found is None and done.returncode == 1
    assert "a unit of work takes" in done.stderr and "--budget" in done.stderr
    assert "--progress" in done.stderr
