# SPDX-License-Identifier: MIT
"""Targets and the unit of work, found by looking."""

from __future__ import annotations

import json
import sys

import pytest
from ranking import speed_bump
from speed_bump.experiment.aim import aim
from speed_bump.experiment.aim.unit import steady
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner
from speed_bump.experiment.rank import RankError

pytestmark = pytest.mark.ranks

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
    # One of its calls is in the part after.
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
    # Six slow calls a second, and in each some fast ones: these are known first.
    for _ in range(4):
        found = look(SLOWER)
        (unit,) = found.progress.functions
        # With little of the CPUs they are fewer.
        if unit.right == "slow":
            break
    assert unit.right == "slow", found.why


def test_the_pace_of_the_main_process_comes_before_that_of_others():
    # Seven a second in the main process: its child has shown a pace long before.
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
    # Where others have the CPUs a look may find any function standing still.
    for _ in range(4):
        found = look(PROGRAM.format(more=""))
        if found.cpu_share > 0.5 and "__main__:trifle" not in found.candidates:
            break
    # A function that takes time itself, and its caller.
    assert {"__main__:parse", "__main__:render", "__main__:request"} <= set(
        found.candidates
    )
    # Entered before the work began, and never again.
    assert "__main__:main" not in found.candidates
    assert "time:sleep" not in found.candidates
    if found.cpu_share > 0.5:
        assert "__main__:trifle" not in found.candidates
    assert "speed_bump" not in " ".join(found.candidates)
    # Once a unit, and not three times, nor once a run.
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


def is_starved(finding):
    """Whether it is not known because others had the CPU."""
    return any(text in finding["reason"] for text in ("of the CPU time", "of a CPU"))


def test_rank_needs_no_option(tmp_path):
    numbers = tmp_path / "numbers.json"
    for budget in (8, 30, 90):
        done = speed_bump(
            "rank", "--budget", f"{budget}s", "--json", str(numbers), "-o",
            str(tmp_path / "x"), "--", sys.executable, "-c", PROGRAM.format(more=""),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = {f["name"]: f for f in json.loads(numbers.read_text())["findings"]}
        said = found["__main__:parse"]
        # Where others leave it too little, that is the answer.
        if said["verdict"] == "matters" or is_starved(said):
            break
    assert said["verdict"] == "matters" or is_starved(said)
    assert "a unit of work is call of __main__:" in done.stderr
    assert "functions that take time" in done.stderr


def test_imports_are_waited_for(tmp_path):
    # Very steady, for longer than a look takes, and no work.
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
    # Their time is theirs, and that of their caller with what it calls.
    assert found.shares.own["zlib:compress"] > 0.05
    assert found.shares.total["__main__:unit"] >= found.shares.total["zlib:compress"]


def test_a_short_program_is_run_again(tmp_path):
    program = tmp_path / "app.py"
    program.write_text("""
import time
def step():
    return sum(range(40000))
end = time.monotonic() + 1.2
while time.monotonic() < end:
    step()
    time.sleep(0.01)
""")
    with Runner([sys.executable, str(program)], show_output=False) as runner:
        found = aim(runner, Progress(), 20.0, lambda _: None)
    assert found.unit_name == "__main__:step"
    assert not found.goes_on


def test_suggest(tmp_path):
    numbers = tmp_path / "numbers.json"
    command = ["--", sys.executable, "-c", PROGRAM.format(more="")]
    done = speed_bump("suggest", "--json", str(numbers), *command)
    assert done.returncode == 0, done.stderr
    assert "__main__:render" in done.stdout
    assert "rank would take: a unit of work is call of __main__:" in done.stdout
    found = json.loads(numbers.read_text())
    rates = {t["name"]: t["calls_per_s"] for t in found["targets"]}
    assert 2 < rates["__main__:render"] / rates["__main__:parse"] < 4
    assert {unit["name"] for unit in found["units"]} >= {"__main__:parse"}
    assert "__main__:" in found["unit"]
    done = speed_bump("suggest", "--", sys.executable, "-c", "exit(3)")
    assert (done.returncode, "status 3" in done.stderr) == (3, True)
    assert speed_bump("suggest").returncode == 2
