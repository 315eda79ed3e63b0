# SPDX-License-Identifier: MIT
"""Running a program with chosen targets delayed, and reading what was counted."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field

from speed_bump import _core, native, statistics
from speed_bump.config import Config, Target
from speed_bump.control import NATIVE_OWNER, PROCESS_POINT
from speed_bump.experiment import launch
from speed_bump.statistics import FunctionStatistics

# Functions times processes. What is not used of the file takes no memory.
CAPACITY = 1 << 16


@dataclass(frozen=True)
class Slowed:
    """A target for one run, and the delay of a call, ns; ``on`` False: it only counts."""

    target: Target
    delay_ns: int
    on: bool = True


@dataclass(frozen=True)
class Result:
    """One run of the program.

    ``processes`` is how many Python processes had the delays in force, ``functions`` what
    was counted in all processes together, ``lost`` how many functions found no room to be
    counted, ``output`` what the program wrote where it was not shown.
    """

    status: int
    wall_ns: int
    interrupted: bool
    processes: int
    functions: tuple[FunctionStatistics, ...]
    progress: dict[str, int]
    lost: int = 0
    output: bytes = b""

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


@dataclass
class Runner:
    """A program to run, again and again. Use as a context manager."""

    command: Sequence[str]
    excludes: Sequence[Target] = ()
    show_output: bool = True
    directory: str = field(init=False, default="")
    _runs: int = field(init=False, default=0)

    def __enter__(self) -> Runner:
        """Make room for tables: in memory, where there is a file system of that kind."""
        room = "/dev/shm"
        usable = os.path.isdir(room) and os.access(room, os.W_OK | os.X_OK)
        self.directory = tempfile.mkdtemp(
            prefix="speed-bump-", dir=room if usable else None
        )
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, slowed: Sequence[Slowed]) -> Result:
        """Run the program once, with ``slowed`` in force.

        Raises:
            LaunchError: it can't be started
            NativeError: native functions can't be slowed
        """
        self._runs += 1
        stem = os.path.join(self.directory, str(self._runs))
        python = [s for s in slowed if not s.target.native]
        kernel = [s for s in slowed if s.target.native]
        self._write_targets(f"{stem}.targets", python)
        table = _core.Table(f"{stem}.table", CAPACITY)
        probes = native.Probes(0) if kernel else None
        try:
            return self._run(stem, table, python, kernel, probes)
        finally:
            if probes:
                probes.close()
            table.close()
            os.unlink(f"{stem}.table")
            os.unlink(f"{stem}.targets")

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

        environ = self._environ(stem)
        if self.show_output:
            ended = launch.run(self.command, environ, None, add_probes)
            output = b""
        else:
            with tempfile.TemporaryFile(dir=self.directory) as file:
                ended = launch.run(self.command, environ, file.fileno(), add_probes)
                file.seek(0)
                output = file.read()
        numbers = {n: s.target.pattern for n, s in enumerate(python)}
        counted = probes.read() if probes else []
        stats = statistics.read(table, numbers, None, counted)
        progress = dict(stats.progress)
        return Result(
            ended.status,
            ended.wall_ns,
            ended.interrupted,
            progress.pop(PROCESS_POINT, 0),
            _by_name([*stats.functions, *stats.native]),
            progress,
            stats.lost,
            output,
        )

    def _write_targets(self, path: str, python: list[Slowed]) -> None:
        # Every process pays the same for start-up and hook, the baseline's too: what it
        # has in force is that nothing matches.
        lines = [line(s) for s in python] or ["!*:*"]
        lines += [str(target) for target in self.excludes]
        with open(path, "wb") as file:
            file.write(os.fsencode("".join(f"{text}\n" for text in lines)))

    def _environ(self, stem: str) -> dict[str, str]:
        environ = dict(os.environ)
        environ["SPEED_BUMP_TARGETS"] = f"{stem}.targets"
        environ["SPEED_BUMP_TABLE"] = f"{stem}.table"
        environ["SPEED_BUMP_QUIET"] = "1"
        environ.pop("SPEED_BUMP_DELAY_NS", None)  # each target has its own
        environ[NATIVE_OWNER] = str(os.getpid())
        return environ


def line(slowed: Slowed) -> str:
    """The line of a target file for one run. Which delay is settled here."""
    delay_ns = slowed.delay_ns if slowed.on else 0
    target = slowed.target
    text = f"{target.pattern} delay={_core.format_duration(delay_ns)}"
    if target.every is not None:
        text += f" every={target.every}"
    if target.start_ns is not None:
        text += f" start={_core.format_duration(target.start_ns)}"
    if target.duration_ns is not None:
        text += f" duration={_core.format_duration(target.duration_ns)}"
    return text + (" resume=1" if target.resume else "")


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
    python = interpreter(command)
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
            f"install it there: {python} -m pip install PATH-TO-SPEED-BUMP"
        )
    return (
        f"no Python process reported in, though speed_bump is installed in {python}: was "
        "it started with -S or -I, or without its environment?"
    )


def interpreter(command: Sequence[str]) -> str | None:
    """The Python that ``command`` starts, by name or first line; None: who knows."""
    path = shutil.which(command[0])
    if path is None:
        return None
    if _is_python(path):
        return path
    try:
        with open(path, "rb") as file:
            first = file.readline(512)
    except OSError:
        return None
    words = os.fsdecode(first[2:]).split() if first.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [w for w in words[1:] if not w.startswith("-") and "=" not in w]
    found = shutil.which(words[0]) if words else None
    return found if found and _is_python(found) else None


def _is_python(path: str) -> bool:
    name = os.path.basename(path)
    return name.startswith(("python", "pypy"))
