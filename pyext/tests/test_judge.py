# SPDX-License-Identifier: MIT
from __future__ import annotations

import dataclasses
import io
import math
import random

import pytest
import simulated
from speed_bump.experiment import records, show
from speed_bump.experiment.judge import Judge
from speed_bump.experiment.records import JOINT, SHAM, RecordError, Writer

UNIT = simulated.UNIT_NS


def finding(found, name="m:f"):
    result = Judge(found).verdict().of(name)
    assert result is not None
    return result


def test_what_arrives_is_linear():
    inside = 0
    for seed in range(40):
        found = simulated.record(seed)
        simulated.add(found, random.Random(seed), "m:f", lambda x: x)
        f = finding(found)
        assert f.shape == "linear"
        assert f.matters
        inside += f.criticality.low <= 1 <= f.criticality.high
        # A third of the samples were in it.
        assert f.headroom.value == pytest.approx(0.3 * f.criticality.value, rel=1e-6)
    assert inside >= 36


def test_a_hinge_and_its_slack():
    inside = hidden = 0
    slack = 0.5 * UNIT
    for seed in range(40):
        found = simulated.record(seed)
        simulated.add(
            found,
            random.Random(seed),
            "m:f",
            lambda x: max(0.0, x - slack),
            shares=(0.1, 0.3, 0.6, 1.2),
            pairs=160,
        )
        f = finding(found)
        assert f.shape == "hinge"
        inside += f.slack_ns.low <= slack <= f.slack_ns.high
        hidden += f.criticality.low <= 0 <= f.criticality.high
        assert not f.matters or f.criticality.low > 0
    assert inside >= 36
    assert hidden >= 36


def test_what_never_arrives_has_more_slack_than_was_tried():
    found = simulated.record(1)
    simulated.add(found, random.Random(1), "m:f", lambda x: 0.0, shares=(0.1, 0.6))
    f = finding(found)
    assert f.shape == "hinge"
    assert math.isinf(f.slack_ns.high)
    assert f.verdict == "hinge, slack over 600 µs"
    assert not f.matters


def test_what_may_be_hidden_is_not_called_linear():
    """In between it takes more data; the label must not be a matter of luck."""
    shapes = set()
    for seed in range(40):
        found = simulated.record(seed)
        simulated.add(found, random.Random(seed), "m:f", lambda x: 0.05 * x, pairs=40)
        f = finding(found)
        shapes.add(f.shape)
        assert f.shape != "inconclusive" or f.needs_s > 0
    assert shapes == {"hinge", "inconclusive"}


def test_amplified_and_negative():
    for effect, shape in ((lambda x: 2 * x, "amplified"), (lambda x: -x / 2, "negative")):
        found = simulated.record(1)
        simulated.add(found, random.Random(1), "m:f", effect)
        assert finding(found).shape == shape


def test_too_little_is_inconclusive_and_says_what_would_do():
    found = simulated.record(1)
    simulated.add(found, random.Random(1), "m:f", lambda x: 0.5 * x, pairs=16)
    draw = random.Random(2)
    for i, pair in enumerate(found.pairs):
        # Far noisier than the usual.
        both = {
            side: simulated.window(
                8 * UNIT * draw.uniform(0.5, 2), 8, getattr(pair, side).measured_ns / 8
            )
            for side in ("off", "on")
        }
        found.pairs[i] = records.Pair(**{**pair.__dict__, **both})
    f = finding(found)
    assert f.shape == "inconclusive"
    assert not f.matters
    assert f.needs_s > 0
    assert "needs about" in f.verdict
    line = show.rows(Judge(found).verdict())[0]
    assert line[3:5] == ["-", "-"]  # never a number


def test_longer_windows_count_where_short_ones_hide():
    found = simulated.record(1)
    draw = random.Random(1)
    simulated.add(found, draw, "m:f", lambda x: 0.0, pairs=60)
    simulated.add(found, draw, "m:f", lambda x: x, pairs=60, length_ns=32_000_000)
    f = finding(found)
    assert f.length_ns == 32_000_000
    assert 0.85 < f.criticality.low < f.criticality.high < 1.15
    assert any("buffers" in note for note in Judge(found).verdict().notes)


