# SPDX-License-Identifier: MIT
from __future__ import annotations

import random

import pytest
import simulated
from speed_bump.experiment.records import GROUP
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
