# SPDX-License-Identifier: MIT
"""Programs whose criticality is known by construction: ``programs.py NAME SECONDS``.

Work is CPU time: a function computes until its thread has used a given CPU time, so that
other programs on the machine lengthen the work instead of replacing a part of it. Waits
are real waits: a sleep, a semaphore, a pipe. Each program calls
``speed_bump.progress()`` once per unit of work, and prints its units and seconds when it
ends. truth.py has the true values for each.

BENCH_CHANGE in the environment changes functions: ``cpu*0.5,record+0.2`` makes cpu() take
half of its time, and adds 0.2 ms of CPU time to each call of record(). BENCH_MIDDLE is
the time in seconds after which half_speed() becomes slow. BENCH_APART=1 gives each
process a CPU that no other one needs: schedulers that save power pack a program on one
CPU as long as it is mostly asleep, and there a stage that is hidden becomes a rival.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess

try:
    from speed_bump import progress
except ImportError:  # other profilers have a Python of their own

    def progress() -> None:
        pass


now = time.perf_counter
cpu_s = time.thread_time
MS = 0.001
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29

FACTOR: dict[str, float] = {}
EXTRA: dict[str, float] = {}
for change in filter(None, os.environ.get("BENCH_CHANGE", "").split(",")):
    name, sign, number = re.split(r"([*+])", change)
    (FACTOR if sign == "*" else EXTRA)[name] = float(number)

context = multiprocessing.get_context("fork")
# The number of units of each process or thread that reports them.
UNITS = context.RawArray("q", 2)


def unit(reporter: int = 0) -> None:
    """Report a unit of work."""
    UNITS[reporter] += 1
    progress()


# The CPUs that processes may still have to themselves.
CPUS = sorted(os.sched_getaffinity(0)) if os.environ.get("BENCH_APART") else []


def begin_process(function: Callable[..., None], *arguments: object) -> BaseProcess:
    """A process that ends with the one that started it, however that ends."""
    own = set(CPUS[:1])

    def body() -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if own:
            os.sched_setaffinity(0, own)
        function(*arguments)

    if len(CPUS) > 1:
        del CPUS[0]
    process = context.Process(target=body, daemon=True)
    process.start()
    if CPUS:
        # The process that starts others works, or only waits for them.
        os.sched_setaffinity(0, CPUS)
    return process


def work(function: str, ms: float) -> float:
    """The CPU time that a function takes, in seconds."""
    return MS * (ms * FACTOR.get(function, 1) + EXTRA.get(function, 0))


def wait(ms: float, function: str = "") -> None:
    """Sleep, as a part of a function or of none."""
    time.sleep(MS * ms * FACTOR.get(function, 1))


# ------------------------------------------------------------------- one after the other


def f() -> None:
    end = cpu_s() + work("f", 0.9)
    while cpu_s() < end:
        pass


def g() -> None:
    end = cpu_s() + work("g", 0.6)
    while cpu_s() < end:
        pass


def h() -> None:
    end = cpu_s() + work("h", 0.3)
    while cpu_s() < end:
        pass


def serial(until: float) -> None:
    """Serial functions: every delay arrives."""
    while now() < until:
        f()
        g()
        h()
        unit()


def often() -> None:
    end = cpu_s() + work("often", 2)
    while cpu_s() < end:
        pass


def seldom() -> None:
    end = cpu_s() + work("seldom", 4)
    while cpu_s() < end:
        pass


def rare(until: float) -> None:
    """Every 50th unit has another function too, and takes three times as long."""
    while now() < until:
        for _ in range(49):
            often()
            unit()
        often()
        seldom()
        unit()


def f_phase() -> None:
    end = cpu_s() + work("f_phase", 0.9)
    while cpu_s() < end:
        pass


def g_phase() -> None:
    end = cpu_s() + work("g_phase", 0.9)
    while cpu_s() < end:
        pass


def phases(until: float) -> None:
    """Half a second in one function, half a second in another."""
    while now() < until:
        for function in (f_phase, g_phase):
            end = now() + 0.5
            while now() < end:
                function()
                unit()


# --------------------------------------------------------------- processes in a pipeline


class Pipeline:
    """A producer process that makes up to ``depth`` units ahead of the consumer."""

    def __init__(self, produce: Callable[[], None], until: float, depth: int) -> None:
        self.room = context.Semaphore(depth)
        self.ready = context.Semaphore(0)
        begin_process(self._make, produce, until)

    def _make(self, produce: Callable[[], None], until: float) -> None:
        while now() < until + 5:
            self.room.acquire()
            produce()
            self.ready.release()

    def take(self) -> None:
        self.ready.acquire()
        self.room.release()


def cpu() -> None:
    end = cpu_s() + work("cpu", 2)
    while cpu_s() < end:
        pass


def record() -> None:
    end = cpu_s() + work("record", 0.5)
    while cpu_s() < end:
        pass


def stages(until: float) -> None:
    """A CPU stage of 2 ms feeds one that waits 4.5 ms and records 0.5 ms."""
    pipeline = Pipeline(cpu, until, 2)
    while now() < until:
        pipeline.take()
        wait(4.5)
        record()
        unit()


def feed() -> None:
    end = cpu_s() + work("feed", 0.5)
    while cpu_s() < end:
        pass


def wait_and_feed() -> None:
    wait(4.5)
    feed()


def swapped(until: float) -> None:
    """The waiting stage feeds the CPU stage."""
    pipeline = Pipeline(wait_and_feed, until, 2)
    while now() < until:
        pipeline.take()
        cpu()
        unit()


def parse() -> None:
    end = cpu_s() + work("parse", 1.5)
    while cpu_s() < end:
        pass


def pack() -> None:
    end = cpu_s() + work("pack", 0.5)
    while cpu_s() < end:
        pass


def write_out() -> None:
    end = cpu_s() + work("write_out", 0.4)
    while cpu_s() < end:
        pass


def parse_and_pack() -> None:
    parse()
    pack()


def prefetch(until: float) -> None:
    """A loader that keeps eight units ahead, beside a loop of 5 ms."""
    pipeline = Pipeline(parse_and_pack, until, 8)
    while now() < until:
        pipeline.take()
        record()
        wait(4.1)
        write_out()
        unit()


def half_speed(until: float) -> None:
    """The same; in the middle the loop's functions and its wait become twice as long."""
    pipeline = Pipeline(parse_and_pack, until, 8)
    middle = now() + float(os.environ.get("BENCH_MIDDLE", "12"))
    while now() < until:
        for _ in range(1 if now() < middle else 2):
            record()
            wait(4.1)
            write_out()
        pipeline.take()
        unit()


