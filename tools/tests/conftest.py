# SPDX-License-Identifier: MIT
"""What the tests of sbctl share: the program, the fixture library, the device.

SBCTL is the program, and FIXTURE_DIR is the directory of libsbfixture.so and
fixture-loop. The backend is SPEED_BUMP_BACKEND, else the module; tests that need it are
skipped if it is not available.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Of the tests of speed-bump, whose JSON has the same words.
sys.path.append(str(Path(__file__).resolve().parents[2] / "pyext/tests"))

import schemas

DEVICE = Path("/dev/speed_bump")
BACKEND = os.environ.get("SPEED_BUMP_BACKEND", "driver")


def pytest_configure() -> None:
    # A shell that runs the tests in the background, or nohup, ignores these signals, and
    # so would the programs under test. A signal with a handler has the default action in
    # a child.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


# Run a program with CAP_PERFMON and CAP_BPF only: as uid 0 without its capabilities, so
# that the files of the tests can be read wherever they are.
_WITH_TWO_CAPABILITIES = """
import ctypes, os, struct, sys

PERFMON, BPF = 38, 39
PR_SET_SECUREBITS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 28, 47, 2
NOROOT = 0x3  # SECBIT_NOROOT and its lock
libc = ctypes.CDLL(None, use_errno=True)

def check(failed):
    if failed:
        raise OSError(ctypes.get_errno(), "capabilities")

check(libc.prctl(PR_SET_SECUREBITS, NOROOT, 0, 0, 0))
high = 1 << PERFMON - 32 | 1 << BPF - 32
header = struct.pack("<Ii", 0x20080522, 0)
check(libc.capset(header, struct.pack("<6I", 0, 0, 0, high, high, high)))
for capability in (PERFMON, BPF):
    check(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0))
os.execv(sys.argv[1], sys.argv[1:])
"""


def lines_program() -> str:
    """A program whose lines begin a known number of times."""
    built = Path(os.environ["FIXTURE_DIR"]).parents[1] / "libsb/tests/lines"
    return os.environ.get("SB_LINES", str(built))


def line_of(source: str, mark: str) -> int:
    """The number of the line with a mark, in a source file of the program."""
    root = Path(__file__).resolve().parents[2]
    lines = (root / "libsb/tests" / source).read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if f"MARK {mark} */" in line)
    return number


def with_two_capabilities(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _WITH_TWO_CAPABILITIES, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class Sbctl:
    """Run the program."""

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

    def fails_with(self, backend: str) -> str:
        """The reason why a backend can't be used; empty if it can."""
        done = subprocess.run(
            [self.program, "status", f"--backend={backend}"],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stderr.strip() if done.returncode else ""

    def json(self, *args: object) -> Any:
        kind = "list" if args[0] == "add" else args[0]
        return schemas.read(f"sbctl-{kind}", self(*args, "--json").stdout)

    def fails(self, *args: object, **options: Any) -> str:
        """The one-line message of a failure that changed nothing."""
        return self._line(1, *args, **options)

    def misused(self, *args: object, **options: Any) -> str:
        """The one-line message about a wrong command line."""
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
    """The backend, without targets and switched off before and after."""
    if BACKEND == "driver" and not DEVICE.exists():
        pytest.skip(f"no {DEVICE}: runs in a guest (selftests/guest/run)")
    if BACKEND == "bpf":
        why = sbctl.fails_with("bpf")
        if why:
            pytest.skip(why)

    def reset() -> None:
        sbctl("clear")
        sbctl("disable")
        sbctl("delay", "1us")

    reset()
    yield
    if BACKEND == "bpf" or DEVICE.exists():
        reset()


@pytest.fixture(scope="session", autouse=True)
def no_store_is_left() -> Iterator[None]:
    """The store of BPF, if the tests have one of their own."""
    yield
    store = os.environ.get("SPEED_BUMP_BPF_STORE")
    if store and Path(store).exists():
        Path(store, "switch-3").unlink()
        Path(store, "threads-3").unlink(missing_ok=True)
        Path(store).rmdir()
