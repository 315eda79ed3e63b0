# SPDX-License-Identifier: MIT
"""Stacks of the threads of a program, and what each of them was doing."""

from __future__ import annotations

import glob
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from speed_bump import _core
from speed_bump.experiment.program.looks import Look
from speed_bump.experiment.program.machine import lineage
from speed_bump.experiment.program.native_frames import Key

# Waits that end when another thread, process or machine has done something.
POLL = "poll and recv"
GIL = "the GIL"
OTHERS = frozenset((POLL, "lock", GIL, "pipe", "device", "terminal", "child process"))
# Waits of a thread that reads or writes a file, or is in an unknown call.
READS = frozenset(("disk", "pipe", "device", "terminal", "poll and recv"))
NOT_KNOWN = frozenset(("disk", "pipe", "device", "terminal", "kernel"))

# Functions of Python and of C that only wait. A glob is possible only at the end.
IDLE = (
    "time:sleep",
    "_thread:lock.acquire*",
    "_thread:lock.__enter__",
    "_thread:RLock.acquire*",
    "_thread:allocate_lock*",
    "_thread:_ThreadHandle.join",
    "_queue:SimpleQueue.get",
    "_multiprocessing:SemLock.*",
    "select:*",
    "_socket:socket.recv*",
    "_socket:socket.accept",
    "_socket:socket._accept",
    "_socket:socket.connect",
    "_ssl:_SSLSocket.read",
    "_ssl:_SSLSocket.do_handshake",
    "posix:wait*",
    "posix:poll",
    "_signal:sigwait*",
    "_signal:pause",
    "threading:Condition.wait*",
    "threading:Event.wait",
    "threading:Barrier.wait",
    "threading:Semaphore.acquire",
    "threading:Thread.join",
    "threading:Thread._wait_for_tstate_lock",
    "threading:_shutdown",
    "queue:Queue.get",
    "selectors:*",
    "multiprocessing.connection:Connection._recv*",
    "multiprocessing.connection:wait",
    "multiprocessing.popen_fork:Popen.poll",
    "multiprocessing.popen_fork:Popen.wait",
    "concurrent.futures._base:Future.result",
    "subprocess:Popen._wait",
    "subprocess:Popen.wait",
    "subprocess:Popen._try_wait",
)
_EXACT = frozenset(name for name in IDLE if not name.endswith("*"))
_BEGINS = tuple(name[:-1] for name in IDLE if name.endswith("*"))

# With these waits, they wait for a pipe, a terminal or a disk.
_READERS = ("posix:read", "_io:")

# Modules whose functions wait by calling others of the same module.
_WAITERS = ("threading:", "queue:", "multiprocessing.", "asyncio.")

IMPORT_MODULES = ("_frozen_importlib", "_frozen_importlib_external", "importlib")


def is_idle(name: str) -> bool:
    """Whether a function only waits for something."""
    return name in _EXACT or name.startswith(_BEGINS)


def is_import(name: str) -> bool:
    """Whether it belongs to the import system, or is the body of a module."""
    module, _, qualname = name.rpartition(":")
    return (
        qualname == "<module>"
        or module in IMPORT_MODULES
        or module.startswith(("importlib.", "<frozen importlib"))
    )


def is_ours(name: str) -> bool:
    """Whether it belongs to this package."""
    return name.startswith(("speed_bump:", "speed_bump."))


@dataclass(frozen=True)
class Stack:
    """Where a thread was seen: ``frames`` from the outermost in.

    The last of them is a C function by its Python name if ``has_leaf``. ``waits`` is the
    kind of its sleep, "" on a CPU or if unknown. ``main``: whether it belongs to the
    process that was started.
    """

    pid: int
    thread: int
    waits: str
    frames: tuple[str, ...]
    has_leaf: bool = False
    main: bool = True

    @property
    def imported(self) -> str:
        """The package that is being imported; "" for none.

        The search for a module that a function imports is work, until there is a body
        to run: where there is no such module, it is searched for in each call.
        """
        inner = outer = ""
        for name in self.frames:
            module, _, qualname = name.rpartition(":")
            if qualname == "<module>" and module not in ("__main__", "__mp_main__"):
                return module.partition(".")[0]
            if module in IMPORT_MODULES[:2] and outer in ("", "<module>"):
                inner = "a module"
            outer = qualname
        return inner

    @property
    def is_ours(self) -> bool:
        """Whether this package was at work."""
        return bool(self.frames) and is_ours(self.frames[-1])

    @property
    def waits_for_others(self) -> bool:
        """Whether it waits for another thread, process or machine."""
        return self.waits in OTHERS and bool(self.waiting_in)

    @property
    def waiting_in(self) -> str:
        """The function that waits; "" if the thread works.

        Any other C function that sleeps counts as working: its own threads may do the
            work.
        """
        if not self.waits or not self.frames:
            return ""
        last = self.frames[-1]
        if is_idle(last):
            return last
        if self.has_leaf and self.waits in READS and last.startswith(_READERS):
            return last
        for name in reversed(self.frames[:-1] if self.has_leaf else self.frames):
            if is_idle(name):
                return name
            if not name.startswith(_WAITERS):
                break
        if self.has_leaf or self.waits in NOT_KNOWN:
            return ""
        return last


