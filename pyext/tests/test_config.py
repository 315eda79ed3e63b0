# SPDX-License-Identifier: MIT
from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
import speed_bump
from speed_bump import Config, ConfigError, load_config
from speed_bump.experiment.program import progress
from speed_bump.process import start_ns

NO_TIME = "is not a time such as 500, 10us or 1.5ms"


def test_defaults() -> None:
    config = load_config({})
    assert not config.enabled
    assert config.targets == ()
    assert (config.delay_ns, config.frequency) == (1000, 1)
    assert (config.start_ns, config.end_ns) == (0, None)
    assert config.is_in_window()


def test_all_variables(targets: Callable[[str], str]) -> None:
    path = targets(
        "# all of it\n\n  json.*:dumps  # why\n*/a b/*:A.* delay=10us every=5\n"
    )
    config = load_config(
        {
            "SPEED_BUMP_TARGETS": path,
            "SPEED_BUMP_DELAY_NS": "2500",
            "SPEED_BUMP_FREQUENCY": "3",
            "SPEED_BUMP_START_MS": "5000",
            "SPEED_BUMP_DURATION_MS": "30000",
        }
    )
    assert config.enabled
    assert [str(t) for t in config.targets] == [
        "json.*:dumps",
        "*/a b/*:A.* delay=10us every=5",
    ]
    assert [t.line for t in config.targets] == [3, 4]
    assert (config.delay_ns, config.frequency) == (2500, 3)
    assert abs(config.start_ns - start_ns() - 5_000_000_000) < 10_000_000
    assert config.end_ns == config.start_ns + 30_000_000_000


def test_the_last_colon_splits() -> None:
    config = Config(["C:/x:f", "!m:g", "native:/lib/x.so:s"])
    first, excluded, native = config.targets
    assert (first.left, first.right) == ("C:/x", "f")
    assert excluded.excludes and not excluded.native
    assert native.native and (native.left, native.right) == ("/lib/x.so", "s")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "SPEED_BUMP_DELAY_NS",
            "fast",
            "'fast' is not a time such as 500, 10us or 1.5ms",
        ),
        ("SPEED_BUMP_DELAY_NS", "-1", "'-1' is not a time such as 500, 10us or 1.5ms"),
        ("SPEED_BUMP_DELAY_NS", "11s", "11s is over 10 s"),
        ("SPEED_BUMP_FREQUENCY", "0", "0 is not 1 to 4294967295"),
        ("SPEED_BUMP_FREQUENCY", "4294967296", "4294967296 is not 1 to 4294967295"),
        (
            "SPEED_BUMP_START_MS",
            "1000000000001",
            "1000000000001 is not 0 to 1000000000000",
        ),
        ("SPEED_BUMP_FREQUENCY", "often", "'often' is not a whole number"),
        ("SPEED_BUMP_START_MS", "-3", "'-3' is not a whole number"),
        ("SPEED_BUMP_DURATION_MS", "1.5", "'1.5' is not a whole number"),
        ("SPEED_BUMP_TARGETS", "/no/file", "/no/file: No such file or directory"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config({variable: value})
    assert str(raised.value) == f"{variable}: {message}"


def test_a_wrong_line_is_named(targets: Callable[[str], str]) -> None:
    path = targets("a:b\n# fine\nno separator here\n")
    with pytest.raises(ConfigError) as raised:
        load_config({"SPEED_BUMP_TARGETS": path})
    assert str(raised.value).startswith(f"SPEED_BUMP_TARGETS: {path}:3: ")


def test_wrong_arguments() -> None:
    for wrong in (
        {"delay_ns": -1},
        {"delay_ns": 10_000_000_001},
        {"frequency": 0},
        {"frequency": 2**32},
        {"start_ns": 5, "end_ns": 4},
        {"start_ns": 2**63, "end_ns": 2**63},
        {"end_ns": 2**63},
        {"targets": ["nothing"]},
    ):
        with pytest.raises(ConfigError):
            Config(**wrong)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        Config().delay_ns = 5


def test_window() -> None:
    config = Config(start_ns=100, end_ns=200)
    assert [config.is_in_window(t) for t in (99, 100, 199, 200)] == [
        False,
        True,
        True,
        False,
    ]
    now = time.monotonic_ns()
    assert Config(start_ns=now).is_in_window()
    assert not Config(start_ns=now + 10**12).is_in_window()


def test_start_of_the_process_against_its_child() -> None:
    # A child began between two readings of the clock; 10 ms are the kernel's resolution.
    before = time.monotonic_ns()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, str(start_ns()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    after = time.monotonic_ns()
    child = int(os.read(read, 100))
    assert before - 10_000_000 <= child <= after
    assert start_ns() < before


def test_calibration_is_there() -> None:
    assert speed_bump.is_calibrated()
    assert speed_bump.clock_overhead_ns == speed_bump.get_clock_overhead_ns() > 0
    assert speed_bump.min_delay_ns == speed_bump.get_min_delay_ns()
    assert speed_bump.min_delay_ns >= speed_bump.clock_overhead_ns


def test_spin() -> None:
    begin = time.monotonic_ns()
    took = speed_bump.spin_delay_ns(2_000_000)
    whole = time.monotonic_ns() - begin
    assert 2_000_000 <= took <= whole * 1.001
    assert speed_bump.spin_delay_ns(0) == 0
    for wrong in (-1, 10_000_000_001):
        with pytest.raises(ValueError):
            speed_bump.spin_delay_ns(wrong)


@pytest.mark.parametrize(
    ("text", "native"),
    [
        ("build/server:serve_one", True),
        ("/usr/bin/server:serve_one", True),
        ("libserver.so.1:serve_one", True),
        ("native:server:serve_one", True),
        ("server:serve_one", False),
        ("/usr/lib/python3/server.py:serve_one", False),
        ("*/server/*:serve_one", False),
        ("server.main:Server.serve_*", False),
    ],
)
def test_which_progress_is_of_a_native_function(text: str, native: bool) -> None:
    found = progress.read([text], None)
    assert [t.pattern.removeprefix("native:") for t in found.targets] == (
        [text.removeprefix("native:")] if native else []
    )
    assert [t.pattern for t in found.functions] == ([] if native else [text])
