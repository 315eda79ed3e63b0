# SPDX-License-Identifier: MIT
# ruff: noqa: E402
"""The coverage of intervals is as stated, whatever the noise is."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import time

import pytest

np = pytest.importorskip("numpy")

import model
from speed_bump.experiment.fit import columns, effects, noise, randomisation
from speed_bump.experiment.fit.bill import bills
from speed_bump.experiment.fit.interval import quantile
from speed_bump.experiment.record import BESIDE, Arm, Block, Delay, Record, Slots
from speed_bump.experiment.slots import plan

pytestmark = pytest.mark.one_python


def block(run, draw, dose, count=240):
    """One function at a time, in random order."""
    arms = (
        plan.SHAM,
        *(Arm((name,), ((Delay(int(dose * run.unit_ns)),),)) for name in run.names),
    )
    chances = (plan.chance_of_one(len(arms)),) * len(arms)
    masks, _ = plan.one_at_a_time(draw, count, chances, plan.HOLDS)
    levels = np.zeros(count, np.uint8)
    return Block("single", arms, masks, levels, chances, plan.HOLDS, True, (dose,))


def recorded(program, kind, seed, cycles=4, dose=0.3):
    """A run of a program, with rests of 80 slots after blocks of 240."""
    draw = np.random.default_rng(seed)
    run = model.Run(program(draw), kind, draw)
    run.undelayed(70)
    for _ in range(cycles):
        run.run(block(run, draw, dose))
        run.run(plan.rest(80))
    return run


def fitted(record):
    found = effects.effects(columns.table(record))
    assert found is not None
    return found


@pytest.mark.parametrize("kind", model.KINDS)
def test_intervals_hold_the_truth(kind):
    held = total = 0
    bias = []
    for seed in range(24):
        run = recorded(model.sham, kind, seed)
        found = fitted(run.record)
        for effect in found.effects:
            names = effect.column.functions
            true = run.program.c[run.names.index(names[0])] if names else 0.0
            held += abs(effect.c - true) < quantile(effect.df) * effect.se
            bias.append(effect.c - true)
            total += 1
    # Of 168; with correct 95% intervals this fails with a probability of 0.5%.
    assert held / total > 0.90
    assert abs(np.mean(bias)) < 0.02


def test_a_program_that_is_stopped_for_a_second_now_and_then():
    """Some units take a second longer: least squares alone is off by several units."""
    run = recorded(model.Program, "recorded", 1)
    slots, draw = run.record.slots, np.random.default_rng(2)
    # A slot lasts as long as its own delays require, with little noise.
    slots.time_ns[:] = run.unit_ns + slots.delivered_ns.sum(axis=1)
    slots.time_ns[:] += draw.normal(0, 1e-4 * run.unit_ns, len(slots))
    slots.time_ns[40::150] += 150 * run.unit_ns
    for effect in fitted(run.record).effects:
        if effect.column.functions:
            assert abs(effect.c - 1) < 0.02


def test_the_noise_model_makes_them_narrow():
    """Slow noise of 25% does not cost more than the design states: 0.06 per minute."""
    run = recorded(model.Program, "recorded", 1)
    found = fitted(run.record)
    halves = [found.half(effect) for effect in found.effects]
    assert np.median(halves) < 0.09


def test_functions_that_were_delayed_in_the_same_slots_have_no_answer():
    """Nor has one that was never delayed; it takes no answer from the others."""
    data = columns.table(recorded(model.Program, "heavy", 1).record)
    x = data.x.copy()
    x[:, 2] = 2 * x[:, 1]
    x[:, 3] = 0
    fit = effects.regress(data.y, x, data.other, data, data.plans)
    without = [1, 2, 3]
    assert np.isnan(fit.c[without]).all() and np.isnan(fit.se[without]).all()
    others = np.setdiff1d(np.arange(x.shape[1]), without)
    assert np.isfinite(fit.c[others]).all() and (fit.se[others] > 0).all()


@pytest.mark.parametrize("name", ["inv", "solve"])
def test_an_error_of_numpy_is_no_missing_answer(monkeypatch, name):
    """Of the normal matrix, and of the sham's covariance: both have an inverse."""
    data = columns.table(recorded(model.Program, "heavy", 1).record)
    assert effects.effects(data) is not None
    # Slow changes, and the autoregression, have matrices of their own.
    is_it = {
        "inv": lambda matrix: np.allclose(np.diag(matrix), 1),
        "solve": lambda matrix, right: right.ndim == 2,
    }[name]
    works = getattr(np.linalg, name)

    def broken(*arguments):
        if is_it(*arguments):
            raise np.linalg.LinAlgError("Singular matrix")
        return works(*arguments)

    monkeypatch.setattr(np.linalg, name, broken)
    with pytest.raises(np.linalg.LinAlgError):
        effects.effects(data)


