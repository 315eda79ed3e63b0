# SPDX-License-Identifier: MIT
# ruff: noqa: E402
"""Blocks for the latency of requests: what is delayed, by how much, and how often."""

from __future__ import annotations

from dataclasses import replace

import pytest

np = pytest.importorskip("numpy")

import queues
from speed_bump.experiment.fit import load
from speed_bump.experiment.record import REQUEST
from speed_bump.experiment.slots import plan
from speed_bump.experiment.slots.requests import Requests

pytestmark = pytest.mark.one_python

LEAST_NS = 1000


def events_of(count, gap_ns=10_000_000, took_ns=2_000_000):
    """Requests one after the other."""
    events = np.zeros(count, REQUEST)
    events["begin_ns"] = np.arange(count) * gap_ns
    events["duration_ns"] = took_ns
    return events


def censused(count):
    """A record with a census alone, and so many requests."""
    record, _ = queues.experiment(queues.SERVERS["pool"], 60, 1, 0)
    return replace(record, requests=events_of(count))


def is_drawn(block):
    return block is not None and block.stage == "single"


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_with_few_requests_so_far_blocks_are_drawn(count):
    block = Requests(0.1, LEAST_NS, 1).next_block(censused(count))
    assert is_drawn(block)


def test_the_load_of_one_request_is_open():
    for events in (events_of(1), events_of(3, gap_ns=0)):
        found = load.load(events, None)
        assert (found.kind, found.under_way) == (load.OPEN, 0)
