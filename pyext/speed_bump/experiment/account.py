# SPDX-License-Identifier: MIT
"""Where all of the time of a unit of work goes, from samples of whole stacks.

The threads that report units are accounted to the unit. Other threads, such as workers
that wait for work, are listed separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

PYTHON, C, MACHINE, WAIT = "python", "c", "native", "wait"
CPU_WAIT = "a CPU"
# Frames below this one import a module.
IMPORT = "_find_and_load"
# A function whose time is below one other function in this part of the samples has that
# one's answer, if that one waits in no larger part of its own.
MOSTLY_BELOW, HARDLY_WAITS = 0.9, 0.02
# If more threads than that report units and run the same function, each is for one
# request or so, and all that run it report.
MANY = 16
# The thread that serves the tool in a program that it is attached to.
SERVING = "speed_bump.link.visit:"


@dataclass(frozen=True)
class Frame:
    """A place in a stack.

    Args:
        kind: "python"; "c", a callable as the source names it; "native", a function that
            it calls, or machine code without Python; "wait", the kind of a wait
        name: of Python ``module:qualname``, as targets are named; of native code
            ``file:symbol``, or the file alone
        file: of the code, "" if there is none
        line: the first line of the code
        symbol: the name in the file, of native code whose name is demangled
    """

    kind: str
    name: str
    file: str = ""
    line: int = 0
    symbol: str = ""


@dataclass
class Thread:
    """A thread that was sampled ``looks`` times.

    ``run_ns`` and ``wait_ns`` are its time on a CPU, and waiting for one, meanwhile.
    """

    pid: int
    tid: int
    looks: int = 0
    run_ns: int = 0
    wait_ns: int = 0
    reports: bool = False

    @property
    def wait(self) -> float:
        """The part of the time in which it could have used a CPU but had none."""
        wanted = self.run_ns + self.wait_ns
        return self.wait_ns / wanted if wanted else 0.0


@dataclass
class Looks:
    """The samples of a time in which nothing was delayed.

    ``stacks`` has, by thread and frames from the outermost (both indices), the number of
    samples that found the thread there; native frames are sampled separately and count as
    parts of samples. ``lost`` stacks could not be read. Sampling took ``cpu_ns`` of the
    tool, and nothing of the program, in ``clock_ns``.
    """

    frames: list[Frame] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)
    stacks: dict[tuple[int, tuple[int, ...]], float] = field(default_factory=dict)
    ticks: int = 0
    lost: int = 0
    cpu_ns: int = 0
    clock_ns: int = 0

    def mark(self, tids: Collection[int], main: int, ended: Collection[int] = ()) -> None:
        """Set the threads that report units; if none is known, the thread of ``main``.

        If that is no Python process, but a shell that starts them, those of the Python
        processes ``ended``, one after the other; without these, of the first one.

        Of a server with a thread for each request, only those that end a slot of several
        units are in ``tids``; the others run the same function.
        """
        for thread in self.threads:
            thread.reports = thread.tid in tids
        if any(thread.reports for thread in self.threads):
            self._mark_alike()
            return
        in_python = {
            self.threads[at].pid
            for at, row in self.stacks
            if any(self.frames[f].kind == PYTHON for f in row)
        }
        with_stacks = {self.threads[at].pid for (at, row) in self.stacks if len(row) > 1}
        pids = in_python or with_stacks or {thread.pid for thread in self.threads}
        first = {main} if main in pids else {min(pids, default=0)}
        if main not in pids and in_python:
            first = in_python.intersection(ended) or first
        for thread in self.threads:
            thread.reports = thread.tid == thread.pid and thread.pid in first

    def _mark_alike(self) -> None:
        runs = {
            at: (self.threads[at].pid, body) for at, body in self.bodies().items() if body
        }
        known = Counter(run for at, run in runs.items() if self.threads[at].reports)
        for at, run in runs.items():
            if known[run] > MANY:
                self.threads[at].reports = True

    def bodies(self) -> dict[int, str]:
        """The function that each thread runs, by its index."""
        runs: dict[int, Counter[str]] = {}
        for (at, row), n in self.stacks.items():
            body = _body([self.frames[f] for f in row])
            runs.setdefault(at, Counter())[body] += n  # type: ignore[assignment]
        found = {}
        for at, seen in runs.items():
            # The function of a native thread is known from some of the samples only.
            named = Counter({body: n for body, n in seen.items() if body != NATIVE})
            found[at] = (named or seen).most_common(1)[0][0]
        return found

    def as_json(self) -> dict[str, Any]:
        """For an archive."""
        return {
            "frames": [
                [f.kind, f.name, f.file, f.line] + [f.symbol] * bool(f.symbol)
                for f in self.frames
            ],
            "threads": [
                [t.pid, t.tid, t.looks, t.run_ns, t.wait_ns, t.reports]
                for t in self.threads
            ],
            "stacks": [[at, frames, n] for (at, frames), n in self.stacks.items()],
            "ticks": self.ticks,
            "lost": self.lost,
            "cpu_ns": self.cpu_ns,
            "clock_ns": self.clock_ns,
        }

    @classmethod
    def of_json(cls, text: dict[str, Any]) -> Looks:
        """Read from an archive; ValueError, KeyError or TypeError if it is damaged."""
        frames = [Frame(*row) for row in text["frames"]]
        threads = [Thread(*row) for row in text["threads"]]
        stacks = {(at, tuple(row)): n for at, row, n in text["stacks"]}
        for at, row in stacks:
            if not 0 <= at < len(threads) or any(not 0 <= f < len(frames) for f in row):
                raise ValueError("a stack of frames that are not there")
        ticks, lost, cpu_ns, clock_ns = (
            text[k] for k in ("ticks", "lost", "cpu_ns", "clock_ns")
        )
        return cls(frames, threads, stacks, ticks, lost, cpu_ns, clock_ns)


def together(parts: Iterable[Looks]) -> Looks:
    """Join the samples of several runs."""
    found = Looks()
    known: dict[Frame, int] = {}
    for part in parts:
        first = len(found.threads)
        found.threads += part.threads
        places = [known.setdefault(f, len(known)) for f in part.frames]
        for (at, row), n in part.stacks.items():
            found.stacks[first + at, tuple(places[f] for f in row)] = n
        found.ticks += part.ticks
        found.lost += part.lost
        found.cpu_ns += part.cpu_ns
        found.clock_ns += part.clock_ns
    found.frames = list(known)
    return found


# --------------------------------------------------------------------- the account


@dataclass(frozen=True)
class Row:
    """A part of the unit's time.

    Args:
        what: "asked": in functions of the table, on a CPU; "not asked": in other
            functions; "import"; or the kind of a wait
        share: of the unit's time
        parts: the names that it consists of, the largest first, each with its share
    """

    what: str
    share: float
    parts: tuple[tuple[str, float], ...] = ()

    @property
    def is_wait(self) -> bool:
        """Whether nothing is computed in it."""
        return self.what not in (ASKED, NOT_ASKED, IMPORTS, NATIVE)


ASKED, NOT_ASKED, IMPORTS = "functions above", "other functions", "import"
NATIVE = "native code"


@dataclass(frozen=True)
class Own:
    """The own time of a function: on a CPU, and asleep by kind of wait."""

    cpu: float = 0.0
    asleep: float = 0.0
    waits: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Others:
    """Threads that report no units, by the function that each runs.

    Args:
        name: of the function; of a thread without Python its outermost native one
        threads: how many of them
        awake: the part of their time in which they did not sleep
        waits: the most frequent kind of wait, or ""
    """

    name: str
    threads: int
    awake: float
    waits: str = ""


@dataclass
class Account:
    """The account of a unit: ``rows`` that add up to 1, the largest first.

    ``own`` is by measured function. ``threads`` report units and were sampled ``looks``
    times; ``others`` are the other threads.
    """

    rows: list[Row]
    own: dict[str, Own]
    threads: int
    looks: int
    others: list[Others]

    @property
    def waiting(self) -> list[Row]:
        """The kinds of wait, except for a CPU."""
        return [row for row in self.rows if row.is_wait and row.what != CPU_WAIT]


def asked_name(frame: Frame, asked: Collection[str]) -> str:
    """The function of the table that a frame belongs to; "" for none."""
    if frame.kind == PYTHON and frame.name in asked:
        return frame.name
    if frame.kind == MACHINE:
        # A target has the name that it was given, mangled or not.
        for symbol in (frame.name.partition(":")[2], frame.symbol):
            if symbol and f"{frame.file}:{symbol}" in asked:
                return f"{frame.file}:{symbol}"
        return ""
    if frame.kind == C:
        module, _, name = frame.name.partition(".")
        while name:
            if f"{module}:{name}" in asked:
                return f"{module}:{name}"
            head, _, name = name.partition(".")
            module = f"{module}.{head}"
        if f"builtins:{frame.name}" in asked:
            return f"builtins:{frame.name}"
    return ""


def is_import(frames: Iterable[Frame]) -> bool:
    """Whether a stack is that of an import."""
    return any(f.kind == PYTHON and f.name.endswith(f":{IMPORT}") for f in frames)


def shown(frame: Frame) -> str:
    """The displayed name of a frame."""
    return f"{frame.name}()" if frame.kind == C else frame.name


def via(frames: Iterable[Frame]) -> str:
    """The wait of a thread, and the caller."""
    callable_, caller = "", ""
    for frame in frames:
        if frame.kind == PYTHON:
            callable_, caller = "", frame.name
        elif frame.kind == C:
            callable_ = frame.name
    if not caller:
        return ""
    return f"{callable_}, called from {caller}" if callable_ else f"in {caller}"


def account(looks: Looks | None, asked: Collection[str]) -> Account | None:
    """The account of the threads that report units; None if they were not sampled."""
    if looks is None:
        return None
    total = 0.0
    sums: Counter[str] = Counter()
    parts: dict[str, Counter[str]] = {}
    own: dict[str, Counter[str]] = {}
    lacking = _lacking(looks)

    def add(what: str, part: str, n: float) -> None:
        if n:
            sums[what] += n  # type: ignore[assignment]
            parts.setdefault(what, Counter())[part] += n  # type: ignore[assignment]

    for (at, row), n in looks.stacks.items():
        thread = looks.threads[at]
        if not thread.reports:
            continue
        total += n
        frames = [looks.frames[f] for f in row]
        names = [name for name in (asked_name(f, asked) for f in frames) if name]
        frames = [f for f in frames if f.kind != MACHINE]
        leaf = frames[-1] if frames else Frame(C, NATIVE)
        mine = own.setdefault(names[-1], Counter()) if names else Counter()
        if leaf == Frame(WAIT, CPU_WAIT):
            add(CPU_WAIT, "", n)
            continue
        if leaf.kind == WAIT:
            add(leaf.name, via(frames), n)
            mine[via(frames)] += n  # type: ignore[assignment]
            continue
        lack = n * lacking.get(at, 0.0)
        what = IMPORTS if is_import(frames) else ASKED if names else NOT_ASKED
        what = what if frames or names else NATIVE
        add(CPU_WAIT, "", lack)
        part = names[-1] if names else shown(leaf)
        add(what, part if what != NATIVE else "", n - lack)
        mine[""] += n  # type: ignore[assignment]
    if not total:
        return None
    rows = [
        Row(what, n / total, tuple((k, v / total) for k, v in parts[what].most_common()))
        for what, n in sums.most_common()
    ]
    owned = {
        name: Own(
            seen[""] / total,
            (sum(seen.values()) - seen[""]) / total,
            tuple((k, v / total) for k, v in seen.most_common() if k),
        )
        for name, seen in own.items()
    }
    reporting = sum(thread.reports for thread in looks.threads)
    return Account(rows, owned, reporting, round(total), _others(looks))


@dataclass(frozen=True)
class Inside:
    """A function that was not measured, and the measured function that calls it.

    Args:
        share: its own time while it computes, as an average number of threads, like
            ``record.SelfTime.share``
        of: the innermost measured function around its calls
    """

    name: str
    share: float
    of: str


def inside(
    looks: Looks | None,
    asked: Collection[str],
    others: Collection[str],
    given: float = 0.0,
) -> list[Inside]:
    """Those of ``others`` whose time is nearly all below one function of ``asked``, if
    that one waits for nothing.

    In one thread, a delay at the beginning of a call and one within it are then the same
    to all else, unless the call hands over work before: what arrives of the first is the
    most that arrives of the second.

    Args:
        given: the part of the wanted CPU time that other programs leave, if threads
            mainly wait for CPUs that others of the program have, and these waits are no
            time of a function; else 0
    """
    if looks is None or not others or not looks.ticks:
        return []
    known = {*asked, *others}
    awake: Counter[int] = Counter()
    computes: Counter[int] = Counter()
    asleep: Counter[str] = Counter()
    below: Counter[str] = Counter()
    own: dict[str, Counter[tuple[str, int]]] = {}
    for (at, row), n in looks.stacks.items():
        if not looks.threads[at].reports:
            continue
        frames = [looks.frames[f] for f in row]
        waits = frames[-1].name if frames and frames[-1].kind == WAIT else ""
        within = [name for name in (asked_name(f, asked) for f in frames) if name]
        around = within[-1] if within else ""
        below[around] += n  # type: ignore[assignment]
        if waits and waits != CPU_WAIT:
            asleep[around] += n  # type: ignore[assignment]
            continue
        awake[at] += n  # type: ignore[assignment]
        if waits:
            continue
        computes[at] += n  # type: ignore[assignment]
        innermost = (name for f in reversed(frames) if (name := asked_name(f, known)))
        name = next(innermost, "")
        if name in others and name not in asked:
            own.setdefault(name, Counter())[around, at] += n  # type: ignore[assignment]
    lacking = _lacking(looks)
    # Waits for a CPU belong to what a thread computes, as in its self times.
    weight = {
        at: (1 - lacking.get(at, 0.0)) / given if given else awake[at] / n
        for at, n in computes.items()
    }
    found = []
    for name, places in own.items():
        callers: Counter[str] = Counter()
        for (around, _), n in places.items():
            callers[around] += n
        of, most = callers.most_common(1)[0]
        if not of or most < MOSTLY_BELOW * callers.total():
            continue
        if asleep[of] > HARDLY_WAITS * below[of]:
            continue
        share = sum(n * weight[at] for (_, at), n in places.items()) / looks.ticks
        found.append(Inside(name, share, of))
    return sorted(found, key=lambda one: (-one.share, one.name))


def _lacking(looks: Looks) -> dict[int, float]:
    """By thread, how much of the time in which it seemed to run it waited for a CPU.

    Most of these waits are known by their place, and are no part of that.
    """
    ran: Counter[int] = Counter()
    waited: Counter[int] = Counter()
    for (at, row), n in looks.stacks.items():
        leaf = looks.frames[row[-1]] if row else Frame(C, NATIVE)
        if leaf.kind != WAIT:
            ran[at] += n  # type: ignore[assignment]
        elif leaf.name == CPU_WAIT:
            waited[at] += n  # type: ignore[assignment]
    return {
        at: max(1 - (1 - looks.threads[at].wait) * (n + waited[at]) / n, 0.0)
        for at, n in ran.items()
        if n
    }


def _others(looks: Looks) -> list[Others]:
    """The threads that report no units, by the function that each runs."""
    asleep: dict[int, Counter[str]] = {}
    for (at, row), n in looks.stacks.items():
        if looks.threads[at].reports:
            continue
        last = looks.frames[row[-1]] if row else None
        waits = last.name if last and last.kind == WAIT and last.name != CPU_WAIT else ""
        asleep.setdefault(at, Counter())[waits] += n  # type: ignore[assignment]
    alike: dict[str, list[Counter[str]]] = {}
    for at, body in looks.bodies().items():
        if at in asleep:
            alike.setdefault(body, []).append(asleep[at])
    found = []
    for name, threads in alike.items():
        if name.startswith(SERVING):
            continue
        awake = sum(seen[""] / max(seen.total(), 1) for seen in threads) / len(threads)
        waited: Counter[str] = sum(threads, Counter())
        waited.pop("", None)
        most = waited.most_common(1)[0][0] if waited else ""
        found.append(Others(name, len(threads), awake, most))
    return sorted(found, key=lambda one: (-one.threads * one.awake, one.name))


# The functions with which Python starts threads and processes.
STARTING = (
    "threading:Thread.", "multiprocessing.process:", "multiprocessing.popen",
    "multiprocessing.context:", "multiprocessing.spawn:", "runpy:", "importlib",
)  # fmt: skip


def _body(frames: list[Frame]) -> str:
    """The function that a thread runs, from its stack."""
    python = [f for f in frames if f.kind == PYTHON]
    forked = [
        k for k, f in enumerate(python) if f.name.startswith("multiprocessing.process:")
    ]
    # A forked child has its parent's frames below its own.
    python = python[forked[-1] :] if forked else python
    for frame in python:
        if not frame.name.startswith(STARTING) and not frame.name.endswith(":<module>"):
            return frame.name
    return python[-1].name if python else _native_body(frames)


# Functions of the C library below which a thread begins.
BEGINNING = ("libc.so", "libc-", "libpthread", "ld-linux", "ld-musl")


def _native_body(frames: list[Frame]) -> str:
    """The outermost function of a stack without Python that is not of a C library."""
    for frame in frames:
        is_named = frame.kind == MACHINE and ":" in frame.name
        if is_named and not frame.name.startswith(BEGINNING):
            return frame.name
    return NATIVE
