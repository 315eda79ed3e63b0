# SPDX-License-Identifier: MIT
"""How many units a slot has."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from ranking import Ranked, python
from speed_bump.experiment.fit.columns import usual
from speed_bump.experiment.slots.length import factor
from speed_bump.experiment.slots.measure import _side_by_side, empty

MINUTE_NS = 60e9


def slots_of(time_ns):
    n = len(time_ns)
    return replace(
        empty(0),
        number=np.arange(n),
        time_ns=np.asarray(time_ns, float),
        good=np.ones(n, np.bool_),
        wait_ns=np.full(n, np.nan),
    )


def noise(n, seed=0):
    return np.random.default_rng(seed).normal(0, 1e5, n)


@pytest.mark.parametrize("connections", [3, 4, 10])
def test_a_slot_is_a_round_of_an_event_loop(connections):
    """All of its requests end together, and the next ones take a while."""
    one = [3e5] * (connections - 1) + [1e7]
    times = np.array(one * 150)
    assert factor(slots_of(times + noise(len(times))), MINUTE_NS) == connections
    # A pause now and then is no round; of several rounds it is a smaller part.
    times[::97] += 2e8
    assert factor(slots_of(times + noise(len(times))), MINUTE_NS) % connections == 0


def test_a_slot_is_an_iteration_of_reinforcement_learning():
    """Many steps of the optimizer, and then the collection of experience.

    There are 270 of these iterations in a minute: enough.
    """
    one = [2.5e6] * 39 + [1.2e8]
    times = np.array(one * 15)
    assert 32 <= factor(slots_of(times + noise(len(times))), MINUTE_NS) <= 40


def test_a_slot_is_not_longer_than_it_must_be():
    even = 3e6 + noise(600)
    assert factor(slots_of(even), MINUTE_NS) == 1
    # The pace changes slowly, as on a machine that others use.
    assert factor(slots_of(even + np.cumsum(noise(600)) / 3), MINUTE_NS) == 1
    # There would be too few.
    bursts = np.array([3e5, 3e5, 1e7] * 200) + noise(600)
    assert factor(slots_of(bursts), MINUTE_NS / 60) == 1
    assert factor(slots_of(bursts[:12]), MINUTE_NS) == 1


def test_the_usual_time_is_that_of_all_slots():
    bursts = np.array([3e5, 3e5, 3e5, 1e7] * 100)
    assert usual(bursts) > 2e6
    # Two pauses are not usual.
    assert usual(np.array([1e6] * 198 + [1e9] * 2)) == pytest.approx(1e6)
    assert usual(np.zeros(0)) == 0


def test_threads_side_by_side_are_counted_by_what_they_do():
    draw = np.random.default_rng(1)
    alike = draw.integers(1, 9, 400).astype(np.uint32)
    assert _side_by_side(alike) == pytest.approx(8, rel=0.1)
    # One that reports now and then is hardly one more.
    alike[::100] = 9
    assert _side_by_side(alike) == pytest.approx(8, rel=0.1)
    # Threads that follow each other, with one unit or a few, are not side by side.
    assert _side_by_side(np.arange(1, 100, dtype=np.uint32)) == 1
    assert _side_by_side(np.repeat(np.arange(1, 20, dtype=np.uint32), 5)) == 1
    assert _side_by_side(np.ones(50, np.uint32)) == 1
    # A tool or a kernel that ends slots names no thread.
    assert _side_by_side(np.zeros(50, np.uint32)) == 1
    assert _side_by_side(np.zeros(0, np.uint32)) == 1


WORKERS = """
import speed_bump, threading, time
def read():
    time.sleep(0.012)
def answer():
    return sum(range(3000))
def work():
    while True:
        read()
        answer()
        speed_bump.progress()
for _ in range(12):
    threading.Thread(target=work).start()
"""


@pytest.mark.timed
@pytest.mark.one_python
def test_workers_side_by_side_have_answers(tmp_path):
    """A delay of one of twelve costs the throughput a twelfth of it: 0.08."""
    program = tmp_path / "workers.py"
    program.write_text(WORKERS)

    def fits(ranked):
        verdicts = {f["verdict"] for f in ranked.findings.values()}
        assert verdicts <= {"matters", "inconclusive"}
        # Noise of twelve threads that wait for CPUs can be as large as a twelfth.
        had_cpus = ranked.record.machine.share > 0.5
        return verdicts == {"matters"} or (ranked.is_last and not had_cpus)

    ranked = Ranked(
        tmp_path,
        python("__main__:answer", "__main__:read"),
        [sys.executable, str(program)],
        fits=fits,
    )
    assert ranked.result["side_by_side"] == pytest.approx(12, rel=0.2)
    assert "threads do units side by side" in ranked.done.stdout
    for found in ranked.findings.values():
        if found["verdict"] == "matters":
            assert found["criticality"]["value"] < 0.3


ROUNDS = """
import speed_bump, time
def answer():
    return sum(range(3000))
while True:
    for _ in range(6):
        answer()
        speed_bump.progress()
    time.sleep(0.014)
"""


@pytest.mark.timed
@pytest.mark.one_python
def test_a_function_of_units_that_end_in_bursts_has_an_answer(tmp_path):
    program = tmp_path / "rounds.py"
    program.write_text(ROUNDS)

    def fits(ranked):
        return ranked.findings["answer"]["verdict"] == "matters"

    ranked = Ranked(
        tmp_path, python("__main__:answer"), [sys.executable, str(program)], fits=fits
    )
    assert ranked.result["slot_units"] % 6 == 0
    assert abs(ranked.findings["answer"]["criticality"]["value"] - 1) < 0.5
