# SPDX-License-Identifier: MIT
"""Blocks of slots on running programs: the planned delays are delivered."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest
from speed_bump.config import parse_targets
from speed_bump.experiment.program.progress import Progress, read
from speed_bump.experiment.program.runner import Runner
from speed_bump.experiment.program.workload import Workload
from speed_bump.experiment.record import Arm, Block, Delay
from speed_bump.experiment.slots.measure import Run, together

pytestmark = [pytest.mark.one_python, pytest.mark.timed]

# Each unit calls f once, g three times, and never h.
UNITS = """
import speed_bump, time
def f(): pass
def g(): pass
def h(): pass
h()
while True:
    f()
    for _ in range(3): g()
    {more}
    time.sleep(0.001)
    speed_bump.progress()
"""
WORKERS = """
import multiprocessing, speed_bump, time
def f(): pass
def work(n):
    for _ in range(n): f()
if __name__ == "__main__":
    multiprocessing.set_start_method("{method}")
    while True:
        workers = [multiprocessing.Process(target=work, args=(50,)) for _ in range(3)]
        for w in workers: w.start()
        for w in workers: w.join()
        speed_bump.progress()
"""
PATIENCE_S = 120


@contextmanager
def started(source, patterns, progress=None):
    """A working program."""
    runner = Runner([sys.executable, "-c", source], show_output=False)
    targets = [t for p in patterns for t in parse_targets(p, "test")]
    progress = progress or Progress(("default",))
    with runner, Workload(runner, targets, progress) as program:
        yield program


def wait(program, condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert program.is_running(), program.output()
        assert time.monotonic() < end
        time.sleep(0.01)


def block(names, count, delay_ns, draw, chance=0.3):
    arms = tuple(Arm((name,), ((Delay(delay_ns),),)) for name in names)
    which = draw.integers(0, len(names) + 1, count).astype(np.uint64)
    masks = np.where(which < len(names), np.uint64(1) << which, np.uint64(0))
    return Block(
        "single", arms, masks, np.zeros(count, np.uint8), (chance,) * len(names), (1,),
        True, (0.1,),
    )  # fmt: skip


def in_arm(slots, bit):
    return (slots.mask >> np.uint64(bit)) & np.uint64(1) > 0


def test_slots_have_what_was_planned_for_them():
    names = ["__main__:f", "__main__:g"]
    with started(UNITS.format(more=""), ["__main__:[fgh]"]) as program:
        wait(program, lambda: program.plan.units > 5)
        assert set(program.calls()) >= {*names, "__main__:h"}
        run = Run(program, 1)
        run.rule(names)
        run.set_slot_units(2)
        run.rest(0.1, 20, lambda: False)
        planned = block(names, 300, 200_000, np.random.default_rng(1))
        run.make(planned, 0, lambda: False)
        # The last ones are read when others follow.
        run.rest(0, 5, lambda: False)
        slots = run.slots(names)
        lost = program.plan.lost
    assert lost == 0
    inside = slots.block == 0
    assert inside.sum() == 300
    assert (slots.mask[inside] == planned.masks).all()
    assert (slots.mask[~inside] == 0).all()
    # A unit that is in progress when a slot ends belongs to the slot.
    good = slots.good
    assert good[1:].mean() > 0.95
    assert (slots.units[good] == 2).all()
    assert np.median(slots.calls[good], axis=0).tolist() == [2, 6]
    for bit, calls in ((0, 2), (1, 6)):
        on = inside & good & in_arm(slots, bit)
        assert on.sum() > 50
        delivered = slots.delivered_ns[on, bit]
        # Interrupts count as CPU time, which is much on a busy machine.
        assert calls * 200_000 <= np.median(delivered) < 1.5 * calls * 200_000
        # A hit may have read the plan just before the slot ended, never later.
        off = good & ~in_arm(slots, bit)
        assert (slots.delivered_ns[off, bit] > 0).mean() < 0.02
    # Times are from one end to the next.
    assert slots.time_ns[good].min() > 0
    total = (slots.end_ns[-1] - slots.end_ns[0]) / 1e9
    assert np.nansum(slots.time_ns) / 1e9 == pytest.approx(total, rel=1e-6)
    on_cpu = slots.cpu_ns[good]
    assert np.isfinite(on_cpu).all()
    assert (on_cpu <= slots.time_ns[good] * 1.2 + 1e5).mean() > 0.9


# A thread for each unit, as in a server, or three threads that work in parallel.
THREADS = """
import speed_bump, threading, time
def f():
    time.sleep(0.002)
    speed_bump.progress()
