# SPDX-License-Identifier: MIT
"""The command, on programs with known answers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import schemas
from speed_bump.command import rank

pytestmark = pytest.mark.one_python

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def go_first() -> None:
    """Run above other programs on this machine, if permitted: they are noise here."""
    with contextlib.suppress(PermissionError):
        os.nice(-15)


@pytest.fixture
def speed_bump(environ: dict[str, str], tmp_path: Path) -> Command:
    def run(
        *arguments: str, program: str = "", first: bool = False, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "speed_bump", *arguments]
        if program:
            path = tmp_path / "program.py"
            path.write_text(program)
            command += ["--", sys.executable, str(path)]
        return subprocess.run(
            command,
            env=environ | variables,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            preexec_fn=go_first if first else None,
        )

    return run


def test_it_says_its_version(speed_bump: Command) -> None:
    done = speed_bump("--version")
    assert done.returncode == 0
    assert re.fullmatch(r"speed-bump \d\S* \(Python 3\.\d+\.\S+\)\n", done.stdout)


PROGRAM = """
import sys
def work(): pass
def idle(): pass
for _ in range(40): work()
print("output")
sys.exit(int(sys.argv[1]) if sys.argv[1:] else 0)
"""


def test_run(speed_bump: Command) -> None:
    done = speed_bump(
        "run", "-t", "__main__:work", "-t", "__main__:idle", "-d", "5us", program=PROGRAM
    )
    assert (done.returncode, done.stdout) == (0, "output\n")
    lines = [line.split() for line in done.stderr.splitlines()]
    assert lines[0] == ["calls", "delayed", "delivered", "target", "pattern"]
    assert lines[1][:2] == ["40", "40"]
    assert lines[1][-2:] == ["__main__:work", "__main__:work"]
    assert lines[2] == ["0", "0", "0", "ns", "-", "__main__:idle"]


def test_run_json(speed_bump: Command, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    done = speed_bump("run", "-t", "*:work", "--json", str(path), program=PROGRAM)
    assert done.returncode == 0
    found = schemas.read("run", path.read_text())
    (only,) = found["targets"]
    assert (only["target"], only["calls"]) == ("__main__:work", 40)
    assert (found["exit_status"], found["processes"]) == (0, 1)
    assert found["wall_ns"] > only["delivered_ns"] >= 40 * 900


def test_target_file_and_exclusion(speed_bump: Command, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("__main__:*\n!__main__:<module>\n")
    done = speed_bump("run", "--targets", str(path), "--json", "-", program=PROGRAM)
    found = schemas.read("run", done.stdout)
    assert done.stderr.startswith("output\n")
    assert [f["target"] for f in found["targets"]] == ["__main__:work"]


def test_status_is_that_of_the_command(speed_bump: Command, tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(PROGRAM)
    for arguments in ([], ["--compare", "--runs", "1"]):
        done = speed_bump(
            *["run", "-t", "*:work", *arguments, "--", sys.executable, str(path), "7"]
        )
        assert done.returncode == 7
    assert "the pilot run, without delays, failed with status 7" in done.stderr
    assert "output" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "-t", "a:b"], "no command to run"),
        (["run", "--", "true"], "nothing to slow"),
        (["run", "-t", "oops", "--", "true"], "-t:1: "),
        (["run", "-t", "a:b", "-d", "soon", "--", "true"], "-d: 'soon' is not a time"),
        (["run", "-t", "a:b", "-d", "11s", "--", "true"], "-d: "),
        (["run", "--targets", "/no/file", "--", "true"], "/no/file: No such file"),
        (["run", "-t", "a:b", "--runs", "0", "--", "true"], "--runs: 1 or more"),
        (
            ["run", "-t", "a:b", "-t", "a:b every=2", "--", "true"],
            "a:b: given twice, with different options",
        ),
        ([], "required"),
    ],
)
def test_wrong_usage(speed_bump: Command, arguments: list[str], message: str) -> None:
    done = speed_bump(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_json_that_cannot_be_written_is_said_first(speed_bump: Command) -> None:
    done = speed_bump("run", "-t", "*:work", "--json", "/no/file", program=PROGRAM)
    assert (done.returncode, done.stdout) == (1, "")
    assert "/no/file" in done.stderr


def test_the_environment_does_not_change_what_is_slowed(speed_bump: Command) -> None:
    done = speed_bump(
        *["run", "-t", "*:work", "--json", "-"],
        program=PROGRAM,
        SPEED_BUMP_DELAY_NS="nonsense",
        SPEED_BUMP_FREQUENCY="10",
        SPEED_BUMP_START_MS="60000",
    )
    (only,) = schemas.read("run", done.stdout)["targets"]
    assert (only["calls"], only["delayed"]) == (40, 40)
    assert only["requested_ns"] == 40 * 1000


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_each_run_reads_the_same(
    environ: dict[str, str], tmp_path: Path, kind: str
) -> None:
    program = "import sys\ndef work(): pass\nwork()\nsys.exit(len(sys.stdin.read()) != 9)"
    command = [
        *[sys.executable, "-m", "speed_bump", "run", "--compare", "--runs", "1"],
        *["-t", "__main__:work", "--", sys.executable, "-c", program],
    ]
    path = tmp_path / "input"
    path.write_text("skip nine more")
    with path.open("rb", buffering=0) as file:
        file.read(5)
        given = {"stdin": file} if kind == "file" else {"input": file.read()}
        done = subprocess.run(
            command, env=environ, capture_output=True, timeout=120, check=False, **given
        )
    assert done.returncode == 0, done.stderr


def test_without_room_in_shared_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import errno

    from speed_bump import _core
    from speed_bump.experiment.program import directory, runner

    shared, other = tmp_path / "shared", tmp_path / "other"
    shared.mkdir()
    other.mkdir()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(directory, "SHARED_MEMORY", str(shared))
    monkeypatch.setattr("tempfile.tempdir", str(other))
    with runner.Runner(["true"]) as found:
        assert os.path.dirname(found.directory) == str(shared)
    monkeypatch.setattr(_core, "Table", full)
    with runner.Runner(["true"]) as found:
        assert os.path.dirname(found.directory) == str(other)
    assert not os.listdir(shared) and not os.listdir(other)


def test_no_such_command(speed_bump: Command) -> None:
    done = speed_bump("run", "-t", "a:b", "--", "/no/such/command")
    assert done.returncode == 127
    assert done.stderr == "speed-bump: /no/such/command: No such file or directory\n"


def test_nobody_reported_in(speed_bump: Command) -> None:
    done = speed_bump("run", "-t", "a:b", "--", "true")
    assert done.returncode == 1
    assert "speed-bump: no Python process reported in" in done.stderr
    done = speed_bump("run", "-t", "a:b", "--compare", "--", "true")
    assert done.returncode == 1
    done = speed_bump("run", "-t", "a:b", "--", sys.executable, "-S", "-c", "")
    assert "was it started with -S" in done.stderr


def test_an_interpreter_without_us_is_named(speed_bump: Command, tmp_path: Path) -> None:
    import venv

    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    done = speed_bump("run", "-t", "a:b", "--", python, "-c", "")
    assert f"speed_bump is not installed in {python}" in done.stderr


# A working stage beside one that sleeps longer: work during the sleep is hidden; work
# after both have met is serial.
STAGES = """
import threading, time
def serial(): sum(range(100))
def hidden(): sum(range(100))
def main():
    for _ in range(5):
        sleeper = threading.Thread(target=time.sleep, args=(0.12,))
        sleeper.start()
        for _ in range(20): hidden()
        sleeper.join()
        for _ in range(20): serial()
        {progress}
{start}
main()
"""


def compare(
    speed_bump: Command, program: str, seed: int, *arguments: str
) -> dict[str, Any]:
    done = speed_bump(
        "run",
        "--compare",
        *["-t", "__main__:serial", "-t", "__main__:hidden", "-t", "__main__:never"],
        *["--json", "-", "-d", "2ms", "--seed", str(seed), *arguments],
        program=program,
        first=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"seed {seed}" in done.stderr
    found: dict[str, Any] = schemas.read("runs", done.stdout)
    return found


@pytest.mark.timed
@pytest.mark.parametrize("with_progress", [False, True])
def test_known_answers(speed_bump: Command, with_progress: bool) -> None:
    program = STAGES.format(
        progress="speed_bump.progress()" if with_progress else "",
        start="import speed_bump" if with_progress else "",
    )
    wrong = []
    # Other programs may spoil an experiment, or all; the result then says so. A 95%
    # interval is wrong now and then, but not with more runs and each seed.
    for seed, runs in enumerate((5, 10, 20), 3):
        found = compare(speed_bump, program, seed, "--runs", str(runs))
        serial, hidden = found["targets"]
        check_what_was_done(found, runs, with_progress)
        busy = [is_busy(serial), is_busy(hidden)]
        if not any(busy) and is_right(serial, hidden):
            return
        wrong.append((any(busy), found["targets"]))
    assert any(busy for busy, _ in wrong), wrong


def is_busy(target: dict[str, Any]) -> bool:
    busy: bool = target["reason"].startswith("the machine is busy")
    return busy


def check_what_was_done(found: dict[str, Any], runs: int, with_progress: bool) -> None:
    serial, hidden = found["targets"]
    assert (serial["target"], hidden["target"]) == ("__main__:serial", "__main__:hidden")
    units = 5 if with_progress else 1
    assert found["unit"] == ("default" if with_progress else None)
    for target in serial, hidden:
        assert target["calls_per_unit"] == 100 / units
        assert target["pairs"] == runs
        # 100 delays of 2 ms.
        assert target["requested_per_unit_ns"] * units == 0.2e9
        assert target["delivered_per_unit_ns"] >= target["requested_per_unit_ns"]
    assert found["never_called"] == {"__main__:never": None}
    # The keys and words of an experiment with slots.
    for finding in found["findings"]:
        assert finding["verdict"] in ("matters", "partly", "hidden", "inconclusive")
        assert finding["reason"] and bool(finding["help"]) == (
            finding["verdict"] == "inconclusive"
        )
        assert {"notes", "slack_ns", "shape", "dose", "self_share"} <= set(finding)


def is_right(serial: dict[str, Any], hidden: dict[str, Any]) -> bool:
    effect = {}
    for target in serial, hidden:
        effect[target["target"]] = [
            target["change_ns"][what] / target["delivered_per_unit_ns"]
            for what in ("low", "value", "high")
        ]
    # On a busy machine the intervals are wide, but still contain the truth.
    low, value, high = effect["__main__:serial"]
    right = low < 1.15 and high > 0.85 and serial["verdict"] != "hidden"
    low, other, high = effect["__main__:hidden"]
    right = right and low < 0.15 and high > -0.15 and hidden["verdict"] != "matters"
    return bool(right and value > other + 0.4)


def test_the_table_says_the_same(speed_bump: Command) -> None:
    program = "def work(): pass\nfor _ in range(100): work()\n"
    done = speed_bump(
        *["run", "--compare", "-t", "__main__:work", "-t", "__main__:not_there"],
        *["--runs", "2", "--seed", "5"],
        program=program,
    )
    assert done.returncode == 0, done.stderr
    summary, _, heads, *rows = done.stdout.splitlines()
    assert summary.startswith("4 runs in 2 blocks, seed 5; undelayed ")
    assert heads.split()[0] == "target"
    assert rows[0].split()[0] == "__main__:work"
    assert rows[1].split()[-2:] == ["never", "called"]


def test_each_of_overlapping_targets_is_measured(speed_bump: Command) -> None:
    done = speed_bump(
        *["run", "--compare", "-t", "__main__:*", "-t", "__main__:work", "--json", "-"],
        *["-t", "__main__:w*", "--runs", "1", "-d", "1us"],
        program="def work(): pass\ndef idle(): pass\nfor _ in range(9): work(); idle()\n",
    )
    assert done.returncode == 0, done.stderr
    found = schemas.read("runs", done.stdout)
    assert [t["target"] for t in found["targets"]] == [
        "__main__:*",
        "__main__:work",
        "__main__:w*",
    ]
    assert [t["calls_per_unit"] for t in found["targets"]] == [19, 9, 9]
    assert found["never_called"] == {}


def test_a_run_without_progress_failed(speed_bump: Command, tmp_path: Path) -> None:
    program = f"""
