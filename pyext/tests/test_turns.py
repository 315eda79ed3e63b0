# SPDX-License-Identifier: MIT
"""Functions that are made faster by turns: bench/honest/turns.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HONEST = Path(__file__).parents[2] / "bench" / "honest"
# Units of 4 ms, half of them in work(); beside() is in no unit.
PROGRAM = f"""
import os, sys, time
sys.path.insert(0, {str(HONEST)!r})
from turns import Faster, Turns, nothing, remembered

def spin(ms):
    end = time.thread_time() + ms / 1000
    while time.thread_time() < end:
        pass
def work(word):
    spin(2)
    return word
def beside():
    spin(2)

ours = sys.modules[__name__]
turns = Turns({{
    "work": Faster(ours, "work", remembered),
    "beside": Faster(ours, "beside", nothing),
}})
if os.fork() == 0:
    parent = os.getppid()
    while os.getppid() == parent:
        beside()
        time.sleep(0.01)
    os._exit(0)
while turns.unit():
    assert work("word") == "word"
    spin(2)
"""


def turns_of(function: str) -> list[tuple[bool, float]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, function, "4"],
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    found = [(bool(fast), float(ns)) for fast, ns in json.loads(done.stdout)]
    # Pairs, in random order.
    assert len(found) >= 4
    pairs = zip(found[::2], found[1::2], strict=True)
    assert all({a[0], b[0]} == {True, False} for a, b in pairs)
    return found


def best(turns: list[tuple[bool, float]], fast: bool) -> float:
    return min(ns for was_fast, ns in turns if was_fast == fast)


@pytest.mark.one_python
@pytest.mark.timed
def test_what_a_faster_function_gains() -> None:
    found = turns_of("work")
    assert 0.3 < 1 - best(found, True) / best(found, False) < 0.7


@pytest.mark.one_python
@pytest.mark.timed
def test_a_faster_function_that_nobody_waits_for_gains_nothing() -> None:
    found = turns_of("beside")
    assert abs(1 - best(found, True) / best(found, False)) < 0.3
