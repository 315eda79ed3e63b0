# SPDX-License-Identifier: MIT
"""The time in functions themselves, where threads have to wait for a CPU."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from records import made
from speed_bump import _core
from speed_bump.config import parse_targets
from speed_bump.experiment.account import (
    CPU_WAIT,
    PYTHON,
    WAIT,
    Frame,
    Looks,
    Thread,
    account,
)
from speed_bump.experiment.fit.finding import own_share
from speed_bump.experiment.program import machine as watching
from speed_bump.experiment.program import stacks
from speed_bump.experiment.program.looks import Look
from speed_bump.experiment.program.machine import Reading
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner
from speed_bump.experiment.program.samples import Own, Samples, added, self_times
from speed_bump.experiment.program.workload import Workload
from speed_bump.experiment.record import Machine, SelfTime

SECOND = 10**9
NAP, WORK = "m:nap", "m:work"


def samples(*rows: tuple[int, str, Own]) -> Samples:
    """Of a second, with a look each millisecond."""
    python = {(thread, name): own for thread, name, own in rows}
    return Samples(SECOND, 1000, python, seen=True)


def test_waiting_for_a_cpu_is_divided_by_what_is_computed() -> None:
    # It runs for 0.2 s, of which 0.19 in work(), and waits 0.6 s after it has woken up.
    found = self_times(
        samples(
            (1, NAP, Own(200, 610, 600_000_000)),
            (1, WORK, Own(0, 180, 0)),
            (1, "", Own(0, 10, 0)),
        )
    )
    assert found[NAP].share == pytest.approx(0.2 + 0.01 * 4)
    assert found[WORK].share == pytest.approx(0.18 * 4)
    assert found[WORK].queued == pytest.approx(0.18 * 3)
    # On a machine for itself it would take 0.4 s.
    own = own_share(found, WORK, Machine(0.25, 0.8, 1))
    assert own and own.value == pytest.approx(0.72)
    # Time asleep does not depend on the CPUs.
    own = own_share(found, NAP, Machine(0.25, 4.0, 1, given=0.5))
    assert own and own.value == pytest.approx(0.2 + 0.01 / 0.5)
    # If other threads of the program have the CPU, all will still wait for it.
    own = own_share(found, WORK, Machine(0.25, 4.0, 1))
    assert own and own.value == pytest.approx(0.18)
    # And if others have half of it, work() has so much more of what is left.
    own = own_share(found, WORK, Machine(0.25, 4.0, 1, given=0.5))
    assert own and own.value == pytest.approx(0.36)


def test_stacks_that_could_not_be_read_are_of_a_thread_that_was_awake() -> None:
    """They are where its other samples are; those of other threads do not change."""
    rows = (1, WORK, Own(0, 300)), (1, NAP, Own(200, 100)), (2, WORK, Own(0, 100))
    lost = samples(*rows)
    lost.lost.update({1: 400})
    once = self_times(lost)
    assert once[WORK].share == pytest.approx(0.7)
    assert once[NAP].share == pytest.approx(0.2 + 0.2)
    both = added(lost, lost)
    assert both.lost == {1: 800}
    assert self_times(both)[WORK].share == pytest.approx(0.7)


def test_a_crowd_is_what_there_would_be_without_other_programs() -> None:
    # Two threads that never sleep, with a third of one CPU each.
    two = Reading(2, 4, 3, 3, alone=2.0)
    assert (two.crowd, two.given) == (2, 0.5)
    # Twelve that hardly compute, and wait behind others for most of the time.
    twelve = Reading(10, 240, 218, 100, alone=0.2)
    assert twelve.crowd == pytest.approx(0.32)
    assert Machine(0.04, 2.5, 1, given=twelve.given, crowd=0.32).is_crowded is False
    assert Machine(0.04, 2.5, 1).is_crowded is True
    # A server and its client, which seldom want the CPU at the same time.
    assert Machine(0.59, 0.98, 1, given=0.97, crowd=0.95).is_crowded is True
    # Nearly alone on the machine, and a thread that nothing waits for.
    assert Machine(0.995, 0.98, 1, given=0.999, crowd=0.95).is_crowded is False
    assert Machine(0.3, 0.9, 1, given=0.3, crowd=0.3).is_crowded is False
    # Of a third of its waiting others had the CPU.
    some = Machine(0.59, 0.97, 1, given=0.86, crowd=0.84)
    assert some.is_crowded and not some.is_full
    # Of a thread's waiting, a third was for the other one.
    assert watching.part_of_own(200, 100, 400) == pytest.approx(1 / 3)
    assert watching.part_of_own(100, 100, 400) == 0


def test_only_the_time_since_it_is_watched_counts() -> None:
    """A server that has run for a day is no crowd."""
    begin = time.thread_time()
    while time.thread_time() < begin + 0.5:
        pass
    machine = watching.Machine()
    time.sleep(0.3)
    reading = machine.look([os.getpid()])
    assert reading.run_ns < 0.25 * SECOND <= reading.clock_ns
    assert watching.spent([os.getpid()]).run_ns > 0.5 * SECOND
    # A process that began meanwhile counts from its start.
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    time.sleep(0.5)
    reading = machine.look([child.pid])
    child.kill()
    child.wait()
    assert reading.run_ns + reading.wait_ns > 0.3 * SECOND
    assert reading.crowd > 0.1


def test_a_thread_that_never_ran_is_where_it_was_seen() -> None:
    found = self_times(samples((1, NAP, Own(0, 900, 898_000_000))))
    assert found[NAP].share == pytest.approx(0.9)


def test_threads_are_divided_each_by_itself_and_rounds_are_joined() -> None:
    one = samples((1, NAP, Own(0, 100, 0)), (2, WORK, Own(0, 100, 50_000_000)))
    other = samples((2, WORK, Own(0, 0, 50_000_000)), (2, NAP, Own(0, 100, 0)))
    found = self_times(added(one, other))
    assert found[NAP].share == pytest.approx((100 + 100 * 2) / 2000)
    assert found[WORK].share == 0
    assert one.python[2, WORK] == Own(0, 100, 50_000_000)


def test_the_account_has_the_waits_that_are_known() -> None:
    work = Frame(PYTHON, WORK, "/m.py", 1)
    looks = Looks(frames=[work, Frame(WAIT, CPU_WAIT)])
    looks.stacks = {(0, (0,)): 40.0, (0, (0, 1)): 60.0}
    # By the kernel it waited for three quarters, or for less than was seen.
    for run_ns, waits in ((25, 0.75), (50, 0.6)):
        looks.threads = [Thread(1, 1, 100, run_ns, 100 - run_ns, True)]
        found = account(looks, {WORK})
        assert found
        shares = {row.what: row.share for row in found.rows}
        assert shares[CPU_WAIT] == pytest.approx(waits)
        assert found.own[WORK].asleep == 0
        assert found.others == []


@contextmanager
def working(tmp_path: Path, text: str, targets: str) -> Iterator[Workload]:
    """A program that has done its imports."""
    program = tmp_path / "program.py"
    program.write_text(text)
    runner = Runner([sys.executable, str(program)], show_output=False)
    with runner, Workload(runner, parse_targets(targets, "test"), Progress()) as running:
        time.sleep(1)
        yield running


# It notes how long it was in nap(), and how long in all.
NAPS = """
import os, struct, time
notes = os.open({notes!r}, os.O_WRONLY | os.O_CREAT)
def nap():
    time.sleep(0.0005)