import os, speed_bump
def work(): pass
work()
if not os.path.exists({str(tmp_path / "second")!r}): speed_bump.progress()
open({str(tmp_path / "second")!r}, "w").close()
"""
    done = speed_bump("run", "--compare", "-t", "__main__:work", program=program)
    assert done.returncode == 1
    assert "made no progress (default); the pilot run did" in done.stderr


def test_ctrl_c_ends_with_what_is_known(environ: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("def work(): pass\nfor _ in range(100): work()\n")
    process = subprocess.Popen(
        [
            *[sys.executable, "-m", "speed_bump", "run", "--compare", "--runs", "1000"],
            *["-t", "__main__:work", "--", sys.executable, str(path)],
        ],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "3 of 1000 blocks" in line:
            break
    try:
        for _ in range(3):
            # CPython ignores exceptions in what it calls after a fork, such as that of
            # Ctrl-C in logging._releaseLock(): it is pressed again then.
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, _ = process.communicate(timeout=20)
                break
    finally:
        process.kill()
    assert process.returncode == 130
    assert "stopped before the end" in output
    assert "__main__:work" in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_goes_to_the_program(
    environ: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, time\n"
        "def end(number, _):\n"
        # No print() here, which may be what was interrupted.
        "    os.write(1, b'got %d\\n' % number)\n"
        "    raise SystemExit\n"
        f"signal.signal({int(number)}, end)\n"
        "print(os.environ['SPEED_BUMP_TABLE'], flush=True)\n"
        "while True: time.sleep(0.01)\n"
    )
    process = subprocess.Popen(
        [
            *[sys.executable, "-m", "speed_bump", "run", "-t", "a:b"],
            *["--", sys.executable, str(program)],
        ],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    table = process.stdout.readline().strip()
    assert os.path.exists(table)
    process.send_signal(number)
    try:
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (output, process.returncode) == (f"got {int(number)}\n", 128 + number)
    assert not os.path.exists(os.path.dirname(table))


@pytest.mark.parametrize(
    ("unit_ns", "advice"),
    [
        (3.2e6, "as it is now: give --budget 12s or more"),
        (1e9, "a unit of work takes 1.00 s: give --budget "),
    ],
)
def test_a_budget_that_was_too_small_is_not_advised(
    unit_ns: float, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The machine may be too slow for it, instead of the unit being too long."""
    options, experiment = SimpleNamespace(budget_s=6.0), SimpleNamespace(unit_ns=unit_ns)
    ranking: Any = SimpleNamespace(options=options, experiment=experiment)
    assert rank._nothing(ranking) == 1
    said = capsys.readouterr().err
    assert "the budget of 6 s was used up" in said
    assert advice in said
    (seconds,) = re.findall(r"--budget (\d+)s", said)
    assert int(seconds) > 6
