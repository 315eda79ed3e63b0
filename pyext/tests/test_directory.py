# SPDX-License-Identifier: MIT
"""The directory of a tool's files: what is left of it, and who removes that."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from attaching import BUSY, Start, programs, tool, until
from speed_bump import _core
from speed_bump.experiment.program import directory

pytestmark = pytest.mark.one_python

CAPACITY = 1 << 10


@pytest.fixture
def start(tmp_path: Path, environ: dict[str, str]) -> Iterator[Start]:
    with programs(tmp_path, environ) as begin:
        yield begin


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place instead of /dev/shm."""
    found = tmp_path / "shared"
    found.mkdir()
    monkeypatch.setattr(directory, "SHARED_MEMORY", str(found))
    return found


def left_by_a_killed_tool(shared: Path, *names: str) -> Path:
    """A directory whose lock is free."""
    made = Path(tempfile.mkdtemp(prefix=directory.PREFIX, dir=shared.parent))
    (made / "lent").mkdir()
    for name in ("1.table", "1.targets", *names):
        (made / name).write_bytes(b"x")
    # In one step, as another tool may remove it at once.
    return made.rename(shared / made.name)


def directory_of(process: subprocess.Popen[str]) -> Path:
    """That of a tool that runs."""

    def find() -> list[str]:
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        return re.findall(rf"(/\S*/{directory.PREFIX}\w+)/\d+\.table", maps)

    until(find)
    return Path(find()[0])


def test_a_killed_tool_leaves_no_memory(start: Start) -> None:
    program = start(BUSY)
    process = tool("run", "-t", "__main__:work", "--pid", str(program.pid))
    place = directory_of(process)
    until(lambda: program.says(b"on"))
    process.kill()
    process.communicate()
    program.says_soon(b"off")
    until(lambda: not list(place.glob("*.table")))
    # The next tool removes the rest.
    with directory.directory(CAPACITY):
        assert not place.exists()
    assert program.process.poll() is None


def test_what_a_killed_tool_left_is_removed(shared: Path) -> None:
    left = [left_by_a_killed_tool(shared) for _ in range(3)]
    others = [shared / "speed-bump-0", shared / "speed-bump-0-0123456789abcdef-host"]
    for other in others:
        other.mkdir()
    (shared / f"{directory.PREFIX}file").write_bytes(b"x")
    (shared / f"{directory.PREFIX}link").symlink_to(others[0])
    with directory.directory(CAPACITY) as mine:
        assert os.path.dirname(mine) == str(shared)
        assert not any(path.exists() for path in left)
        assert len(list(shared.iterdir())) == 5
    assert not os.path.exists(mine)


def test_a_living_tool_keeps_its_directory(shared: Path) -> None:
    code = """
import sys
from speed_bump.experiment.program import directory
directory.SHARED_MEMORY = sys.argv[1]
with directory.directory(1 << 10) as path:
    print(path, flush=True)
    sys.stdin.read()
"""
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(shared)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout
    path = other.stdout.readline().strip()
    with directory.directory(CAPACITY):
        assert os.path.isdir(path)
    other.send_signal(signal.SIGKILL)
    other.communicate()
    assert os.path.isdir(path)
    with directory.directory(CAPACITY):
        assert not os.path.exists(path)


def test_tools_that_start_and_end_at_once(shared: Path) -> None:
    # Each removes what looks as if it were left, and none loses its own.
    missing = []

    def come_and_go() -> None:
        for _ in range(100):
            with directory.directory(CAPACITY) as path:
                Path(path, "file").touch()
                if not os.path.isfile(f"{path}/file"):
                    missing.append(path)

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        left_by_a_killed_tool(shared)
    for thread in threads:
        thread.join()
    directory.sweep(str(shared))
    assert not missing
    assert not list(shared.iterdir())


def test_a_program_keeps_what_it_uses(shared: Path, environ: dict[str, str]) -> None:
    started, attached = left_by_a_killed_tool(shared), left_by_a_killed_tool(shared)
    table = f"{started}/1.table"
    program = subprocess.Popen(
        ["sleep", "1000"], env=environ | {"SPEED_BUMP_TABLE": table}
    )
    # For a moment after exec a process has no environment.
    variables = Path(f"/proc/{program.pid}/environ")
    until(lambda: table.encode() in variables.read_bytes())
    os.unlink(attached / "1.table")
    with closing(_core.Table(f"{attached}/1.table", CAPACITY)):
        directory.sweep(str(shared))
        assert started.exists() and attached.exists()
    program.kill()
    program.wait()
    directory.sweep(str(shared))
    assert not started.exists() and not attached.exists()


def test_a_request_is_kept_for_the_program_that_has_it(shared: Path) -> None:
    program = subprocess.Popen(["sleep", "1000"])
    script = f"{directory.ENTER}{program.pid}.py"
    left = left_by_a_killed_tool(shared, script)
    directory.sweep(str(shared))
    assert [path.name for path in left.iterdir()] == [script]
    program.kill()
    program.wait()
    directory.sweep(str(shared))
    assert not left.exists()