def compute() -> None:
    end = cpu_s() + work("compute", 2)
    while cpu_s() < end:
        pass


def store() -> None:
    end = cpu_s() + work("store", 2)
    while cpu_s() < end:
        pass


def decode() -> None:
    end = cpu_s() + work("decode", 4)
    while cpu_s() < end:
        pass


def balanced(until: float, producer_ms: float, depth: int = 1) -> None:
    """A loop of 10 ms, fed by a producer that takes nearly as long."""

    def produce() -> None:
        wait(producer_ms - 4)
        decode()

    pipeline = Pipeline(produce, until, depth)
    while now() < until:
        pipeline.take()
        compute()
        wait(6)
        store()
        unit()


def balanced_10(until: float) -> None:
    """The producer has slack of a tenth of a unit."""
    balanced(until, 9)


def balanced_20(until: float) -> None:
    """The producer has slack of a fifth of a unit."""
    balanced(until, 8)


def starved(until: float) -> None:
    """The producer is the slower one, by 3 ms: what the loop does is hidden."""
    balanced(until, 13, 4)


def use() -> None:
    end = cpu_s() + work("use", 1)
    while cpu_s() < end:
        pass


def fill() -> None:
    end = cpu_s() + work("fill", 1)
    while cpu_s() < end:
        pass


def buffer(until: float, depth: int) -> None:
    """A producer of 4 ms and a consumer of 5 ms, with a buffer between them."""

    def produce() -> None:
        wait(3)
        fill()

    pipeline = Pipeline(produce, until, depth)
    while now() < until:
        pipeline.take()
        wait(4)
        use()
        unit()


def buffer_1(until: float) -> None:
    """Of one unit."""
    buffer(until, 1)


def buffer_4(until: float) -> None:
    """Of 4 units."""
    buffer(until, 4)


def buffer_16(until: float) -> None:
    """Of 16 units."""
    buffer(until, 16)


# ------------------------------------------------------------------------ fork and join


class Workers:
    """A process for each function, which runs it on request."""

    def __init__(self, *functions: Callable[[], None]) -> None:
        self.pipes = []
        for function in functions:
            ours, theirs = context.Pipe()
            begin_process(self._work, function, theirs)
            self.pipes.append(ours)

    @staticmethod
    def _work(function, pipe) -> None:
        # The pipe is closed when the parent exits.
        with contextlib.suppress(EOFError):
            while pipe.recv_bytes():
                function()
                pipe.send_bytes(b"done")

    def together(self) -> None:
        for pipe in self.pipes:
            pipe.send_bytes(b"go")
        for pipe in self.pipes:
            pipe.recv_bytes()


def long_branch() -> None:
    wait(3, "long_branch")
    end = cpu_s() + work("long_branch", 1)
    while cpu_s() < end:
        pass


def short_branch() -> None:
    end = cpu_s() + work("short_branch", 2)
    while cpu_s() < end:
        pass


def fork_join(until: float) -> None:
    """A branch of 4 ms, most of it a wait, beside one that computes for 2 ms."""
    workers = Workers(long_branch, short_branch)
    while now() < until:
        workers.together()
        unit()


def left_branch() -> None:
    end = cpu_s() + work("left_branch", 0)
    while cpu_s() < end:
        pass
    wait(3, "left_branch")


def right_branch() -> None:
    end = cpu_s() + work("right_branch", 0)
    while cpu_s() < end:
        pass
    wait(3, "right_branch")


