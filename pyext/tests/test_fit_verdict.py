# SPDX-License-Identifier: MIT
# ruff: noqa: E402
"""Verdicts: correct words for numbers, and none if nothing is known."""

from __future__ import annotations

import math

import pytest

np = pytest.importorskip("numpy")

import experiments
import model
from speed_bump.experiment.fit import number, slack, ties
from speed_bump.experiment.fit.columns import Column
from speed_bump.experiment.fit.contention import (
    DELIVERED,
    Contention,
    contention,
    delivered,
)
from speed_bump.experiment.fit.effects import Effect, Effects
from speed_bump.experiment.fit.interval import (
    THRESHOLD,
    Interval,
    chi_square_tail,
    discoveries,
    quantile,
    upper_tail,
)
from speed_bump.experiment.fit.verdict import label_of, verdict
from speed_bump.experiment.record import Arm, Block, Delay, Machine, Record, SelfTime
from speed_bump.experiment.slots import plan
from speed_bump.experiment.slots.stages import Options, Stages
from test_fit_effects import block, recorded

pytestmark = pytest.mark.one_python


def sound(found):
    """Properties of every verdict."""
    for finding in found.findings:
        assert finding.reason
        assert finding.verdict in ("matters", "partly", "hidden", "inconclusive")
        if finding.verdict == "inconclusive":
            assert finding.help
        interval = finding.criticality
        if interval is not None:
            assert math.isfinite(interval.low) and math.isfinite(interval.high)
            assert interval.low <= interval.value <= interval.high
    return found


def test_labels_of_intervals():
    assert label_of(Interval(0.0, -0.05, 0.09)) == "hidden"
    assert label_of(Interval(0.5, 0.4, 0.6)) == "partly"
    assert label_of(Interval(1.0, 0.85, 1.15)) == "matters"
    assert label_of(Interval(0.8, 0.6, 1.0)) == "matters"
    assert label_of(Interval(0.1, 0.0, 0.2)) == "inconclusive"
    assert THRESHOLD == 0.1


def test_tails():
    # Tables of Student's t and of chi-square.
    assert quantile(10) == pytest.approx(2.228, abs=0.001)
    assert upper_tail(2.228, 10) == pytest.approx(0.025, abs=0.0002)
    assert upper_tail(-1.0, 10_000) == pytest.approx(0.8413, abs=0.0002)
    assert chi_square_tail(5.991, 2) == pytest.approx(0.05, abs=0.003)
    assert chi_square_tail(31.41, 20) == pytest.approx(0.05, abs=0.001)
    assert discoveries([0.01, 0.04, 0.03, 0.5]) == pytest.approx(
        [0.04, 0.16 / 3, 0.16 / 3, 0.5]
    )


def test_doses_whose_errors_are_the_same_are_not_joined():
    """Their covariance has no inverse: the number is that of one of them."""
    functions = ("m:f",)
    some = [
        Effect(Column(functions, dose), 0.5, 0.1, 300, 100) for dose in (0.1, 0.12, 0.14)
    ]
    place = {effect.column: k for k, effect in enumerate(some)}
    found = Effects(None, None, some, np.full((3, 3), 0.01))
    joined = number._pooled(some, found, place, 1.0)
    assert (joined.c, joined.se) == (0.5, 0.1)
    found.cov = np.diag([0.01] * 3)
    joined = number._pooled(some, found, place, 1.0)
    assert joined.c == pytest.approx(0.5) and joined.se == pytest.approx(0.1 / 3**0.5)


@pytest.mark.parametrize(
    ("less", "jumps"), [(1.95, False), (2.0, False), (2.6, False), (6.0, True)]
)
def test_a_jump_is_told_by_shorter_delays(less, jumps):
    """Where whole periods are lost, 3 times as much of a third of the delay arrives.

    Somewhat more of a short delay, as of what comes in steps, is no jump, and the number
    is that of the longer one.
    """
    some = [
        Effect(Column(("m:f",), dose), c, 0.02, 300, 100)
        for dose, c in ((0.1, less), (0.3, 2.0))
    ]
    assert number.is_certain(some, 1.0) != jumps
    place = {effect.column: k for k, effect in enumerate(some)}
    found = Effects(None, None, some, np.diag([0.0004] * 2))
    joined = number._pooled(some, found, place, 1.0)
    assert joined.between == jumps
    assert joined.c == pytest.approx(2.0, abs=0.05)


