# SPDX-License-Identifier: MIT
"""Running a program with chosen targets delayed, and reading the counts."""

from __future__ import annotations

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
from speed_bump.control import EXIT_POINT, NATIVE_OWNER, PROCESS_POINT, SEED
from speed_bump.experiment.program import elsewhere, latency, launch
from speed_bump.experiment.program.directory import directory
from speed_bump.experiment.program.latency import Histogram
from speed_bump.experiment.program.launch import Streams
from speed_bump.experiment.program.native_latency import NativeLatencies
from speed_bump.experiment.program.processes import check_one_tree
from speed_bump.statistics import FunctionStatistics

# Functions times processes. The file takes its room when it is made, 12 MB.
CAPACITY = 1 << 14
# The line of a target file without a Python target.
NO_PYTHON = "!*:*"
# Launchers of ranks that may wait in MPI.
MPI_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "srun")


# Counted in each run, after its targets, to learn which modules were imported.
MODULES = "*:<module>"


@dataclass(frozen=True)
class Slowed:
    """A target for one run, and the delay of a call, ns; ``on`` False: it only counts.

    For a delay that is a part of the duration, ``delay_ns`` is ignored.
    """

    target: Target
    delay_ns: int
    on: bool = True


@dataclass(frozen=True)
class Result:
    """One run of the program.

    ``processes`` is how many Python processes had the delays in force, ``functions`` what
    was counted in all processes together, ``lost`` how many functions found no room to be
    counted, ``output`` what the program wrote if it was not shown. For ``wait_ns`` of
    ``wall_ns`` its first thread waited for a CPU that other programs had, and for
    ``blocked_ns`` it slept. ``refused`` are the C functions that can't be slowed:
    patterns with a reason each; ``imported`` the Python modules that ran; ``durations``
    what was recorded, and ``marks_not_asked_for`` names of marks that were not asked for.
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
    blocked_ns: int = 0

    def of(self, target: Target) -> list[FunctionStatistics]:
        """The counts of the functions that ``target`` matched."""
        text = target.pattern
        return [f for f in self.functions if f.target == text]

    def calls(self, target: Target) -> int:
        return sum(f.calls for f in self.of(target))

    def requested_ns(self, target: Target) -> int:
        """The sum of their delays as requested."""
        return sum(f.requested_ns for f in self.of(target))

    def delivered_ns(self, target: Target) -> int:
        """The sum of their delays as delivered."""
        return sum(f.delivered_ns for f in self.of(target))


class Input:
    """The tool's standard input, from its current position, for each of several runs.

    A file is rewound, and a pipe is kept in a file. A terminal would wait for input in
    each run, so the program gets an empty input instead. Use as a context manager.
    """

    def __init__(self) -> None:
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
        if self._file:
            self._file.close()

    def rewound(self) -> int | None:
        """The descriptor for the next run; None: the tool's own."""
        if self._file:
            self._file.seek(0)
            return self._file.fileno()
        if self._at is not None:
            os.lseek(0, self._at, os.SEEK_SET)
        return None


def _kept() -> IO[bytes]:
    """A file with all of the tool's standard input."""
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


