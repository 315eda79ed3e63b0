# SPDX-License-Identifier: MIT
from __future__ import annotations

import random

import pytest
from speed_bump.experiment.fit.interval import Interval, student_quantile
from speed_bump.experiment.program import launch
from speed_bump.experiment.program.runner import Result
from speed_bump.experiment.runs import design
from speed_bump.experiment.runs.comparison import Comparison
from speed_bump.experiment.runs.design import BASELINE, Arm, Trial
from speed_bump.experiment.runs.estimate import (
    estimate,
    judge,
    mean_interval,
    more_pairs,
    ratio_interval,
)

pytestmark = pytest.mark.one_python


@pytest.mark.parametrize(
    # Any printed table of Student's t, column 0.975.
    ("df", "quantile"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (7, 2.365), (10, 2.228), (30, 2.042)],
)
def test_student(df: int, quantile: float) -> None:
    assert student_quantile(df) == pytest.approx(quantile, abs=5e-4)


def test_student_becomes_normal() -> None:
    assert student_quantile(100_000) == pytest.approx(1.95996, abs=1e-3)


def test_mean_interval_by_hand() -> None:
    # Mean 2, standard deviation 1, 3 values: half width 4.303 / sqrt(3).
    found = mean_interval([1.0, 2.0, 3.0])
    assert found.value == 2
    assert found.high - 2 == pytest.approx(4.3027 / 3**0.5, abs=1e-3)


def test_ratio_with_equal_delays_is_the_scaled_mean() -> None:
    changes = [9.0, 11.0, 10.5, 9.5]
    mean = mean_interval(changes)
    ratio = ratio_interval(changes, [20.0] * 4)
    for a, b in zip(
        (mean.value, mean.low, mean.high),
        (ratio.value, ratio.low, ratio.high),
        strict=True,
    ):
        assert a / 20 == pytest.approx(b)


def test_the_interval_covers_what_it_says() -> None:
    rng = random.Random(1)
    covered = 0
    for _ in range(1000):
        delivered = [rng.uniform(80, 120) for _ in range(8)]
        changes = [0.5 * i + rng.gauss(0, 10) for i in delivered]
        found = ratio_interval(changes, delivered)
        covered += found.low < 0.5 < found.high
    assert 925 <= covered <= 975


def test_verdicts() -> None:
    """The verdicts of an experiment with slots, each with its reason."""
    assert judge(Interval(1.0, 0.9, 1.1), 8)[0] == "matters"
    assert judge(Interval(0.5, 0.4, 0.6), 8)[0] == "partly"
    assert judge(Interval(0.0, -0.05, 0.05), 8)[0] == "hidden"
    for wide in (Interval(0.4, -0.1, 0.9), Interval(3.0, 0.5, 5.5)):
        label, reason, helps = judge(wide, 8)
        assert label == "inconclusive" and "±" in reason
        assert helps.startswith("needs about ")
    label, reason, helps = judge(Interval(0.4, -100, 100), 8)
    assert (label, reason) == ("inconclusive", "the delay is lost in the noise")
    assert helps == "use a longer one"


def test_more_pairs_shrinks_the_interval_as_needed() -> None:
    # Standard deviation 0.4 / 2.365 * sqrt(8) = 0.478, half width to come below 0.2:
    # 24 pairs give 2.069 * 0.478 / sqrt(24) = 0.202, 25 give 2.064 * 0.478 / 5 = 0.197.
    assert more_pairs(Interval(0.3, -0.1, 0.7), 8) == 25 - 8


def test_one_pair_says_nothing() -> None:
    found = estimate([1.0], [2.0], [1.0], [1.0])
    assert (found.change_ns, found.criticality, found.supported) == (None, None, False)


def test_nothing_delivered_says_nothing() -> None:
    found = estimate([1.0, 2.0], [2.0, 1.0], [0.0, 0.0], [0.0, 0.0])
    assert found.criticality is None
    assert found.said.startswith("inconclusive: no delay was delivered; ")


def test_where_others_had_the_cpu_nothing_is_said() -> None:
    base = [100.0, 100.1, 99.9, 100.0]
    delayed = [b + 10 for b in base]
    delivered = [10.0] * 4
    found = estimate(base, delayed, delivered, delivered, waited=0.6)
    assert found.said == (
        "inconclusive: the machine is busy, the program waited 60% of its time; "
        "run it when the machine has less to do"
    )
    assert not found.supported
    assert estimate(base, delayed, delivered, delivered, waited=0.4).supported


def test_plan_is_in_random_blocks_and_repeatable() -> None:
    arms = [Arm(None, 1), Arm(None, 2)]
    trials = list(design.plan(arms, 20, seed=7))
    assert trials == list(design.plan(arms, 20, seed=7))
    assert trials != list(design.plan(arms, 20, seed=8))
    assert [t.number for t in trials] == list(range(1, 61))
    orders = set()
    for block in range(1, 21):
        order = [t.arm.delay_ns for t in trials if t.block == block]
        assert sorted(order) == [0, 1, 2]
        orders.add(tuple(order))
    assert len(orders) > 3


def test_chosen_delay() -> None:
    assert design.choose_delay(1000, 1_000_000_000) == 250_000
    assert design.choose_delay(3, 1_000_000_000) == 83_000_000
    assert design.choose_delay(10**9, 1_000_000_000) == design.MIN_DELAY_NS
    assert design.choose_delay(1, 10**12) == design.MAX_DELAY_NS


def trial(arm: Arm, wall: int, wait: int, blocked: int) -> tuple[Trial, Result]:
    result = Result(0, wall, False, 1, (), {}, wait_ns=wait, blocked_ns=blocked)
    return Trial(1, 1, 1, arm), result


def test_a_delay_behind_a_sleep_costs_nothing_with_half_a_cpu_either() -> None:
    """With half of it, a delay of 20 takes the place of 40 of a sleep."""
    serial, hidden = Arm(None, 1), Arm(None, 2)
    comparison = Comparison(["x"], 1, 1, [serial, hidden])
    comparison.trials = [
        trial(BASELINE, 320, 60, 200),
        trial(serial, 360, 80, 200),
        trial(hidden, 320, 80, 160),
    ]
    assert comparison.share == 0.5
    (base,) = comparison.times(BASELINE).values()
    assert comparison.times(serial)[1] - base == 20
    assert comparison.times(hidden)[1] - base == 0
    # A program that only waits for the processes that it started.
    comparison.trials = [trial(BASELINE, 320, 6, 310), trial(serial, 360, 7, 349)]
    assert comparison.share == 1
    assert comparison.times(serial)[1] - comparison.times(BASELINE)[1] == 39


def test_waits_for_threads_of_the_program_are_its_own() -> None:
    alone = launch._Spent(all_ns=100, first_ns=100, first_waited_ns=50)
    assert alone.waited_for_others(400) == 50
    # Of the CPU time that the first thread did not have, a third was the program's.
    some = launch._Spent(all_ns=200, first_ns=100, first_waited_ns=60)
    assert some.waited_for_others(400) == 40
    assert some.waited_for_others(200) == 0