def test_shams_raise_no_alarm():
    alarms = 0
    for seed in range(200):
        found = simulated.record(seed)
        draw = random.Random(seed)
        for _ in range(40):
            found.pairs.append(
                simulated.pair(draw, ("m:f",), 0.1, lambda x: 0.0, kind=SHAM)
            )
        alarms += Judge(found).verdict().sham_alarm
    assert alarms <= 10


def test_a_sham_with_an_effect_is_an_alarm():
    found = simulated.record(1)
    draw = random.Random(1)
    for _ in range(60):
        found.pairs.append(
            simulated.pair(draw, ("m:f",), 0.1, lambda x: 0.05 * UNIT, kind=SHAM)
        )
    verdict = Judge(found).verdict()
    assert verdict.sham_alarm
    assert any("do not trust" in note for note in verdict.notes)


@pytest.mark.parametrize(
    ("effect", "word"), [(lambda x: x, "serial"), (lambda x: x / 2, "parallel")]
)
def test_two_at_once(effect, word):
    found = simulated.record(1, ("m:a", "m:b"))
    draw = random.Random(1)
    for name in ("m:a", "m:b"):
        simulated.add(found, draw, name, lambda x: x)
    for _ in range(60):
        found.pairs.append(simulated.pair(draw, ("m:a", "m:b"), 0.3, effect, kind=JOINT))
    together = Judge(found).verdict().together
    assert [t.verdict.split(":")[0] for t in together] == [word]


def test_the_one_with_most_headroom_comes_first():
    found = simulated.record(1, ("m:a", "m:b"))
    draw = random.Random(1)
    simulated.add(found, draw, "m:a", lambda x: 0.0)
    simulated.add(found, draw, "m:b", lambda x: x)
    assert [f.name for f in Judge(found).verdict().findings] == ["m:b", "m:a"]


def test_a_file_is_judged_as_the_record_was():
    file = io.StringIO()
    simulated_record = simulated.record(5)
    writer = Writer(simulated_record.header, file)
    writer.census(simulated_record.censuses[0])
    simulated.add(simulated_record, random.Random(5), "m:f", lambda x: x)
    for pair in simulated_record.pairs:
        writer.pair(pair)
    writer.end({"runs": 1, "seconds": 1.0})
    lines = file.getvalue().splitlines()
    again = records.parse(lines, "file")
    assert show.text(again, Judge(again).verdict()) == show.text(
        writer.record, Judge(writer.record).verdict()
    )
    # The last line of a run that was killed may be cut off; another may not.
    assert len(records.parse([*lines[:-1], lines[-1][:9]], "file").pairs) == 100
    with pytest.raises(RecordError, match="file:5"):
        records.parse([*lines[:4], lines[4][:30], *lines[5:]], "file")
    with pytest.raises(RecordError, match="not a file of speed-bump"):
        records.parse(["hello"], "file")


def contend(found, change_off, change_on):
    """What the windows say of the machine, put into all pairs of a record."""
    for i, pair in enumerate(found.pairs):
        off = dataclasses.replace(pair.off, **change_off(pair.off))
        on = dataclasses.replace(pair.on, **change_on(pair.on))
        found.pairs[i] = dataclasses.replace(pair, off=off, on=on)


def share_of(name, part):
    return lambda window: {name: int(part * window.clock_ns)}


def nothing(window):
    return {}


