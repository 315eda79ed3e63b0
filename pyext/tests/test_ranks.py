# SPDX-License-Identifier: MIT
"""Jobs of several ranks on one node: units per rank, and the rank that limits."""

import importlib.util
import os
import pathlib
import sys

import numpy as np
import pytest
from ranking import Ranked, python
from records import made
from speed_bump import _core
from speed_bump.experiment import archive
from speed_bump.experiment import job_ranks as ranks
from speed_bump.experiment.cluster import places
from speed_bump.experiment.record import Record
from speed_bump.experiment.show import ranks as show
from speed_bump.experiment.slots.measure import empty

pytestmark = pytest.mark.one_python

WORKLOAD = pathlib.Path(__file__).parents[2] / "bench" / "workloads" / "ranks.py"
TARGETS = python("__main__:load", "__main__:forward")
HAVE_TORCH = importlib.util.find_spec("torch") is not None
# Sleep per step, balanced and of the straggler, ns; pooled units would be half as long.
STEP_NS, LATE_STEP_NS = 18e6, 38e6
BUDGETS = (8, 25)


def by_torchrun(kind, count=2):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
    return [*launcher, str(count), str(WORKLOAD), kind]


@pytest.mark.timed
def test_units_are_counted_once_for_each_rank(tmp_path):
    def fits(ranked):
        return len(ranked.findings) == 2 and ranked.record.slots.good.sum() > 60

    command = [sys.executable, str(WORKLOAD), "balanced", "--spawn", "2"]
    found = Ranked(
        tmp_path, TARGETS, command, "--progress", "__main__:step", fits=fits,
        budgets=BUDGETS,
    )  # fmt: skip
    assert found.result["unit_ns"] > STEP_NS
    assert [rank["rank"] for rank in found.result["job"]["ranks"]] == [-1, -1]
    assert "2 processes that work in step" in found.done.stderr
    assert "2 processes that work in step" in found.done.stdout
    for finding in found.findings.values():
        assert finding["calls_per_unit"] == pytest.approx(1, abs=0.05)
        # One half would be the delay of one rank in the pooled time of two.
        if finding["criticality"]:
            assert finding["criticality"]["high"] > 0.75
    job = found.record.ranks
    good = found.record.slots.good
    # Where a unit's time goes is that of the ranks, not of the process that starts them.
    looks = found.record.looks
    assert {t.pid for t in looks.threads if t.reports} == {who.pid for who in job.who}
    # All ranks are delayed in the same steps, which are those of the plan.
    on = (job.delivered_ns[good] > 0).any(axis=2)
    assert (on[:, 0] == on[:, 1]).mean() > 0.97


@pytest.mark.timed
@pytest.mark.skipif(not HAVE_TORCH, reason="torch is not installed")
def test_straggler_is_named(tmp_path):
    def fits(ranked):
        return bool(ranked.result["job"] and ranked.result["job"]["places"])

    found = Ranked(
        tmp_path, TARGETS, by_torchrun("straggler"), "--progress", "__main__:step",
        fits=fits, budgets=BUDGETS,
    )  # fmt: skip
    job = found.result["job"]
    assert [(r["rank"], r["world"], r["launcher"]) for r in job["ranks"]] == [
        (0, 2, "torchrun"),
        (1, 2, "torchrun"),
    ]
    assert found.result["unit_ns"] > LATE_STEP_NS
    assert job["limiting"] == [1]
    first, late = job["places"]
    assert late["own_ns"] > first["own_ns"] + 10e6
    assert first["wait_ns"] > 10e6
    assert "rank 1 limits" in found.done.stdout


# ------------------------------------------------------------------------ the parts


