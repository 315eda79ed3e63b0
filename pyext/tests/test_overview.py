# SPDX-License-Identifier: MIT
"""Listing and changing slowed functions from outside: ps, set and top."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import schemas
import speed_bump
from speed_bump import native
from speed_bump.overview import Looker
from speed_bump.process import command_of

pytestmark = pytest.mark.one_python

WORKING = """
import time
import speed_bump
def work():
    return sum(range(30))
def rest():
    return sum(range(30))
"""
FOR_EVER = "while True:\n    work()\n    rest()\n    time.sleep(0.001)\n"
INSTALLED = (
    WORKING
    + "speed_bump.install(speed_bump.Config(['__main__:work', '__main__:rest'], 20000))\n"
    + FOR_EVER
)


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "speed_bump", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def seen(pid: int) -> dict[str, Any]:
    """The targets of a process in the output of ps, by name."""
    done = command("ps", "--json", "-", "--pid", str(pid))
    assert done.returncode == 0, done.stderr
    found = schemas.read("ps", done.stdout)
    assert [p["pid"] for p in found["processes"]] in ([], [pid])
    return {target["target"]: target for target in found["targets"]}


def label_of(pid: int) -> str | None:
    """The ways by which it is slowed; None: it is not."""
    with Looker() as looker:
        for process in looker.look().processes:
            if process.pid == pid:
                return process.label
    return None


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path, environ: dict[str, str]) -> Iterator[Start]:
    running: list[subprocess.Popen[bytes]] = []

    def begin(text: str, **variables: str) -> subprocess.Popen[bytes]:
        path = tmp_path / f"program{len(running)}.py"
        path.write_text(text)
        running.append(
            subprocess.Popen([sys.executable, str(path)], env=environ | variables)
        )
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()


def test_what_is_slowed_is_seen_and_switched(start: Start) -> None:
    program = start(INSTALLED)
    until(lambda: seen(program.pid).get("__main__:rest"))
    work = seen(program.pid)["__main__:work"]
    assert (work["kind"], work["owner"]) == ("python", "program")
    assert (work["delay_ns"], work["enabled"], work["ruled"]) == (20_000, True, False)
    until(lambda: seen(program.pid)["__main__:work"]["calls"] > work["calls"])
    text = command("ps", "--pid", str(program.pid)).stdout
    assert f"process {program.pid}, program: {sys.executable} " in text
    assert "20.0 us     on" in text

    done = command("set", "__main__:work", "off", "--pid", str(program.pid))
    assert done.stdout == (f"__main__:work of process {program.pid}: 20.0 us, off\n"), (
        done.stderr
    )
    # Calls in progress have ended.
    calls = seen(program.pid)["__main__:work"]["calls"]
    until(lambda: seen(program.pid)["__main__:work"]["calls"] > calls + 1)
    before = seen(program.pid)
    until(
        lambda: (
            seen(program.pid)["__main__:work"]["calls"] > before["__main__:work"]["calls"]
        )
    )
    after = seen(program.pid)
    assert after["__main__:work"]["delayed"] == before["__main__:work"]["delayed"]
    assert after["__main__:rest"]["delayed"] > before["__main__:rest"]["delayed"]

    done = command("set", "__main__:*", "delay=1ms", "on", "--pid", str(program.pid))
    assert done.returncode == 0, done.stderr
    now = seen(program.pid)
    assert {t["delay_ns"] for t in now.values()} == {1_000_000}
    until(
        lambda: (
            seen(program.pid)["__main__:work"]["delivered_ns"]
            > now["__main__:work"]["delivered_ns"] + 5_000_000
        )
    )
    done = command("set", "__main__:work", "remove", "--pid", str(program.pid))
    assert seen(program.pid)["__main__:work"]["enabled"] is False, done.stderr


UNSHOWN = """
import sys, time
from speed_bump import _core, control
from speed_bump.config import Config
def work(): pass
table = _core.Table(*eval(sys.argv[1]))
if len(sys.argv) > 2:
    table = _core.Table.open(*eval(sys.argv[2]))
