# SPDX-License-Identifier: MIT
"""A warning if the JIT of the program's interpreter is on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest
from speed_bump.experiment.program import jit

has_jit = bool(getattr(vars(sys).get("_jit"), "is_available", bool)())


def environ(on: str) -> dict[str, str]:
    return {**os.environ, "PYTHON_JIT": on}


def speed_bump(*words: str, on: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "speed_bump", *words],
        capture_output=True,
        text=True,
        check=False,
        env=environ(on),
    )
    return done.stdout + done.stderr


def test_no_jit_is_no_warning() -> None:
    assert jit.warning([sys.executable], environ("0")) == ""
    assert jit.warning(["cat"], environ("1")) == ""
    # Without a command there is no warning.
    assert jit.warning([], environ("1")) == ""
    # Kernel threads and processes of other users can't be examined.
    assert jit.warning_of_process(2) == ""


@pytest.mark.skipif(has_jit, reason="this interpreter has a JIT")
def test_a_python_without_one_is_not_accused() -> None:
    assert jit.warning([sys.executable], environ("1")) == ""


needs_jit = pytest.mark.skipif(not has_jit, reason="this interpreter has no JIT")


@needs_jit
def test_a_jit_that_is_on_is_named() -> None:
    found = jit.warning([sys.executable], environ("1"))
    assert found.startswith("the JIT of CPython 3.")
    assert ("156319" in found) == (sys.version_info[:2] == (3, 14))


@needs_jit
@pytest.mark.parametrize("on", ["0", "1"])
def test_a_process_is_asked_in_its_own_environment(on: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environ(on)
    ) as program:
        assert program.stdin
        # Until its exec has finished.
        while os.readlink(f"/proc/{program.pid}/exe") != os.path.realpath(sys.executable):
            time.sleep(0.01)
        found = jit.warning_of_process(program.pid)
        assert found == jit.warning([sys.executable], environ(on))
        program.stdin.close()


@needs_jit
def test_check_and_rank_say_it(tmp_path: Any) -> None:
    pytest.importorskip("numpy")
    found = jit.warning([sys.executable], environ("1"))
    program = tmp_path / "program.py"
    program.write_text(
        "import speed_bump\ndef work():\n    return sum(range(9000))\n"
        "while True:\n    work()\n    speed_bump.progress()\n"
    )
    record = tmp_path / "record.json"
    rank = ("rank", "-t", "__main__:work", "--budget", "3s", "--json", str(record))
    command = ("--", sys.executable, str(program))
    assert f"warning: {found}" in speed_bump(*rank, *command, on="1")
    assert found in json.loads(record.read_text())["warnings"]
    assert "JIT" not in speed_bump(*rank, *command, on="0")
    assert found in speed_bump("check", "--budget", "3s", on="1")
