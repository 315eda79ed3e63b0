# SPDX-License-Identifier: MIT
"""Running a program with chosen targets delayed, and reading what was counted."""

from __future__ import annotations

import errno
import glob
import os
import select
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import IO

from speed_bump import _core, native, statistics, waits
from speed_bump.config import MAX_SEED, Config, Target
from speed_bump.control import NATIVE_OWNER, PROCESS_POINT, SEED
from speed_bump.experiment.program import elsewhere, latency, launch
from speed_bump.experiment.program.latency import Histogram
from speed_bump.experiment.program.launch import Streams
from speed_bump.statistics import FunctionStatistics

# Functions times processes. The file takes its room when it is made, 12 MB.
CAPACITY = 1 << 14
# The line of a target file without a Python target.
NO_PYTHON = "!*:*"
# The files of a run are best in memory: what the program counts is never written back.
SHARED_MEMORY = "/dev/shm"
# What starts ranks that may wait in MPI.
MPI_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "srun")


# Counted in each run, after its targets: which modules were imported.
MODULES = "*:<module>"


@dataclass(frozen=True)
class Slowed:
    """A target for one run, and the delay of a call, ns; ``on`` False: it only counts.

    Of one whose delay is a part of the duration, ``delay_ns`` means nothing.
    """

    target: Target
    delay_ns: int
    on: bool = True


@dataclass(frozen=True)
class Result:
    """One run of the program.

    ``processes`` is how many Python processes had the delays in force, ``functions`` what
    was counted in all processes together, ``lost`` how many functions found no room to be
    counted, ``output`` what the program wrote where it was not shown. Of ``wall_ns`` its
    first thread waited for a CPU ``wait_ns``. ``refused`` are the C functions that can't
    be slowed: patterns with a reason each; ``imported`` the Python modules that were run;
    ``durations`` what was recorded, and ``marks_not_asked_for`` names of marks that were
    not.
    """

    status: int
    wall_ns: int
    interrupted: bool
    processes: int
    functions: tuple[FunctionStatistics, ...]
    progress: dict[str, int]
    lost: int = 0
    output: bytes = b""
    wait_ns: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    imported: frozenset[str] = frozenset()
    durations: tuple[Histogram, ...] = ()
    marks_not_asked_for: tuple[str, ...] = ()

    def of(self, target: Target) -> list[FunctionStatistics]:
        """What was counted of the functions that ``target`` matched."""
        text = target.pattern
        return [f for f in self.functions if f.target == text]

    def calls(self, target: Target) -> int:
        """Their calls."""
        return sum(f.calls for f in self.of(target))

    def requested_ns(self, target: Target) -> int:
        """Their delay as it was asked."""
        return sum(f.requested_ns for f in self.of(target))

    def injected_ns(self, target: Target) -> int:
        """Their delay as it was."""
        return sum(f.measured_ns for f in self.of(target))


