# SPDX-License-Identifier: MIT
"""Self time of the native candidates of one run of the program, by perf events."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from speed_bump import _core
from speed_bump.experiment import symbols
from speed_bump.experiment.program.machine import descendants
from speed_bump.link.visit import THREAD


@dataclass(frozen=True)
class NativeTimes:
    """How long threads were in native functions, of all threads together. Times are ns.

    ``thread_ns`` is the time of all threads of the program, on a CPU or off it; for
    ``unseen_ns`` of it the place is unknown. ``stacks`` were sampled; ``lost`` records
    were missed. ``looks`` is the number of independent samples that the ``self_ns`` of a
    function is worth. ``refused`` says why functions are missing, "" if all are there.
    """

    clock_ns: int = 0
    thread_ns: int = 0
    unseen_ns: int = 0
    stacks: int = 0
    lost: int = 0
    self_ns: dict[str, int] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)
    refused: str = ""

    def added(self, other: NativeTimes) -> NativeTimes:
        """Join the results of two rounds."""

        def both(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
            return {name: a.get(name, 0) + b.get(name, 0) for name in {*a, *b}}

        return NativeTimes(
            self.clock_ns + other.clock_ns,
            self.thread_ns + other.thread_ns,
            self.unseen_ns + other.unseen_ns,
            self.stacks + other.stacks,
            self.lost + other.lost,
            both(self.self_ns, other.self_ns),
            both(self.looks, other.looks),
            self.refused or other.refused,
        )


def sample(sampler: _core.NativeSampler, pid: int) -> None:
    """Sample a process and its descendants, without the threads that serve a tool."""
    sampler.add_process(pid)
    for one in descendants(pid):
        tids: set[str] = set()
        with suppress(OSError):
            # Before it executes the program, a child's main thread has the tool's name.
            tids = set(os.listdir(f"/proc/{one}/task")) - {str(one)}
        for tid in tids:
            with suppress(OSError), open(f"/proc/{one}/task/{tid}/comm", "rb") as file:
                if file.read().rstrip(b"\n") == THREAD:
                    sampler.leave_out_thread(int(tid))


class NativeSampling:
    """Samples native functions while others sample those of Python.

    Args:
        places: by function name, the file and an offset in it
    """

    def __init__(self, places: Mapping[str, tuple[str, int]]) -> None:
        """If it is impossible, ``refused`` says why."""
        self.refused = ""
        self.times: NativeTimes | None = None
        self._numbers: dict[str, int] = {}
        self._sampler: _core.NativeSampler | None = None
        try:
            sampler = _core.NativeSampler()
            for name, (path, offset) in places.items():
                self._add(sampler, name, path, offset)
        except OSError as error:
            self._refuse(error)
        else:
            if self._numbers or not places:
                self._sampler = sampler

    def _add(
        self, sampler: _core.NativeSampler, name: str, path: str, offset: int
    ) -> None:
        if symbols.is_line(name):
            # The samples would be those of the whole function.
            self.refused = self.refused or "a line has no self time: ask for its function"
            return
        try:
            self._numbers[name] = sampler.add_function(path, offset)
        except FileNotFoundError as error:
            # The others can be sampled.
            self.refused = self.refused or str(error.strerror)

    def _refuse(self, error: OSError) -> None:
        self.refused = error.strerror or str(error)
        self._sampler = None

    def stacks(self) -> list[_core.NativeStack]:
        """Whole stacks of the last round, if they were kept."""
        return self._sampler.stacks() if self._sampler else []

    def symbol(self, path: str, offset: int) -> _core.Symbol | None:
        """Like ``NativeSampler.symbol``."""
        assert self._sampler is not None
        return self._sampler.symbol(path, offset)

    @contextmanager
    def running(
        self, pids: Iterable[int], ns: int, *, keep: bool = False
    ) -> Iterator[None]:
        """While inside, sample the processes and their descendants, for the given time.

        Afterwards ``times`` has the result, and so has ``stacks()``, if they are to be
        kept.
        """
        self.times = NativeTimes(refused=self.refused)
        if self._sampler is None:
            yield
            return
        self._sampler.keep_stacks(keep)
        for pid in pids:
            sample(self._sampler, pid)
        ended = threading.Event()
        thread = threading.Thread(target=self._run, args=(self._sampler, ns, ended))
        thread.start()
        try:
            yield
            # Unwinding takes a while longer. Up to 3.12, after a join() that is
            # interrupted, the thread is taken for ended, and the next one does not wait.
            ended.wait()
        except BaseException:
            self._sampler.stop()
            raise
        finally:
            thread.join()

    def _run(self, sampler: _core.NativeSampler, ns: int, ended: threading.Event) -> None:
        try:
            found = sampler.run(ns)
        except OSError as error:
            self._refuse(error)
            self.times = NativeTimes(refused=self.refused)
        else:
            self.times = NativeTimes(
                clock_ns=found.clock_ns,
                thread_ns=found.cpu_ns + found.off_ns,
                unseen_ns=found.unseen_ns,
                stacks=found.stacks,
                lost=found.lost,
                self_ns={name: found.own[n].self_ns for name, n in self._numbers.items()},
                looks={name: found.own[n].looks for name, n in self._numbers.items()},
                refused=self.refused,
            )
        finally:
            ended.set()
