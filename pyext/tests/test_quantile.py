# SPDX-License-Identifier: MIT
# ruff: noqa: E402
"""The effect of a delay on the latency of requests, for servers with known answers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import schemas

np = pytest.importorskip("numpy")

import queues
from speed_bump.experiment import archive
from speed_bump.experiment.fit import latency, load
from speed_bump.experiment.fit.interval import HIDDEN, INCONCLUSIVE, Interval
from speed_bump.experiment.fit.verdict import verdict
from speed_bump.experiment.show import changes, html, text
from speed_bump.experiment.show import latency as show
from speed_bump.experiment.show.encode import dumps
from speed_bump.experiment.show.sentence import sentence

pytestmark = pytest.mark.one_python

SEEDS = 20
HELD = 18


def slot_units(server):
    """A tenth of a second."""
    return max(round(0.1 * server.rate), 30) if server.rate else 60


@cache
def seen(name, seed=0, cycles=1):
    server = queues.SERVERS[name]
    return queues.experiment(server, slot_units(server), seed, cycles)


@cache
def told(name, seed=0, cycles=1):
    return latency.request_latency(*seen(name, seed, cycles))


# bench/rank/latency_coverage.py --truth prints these, of 4,000,000 requests (batching,
# pool and closed: 400,000), in us.
TRUTH = {
    "M/D/1": {
        "parse": (50, 50, 50, 50),
        "work": (250, 200, 533, 1035),
        "log": (0, 0, 0, 0),
    },
    "M/M/1": {
        "parse": (100, 100, 100, 100),
        "work": (327, 257, 623, 1119),
        "log": (0, 0, 0, 0),
    },
    "near saturation": {
        "parse": (50, 50, 50, 50),
        "work": (679, 481, 1505, 2986),
        "log": (0, 0, 0, 0),
    },
    "pool": {
        "parse": (500, 500, 500, 500),
        "work": (871, 784, 1283, 1831),
        "log": (0, 0, 0, 0),
    },
    "batching": {
        "collate": (957, 950, 1185, 1288),
        "model": (698, 654, 1039, 1583),
        "log": (0, 0, 0, 0),
    },
    "two classes": {
        "work": (500, 500, 500, 500),
        "query": (322, 0, 0, 4000),
        "log": (0, 0, 0, 0),
    },
    "closed": {
        "parse": (0, 0, 0, 0),
        "work": (800, 800, 800, 800),
        "log": (0, 0, 0, 0),
    },
}


@pytest.mark.parametrize("name", sorted(TRUTH))
def test_intervals_hold_the_truth(name):
    """In 18 of 20 runs, for each function and statistic that has a number."""
    missed = {}
    for seed in range(SEEDS):
        for f in told(name, seed).findings:
            for key, interval in f.added_ns.items():
                true = TRUTH[name][f.name][latency.STATISTICS.index(key)] * 1000
                held = interval.low <= true <= interval.high
                missed[f.name, key] = missed.get((f.name, key), 0) + (not held)
    assert {key for _, key in missed} >= {"mean", "p50", "p90"}
    assert {at: n for at, n in missed.items() if n > SEEDS - HELD} == {}


def findings(name, seeds, cycles=1):
    return [told(name, seed, cycles) for seed in range(seeds)]


def verdicts(name, function, seeds=4, cycles=3):
    return [found.of(function).verdict for found in findings(name, seeds, cycles)]


def test_a_stage_before_the_queue_adds_to_every_request():
    assert verdicts("pool", "parse").count(latency.EVERY) >= 3


def test_a_worker_near_saturation_moves_the_queue():
    """A ms of work adds more than a ms, and none is called hidden."""
    said = verdicts("near saturation", "work")
    assert said.count(latency.QUEUE) >= 2
    assert HIDDEN not in said


def test_what_slow_requests_do_adds_to_the_slow_ones_alone():
    said = verdicts("two classes", "query")
    assert said.count(latency.SLOW_ONES) >= 2
    assert set(said) <= {latency.SLOW_ONES, INCONCLUSIVE}


def test_what_nothing_waits_for_is_hidden():
    said = verdicts("batching", "log")
    assert said.count(HIDDEN) >= 2
    assert set(said) <= {HIDDEN, INCONCLUSIVE}


def test_inconclusive_says_why_and_what_would_help():
    for name in ("M/M/1", "pool", "two classes"):
        for found in findings(name, 6):
            for f in found.findings:
                assert f.reason
                assert f.help or f.verdict != INCONCLUSIVE


@pytest.mark.parametrize("name", ["M/M/1", "batching", "pool", "near saturation"])
def test_requests_that_come_whatever_is_answered_are_an_open_loop(name):
    kinds = [found.load.kind for found in findings(name, 6)]
    assert kinds.count(load.OPEN) >= 5
    assert load.CLOSED not in kinds


def test_clients_that_wait_are_a_closed_loop():
    """Throughput changes as Little's law states."""
    found = told("closed")
    assert found.load.kind == load.CLOSED
    assert found.load.moves.low < 1 < found.load.moves.high + 0.1
    assert found.load.under_way == pytest.approx(4, rel=0.01)


