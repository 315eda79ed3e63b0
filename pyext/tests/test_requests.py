# SPDX-License-Identifier: MIT
# ruff: noqa: E402
"""Blocks for the latency of requests: what is delayed, by how much and how often."""

from __future__ import annotations

from dataclasses import replace

import pytest

np = pytest.importorskip("numpy")

import queues
from speed_bump.experiment.fit import load
from speed_bump.experiment.record import REQUEST
from speed_bump.experiment.slots import ledger, measure
from speed_bump.experiment.slots.requests import Requests

pytestmark = pytest.mark.one_python

MIN_NS = 1000


def events_of(count, gap_ns=10_000_000, took_ns=2_000_000):
    """Requests one after the other."""
    events = np.zeros(count, REQUEST)
    events["begin_ns"] = np.arange(count) * gap_ns
    events["duration_ns"] = took_ns
    return events


def censused(count):
    """A record with only a census and a number of requests."""
    record, _ = queues.experiment(queues.SERVERS["pool"], 60, 1, 0)
    return replace(record, requests=events_of(count))


def is_drawn(block):
    return block is not None and block.stage == "single"


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_with_few_requests_so_far_blocks_are_drawn(count):
    block = Requests(0.1, MIN_NS, 1).next_block(censused(count))
    assert is_drawn(block)


def test_the_load_of_one_request_is_open():
    for events in (events_of(1), events_of(3, gap_ns=0)):
        found = load.load(events, None)
        assert (found.kind, found.under_way) == (load.OPEN, 0)


def planned(requests, blocks=40):
    """Blocks, and their delays as parts of the undelayed time."""
    record = censused(500)
    slots = record.slots
    slot_ns = float(np.median(slots.time_ns[slots.good]))
    calls = dict(zip(record.functions, slots.calls[slots.good].mean(0), strict=True))
    found, delayed, count = [], 0.0, 0
    while len(found) < blocks:
        block = requests.next_block(record)
        record = replace(record, blocks=[*record.blocks, block])
        if not is_drawn(block):
            continue
        found.append(block)
        count += len(block)
        for bit, arm in enumerate(block.arms):
            on = int(((block.masks >> np.uint64(bit)) & np.uint64(1)).sum())
            for name, (delay,) in zip(arm.functions, arm.delays, strict=True):
                delayed += on * calls[name] * delay.delay_ns / delay.every / slot_ns
    return found, delayed / count


@pytest.mark.parametrize("given_ns", [None, 2_000_000, 50_000_000])
def test_a_delay_that_was_given_stays_below_the_slowdown(given_ns):
    """A slot is delayed by more than the target, so fewer slots are."""
    names = queues.names(queues.SERVERS["pool"])
    fixed = dict.fromkeys(names, given_ns) if given_ns else {}
    blocks, delayed = planned(Requests(0.1, MIN_NS, 1, fixed))
    assert 0.01 < delayed < 1.15 * 0.1 / 0.9
    if given_ns:
        assert {d.delay_ns for b in blocks for a in b.arms[1:] for (d,) in a.delays} == {
            given_ns
        }


def test_the_dose_of_a_block_is_that_of_its_longest_delay():
    """60 requests in a slot of a tenth of a second: 2 ms each do not fit."""
    names = queues.names(queues.SERVERS["pool"])
    for given_ns, low, high in ((2_000_000, 0.9, 1.5), (20_000_000, 9, 15)):
        blocks, _ = planned(Requests(0.1, MIN_NS, 1, dict.fromkeys(names, given_ns)), 1)
        assert low < blocks[0].doses[0] < high


def test_a_delay_that_was_given_is_not_below_the_shortest():
    names = queues.names(queues.SERVERS["pool"])
    blocks, _ = planned(Requests(0.1, MIN_NS, 1, dict.fromkeys(names, 300)), 2)
    for block in blocks:
        assert {d.delay_ns for a in block.arms[1:] for (d,) in a.delays} == {MIN_NS}


def test_an_experiment_keeps_its_newest_requests_and_says_since_when(monkeypatch):
    """Of all runs together; older ones use no memory."""
    monkeypatch.setattr(ledger, "MAX_REQUESTS", 250)
    runs = [measure.Run(None, number) for number in (1, 2)]
    record = censused(0)
    kept = ledger.Ledger(record, None, None, True, lambda _: None, runs)
    events = events_of(600)
    for k in range(6):
        runs[k >= 3].requests.append(events[100 * k : 100 * k + 100])
        kept.take_requests()
        newest = events[max(100 * k + 100 - 250, 0) : 100 * k + 100]
        assert np.array_equal(record.requests, newest)
        assert sum(len(part) for run in runs for part in run.requests) == len(newest)
    said = record.header["requests_dropped"]
    assert said == {"count": 350, "until_ns": int(events["begin_ns"][349])}


def test_without_a_good_slot_yet_there_is_a_rest():
    """The experiment is not over: None would mean that everything is decided."""
    record = censused(500)
    slots = replace(record.slots, good=np.zeros(len(record.slots), bool))
    requests = Requests(0.1, MIN_NS, 1)
    block = requests.next_block(replace(record, slots=slots))
    assert block is not None
    assert not block.arms
    assert not block.masks.any()
    assert is_drawn(requests.next_block(record))
