# SPDX-License-Identifier: MIT
"""Targets and the unit of work, found by observing the program."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import schemas
from ranking import command_line, environment, speed_bump
from speed_bump.control import EXIT_POINT
from speed_bump.experiment.aim import aim, machine_code
from speed_bump.experiment.aim.look import Looked, Window, _is_enough
from speed_bump.experiment.aim.machine_code import Seen
from speed_bump.experiment.aim.shares import room
from speed_bump.experiment.aim.unit import (
    Steady,
    repeated_in_runs,
    steadiest,
    steady,
    steady_in_runs,
)
from speed_bump.experiment.aim.work import Work
from speed_bump.experiment.errors import RankError
from speed_bump.experiment.program.machine import Reading
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Result, Runner
from speed_bump.experiment.program.stacks import Stack, Stacks
from speed_bump.experiment.record import Record
from speed_bump.experiment.runs.comparison import Comparison, FailedRun
from speed_bump.experiment.show.found import unit_line
from speed_bump.experiment.show.table import Ticker
from speed_bump.experiment.slots.beginning import Beginning
from speed_bump.experiment.slots.candidates import Candidates, Search
from speed_bump.experiment.slots.measure import empty
from speed_bump.statistics import FunctionStatistics

pytestmark = [pytest.mark.two_pythons, pytest.mark.timed]

PROGRAM = """
import json, time
def parse():
    return sum(range(60000))
def render():
    return sum(range(30000))
def trifle():
    pass
def request():
    parse()
    for _ in range(3):
        render()
    trifle()
    time.sleep(0.002)
def main():
    while True:
        request()
        {more}
main()
"""


def look(source, seconds=20.0):
    said = []
    runner = Runner([sys.executable, "-c", source], show_output=False)
    with runner:
        return aim(runner, Progress(), seconds, said.append)


def test_what_is_called_with_the_steadiest_has_its_pace():
    even = {f"re:f{k}": [30] * 8 for k in range(3)}
    even["queue:get"] = [3, 3, 2, 3, 3, 3, 3, 3]
    # One of the calls is in the next part.
    record = {"__main__:record": [3, 3, 1, 4, 3, 3, 3, 3]}
    burst = {"__main__:burst": [10, 10, 0, 0, 0, 0, 0, 0]}
    assert steady({**even, **record, **burst}).keys() == {*even, *record}


SLOWER = """
import time
def fast():
    sum(range(20000))
    time.sleep(0.02)
def slow():
    end = time.monotonic() + 0.15
    while time.monotonic() < end:
        fast()
while True:
    slow()
"""


def test_a_slower_pace_that_calls_the_steadiest_is_waited_for():
    # Six slow calls per second, each with some fast ones: the fast ones are known first.
    for _ in range(4):
        found = look(SLOWER)
        (unit,) = found.progress.functions
        # With little CPU time there are fewer.
        if unit.right == "slow":
            break
    assert unit.right == "slow", found.why


def test_the_pace_of_the_main_process_comes_before_that_of_others():
    # Seven per second in the main process; the rate of its child is known long before.
    found = look(
        "import multiprocessing, time\n"
        "def often():\n sum(range(20000)); time.sleep(0.01)\n"
        "def child():\n while True: often()\n"
        "def seldom():\n sum(range(20000)); time.sleep(0.15)\n"
        "context = multiprocessing.get_context('fork')\n"
        "context.Process(target=child, daemon=True).start()\n"
        "while True: seldom()\n"
    )
    (unit,) = found.progress.functions
    assert unit.right == "seldom", found.why


def test_what_a_thread_is_for_is_no_candidate():
    found = look(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def piece(n):\n return sum(range(100000))\n"
        "while True:\n"
        " with ThreadPoolExecutor(2) as pool: list(pool.map(piece, range(8)))\n"
    )
    names = {*found.candidates, *found.others}
    assert "__main__:piece" in names
    assert not [name for name in names if name.endswith((":_worker", "Thread.run"))]


def test_what_takes_time_and_what_is_a_unit():
    # On a busy machine any function may be found off the CPU.
    for _ in range(4):
        found = look(PROGRAM.format(more=""))
        if found.cpu_share > 0.5 and "__main__:trifle" not in found.candidates:
            break
    # A function that takes time itself, and its caller.
    assert {"__main__:parse", "__main__:render", "__main__:request"} <= set(
        found.candidates
    )
    # Entered before the work began, and not again.
    assert "__main__:main" not in found.candidates
    assert "time:sleep" not in found.candidates
    if found.cpu_share > 0.5:
        assert "__main__:trifle" not in found.candidates
    assert "speed_bump" not in " ".join(found.candidates)
    # Once per unit: not three times, and not once per run.
    (unit,) = found.progress.functions
    assert unit.right in ("parse", "request", "trifle")
    assert "a second" in found.why
    assert [t.right for t in found.targets()] == [
        name.rpartition(":")[2] for name in found.candidates
    ]


def test_what_the_program_says_is_the_unit():
    found = look(PROGRAM.format(more="__import__('speed_bump').progress()"))
    assert found.progress.is_open
    assert "progress()" in found.why


def test_nothing_to_look_at_is_said():
    with pytest.raises(RankError, match="name functions with -t"):
        look("import time\nwhile True: time.sleep(1)", 1.0)
    with pytest.raises(RankError, match="status 3"):
        look("exit(3)", 60.0)


UNEVEN = """
import itertools, time
def handle():
    return sum(range(20000))
