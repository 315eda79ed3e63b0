# SPDX-License-Identifier: MIT
# ruff: noqa: E402
"""What a delay adds to the latency of requests, of servers whose answer is known."""

from __future__ import annotations

from functools import lru_cache

import pytest

np = pytest.importorskip("numpy")

import queues
from speed_bump.experiment.fit import latency
from speed_bump.experiment.slots import plan

pytestmark = pytest.mark.one_python

SEEDS = 20
HELD = 18


def slot_units(server):
    """A tenth of a second."""
    return max(round(0.1 * server.rate), 30) if server.rate else 200


@lru_cache(maxsize=None)
def seen(name, seed=0, cycles=1):
    server = queues.SERVERS[name]
    return queues.experiment(server, slot_units(server), seed, cycles)


@lru_cache(maxsize=None)
def told(name, seed=0, cycles=1):
    return latency.latency(*seen(name, seed, cycles))


# bench/rank/latency_coverage.py --truth prints these, of 4,000,000 requests (batching,
# pool and closed: 400,000), in us.
TRUTH = {}


@pytest.mark.parametrize("name", sorted(TRUTH))
def test_intervals_hold_the_truth(name):
    """In 18 of 20 runs, of each function and statistic that has a number."""
    missed = {}
    for seed in range(SEEDS):
        for f in told(name, seed).findings:
            for key, interval in f.added_ns.items():
                true = TRUTH[name][f.name][latency.STATISTICS.index(key)] * 1000
                held = interval.low <= true <= interval.high
                missed[f.name, key] = missed.get((f.name, key), 0) + (not held)
    assert {key for _, key in missed} >= {"mean", "p50", "p90"}
    assert {at: n for at, n in missed.items() if n > SEEDS - HELD} == {}
