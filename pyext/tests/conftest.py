# SPDX-License-Identifier: MIT
"""Fixtures of the tests. They run against the installed package."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import speed_bump
from speed_bump import native

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_configure() -> None:
    # A shell that runs the tests in the background, or nohup, ignores these signals, and
    # so would the programs under test. A signal with a handler has the default action in
    # a child.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    try:
        native.caveats()
    except native.NativeError as error:
        skip = pytest.mark.skip(reason=str(error))
    else:
        return
    for item in items:
        if {"needs_device", "ranks_native"} & set(item.keywords):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def nothing_left_in_force() -> Iterator[None]:
    yield
    speed_bump.uninstall()


@pytest.fixture
def environ() -> dict[str, str]:
    """The environment without variables of speed_bump, except for the backend."""
    return {
        k: v
        for k, v in os.environ.items()
        if not k.startswith("SPEED_BUMP") or k == "SPEED_BUMP_BACKEND"
    }


@pytest.fixture
def python(tmp_path: Path, environ: dict[str, str]) -> Run:
    """Run a program with this interpreter, with variables given by keyword."""

    def run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "program.py"
        path.write_text(program)
        return subprocess.run(
            [sys.executable, str(path)],
            env=environ | variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture
def targets(tmp_path: Path) -> Callable[[str], str]:
    """Write a target file and return its path."""

    def write(text: str) -> str:
        path = tmp_path / "targets.txt"
        path.write_text(text)
        return str(path)

    return write


def calls(name: str) -> int:
    """Calls of the function with that qualified name in this process."""
    return sum(
        f.calls for f in speed_bump.stats().functions if f.name.rpartition(":")[2] == name
    )
