# SPDX-License-Identifier: MIT
"""Lines as targets: Python files by LINE events, native code by debug data."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType

import pytest
import speed_bump
from speed_bump import Config, ConfigError, native
from speed_bump.experiment import symbols
from speed_bump.experiment.program.native_times import NativeSampling

from_312 = pytest.mark.skipif(sys.version_info < (3, 12), reason="CPython 3.12")

# Lines are found by their marks.
SOURCE = """\
def loop(count):
    total = 0
    for i in range(count):
        total += i  # MARK body
        if i % 2:
            total -= 1  # MARK odd
    return total  # MARK end


def steps(count):
    for i in range(count):
        yield i  # MARK step


class Klass:
    def method(self):
        return 1  # MARK method


def waits(entered, leave):
    entered.set()
    leave.wait()
    for _ in range(3):
        entered.is_set()  # MARK late


def fails():
    raise ValueError  # MARK raise


# MARK nothing
def one(): return [x for x in range(3)]  # MARK one
"""


def line_of(mark: str, source: str = SOURCE) -> int:
    (number,) = (
        n
        for n, text in enumerate(source.splitlines(), 1)
        if text.endswith(f"MARK {mark}")
    )
    return number


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A separate module for each test."""
    name = f"lines_{re.sub('[^a-z0-9]', '_', tmp_path.name)}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SPEED_BUMP_QUIET", "1")
    yield __import__(name)
    speed_bump.uninstall()
    sys.modules.pop(name, None)


def calls_of(module: ModuleType, *marks: str) -> list[int]:
    counted = {f.name: f.calls for f in speed_bump.stats().functions}
    return [counted.get(f"{module.__name__}:{line_of(mark)}", 0) for mark in marks]


def install(module: ModuleType, *marks: str, delay_ns: int = 0) -> None:
    targets = [f"{module.__name__}:{line_of(mark)}" for mark in marks]
    speed_bump.install(Config(targets, delay_ns=delay_ns))


@from_312
def test_a_line_counts_each_time_it_begins(lines: ModuleType) -> None:
    install(lines, "body", "odd", "end", "method")
    lines.loop(7)
    lines.loop(0)
    lines.Klass().method()
    assert calls_of(lines, "body", "odd", "end", "method") == [7, 3, 2, 1]
    assert {f.name for f in speed_bump.stats().functions} == {
        f"{lines.__name__}:{line_of(mark)}" for mark in ("body", "odd", "end", "method")
    }


@from_312
def test_statements_and_lines(lines: ModuleType) -> None:
    """A loop on one line begins once; a call begins on its first line."""
    source = "def both(f):\n    f(1,\n      2)\n    for i in (1, 2, 3): f(i)\n"
    names: dict[str, object] = {"__name__": "statements"}
    exec(compile(source, "/statements.py", "exec"), names)
    both = names["both"]
    assert callable(both)
    speed_bump.install(Config([f"statements:{n}" for n in (2, 3, 4)], delay_ns=0))
    both(lambda *_: None)
    counted = {f.name: f.calls for f in speed_bump.stats().functions}
    assert counted == {"statements:2": 2, "statements:3": 1, "statements:4": 1}


@from_312
def test_by_module_and_by_path(lines: ModuleType) -> None:
    path, body = Path(lines.__file__ or ""), line_of("body")
    ways = [
        lines.__name__,
        path,
        f"{path.parent.name}/{path.name}",
        path.name,
        f"*/{path.name}",
    ]
    for way in ways:
        speed_bump.install(Config([f"{way}:{body}"], delay_ns=0))
        lines.loop(5)
        assert calls_of(lines, "body") == [5], way
    speed_bump.install(Config([f"s/{path.name}:{body}"], delay_ns=0))
    lines.loop(5)
    assert calls_of(lines, "body") == [0]


@from_312
def test_a_line_is_delayed(lines: ModuleType) -> None:
    install(lines, "odd", delay_ns=1_000_000)
    lines.loop(10)
    (line,) = speed_bump.stats().functions
    assert (line.calls, line.delayed) == (5, 5)
    assert line.requested_ns == 5_000_000
    assert line.delivered_ns >= 5_000_000
    speed_bump.install(Config([f"{lines.__name__}:{line_of('body')} every=3 delay=0"]))
    lines.loop(9)
    (line,) = speed_bump.stats().functions
    assert line.calls == 9


@from_312
def test_generators_and_exceptions(lines: ModuleType) -> None:
    running = lines.steps(4)
    next(running)
    install(lines, "step", "raise")
    assert list(running) == [1, 2, 3]
    assert list(lines.steps(2)) == [0, 1]
    for _ in range(3):
        with pytest.raises(ValueError):
            lines.fails()
    assert calls_of(lines, "step", "raise") == [5, 3]


