# SPDX-License-Identifier: MIT
"""How much CPU time the threads of a program got and needed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

# The kernel says when a thread began to a tick of the clock.
EXACT_NS = 50_000_000


@dataclass
class Reading:
    """Sums, ns: of time on a CPU, and of waiting for one.

    ``others_ns`` of the waiting was for CPUs that other programs had: a thread waits for
    threads of the program as often as these had the CPU time that it had not.
    ``clock_ns`` is the time since the machine began to be watched; ``alone`` the threads
    that would have run at a time if none had waited for a CPU.
    """

    run_ns: int = 0
    wait_ns: int = 0
    others_ns: int = 0
    clock_ns: int = 0
    alone: float = 0.0

    def share(self, before: Reading) -> float:
        """The part of the needed CPU time that the program had since ``before``."""
        run, wait = self.run_ns - before.run_ns, self.wait_ns - before.wait_ns
        return run / (run + wait) if run + wait else 1.0

    @property
    def given(self) -> float:
        """What the share would be if threads of the program never waited for each other.

        NaN if unknown.
        """
        wanted = self.run_ns + self.wait_ns
        return 1 - self.others_ns / wanted if wanted else math.nan

    @property
    def crowd(self) -> float:
        """How many threads would want a CPU at a time without other programs.

        A thread that never sleeps would want one always.
        """
        if not self.clock_ns:
            return 0.0
        wanted = self.run_ns + self.wait_ns - self.others_ns
        return max(self.alone, wanted / self.clock_ns)


@dataclass
class _Thread:
    """A thread since ``begin_ns``, with the times for which it ran and waited before."""

    begin_ns: int
    run_before_ns: int
    wait_before_ns: int
    run_ns: int = 0
    wait_ns: int = 0


def part_of_own(all_ns: int, one_ns: int, busy: int) -> float:
    """The part of its waiting for a CPU in which other threads of its program had it.

    Args:
        all_ns: CPU time of the program
        one_ns: of the thread
        busy: how long all CPUs that they may use were busy, ns
    """
    own, rest = all_ns - one_ns, busy - one_ns
    return min(max(own / rest, 0.0), 1.0) if rest > 0 else float(own > 0)


def spent(pids: Iterable[int]) -> Reading:
    """The sums since these processes began."""
    found = Reading()
    for pid in pids:
        with suppress(OSError, ValueError):
            for name in os.listdir(f"/proc/{pid}/task"):
                run_ns, wait_ns = schedstat(pid, int(name))
                found.run_ns += run_ns
                found.wait_ns += wait_ns
    return found


class Machine:
    """Adds up the kernel's numbers for each thread (``/proc/PID/task/TID/schedstat``).

    Only time since this was made counts. Threads that have ended since the last reading
    keep their last values.
    """

    def __init__(self) -> None:
        self._threads: dict[tuple[int, int], _Thread] = {}
        self._steal = _steal_ticks()
        self._busy_ns = busy_ns()
        self._begin_ns = time.monotonic_ns()

    def look(self, pids: Iterable[int]) -> Reading:
        """Read the processes; returns the sums so far."""
        for pid in pids:
            with suppress(OSError):
                for name in os.listdir(f"/proc/{pid}/task"):
                    self._look_at(pid, int(name))
        now = time.monotonic_ns()
        found = Reading(clock_ns=now - self._begin_ns)
        busy = busy_ns() - self._busy_ns
        all_ns = sum(thread.run_ns for thread in self._threads.values())
        for thread in self._threads.values():
            own = part_of_own(all_ns, thread.run_ns, busy)
            found.run_ns += thread.run_ns
            found.wait_ns += thread.wait_ns
            found.others_ns += round(thread.wait_ns * (1 - own))
            awake = now - thread.begin_ns - thread.wait_ns
            if awake > 0:
                part = (now - thread.begin_ns) / max(found.clock_ns, 1)
                found.alone += part * min(thread.run_ns / awake, 1.0)
        return found

    def _look_at(self, pid: int, tid: int) -> None:
        with suppress(OSError, ValueError):
            run, wait = schedstat(pid, tid)
            thread = self._threads.get((pid, tid))
            if thread is None:
                now, age_ns = time.monotonic_ns(), _age_ns(pid, tid)
                begin = max(now - age_ns, self._begin_ns)
                old = age_ns - EXACT_NS > now - self._begin_ns
                thread = _Thread(begin, run, wait) if old else _Thread(begin, 0, 0)
                self._threads[pid, tid] = thread
            thread.run_ns = run - thread.run_before_ns
            thread.wait_ns = wait - thread.wait_before_ns

    def steal(self) -> float:
        """The part of the machine's time that the hypervisor took since this was made."""
        now = _steal_ticks()
        total = now[1] - self._steal[1]
        return (now[0] - self._steal[0]) / total if total > 0 else 0.0


def _steal_ticks() -> tuple[int, int]:
    """Ticks that were stolen, and all ticks, of all CPUs."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:]]
    except (OSError, ValueError):
        return 0, 0
    return (ticks[7] if len(ticks) > 7 else 0), sum(ticks[:8])


def schedstat(pid: int, tid: int) -> tuple[int, int]:
    """How long a thread ran and waited, ns."""
    with open(f"/proc/{pid}/task/{tid}/schedstat", "rb") as file:
        run, wait, _ = file.read().split()
    return int(run), int(wait)


def _age_ns(pid: int, tid: int) -> int:
    """For how long a thread has existed, to a tick of the clock."""
    with open(f"/proc/{pid}/task/{tid}/stat", "rb") as file:
        start = int(file.read().rpartition(b")")[2].split()[19])
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - start * tick_ns


def busy_ns() -> int:
    """How long the CPUs that the program may use were busy, since the machine began."""
    allowed = {f"cpu{n}" for n in os.sched_getaffinity(0)}
    ticks = 0
    with suppress(OSError, ValueError), open("/proc/stat", encoding="ascii") as file:
        for line in file:
            name, *words = line.split()
            if name in allowed:
                # Idle and waiting for a disk are the fourth and the fifth.
                ticks += (
                    sum(int(word) for word in words[:8]) - int(words[3]) - int(words[4])
                )
    return ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def is_alive(pid: int) -> bool:
    """Whether a process runs: a zombie does not, unless only its first thread is one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
        return state not in (b"Z", b"X") or len(os.listdir(f"/proc/{pid}/task")) > 1
    except (OSError, IndexError):
        return False


def descendants(pid: int) -> set[int]:
    """The process and all its living descendants."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        pid = waiting.pop()
        if pid in found:
            continue
        found.add(pid)
        with suppress(OSError):
            for tid in os.listdir(f"/proc/{pid}/task"):
                with (
                    suppress(OSError),
                    open(f"/proc/{pid}/task/{tid}/children", "rb") as file,
                ):
                    waiting += [int(word) for word in file.read().split()]
    return found


def lineage(pid: int) -> list[int]:
    """The process and its ancestors."""
    found = [pid]
    while len(found) < 64:
        try:
            with open(f"/proc/{found[-1]}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
        if parent <= 1:
            break
        found.append(parent)
    return found


def cpus() -> int:
    """The number of CPUs that this process, and so the program, may use."""
    return len(os.sched_getaffinity(0))