@dataclass
class Runner:
    """A program to run. Use as a context manager.

    Args:
        excludes: exclusions that apply in each run
        show_output: the program writes where the tool does; else its output is in the
            results
        to_stderr: send its stdout, if shown, to stderr
        again: it will run more than once, and is to read the same input each time
        inject: lend this package to its Python if that has none
        latencies: names of durations that its processes record, as ``--latency`` has them
        native_latencies: the same of native functions, which the kernel records; where
            names are numbered, they come after the others

    Drawn delays follow from ``seed``, to be set before a run; None: the program chooses a
    seed.
    """

    command: Sequence[str]
    excludes: Sequence[Target] = ()
    show_output: bool = True
    to_stderr: bool = False
    again: bool = False
    inject: bool = False
    latencies: Sequence[str] = ()
    native_latencies: Sequence[str] = ()
    seed: int | None = field(init=False, default=None)
    directory: str = field(init=False, default="")
    _runs: int = field(init=False, default=0)
    _slows_python: bool = field(init=False, default=False)
    _lent: dict[str, str] | None = field(init=False, default=None)
    _input: Input | None = field(init=False, default=None)
    _stack: ExitStack = field(init=False, default_factory=ExitStack)

    @property
    def attached_to(self) -> Sequence[int]:
        """The processes that are already running; empty: it starts a program."""
        return ()

    @property
    def attached(self) -> Mapping[int, str]:
        """The ways into them, as far as it got."""
        return {}

    @property
    def text(self) -> str:
        """What it runs, for display."""
        return " ".join(self.command)

    def __enter__(self) -> Runner:
        """Make the directory of tables."""
        with ExitStack() as stack:
            self.directory = stack.enter_context(directory(CAPACITY))
            if self.again:
                self._input = stack.enter_context(Input())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
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
        with ExitStack() as stack:
            stack.callback(self.remove, stem)
            stack.callback(table.close)
            probes = recorder = None
            if kernel:
                probes = native.Probes(0)
                stack.callback(probes.close)
            if self.native_latencies:
                recorder = NativeLatencies(self.native_latencies)
                stack.callback(recorder.close)
            return self._run(stem, table, python, kernel, probes, recorder)

    def borrow(self, other: Runner) -> None:
        """Use the directory and the input of another runner, which keeps owning them."""
        self.directory = other.directory
        self._input = other._input
        # Numbers distinguish its files.
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
        """The path of the next run's files, which ends in its number."""
        self._runs += 1
        return os.path.join(self.directory, str(self._runs))

    def remove(self, stem: str) -> None:
        """Remove the files of a run."""
        for path in glob.glob(f"{glob.escape(stem)}.*"):
            with suppress(FileNotFoundError):
                os.unlink(path)

    def stdin(self) -> int | None:
        """The next run's input, from its beginning; None: that of the tool."""
        return self._input.rewound() if self._input else None

    def _run(
        self,
        stem: str,
        table: _core.Table,
        python: list[Slowed],
        kernel: list[Slowed],
        probes: native.Probes | None,
        recorder: NativeLatencies | None,
    ) -> Result:
        def add_probes(pid: int) -> None:
            if probes or recorder:
                check_one_tree(self.attached_to)
            if probes:
                add_native(probes, pid, kernel)
            if recorder:
                recorder.start(pid)

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
        progress.pop(EXIT_POINT, None)
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
            (*latency.histograms(table), *(recorder.histograms() if recorder else ())),
            tuple(latency.marks_not_asked_for(table)),
            ended.blocked_ns,
        )

    def start(
        self,
        stem: str,
        streams: Streams,
        before_exec: Callable[[int], None],
        *,
        calls: bool = False,
    ) -> launch.Child:
        """Start the program, with the files of ``stem``, like ``launch.start()``.

        Args:
            calls: have it record which C functions its functions call
        """
        environ = self.environ(stem)
        environ["SPEED_BUMP_CALLS"] = "1" if calls else ""
        return launch.start(self.command, environ, streams, before_exec)

    def write_targets(self, path: str, python: list[Slowed]) -> None:
        """Write the target file of a run."""
        # Every process has the same cost of start-up and hook, including the baseline's,
        # whose delays are in force and match nothing.
        lines = [line(s) for s in python] or [NO_PYTHON]
        if python or self.latencies:
            lines.append(f"{MODULES} delay=0")
        self._slows_python = bool(python or self.latencies)
        lines += [str(target) for target in self.excludes]
        with open(path, "wb") as file:
            file.write(os.fsencode("".join(f"{text}\n" for text in lines)))

    def environ(self, stem: str) -> dict[str, str]:
        """The environment of a run with the files of ``stem``."""
        environ = dict(os.environ)
        environ["SPEED_BUMP_TARGETS"] = f"{stem}.targets"
        environ["SPEED_BUMP_TABLE"] = f"{stem}.table"
        if os.path.basename(self.command[0]) in MPI_LAUNCHERS:
            environ.update(waits.preloaded(environ))
        environ["SPEED_BUMP_QUIET"] = "1"
        # The settings of a run must not depend on the environment of the tool.
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
    """The modules whose bodies are among the called functions."""
    return frozenset(
        name.removesuffix(":<module>") for name in functions if name.endswith(":<module>")
    )


def read_refused(table_path: str) -> tuple[tuple[str, str], ...]:
    """What the processes of a run wrote by ``control.write_refused()``, each once."""
    found: dict[tuple[str, str], None] = {}
    for path in sorted(glob.glob(f"{glob.escape(table_path)}.refused.*")):
        with open(path, encoding="utf-8", errors="replace") as file:
            for text in file:
                pattern, _, reason = text.rstrip("\n").partition("\t")
                found[pattern, reason] = None
    return tuple(found)


def line(slowed: Slowed) -> str:
    """The line of a target file for one run, with its final delay."""
    target = slowed.target
    if not slowed.on:
        return target.text_with("0")
    delay = target.delay if target.delay_ppm else _core.format_duration(slowed.delay_ns)
    return target.text_with(delay)


def add_native(probes: native.Probes, pid: int, kernel: list[Slowed]) -> None:
    """Add native targets to the process ``pid``: all of them, some only counting.

    A breakpoint costs time of its own, so each run has all of them.
    """
    probes.scope_to(pid)
    places = probes.add(
        [native.from_target(s.target, Config(delay_ns=s.delay_ns)) for s in kernel]
    )
    off = [place.id for place in places if not kernel[place.target].on]
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
                f.delivered_ns + other.delivered_ns,
            )
        together[f.name, f.target] = f
    return tuple(sorted(together.values(), key=lambda f: (-f.delivered_ns, -f.calls)))


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