def answer():
    return sum(range(20000))
for n in itertools.count():
    # Now it is more of the one, and now more of the other.
    is_first = n % 80 < 40
    for _ in range(8 if is_first else 1):
        handle()
    for _ in range(1 if is_first else 8):
        answer()
    time.sleep(0.02)
"""


@pytest.mark.one_python
def test_without_a_steady_call_the_work_that_is_repeated_is_the_unit():
    """The run of a program that goes on is no unit."""
    found = look(UNEVEN, 6.0)
    assert found.unit_name in ("__main__:handle", "__main__:answer")
    assert "at no even pace" in found.why


def test_a_short_program_repeats_as_often_in_each_run_at_whatever_pace():
    def run(*steps, helper):
        return [{"app:step": n, "app:helper": helper} if n else {} for n in steps]

    # On a busy machine: in one window it had no CPU, and in the next one all of it.
    runs = [run(1, 30, 2, 17, helper=6), run(20, 1, 28, 1, helper=7)]
    assert not steady_in_runs(runs)
    assert list(repeated_in_runs(runs)) == ["app:step"]
    # What is called in one part of the run says nothing of the others.
    assert not repeated_in_runs([run(50, 0, 0, 0, helper=1), run(50, 0, 0, 0, helper=1)])
    assert not repeated_in_runs(runs[:1])
    stacks = Stacks(100, 0.1, {Stack(1, 1, "", ("app:step",)): 80})
    windows = [
        Window(calls, calls, stacks, run=number)
        for number, windows in enumerate(runs, 1)
        for calls in windows
    ]
    ended = Looked(windows=windows, main=1, pids={1}, runs=2)
    assert [one.name for one in ended.repeated(lambda name: True)] == ["app:step"]


SERVER = """
import time
class Server:
    def __init__(self):
        pass
    def on_tick(self):
        return sum(range(20000))
    def main_loop(self):
        while True:
            self.on_tick()
            time.sleep(0.1)
"""


@pytest.mark.one_python
def test_a_server_without_a_load_is_told_so(tmp_path):
    """Its event loop has a steady call, which is no work."""
    (tmp_path / "uvicorn").mkdir()
    (tmp_path / "uvicorn" / "__init__.py").write_text("")
    (tmp_path / "uvicorn" / "server.py").write_text(SERVER)
    run = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import uvicorn.server\nuvicorn.server.Server().main_loop()"
    )
    with pytest.raises(RankError, match="uvicorn has started, and a request was not"):
        look(run, 5.0)


@pytest.mark.one_python
def test_an_event_loop_that_only_waits_has_no_unit(tmp_path):
    """Attached to, nothing tells that it is a server; a load may come yet."""
    (tmp_path / "loop.py").write_text(
        "import time\ndef tick():\n    return 1\n"
        "def run(since):\n"
        "    while True:\n"
        "        tick()\n"
        "        time.sleep(0.1)\n"
        "        if since and time.monotonic() > since + 5:\n"
        "            handle()\n"
        "def handle():\n    return sum(range(1000000))\n"
    )
    start = f"import sys, time; sys.path.insert(0, {str(tmp_path)!r}); import loop\n"
    # The name of a C function that waits is known from 3.12 on.
    where = "time:sleep" if sys.version_info >= (3, 12) else "loop:run"
    with pytest.raises(RankError, match=f"it waits in {where}"):
        look(start + "loop.run(0)", 4.0)
    found = look(start + "loop.run(time.monotonic())", 12.0)
    assert "loop:handle" in found.candidates


# Each imports for longer than it works.
STEP = """
import argparse, decimal, email.message, json, tarfile, uuid, zipfile
def work():
    return sum(range(200000))
