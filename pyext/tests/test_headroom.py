# SPDX-License-Identifier: MIT
"""Headroom: what a function takes, and what others leave of it."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("numpy")

import model
from speed_bump.experiment.fit.verdict import verdict
from speed_bump.experiment.record import SelfTime
from speed_bump.experiment.show.sentence import sentence
from test_fit_effects import recorded

pytestmark = pytest.mark.one_python


def test_no_headroom_is_larger_than_the_whole():
    """Of a function that eight threads wait in."""
    run = recorded(lambda draw: model.Weighted(draw, [1.0, 0.0]), "quiet", 1)
    run.record.self_times["m:f0"] = SelfTime(7.3, 1000)
    headroom = verdict(run.record).of("m:f0").headroom
    assert headroom.low == headroom.value == headroom.high == 1


def test_no_headroom_is_larger_than_what_others_leave():
    """Unless they wait for it, or could do it in several threads, or are unknown."""
    run = recorded(lambda draw: model.Weighted(draw, [1.0, 1.0, 1.0, 0.0]), "quiet", 1)
    times = {
        "m:f0": SelfTime(0.8, 10_000, twice=0.0),
        "m:f1": SelfTime(0.7, 10_000, twice=0.0),
        "m:f2": SelfTime(0.1, 10_000, twice=0.0),
        "m:f3": SelfTime(0.9, 10_000, twice=0.0),
    }
    run.record.self_times = dict(times)
    first, second, third, _ = verdict(run.record).findings
    assert first.headroom.value == pytest.approx(0.3)
    assert first.headroom.low < 0.3 < first.headroom.high < 0.32
    assert "m:f1 takes 70% of the time" in first.notes[0]
    assert "at most 30% is gained" in first.notes[0]
    assert (first.beside, third.beside) == ("m:f1", "")
    said = sentence(run.record, verdict(run.record))
    assert "Look first at m:f0" in said and "and at m:f1, which works at the same" in said
    assert second.headroom.value == pytest.approx(0.2)
    # They may be one after the other.
    assert third.headroom.value == pytest.approx(0.1, abs=0.01) and not third.notes
    for twice in (0.3, math.nan):
        run.record.self_times = {**times, "m:f1": SelfTime(0.7, 10_000, twice=twice)}
        first, second, *_ = verdict(run.record).findings
        assert first.headroom.value == pytest.approx(0.8, abs=0.05) and not first.notes
        assert second.headroom.value == pytest.approx(0.2)


def test_delays_that_hold_the_gil_beside_the_thread_of_the_units():
    """What it computes without the GIL need not matter, though its delays do."""
    run = recorded(lambda draw: model.Weighted(draw, [1.0, 1.0, 0.0]), "quiet", 1)
    run.record.self_times = {
        "m:f0": SelfTime(0.4, 1000, beside=0.4),
        "m:f1": SelfTime(0.4, 1000, beside=0.1),
        "m:f2": SelfTime(0.4, 1000, beside=0.4),
    }
    told = [any("mode=wait" in n for n in f.notes) for f in verdict(run.record).findings]
    assert told == [True, False, False]