class Input:
    """Our standard input, from where it stands now, for each of several runs.

    A file is rewound; what a pipe has is kept in a file; a terminal would wait for the
    person at it in each run, so the program finds its input empty. Use as a context
    manager.
    """

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._file: IO[bytes] | None = None
        self._at: int | None = None

    def __enter__(self) -> Input:
        """Read what can't be read again."""
        try:
            mode = os.fstat(0).st_mode
        except OSError:  # closed
            return self
        if os.isatty(0):
            self._file = open(os.devnull, "rb")
        elif stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            self._file = _kept()
        elif stat.S_ISREG(mode):
            self._at = os.lseek(0, 0, os.SEEK_CUR)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Forget it."""
        if self._file:
            self._file.close()

    def rewound(self) -> int | None:
        """The descriptor for the next run; None: ours."""
        if self._file:
            self._file.seek(0)
            return self._file.fileno()
        if self._at is not None:
            os.lseek(0, self._at, os.SEEK_SET)
        return None


def _kept() -> IO[bytes]:
    """A file with what comes from our standard input, to its end."""
    file = tempfile.TemporaryFile()  # noqa: SIM115
    try:
        if not select.select([0], [], [], 1)[0]:
            sys.stderr.write(
                "speed-bump: reading standard input to its end, for each run to have it "
                "(</dev/null if the program reads nothing)\n"
            )
        while data := os.read(0, 1 << 16):
            file.write(data)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def _directory() -> tempfile.TemporaryDirectory[str]:
    """A directory for tables, in memory where there is room for one."""
    if os.path.isdir(SHARED_MEMORY) and os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        directory = _temporary(SHARED_MEMORY)
        try:
            path = os.path.join(directory.name, "room")
            _core.Table(path, CAPACITY).close()
            os.unlink(path)
        except OSError as error:
            directory.cleanup()
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        else:
            return directory
    return _temporary(None)


def _temporary(where: str | None) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(
        prefix="speed-bump-", dir=where, ignore_cleanup_errors=True
    )


@dataclass
class Runner:
    """A program to run. Use as a context manager.

    Args:
        excludes: exclusions that hold in each run
        show_output: the program writes where we do; else its output is in the results
        to_stderr: what is shown of its stdout goes to stderr
        again: it will run more than once, and is to read the same each time
        inject: lend this package to its Python, if that has none
        latencies: names of durations that its processes record, as ``--latency`` has them

    Delays that are drawn follow from ``seed``, to be set before a run; None: from one
    that the program draws.
    """

    command: Sequence[str]
    excludes: Sequence[Target] = ()
    show_output: bool = True
    to_stderr: bool = False
    again: bool = False
    inject: bool = False
    latencies: Sequence[str] = ()
    seed: int | None = field(init=False, default=None)
    directory: str = field(init=False, default="")
    _runs: int = field(init=False, default=0)
    _slows_python: bool = field(init=False, default=False)
    _lent: dict[str, str] | None = field(init=False, default=None)
    _input: Input | None = field(init=False, default=None)
    _stack: ExitStack = field(init=False, default_factory=ExitStack)

    @property
    def attached_to(self) -> Sequence[int]:
        """The processes that run already; empty: it starts a program."""
        return ()

    @property
    def attached(self) -> Mapping[int, str]:
        """The ways into them, as far as it was there."""
        return {}

    @property
    def text(self) -> str:
        """For people: what it runs."""
        return " ".join(self.command)

    def __enter__(self) -> Runner:
        """Make room for tables, in memory where there is enough."""
        with ExitStack() as stack:
            self.directory = stack.enter_context(_directory())
            if self.again:
                self._input = stack.enter_context(Input())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Leave nothing behind."""
        self._stack.close()

    def run(self, slowed: Sequence[Slowed]) -> Result:
        """Run the program once, with ``slowed`` in force.

        Raises:
            LaunchError: it can't be started
            NativeError: native functions can't be slowed
        """
        stem = self.next_stem()
        python = [s for s in slowed if not s.target.native]
        kernel = [s for s in slowed if s.target.native]
        self.write_targets(f"{stem}.targets", python)
        table = self.new_table(stem)
        probes = native.Probes(0) if kernel else None
        try:
            return self._run(stem, table, python, kernel, probes)
        finally:
            if probes:
                probes.close()
            table.close()
            self.remove(stem)

    def borrow(self, other: Runner) -> None:
        """Use the directory and the input of another, which goes on to own them."""
        self.directory = other.directory
        self._input = other._input
        # Its files are told apart by their numbers.
        self._runs = 1_000_000

    def new_table(
        self,
        stem: str,
        capacity: int = CAPACITY,
        *,
        planned: bool = False,
        rings: int = 0,
    ) -> _core.Table:
        """Where a run counts.

        Args:
            rings: how many rings of events it has, see ``latency.Events``
        """
        return _core.Table(
            f"{stem}.table",
            capacity,
            planned=planned,
            latencies=self.latencies,
            rings=rings,
        )

    def next_stem(self) -> str:
        """Where the next run has its files: a path that ends in its number."""
        self._runs += 1
        return os.path.join(self.directory, str(self._runs))

    def remove(self, stem: str) -> None:
        """Remove the files of a run."""
        for path in glob.glob(f"{glob.escape(stem)}.*"):
            with suppress(FileNotFoundError):
                os.unlink(path)

    def stdin(self) -> int | None:
        """What the next run reads, from its beginning; None: what we read."""
        return self._input.rewound() if self._input else None

    def _run(
        self,
        stem: str,
        table: _core.Table,
        python: list[Slowed],
        kernel: list[Slowed],
        probes: native.Probes | None,
    ) -> Result:
        def add_probes(pid: int) -> None:
            if probes:
                add_native(probes, pid, kernel)

        stdin = self.stdin()
        if self.show_output:
            streams = Streams(stdin, 2 if self.to_stderr else None)
            ended = self.start(stem, streams, add_probes).wait()
            output = b""
        else:
            with tempfile.TemporaryFile() as file:
                streams = Streams(stdin, file.fileno(), file.fileno())
                ended = self.start(stem, streams, add_probes).wait()
                file.seek(0)
                output = file.read()
        numbers = {n: s.target.pattern for n, s in enumerate(python)}
        counted = probes.read() if probes else []
        stats = statistics.read(table, numbers, None, counted)
        functions = [f for f in stats.functions if f.target]
        progress = dict(stats.progress)
        return Result(
            ended.status,
            ended.wall_ns,
            ended.interrupted,
            progress.pop(PROCESS_POINT, 0),
            _by_name([*functions, *stats.native]),
            progress,
            stats.lost,
            output,
            ended.wait_ns,
            read_refused(f"{stem}.table"),
            modules_of(f.name for f in stats.functions if f.calls),
            tuple(latency.histograms(table)),
            tuple(latency.marks_not_asked_for(table)),
        )

    def start(
        self,
        stem: str,
        streams: Streams,
        before_exec: Callable[[int], None],
        *,
        calls: bool = False,
    ) -> launch.Child:
        """Start the program, its files being those of ``stem``, as ``launch.start()``.

        Args:
            calls: it is to tell which C functions its functions call
        """
        environ = self.environ(stem)
        environ["SPEED_BUMP_CALLS"] = "1" if calls else ""
        return launch.start(self.command, environ, streams, before_exec)

    def write_targets(self, path: str, python: list[Slowed]) -> None:
        """Write the target file of a run."""
        # Every process pays the same for start-up and hook, the baseline's too: what it
        # has in force is that nothing matches.
        lines = [line(s) for s in python] or [NO_PYTHON]
        if python or self.latencies:
            lines.append(f"{MODULES} delay=0")
        self._slows_python = bool(python or self.latencies)
        lines += [str(target) for target in self.excludes]
        with open(path, "wb") as file:
            file.write(os.fsencode("".join(f"{text}\n" for text in lines)))

    def environ(self, stem: str) -> dict[str, str]:
        """What a run of the program is told, its files being those of ``stem``."""
        environ = dict(os.environ)
        environ["SPEED_BUMP_TARGETS"] = f"{stem}.targets"
        environ["SPEED_BUMP_TABLE"] = f"{stem}.table"
        if os.path.basename(self.command[0]) in MPI_LAUNCHERS:
            environ.update(waits.preloaded(environ))
        environ["SPEED_BUMP_QUIET"] = "1"
        # What a run slows is what it was told, whoever started it.
        for name in ("DELAY_NS", "FREQUENCY", "START_MS", "DURATION_MS", "SEED"):
            environ.pop(f"SPEED_BUMP_{name}", None)
        if self.seed is not None:
            environ[SEED] = str(self.seed & MAX_SEED)
        environ[NATIVE_OWNER] = str(os.getpid())
        if self._slows_python:
            if self._lent is None:
                self._lent = elsewhere.lend(self.command, self.directory, self.inject)
            environ.update(self._lent)
        return environ