def test_what_matters_and_what_is_hidden():
    run = recorded(model.sham, "heavy", 1)
    run.record.self_times["m:f2"] = SelfTime(0.3, 1000)
    found = sound(verdict(run.record))
    assert [finding.verdict for finding in found.findings] == [
        "matters",
        "hidden",
        *["matters"] * 4,
    ]
    assert found.sham is not None and found.sham.low < 0 < found.sham.high
    assert found.findings[1].false_discovery > 0.05 > found.findings[0].false_discovery
    third = found.of("m:f2")
    assert third.headroom.low < 0.3 * third.criticality.value < third.headroom.high
    assert third.headroom.value == pytest.approx(0.3 * third.criticality.value)
    assert 0.05 < found.slowdown < 0.2
    assert 0.25 < third.dose < 0.35 and third.delayed > 20


def test_threads_side_by_side_each_wait_for_their_own_delays():
    """Of a function with nothing in common, a lock, and one that is hidden."""

    def program(draw):
        return model.Weighted(draw, [1 / 8, 1.0, 0.0])

    run = recorded(program, "quiet", 1)
    alone = sound(verdict(run.record))
    assert alone.findings[0].verdict != "matters"
    run.record.side_by_side = 8.0
    found = sound(verdict(run.record))
    own, lock, hidden = found.findings
    assert own.verdict == "matters" and "0.12 is all of it" in own.reason
    assert lock.verdict == "matters" and lock.shape != "amplified"
    assert hidden.verdict in ("hidden", "inconclusive")
    # What is printed is of the throughput of all threads, and so is the headroom.
    for now, before in zip(found.findings, alone.findings, strict=True):
        assert now.criticality.value == pytest.approx(before.criticality.value)
        assert now.headroom.value == pytest.approx(before.headroom.value)


def test_an_experiment_with_threads_side_by_side_ends():
    """Though what all of them wait for has a large number, with a large error."""

    def program(draw):
        return model.Weighted(draw, [1 / 4, 1.0, 1.0])

    run, found = model.experiment(program, "quiet", 1, budget_s=300, threads=4.0)
    assert {f.verdict for f in sound(found).findings} == {"matters"}
    assert run.time_ns < 200e9


@pytest.mark.parametrize(("waited", "late"), [(0.02, False), (0.3, True)])
def test_a_thread_that_hardly_waits_for_a_cpu_is_not_late(waited, late):
    """Though it computes for even less, and so has a small share of a CPU."""
    how = Contention(0.95, None, None, "", "", "", reporter=0.2, waited=waited)
    assert how.is_late is late


def test_an_amplified_function_has_its_late_effects_too():
    held = 0
    for seed in range(6):
        found = sound(model.experiment(model.Amplified, "heavy", seed)[1])
        first = found.findings[0]
        assert first.verdict == "matters" and first.shape == "amplified"
        held += first.criticality.low < 2.5 < first.criticality.high
    assert held >= 5


@pytest.mark.parametrize(
    ("computes", "words"), [(True, "computes for longer"), (False, "others wait")]
)
def test_where_more_than_a_delay_arrives(computes, words):
    """In the thread that reports units, or in others that wait for the same lock."""
    run = recorded(lambda draw: model.Weighted(draw, [1.5, 0.0, 1.0]), "heavy", 1)
    slots = run.record.slots
    once = slots.delivered_ns @ np.array([1.5 if computes else 1.0, 0.0, 1.0])
    slots.cpu_ns = 0.8 * run.unit_ns + once
    slots.wait_ns = np.zeros(len(slots))
    first, _, third = sound(verdict(run.record)).findings
    assert first.shape == "amplified" and words in first.reason
    assert "by more than" not in third.reason


def test_nearly_balanced_has_no_labels_and_no_numbers():
    for seed in range(3):
        run = recorded(lambda draw: model.starved(draw, 0.1), "heavy", seed)
        found = sound(verdict(run.record))
        for finding in found.findings:
            assert finding.verdict == "inconclusive"
            assert finding.criticality is None
            assert "balanced" in finding.reason