def test_the_bill_finds_slack_that_was_used_up():
    def alarm(program, seed):
        record = recorded(program, "heavy", seed).record
        return any(bill.alarm for bill in bills(fitted(record)))

    alarms = sum(alarm(lambda draw: model.starved(draw, 0.1), seed) for seed in range(6))
    false = sum(alarm(model.Program, seed) for seed in range(12))
    assert alarms >= 5
    assert false <= 1


@pytest.mark.parametrize("blocked", [0.0, 0.001, 0.5, math.nan])
def test_slack_is_no_longer_than_the_reporting_thread_is_blocked(blocked):
    data = columns.table(recorded(model.Program, "heavy", 2).record)
    data.blocked[:] = blocked
    (found,) = bills(effects.effects(data), slack=True)
    # The bill alone would allow as much.
    assert 0.001 < -found.cost.low < 0.5
    known = 0.0 if math.isnan(blocked) else blocked
    assert found.hides == pytest.approx(min(-found.cost.low, known))
    assert found.vague == (found.hides > 0.35 * found.delays)


@pytest.mark.parametrize("shorter", [0.0, 0.3])
def test_slack_that_was_used_up_makes_waits_shorter(monkeypatch, shorter):
    """Where they are as long in blocks as in rests, none was."""
    monkeypatch.setattr("speed_bump.experiment.fit.bill.VAGUE", 0.01)
    data = columns.table(recorded(model.Program, "heavy", 2).record)
    jitter = 0.001 * np.random.default_rng(1).standard_normal(len(data.y))
    data.blocked[:] = 0.5 + jitter - shorter * data.other.any(1)
    (found,) = bills(effects.effects(data), slack=True)
    if shorter:
        assert found.hides == pytest.approx(-found.cost.low)
    else:
        assert found.hides < 0.2 * -found.cost.low


def test_what_is_called_now_and_then_needs_its_calls():
    """A slow slot is slow because of the call, not because of its delay."""
    seen = []
    for seed in range(6):
        draw = np.random.default_rng(seed)
        run = model.Run(model.Rare(draw), "heavy", draw)
        run.undelayed(70)
        for _ in range(4):
            some = block(run, draw, 0.3)
            rare = Arm((run.names[0],), ((Delay(int(run.unit_ns)),),))
            masks, _ = plan.one_at_a_time(draw, 240, some.chance[:6], plan.HOLDS)
            masks |= (draw.random(240) < 0.5).astype(np.uint64) << np.uint64(6)
            arms = (plan.SHAM, *some.arms[2:], rare)
            run.run(
                dataclasses.replace(
                    some, arms=arms, masks=masks, chance=(*some.chance[:6], 0.5), coins=1
                )
            )
            run.run(plan.rest(80))
        (effect,) = fitted(run.record).of((run.names[0],))
        seen.append(abs(effect.c - 1) < quantile(effect.df) * effect.se)
        assert effect.se < 0.2
    assert sum(seen) >= 5


def test_where_rows_begin_anew():
    """After a gap in the numbers, in another run, and after a slot that is not usable."""
    number = np.array([0, 1, 2, 5, 6, 7, 8, 9, 10, 11])
    run = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1])
    usable = np.array([1, 1, 1, 1, 1, 1, 1, 0, 1, 1], bool)
    found = noise.ages(number, run, usable)
    assert found.tolist() == [0, 1, 2, 0, 1, 0, 1, -1, 0, 1]
    whole = noise.whitened(np.arange(10.0), (0.5,))
    assert whole[1:].tolist() == [k - 0.5 * (k - 1) for k in range(1, 10)]