@from_312
def test_functions_that_run_already(lines: ModuleType) -> None:
    entered, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=lines.waits, args=(entered, leave))
    thread.start()
    entered.wait()
    install(lines, "late")
    leave.set()
    thread.join()
    # Without a GIL the frame of another thread may be freed during the search.
    is_free = sysconfig.get_config_var("Py_GIL_DISABLED")
    assert calls_of(lines, "late") == [0 if is_free else 3]


@from_312
def test_the_function_that_asks_for_it(lines: ModuleType) -> None:
    source = (
        "def asks(speed_bump, pattern):\n"
        "    with speed_bump.slow(pattern, 0):\n"
        "        for _ in range(4):\n"
        "            str()  # MARK asked\n"
        "    str()\n"
    )
    names: dict[str, object] = {"__name__": "asking"}
    exec(compile(source, "/asking.py", "exec"), names)
    asks = names["asks"]
    assert callable(asks)
    asks(speed_bump, f"asking:{line_of('asked', source)}")
    counted = {f.name: f.calls for f in speed_bump.stats().functions}
    assert counted["asking:4"] == 4


@from_312
def test_lines_beside_functions(lines: ModuleType) -> None:
    name, odd = lines.__name__, line_of("odd")
    speed_bump.install(Config([f"{name}:loop", f"{name}:{line_of('body')}"], delay_ns=0))
    lines.loop(3)
    counted = {f.name: f.calls for f in speed_bump.stats().functions}
    assert counted == {f"{name}:loop": 1, f"{name}:{line_of('body')}": 3}
    # A glob over names selects functions, and an exclusion of a line only that line.
    speed_bump.install(Config([f"{name}:*", f"{name}:{odd}", f"!*:{odd}"], delay_ns=0))
    lines.loop(3)
    counted = {f.name: f.calls for f in speed_bump.stats().functions if f.calls}
    assert counted == {f"{name}:loop": 1}


@from_312
def test_what_has_no_such_line_is_not_told_of(lines: ModuleType) -> None:
    """Events of other lines and other code are off; at the end all are."""
    monitoring = sys.monitoring
    install(lines, "odd")
    (tool,) = (t for t in range(6) if monitoring.get_tool(t) == "speed_bump")
    lines.loop(4)
    lines.Klass().method()
    list(lines.steps(2))
    line = monitoring.events.LINE
    codes: dict[str, CodeType] = {
        "loop": lines.loop.__code__,
        "method": lines.Klass.method.__code__,
        "steps": lines.steps.__code__,
    }

    def watched() -> set[str]:
        return {
            n for n, c in codes.items() if monitoring.get_local_events(tool, c) & line
        }

    assert watched() == {"loop"}
    assert not monitoring.get_events(tool) & line
    install(lines, "method")
    lines.loop(4)
    lines.Klass().method()
    assert calls_of(lines, "odd", "method") == [0, 1]
    speed_bump.uninstall()
    monitoring.use_tool_id(tool, "test")
    assert watched() == set()
    monitoring.free_tool_id(tool)


@from_312
def test_installed_anew(lines: ModuleType) -> None:
    for _ in range(3):
        install(lines, "body")
        lines.loop(5)
        assert calls_of(lines, "body") == [5]
        install(lines, "odd")
        lines.loop(5)
        assert calls_of(lines, "body", "odd") == [0, 2]
        speed_bump.uninstall()
        lines.loop(5)