def work():
    end = time.thread_time() + 0.002
    while time.thread_time() < end:
        pass
napped, begin = 0.0, time.monotonic()
while True:
    before = time.monotonic()
    nap()
    napped += time.monotonic() - before
    work()
    os.pwrite(notes, struct.pack("dd", napped, time.monotonic() - begin), 0)
"""


@pytest.fixture
def burners() -> Iterator[int]:
    """A CPU that three others use."""
    cpu = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    burn = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(burn) for _ in range(3)]
    yield cpu
    for process in running:
        process.kill()
        process.wait()
    os.sched_setaffinity(0, before)


@pytest.mark.timed
def test_a_function_that_wakes_up_has_not_the_time_of_others(
    tmp_path: Path, burners: int
) -> None:
    """After each sleep the thread waits for its CPU, in the function that slept."""
    notes = tmp_path / "notes"

    def noted() -> tuple[float, float]:
        napped, whole = struct.unpack("dd", notes.read_bytes())
        return napped, whole

    text = NAPS.format(notes=str(notes))
    with working(tmp_path, text, "__main__:nap\n__main__:work\n") as running:
        # With others on this CPU besides, looks are few, and one time may be wrong.
        for _ in range(4):
            before = noted()
            found = self_times(running.sampler.sample(4 * SECOND, lambda: None))
            napped, whole = (b - a for a, b in zip(before, noted(), strict=True))
            nap, work = found["__main__:nap"], found["__main__:work"]
            assert nap.share + work.share == pytest.approx(1, abs=0.15)
            if (
                abs(nap.share - napped / whole) < 0.1
                and nap.queued < nap.share
                # It hardly computes in nap(), and never sleeps in work().
                and nap.asleep == pytest.approx(nap.share - nap.queued, abs=0.05)
                and work.asleep < 0.05
            ):
                return
    raise AssertionError((found, napped / whole))


PACKS = """
import os, threading, zlib
data = os.urandom(1 << 16)
def pack():
    zlib.compress(data, 1)