def test_part_of_a_large_delay_may_be_slack():
    """The interval of a small delay includes 0, so there is no label."""
    for seed in range(3):
        run = recorded(lambda draw: model.Stages(draw, depth=1), "quiet", seed)
        second = sound(verdict(run.record)).findings[1]
        assert second.verdict in ("inconclusive", "hidden")
        assert second.criticality.low <= 0


def test_a_few_slow_slots_of_the_sham_prove_nothing():
    """Among 24 functions it has few slots, on a busy machine some of them are slow."""
    run = recorded(model.Program, "heavy", 2)
    slots = run.record.slots
    on = np.flatnonzero(slots.mask & np.uint64(1))
    slots.mask[on[3:]] &= ~np.uint64(1)
    slots.time_ns[on[:3]] += 0.5 * model.UNIT_NS
    found = sound(verdict(run.record))
    assert {f.verdict for f in found.findings} == {"matters"}


def test_a_sham_that_costs_something_takes_labels_back():
    run = recorded(model.Program, "heavy", 2)
    slots = run.record.slots
    on = (slots.mask & np.uint64(1)).astype(float)
    slots.time_ns = slots.time_ns + on * 0.2 * model.UNIT_NS
    found = sound(verdict(run.record))
    assert all(f.criticality is None or f.criticality.half > 0.3 for f in found.findings)
    assert any("sham" in warning for warning in found.warnings)
    slots.time_ns = slots.time_ns + on * 0.2 * model.UNIT_NS
    found = sound(verdict(run.record))
    assert {finding.verdict for finding in found.findings} == {"inconclusive"}
    assert "sham" in found.findings[0].reason


def test_delays_that_took_other_times_than_asked_take_labels_back():
    run = recorded(model.Program, "heavy", 2)
    slots = run.record.slots
    slots.time_ns = slots.time_ns + 0.5 * slots.delivered_ns.sum(1)
    slots.delivered_ns = 1.5 * slots.delivered_ns
    found = sound(verdict(run.record))
    assert {finding.verdict for finding in found.findings} == {"inconclusive"}
    assert "1.50 times" in found.findings[0].reason


def test_of_delays_that_sleep_what_was_delivered_counts():
    """They end late where the program is slow for the same reason, the GIL or a CPU."""
    run = recorded(model.sham, "quiet", 3, cycles=8)
    record, slots = run.record, run.record.slots
    record.header["sleeping"] = list(record.functions)
    slow = 0.3 * np.random.default_rng(3).random(len(slots.time_ns)) * model.UNIT_NS
    late = np.where(slots.delivered_ns > 0, 0.5 * slow[:, None], 0)
    slots.time_ns = slots.time_ns + slow + late.sum(1) - late[:, 1]
    slots.delivered_ns = slots.delivered_ns + late
    found = sound(verdict(record))
    assert delivered(record).ratios["m:f0"] > DELIVERED[1]
    assert [finding.verdict for finding in found.findings] == [
        "matters",
        "hidden",
        *["matters"] * 4,
    ]
    for finding in found.findings:
        true = float(finding.verdict == "matters")
        assert finding.criticality.value == pytest.approx(true, abs=0.15)
    slots.delivered_ns = 2 * slots.delivered_ns
    assert {finding.verdict for finding in verdict(record).findings} == {"inconclusive"}


def test_a_call_may_be_counted_in_another_slot_than_it_is_delayed_in():
    """Of a function that is called once in a slot, in a minute of long slots."""
    draw = np.random.default_rng(1)
    run = model.Run(model.Program(draw, 2), "quiet", draw, 0.5e9)
    run.program.calls = lambda: np.array([1.0, 1.0])
    run.undelayed(20)
    block = Stages(Options(60), 1).next_block(run.record)
    assert block is not None
    run.run(block, most_ns=30e9)
    slots = run.record.slots
    on = np.flatnonzero(slots.delivered_ns[:, 0] > 0)[:3]
    # A minute that was over after three slots of it.
    slots.good[: on[-1] + 1] = True
    slots.good[on[-1] + 1 :] = False
    slots.calls[on[1], 0] += 1
    sizes = slots.delivered_ns[on, 0]
    assert delivered(run.record).ratios["m:f0"] == 1.0
    slots.delivered_ns[on, 0] = sizes / 2
    assert delivered(run.record).ratios["m:f0"] < 0.5
    slots.delivered_ns[on, 0] = 2 * sizes
    assert delivered(run.record).ratios["m:f0"] > 1.2