def test_a_queue_that_grows_has_no_latency():
    server = replace(queues.SERVERS["M/M/1"], rate=1300)
    found = latency.request_latency(*queues.experiment(server, 130, 1, 1))
    assert found.load.kind == load.OVERLOADED
    assert {f.verdict for f in found.findings} == {INCONCLUSIVE}


def test_a_stage_that_takes_the_same_for_all_moves_quantiles_by_all_of_its_delay():
    """If all requests cross the old quantile, their number does not tell how far."""
    server = queues.Server(
        (queues.lognormal(0.005, 0.01),) * 2,
        (queues.Function("parse", "before", 0.003),),
        rate=200,
        workers=50,
    )
    found = latency.request_latency(*queues.experiment(server, 20, 1, 1)).of("parse")
    for key in ("mean", "p50", "p90"):
        added = found.added_ns[key]
        assert added.value == pytest.approx(3e6, rel=0.01)
        assert added.low <= 3e6 <= added.high
    assert found.per_ms("p50").value == pytest.approx(1, rel=0.01)
    assert found.verdict == latency.EVERY


def test_errors_are_those_of_slots_and_not_of_requests():
    """Requests of a slot share a queue: they are not independent."""
    _, events = seen("near saturation", 0, 3)
    own = told("near saturation", 0, 3).of("log").added_ns["mean"].half
    took = events["duration_ns"].astype(float)
    apart = 2 * took.std() / np.sqrt(0.2 * len(took))
    assert own > 5 * apart


def test_a_function_that_was_never_called_is_inconclusive():
    record, events = seen("pool")
    record = replace(record, idle=("gone",))
    found = latency.request_latency(record, events).of("gone")
    assert (found.verdict, found.help != "") == (INCONCLUSIVE, True)
    assert "never called" in found.reason


def test_no_requests_is_said():
    record, events = seen("pool")
    for f in latency.request_latency(record, events[:0]).findings:
        assert f.verdict == INCONCLUSIVE
        assert "no request" in f.reason


def test_requests_that_take_longer_for_no_delay_are_said():
    """The sham delays nothing; a few slow requests in its slots are chance."""
    record, events = seen("pool")
    slots = record.slots
    on = (slots.mask & np.uint64(1)).astype(bool)
    slot = np.searchsorted(slots.end_ns, events["begin_ns"].astype(np.int64))
    mine = on[np.minimum(slot, len(on) - 1)]
    spread = int(events["duration_ns"].std())

    def alarms(which, by):
        changed = events.copy()
        changed["duration_ns"][which] += by
        found = latency.request_latency(record, changed)
        said = any("nothing seems to add" in text for text in found.warnings)
        assert said == found.sham_alarms
        return said

    assert not alarms(mine, 0)
    assert not alarms(np.flatnonzero(mine)[:3], spread)
    assert alarms(mine, spread)