@pytest.mark.parametrize(
    ("off", "on", "why"),
    [
        (*[share_of("run_delay_ns", 0.3)] * 2, "waited for a CPU 30% of the time"),
        (*[share_of("stall_ns", 0.4)] * 2, "somebody waited for a CPU 40%"),
        (*[share_of("steal_ns", 0.1)] * 2, "the hypervisor took 10%"),
        (nothing, lambda w: {"measured_ns": 2 * w.measured_ns}, "took 2.0 times"),
        (
            nothing,
            lambda w: {"run_delay_ns": w.measured_ns // 5},
            "threads waited +0.20 of each delay",
        ),
    ],
)
def test_no_label_where_the_machine_is_contended(off, on, why):
    for effect in (lambda x: x, lambda x: 2 * x, lambda x: 0.0, lambda x: -x / 2):
        found = simulated.record(1)
        simulated.add(found, random.Random(1), "m:f", effect)
        assert finding(found).shape != "inconclusive"
        contend(found, off, on)
        f = finding(found)
        assert f.shape == "inconclusive"
        assert not f.matters
        assert not f.decided
        assert why in f.verdict
        assert show.rows(Judge(found).verdict())[0][3:5] == ["-", "-"]
        assert (
            show.as_json(found, Judge(found).verdict())["functions"][0]["criticality"]
            is None
        )


def test_a_little_waiting_is_no_contention():
    found = simulated.record(1)
    simulated.add(found, random.Random(1), "m:f", lambda x: x)
    contend(found, share_of("run_delay_ns", 0.03), share_of("run_delay_ns", 0.03))
    assert finding(found).shape == "linear"


@pytest.mark.parametrize(("asleep", "shape"), [(1.0, "linear"), (0.3, "inconclusive")])
def test_delays_off_the_cpu_must_say_the_same(asleep, shape):
    found = simulated.record(1)
    draw = random.Random(1)
    simulated.add(found, draw, "m:f", lambda x: x)
    for _ in range(40):
        pair = simulated.pair(draw, ("m:f",), 0.3, lambda x: asleep * x)
        found.pairs.append(dataclasses.replace(pair, mode="sleep"))
    f = finding(found)
    assert f.shape == shape
    assert (shape == "linear") == ("contended" not in f.verdict)


@pytest.mark.parametrize(("pairs", "decided"), [(24, False), (60, True)])
def test_a_few_pairs_that_agree_are_no_final_answer(pairs, decided):
    found = simulated.record(1)
    simulated.add(found, random.Random(1), "m:f", lambda x: x, pairs=pairs)
    for i, pair in enumerate(found.pairs):
        # No noise at all.
        on = simulated.window(8 * (UNIT + pair.share * UNIT) + i, 8, pair.share * UNIT)
        off = simulated.window(8 * UNIT, 8, 0)
        found.pairs[i] = dataclasses.replace(pair, off=off, on=on)
    f = finding(found)
    assert f.shape == "linear"
    assert f.decided == decided


def test_a_few_delays_off_the_cpu_contradict_nobody():
    found = simulated.record(1)
    draw = random.Random(1)
    simulated.add(found, draw, "m:f", lambda x: x)
    for _ in range(10):
        pair = simulated.pair(draw, ("m:f",), 0.3, lambda x: 0.3 * x)
        found.pairs.append(dataclasses.replace(pair, mode="sleep"))
    assert finding(found).shape == "linear"


def test_a_delay_that_was_interrupted_for_long_does_not_outweigh_the_others():
    found = simulated.record(1)
    simulated.add(found, random.Random(1), "m:f", lambda x: x)
    long = 400 * UNIT
    for i in (10, 40, 70):
        on = found.pairs[i].on
        on = dataclasses.replace(
            on,
            measured_ns=on.measured_ns + long,
            time_ns=on.time_ns + long,
            clock_ns=on.clock_ns + long,
        )
        found.pairs[i] = dataclasses.replace(found.pairs[i], on=on)
    f = finding(found)
    assert f.shape == "linear"
    assert f.criticality.low <= 1 <= f.criticality.high
    assert f.busy < 1.05


def test_a_sham_with_an_effect_takes_all_labels():
    found = simulated.record(1)
    draw = random.Random(1)
    simulated.add(found, draw, "m:f", lambda x: x)
    for _ in range(60):
        found.pairs.append(
            simulated.pair(draw, ("m:f",), 0.1, lambda x: 0.05 * UNIT, kind=SHAM)
        )
    assert finding(found).shape == "inconclusive"
