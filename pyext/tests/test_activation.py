# SPDX-License-Identifier: MIT
"""Programs that know nothing of speed_bump, slowed by the environment."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from conftest import Run

PROGRAM = """
import sys
def work(): pass
for _ in range(30): work()
print("done", "speed_bump" in sys.modules)
"""


def test_unset_does_nothing(python: Run) -> None:
    done = python(PROGRAM)
    assert (done.stdout, done.stderr, done.returncode) == ("done False\n", "", 0)


def test_a_program_is_slowed_without_an_edit(
    python: Run, targets: Callable[[str], str]
) -> None:
    path = targets("__main__:work\n")
    done = python(PROGRAM, SPEED_BUMP_TARGETS=path, SPEED_BUMP_DELAY_NS="20us")
    assert done.returncode == 0
    assert done.stdout == "done True\n"
    first, last = done.stderr.splitlines()
    start = f"speed_bump: slowing 1 target of {path}, 20.0 us each call (process "
    assert first.startswith(start)
    pattern = r"speed_bump: 30 calls, 30 of them delayed, by .* in all \(process \d+\)"
    assert re.fullmatch(pattern, last)


def test_quiet(python: Run, targets: Callable[[str], str]) -> None:
    path = targets("__main__:work\n")
    done = python(PROGRAM, SPEED_BUMP_TARGETS=path, SPEED_BUMP_QUIET="1")
    assert (done.stdout, done.stderr) == ("done True\n", "")


def test_a_subinterpreter_is_left_alone(
    python: Run, targets: Callable[[str], str]
) -> None:
    program = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
def work(): pass
work()
other = interpreters.create()
interpreters.run_string(
    other, "import speed_bump\\nspeed_bump.progress()\\nprint('there')"
)
interpreters.destroy(other)
work()
"""
    done = python(program, SPEED_BUMP_TARGETS=targets("__main__:work"))
    assert done.stdout == "there\n"
    first, last = done.stderr.splitlines()
    assert "slowing 1 target" in first
    assert "2 calls, 2 of them delayed" in last


def test_no_match_is_said(python: Run, targets: Callable[[str], str]) -> None:
    done = python(PROGRAM, SPEED_BUMP_TARGETS=targets("__main__:Work\n"))
    assert "no call matched a target" in done.stderr.splitlines()[-1]


def test_a_mistake_is_one_line_and_the_program_runs(
    python: Run, targets: Callable[[str], str]
) -> None:
    path = targets("a:b\noops\n")
    done = python(PROGRAM, SPEED_BUMP_TARGETS=path)
    assert (done.returncode, done.stdout) == (0, "done True\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"speed_bump: SPEED_BUMP_TARGETS: {path}:2: ")
    assert line.endswith(" (nothing is slowed)")


def test_strict_ends_the_program(python: Run, targets: Callable[[str], str]) -> None:
    done = python(
        PROGRAM,
        SPEED_BUMP_TARGETS=targets("a:b"),
        SPEED_BUMP_FREQUENCY="x",
        SPEED_BUMP_STRICT="1",
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "speed_bump: SPEED_BUMP_FREQUENCY: 'x' is not a whole number\n"


def test_start_is_counted_from_the_start_of_the_process(
    python: Run, targets: Callable[[str], str]
) -> None:
    program = """
import time
import speed_bump
from speed_bump.process import start_ns
def work(): pass
work()
while time.monotonic_ns() < start_ns() + 420_000_000: time.sleep(0.01)
work()
while time.monotonic_ns() < start_ns() + 720_000_000: time.sleep(0.01)
work()
(only,) = speed_bump.stats().functions
print(only.calls, only.delayed)
"""
    done = python(
        program,
        SPEED_BUMP_TARGETS=targets("__main__:work"),
        SPEED_BUMP_START_MS="400",
        SPEED_BUMP_DURATION_MS="300",
    )
    assert done.stdout == "3 1\n", done.stderr


SPAWNS = """
import multiprocessing, subprocess, sys
def work(n): return n
if __name__ == "__main__":
    if sys.argv[1:]:
        work(1)
        sys.exit()
    multiprocessing.set_start_method({method!r})
    with multiprocessing.Pool(2) as pool:
        pool.map(work, range(100))
        pool.close()
        pool.join()
    subprocess.run([sys.executable, sys.argv[0], "child"], check=True)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_are_slowed(method: str, tmp_path: object) -> None:
    import sys
    from pathlib import Path

    from speed_bump.config import parse_targets
    from speed_bump.experiment.runner import Runner, Slowed

    path = Path(str(tmp_path)) / "program.py"
    path.write_text(SPAWNS.format(method=method))
    (target,) = parse_targets("__main__:work", "here")
    with Runner([sys.executable, str(path)], show_output=False) as runner:
        result = runner.run([Slowed(target, 1000)])
    assert result.status == 0, result.output
    assert result.calls(target) == 101


def test_native_lines_without_a_device(
    python: Run, targets: Callable[[str], str]
) -> None:
    import os

    if os.path.exists("/dev/speed_bump"):
        pytest.skip("there is a device")
    done = python(PROGRAM, SPEED_BUMP_TARGETS=targets("native:/lib/x.so:f\n"))
    assert done.stdout == "done True\n"
    (line,) = done.stderr.splitlines()
    assert "sbctl doctor" in line