def test_a_record_keeps_its_requests(tmp_path):
    record, events = seen("pool")
    record = replace(record, header={"latency": ["serve:handle"]}, requests=events)
    path = str(tmp_path / "record")
    archive.save(record, path)
    again = archive.load(path)
    assert np.array_equal(again.requests, events)
    assert show.as_json(show.of(again)) == show.as_json(show.of(record))
    archive.save(replace(record, requests=None), path)
    assert archive.load(path).requests is None


def test_all_reports_show_the_latency():
    """Text, Markdown, the page and JSON; a record without requests has none of it."""
    record, events = seen("pool")
    header = {"latency": ["serve:handle"], "command": ["serve"]}
    record = replace(record, header=header, requests=events)
    judged = verdict(record)
    found = show.of(record)[0]
    reports = (text.text, text.markdown, html.page)
    for report in reports:
        said = report(record, judged).replace("&#x27;", "'")
        assert "serve:handle" in said
        flat = " ".join(said.split())
        for line in show.paragraphs(found):
            assert line in flat
        for cell in show.cells(found.of("work")):
            assert cell in said
    said = schemas.read("report", dumps(text.as_json(record, judged)))
    assert said["latency"][0]["name"] == "serve:handle"
    plain = replace(record, header={"command": ["serve"]}, requests=None)
    for report in reports:
        assert "throughput moves" not in report(plain, judged)
    assert text.as_json(plain, judged)["latency"] == []


def test_the_unit_of_what_is_added_is_that_of_the_delay():
    """JSON: ns at the dose, ms per ms; their quotient is the delay of a call."""
    record, events = seen("pool")
    record = replace(record, header={"latency": ["serve:handle"]}, requests=events)
    for f in show.as_json(show.of(record))[0]["findings"]:
        assert f["delivered_per_request_ns"] == pytest.approx(
            f["delay_ns"] * f["calls_per_request"], rel=1e-6
        )
        for key, added in f["added_ns"].items():
            per_ms = f["per_ms"][key]
            assert per_ms["value"] * f["delay_ns"] == pytest.approx(added["value"])
            assert per_ms["low"] <= per_ms["value"] <= per_ms["high"]