def modules_of(functions: Iterable[str]) -> frozenset[str]:
    """The modules whose bodies are among functions that were called."""
    return frozenset(
        name.removesuffix(":<module>") for name in functions if name.endswith(":<module>")
    )


def read_refused(table_path: str) -> tuple[tuple[str, str], ...]:
    """What the processes of a run left by ``control.write_refused()``, each once."""
    found: dict[tuple[str, str], None] = {}
    for path in sorted(glob.glob(f"{glob.escape(table_path)}.refused.*")):
        with open(path, encoding="utf-8", errors="replace") as file:
            for text in file:
                pattern, _, reason = text.rstrip("\n").partition("\t")
                found[pattern, reason] = None
    return tuple(found)


def line(slowed: Slowed) -> str:
    """The line of a target file for one run. Which delay is settled here."""
    target = slowed.target
    delay = target.delay if target.delay_ppm else _core.format_duration(slowed.delay_ns)
    text = f"{target.pattern} delay={delay if slowed.on else 0}"
    if target.every is not None:
        text += f" every={target.every}"
    if target.start_ns is not None:
        text += f" start={_core.format_duration(target.start_ns)}"
    if target.duration_ns is not None:
        text += f" duration={_core.format_duration(target.duration_ns)}"
    return text + target.manner


def add_native(probes: native.Probes, pid: int, kernel: list[Slowed]) -> None:
    """Put native targets into the process ``pid``: all are there, some only count.

    A breakpoint costs time of its own, so each run has all of them.
    """
    probes.scope_to(pid)
    places = probes.add(
        [native.from_target(s.target, Config(delay_ns=s.delay_ns)) for s in kernel]
    )
    off = [place for place, _, index in places if not kernel[index].on]
    if off:
        probes.set_enabled(off, False)


def _by_name(functions: list[FunctionStatistics]) -> tuple[FunctionStatistics, ...]:
    """The functions of all processes together, the most delayed first."""
    together: dict[tuple[str, str], FunctionStatistics] = {}
    for f in functions:
        other = together.get((f.name, f.target))
        if other:
            f = FunctionStatistics(  # noqa: PLW2901
                f.name,
                f.target,
                0,
                f.calls + other.calls,
                f.delayed + other.delayed,
                f.requested_ns + other.requested_ns,
                f.measured_ns + other.measured_ns,
            )
        together[f.name, f.target] = f
    return tuple(sorted(together.values(), key=lambda f: (-f.measured_ns, -f.calls)))


def why_nobody_reported(command: Sequence[str]) -> str:
    """Why no Python process had the delays in force, and what to do."""
    python = elsewhere.interpreter(command)
    if python is None:
        return (
            "no Python process reported in: the command started none, or speed_bump is "
            "not installed in the interpreter that it starts (pip install it there)"
        )
    done = subprocess.run(
        [python, "-c", "import speed_bump"], capture_output=True, check=False
    )
    if done.returncode:
        return (
            f"no Python process reported in: speed_bump is not installed in {python}; "
            f"install it there: {elsewhere.install_command(python)}"
        )
    return (
        f"no Python process reported in, though speed_bump is installed in {python}: was "
        "it started with -S or -I, or without its environment?"
    )
