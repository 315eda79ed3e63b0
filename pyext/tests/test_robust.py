# SPDX-License-Identifier: MIT
from __future__ import annotations

import math
import random

import pytest
from speed_bump.experiment import robust


def heavy(draw: random.Random) -> float:
    """Noise as windows have it: mostly small, now and then very large."""
    return draw.gauss(0, 1) if draw.random() < 0.93 else draw.gauss(0, 12)


@pytest.mark.parametrize("count", [12, 40, 200])
def test_the_trimmed_ratio_covers_the_truth(count):
    draw = random.Random(count)
    truth, inside, runs = 0.7, 0, 600
    for _ in range(runs):
        x = [draw.uniform(0.8, 1.2) for _ in range(count)]
        e = [truth * v + heavy(draw) for v in x]
        found = robust.trimmed_ratio(e, x)
        inside += found.low <= truth <= found.high
    # 95% are meant to be; 0.93 is 2.2 standard errors below.
    assert inside / runs >= 0.93


def test_it_is_narrower_than_the_mean_where_a_few_are_far_off():
    draw = random.Random(3)
    x = [1.0] * 200
    e = [0.5 + heavy(draw) for _ in x]
    trimmed = robust.trimmed_ratio(e, x)
    plain = robust.trimmed_ratio(e, x, trim=0.0)
    assert trimmed.high - trimmed.low < 0.7 * (plain.high - plain.low)


def test_where_the_delay_is_always_the_same_it_is_the_trimmed_mean():
    draw = random.Random(4)
    e = [draw.gauss(3, 1) for _ in range(50)]
    ratio = robust.trimmed_ratio(e, [2.0] * 50)
    mean = robust.trimmed_interval(e)
    assert ratio.value == pytest.approx(mean.value / 2, abs=1e-6)
    assert ratio.high - ratio.low == pytest.approx((mean.high - mean.low) / 2, rel=1e-6)


def test_yuen_by_hand():
    """0 to 9, a fifth cut off at each end: the mean of 2 to 7."""
    found = robust.trimmed_interval([float(v) for v in (9, 0, 8, 1, 7, 2, 6, 3, 5, 4)])
    drawn = [2, 2, 2, 3, 4, 5, 6, 7, 7, 7]
    deviation = math.sqrt(sum((v - 4.5) ** 2 for v in drawn) / 9)
    half = 2.570582 * deviation / (0.6 * math.sqrt(10))  # t of 5 degrees of freedom
    assert found.value == pytest.approx(4.5)
    assert found.high == pytest.approx(4.5 + half, rel=1e-5)


def test_the_block_bootstrap_covers_where_neighbours_are_alike():
    draw = random.Random(6)
    truth, inside, runs, count = 1.0, 0, 200, 300
    for run in range(runs):
        drift, e = 0.0, []
        for _ in range(count):
            drift = 0.5 * drift + draw.gauss(0, 1)
            e.append(truth + drift)
        found = robust.bootstrap_ratio(e, [1.0] * count, seed=run)
        inside += found.low <= truth <= found.high
    # Each pair by itself would cover in 3 of 4; blocks come near to 95%.
    assert inside / runs >= 0.86


def test_theil_sen_finds_the_slope_in_spite_of_outliers():
    draw = random.Random(7)
    x = [v for v in (0.1, 0.2, 0.4) for _ in range(40)]
    e = [0.8 * v + draw.gauss(0, 0.01) for v in x]
    for i in range(0, len(e), 10):
        e[i] += 5
    found = robust.theil_sen(e, x)
    assert found is not None
    assert found.low < 0.8 < found.high
    assert found.high - found.low < 0.2
    assert robust.theil_sen(e, [0.1] * len(e)) is None


def test_false_discoveries_by_hand():
    """Benjamini and Hochberg: p n / rank, and never more than that of a larger p."""
    found = robust.false_discovery([0.01, 0.04, 0.03, 0.5])
    assert found == pytest.approx([0.04, 0.04 * 4 / 3, 0.04 * 4 / 3, 0.5])


def test_false_discoveries_are_held():
    draw = random.Random(8)
    wrong = right = 0
    for _ in range(100):
        z = [draw.gauss(4 if i < 5 else 0, 1) for i in range(50)]
        rates = robust.false_discovery([1 - robust.normal_cdf(v) for v in z])
        right += sum(rate <= 0.05 for rate in rates[:5])
        wrong += sum(rate <= 0.05 for rate in rates[5:])
    assert wrong / (wrong + right) <= 0.06
    assert right > 400