def test_a_single_request_is_no_reason_to_fail():
    record, events = seen("pool")
    for f in latency.request_latency(record, events[len(events) // 2 :][:1]).findings:
        assert f.verdict == INCONCLUSIVE
        assert f.reason
        assert f.help


@pytest.mark.parametrize("when", ["before", "after", "in a bad slot"])
def test_requests_that_came_in_no_slot_are_said(when):
    """A report of such a record can be made."""
    record, events = seen("pool")
    end = record.slots.end_ns
    events = events[:20].copy()
    events["begin_ns"] = {
        "before": 1, "after": end[-1] + 1, "in a bad slot": end[9] + 1
    }[when]  # fmt: skip
    good = record.slots.good.copy()
    good[10] = False
    slots = replace(record.slots, good=good)
    header = {"latency": ["serve:handle"], "command": ["serve"]}
    record = replace(record, slots=slots, header=header, requests=events)
    for f in latency.request_latency(record, events).findings:
        assert f.verdict == INCONCLUSIVE
        assert f.reason == "no request came while slots were measured"
        assert f.help
    assert "while slots were measured" in " ".join(
        text.text(record, verdict(record)).split()
    )


def test_a_request_of_a_rare_kind_waits_for_what_it_calls():
    """The function is called for other requests too; each request waits for one call."""
    server = queues.Server(
        (queues.lognormal(0.004, 0.02),) * 2,
        (queues.Function("parse", "before", 0.002),),
        rate=1500,
        workers=100,
    )
    record, events = queues.experiment(server, 200, 1, 2)
    draw = np.random.default_rng(5)
    rare = events[draw.random(len(events)) < 1 / 15]
    for kind in (events, rare):
        found = latency.request_latency(record, kind).of("parse")
        assert found.per_ms("mean").value == pytest.approx(1, rel=0.05)
        assert found.verdict == latency.EVERY, found.reason
    assert found.calls == pytest.approx(15, rel=0.1)


def test_slots_of_which_requests_were_dropped_are_not_used():
    """Their calls would be divided by the remaining requests."""
    record, events = seen("pool", 0, 3)
    whole = told("pool", 0, 3).of("parse")
    newest = np.sort(events, order="begin_ns")[-len(events) // 3 :]
    found = latency.request_latency(record, newest).of("parse")
    assert found.calls == pytest.approx(1, abs=0.05)
    assert found.verdict == whole.verdict == latency.EVERY
    assert found.arrives.low < whole.arrives.value < found.arrives.high
    assert found.slots < 0.6 * whole.slots
    # One that took very long, and arrived when others were dropped.
    odd = np.concatenate([events[:1], newest])
    dropped = {"count": 1, "until_ns": int(newest["begin_ns"][0]) - 1}
    record = replace(record, header={"requests_dropped": dropped})
    assert latency.request_latency(record, odd).of("parse").slots == found.slots


def test_lost_requests_do_not_change_what_a_call_adds():
    """With two kinds too: the number of lost requests is known for both together."""
    record, events = seen("pool", 0, 3)
    whole = told("pool", 0, 3).of("parse")
    draw = np.random.default_rng(3)
    some = events[draw.random(len(events)) < 1 / 3]
    lost = len(events) - len(some)
    kinds = some.copy()
    kinds["name"] = np.arange(len(some)) % 2
    both = replace(record, requests=kinds)
    one = kinds[kinds["name"] == 1]
    for found, calls in (
        (latency.request_latency(record, some, "", lost), 1),
        (latency.request_latency(both, one, "", lost), 2),
    ):
        f = found.of("parse")
        assert f.calls == pytest.approx(calls, abs=0.1)
        assert f.verdict == whole.verdict == latency.EVERY
        low, high = (calls * end for end in (f.arrives.low, f.arrives.high))
        assert low < whole.arrives.value < high
        assert any("lost" in text for text in found.warnings)


def test_the_advice_of_json_is_that_of_the_report():
    """In an open loop throughput does not change, so nothing would matter by it."""
    record, events = seen("pool", 0, 3)
    header = {"latency": ["serve:handle"], "command": ["serve"]}
    record = replace(record, header=header, requests=events)
    judged = verdict(record)
    said = text.as_json(record, judged)["advice"]
    assert "to the mean" in said
    assert said in html.page(record, judged)
    assert said in " ".join(text.text(record, judged).split())
    plain = replace(record, requests=None)
    assert text.as_json(plain, judged)["advice"] == sentence(plain, judged)


def test_the_sentence_has_the_furthest_quantile_that_moves_for_certain():
    def said(**added):
        one = latency.Finding(
            "serve:parse",
            latency.EVERY,
            delay_ns=1e6,
            added_ns={key: Interval(*(1e6 * x for x in at)) for key, at in added.items()},
        )
        return show.sentence(latency.RequestLatency("serve:handle", findings=[one]))

    mean, noise = (1, 0.8, 1.2), (9, -20, 30)
    assert said(mean=mean, p50=(2, 1, 3), p90=(3, 1, 5), p99=noise).endswith(
        "1 ms to the mean and 3 ms to the p90"
    )
    assert said(mean=mean, p50=(2, 1, 3), p90=noise).endswith("and 2 ms to the p50")
    assert said(mean=mean, p50=noise, p99=noise).endswith("1 ms to the mean")
    assert said(mean=mean).endswith("1 ms to the mean")


def test_a_comparison_says_that_latency_is_not_compared():
    record, events = seen("pool")
    record = replace(record, requests=events)
    plain = replace(record, requests=None)
    line = "latency is not compared"
    found = changes.compare(record, record)
    assert changes.text(found).count(line) == 1
    assert sum(line in note for note in changes.as_json(found, ("a", "b"))["notes"]) == 1
    assert line not in changes.text(changes.compare(plain, plain))
