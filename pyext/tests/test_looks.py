# SPDX-License-Identifier: MIT
"""Whole stacks of a program and the waits of its threads, observed from outside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import types
from collections import Counter
from pathlib import Path

import pytest
from records import made
from speed_bump import _core
from speed_bump.config import parse_targets
from speed_bump.experiment.account import CPU_WAIT, MACHINE, PYTHON, WAIT, C, Looks
from speed_bump.experiment.program import looks, native_frames
from speed_bump.experiment.program.native_frames import Key
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner
from speed_bump.experiment.program.workload import Workload

pytestmark = pytest.mark.timed

PROGRAM = """
import os, queue, select, socket, sys, threading, time, zlib
from time import sleep as doze
from speed_bump import _core

pipe, _ = os.pipe()
left, right = socket.socketpair()
lock = threading.Lock()
lock.acquire()

class Naps:
    def sleeping(self):
        def inner():
            while True:
                time.sleep(1000)
        inner()

def renamed():
    doze(1000)

def reading():
    os.read(pipe, 1)

def receiving():
    left.recv(1)

def polling():
    select.select([left], [], [])

def locked():
    lock.acquire()

def child():
    os.waitpid(-1, 0)

def packing():
    data = bytes(10_000_000)
    while True:
        zlib.compress(data)

def counting():
    n = 0
    while True:
        n += 1

def counting_too():
    n = 0
    while True:
        n += 1

pid = os.fork()
if not pid:
    time.sleep(1000)
for body in (Naps().sleeping, renamed, reading, receiving, polling, locked, child,
             packing, counting, counting_too):
    threading.Thread(target=body, daemon=True).start()
with open(sys.argv[1] + ".new", "w") as file:
    file.write(" ".join(map(str, _core.layout())))
os.rename(sys.argv[1] + ".new", sys.argv[1])
def wörk():
    try:
        sys.stdin.read()
    finally:
        os.kill(pid, 9)
wörk()
"""


def looked_at(folder: Path, text: str, ticks: int) -> Looks:
    """The stacks of a program, which writes its layout and ends with its input."""
    (folder / "program.py").write_text(text, encoding="utf-8")
    layout = folder / "layout"
    table = _core.Table(folder / "table", 16)
    program = subprocess.Popen(
        [sys.executable, str(folder / "program.py"), str(layout)],
        stdin=subprocess.PIPE,
    )
    try:
        end = time.monotonic() + 60
        while not layout.exists() and time.monotonic() < end:
            assert program.poll() is None
            time.sleep(0.02)
        looking = looks.Looking(table)
        looking.add(program.pid, tuple(map(int, layout.read_text().split())))
        while True:
            looking.look(10**9)
            found = looking.looks()
            if found.ticks > ticks or time.monotonic() > end:
                return found
    finally:
        assert program.stdin
        program.stdin.close()
        program.wait(60)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Looks:
    """A program with threads of every kind, observed until each was seen often."""
    return looked_at(tmp_path_factory.mktemp("looks"), PROGRAM, 100)


def stacks_of(seen: Looks, function: str) -> Counter[tuple[tuple[str, str], ...]]:
    """The frames below a function of the program, with their counts.

    A thread that waits for a CPU is awake.
    """
    found: Counter[tuple[tuple[str, str], ...]] = Counter()
    for (_, row), n in seen.stacks.items():
        frames = [(seen.frames[f].kind, seen.frames[f].name) for f in row]
        frames = [frame for frame in frames if frame != (WAIT, CPU_WAIT)]
        name = (PYTHON, f"__main__:{function}")
        if name in frames:
            found[tuple(frames[frames.index(name) + 1 :])] += n
    return found


@pytest.mark.parametrize(
    ("function", "called", "wait"),
    [
        ("Naps.sleeping.<locals>.inner", "time.sleep", "sleep"),
        ("renamed", "time.sleep", "sleep"),
        ("reading", "os.read", "pipe"),
        ("receiving", "left.recv", "poll and recv"),
        ("polling", "select.select", "poll and recv"),
        ("locked", "lock.acquire", "lock"),
        ("child", "os.waitpid", "child process"),
        ("wörk", "sys.stdin.read", "pipe"),
    ],
)
def test_a_thread_that_sleeps_is_known_by_what_it_waits_for(
    seen: Looks, function: str, called: str, wait: str
) -> None:
    found = stacks_of(seen, function)
    usual, n = found.most_common(1)[0]
    # The frames between them are Python's, which decodes stdin.
    assert usual[0] == (C, called) or usual[-2:] == ((C, called), (WAIT, wait)), found
    assert usual[-1] == (WAIT, wait), found
    assert n > 0.9 * seen.ticks


def test_a_thread_that_computes_is_not_asleep_but_for_the_gil(seen: Looks) -> None:
    packing = stacks_of(seen, "packing")
    often = sum(n for stack, n in packing.items() if (WAIT, "sleep") not in stack)
    assert often == sum(packing.values()) > 0.9 * seen.ticks
    if sys.version_info >= (3, 11):
        assert packing[(C, "zlib.compress"),] > 0.5 * seen.ticks, packing
    for name in ("counting", "counting_too"):
        found = stacks_of(seen, name)
        kinds = {stack[-1] for stack in found if stack}
        assert kinds <= {(WAIT, "the GIL")}, found
        gil = getattr(sys, "_is_gil_enabled", lambda: True)()
        # Two alternate.
        assert (((WAIT, "the GIL"),) in found) == gil, found
        assert found[()] > 0.1 * seen.ticks, found


def test_each_thread_is_one_of_the_kernels(seen: Looks) -> None:
    assert len({t.tid for t in seen.threads}) == 11
    for thread in seen.threads:
        assert thread.looks > 0.9 * seen.ticks
        assert 0 <= thread.wait <= 1
    assert seen.lost < 0.1 * sum(seen.stacks.values())
    # By a wide margin: the pauses aim at a twentieth.
    assert 0 < seen.cpu_ns < 0.2 * seen.clock_ns


BUSY = """
import os, sys, threading, time
from speed_bump import _core