def test_two_delayed_slots_can_be_enough():
    draw = np.random.default_rng(1)
    run = model.Run(model.sham(draw), "quiet", draw, 0.5e9)
    run.undelayed(20)
    block = Stages(Options(60), 1).next_block(run.record)
    assert block is not None
    run.run(block)
    slots = run.record.slots
    # Of each function the first two, and what is undelayed.
    for k in range(slots.delivered_ns.shape[1]):
        slots.good[np.flatnonzero(slots.delivered_ns[:, k] > 0)[2:]] = False
    found = verdict(run.record).findings
    assert [one.verdict for one in found[:3]] == ["matters", "hidden", "matters"]


@pytest.mark.parametrize(
    "machine, word",
    [
        (Machine(share=0.25, threads=1.0, cpus=2), "waited"),
        (Machine(share=0.08, threads=1.0, cpus=2), "8%"),
        (Machine(share=1.0, threads=1.0, cpus=2, steal=0.4), "hypervisor"),
    ],
)
def test_a_machine_that_others_use_is_refused_in_words(machine, word):
    run = recorded(model.Program, "heavy", 2)
    run.record.machine = machine
    found = sound(verdict(run.record))
    assert {finding.verdict for finding in found.findings} == {"inconclusive"}
    assert word in found.findings[0].reason


def test_what_the_hypervisor_takes_makes_answers_wider():
    """Cloud machines always lose a few percent."""
    run = recorded(model.sham, "heavy", 2)
    before = verdict(run.record)
    run.record.machine = Machine(share=1.0, threads=1.0, cpus=2, steal=0.1)
    found = sound(verdict(run.record))
    assert [f.verdict for f in found.findings] == [f.verdict for f in before.findings]
    for wide, narrow in zip(found.findings, before.findings, strict=True):
        less = 0.1 * abs(narrow.criticality.value)
        assert wide.criticality.half >= narrow.criticality.half + less - 1e-9
    assert any("hypervisor took 10%" in warning for warning in found.warnings)


def test_others_on_the_machine_where_waits_are_not_known():
    """Between the effect on the wall time and its share: the truth is in between."""
    run = recorded(model.sham, "heavy", 2)
    run.record.machine = Machine(share=0.8, threads=1.0, cpus=2)
    found = sound(verdict(run.record))
    labels = [finding.verdict for finding in found.findings]
    assert labels[0] == "matters" and labels[1] == "hidden"
    interval = found.findings[0].criticality
    assert interval.low < 0.8 and interval.high > 1.0


def test_a_few_slots_whose_waits_are_not_known():
    """Such slots are gaps; the others are still used."""
    run = recorded(model.sham, "heavy", 2)
    record, slots = run.record, run.record.slots
    record.machine = Machine(share=0.8, threads=1.0, cpus=2)
    slots.cpu_ns, slots.wait_ns = slots.time_ns.copy(), np.zeros(len(slots))
    for lost in range(40, len(slots), 41):
        slots.cpu_ns[lost] = np.nan
    labels = [finding.verdict for finding in sound(verdict(record)).findings]
    assert labels[0] == "matters" and labels[1] == "hidden"


def test_a_function_whose_delays_went_wrong_is_no_others_fault():
    run = recorded(model.Program, "heavy", 2)
    slots = run.record.slots
    slots.time_ns = slots.time_ns + 0.5 * slots.delivered_ns[:, 1]
    slots.delivered_ns[:, 1] = 1.5 * slots.delivered_ns[:, 1]
    labels = [finding.verdict for finding in sound(verdict(run.record)).findings]
    assert labels[1] == "inconclusive" and labels.count("matters") == 5