@from_312
def test_lines_in_threads(lines: ModuleType) -> None:
    install(lines, "body", "odd")
    threads = [threading.Thread(target=lines.loop, args=(1_000,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls_of(lines, "body", "odd") == [8_000, 4_000]


@from_312
def test_the_head_of_a_function_is_what_is_around_it(lines: ModuleType) -> None:
    install(lines, "one")
    lines.one()
    assert calls_of(lines, "one") == [0]
    exec(compile(SOURCE, lines.__file__ or "", "exec"), vars(lines))
    assert calls_of(lines, "one") == [1]


@from_312
def test_a_line_without_code_is_refused(lines: ModuleType) -> None:
    nothing = line_of("nothing")
    near = f"line {nothing} of .* that do are {line_of('raise')} and {nothing + 1}"
    with pytest.raises(ConfigError, match=near):
        install(lines, "nothing")
    with pytest.raises(ConfigError, match=near):
        speed_bump.slow(f"{lines.__file__}:{nothing}", "1us")
    with pytest.raises(ConfigError, match="a line is not resumed"):
        Config([f"{lines.__name__}:3 resume=1"])
    assert not speed_bump.is_installed()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="before CPython 3.12")
def test_before_312_it_is_refused(lines: ModuleType) -> None:
    with pytest.raises(ConfigError, match=r"from CPython 3\.12 on, and this is 3\."):
        install(lines, "body")


def run(
    script: Path, *args: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "speed_bump", *args, "--", sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
    )


@from_312
def test_run_with_lines(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SOURCE + "\nprint(loop(6))\n")
    body, nothing = line_of("body"), line_of("nothing")
    done = run(script, "run", "-t", f"script.py:{body}", "-d", "1ms")
    row = next(text for text in done.stderr.splitlines() if f"script.py:{body}" in text)
    assert row.split()[:2] == ["6", "6"]
    # Before anything runs.
    done = run(script, "run", "-t", f"__main__:{nothing}")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"no statement begins on line {nothing}" in done.stderr
    file = tmp_path / "targets"
    file.write_text(f"script.py:{body} delay=1us\n")
    environ = {"SPEED_BUMP_TARGETS": str(file)}
    told = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True, text=True, check=True, env={**os.environ, **environ},
    )  # fmt: skip
    assert re.search(r"\b6 ", told.stderr), told.stderr


@from_312
def test_a_path_may_be_the_end_of_one_that_is_imported_later(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "utils.py").write_text("pass\n")
    (tmp_path / "package/utils.py").write_text(SOURCE)
    script = tmp_path / "script.py"
    script.write_text("from package import utils\nprint(utils.loop(6))\n")
    body = line_of("body")
    done = run(script, "run", "-t", f"utils.py:{body}", "-d", "1us")
    assert done.returncode == 0, done.stderr
    row = next(text for text in done.stderr.splitlines() if f"utils.py:{body}" in text)
    assert row.split()[:2] == ["6", "6"]
    # The file of a module is the one that it is loaded from.
    done = run(script, "run", "-t", f"utils:{body}")
    assert done.returncode == 2
    assert f"no statement begins on line {body}" in done.stderr


# ------------------------------------------------------------------------- native


def native_program() -> tuple[str, dict[str, int]]:
    """A program of libsb's tests, and its lines with marks."""
    root = Path(__file__).resolve().parents[2]
    built = Path(os.environ["FIXTURE_DIR"]).parents[1] / "libsb/tests/lines"
    marks = {
        match[1]: n
        for n, text in enumerate(
            (root / "libsb/tests/lines.c").read_text().splitlines(), 1
        )
        if (match := re.search(r"MARK (\w+) \*/", text))
    }
    return os.environ.get("SB_LINES", str(built)), marks


@pytest.mark.skipif(not native.is_available(), reason="nothing slows native functions")
def test_native_lines() -> None:
    program, marks = native_program()
    with native.probe(program, f"lines.c:{marks['inlined']}", delay_ns=1_000) as probe:
        subprocess.run([program, "5"], check=True, stdout=subprocess.DEVNULL)
        counted = {f.name.rpartition("@")[2]: f.calls for f in probe.stats()}
    assert counted == {"lines_once": 1, "lines_loop": 5}
    said = f"line {marks['none']} of 'lines.c'"
    with pytest.raises(native.NativeError, match=said):
        native.probe(program, f"lines.c:{marks['none']}").__enter__()


def test_a_line_has_no_self_time() -> None:
    """The self time of its function would be wrong for a line."""
    program, _ = native_program()
    sampling = NativeSampling({f"{program}:lines.c:14@lines_loop": (program, 0)})
    assert sampling.refused == "a line has no self time: ask for its function"
    assert [
        symbols.is_line(name)
        for name in ("app:42", "/a/b:u.c:7", "/a/b:u.c:7@ns::f(int)+0x3", "/a/b:f", "m:f",
                     "/a:ns::f", "/a/b:@0x12", "m:A.f2")
    ] == [True, True, True, False, False, False, False, False]  # fmt: skip


@from_312
@pytest.mark.two_pythons
@pytest.mark.timed
def test_rank_asks_for_lines(tmp_path: Path) -> None:
    """The rate of calls per unit is known, and no self time is invented."""
    script = tmp_path / "job.py"
    script.write_text(
        "import speed_bump, time\n"
        "def unit():\n"
        "    time.sleep(0.0005)\n"
        "    for i in range(3):\n"
        "        str(i)\n"
        "while True:\n"
        "    unit()\n"
        "    speed_bump.progress()\n"
    )
    wanted = ["-t", "job.py:3", "-t", "job.py:5", "-t", "__main__:unit"]
    done = run(script, "rank", "--budget", "5s", "--json", "-", *wanted)
    found = {f["target"]: f for f in json.loads(done.stdout)["findings"]}
    calls = {name: f["calls_per_unit"] for name, f in found.items()}
    truth = {"__main__:3": 1, "__main__:5": 3, "__main__:unit": 1}
    assert calls == pytest.approx(truth, rel=0.1)
    assert {name for name, f in found.items() if f["headroom"]} <= {"__main__:unit"}
    assert found["__main__:3"]["self_share"] is None
