# SPDX-License-Identifier: MIT
from __future__ import annotations

import io
import random

import pytest
import simulated
from speed_bump.experiment import rank
from speed_bump.experiment.progress import Progress
from speed_bump.experiment.rank import Experiment, Options
from speed_bump.experiment.records import GROUP, Census, GroupTest, Writer
from speed_bump.experiment.report import Ticker
from speed_bump.experiment.runner import Runner
from speed_bump.experiment.screen import Screening

NAMES = [f"m{i // 16}:f{i}" for i in range(256)]


def drive(screening, effect, draw):
    """Answer all its requests; ``effect`` says the extra time, by names and share."""
    search = screening.search()
    pairs = 0
    try:
        request = next(search)
        while True:
            extra = effect(request.names, request.share) * simulated.UNIT_NS
            answer = [
                simulated.pair(
                    draw, request.names, request.share, lambda _, e=extra: e, kind=GROUP
                )
                for _ in range(request.pairs)
            ]
            pairs += len(answer)
            request = search.send(answer)
    except StopIteration:
        return pairs


@pytest.mark.parametrize("seed", range(10))
def test_four_of_256_are_found_and_none_else(seed):
    draw = random.Random(seed)
    critical = set(draw.sample(NAMES, 4))
    screening = Screening(NAMES)
    drive(screening, lambda names, s: s * len(critical & set(names)), draw)
    assert set(screening.alone) == critical
    assert screening.jointly == []
    assert screening.tests <= 60


def test_where_nothing_matters_a_few_tests_say_so():
    draw = random.Random(1)
    screening = Screening(NAMES)
    drive(screening, lambda names, s: 0.0, draw)
    assert screening.alone == []
    assert screening.tests <= 12


def test_what_matters_only_jointly_is_told_apart():
    draw = random.Random(2)
    pair = {NAMES[3], NAMES[20]}
    screening = Screening(NAMES[:32])
    screening.search()

    def effect(names, share):
        return 2 * share if pair <= set(names) else 0.0

    # All in one group at first, or it would not be seen at all.
    screening = Screening(NAMES[:32])
    screening._first_groups = lambda: [tuple(NAMES[:32])]
    drive(screening, effect, draw)
    assert screening.alone == []
    assert [set(names) for names in screening.jointly] == [pair]


def test_what_screening_leaves_goes_on_the_busiest_first():
    names = [f"m:f{i}" for i in range(100)]
    writer = Writer({}, None)
    experiment = Experiment(
        Runner(["x"]), [], Progress(), Options(), writer, Ticker(io.StringIO())
    )
    # f99 takes most of the time, f0 none.
    samples = {f"m:f{i}": i for i in range(1, 100)}
    calls = dict.fromkeys(names, 100)
    writer.census(Census(0, 1, 10**9, 100, calls, 10_000, samples, "stack samples"))
    experiment.screening = Screening(names, alone=["m:f3"], jointly=[("m:f98", "m:f97")])
    writer.test(GroupTest(("m:f99", "m:f50"), 6, 0.1, 0.0, -0.01, 0.01, False))
    experiment._end_screening()
    chosen = list(experiment.functions)
    busiest = [f"m:f{i}" for i in range(96, 0, -1) if i not in (3, 50)]
    assert chosen == ["m:f3", *busiest[: rank.MOST_ALONE]]

    # Of many those that hardly take time are last, the busiest first.
    small = rank.Function("m:f3", [0.1])
    experiment.functions["m:f3"] = small
    order = sorted(experiment.functions.values(), key=experiment._urgency)
    assert order[0].name == "m:f96"
    assert order[-1] is small
    # One that has its first pairs waits for the others.
    order[0].made = 1000
    order.sort(key=experiment._urgency)
    assert [f.name for f in order[:2]] == ["m:f95", "m:f94"]
    assert [f.name for f in order[-2:]] == ["m:f96", "m:f3"]