def job(draw, n=600, late=None, launcher="srun"):
    """Four ranks that meet in each step; f is in all of them, g hidden in a thread."""
    own = draw.normal(20e6, 0.3e6, (n, 4))
    on = np.repeat(draw.random((n // 2, 2)) < 0.5, 2, axis=0)
    delivered = (on[:, None, :] * 2e6 + np.zeros((1, 4, 1))).astype(np.float32)
    own += delivered[:, :, 0]
    if late is not None:
        own[:, late] += 20e6
    step = own.max(axis=1)
    time = np.repeat(step[:, None], 4, axis=1)
    calls = np.ones((n, 4, 2), np.float32)
    who = [ranks.Rank(r, 4, r, 0, 0, launcher, 100 + r) for r in range(4)]
    return ranks.Ranks(who, time, time - own, delivered, calls)


def found_places(of):
    n = len(of.time_ns)
    names = ("m:f", "m:g")
    return places.places(names, of, np.arange(n), np.ones(n, int), np.ones(n, bool))


def test_own_work_says_function_by_rank():
    found = found_places(job(np.random.default_rng(1)))
    for place in found.places:
        f, g = place.cells
        assert f.value == pytest.approx(1, abs=0.1)
        assert f.low < 1 < f.high or abs(f.value - 1) < 0.05
        assert g.value == pytest.approx(0, abs=0.1)
    assert found.limiting is None
    assert "no rank limits" in show.waiting(found)


def test_the_rank_that_is_waited_for():
    found = found_places(job(np.random.default_rng(2), late=2))
    assert [rank.rank for rank in found.limiting.ranks] == [2]
    assert found.others_wait_ns == pytest.approx(20e6, rel=0.1)
    assert show.waiting(found).startswith("rank 2 limits: it is last in 100.0%")
    few = places.merged(found, 2)
    assert sorted(len(place.ranks) for place in few.places) == [1, 3]
    assert len(show.places_table(found, ["m:f"]).splitlines()) == 5


def test_of_two_ranks_one_is_last_in_most_steps_and_limits_nothing():
    of = job(np.random.default_rng(6))
    two = ranks.Ranks(
        of.who[:2], of.time_ns[:, :2], of.waited_ns[:, :2],
        of.delivered_ns[:, :2], of.calls[:, :2],
    )  # fmt: skip
    two.waited_ns[: len(two.waited_ns) * 6 // 10, 0] = 0
    found = found_places(two)
    assert max(place.last for place in found.places) > 0.55
    assert found.limiting is None


def test_without_waits_there_are_no_places():
    of = job(np.random.default_rng(3))
    of.waited_ns[:] = np.nan
    assert found_places(of) is None


def steps(first, n, ns, calls):
    """The rows of a rank whose slots begin with ``first``."""
    real = np.full(n, float(ns))
    return ranks.Step(
        number=np.arange(first, first + n),
        time_ns=real,
        waited_ns=real * 0,
        units=np.ones(n, np.int64),
        end_ns=np.arange(1, n + 1) * ns,
        good=np.ones(n, bool),
        cpu_ns=real,
        wait_ns=real * 0,
        calls=np.full((n, 2), calls, float),
        delivered_ns=np.full((n, 2), np.array(calls) * 100.0),
    )


def test_slots_of_ranks_are_means_and_never_sums():
    who = [ranks.Rank(0), ranks.Rank(1)]
    found = ranks.merge(who, [steps(5, 20, 10, [1, 3]), steps(6, 20, 30, [3, 0])], 16)
    # The first rank has not finished the last slot of the other yet.
    assert list(found.number) == list(range(5, 25))
    assert list(found.time_ns) == [10, *[20] * 19]
    assert found.good.all()
    assert (found.units == 1).all()
    assert list(found.calls[4]) == [2, 3]  # the second is called on one rank only
    assert list(found.delivered_ns[4]) == [200, 300]
    # A rank that is far behind is left out; slots are those of both.
    gone = ranks.merge(who, [steps(0, 100, 10, [1, 1]), steps(0, 20, 30, [1, 1])], 16)
    assert len(gone.number) == 100
    assert list(gone.time_ns[[0, 99]]) == [20, 10]
    # If one rank skipped a slot, the mean of the others is not used.
    holes = steps(0, 20, 30, [1, 1])
    holes.number[10:] += 1
    late = ranks.merge(who, [steps(0, 21, 10, [1, 1]), holes], 16)
    assert list(np.flatnonzero(~late.good)) == [10]


def process(pid, units, rank=-1, world=-1):
    """An entry of ``Plan.ranks()``; its index is its process."""
    launcher = "srun" if world > 1 else ""
    return made(
        _core.Rank,
        index=pid,
        pid=pid,
        rank=rank,
        world=world,
        local=rank,
        launcher=launcher,
        units=units,
        number=None,
    )


def test_processes_are_ranks_where_they_work_in_step():
    mine, other, gone = os.getpid(), os.getppid(), 2**22 + 1
    before = [process(mine, 5), process(other, 5)]
    assert ranks.is_job(before, [process(mine, 25), process(other, 24)])
    # A single rank, and one beside another that reports no more.
    assert not ranks.is_job(before, [process(mine, 25), process(other, 5)])
    # They wait for the same lock, and one had it more often.
    assert not ranks.is_job(before, [process(mine, 505), process(other, 495)])
    assert ranks.is_job(before, [process(mine, 505), process(other, 501)])
    # Workers that take any task, and workers that run one task.
    assert not ranks.is_job(before, [process(mine, 25), process(other, 10)])
    short = [process(mine, 25), process(other, 25), process(gone, 1)]
    assert not ranks.is_job(before, short)
    # A launcher defines ranks, even if only one of them reports.
    assert ranks.is_job([], [process(mine, 25, 0, 4)])


def test_ranks_are_told():
    who = [ranks.Rank(r, 8, launcher="torchrun") for r in (0, 1, 2, 5)]
    assert ranks.told(who) == "4 ranks of 8 by torchrun (0 to 2, 5)"
    assert ranks.told([ranks.Rank(pid=7), ranks.Rank(pid=9)]) == (
        "2 processes that work in step (7, 9)"
    )


def test_record_keeps_its_ranks(tmp_path):
    path = str(tmp_path / "record")
    of = job(np.random.default_rng(4))
    archive.save(Record({}, ("m:f", "m:g"), empty(2), ranks=of), path)
    again = archive.load(path).ranks
    assert again.who == of.who
    assert (again.delivered_ns == of.delivered_ns).all()
    archive.save(Record({}, (), empty(0)), path)
    assert archive.load(path).ranks is None