for _ in range(3):
    work()
"""


def test_short_processes_one_after_the_other_are_units(tmp_path):
    """Each of them imports, so that imports are part of the work."""
    (tmp_path / "step.py").write_text(STEP)
    loop = f"while :; do {sys.executable} {tmp_path / 'step.py'}; done"
    # Few samples are of so short a function.
    for _ in range(3):
        said = []
        with Runner(["sh", "-c", loop], show_output=False) as runner:
            # With little CPU time a minute has room for few of them.
            found = aim(
                runner, Progress(), 10.0, said.append, event=said.append, budget_s=600
            )
        if "__main__:work" in found.candidates:
            break
    assert "__main__:work" in found.candidates, said
    assert found.progress == Progress(points=(EXIT_POINT,))
    assert found.rate > 0
    assert found.shares.importing > 0
    assert not found.import_s
    assert not [name for name in found.candidates if name.startswith("_frozen")]
    assert "a unit of work is one Python process" in unit_line(found)


def window(names=(), exited=(), seconds=1.0, frames=(), **fields):
    """A window in which these functions were called, and these processes ended."""
    samples = {Stack(1, 1, "", tuple(frames)): 1} if frames else {}
    calls = dict.fromkeys(names, 1)
    return Window(
        calls, calls, Stacks(100, seconds, samples), exited=list(exited), **fields
    )


def test_a_unit_of_a_framework_is_watched_for_two_seconds():
    """Time before the first one is left out, and what was called then is no candidate."""
    name = "flask.app:Flask.wsgi_app"
    looked = Looked(60, [window(["m:warm_up"])] * 6)
    looked.windows.append(window([name, "m:warm_up"]))
    assert looked.since_first(name) == 0
    assert not _is_enough(looked, lambda _: True, 7.0)
    looked.windows += [window([name])] * 2
    assert looked.since_first(name) == 2.0
    assert _is_enough(looked, lambda _: True, 9.0)
    looked.windows.append(window([name], points={"step": 1}))
    looked.points = {"step": 1}
    assert not _is_enough(looked, lambda _: True, 10.0)


def test_the_pace_while_all_calls_were_counted():
    seen = Seen(rates={"/a:f": 500.0, "/a:g": 20.0}, steady=[Steady("/a:f", 500.0, 0.1)])
    assert machine_code._pace(seen, {"/a:f": 100.0, "/a:g": 19.0}) == 5
    assert machine_code._pace(seen, {"/a:f": 5.0}) == 1
    assert machine_code._pace(Seen(), {}) == 1


def test_processes_are_units_if_they_are_alike_and_there_is_time_for_them():
    step = frozenset(f"step:f{n}" for n in range(10))
    steps = [step] * 4 + [step | {"step:seldom"}] * 2
    looked = Looked(60, [window(exited=steps, seconds=2)], starts_python=True)
    assert looked.processes_a_second == 3
    # A script that starts one program after the other.
    each = [frozenset({f"{n}:f", "os:getcwd"}) for n in range(6)]
    looked.windows = [window(exited=each, seconds=2)]
    assert looked.processes_a_second == 0
    # The calls of a program that starts others say what its unit of work is.
    looked = Looked(60, [window(exited=steps, seconds=2)], starts_python=False)
    assert looked.processes_a_second == 0
    # A minute has room for too few of them.
    looked = Looked(60, [window(exited=steps, seconds=20)], starts_python=True)
    assert looked.processes_a_second == 0
    looked.budget_s = 600
    assert looked.processes_a_second > 0


@pytest.mark.parametrize(("by_main", "unit"), [(20, "app:job"), (200, "pool:wait")])
def test_work_that_the_main_process_only_hands_out(by_main, unit):
    """Its only steady calls are those of the library that does so."""
    main, worker = Stack(1, 1, "", ("pool:wait",)), Stack(2, 2, "", ("app:job",))
    one = Window(
        {"pool:wait": 5},
        {"pool:wait": 5, "app:job": 10},
        Stacks(100, 0.1, {main: by_main, worker: 80}),
    )
    looked = Looked(windows=[one] * 40, goes_on=True, main=1, pids={1, 2})
    found, _ = looked.steadiest(lambda name: name.startswith("app:"))
    assert found[0].name == unit


def test_a_program_that_starts_is_not_at_work_yet():
    assert not window(["site:main"]).is_at_work
    assert not window(frames=["__main__:<module>", "app:<module>"]).is_at_work
    assert not window(frames=["speed_bump.control:install"]).is_at_work
    assert window(frames=["__main__:<module>", "__main__:main"]).is_at_work
    assert window(points={"default": 1}).is_at_work


@pytest.mark.parametrize(("run", "wait", "fair"), [(1, 9, 1), (1, 0, 10), (10, 10, 5)])
def test_time_without_a_cpu_is_no_time_to_look(monkeypatch, run, wait, fair):
    """It ran, waited for a CPU, and slept, in 10 s; threads of its own wait too."""
    readings = [Reading(5, 5), Reading(5 + run * 10**9, 5 + wait * 10**9)]
    machine = SimpleNamespace(look=lambda pids: readings.pop(0))
    work = Work(SimpleNamespace(pids={1}, machine=machine))
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    work.goes_on(100.0)
    now[0] = 110.0
    work.goes_on(100.0)
    assert (work.seconds, work.fair_s) == (10, pytest.approx(fair))
    # Several runs of a short program are seen for as long.
    looked = Looked(runs=1, fair_s=work.fair_s, windows=[window(seconds=10)])
    assert looked.is_enough(4, 8) == (fair > 4)


def function(name, calls=1):
    return FunctionStatistics(name, name, 0, calls, 0, 0, 0)


def test_whole_runs_are_of_as_many_functions_as_there_is_time_for():
    """More were found than whole runs can answer for: the best of them are taken."""
    names = [f"__main__:f{n}" for n in range(24)]
    pilot = Result(0, 2_000_000_000, False, 1, tuple(map(function, sorted(names))), {})
    out = io.StringIO()
    before = Record({"found": {"shares": dict.fromkeys(names, 0.01)}}, (), empty(0))
    comparison = Comparison(["x"], 1000, 1, before=before, until=time.monotonic() + 60)
    chosen = comparison._choose(pilot, Ticker(out))
    assert [target.right for target in chosen] == ["f0", "f1", "f2", "f3"]
    assert "a run takes 2.00 s" in out.getvalue()
    assert "20 more are left out (__main__:f4, __main__:f5" in out.getvalue()
    # Two in any case; what is missing is said at once.
    comparison.until = time.monotonic() + 6
    assert len(comparison._choose(pilot, Ticker(out))) == 2
    assert "whole runs take about 30.0 s: give --budget" in out.getvalue()
    # Those that were named are all that is wanted.
    named = Comparison(["x"], 1000, 1)
    with pytest.raises(FailedRun, match="too many to be measured in whole runs"):
        named._choose(pilot, Ticker(out))


@pytest.mark.parametrize(("unit_ns", "kept"), [(75e6, 20), (411e6, 6)])
def test_what_there_is_no_time_for_is_left_out(unit_ns, kept):
    """On a busy machine a unit takes longer than it did when it was looked at."""
    names = [f"m:f{n}" for n in range(20)]
    said, found = [], {"shares": dict.fromkeys(names, 0.1), "others": {}}
    record = Record({"found": found}, (), empty(0))
    search = Search(found=True, order=names, room=lambda rate: room(60, rate))
    watcher = SimpleNamespace(event=said.append)
    candidates = Candidates((), search, [], record, watcher)
    candidates.begin({}, unit_ns)
    assert candidates.without_time() == frozenset(names[kept:])
    assert candidates.without_time() == frozenset(names[kept:])
    assert list(found["shares"]) == names[:kept]
    assert list(found["others"]) == names[kept:]
    assert len(said) == (kept < 20)


def test_calls_of_the_unit_in_imports_are_no_work_yet():
    """A library's function that is the unit may be called while the program imports."""
    calls = {"m:work": 0, "m:other": 0, "m:third": 3}
    program = SimpleNamespace(calls=lambda: calls)
    budget = SimpleNamespace(spent_s=0.0)

    def is_at_its_work(search):
        candidates = Candidates(list(calls), search, [], None, None)
        start = Beginning(program, None, candidates, budget, None, None, None)
        return start.is_at_its_work()

    # Of targets that were named, that they are not called is to be said soon.
    assert is_at_its_work(Search())
    found = Search(found=True)
    assert not is_at_its_work(found)
    calls["m:work"] = 1
    assert is_at_its_work(found)
    calls["m:work"] = 0
    budget.spent_s = 60.0
    assert is_at_its_work(found)


