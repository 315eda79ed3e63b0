# SPDX-License-Identifier: MIT
"""What commands write with --json is as docs/reference/json says.

Tests of the commands compare what they read with the schemas too (``schemas.read``).
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import experiments
import pytest
import schemas
from speed_bump.experiment import archive
from speed_bump.experiment.fit.interval import Interval
from speed_bump.experiment.show.encode import dumps, interval_json

pytestmark = pytest.mark.one_python

if schemas.missing():
    pytest.skip(schemas.missing(), allow_module_level=True)

NAMES = sorted(path.stem for path in schemas.SCHEMAS.glob("*.json"))
PROGRAM = """
import time
def work(): time.sleep(0.001)
def rest(): pass
for _ in range(200): work(); rest()
"""

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def command(environ: dict[str, str], tmp_path: Path) -> Command:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "speed_bump", *map(str, arguments)],
            env={**environ, "XDG_STATE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        # 1: check says that the machine is too busy for any result.
        assert done.returncode == 0 or arguments[0] == "check", done.stderr
        return done

    return run


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    """The parts of a schema that describe an object by its keys."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield schema
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from objects(part)


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_valid_and_admits_no_other_keys(name: str) -> None:
    schemas.validator(name)
    for part in objects(json.loads((schemas.SCHEMAS / f"{name}.json").read_text())):
        # Reports are one object of which two schemas describe a part.
        is_closed = False in (
            part.get("additionalProperties"),
            part.get("unevaluatedProperties"),
        )
        assert is_closed or "joints" in part["properties"], part


def test_the_page_names_each_schema_and_its_format() -> None:
    page = (schemas.SCHEMAS.parent / "json.md").read_text()
    for name in NAMES:
        schema = json.loads((schemas.SCHEMAS / f"{name}.json").read_text())
        keys = schema.get("properties")
        cell = f" | {keys['format']['const']} |\n" if keys else ""
        assert f"[{name}.json](json/{name}.json){cell}" in page, name


def test_another_key_and_a_missing_one_are_seen() -> None:
    found = {
        "format": 1,
        "processes": [],
        "targets": [],
        "native_problem": None,
        "incomplete_processes": 0,
    }
    schemas.check("ps", found)
    for wrong in (
        {**found, "left_out": 0},
        {key: value for key, value in found.items() if key != "targets"},
        {**found, "format": 0},
        {**found, "targets": [{"name": "m:f"}]},
    ):
        with pytest.raises(AssertionError):
            schemas.check("ps", wrong)


def test_a_number_that_is_not_finite_is_null() -> None:
    value = {
        "a": [math.nan, 1.5],
        "b": interval_json(Interval(1.0, -math.inf, math.inf)),
        "c": (math.inf, {"d": math.nan}),
    }
    assert json.loads(dumps(value)) == {
        "a": [None, 1.5],
        "b": {"value": 1.0, "low": None, "high": None},
        "c": [None, {"d": None}],
    }
    assert dumps(value, indent=None).count("\n") == 1


def test_records(command: Command, tmp_path: Path) -> None:
    """Of an experiment, of one without what newer versions record, and their change."""
    record = experiments.run("serial")
    new, old = tmp_path / "new.speedbump", tmp_path / "old.speedbump"
    record.header["found"] = {
        "shares": {"m:f": 0.5, "/usr/bin/app:f": 0.25},
        "others": {"m:g": 0.125},
        "self": {"m:f": 0.25},
        "rates": {"m:f": 10.0},
        "native": ["m:g"],
        "first_line_s": 1.5,
    }
    archive.save(record, str(new))
    record.header = {"unit": record.header["unit"]}
    record.end = {}
    archive.save(record, str(old))
    found = schemas.read("report", command("report", "--json", new).stdout)
    assert [(t["target"], t["kind"]) for t in found["found"]["targets"]] == [
        ("m:f", "python"),
        ("/usr/bin/app:f", "native"),
        ("m:g", "c"),
    ]
    assert found["found"]["targets"][2]["calls_per_s"] is None
    assert found["found"]["first_line_ns"] == 1_500_000_000
    assert schemas.read("report", command("report", "--json", old).stdout)["end"] == {}
    both = command("compare", "--json", old, new).stdout
    assert schemas.read("compare", both)["files"] == [str(old), str(new)]


def test_runs(command: Command, tmp_path: Path) -> None:
    program, out = tmp_path / "program.py", tmp_path / "out.json"
    program.write_text(PROGRAM)
    words = ("-t", "__main__:work", "--json", out)
    command("run", *words, "--latency", "__main__:work", "--", sys.executable, program)
    found = schemas.read("run", out.read_text())
    assert [t["pattern"] for t in found["targets"]] == ["__main__:work"]
    assert [one["requests"] for one in found["latency"]] == [200]
    # One pair of runs gives no interval.
    words = (*words, "-t", "__main__:never", "--compare", "--runs", "1")
    command("run", *words, "--", sys.executable, program)
    found = schemas.read("runs", out.read_text())
    assert [trial["target"] for trial in found["trials"]].count(None) >= 1
    assert found["never_called"] == {"__main__:never": None}


def test_what_is_slowed(command: Command) -> None:
    assert schemas.read("ps", command("ps", "--json", "-").stdout)["format"] == 1


@pytest.mark.timed
def test_check(command: Command) -> None:
    done = command("check", "--budget", "2s", "--json")
    found = schemas.read("check", done.stdout)
    assert found["seen_in"][0]["wall_ns"] == 10_000_000_000