def ends():
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=ends, daemon=True).start()
with open(sys.argv[1] + ".new", "w") as file:
    file.write(" ".join(map(str, _core.layout())))
os.rename(sys.argv[1] + ".new", sys.argv[1])
"""

YIELDS = """
def descend(depth):
    if depth:
        for found in range(2):
            yield from descend(depth - 1)

def look_for():
    for _ in descend(12):
        pass

while True:
    look_for()
"""

SHORT = """
began, worked = time.perf_counter(), 0.0
share = open(sys.argv[1] + ".share", "w")

def spin():
    end = time.perf_counter() + 150e-6
    while time.perf_counter() < end:
        pass

def early():
    spin()

def late():
    spin()

def work():
    global worked
    begin = time.perf_counter()
    early()
    late()
    worked += time.perf_counter() - begin
    share.seek(0)
    share.write(f"{worked / (time.perf_counter() - began):.6f}")
    share.flush()

while True:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""


def test_stacks_of_generators_can_be_read_while_they_change(tmp_path: Path) -> None:
    """A generator that yields is no longer on the stack, nor are those that it called."""
    found = looked_at(tmp_path, BUSY + YIELDS, 300)
    assert sum(stacks_of(found, "look_for").values()) > 0.9 * found.ticks


def test_what_a_short_thread_does_first_is_seen_as_often(tmp_path: Path) -> None:
    """As often as it is there, though its number and its files are new."""
    found = looked_at(tmp_path, BUSY + SHORT, 600)
    share = float((tmp_path / "layout.share").read_text())
    early, late = (
        sum(n for stack, n in stacks_of(found, "work").items() if (PYTHON, name) in stack)
        for name in ("__main__:early", "__main__:late")
    )
    assert early + late > 0.8 * share * found.ticks
    assert early > 0.7 * late


def codes_of(code: types.CodeType) -> list[types.CodeType]:
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return [code, *(found for c in inner for found in codes_of(c))]


def test_places_in_code_are_where_the_interpreter_says() -> None:
    checked = 0
    for module in (json.decoder, shutil, subprocess):
        path = Path(str(module.__file__))
        source = path.read_text(encoding="utf-8")
        for code in codes_of(compile(source, str(path), "exec")):
            table, first = code.co_linetable, code.co_firstlineno
            if sys.version_info < (3, 11):
                lines = {at: line for a, b, line in code.co_lines() for at in range(a, b)}
                for at, line in lines.items():
                    assert looks.line_of(table, first, at) == (line or -1)
                    checked += 1
                continue
            for k, (_, end, _, column) in enumerate(code.co_positions()):
                expected = None if column is None else (end, column)
                assert looks.position(table, first, 2 * k) == expected
                checked += 1
    assert checked > 10_000


def test_a_damaged_table_of_lines_is_no_failure() -> None:
    for table in (b"", b"\xff", b"\xf0\x7f\x7f", bytes(range(256))):
        for at in range(0, 600, 2):
            looks.position(table, 1, at)
            looks.line_of(table, 1, at)


