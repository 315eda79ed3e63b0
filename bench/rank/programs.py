# SPDX-License-Identifier: MIT
"""Programs whose criticality is known by construction: ``programs.py NAME SECONDS``.

Stages take a fixed time by the clock, so that what they hide is known: a CPU stage is
busy so long, a waiting stage sleeps most of it and is busy for the rest, since a sleep
alone ends late. Each says ``speed_bump.progress()`` once a unit of work. The truth about
each is in truth.py.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time

import speed_bump

now = time.perf_counter
LATE = 0.0004  # a sleep may end so much later


def busy(seconds: float) -> None:
    """Hold the CPU so long."""
    end = now() + seconds
    while now() < end:
        pass


def wait_until(end: float) -> None:
    """Leave the CPU until then, to a few microseconds."""
    left = end - now() - LATE
    if left > 0:
        time.sleep(left)
    while now() < end:
        pass


def wait(seconds: float) -> None:
    wait_until(now() + seconds)


def loop(n: int) -> int:
    """CPU work that is a number of steps, not a time."""
    total = 0
    for i in range(n):
        total += i * i
    return total


# ------------------------------------------------------------------- serial


def f() -> None:
    loop(9000)


def g() -> None:
    loop(6000)


def h() -> None:
    loop(3000)


def serial(until: float) -> None:
    """One after the other: every delay arrives."""
    while now() < until:
        f()
        g()
        h()
        speed_bump.progress()


def phases(until: float) -> None:
    """Half a second of one function, half a second of another."""
    while now() < until:
        for function in (f_phase, g_phase):
            end = now() + 0.5
            while now() < end:
                function()
                speed_bump.progress()


def f_phase() -> None:
    loop(9000)


def g_phase() -> None:
    loop(9000)


# ------------------------------------------------------- processes in a pipeline


class Pipeline:
    """A producer process, at most two units ahead of the consumer."""

    def __init__(self, produce, until: float) -> None:
        context = multiprocessing.get_context("fork")
        self.room = context.Semaphore(2)
        self.ready = context.Semaphore(0)
        process = context.Process(
            target=self._produce, args=(produce, until), daemon=True
        )
        process.start()

    def _produce(self, produce, until: float) -> None:
        while now() < until + 5:
            self.room.acquire()
            produce()
            self.ready.release()

    def take(self) -> None:
        self.ready.acquire()
        self.room.release()


def cpu() -> None:
    """The CPU stage: 2 ms."""
    busy(0.002)


def record() -> None:
    """What is done between two waits of the device."""
    busy(0.0005)


def stages(until: float) -> None:
    """A CPU stage of 2 ms feeds one that waits 4.5 ms and records 0.5 ms."""
    pipeline = Pipeline(cpu, until)
    while now() < until:
        pipeline.take()
        wait(0.0045)
        record()
        speed_bump.progress()


def feed() -> None:
    busy(0.0005)


def produce_slowly() -> None:
    wait(0.0045)
    feed()


def swapped(until: float) -> None:
    """The waiting stage feeds the CPU stage."""
    pipeline = Pipeline(produce_slowly, until)
    while now() < until:
        pipeline.take()
        cpu()
        speed_bump.progress()


# ------------------------------------------------------------------ fork and join


class Workers:
    """A process for each function, which runs it whenever it is told to."""

    def __init__(self, *functions) -> None:
        context = multiprocessing.get_context("fork")
        self.pipes = []
        for function in functions:
            ours, theirs = context.Pipe()
            context.Process(
                target=self._work, args=(function, theirs), daemon=True
            ).start()
            self.pipes.append(ours)

    @staticmethod
    def _work(function, pipe) -> None:
        while pipe.recv_bytes():
            function()
            pipe.send_bytes(b"done")

    def together(self) -> None:
        for pipe in self.pipes:
            pipe.send_bytes(b"go")
        for pipe in self.pipes:
            pipe.recv_bytes()


def long_branch() -> None:
    wait(0.004)


def short_branch() -> None:
    wait(0.002)


def fork_join(until: float) -> None:
    """A branch of 4 ms beside one of 2 ms."""
    workers = Workers(long_branch, short_branch)
    while now() < until:
        workers.together()
        speed_bump.progress()


def left_branch() -> None:
    wait(0.003)


def right_branch() -> None:
    wait(0.003)


def fork_join_equal(until: float) -> None:
    """Two branches of 3 ms."""
    workers = Workers(left_branch, right_branch)
    while now() < until:
        workers.together()
        speed_bump.progress()


def straggler() -> None:
    wait(0.004)


def quick() -> None:
    wait(0.002)


def quick_too() -> None:
    wait(0.002)


def barrier(until: float) -> None:
    """Three that wait for one another, one of them late.

    The two others are different functions: a delay in both at once, beside the straggler,
    would want three CPUs.
    """
    workers = Workers(straggler, quick, quick_too)
    while now() < until:
        workers.together()
        speed_bump.progress()


# -------------------------------------------------------------------------- lock


def inside() -> None:
    wait(0.002)


def outside() -> None:
    wait(0.001)


def lock(until: float) -> None:
    """Two processes, 2 ms in the lock and 1 ms outside it each."""
    context = multiprocessing.get_context("fork")
    mutex = context.Lock()

    def work() -> None:
        while now() < until:
            with mutex:
                inside()
                speed_bump.progress()
            outside()

    processes = [context.Process(target=work) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


# --------------------------------------------------------------------------- GIL


def holding() -> None:
    loop(9000)


def releasing() -> None:
    wait(0.006)


def after_release() -> None:
    loop(600)


def threads(work, until: float) -> None:
    def repeat() -> None:
        while now() < until:
            work()
            speed_bump.progress()

    both = [threading.Thread(target=repeat) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()


def gil_holding(until: float) -> None:
    """Two threads that compute: one at a time."""
    threads(holding, until)


def release_and_go() -> None:
    time.sleep(0.006)
    after_release()


def gil_releasing(until: float) -> None:
    """Two threads that wait, each in its own time."""
    threads(release_and_go, until)


# -------------------------------------------------------------------------- ticks


def step() -> None:
    busy(0.001)


def tick(until: float) -> None:
    """A step of 1 ms every 4 ms."""
    due = now()
    while due < until:
        due += 0.004
        wait_until(due)
        step()
        speed_bump.progress()


# ---------------------------------------------------------------- beside the work


def aside() -> None:
    wait(0.003)


def shams(until: float) -> None:
    """A function that nobody waits for, beside a serial one."""
    context = multiprocessing.get_context("fork")

    def alone() -> None:
        while now() < until + 5:
            aside()

    context.Process(target=alone, daemon=True).start()
    while now() < until:
        wait(0.0025)
        record()
        speed_bump.progress()


def main() -> None:
    name, seconds = sys.argv[1], float(sys.argv[2])
    globals()[name](now() + seconds)


if __name__ == "__main__":
    main()