def test_a_small_call_of_a_library_is_no_unit_because_it_is_even():
    work = Stack(1, 1, "", ("app:main", "lib:fit", "lib:grow"))
    stacks = Stacks(1000, 10.0, {work: 1000})
    even = {"lib:get": [5] * 8, "lib:grow": [50] * 8}
    own = {"app:save": [20] * 8}

    def first(counts):
        found = steadiest(counts, 10.0, stacks, lambda n: n.startswith("app:"), {1})
        return found[0].name

    assert first(even) == "lib:grow"
    assert first(even | own) == "lib:grow"
    # Without any that takes time, only one of the program may be the unit.
    del even["lib:grow"]
    assert first(even | own) == "app:save"
    assert not steadiest(even, 10.0, stacks, lambda _: False, {1})


def is_starved(finding):
    """Whether the answer is unknown because other programs used the CPU."""
    return any(text in finding["reason"] for text in ("of the CPU time", "of a CPU"))


def test_rank_needs_no_option(tmp_path):
    numbers = tmp_path / "numbers.json"
    for budget in (8, 30, 90):
        done = speed_bump(
            "rank", "--budget", f"{budget}s", "--json", str(numbers), "-o",
            str(tmp_path / "x"), "--", sys.executable, "-c", PROGRAM.format(more=""),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = schemas.read("report", numbers.read_text())["findings"]
        found = {f["target"]: f for f in found}
        said = found["__main__:parse"]
        # If there is too little CPU time, that is the answer.
        if said["verdict"] == "matters" or is_starved(said):
            break
    assert said["verdict"] == "matters" or is_starved(said)
    assert "a unit of work is call of __main__:" in done.stderr
    assert "functions that take time" in done.stderr


def test_imports_are_waited_for(tmp_path):
    # Very steady, for longer than the observation takes, but not work.
    (tmp_path / "heavy.py").write_text(
        "import time\n"
        "def prepare():\n    return sum(range(20000))\n"
        "end = time.monotonic() + 5\n"
        "while time.monotonic() < end:\n    prepare()\n"
    )
    program = tmp_path / "app.py"
    program.write_text("import heavy\n" + PROGRAM.format(more=""))
    said = []
    with Runner([sys.executable, str(program)], show_output=False) as runner:
        found = aim(runner, Progress(), 20.0, said.append, event=said.append)
    assert "waiting: the program is importing heavy" in said
    assert "heavy:prepare" not in found.candidates
    assert "heavy:prepare" not in found.units
    assert found.import_s > 3
    assert found.imported.startswith("heavy")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="as sys.monitoring says it")
