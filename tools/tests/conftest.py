# SPDX-License-Identifier: MIT
"""What the tests of sbctl share: the program, the fixture library, the device.

SBCTL is the program and FIXTURE_DIR the directory of libsbfixture.so and
fixture-loop. Tests that need the module are skipped where there is no device.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DEVICE = Path("/dev/speed_bump")


def pytest_configure() -> None:
    # A shell that runs the tests in the background has these ignored, and so would the
    # programs under test; a signal with a handler is the default one in a child.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


class Sbctl:
    """Runs the program."""

    def __init__(self, program: Path) -> None:
        self.program = program

    def __call__(
        self, *args: object, code: int = 0, stdin: str = "", **options: Any
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self.program, *map(str, args)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            **options,
            check=False,
        )
        assert done.returncode == code, (
            f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        return done

    def json(self, *args: object) -> Any:
        return json.loads(self(*args, "--json").stdout)

    def fails(self, *args: object, **options: Any) -> str:
        """The one line of a failure that changed nothing."""
        return self._line(1, *args, **options)

    def misused(self, *args: object, **options: Any) -> str:
        """The one line of a wrong command line."""
        return self._line(2, *args, **options)

    def _line(self, code: int, *args: object, **options: Any) -> str:
        done = self(*args, code=code, **options)
        assert done.stdout == ""
        assert done.stderr.startswith("sbctl: ")
        assert done.stderr.endswith("\n")
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr[len("sbctl: ") : -1]


@pytest.fixture(scope="session")
def sbctl() -> Sbctl:
    return Sbctl(Path(os.environ["SBCTL"]).resolve())


@pytest.fixture(scope="session")
def library() -> str:
    return str(Path(os.environ["FIXTURE_DIR"]).resolve() / "libsbfixture.so")


@pytest.fixture(scope="session")
def loop() -> str:
    return str(Path(os.environ["FIXTURE_DIR"]).resolve() / "fixture-loop")


@pytest.fixture
def device(sbctl: Sbctl) -> Iterator[None]:
    """The module, without targets and switched off before and after."""
    if not DEVICE.exists():
        pytest.skip(f"no {DEVICE}: runs in a guest (selftests/guest/run)")

    def reset() -> None:
        sbctl("clear")
        sbctl("disable")
        sbctl("delay", "1us")

    reset()
    yield
    if DEVICE.exists():
        reset()