def work():
    while True:
        f()
if {beside}:
    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
while True:
    if {beside}:
        time.sleep(1)
    else:
        thread = threading.Thread(target=f)
        thread.start()
        thread.join()
"""


@pytest.mark.parametrize(("beside", "count"), [(False, 1), (True, 3)])
def test_threads_that_report_units_at_one_time_are_counted(beside, count):
    with started(THREADS.format(beside=beside), ["__main__:f"]) as program:
        wait(program, lambda: program.plan.units > 5)
        run = Run(program, 1)
        run.set_slot_units(1)
        run.rest(0.1, 200, lambda: False)
        assert run.reporters == count


def test_threads_that_live_for_one_unit_have_their_time_known():
    """Each thread's time on a CPU, and its wait for one: nearly 0, and known."""
    with started(THREADS.format(beside=False), ["__main__:f"]) as program:
        wait(program, lambda: program.plan.units > 5)
        run = Run(program, 1)
        run.set_slot_units(1)
        run.rest(0.1, 200, lambda: False)
        slots = run.slots(["__main__:f"])
    known = slots.good & np.isfinite(slots.cpu_ns) & np.isfinite(slots.wait_ns)
    assert known.sum() > 0.9 * slots.good.sum()
    took = slots.time_ns[known]
    assert ((slots.cpu_ns + slots.wait_ns)[known] <= took + 1).all()
    # It sleeps for 2 ms; at most the rest is its own time.
    assert np.median(slots.cpu_ns[known] / took) < 0.5


def test_delays_end_with_the_tool():
    """If the tool is killed, the program runs at full speed within a second."""
    source = (
        "import sys, time\n"
        f"sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "import numpy as np, test_slots as t\n"
        "from speed_bump.experiment.slots.measure import Run\n"
        "with t.started(sys.argv[1], ['__main__:f']) as program:\n"
        "    t.wait(program, lambda: program.plan.units > 5)\n"
        "    run = Run(program, 1); run.rule(['__main__:f']); run.set_slot_units(1)\n"
        "    b = t.block(['__main__:f'], 3000, 20_000_000, np.random.default_rng(1))\n"
        "    b.masks[:] = 1\n"
        "    print(program.pid, flush=True)\n"
        "    run.make(b, 0, lambda: False)\n"
    )
    here, there = os.pipe()
    more = f"import os; os.write({there}, b'u')"
    tool = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", source, UNITS.format(more=more)],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, there, there)],
    )
    os.close(there)
    try:
        rates = []
        end = time.monotonic() + PATIENCE_S
        # Until units have been slow for a while: the delays are in force.
        while time.monotonic() < end:
            rates.append(_units(here, 0.5))
            if len(rates) > 3 and rates[-1] < 60 and rates[-2] < 60:
                break
        assert 0 < rates[-1] < 60
        os.kill(tool, signal.SIGKILL)
        _units(here, 1.0)
        fast = max(_units(here, 0.5) for _ in range(6))
        assert fast > 2 * rates[-1]
    finally:
        os.waitpid(tool, 0)
        os.close(here)