def test_slots_in_which_no_delay_was_in_force():
    """Delays end late if the tool has no CPU for long: this is not missing CPU time."""
    run = recorded(model.Program, "heavy", 2)
    slots = run.record.slots
    gone = (slots.number >= 300) & (slots.number < 420)
    slots.time_ns = slots.time_ns - np.where(gone, slots.delivered_ns.sum(1), 0)
    slots.delivered_ns[gone] = 0
    found = sound(verdict(run.record))
    assert [finding.verdict for finding in found.findings] == ["matters"] * 6
    assert found.delivered_share == pytest.approx(1, abs=0.01)
    assert any("no delay was in force" in warning for warning in found.warnings)


def test_slots_in_which_the_program_did_something_else():
    """A few slots have a thousand times as many calls, and a phase of the program."""
    run = recorded(model.Program, "heavy", 2)
    slots = run.record.slots
    name = run.record.functions[1]
    on = np.flatnonzero(slots.delivered_ns[:, 1] > 0)
    off = np.flatnonzero((slots.mask == 0) & slots.good)
    usual_ns = float(np.median(slots.time_ns[slots.good]))
    for rows, times in ((on[[20, 50]], 400), (off[[100]], 1500)):
        slots.calls[rows, 1] *= 1000
        slots.delivered_ns[rows, 1] *= 1000
        slots.time_ns[rows] += times * usual_ns
    found = sound(verdict(run.record))
    assert [finding.verdict for finding in found.findings] == ["matters"] * 6
    left = next(warning for warning in found.warnings if "left out" in warning)
    assert left.startswith("3 slots") and name in left


def test_nothing_is_faster_by_more_than_it_is_delayed():
    run = recorded(model.Program, "heavy", 2)
    slots = run.record.slots
    slots.time_ns = slots.time_ns - 4 * slots.delivered_ns[:, 1]
    found = verdict(run.record).findings[1]
    assert found.verdict == "inconclusive"
    assert "faster" in found.reason and "--progress" in found.help


def test_a_function_whose_delay_helps_is_hidden_in_other_words():
    c = [1.0, 1.0, -0.4]

    def program(draw):
        return model.Weighted(draw, c)

    _, found = model.experiment(program, "quiet", 1, budget_s=120)
    *_, helps = found.findings
    assert (helps.verdict, helps.shape) == ("hidden", "negative")
    assert "the program is faster" in helps.reason
    assert helps.headroom.high < 0.005


def test_what_does_not_matter_is_tied_to_nothing():
    """Whatever the products of delays show; 1 is too noisy to have an answer."""
    run = recorded(model.equal_branches, "heavy", 3)
    draw = np.random.default_rng(3)
    for _ in range(3):
        arms = tuple(
            Arm((name,), ((Delay(int(0.3 * run.unit_ns)),),)) for name in run.names
        )
        chances = (0.25,) * len(arms)
        masks = plan.each_on_its_own(draw, 240, chances, plan.HOLDS)
        levels = np.zeros(240, np.uint8)
        run.run(Block("ties", arms, masks, levels, chances, plan.HOLDS, False, (0.3,)))
        run.run(plan.rest(80))
    names = {joint.functions: joint.kind for joint in verdict(run.record).joints}
    assert names["m:f0", "m:f1"] == "parallel"
    slots = run.record.slots
    # As if calls took twice the requested CPU time: there is no number.
    slots.delivered_ns[:, 1] *= 2
    found = sound(verdict(run.record))
    assert found.findings[1].verdict == "inconclusive"
    assert not any("m:f1" in joint.functions for joint in found.joints)


def test_its_own_rival():
    run = recorded(model.Program, "heavy", 2)
    run.record.machine = Machine(share=0.5, threads=4.0, cpus=2)
    found = sound(verdict(run.record))
    assert found.findings[0].verdict == "matters"
    assert any("its own rival" in note for note in found.findings[0].notes)


def test_cpu_time_instead_of_the_wall():
    """A helper beside a thread with half a CPU is hidden; the thread matters."""
    right = 0
    for seed in range(4):
        run, found = model.experiment(
            lambda draw: model.Shared(draw, 3), "quiet", seed, budget_s=90
        )
        sound(found)
        data = contention_of(run.record)
        assert data.y is not None
        labels = [finding.verdict for finding in found.findings]
        assert labels[1] != "matters" and labels[2] == "hidden"
        right += labels[0] == "matters"
        assert any("of its own" in note for note in found.findings[0].notes)
    assert right >= 3


