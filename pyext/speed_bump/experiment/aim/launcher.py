# SPDX-License-Identifier: MIT
"""Waiting for the first Python process of a program that something else starts.

That may be a shell that compiles, a tool that makes an environment, a JVM. Or there will
be none, and the program is machine code.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from speed_bump.experiment.aim import machine_code
from speed_bump.experiment.program import elsewhere
from speed_bump.experiment.program.machine import spent
from speed_bump.experiment.program.workload import Workload
from speed_bump.process import command_of

# A Python process has reported in within this time of its start.
NO_PYTHON_S = 3.0
# A process that executes one file alone, without an interpreter in it, and computes for
# this part of this time is taken for machine code at once.
SURE_S, SURE_PART = 0.5, 0.5
# So is, after NO_PYTHON_S, a program whose own file has computed for this part of the
# last SURE_S. A program that computes less waits, or other processes work for it: it may
# still start Python.
LAUNCHES = 0.05
# Where machine code can't be measured, Python is waited for this long.
HOPELESS_S = 10.0
MAX_NAMED = 3


@dataclass
class Launch:
    """What is known of how a program is started.

    Args:
        limit_s: the longest wait for the first Python process
        until_s: machine code is not considered before that, because Python came late in
            an earlier run
        refused: why functions of machine code can't be measured here; "": they can
    """

    limit_s: float
    until_s: float = 0.0
    refused: str = ""
    _readings: list[tuple[float, float]] = field(default_factory=list)
    _since: dict[tuple[int, str], float] = field(default_factory=dict)

    def machine_code(self, program: Workload, seconds: float) -> str:
        """The file that the program executes, if it seems to be machine code without
        Python; else "". It is not certain: Python may start later.

        Args:
            seconds: how long it has run
        """
        path = executable(program.pid) if seconds >= SURE_S else ""
        if not path or seconds < self.until_s:
            return ""
        pids = program.pids
        alike = [pid for pid in pids if executable(pid) == path]
        # On a busy machine it waits for a CPU, and would compute.
        reading = spent(alike)
        run_s = (reading.run_ns + reading.wait_ns) / 1e9
        share = self._share(seconds, run_s)
        if seconds > NO_PYTHON_S and not self.refused:
            return path if share >= LAUNCHES else ""
        if self.refused and seconds < HOPELESS_S:
            return ""
        is_alone = len(alike) == len(pids) and run_s >= SURE_PART * seconds
        return path if is_alone and not machine_code.embeds_python(program.pid) else ""

    def _share(self, seconds: float, run_s: float) -> float:
        """The part of the last time that it has computed."""
        self._readings.append((seconds, run_s))
        while len(self._readings) > 2 and self._readings[1][0] <= seconds - SURE_S:
            del self._readings[0]
        before_s, before_run_s = self._readings[0]
        if seconds <= before_s:
            return run_s / max(seconds, SURE_S)
        return (run_s - before_run_s) / (seconds - before_s)

    def say_start(self, seconds: float, event: Callable[[str], None]) -> None:
        """The first Python process has started; it is said if that is news."""
        if seconds > NO_PYTHON_S and not self.until_s:
            event(
                f"a Python process has started {seconds:.1f} s after the program: "
                "looking at it"
            )

    def state(self, program: Workload) -> str:
        """What is waited for, and what runs meanwhile."""
        now = time.monotonic()
        running = {pid: path for pid in sorted(program.pids) if (path := _executed(pid))}
        self._since = {one: self._since.get(one, now) for one in running.items()}
        for pid, path in running.items():
            if now - self._since[pid, path] > NO_PYTHON_S and elsewhere.is_python(path):
                name = next(iter(command_of(pid)), path)
                name = name if os.path.isabs(name) else path
                return (
                    f"waiting for a Python process with speed_bump: {name} runs without "
                    f"it (to install it there: {elsewhere.install_command(name)})"
                )
        names = dict.fromkeys(os.path.basename(path) for path in running.values())
        said = ", ".join(list(names)[:MAX_NAMED])
        text = "waiting for a Python process"
        text += f"; now the program runs {said}" if said else ""
        if self.refused and executable(program.pid):
            text += f" (native functions can't be measured here: {self.refused})"
        return text


def executable(pid: int) -> str:
    """The file that a process executes, if it is machine code and not Python; else ""."""
    path = _executed(pid)
    is_python = elsewhere.is_python(path)
    return path if path and not is_python and machine_code.is_executable(path) else ""


def _executed(pid: int) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/exe")
    return ""