def _units(fd, seconds):
    """Units of work in that time."""
    os.set_blocking(fd, False)
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        try:
            count += len(os.read(fd, 1 << 16))
        except BlockingIOError:
            time.sleep(0.01)
    return count


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_that_come_and_go_are_in_it_from_their_first_call(method):
    name = "__mp_main__:f" if method == "spawn" else "__main__:f"
    source = WORKERS.format(method=method)
    if method == "spawn":
        # The children import it, so it has to be a file.
        source = (
            "import tempfile, runpy, os, sys\n"
            "path = os.path.join(tempfile.mkdtemp(), 'workers.py')\n"
            f"open(path, 'w').write({source!r})\n"
            "sys.argv = [path]\n"
            "os.execv(sys.executable, [sys.executable, path])\n"
        )
    with started(source, ["*:f"]) as program:
        wait(program, lambda: program.plan.units > 1)
        run = Run(program, 1)
        run.rule([name])
        run.set_slot_units(1)
        run.rest(0, 12, lambda: False)
        slots = run.slots([name])
        lost = program.plan.lost
    assert lost == 0
    # Workers of one unit end before it does.
    assert (slots.calls[slots.good][1:, 0] == 150).all()


# In each unit, every thread of every worker calls f a number of times, and when all are
# done, the unit is reported; then a tenth of the workers end and as many are started.
CROWD = """
import os, threading, speed_bump
PROCESSES, THREADS, CALLS = {processes}, {threads}, {calls}
def f(): pass
def work(go, done):
    both = threading.Barrier(THREADS + 1)
    def calls():
        while True:
            both.wait()
            for _ in range(CALLS): f()
            both.wait()
    for _ in range(THREADS):
        threading.Thread(target=calls, daemon=True).start()
    while os.read(go, 1) == b"g":
        both.wait()
        both.wait()
        os.write(done, b"d")
    os._exit(0)
here, done = os.pipe()
def begin():
    go, signal = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(signal)
        # What others wait at must end with the parent, not with this child.
        for _, other in workers: os.close(other)
        work(go, done)
    os.close(go)
    workers.append((pid, signal))
workers = []
while True:
    while len(workers) < PROCESSES: begin()
    for _, signal in workers: os.write(signal, b"g")
    left = PROCESSES
    while left: left -= len(os.read(here, left))
    speed_bump.progress()
    for pid, signal in workers[: PROCESSES // 10]:
        os.write(signal, b"q")
        os.close(signal)
        os.waitpid(pid, 0)
    del workers[: PROCESSES // 10]
"""
# 200 workers with 5 threads each take a minute or two on two CPUs.
PROCESSES = int(os.environ.get("SB_PROCESSES") or 20)


@pytest.mark.one_python
def test_many_processes_and_threads_under_one_plan():
    """Nothing is lost or counted twice, also for workers that start and end meanwhile."""
    threads, calls, delay_ns = 5, 4, 50_000
    each = PROCESSES * threads * calls
    source = CROWD.format(processes=PROCESSES, threads=threads, calls=calls)
    with started(source, ["__main__:f"]) as program:
        wait(program, lambda: program.plan.units > 2)
        run = Run(program, 1)
        run.rule(["__main__:f"])
        run.set_slot_units(1)
        run.rest(0, 3, lambda: False)
        planned = block(["__main__:f"], 30, delay_ns, np.random.default_rng(2))
        run.make(planned, 0, lambda: False)
        run.rest(0, 3, lambda: False)
        slots = run.slots(["__main__:f"])
        lost = program.plan.lost
    assert lost == 0
    inside = np.flatnonzero(slots.block == 0)
    assert len(inside) == 30
    assert slots.good[1:].all()
    # The first slot of the plan began before it.
    assert (slots.calls[inside, 0] == each).all()
    on = in_arm(slots, 0)[inside]
    assert on.sum() >= 5
    assert (slots.delivered_ns[inside[~on], 0] == 0).all()
    assert (slots.delivered_ns[inside[on], 0] >= each * delay_ns).all()


