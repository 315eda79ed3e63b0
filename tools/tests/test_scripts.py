# SPDX-License-Identifier: MIT
"""Programs of build-aux say what they are for, and then do nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = sorted(
    path
    for path in (Path(__file__).parents[2] / "build-aux").iterdir()
    if path.is_file() and os.access(path, os.X_OK)
)
WITHOUT_ARGUMENTS = [
    path for path in SCRIPTS if 'no_arguments "$@"\n' in path.read_text("utf-8")
]


def run(path: Path, argument: str) -> subprocess.CompletedProcess[str]:
    # What goes on to its work takes minutes.
    return subprocess.run(
        [path, argument],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def name(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_help(path: Path, option: str) -> None:
    done = run(path, option)
    assert done.returncode == 0
    assert path.name in done.stdout.splitlines()[0]
    assert len(done.stdout.splitlines()) > 1
    assert done.stderr == ""


@pytest.mark.parametrize("argument", ["-x", "all"])
@pytest.mark.parametrize("path", WITHOUT_ARGUMENTS, ids=name)
def test_arguments_that_it_does_not_take(path: Path, argument: str) -> None:
    done = run(path, argument)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"{path.name}: takes no arguments, and got: {argument}",
        f"try {path.name} -h",
    ]


def test_some_take_none() -> None:
    assert "check" in {path.name for path in WITHOUT_ARGUMENTS}