def busy():
    for _ in range(1000):
        sum(range(100))
def work():
    while True:
        busy()
threading.Thread(target=work, daemon=True).start()
while True:
    pack()
"""


@pytest.mark.timed
def test_waiting_for_the_gil_is_not_the_functions_time(tmp_path: Path) -> None:
    """After each call without it the thread waits until the other one yields: 5 ms."""
    with working(tmp_path, PACKS, "__main__:pack\n__main__:busy\n") as running:
        found = self_times(running.sampler.sample(2 * SECOND, lambda: None))
    assert 0 < found["__main__:pack"].share < 0.7
    assert found["__main__:busy"].share > 0.3


TWICE = """
import os, threading, zlib
data = os.urandom(1 << 20)
def pack():
    zlib.compress(data, 1)
def copy():
    zlib.crc32(data)
def work():
    while True:
        pack()
threading.Thread(target=work, daemon=True).start()
while True:
    pack()
    copy()
"""


@pytest.mark.timed
def test_it_is_known_whether_several_threads_are_in_a_function(tmp_path: Path) -> None:
    with working(tmp_path, TWICE, "__main__:pack\n__main__:copy\n") as running:
        seen = running.sampler.sample(2 * SECOND, lambda: None)
    found = self_times(added(seen, seen))
    assert 0.5 < found["__main__:pack"].twice <= found["__main__:pack"].share / 2
    assert found["__main__:copy"].share > 0 == found["__main__:copy"].twice


def test_what_is_computed_beside_the_thread_that_reports_units() -> None:
    """Of the same process, because others have a GIL of their own."""
    seen = samples(
        (1, "m:unit", Own(awake=500, pid=9)),
        (2, "m:pack", Own(awake=400, pid=9)),
        (3, "m:load", Own(awake=400, pid=8)),
    )
    found = self_times(seen, tids={1})
    beside = {name: own.beside for name, own in found.items()}
    assert beside == {"m:unit": 0, "m:pack": pytest.approx(0.4), "m:load": 0}
    assert self_times(seen, tids={1}, waits=["m:pack"])["m:pack"].beside == 0


SERVES = """
import select, socket, threading, time
left, right = socket.socketpair()
def ask():
    while True:
        time.sleep(0.02)
        right.send(b"x")
def nap():
    time.sleep(0.005)
def serve():
    select.select([left], [], [])
    left.recv(1)
threading.Thread(target=ask, daemon=True).start()
while True:
    serve()
    nap()
"""


@pytest.mark.timed
def test_waiting_for_a_client_is_not_the_servers_time(tmp_path: Path) -> None:
    """Also if it is not known which C functions are called."""
    with working(tmp_path, SERVES, "__main__:serve\n__main__:nap\n") as running:
        found = self_times(running.sampler.sample(2 * SECOND, lambda: None))
    serve = found.get("__main__:serve", SelfTime(0.0, 0.0))
    assert serve.share < 0.1
    assert found["__main__:nap"].asleep > 0.1


def test_a_function_in_which_no_thread_was_found_has_no_time_of_its_own() -> None:
    found = self_times(
        samples((1, WORK, Own(0, 100, 0))), ["m:f", WORK, "/lib.so:f", "m:42"]
    )
    assert found["m:f"].share == 0 and found["m:f"].looks > 0
    assert found[WORK].share > 0
    # Native functions are sampled in another way; a line has no time of its own.
    assert set(found) == {"m:f", WORK}
    assert not self_times(Samples(), ["m:f"])


def test_a_thread_that_goes_on_waiting_for_a_cpu_waits_where_it_was() -> None:
    """Though no sample of this round found it there: it began before."""
    key = {"pid": 1, "tid": 7, "wait": "", "offset": 0, "codes": (0,)}
    seen = [made(_core.Stack, **key, looks=0, queued_ns=9)]
    target = made(_core.StackTarget, address=5, name=WORK)
    found = stacks.read(Look(1, 0.001, seen, [target]), {}, 1)
    assert [(s.frames, n) for s, n in found.samples.items()] == [((WORK,), 0)]
    assert list(found.queued_ns.values()) == [9]
