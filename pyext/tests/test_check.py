# SPDX-License-Identifier: MIT
"""``speed-bump check``. What it finds here depends on who else is here."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys

import pytest
from speed_bump import native
from speed_bump.experiment import check
from speed_bump.experiment.command import main
from speed_bump.experiment.estimate import Interval

TIMEOUT_S = 300
# On a busy machine the first is not enough.
BUDGETS = ("2s", "10s", "60s")
WHERE = {
    "cpu": "a CPU", "machine": "m", "cpus": 2, "kernel": "1", "load": [0.0],
    "python": "3", "hook": "monitoring", "clock": "tsc", "least_delay_ns": 20,
}  # fmt: skip


def speed_bump(environ, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "speed_bump", "check", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def report(**values):
    found = check.Report(
        dict(WHERE), [check.Spin(1000, 1001.0, 1100.0)], pairs=100, pair_s=0.02,
        noise=0.02, unit_ns=1e6, window_ns=8_000_000, known=Interval(1.0, 0.95, 1.05),
    )  # fmt: skip
    return dataclasses.replace(found, **values)


def test_how_small_an_effect_is_seen():
    found = report()
    # 500 pairs in 10 s.
    assert found.half(10) == pytest.approx(1.96 * 0.02 / math.sqrt(500), rel=1e-3)
    assert found.half(40) == pytest.approx(found.half(10) / 2)
    assert found.half(10, 0.05) == pytest.approx(20 * found.half(10))
    text = check.text(found)
    assert "10 s               ± 0.18%                ± 0.035" in text
    assert "1.000 [0.950, 1.050]: right" in text
    assert "contention    none" in text
    assert "no delays in native functions" in text
    seen = check.as_json(found)["seen_in"]
    assert seen[0]["criticality"]["0.05"] == found.half(10, 0.05)


@pytest.mark.parametrize(
    ("values", "good", "text"),
    [
        ({}, True, "right"),
        ({"known": Interval(1.06, 1.01, 1.11)}, True, "right"),
        ({"known": Interval(1.2, 1.1, 1.3)}, False, "WRONG"),
        ({"known": Interval(0.5, 0.4, 0.6)}, False, "WRONG"),
        ({"contended": "the machine is contended, so"}, False, "contended, so"),
        ({"native": "bpf", "caveats": ["No cookies."]}, True, "not guaranteed: No coo"),
        ({"native": "driver"}, True, "delays by the kernel module"),
    ],
)
def test_whether_results_are_to_be_trusted(values, good, text):
    found = report(**values)
    assert found.is_good == good
    assert text in check.text(found)
    assert check.as_json(found)["good"] == good


def test_here(environ):
    for budget in BUDGETS:
        done = speed_bump(environ, "--budget", budget, "--seed", "1", "--json")
        if done.stdout:
            break
        assert "too few to tell" in done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["good"] else 1)
    assert found["native"]["backend"] == native.backend()
    assert bool(found["native"]["why_not"]) == (native.backend() is None)
    assert found["pairs"] >= check.LEAST_PAIRS
    assert found["noise"] > 0
    assert found["unit_ns"] > 0
    halves = [line["change"] for line in found["seen_in"]]
    assert halves == sorted(halves, reverse=True)
    assert [spin["asked_ns"] for spin in found["spins"]] == [1000, 10_000, 100_000]
    assert all(spin["median_ns"] > 0.98 * spin["asked_ns"] for spin in found["spins"])
    c = found["known_answer"]
    if not found["contended"]:
        assert c["low"] < 1.5
        assert c["high"] > 0.5


def test_on_another_program(environ):
    source = "while True:\n    print(sum(range(20000)), flush=True)"
    command = ["--", sys.executable, "-c", source]
    for budget in BUDGETS:
        done = speed_bump(
            environ, "--budget", budget, "--progress-regex", "^[0-9]", *command
        )
        if done.stdout:
            break
        assert "too few to tell" in done.stderr
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == ""
    assert "known answer" not in done.stdout
    assert "noise" in done.stdout


def test_what_cannot_be_measured(environ):
    python = ["--", sys.executable, "-c"]
    done = speed_bump(environ, "--budget", "1s", *python, "import time; time.sleep(0.2)")
    assert done.returncode == 1
    assert "too short for windows" in done.stderr
    for arguments, text in (
        (["--budget", "soon"], "--budget"),
        (["--progress", "json:dumps"], "--progress is of a CMD"),
        (["--progress-regex", "(", "--", "true"], "--progress-regex"),
    ):
        done = speed_bump(environ, *arguments)
        assert done.returncode == 2
        assert text in done.stderr
    assert speed_bump(environ, "--", "/no/such/program").returncode == 127


def test_spins_that_are_too_long_are_seen(monkeypatch):
    monkeypatch.setattr(check._core, "spin_delay_ns", lambda ns: ns * 2)
    assert [spin.median_ns for spin in check.spins()] == [2000, 20_000, 200_000]


def test_help(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check", "--help"])
    assert ended.value.code == 0
    assert "--budget" in capsys.readouterr().out