def test_c_functions_are_found_by_their_python_names():
    found = look("""
import json, re, zlib
DATA = b"text of no great length " * 4000
def unit():
    zlib.compress(DATA)
    re.compile("[a-f]+x").findall("abcdef" * 60)
    "".join(str(n) for n in range(3000))
while True:
    unit()
""")
    assert {"zlib:compress", "re:Pattern.findall"} <= set(found.candidates)
    assert found.has_native
    assert {t.pattern for t in found.targets()} >= {"zlib:compress", "re:Pattern.findall"}
    # Their time counts for them, and for their caller including callees.
    assert found.shares.own["zlib:compress"] > 0.05
    assert found.shares.total["__main__:unit"] >= found.shares.total["zlib:compress"]


def test_a_short_program_is_run_again(tmp_path):
    program = tmp_path / "app.py"
    program.write_text("""
import time
def step():
    return sum(range(40000))
for _ in range(100):
    step()
    time.sleep(0.01)
""")
    # On a busy machine its pace may be uneven.
    for _ in range(3):
        with Runner([sys.executable, str(program)], show_output=False) as runner:
            found = aim(runner, Progress(), 20.0, lambda _: None)
        if found.unit_name:
            break
    assert found.unit_name == "__main__:step"
    assert not found.goes_on


