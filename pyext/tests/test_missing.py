# SPDX-License-Identifier: MIT
"""Messages about targets that are not called."""

from __future__ import annotations

import json
import sys

import pytest
from ranking import speed_bump
from speed_bump.config import parse_targets
from speed_bump.experiment import missing

pytestmark = pytest.mark.one_python

PROGRAM = """
import json, zlib
class Parser:
    def __init__(self):
        pass
    def parse(self):
        pass
def work():
    return json.dumps([1])
def unused():
    pass
for _ in range(10):
    work()
    zlib.compress(b"a")
Parser()
"""


@pytest.fixture
def app(tmp_path):
    path = tmp_path / "app.py"
    path.write_text(PROGRAM)
    return str(path)


def run(app, *patterns, more=()):
    targets = [word for pattern in patterns for word in ("-t", pattern)]
    return speed_bump("run", *targets, *more, "--", sys.executable, app)


# For each: whether the name is called, and the message.
@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("json:dmps", "json has no 'dmps'; did you mean json:dumps"),
        ("jsn:dumps", "there is no module 'jsn'; did you mean json:dumps?"),
        ("__main__:wrok", "__main__ has no 'wrok'; did you mean __main__:work?"),
        ("__main__:parse", "did you mean __main__:Parser.parse"),
        ("json:dump", "json:dump was never called: it exists, and the program never"),
        ("__main__:unused", "it exists, and the program never called it"),
        ("tarfile:open", "tarfile was never imported by the program"),
        ("collections:OrderedDict.move_to_en", "OrderedDict.move_to_end?"),
        ("json:JSONEncoder", "name a method of it, such as JSONEncoder.__init__"),
        ("nothing.*:*", "no Python module that matches was imported"),
        ("__main__:x*", "no function that matches was called"),
        ("*/app.py:x*", "no function that matches was called"),
        ("/nowhere/app.py:work", "no function that matches was called"),
    ],
)
def test_why_a_target_was_not_called(app, pattern, text):
    done = run(app, pattern)
    assert text in done.stderr
    # None of the named functions was called.
    assert done.returncode == 1


def test_one_that_is_called_is_enough(app):
    done = run(app, "json:dumps", "json:dmps")
    assert done.returncode == 0
    assert "json:dmps was never called" in done.stderr
    assert "json:dumps was never called" not in done.stderr


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("json:dumps", "json:dumps", True),
        ("js?n:d*", "json:dumps", True),
        ("json:dumps", "json:dump", False),
        ("*/json/*:dumps", "json:dumps", True),
        ("*/json/*:dump?", "json:dump", False),
        ("app.py:12", "__main__:12", True),
        ("*/app.py:12", "__main__:13", False),
        ("app.py:work", "__main__:work", False),
        ("native:/lib/libc.so.6:malloc", "libc.so.6:malloc", False),
    ],
)
def test_which_targets_a_called_function_may_be_of(pattern, name, matches):
    """A name has a module; what names a file by its path is told by the rest alone."""
    (target,) = parse_targets(pattern, "-t")
    assert missing.is_of(target, name) == matches


def test_what_overlaps_is_one_target(app):
    done = run(app, "zlib:compress", "zlib:comp*", "json:dumps", "js?n:dumps")
    assert done.returncode == 0
    assert "never called" not in done.stderr
    # Both names refer to one object.
    done = run(app, "json.encoder:c_make_encoder.__call__", "_json:make_encoder.__call__")
    assert "Traceback" not in done.stderr


def test_what_cant_be_had_is_said_with_its_reason(app):
    done = run(app, "zlib:error", "__main__:work")
    assert done.returncode == 0
    (line,) = [x for x in done.stderr.splitlines() if "zlib:error can" in x]
    assert "can't be a target" in line


def test_a_status_of_the_program_comes_first(tmp_path):
    path = tmp_path / "app.py"
    path.write_text("raise SystemExit(7)")
    assert run(str(path), "json:dmps").returncode == 7


def test_the_program_is_read_and_not_run_again(tmp_path):
    path = tmp_path / "app.py"
    path.write_text(
        "import pathlib\n"
        f"with open({str(tmp_path / 'runs')!r}, 'a') as file: file.write('x')\n"
        "import helper\n"
    )
    (tmp_path / "helper.py").write_text(
        f"with open({str(tmp_path / 'runs')!r}, 'a') as file: file.write('y')\n"
        "def help(): pass\n"
    )
    done = run(str(path), "helper:hlp", "__main__:main")
    assert "did you mean helper:help?" in done.stderr
    assert (tmp_path / "runs").read_text() == "xy"


def test_rank_says_it_while_it_measures(tmp_path):
    source = """
import json, time
def work():
    return sum(range(20000))
while True:
    work()
"""
    arguments = ["--budget", "6s", "-o", str(tmp_path / "x"), "--json"]
    command = ["--", sys.executable, "-c", source]
    done = speed_bump(
        "rank", "-t", "__main__:work", "-t", "json:dmps", "-t", "*/json/*:dmps",
        "--progress", "__main__:work", *arguments, str(tmp_path / "numbers"), *command,
    )  # fmt: skip
    # A function that is both a target and the unit of work is not an error.
    assert done.returncode == 0, done.stderr
    assert "json has no 'dmps'; did you mean json:dumps" in done.stderr
    assert "*/json/*:dmps was never called: no function that matches" in done.stderr
    found = json.loads((tmp_path / "numbers").read_text())["findings"]
    assert [f["target"] for f in found] == ["__main__:work"]
    done = speed_bump(
        "rank", "-t", "__main__:work", "--progress", "__main__:done", "--budget", "8s",
        "-o", str(tmp_path / "x"), *command,
    )  # fmt: skip
    assert done.returncode == 1
    doubt = "warning: no call of __main__:done was seen so far"
    assert doubt in done.stderr
    # As soon as it is noticed, not at the end.
    assert done.stderr.index(doubt) < done.stderr.index("was seen in 8 s")
    done = speed_bump(
        "rank", "-t", "json:dmps", "--progress", "__main__:work",
        *arguments, str(tmp_path / "numbers"), *command,
    )  # fmt: skip
    assert done.returncode == 1
    assert "none of the targets was called" in done.stderr
    assert "did you mean json:dumps" in done.stderr
