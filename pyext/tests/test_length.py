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
from speed_bump.experiment.slots.measure import empty

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
@pytest.mark.two_pythons
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