def test_the_runs_of_a_short_program_add_up(tmp_path):
    (tmp_path / "heavy.py").write_text(
        "import time\n"
        "def prepare():\n    return sum(range(20000))\n"
        "end = time.monotonic() + 0.7\n"
        "while time.monotonic() < end:\n    prepare()\n"
    )
    program = tmp_path / "app.py"
    program.write_text("""
import heavy, time
def step():
    return sum(range(40000))
for _ in range(50):
    step()
    time.sleep(0.01)
""")
    # On a busy machine its pace may be uneven.
    for _ in range(3):
        said = []
        with Runner([sys.executable, str(program)], show_output=False) as runner:
            found = aim(runner, Progress(), 20.0, said.append, event=said.append)
        if found.unit_name:
            break
    # The imports of a later run are no reason to forget an earlier one.
    assert found.seconds > 0.9
    assert found.unit_name == "__main__:step"
    assert "heavy:prepare" not in found.candidates
    # Of a run, not of all of them.
    assert 0.3 < found.import_s < 2 * 0.7
    assert any("it is run again to see more of it" in text for text in said)


def test_when_the_first_unit_was_and_the_first_line():
    said = []
    source = PROGRAM.replace("def main():", "def main():\n    time.sleep(1)")
    command = [sys.executable, "-c", source.format(more="")]
    with Runner(command, show_output=False) as runner:
        found = aim(runner, Progress(), 20.0, said.append, first=said.append)
    assert found in said
    # After the sleep, and before it was said.
    assert found.to_first_s > 0.8
    assert found.first_line_s > 1
    assert found.as_json()["first_line_s"] == found.first_line_s


def lines_of(*arguments):
    """The lines of a run of the tool, with the seconds after which they came."""
    begin = time.monotonic()
    with subprocess.Popen(
        command_line(*arguments), env=environment(), stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL, text=True,
    ) as child:  # fmt: skip
        lines = [(time.monotonic() - begin, line) for line in child.stderr]
    return lines, time.monotonic() - begin


def when(lines, text):
    """When a line came with that text."""
    found = [seconds for seconds, line in lines if text in line]
    assert found, lines
    return found[0]


@pytest.mark.one_python
def test_that_no_unit_is_seen_is_said_when_it_is_seen(tmp_path):
    # It works while it is looked at, and not any more when it is to be measured.
    program = tmp_path / "app.py"
    program.write_text(
        "import pathlib, sys, time\n"
        "mark = pathlib.Path(__file__).with_suffix('.ran')\n"
        "if mark.exists():\n    time.sleep(1000)\n"
        "mark.touch()\n" + PROGRAM.format(more="")
    )
    lines, total = lines_of(
        "rank", "--budget", "12s", "-o", str(tmp_path / "x"), "--", sys.executable,
        str(program),
    )  # fmt: skip
    found, doubt = when(lines, "functions that take time"), when(lines, "was seen so far")
    # What the pilot took is no reason to wait for as long again.
    assert doubt - found < 0.6 * (total - found), lines


STOPS = """
import time
def work():
    return sum(range(20000))
def unit(n):
    {call}
    time.sleep({pause})
for n in range({units}):
    unit(n)
time.sleep(1000)
"""


@pytest.mark.one_python
@pytest.mark.parametrize(
    ("call", "pause", "units", "doubt"),
    [
        # A slow unit: a fraction of those that fit into the budget.
        ("n < 14 and work()", 0.5, 1000, "none of the functions was called in the last"),
    ],
)
def test_a_doubt_is_said_when_it_is_seen(tmp_path, call, pause, units, doubt):
    program = tmp_path / "app.py"
    program.write_text(STOPS.format(call=call, pause=pause, units=units))
    lines, total = lines_of(
        "rank", "--budget", "30s", "-o", str(tmp_path / "x"), "-t", "__main__:work",
        "--progress", "__main__:unit", "--", sys.executable, str(program),
    )  # fmt: skip
    assert when(lines, doubt) < 0.7 * total, lines


def test_suggest(tmp_path):
    numbers = tmp_path / "numbers.json"
    command = ["--", sys.executable, "-c", PROGRAM.format(more="")]
    done = speed_bump("suggest", "--json", str(numbers), *command)
    assert done.returncode == 0, done.stderr
    assert "__main__:render" in done.stdout
    assert "rank would take: a unit of work is call of __main__:" in done.stdout
    found = schemas.read("suggest", numbers.read_text())
    rates = {t["target"]: t["calls_per_s"] for t in found["targets"]}
    assert 2 < rates["__main__:render"] / rates["__main__:parse"] < 4
    assert {unit["name"] for unit in found["units"]} >= {"__main__:parse"}
    assert "__main__:" in found["unit"]
    done = speed_bump("suggest", "--", sys.executable, "-c", "exit(3)")
    assert (done.returncode, "status 3" in done.stderr) == (3, True)
    assert speed_bump("suggest").returncode == 2