def contention_of(record):
    from speed_bump.experiment.fit.columns import table

    data = table(record)
    assert data is not None
    return contention(record, data)


def on_pedestals(program, function, seed, step=0.15, units=1):
    draw = np.random.default_rng(seed)
    run = model.Run(program(draw), "quiet", draw)
    run.undelayed(70)
    doses = tuple(step * (k + 1) for k in range(6))
    masks, levels, parts = plan.pedestal(draw, 6, 80, 60)
    delays = tuple(Delay(int(dose * run.unit_ns)) for dose in doses)
    arm = Arm((run.names[function],), (delays,))
    run.run(
        Block("pedestal", (arm,), masks, levels, (0.5,), (1, 2), False, doses, 0, parts)
    )
    run.record.slots.units *= units
    return slack.slacks(run.record).get(run.names[function])


@pytest.mark.parametrize(
    "program, function, true",
    [
        (lambda draw: model.Stages(draw, depth=1), 1, 0.2),
        (lambda draw: model.Stages(draw, depth=4), 1, 0.2),
        (lambda draw: model.Stages(draw, depth=16), 1, 0.2),
        (model.ForkJoin, 1, 0.3),
        (model.Tick, 0, 0.4),
    ],
)
def test_slack_by_pedestals(program, function, true):
    found = [on_pedestals(program, function, seed) for seed in range(6)]
    held = sum(s.ns.low <= true * model.UNIT_NS <= s.ns.high for s in found)
    assert held >= 5
    assert not any(s.over for s in found)


def test_slack_is_that_of_a_unit_where_slots_have_several():
    of_one = on_pedestals(model.Tick, 0, 1).ns
    of_four = on_pedestals(model.Tick, 0, 1, units=4).ns
    for end in ("value", "low", "high"):
        assert getattr(of_four, end) == pytest.approx(getattr(of_one, end) / 4)


class Knee(model.Program):
    """1: half of a unit is hidden, then 0.4 of a delay arrives."""

    def slot(self, d, b):
        return b + 0.4 * max(float(d[1]) - 0.5, 0.0)


def test_slack_ends_where_a_part_of_a_delay_arrives():
    found = [on_pedestals(Knee, 1, seed) for seed in range(6)]
    assert not any(s.over for s in found)
    held = sum(s.ns.low <= 0.5 * model.UNIT_NS <= s.ns.high for s in found)
    assert held >= 5


class Scheduled(model.Program):
    """0 is work of a quarter of a unit, due at each tick of a clock, late or not."""

    late = -0.75

    def slot(self, d, b):
        work = 0.25 * b + float(d[0])
        took = max(-self.late, 0) + work
        self.late = max(self.late, 0) + work - 1
        return took


def test_while_a_program_catches_up_there_is_no_end_of_slack():
    """Late since a higher pedestal, it waits for nothing: all of a delay arrives."""
    # Up to 0.54 of a unit of 0.75 it never is late.
    assert all(on_pedestals(Scheduled, 0, seed, 0.09).over for seed in range(3))
    # Higher ones make it late: what is known is the slack below them, and that is a lower
    # bound.
    for seed in range(3):
        found = on_pedestals(Scheduled, 0, seed)
        assert found.over and 0.29 < found.step * len(found.slopes) < 0.76


def test_no_end_of_slack():
    found = on_pedestals(model.sham, 1, 1)
    assert found.over and found.ns.low > 0.7 * model.UNIT_NS
    assert math.isinf(found.ns.high)


def tied(program, seed):
    draw = np.random.default_rng(seed)
    run = model.Run(program(draw), "heavy", draw)
    run.undelayed(70)
    for _ in range(3):
        arms = tuple(
            Arm((name,), ((Delay(int(0.3 * run.unit_ns)),),)) for name in run.names
        )
        chances = (0.25,) * len(arms)
        masks = plan.each_on_its_own(draw, 240, chances, plan.HOLDS)
        levels = np.zeros(240, np.uint8)
        run.run(Block("ties", arms, masks, levels, chances, plan.HOLDS, False, (0.3,)))
        run.run(plan.rest(80))
    return ties.joints(run.record)