@dataclass
class Stacks:
    """How often each stack was seen in ``ticks`` samples that took ``seconds``.

    ``queued_ns`` is how long threads waited for a CPU in it, or when they woke up there.
    ``lost`` is by thread the number of stacks that could not be read. ``moments``, if
    asked for, has the number of a sample with each stack that was seen in it.
    """

    ticks: int = 0
    seconds: float = 0.0
    samples: dict[Stack, int] = field(default_factory=dict)
    queued_ns: dict[Stack, int] = field(default_factory=dict)
    lost: Counter[int] = field(default_factory=Counter)
    moments: list[tuple[int, Stack]] = field(default_factory=list)

    def add(self, other: Stacks) -> None:
        """Add samples of another period."""
        self.ticks += other.ticks
        self.seconds += other.seconds
        for stack, n in other.samples.items():
            self.samples[stack] = self.samples.get(stack, 0) + n
        for stack, ns in other.queued_ns.items():
            self.queued_ns[stack] = self.queued_ns.get(stack, 0) + ns
        self.lost.update(other.lost)

    def as_json(self, most: int = 4000) -> dict[str, Any]:
        """For the record: see ``Record.header["look"]``."""
        together: dict[tuple[bool, int, str, tuple[str, ...]], int] = {}
        for stack, n in self.samples.items():
            key = (stack.main, stack.thread, stack.waits, stack.frames)
            together[key] = together.get(key, 0) + n
        ordered = sorted(together.items(), key=lambda item: -item[1])[:most]
        return {
            "seconds": self.seconds,
            "ticks": self.ticks,
            "stacks": [
                [main, thread, waits, list(frames), n]
                for (main, thread, waits, frames), n in ordered
            ],
        }


def total(windows: Iterable[Stacks]) -> Stacks:
    """Join the samples of several rounds."""
    found = Stacks()
    for window in windows:
        found.add(window)
    return found


def read(
    look: Look,
    calls: Mapping[int, Mapping[tuple[int, int], str]],
    main: int,
    *,
    moments: bool = False,
) -> Stacks:
    """Convert a sample into names of targets.

    Args:
        calls: by process, the C function that an instruction of a code object calls
        main: the process that was started
        moments: also say which stacks were seen together
    """
    found: dict[Stack, int] = {}
    queued: dict[Stack, int] = {}
    stacks = [stack_of(Key.of(seen), look.targets, calls, main) for seen in look.stacks]
    for seen, stack in zip(look.stacks, stacks, strict=True):
        if stack and (seen.looks or seen.queued_ns):
            found[stack] = found.get(stack, 0) + seen.looks
        if stack and seen.queued_ns:
            queued[stack] = queued.get(stack, 0) + seen.queued_ns
    together = look.moments if moments else ()
    at = [(tick, stack) for tick, k in together if (stack := stacks[k])]
    return Stacks(look.ticks, look.seconds, found, queued, look.lost, at)


def stack_of(
    key: Key,
    targets: Sequence[_core.StackTarget],
    calls: Mapping[int, Mapping[tuple[int, int], str]],
    main: int,
) -> Stack | None:
    """A stack as names; None: it has no frame of Python.

    Args:
        targets: as ``Look.targets``
        calls, main: as for ``read()``
    """
    if not key.codes:
        return None
    codes = [targets[k] for k in key.codes]
    names = tuple(code.name for code in reversed(codes) if code.name)
    # The innermost frame of Python: its instruction tells what is called.
    inner = next((code.address for code in codes if code.address), codes[0].address)
    known = calls.get(key.pid, {})
    leaf = known.get((inner, key.offset)) or known.get((inner, -1), "")
    if names and leaf == names[-1]:
        leaf = ""
    frames = (*names, leaf) if leaf else names
    return Stack(key.pid, key.tid, key.wait, frames, bool(leaf), key.pid == main)


# By process: the C function that an instruction, (code, offset), calls.
Calls = dict[tuple[int, int], str]


class Leaves:
    """Which C functions are called where, as the processes of a run record it.

    A forked process has the entries of its parent.
    """

    def __init__(self, stem: str) -> None:
        """``stem`` is the path of the run's files."""
        self._stem = stem
        self._calls: dict[int, Calls] = {}
        self._at: dict[int, int] = {}
        self._views: dict[int, ChainMap[tuple[int, int], str]] = {}

    def of(self, pids: Iterable[int]) -> dict[int, Mapping[tuple[int, int], str]]:
        """What is known of these processes so far."""
        self._read()
        for pid in pids:
            if pid not in self._views:
                maps = [self._calls.setdefault(one, {}) for one in lineage(pid)]
                self._views[pid] = ChainMap(*maps)
        return dict(self._views)

    def _read(self) -> None:
        prefix = f"{self._stem}.table.calls."
        for path in glob.glob(f"{glob.escape(prefix)}*"):
            pid = int(path.removeprefix(prefix))
            with open(path, "rb") as file:
                file.seek(self._at.get(pid, 0))
                data = file.read()
            whole = data.rfind(b"\n") + 1
            self._at[pid] = self._at.get(pid, 0) + whole
            calls = self._calls.setdefault(pid, {})
            for line in data[:whole].splitlines():
                # An offset of -1 means all of the code.
                code, offset, name = line.split(b" ", 2)
                calls[int(code), int(offset)] = name.decode(errors="replace")