def test_what_the_source_calls_has_its_whole_name(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "import os.path, numpy as np\n"
        "from time import sleep as doze\n"
        "def own(): pass\n"
        "class A:\n"
        "    @property\n"
        "    def b(self):\n"
        "        doze(1); own()\n"
        "        np.linalg.svd(np.eye(3)).real.sum(b[1].c())\n"
        "        return [os.path.exists(x) for x in self.sock.recv(1)]\n"
    )
    source = looks.read_source(str(path))
    assert set(source.by_end.values()) == {
        "time.sleep", "numpy.linalg.svd", "numpy.eye", "os.path.exists", "self.sock.recv",
        "numpy.linalg.svd().real.sum", "b[].c"
    }  # fmt: skip
    assert source.called_in(7) == "time.sleep"
    assert source.called_in(8) == ""
    assert source.qualname(5, "b") == "A.b"
    assert looks.read_source(os.fspath(tmp_path / "none.py")).called((1, 1)) == ""
    path.write_text("def broken(:\n")
    assert looks.read_source(str(path)).by_end == {}


def test_a_file_is_a_module_of_the_packages_that_it_lies_in(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    for where in (tmp_path / "a", folder):
        (where / "__init__.py").touch()
    assert looks.module_of(str(folder / "c.py")) == "a.b.c"
    assert looks.module_of(str(folder / "__init__.py")) == "a.b"
    assert looks.module_of("<frozen importlib._bootstrap>") == "importlib._bootstrap"


def test_a_program_that_is_not_of_python_is_known_by_what_it_waits_for(
    tmp_path: Path,
) -> None:
    program = subprocess.Popen(
        ["sh", "-c", "while :; do :; done & sleep 1000 & wait"], start_new_session=True
    )
    try:
        looking = looks.Looking(_core.Table(tmp_path / "table", 16))
        end = time.monotonic() + 60
        pids: list[int] = []
        while len(pids) < 2 and time.monotonic() < end:
            path = Path(f"/proc/{program.pid}/task/{program.pid}/children")
            pids = [int(pid) for pid in path.read_text().split()]
        # So that the second one is the expected state.
        while not Path(f"/proc/{pids[1]}/comm").read_text().startswith("sleep"):
            time.sleep(0.01)
        for pid in (program.pid, *pids):
            looking.add(pid, None)
        while True:
            looking.look(5 * 10**8)
            found = looking.looks()
            if found.ticks > 20 or time.monotonic() > end:
                break
    finally:
        os.killpg(program.pid, 9)
        program.wait(60)
    waits: dict[int, Counter[str]] = {}
    for (at, row), n in found.stacks.items():
        kind = found.frames[row[0]].name if row else ""
        kind = kind if kind != CPU_WAIT else ""
        waits.setdefault(found.threads[at].pid, Counter())[kind] += n
    # Shells may wait for their children in different ways.
    assert waits[program.pid].most_common(1)[0][0] in ("child process", "signal")
    assert waits[pids[0]].most_common(1)[0][0] == ""
    assert waits[pids[1]].most_common(1)[0][0] == "sleep"
    # It was started by a shell, and nothing tells which thread reports units.
    found.mark(set(), program.pid)
    assert [t.pid for t in found.threads if t.reports] == [program.pid]


def native_stack(
    tid: int,
    time_ns: int,
    ns: int,
    frames: tuple[tuple[str, int], ...],
    *,
    off_cpu: bool = False,
    whole: bool = True,
) -> _core.NativeStack:
    return made(
        _core.NativeStack,
        tid=tid,
        time_ns=time_ns,
        ns=ns,
        off_cpu=off_cpu,
        whole=whole,
        frames=frames,
    )


def test_native_frames_are_those_below_the_python_stack_of_the_time() -> None:
    py, zlib, libz = "/usr/bin/python3.13", "/zlib.so", "/libz.so.1"
    pack = Key(pid=1, tid=7, wait="", offset=20, codes=(3, 2))
    nap = Key(pid=1, tid=7, wait="sleep", offset=8, codes=(4, 2))
    moments = {7: [(1_000, pack), (2_000, pack), (50_000_000, nap), (60_000_000, nap)]}
    names = {
        (zlib, 5): "zlib_compress",
        (libz, 6): "deflate",
        ("/libc.so", 1): "nanosleep",
    }

    def symbol(path: str, offset: int) -> _core.Symbol | None:
        found = names.get((path, offset))
        return made(_core.Symbol, name=found, demangled=None) if found else None

    deep = ((libz, 9), (libz, 6), (zlib, 5), (py, 1), (py, 2))
    asleep = (("/libc.so", 1), (py, 3), (py, 1))
    usual = ((libz, 6), (zlib, 5), (py, 1))
    seen = [
        native_stack(7, 1_500, 300, deep),
        native_stack(7, 1_600, 100, usual, whole=False),
        native_stack(7, 49_000_000, 2_000_000, asleep, off_cpu=True),
        # Between two places, far from both, and one that was not sampled.
        native_stack(7, 25_000_000, 900, usual),
        native_stack(7, 1_700, 900, ((libz, 6),), whole=False),
        # A thread that was never sampled.
        native_stack(8, 1_500, 300, ((libz, 6), (py, 1))),
    ]
    found = native_frames.NativeFrames()
    found.add(seen, moments, symbol)
    below = {tuple(f.name for f in frames): part for frames, part in found.below(pack)}
    assert below == pytest.approx(
        {
            ("zlib.so:zlib_compress", "libz.so.1:deflate", "libz.so.1"): 0.75,
            ("zlib.so:zlib_compress", "libz.so.1:deflate"): 0.25,
        }
    )
    assert [[f.name for f in frames] for frames, _ in found.below(nap)] == [
        ["libc.so:nanosleep"]
    ]
    # The same place in another stack uses that place; another place uses nothing.
    other = pack._replace(codes=(3, 5, 2))
    assert dict(found.below(other)) == dict(found.below(pack))
    assert found.below(pack._replace(offset=22)) == [((), 1.0)]
    # A function that can't be unwound does not get the frames sampled before it.
    solve = pack._replace(offset=30)
    moments = {7: [(1_000, solve), (9_000, solve)]}
    blas = native_stack(7, 5_000, 9_900, (("/blas.so", 2),), whole=False)
    late = native_stack(7, 1_500, 100, usual)
    found.add([blas, late], moments, symbol)
    assert dict(found.below(solve))[()] == pytest.approx(0.99)


def test_native_stacks_of_which_the_callers_are_not_known_are_left_out() -> None:
    """In a thread without Python nothing else tells where a stack ends."""
    native = Key(pid=1, tid=9, wait="", offset=0, codes=())
    moments = {9: [(1_000, native), (9_000, native)]}
    whole = native_stack(9, 2_000, 100, (("/a.so", 1), ("/a.so", 2)))
    cut = native_stack(9, 3_000, 300, (("/b.so", 3),), whole=False)

    def symbol(path: str, offset: int) -> _core.Symbol | None:
        return made(_core.Symbol, name=f"f{offset}", demangled=None)

    found = native_frames.NativeFrames()
    found.add([whole, cut], moments, symbol)
    below = {tuple(f.name for f in frames): part for frames, part in found.below(native)}
    assert below == pytest.approx({("a.so:f2", "a.so:f1"): 0.25, (): 0.75})


PACKING = """
import os, time, zlib
data = os.urandom(300_000)
def pack(): zlib.compress(data, 1)
def nap(): time.sleep(0.004)
while True:
    pack()
    nap()
"""


@pytest.mark.one_python
def test_native_frames_stand_below_those_of_python(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PACKING)
    progress = parse_targets("__main__:pack", "unit")
    with (
        Runner([sys.executable, str(path)], show_output=False) as runner,
        Workload(
            runner,
            parse_targets("__main__:nap", "x"),
            Progress(functions=tuple(progress)),
        ) as program,
    ):
        end = time.monotonic() + 60
        while not program.plan.units and time.monotonic() < end:
            program.look()
            time.sleep(0.05)
        for _ in range(10):
            program.sampler.sample(10**9, lambda: None)
            found = program.sampler.looks()
            packing = stacks_of(found, "pack")
            names = {name for stack in packing for kind, name in stack if kind == MACHINE}
            if any(name.endswith(":deflate") for name in names):
                break
        if not names and program.sampler.native_refused:
            pytest.skip(program.sampler.native_refused)
    assert any(name.endswith(":deflate") for name in names), packing
    # The callable has its Python name only once. At a place without a call, such as the
    # entry of the function, it is seen by a late look.
    twice = sum(
        n
        for stack, n in packing.items()
        if any(name.endswith(":zlib_compress") for _, name in stack)
    )
    assert twice < 0.05 * packing.total()

    # On a busy machine looks may be late, but most are not.
    def deflating(function: str) -> float:
        return sum(
            n
            for stack, n in stacks_of(found, function).items()
            if any(kind == MACHINE and name.endswith(":deflate") for kind, name in stack)
        )

    assert deflating("nap") < 0.5 * deflating("pack")
    # No look is missing, whatever stack it belongs to.
    looked = sum(thread.looks for thread in found.threads)
    assert sum(found.stacks.values()) == pytest.approx(looked, rel=0.1)