def test_a_run_that_ends_early_says_what_was_in_force():
    with started(UNITS.format(more=""), ["__main__:f"]) as program:
        wait(program, lambda: program.plan.units > 5)
        run = Run(program, 1)
        run.rule(["__main__:f"])
        run.set_slot_units(1)
        until = time.monotonic() + 0.5
        planned = block(["__main__:f"], 100_000, 100_000, np.random.default_rng(1))
        run.make(planned, 0, lambda: time.monotonic() > until)
        run.rest(0.2, 30, lambda: False)
        slots = run.slots(["__main__:f"])
    assert (slots.block == 0).sum() > 20
    assert (slots.block == -1).sum() > 10
    bad = slots.good & (slots.mask == 0) & (slots.delivered_ns[:, 0] > 0)
    assert bad.sum() <= 2
    assert (slots.delivered_ns[slots.good & (slots.mask == 1), 0] > 0).mean() > 0.9


@pytest.mark.parametrize(
    ("more", "progress"),
    [
        ("f()", read(["__main__:f"], None)),
        ("f()", read(["__main__:[f]"], None)),
        ("speed_bump.progress('here', 2)", read(["here"], None)),
        ("print('done', flush=True)", read([], "done")),
    ],
)
def test_what_a_unit_may_be(more, progress):
    with started(UNITS.format(more=more), ["__main__:g"], progress) as program:
        program.look()
        wait(program, lambda: program.look() or program.plan.units > 5)
        run = Run(program, 1)
        run.rule(["__main__:g"])
        # f() is called twice in each turn, and here() is two units.
        run.set_slot_units(1 if progress.regex else 2)
        run.rest(0, 30, lambda: False)
        slots = run.slots(["__main__:g"])
        tids = run.reporters
    calls = slots.calls[slots.good][:, 0]
    assert np.median(calls) == 3
    # Lines are counted by the tool, so the CPU time of their thread is not known.
    assert (tids == 0) == bool(progress.regex)
    assert np.isnan(slots.cpu_ns).all() == bool(progress.regex)


def test_runs_are_put_together():
    def made(number, names):
        with started(UNITS.format(more=""), ["__main__:[fg]"]) as program:
            wait(program, lambda: program.plan.units > 5)
            run = Run(program, number)
            run.rule(names)
            run.set_slot_units(1)
            run.rest(0, 10, lambda: False)
            return run

    names = ["__main__:f", "__main__:g"]
    runs = [made(1, names[:1]), made(2, names[::-1])]
    slots = together([run.slots(names) for run in runs], 2)
    first, second = (slots.good & (slots.run == n) for n in (1, 2))
    assert first.any()
    assert second.any()
    assert np.median(slots.calls[first], axis=0).tolist() == [1, 0]
    assert np.median(slots.calls[second], axis=0).tolist() == [1, 3]
    assert not slots.good[np.flatnonzero(slots.run == 2)[0]]


def test_slots_that_were_lost_do_not_move_the_others():
    """A slow tool loses slots; the plan of the others is still known."""
    with started(UNITS.format(more=""), ["__main__:f"]) as program:
        wait(program, lambda: program.plan.units > 5)
        run = Run(program, 1)
        run.rule(["__main__:f"])
        run.set_slot_units(1)
        run.rest(0, 10, lambda: False)
        planned = block(["__main__:f"], 900, 100_000, np.random.default_rng(1))
        looks = []

        def slow():
            looks.append(0)
            if len(looks) == 4:
                # Rows read from here on follow a gap.
                run._seen.pop()
            return False

        run.make(planned, 0, slow)
        run.rest(0, 10, lambda: False)
        slots = run.slots(["__main__:f"])
    assert (np.diff(slots.number) > 1).sum() == 1
    on = slots.delivered_ns[:, 0] > 0
    assert on[slots.good & (slots.mask == 1)].mean() > 0.95
    assert on[slots.good & (slots.mask == 0)].mean() < 0.05