def fork_join_equal(until: float) -> None:
    """Two branches of 3 ms."""
    workers = Workers(left_branch, right_branch)
    while now() < until:
        workers.together()
        unit()


def straggler() -> None:
    end = cpu_s() + work("straggler", 0)
    while cpu_s() < end:
        pass
    wait(4, "straggler")


def quick() -> None:
    end = cpu_s() + work("quick", 0)
    while cpu_s() < end:
        pass
    wait(2, "quick")


def quick_too() -> None:
    end = cpu_s() + work("quick_too", 0)
    while cpu_s() < end:
        pass
    wait(2, "quick_too")


def barrier(until: float) -> None:
    """Three that wait for one another, one of them late."""
    workers = Workers(straggler, quick, quick_too)
    while now() < until:
        workers.together()
        unit()


# ---------------------------------------------------------------------------------- lock


def inside() -> None:
    wait(1.5, "inside")
    end = cpu_s() + work("inside", 0.5)
    while cpu_s() < end:
        pass


def outside() -> None:
    end = cpu_s() + work("outside", 1)
    while cpu_s() < end:
        pass


def lock(until: float) -> None:
    """Two processes, 2 ms in the lock and 1 ms outside it each."""
    mutex = context.Lock()

    def repeat(reporter: int) -> None:
        while now() < until:
            with mutex:
                inside()
                unit(reporter)
            outside()

    processes = [begin_process(repeat, i) for i in range(2)]
    for process in processes:
        process.join()


# ----------------------------------------------------------------------------------- GIL


def holding() -> None:
    end = cpu_s() + work("holding", 0.9)
    while cpu_s() < end:
        pass


def after_release() -> None:
    end = cpu_s() + work("after_release", 0.06)
    while cpu_s() < end:
        pass


def threads(function: Callable[[], None], until: float) -> None:
    def repeat(reporter: int) -> None:
        while now() < until:
            function()
            unit(reporter)

    both = [threading.Thread(target=repeat, args=(i,)) for i in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()


def gil_holding(until: float) -> None:
    """Two threads that compute: one at a time."""
    threads(holding, until)


def wait_and_go() -> None:
    wait(6)
    after_release()


def gil_releasing(until: float) -> None:
    """Two threads that wait, each in its own time."""
    threads(wait_and_go, until)


# --------------------------------------------------------------------------------- ticks


def step() -> None:
    end = cpu_s() + work("step", 1)
    while cpu_s() < end:
        pass


def tick(until: float) -> None:
    """A step of 1 ms every 4 ms."""
    due = now()
    while due < until:
        due += 4 * MS
        time.sleep(max(due - now(), 0))
        step()
        unit()


def render() -> None:
    end = cpu_s() + work("render", 6.4)
    while cpu_s() < end:
        pass


def frames(until: float) -> None:
    """A frame each 8 ms, in step with a display: what is late is shown a frame later."""
    while now() < until:
        render()
        unit()
        time.sleep(8 * MS - now() % (8 * MS))


# ----------------------------------------------------- delays that make more work


def grow() -> None:
    end = cpu_s() + work("grow", 2)
    while cpu_s() < end:
        pass


def handle() -> None:
    end = cpu_s() + work("handle", 0.25)
    while cpu_s() < end:
        pass


EVENT_MS = 0.5
# A device drops events that it has no room for.
MAX_EVENTS = 40


def amplified(until: float) -> None:
    """A device has an event every 0.5 ms, and each costs 0.25 ms: the longer a unit
    takes, the more events it must handle before it ends."""
    due = now()
    while now() < until:
        grow()
        for _ in range(MAX_EVENTS):
            if due > now():
                break
            handle()
            due += EVENT_MS * MS
        due = max(due, now())
        unit()


def backlog(until: float) -> None:
    """The same, but events that come while others are handled wait for the next unit:
    a quarter of the effect of a delay comes late."""
    due = now()
    while now() < until:
        grow()
        seen = now()
        for _ in range(MAX_EVENTS):
            if due > seen:
                break
            handle()
            due += EVENT_MS * MS
        due = max(due, seen)
        unit()


# ----------------------------------------------------------------------- beside the work


def aside() -> None:
    wait(2, "aside")
    end = cpu_s() + work("aside", 1)
    while cpu_s() < end:
        pass


def shams(until: float) -> None:
    """A function that no unit waits for, beside a serial one."""

    def alone() -> None:
        while now() < until + 5:
            aside()

    begin_process(alone)
    while now() < until:
        wait(2.5)
        record()
        unit()


def main() -> None:
    # A sleep ends when the timer fires, without the default slack of 50 us.
    LIBC.prctl(PR_SET_TIMERSLACK, 1)
    name, seconds = sys.argv[1], float(sys.argv[2])
    if unknown := (FACTOR.keys() | EXTRA.keys()) - globals().keys():
        sys.exit(f"BENCH_CHANGE: no function {', '.join(sorted(unknown))}")
    begin = now()
    globals()[name](begin + seconds)
    print(json.dumps({"units": sum(UNITS), "seconds": now() - begin}))


if __name__ == "__main__":
    main()