control._install(Config(["__main__:work"], 1000), table)
work()
print(flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("made", "opened", "label"),
    [
        ("('{path}', 16, True, False, None)", "", None),
        ("(None, 16, True, False, None)", "", None),
        ("('{path}', 16)", "('{path}', None)", None),
        ("('{path}', 16, True, False, 'named')", "", "named"),
        ("('{path}', 16)", "('{path}',)", "experiment"),
    ],
)
def test_a_table_without_a_label_is_not_shown(
    tmp_path: Path,
    environ: dict[str, str],
    made: str,
    opened: str,
    label: str | None,
) -> None:
    path = str(tmp_path / "table")
    arguments = [text.format(path=path) for text in (made, opened) if text]
    with subprocess.Popen(
        [sys.executable, "-c", UNSHOWN, *arguments],
        stdout=subprocess.PIPE, env=environ,
    ) as program:  # fmt: skip
        try:
            assert program.stdout
            assert program.stdout.readline()
            assert label_of(program.pid) == label
        finally:
            program.kill()


LYING = """
import os, sys, time
for _ in range(70):
    shown = os.memfd_create("speed-bump-shown")
    os.write(shown, f"1 x\\npath {sys.argv[1]}\\n".encode())
print(flush=True)
time.sleep(1000)
"""