def test_equal_branches_are_tied_and_serial_ones_are_not():
    found = false = 0
    for seed in range(6):
        kinds = {
            joint.functions: joint.kind for joint in tied(model.equal_branches, seed)
        }
        found += kinds.pop(("m:f0", "m:f1"), "") == "parallel"
        others = [*kinds.values(), *(joint.kind for joint in tied(model.Program, seed))]
        false += sum(kind != "serial" for kind in others)
    assert found >= 5
    assert false <= 2


class Eats(model.Program):
    """1 has slack of 0.4, which delays of 0 use up: together they cost more."""

    def slot(self, d, b):
        return b + float(d[0]) + max(float(d[1]) - 0.25 + 0.8 * float(d[0]), 0.0)


def test_slack_that_another_uses_up_is_no_amplification():
    for seed in range(4):
        kinds = [joint.kind for joint in tied(Eats, seed)]
        assert "amplifying" not in kinds


def test_a_producer_that_limits_is_found_at_the_smaller_dose():
    """Delays of 0.3 use up the slack of the loop, those of 0.1 do not."""
    right = 0
    for seed in range(3):
        draw = np.random.default_rng(seed)
        run = model.Run(model.starved(draw), "quiet", draw)
        run.undelayed(70)
        for dose in (0.3, 0.1):
            for _ in range(6):
                run.run(block(run, draw, dose))
                run.run(plan.rest(80))
        found = sound(verdict(run.record))
        assert not any(
            model.wrong(f.verdict, c)
            for f, c in zip(found.findings, run.program.c, strict=True)
        )
        right += sum(f.verdict != "inconclusive" for f in found.findings)
    assert right >= 12


def test_nothing_at_all():
    record = Record({}, ("m:f", "m:g"), model.empty(2), idle=("m:h",))
    found = sound(verdict(record))
    assert [finding.verdict for finding in found.findings] == ["inconclusive"] * 3


def test_little_is_little():
    """Whatever is cut off, there is an answer or a reason, and no warning of numpy."""
    with np.errstate(all="raise", under="ignore"):
        for count in (1, 2, 5, 9, 17, 40, 75, 90, 130):
            draw = np.random.default_rng(count)
            run = model.Run(model.Program(draw), "heavy", draw)
            run.undelayed(min(count, 70))
            if count > 70:
                run.run(block(run, draw, 0.3, count - 70))
            for finding in sound(verdict(run.record)).findings:
                assert not model.wrong(finding.verdict, 1.0)
                if count < 75:
                    assert finding.criticality is None


def test_half_as_fast_from_the_middle_on():
    held = total = 0
    for seed in range(5):
        run = recorded(model.Phases, "heavy", seed)
        found = sound(verdict(run.record))
        assert any("as long" in warning for warning in found.warnings)
        for finding, true in zip(found.findings, run.program.c, strict=True):
            assert not model.wrong(finding.verdict, true)
            held += finding.criticality.low <= true <= finding.criticality.high
            total += 1
    assert held / total >= 0.85


def test_where_floods_take_much_of_the_time_a_longer_unit_is_advised() -> None:
    """As of a server whose clients come in bursts, with a request as the unit."""
    advice = "a longer unit of work would have them, --progress"
    for times, is_told in ((4, False), (40, True)):
        record = experiments.run("serial")
        record.slots.calls[::100] *= 20
        record.slots.time_ns[::100] *= times
        (warning,) = [w for w in verdict(record).warnings if "left out" in w]
        assert warning.startswith("10 slots are left out"), warning
        assert (advice in warning) == is_told


def test_a_function_that_is_called_in_floods_alone_says_so() -> None:
    """As what PPO does in its rollouts, with a step of its optimizer as the unit."""
    record = experiments.run("serial")
    calls, delivered = record.slots.calls, record.slots.delivered_ns
    busy = np.arange(len(calls)) % 40 == 0
    calls[:, 0] = np.where(busy, 256, 0)
    calls[busy, 1] *= 20
    delivered[:, 0] = np.where(busy, delivered[:, 0].max(), 0)
    (finding,) = [f for f in verdict(record).findings if f.name == record.functions[0]]
    assert finding.verdict == "inconclusive"
    assert finding.reason.startswith("100% of its calls are in slots that are left out")
    assert "--progress" in finding.help