def test_runs_of_other_speed_and_lost_slots_change_no_answer():
    """Runs of different speed, lost slots and gaps in numbers do not change answers."""
    run = recorded(model.sham, "heavy", 3, cycles=6)
    slots = run.record.slots
    draw = np.random.default_rng(1)
    slots.run = (np.arange(len(slots)) > len(slots) // 2).astype(np.int64)
    slots.time_ns = slots.time_ns + slots.run * model.UNIT_NS
    slots.good = draw.random(len(slots)) > 0.03
    slots.time_ns[~slots.good] = np.where(draw.random(len(slots)) < 0.5, np.nan, 1e13)[
        ~slots.good
    ]
    slots.number = slots.number + 1000 * np.cumsum(draw.random(len(slots)) < 0.01)
    for effect in fitted(run.record).effects[1:]:
        true = run.program.c[run.names.index(effect.column.functions[0])]
        assert abs(effect.c - true) < 4 * effect.se
        assert effect.se < 0.05


def test_delivered_counts_and_not_what_was_asked():
    draw = np.random.default_rng(5)
    run = recorded(model.Program, "heavy", 5)
    slots = run.record.slots
    # Half of the delay is hidden in each call.
    short = slots.delivered_ns[:, 2] / 2
    slots.time_ns = slots.time_ns - short
    slots.delivered_ns[:, 2] -= short
    assert draw is not None
    (effect,) = fitted(run.record).of((run.names[2],))
    assert abs(effect.c - 1) < 4 * effect.se


def large(functions, count):
    """A record of many short slots, without a program."""
    draw = np.random.default_rng(0)
    names = tuple(f"m:f{k}" for k in range(functions))
    masks = np.zeros(count, np.uint64)
    blocks, of = [], np.full(count, -1)
    delivered = np.zeros((count, functions))
    at, turn = 300, 0
    parts = [names[k : k + 40] for k in range(0, functions, 40)]
    while at < count:
        part = parts[turn % len(parts)]
        chances = (plan.chance_of_one(len(part) + 1),) * (len(part) + 1)
        size = min(960, count - at)
        some, _ = plan.one_at_a_time(draw, size, chances, plan.HOLDS)
        arms = (plan.SHAM, *(Arm((name,), ((Delay(60_000),),)) for name in part))
        blocks.append(
            Block(
                "single",
                arms,
                some,
                np.zeros(size, np.uint8),
                chances,
                plan.HOLDS,
                True,
                (0.3,),
            )
        )
        masks[at : at + size] = some
        of[at : at + size] = len(blocks) - 1
        for bit, name in enumerate(part, 1):
            on = (some >> np.uint64(bit)) & np.uint64(1)
            delivered[at : at + size, names.index(name)] = on * 600_000.0
        at += size + 320
        turn += 1
    times = 2e6 * (1 + 0.03 * draw.standard_t(3, count)) + delivered.sum(1)
    none = np.full(count, np.nan)
    slots = Slots(
        np.arange(count),
        of,
        np.zeros(count, np.int64),
        np.cumsum(times).astype(np.int64),
        times,
        np.ones(count, np.int64),
        masks,
        np.zeros(count, np.uint8),
        np.ones(count, bool),
        none,
        none,
        np.full((count, functions), 10.0),
        delivered,
    )
    return Record({}, names, slots, blocks, 2e6, 1)


@pytest.mark.timed
def test_a_look_is_fast_beside_what_it_is_of():
    """Ten times the functions take much less than a hundred times the time."""

    def took(functions):
        record = large(functions, 6_000)
        times = []
        for _ in range(2):
            begin = time.process_time()
            found = fitted(record)
            times.append(time.process_time() - begin)
        assert abs(found.effects[1].c - 1) < 5 * found.effects[1].se
        return min(times)

    assert took(100) < 60 * took(10)


def test_the_package_does_not_import_numpy():
    """The program under test must not import numpy; only the estimation of slots does."""
    code = (
        "import sys, speed_bump, speed_bump.native, speed_bump.config;"
        "import speed_bump.__main__;"
        "import speed_bump.experiment.fit.interval;"
        "sys.exit('numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("first", ["archive", "fit.verdict", "record"])
def test_numpy_has_no_threads_of_its_own(first):
    """Its threads would use CPUs that the program needs."""
    code = (
        f"import os, speed_bump.experiment.{first}\n"
        "print(len(os.listdir('/proc/self/task')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"


def test_one_rest_in_which_others_were_gone_is_no_alarm():
    """If the bill is wrong because of the program, all rests show it."""
    false = 0
    for seed in range(5):
        for cycles in (3, 4, 6):
            run = recorded(model.Program, "heavy", seed, cycles)
            slots = run.record.slots
            rests = [k for k, b in enumerate(run.record.blocks) if b.stage == "census"]
            busy = np.isin(slots.block, rests[1:2])
            slots.time_ns = slots.time_ns * np.where(busy, 0.5, 1.0)
            found = bills(fitted(run.record))
            false += any(bill.alarm or bill.late for bill in found)
    assert false <= 1


def test_delays_that_hide_make_nothing_faster_than_it_is():
    """Other programs stopped when blocks began, and started again in each rest."""
    for seed in range(3):
        run = recorded(lambda draw: model.Weighted(draw, [0.0] * 6), "quiet", seed, 5)
        slots = run.record.slots
        busy = [k for k, b in enumerate(run.record.blocks) if b.arms]
        faster = np.where(np.isin(slots.block, busy), 0.9, 1.0)
        slots.time_ns = slots.time_ns * faster
        (bill,) = bills(fitted(run.record))
        assert bill.beyond and not bill.alarm


@pytest.mark.parametrize("part", [0.03, 0.2])
def test_a_bill_that_is_small_beside_the_delays_is_no_alarm(part):
    """It is certain, but no label depends on so little."""
    run = recorded(model.Program, "quiet", 1, 5)
    (sound,) = bills(fitted(run.record))
    slots = run.record.slots
    busy = [k for k, b in enumerate(run.record.blocks) if b.arms]
    hidden = part * sound.delays * run.unit_ns
    slots.time_ns = slots.time_ns - np.where(np.isin(slots.block, busy), hidden, 0)
    (bill,) = bills(fitted(run.record))
    assert bill.cost.high < 0
    assert bill.alarm == (part > 0.05)


def test_slots_in_which_stacks_are_looked_at_are_no_rests():
    """The cost of sampling is not mistaken for a false bill."""
    for seed in range(3):
        draw = np.random.default_rng(seed)
        run = model.Run(model.Program(draw), "quiet", draw)
        for _ in range(6):
            run.undelayed(60)
            run.run(block(run, draw, 0.3))
            run.run(plan.rest(80))
        slots = run.record.slots
        slots.time_ns = slots.time_ns * np.where(slots.block < 0, 1.15, 1.0)
        for bill in bills(fitted(run.record)):
            assert not bill.alarm
            assert abs(bill.cost.value) < 0.03


def test_few_slots_are_judged_by_schedules_drawn_again():
    """Without an effect, one p value in twenty is below 0.05; heavy tails, 48 slots."""
    low = total = 0
    strong = []
    for seed in range(40):
        draw = np.random.default_rng(seed)
        run = model.Run(model.Weighted(draw, [1.0, 0.0, 0.0, 0.0]), "heavy", draw, 2e9)
        run.undelayed(3)
        arms = (
            plan.SHAM,
            *(Arm((name,), ((Delay(int(0.2 * run.unit_ns)),),)) for name in run.names),
        )
        for _ in range(3):
            masks = plan.balanced(draw, len(arms))
            levels = np.zeros(len(masks), np.uint8)
            chance = (0.5,) * len(arms)
            run.run(Block("few", arms, masks, levels, chance, (1,), False, (0.2,)))
        data = columns.table(run.record)
        fit = effects.effects(data).fit
        block_of = columns.block_index(run.record)
        found = randomisation.p_values(data.y, data, fit, block_of)
        named = {data.columns[k].functions[0]: p for k, p in found.items()}
        strong.append(named.pop("m:f0"))
        low += sum(p <= 0.05 for p in named.values())
        total += len(named)
    assert max(strong) < 0.01
    assert total == 120
    # Binomial: 15 or more of 120 occur with a probability of 0.1%.
    assert low < 15
    many = recorded(model.Program, "heavy", 1)
    table = columns.table(many.record)
    fit = effects.effects(table).fit
    block_of = columns.block_index(many.record)
    assert randomisation.p_values(table.y, table, fit, block_of) == {}


def test_slots_in_which_the_tool_works_are_no_rests():
    """Also in a short experiment, with two rests in which it does not."""
    for seed in range(3):
        draw = np.random.default_rng(seed)
        run = model.Run(model.Program(draw), "quiet", draw)
        run.undelayed(120)
        for k in range(4):
            run.run(block(run, draw, 0.3))
            run.undelayed(60)
            if k == 2:
                run.run(plan.rest(80))
        slots = run.record.slots
        worked = (slots.block < 0) & ~((slots.number >= 60) & (slots.number < 120))
        slots.block[worked] = BESIDE
        slots.time_ns = slots.time_ns * np.where(worked, 1.15, 1.0)
        for bill in bills(fitted(run.record)):
            assert not bill.alarm
            assert abs(bill.cost.value) < 0.03
        assert not columns.undelayed(run.record)[worked].any()