def test_what_is_left_out_of_a_process_that_shows_too_much_is_said(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    path = tmp_path / "shown"
    path.write_bytes(bytes(4096))
    with subprocess.Popen(
        [sys.executable, "-c", LYING, str(path)], stdout=subprocess.PIPE, env=environ
    ) as program:
        try:
            assert program.stdout
            assert program.stdout.readline()
            # Processes of other tests on this machine may publish wrong data too.
            shown = schemas.read("ps", command("ps", "--json", "-").stdout)
            assert shown["incomplete_processes"] >= 1
            assert "too many functions: some are left out" in command("ps").stdout
            done = command("set", "no:such", "off")
            assert "too many functions: some are left out" in done.stderr
        finally:
            program.kill()


def test_a_program_that_is_killed_is_not_seen(start: Start) -> None:
    program = start(INSTALLED)
    until(lambda: label_of(program.pid))
    program.kill()
    program.wait()
    assert label_of(program.pid) is None
    assert seen(program.pid) == {}


def test_the_environment_is_said(start: Start, targets: Callable[[str], str]) -> None:
    path = targets("__main__:work delay=10us\n")
    program = start(WORKING + FOR_EVER, SPEED_BUMP_TARGETS=path, SPEED_BUMP_QUIET="1")
    until(lambda: label_of(program.pid) == "environment")
    until(lambda: seen(program.pid).get("__main__:work"))


def test_forked_children_are_seen_and_share_their_switches(start: Start) -> None:
    program = start(INSTALLED.replace("while True:", "import os\nos.fork()\nwhile True:"))
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
    until(children.read_text)
    child = int(children.read_text())
    try:
        until(lambda: seen(child).get("__main__:rest"))
        until(lambda: seen(program.pid).get("__main__:rest"))
        command("set", "__main__:work", "off", "--pid", str(child))
        assert seen(program.pid)["__main__:work"]["enabled"] is False
        program.kill()
        program.wait()
        # The child inherits the parent's delays, and they continue.
        assert seen(child)["__main__:rest"]["enabled"] is True
    finally:
        os.kill(child, signal.SIGKILL)


def test_what_is_in_force_here_comes_and_goes() -> None:
    assert label_of(os.getpid()) is None
    speed_bump.install(speed_bump.Config(["json:dumps"]))
    assert label_of(os.getpid()) == "program"
    speed_bump.install(speed_bump.Config(["json:loads"]))
    assert label_of(os.getpid()) == "program"
    speed_bump.uninstall()
    assert label_of(os.getpid()) is None
    with speed_bump.slow("json:dumps", "2us"):
        json.dumps([])
        assert label_of(os.getpid()) == "program"
        with Looker() as looker:
            (dumps,) = looker.look().find("json:dumps", os.getpid())
        assert dumps.calls > 0
    assert label_of(os.getpid()) is None


def test_descriptors_do_not_grow() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def again() -> None:
        speed_bump.install(speed_bump.Config(["json:dumps"]))
        json.dumps([])
        speed_bump.uninstall()

    again()
    before = descriptors()
    for _ in range(20):
        again()
    assert descriptors() <= before


def test_an_experiment_is_seen(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(WORKING + FOR_EVER)
    with subprocess.Popen(
        [sys.executable, "-m", "speed_bump", "run", "-t", "__main__:work", "-d", "10us",
         "--", sys.executable, str(path)],
        stderr=subprocess.DEVNULL,
    ) as tool:  # fmt: skip
        try:

            def mine() -> list[int]:
                with Looker() as looker:
                    return [
                        p.pid
                        for p in looker.look().processes
                        if str(path) in p.command and p.label == "experiment"
                    ]

            until(mine)
            (pid,) = mine()
            until(lambda: seen(pid).get("__main__:work"))
            done = command("set", "__main__:work", "delay=30us", "--pid", str(pid))
            assert "30.0 us, on" in done.stdout, done.stderr
        finally:
            tool.send_signal(signal.SIGTERM)
    until(lambda: label_of(pid) is None)


def test_a_glob_passes_over_what_is_ruled_or_only_counted(
    start: Start, tmp_path: Path
) -> None:
    program = start(INSTALLED.replace("'__main__:rest'", "'__main__:rest delay=0'"))
    until(lambda: len(seen(program.pid)) == 2)

    def delays(pid: int) -> dict[str, int]:
        return {name[9:]: found["delay_ns"] for name, found in seen(pid).items()}

    mine = ("--pid", str(program.pid))
    done = command("set", "__main__:*", "delay=30us", *mine)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1), done.stderr
    assert delays(program.pid) == {"work": 30_000, "rest": 0}
    done = command("set", "__main__:r*", "delay=30us", *mine)
    assert done.returncode == 1
    assert "__main__:r*; 1 are only counted" in done.stderr
    assert command("set", "__main__:rest", "delay=30us", *mine).returncode == 0
    assert delays(program.pid) == {"work": 30_000, "rest": 30_000}

    path = tmp_path / "app.py"
    path.write_text(WORKING + "speed_bump.progress()\n" + FOR_EVER)
    with subprocess.Popen(
        [sys.executable, "-m", "speed_bump", "rank", "-t", "__main__:work",
         "--progress", "__main__:rest", "--budget", "300s", "--precision", "0.001",
         "-o", str(tmp_path / "r"),
         "--", sys.executable, str(path)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as tool:  # fmt: skip
        try:

            def ruled() -> list[int]:
                with Looker() as looker:
                    found = looker.look()
                pids = {p.pid for p in found.processes if str(path) in p.command}
                return [
                    t.pid
                    for t in found.targets
                    if t.pid in pids and t.is_ruled and not t.is_counted_only
                ]

            until(ruled)
            both = (*mine, "--pid", str(ruled()[0]))
            done = command("set", "__main__:*", "delay=40us", *both)
            assert done.returncode == 0, done.stderr
            assert "controls it: __main__:work" in done.stderr
            assert len(done.stdout.splitlines()) == 2
            assert delays(program.pid) == {"work": 40_000, "rest": 40_000}
            # A full name is refused, and the settings made before are shown.
            done = command("set", "__main__:work", "delay=50us", *both)
            assert done.returncode == 1
            assert "is controlled by an experiment" in done.stderr
            assert f"__main__:work of process {program.pid}: " in done.stdout
        finally:
            tool.send_signal(signal.SIGTERM)


def test_an_attached_program_is_seen(start: Start, tmp_path: Path) -> None:
    program = start(
        WORKING + FOR_EVER, SPEED_BUMP_ATTACH="1", XDG_RUNTIME_DIR=str(tmp_path)
    )
    until(lambda: list(tmp_path.glob("speed-bump/*")))
    with speed_bump.attach(program.pid, ["__main__:work"], "10us"):
        assert label_of(program.pid) == "attach"
        until(lambda: seen(program.pid).get("__main__:work"))
    until(lambda: label_of(program.pid) is None)


TITLED = """
import ctypes, sys
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
start, end = (int(fields[n - 3]) for n in (48, 49))
ctypes.memset(start, {filling}, end - start)
ctypes.memmove(start, b"my title", 8)
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("filling", [0, ord("x")])
def test_a_title_has_all_of_its_words(filling: int) -> None:
    # Longer than a page, so that the kernel truncates it before its NUL.
    with subprocess.Popen(
        [sys.executable, "-c", TITLED.format(filling=filling), "x" * 10_000],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as program:  # fmt: skip
        assert program.stdout
        assert program.stdin
        program.stdout.readline()
        (title,) = command_of(program.pid)
        assert title.rstrip("x") == "my title"
        program.stdin.close()
    assert command_of(program.pid) == []


def test_usage() -> None:
    for arguments, words in (
        (["set", "json:dumps"], "no SETTING"),
        (["set", "off"], "no TARGET"),
        (["set", "json:dumps", "delay=x"], "x"),
        (["set", "json:dumps", "off", "--pid", "x"], "not the number of a process"),
        (["ps", "--interval", "x"], "--interval"),
    ):
        done = command(*arguments)
        assert done.returncode == 2
        assert words in done.stderr
    done = command("set", "no such:function", "off")
    assert done.returncode == 1
    assert "no slowed target has the name no such:function" in done.stderr


def test_watch_looks_again_and_again(start: Start) -> None:
    program = start(INSTALLED)
    until(lambda: seen(program.pid).get("__main__:work"))
    with subprocess.Popen(
        [sys.executable, "-m", "speed_bump", "ps", "--watch", "--interval", "500ms",
         "--json", "-", "--pid", str(program.pid)],
        stdout=subprocess.PIPE,
    ) as watch:  # fmt: skip
        assert watch.stdout
        calls = []
        for _ in range(3):
            found = schemas.read("ps", watch.stdout.readline().decode())
            calls += [t["calls"] for t in found["targets"] if "work" in t["target"]]
        watch.send_signal(signal.SIGINT)
        assert watch.wait(60) == 0
    assert calls == sorted(set(calls))
    assert len(calls) == 3


@pytest.mark.needs_device
@pytest.mark.any_backend
def test_native_targets_answer_too(start: Start) -> None:
    program = start(WORKING.replace("import speed_bump", "") + FOR_EVER)
    with native.probe("libc.so.6", "clock_nanosleep", 5_000, program.pid):
        found = [t for n, t in seen(program.pid).items() if "clock_nanosleep" in n]
        assert [(t["kind"], t["owner"]) for t in found] == [("native", "session")]
        # It belongs to this process's session, and ends with it.
        done = command("set", "*:clock_nanosleep", "off", "--pid", str(program.pid))
        assert done.returncode == 1
        assert "belongs to the session of another process" in done.stderr
    assert seen(program.pid) == {}


def test_top_shows_and_switches(start: Start) -> None:
    pytest.importorskip("textual", reason="there is no textual")
    from speed_bump.command.switchboard import Switchboard
    from textual.widgets import DataTable, Static

    program = start(INSTALLED)
    until(lambda: len(seen(program.pid)) == 2)

    async def drive() -> None:
        with Looker() as looker:
            app = Switchboard(looker, {program.pid}, 0.2)
            async with app.run_test(size=(140, 30)) as pilot:
                table = app.query_one(DataTable)
                assert table.row_count == 2
                # By name, so that the selected row stays selected.
                await pilot.press("s", "s")
                name = str(table.get_row_at(table.cursor_row)[-1])
                assert name in ("__main__:rest", "__main__:work")
                await pilot.press("space")
                assert seen(program.pid)[name]["enabled"] is False
                assert str(table.get_row_at(table.cursor_row)[1]) == "off"
                await pilot.press("space", "plus")
                now = seen(program.pid)[name]
                assert (now["enabled"], now["delay_ns"]) == (True, 40_000)
                await pilot.press("minus", "minus")
                assert seen(program.pid)[name]["delay_ns"] == 10_000

                async def show_rates() -> bool:
                    await pilot.pause(0.1)
                    return str(table.get_row_at(0)[3]) != "0"

                end = time.monotonic() + 60
                while not await show_rates():
                    assert time.monotonic() < end
                # Momentary rates vary, so rates are shown for half of the time between
                # updates.
                app._seconds, app._rates = 600, {(False, program.pid, name, ""): (7, 0)}
                await pilot.press("plus", "minus")
                assert list(app._rates.values()) == [(7, 0)]

                def message() -> str:
                    return str(app.query_one("#message", Static).render())

                # The process is gone, but the table still has it.
                shown = app._chosen()
                assert shown
                program.kill()
                program.wait()
                app._change("set_enabled", shown, False)
                assert f"process {program.pid} has ended" in message()
                assert table.row_count == 0
                # Nothing can be opened any more: the last table stays, with the reason.
                limits = resource.getrlimit(resource.RLIMIT_NOFILE)
                resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
                try:
                    app.look()
                    assert os.strerror(errno.EMFILE) in message()
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                app.look()
                assert os.strerror(errno.EMFILE) not in message()
                await pilot.press("q")

    asyncio.run(drive())


def test_without_textual_it_is_said_what_to_install() -> None:
    program = (
        "import sys; sys.modules['textual'] = None\n"
        "from speed_bump.command.main import main; sys.exit(main(['top']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        "speed-bump: top needs textual: pip install 'speed-bump[top]' (or 'textual')\n"
    )
