# SPDX-License-Identifier: MIT
"""Programs that something else starts first: a launcher that computes or waits."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranking import Ranked
from speed_bump import native
from speed_bump.experiment.aim import Aim, aim, machine_code
from speed_bump.experiment.errors import RankError
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner

pytestmark = [pytest.mark.two_pythons, pytest.mark.timed]

# It computes at an even pace, as a program of its own would, and starts Python then.
LAUNCHER = """
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static volatile unsigned long sum;
__attribute__((noinline)) void parse(void)
{
	for (volatile long i = 0; i < 1500000; i++)
		;
}
__attribute__((noinline)) void compile(void)
{
	parse();
	parse();
	sum++;
}
int main(int argc, char **argv)
{
	struct timespec begin, now;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		compile();
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - begin.tv_sec < atoi(argv[1]));
	return execvp(argv[2], argv + 2);
}
"""
LAUNCHED = """
import time
def work():
    return sum(range(20000))
def unit():
    for _ in range(10):
        work()
    time.sleep(0.005)
while True:
    unit()
"""


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("launches")
    (folder / "launches.c").write_text(LAUNCHER)
    subprocess.run(
        [compiler, "-O1", "-o", "launches", "launches.c"], cwd=folder, check=True
    )
    return str(folder / "launches")


def launched_by(*command: str) -> tuple[Aim, list[str]]:
    said: list[str] = []
    line = [*command, sys.executable, "-c", LAUNCHED]
    with Runner(line, show_output=False) as runner:
        found = aim(runner, Progress(), 20.0, lambda _: None, event=said.append)
    return found, said


@pytest.mark.parametrize("seconds", [2, 6])
def test_python_that_a_program_starts_later_is_looked_at(
    launches: str, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_code, "why_not", lambda: "not for you")
    found, said = launched_by(launches, str(seconds))
    # With little CPU time, the even pace is that of its parts.
    assert found.unit_name in ("__main__:unit", "__main__:work"), said
    assert "__main__:work" in found.candidates
    assert not found.machine_code
    told = [text for text in said if "a Python process has started" in text]
    waits = [text for text in said if text.startswith("waiting for a Python")]
    assert (len(told), bool(waits)) == ((1, True) if seconds > 4 else (0, False)), said
    assert all("launches (native" in text for text in waits)


def test_python_that_a_shell_starts_later_is_looked_at() -> None:
    """As a child, after another one that has ended and was of no use."""
    script = f'{sys.executable} -c "import json"; sleep 5; "$@"; exit $?'
    begin = time.monotonic()
    found, said = launched_by("sh", "-c", script, "sh")
    elapsed = time.monotonic() - begin
    # With little CPU time, the even pace is that of its parts.
    assert found.unit_name in ("__main__:unit", "__main__:work"), said
    assert "__main__:work" in found.candidates
    waits = [text for text in said if text.startswith("waiting for a Python")]
    assert any("sleep" in text for text in waits), said
    # What was waited for is no work.
    assert found.seconds < elapsed - 4
    assert found.shares.total["__main__:unit"] > 0.1


def test_where_python_does_not_come_it_is_said_how_long_it_was_waited_for() -> None:
    said: list[str] = []
    command = ["sh", "-c", "sleep 1000; exit 1"]
    with (
        Runner(command, show_output=False) as runner,
        pytest.raises(RankError, match="after 5 s of waiting, the program"),
    ):
        aim(runner, Progress(), 5.0, said.append, budget_s=5.0)


@pytest.mark.ranks_native
def test_python_that_starts_while_machine_code_is_measured(
    tmp_path: Path, launches: str
) -> None:
    if not native.is_available():
        pytest.skip("native functions can't be delayed here")
    ranked = Ranked(
        tmp_path,
        [],
        [launches, "6", sys.executable, "-c", LAUNCHED],
        # Not over before it comes to that.
        *("--precision", "0.001"),
        fits=lambda ranked: "work" in ranked.findings,
        budgets=(10, 25),
    )
    said = ranked.done.stderr
    assert said.count("a Python process has started after") == 1, said
    assert "a unit of work is call of __main__:" in said
    names = {finding["target"] for finding in ranked.result["findings"]}
    assert not [name for name in names if name.startswith("/")]
