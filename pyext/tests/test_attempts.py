# SPDX-License-Identifier: MIT
"""How a ranking begins, and begins again, without a program."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("numpy")

from speed_bump.config import parse_targets
from speed_bump.experiment import rank
from speed_bump.experiment.errors import RankError
from speed_bump.experiment.program.late_python import PythonStarted
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.slots.by_rank import count_by_rank
from speed_bump.experiment.slots.experiment import Experiment, Options
from speed_bump.experiment.slots.measure import Run

pytestmark = pytest.mark.one_python

TARGETS = parse_targets("app:work", "test")


class Watcher:
    def __init__(self):
        self.events = []

    def now(self, text):
        pass

    def event(self, text):
        self.events.append(text)

    def known(self, record, left_s):
        pass


@pytest.fixture
def looks(monkeypatch):
    """The times at which Python came, of each search, which finds one function."""
    found = SimpleNamespace(
        progress=Progress(functions=()),
        unit_name="app:step",
        goes_on=False,
        has_native=True,
        machine_code={"app": "no Python"},
        to_first_s=1.0,
        cpu_share=1.0,
        candidates={"app:work": 0.5},
        targets=lambda: TARGETS,
        as_json=dict,
        stacks=SimpleNamespace(as_json=dict),
    )
    seen = []

    def aim(*_, python_s, **__):
        seen.append(python_s)
        return found

    monkeypatch.setattr(rank, "aim", aim)
    monkeypatch.setattr(rank, "showing", SimpleNamespace(lines=lambda _: ["found"]))
    seen.append(found)
    yield seen
    seen.clear()


def ranking(targets=()):
    runner = SimpleNamespace(
        command=["app"], latencies=(), native_latencies=(), attached_to=(), attached={}
    )
    seeds = iter((11, 12))
    return rank.Ranking(
        runner=runner,
        targets=targets,
        progress=Progress(),
        options=Options(60),
        make_stages=lambda: (None, next(seeds)),
        make_header=lambda seed: {"seed": seed, "unit": ""},
        watcher=Watcher(),
        changed=lambda _: None,
        max_slowdown=0.2,
    )


def test_python_that_comes_late_is_looked_for_in_another_attempt(looks, monkeypatch):
    runs = []

    def run(self):
        runs.append((self.search.without_python, self.record.header["seed"]))
        if len(runs) == 1:
            raise PythonStarted(2.5)

    monkeypatch.setattr(Experiment, "run", run)
    one = ranking()
    one.by_slots()
    # It is no program without Python any more, and each attempt has its own draws.
    assert runs == [(True, 11), (False, 12)]
    assert looks[1:] == [0.0, 2.5]
    assert one.runner.seed == one.seed == one.record.header["seed"] == 12
    assert one.failure is None and one.record.header["attached"] == []


def test_a_search_that_fails_in_another_attempt_is_all_that_is_known(looks, monkeypatch):
    def run(self):
        self.too_short = True
        looks[0].candidates, looks[0].left_out = {}, {"app:work": "called too often"}
        raise PythonStarted(2.5)

    monkeypatch.setattr(Experiment, "run", run)
    one = ranking()
    one.by_slots()
    assert isinstance(one.failure, RankError) and "called too often" in str(one.failure)
    assert one.experiment is None and not one.is_too_short and not one.interrupted


def test_what_was_named_is_not_looked_for(looks, monkeypatch):
    monkeypatch.setattr(Experiment, "run", lambda self: None)
    one = ranking(TARGETS)
    one.by_slots()
    assert not looks[1:] and not one.experiment.search.found
    # A process that runs already does not end: without a unit, one is looked for.
    one = ranking(TARGETS)
    one.runner.attached_to = (4711,)
    monkeypatch.setattr(rank, "showing", SimpleNamespace(unit_line=lambda _: "unit"))
    one.by_slots()
    assert looks[1:] == [0.0] and one.experiment.search.found
    assert one.experiment.targets == TARGETS and not one.experiment.search.order


def test_in_a_later_run_of_a_job_no_rank_may_have_reported_since():
    """The time of a unit is known then, and nothing is waited for."""
    program = SimpleNamespace(
        plan=SimpleNamespace(ranks=list), durations=None, is_native=lambda _: False
    )
    first, later = Run(program, 1, by_rank=True), Run(program, 2)
    assert count_by_rank(later, [], first, ["app:work"], Watcher()) == 1
    assert later.by_rank
