# SPDX-License-Identifier: MIT
"""Native functions of Python programs, and of their threads, found by looking.

Each step from the look to the counts is tested with the same library and false probes:
hence the length.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ranking import Ranked, speed_bump
from records import made
from speed_bump import _core, native
from speed_bump.config import parse_targets
from speed_bump.experiment.account import MACHINE, Frame, account, asked_name
from speed_bump.experiment.aim import (
    Aim,
    aim,
    count_whole_run,
    launcher,
    machine_code,
    natives,
)
from speed_bump.experiment.aim.shares import shares
from speed_bump.experiment.errors import RankError
from speed_bump.experiment.program.attached import AttachedRunner
from speed_bump.experiment.program.launch import LaunchError
from speed_bump.experiment.program.machine import is_alive
from speed_bump.experiment.program.native_looks import (
    NativeLook,
    NativeLooks,
    NativeSeen,
    Place,
)
from speed_bump.experiment.program.processes import tree
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner
from speed_bump.experiment.program.stacks import Stack, Stacks
from speed_bump.experiment.program.workload import Workload, children
from speed_bump.experiment.show import found as showing
from speed_bump.experiment.symbols import base, short

pytestmark = [pytest.mark.two_pythons, pytest.mark.timed]

# The symbols of app::work(int), app::often(int) and app::pool(void*), as a C++ compiler
# makes them.
WORK, OFTEN, POOL = "_ZN3app4workEi", "_ZN3app5oftenEi", "_ZN3app4poolEPv"
LIBRARY = f"""
#include <pthread.h>
#include <unistd.h>
static volatile unsigned long sum;
__attribute__((noinline)) void often(int n) __asm__("{OFTEN}");
__attribute__((noinline)) void work(int n) __asm__("{WORK}");
__attribute__((noinline)) void *pool(void *) __asm__("{POOL}");
__attribute__((noinline)) void piece(void);
void often(int n) {{ sum += n; }}
void work(int n)
{{
	for (int i = 0; i < n; i++)
		often(i);
	for (volatile long i = 0; i < 1000000; i++)
		;
}}
void piece(void)
{{
	for (volatile long i = 0; i < 1500000; i++)
		;
}}
void once(void)
{{
	for (volatile long i = 0; i < 200000000; i++)
		;
}}
void *pool(void *unused)
{{
	/* A pool that is awake less than a fifth of the time only waits for work. */
	for (;;) {{
		piece();
		usleep(500);
	}}
	return unused;
}}
void start(void)
{{
	pthread_t thread;

	pthread_create(&thread, NULL, pool, NULL);
}}
"""
PROGRAM = """
import ctypes, sys, time
library = ctypes.PyDLL(sys.argv[1])
def unit():
    library.{work}(400000)
library.start()
while True:
    unit()
"""


# It has ended before anything is counted, and begins with a function called once.
SHORT = """
import ctypes, sys
library = ctypes.PyDLL(sys.argv[1])
library.once()
for _ in range(40):
    library.piece()
    sum(range(100000))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("library")
    (folder / "app.c").write_text(LIBRARY)
    subprocess.run(
        [
            compiler,
            "-O1",
            "-g",
            "-shared",
            "-fPIC",
            "-pthread",
            "-o",
            "libapp.so",
            "app.c",
        ],
        cwd=folder,
        check=True,
    )
    return str(folder / "libapp.so")


def command(library: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM.format(work=WORK), library]


def aimed(library: str) -> Aim:
    said: list[str] = []
    with Runner(command(library), show_output=False) as runner:
        return aim(runner, Progress(), 20.0, said.append)


@pytest.mark.one_python
@pytest.mark.needs_device
@pytest.mark.any_backend
def test_native_functions_are_candidates_beside_those_of_python(library: str) -> None:
    for _ in range(4):
        found = aimed(library)
        if found.native_refused:
            pytest.skip(found.native_refused)
        # Also C++ functions, and those of a thread that does not run Python.
        wanted = {f"{library}:{WORK}", f"{library}:piece"}
        unwanted = {f"{library}:{OFTEN}", f"{library}:{POOL}"}
        # Where a guest is slow, a look may have too few samples of one of them.
        if wanted <= set(found.candidates) and unwanted <= set(found.left_out):
            break
    assert wanted <= set(found.candidates), found.left_out
    assert unwanted <= set(found.left_out), (found.shares.own, found.candidates)
    assert found.shares.own[f"{library}:{WORK}"] > 0.05
    assert "__main__:unit" in found.candidates
    assert all(name.startswith("/") for name in found.natives)
    # The target that rank uses, and its readable name.
    target = found.natives[f"{library}:{WORK}"]
    assert target in found.targets()
    assert (target.left, target.right) == (library, WORK)
    assert short(f"{library}:{WORK}") == "libapp.so:app::work(int)"
    assert f"{library}:{WORK}  " in showing.table(found)
    assert "app::work" in showing.table(found)
    # No functions of the interpreter, and none that everything calls. Those of _ctypes
    # may take a part that counts.
    files = {Path(name.rpartition(":")[0]).name for name in found.natives}
    assert not [f for f in files if f.startswith(("python", "libpython", "libc."))]
    # A breakpoint would cost more than the limit; a function that is not entered again.
    reasons = {short(name): why for name, why in found.left_out.items()}
    assert "a second" in reasons["libapp.so:app::often(int)"]
    # Nearly all its time is in its callee, if earlier samples have shown that.
    same = "nearly all of libapp.so:piece: the same question"
    pool = reasons["libapp.so:app::pool(void*)"]
    assert "not called" in pool or pool == same
    said = "\n".join(showing.lines(found))
    assert "of them native" in said
    assert "left out: " in said


@pytest.mark.one_python
@pytest.mark.needs_device
@pytest.mark.any_backend
def test_a_native_function_that_is_the_unit_is_no_candidate(library: str) -> None:
    # The unit is given by another name than that of its symbol.
    unit = parse_targets(f"native:{library}:app::work", "unit")
    name = f"{library}:{WORK}"
    for _ in range(4):
        said: list[str] = []
        with Runner(command(library), show_output=False) as runner:
            found = aim(runner, Progress(targets=tuple(unit)), 20.0, said.append)
        if found.native_refused:
            pytest.skip(found.native_refused)
        assert name not in found.candidates
        # With few samples, one thread may have none there.
        if name in found.left_out:
            break
    assert found.left_out[name] == "its calls are the units of work"


@pytest.mark.one_python
@pytest.mark.needs_device
@pytest.mark.any_backend
def test_where_no_probe_can_be_had_that_is_said(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise native.NativeError(1, "not for you")

    monkeypatch.setattr(native, "Probes", refuse)
    found = aimed(library)
    assert "__main__:unit" in found.candidates
    assert not found.natives
    assert "not candidates: not for you" in "\n".join(showing.lines(found))


@pytest.mark.ranks_native
def test_they_are_asked_with_no_word_about_the_program(
    tmp_path: Path, library: str
) -> None:
    def fits(ranked: Any) -> bool:
        # A breakpoint in one function more or less does not change the answer.
        work = ranked.findings.get(WORK)
        return bool(work) and (
            work["verdict"] == "matters" or (ranked.is_last and work["reason"])
        )

    ranked = Ranked(tmp_path, [], command(library), fits=fits, budgets=(8, 25))
    assert ranked.findings[WORK]["calls_per_unit"] == pytest.approx(1, abs=0.1)
    if ranked.findings[WORK]["verdict"] == "matters":
        assert "libapp.so:app::work(int)" in ranked.done.stdout
    # The place of the thread without Python, and what it waits for.
    spent = account(ranked.record.looks, {WORK})
    assert spent
    pool = next(one for one in spent.others if one.name.startswith("libapp.so:"))
    assert pool.name == "libapp.so:app::pool(void*)"
    assert pool.waits == "sleep"
    assert threading.active_count() == 1


def look_at(
    *rows: tuple[Stack | None, int, tuple[Place, ...]], sleeps: bool = False
) -> NativeSeen:
    looks = [NativeLook(7, ns, places, stack, sleeps) for stack, ns, places in rows]
    return NativeSeen(1000, looks)


def stack(*frames: str, leaf: bool = True) -> Stack:
    return Stack(7, 7, "", frames, leaf)


PYTHON = Place("/usr/bin/python3.13")
ZLIB = Place("/lib/zlib.cpython-313.so", "zlib_compress", "zlib_compress")
DEFLATE = Place("/lib/libz.so.1", "deflate", "deflate")
SLOW = Place("/lib/libz.so.1", "longest_match", "longest_match")
COPY = Place("/lib/libc.so.6", "memcpy", "memcpy")
NEW = Place("/app/libapp.so", "_Znwm", "operator new(unsigned long)")


def test_what_native_time_is_and_whose() -> None:
    pack = stack("__main__:unit", "zlib:compress")
    seen = look_at(
        (pack, 300, (DEFLATE, ZLIB, PYTHON, PYTHON)),
        (pack, 200, (COPY, SLOW, DEFLATE, ZLIB, PYTHON)),
        (pack, 100, (NEW, DEFLATE, ZLIB, PYTHON)),
        (stack("m:<module>", leaf=False), 100, (SLOW, PYTHON)),
        # A sample on a CPU is of a thread that goes to sleep or wakes up.
        (stack("m:get", "_queue:SimpleQueue.get"), 100, (DEFLATE, PYTHON)),
        (None, 50, (SLOW, Place("/lib/libgomp.so.1", "GOMP_parallel", "GOMP_parallel"))),
        (None, 50, (COPY, Place("/b.so", "blas_thread_server", "blas_thread_server"))),
    )
    seen.add(look_at((pack, 400, (SLOW, PYTHON)), sleeps=True))
    seen.clock_ns = 1000
    found = natives.weigh(seen)
    keys = {place.symbol: (place.path, place.symbol) for place in (DEFLATE, SLOW, ZLIB)}
    # Time in functions that everything calls counts for the caller; imports and sleep do
    # not count.
    assert found.total[keys["deflate"]] == pytest.approx(0.6)
    assert found.own[keys["deflate"]] == pytest.approx(0.4)
    assert found.own[keys["longest_match"]] == pytest.approx(0.25)
    assert keys["zlib_compress"] not in found.own
    assert not {"memcpy", "_Znwm", "blas_thread_server"} & {k[1] for k in found.total}


def test_this_package_is_no_part_of_the_program() -> None:
    assert natives.is_asked_of("/venv/lib/app/_core.abi3.so")
    # Also a copy that another Python has.
    assert not natives.is_asked_of(_core.__file__)
    assert not natives.is_asked_of("/venv/lib/speed_bump/_core.cpython-310.so")
    serves = Stack(7, 9, "socket", ("speed_bump.link.message:_all_of",))
    loop = Stack(7, 7, "poll", ("asyncio.base_events:BaseEventLoop._run_once",))
    assert serves.waiting_in and loop.waiting_in
    found = shares(Stacks(10, 1.0, {serves: 10, loop: 5}))
    assert found.waiting == {loop.waiting_in: 0.5}


def test_what_is_below_a_call_that_waits_is_no_candidate() -> None:
    acquire = Place("/lib/_multiprocessing.so", "acquire_impl", "acquire_impl")
    waits = stack("m:put", "_multiprocessing:SemLock.acquire")
    seen = look_at(
        # A late sample of a thread that is about to sleep: the caller was sampled before.
        (stack("m:put", leaf=False), 50, (acquire, PYTHON)),
        (stack("__main__:unit", leaf=False), 50, (DEFLATE, PYTHON)),
    )
    seen.add(look_at((waits, 400, (acquire, PYTHON)), sleeps=True))
    assert [key[1] for key in natives.weigh(seen).total] == ["deflate"]


def test_only_the_beginning_is_shown_of_a_name_that_stays_mangled() -> None:
    """As of lambdas in templates of XLA, which take more than 600 characters."""
    long = "_ZNK5Eigen" + 60 * "15TensorEvaluatorIK"
    assert short(f"/lib/libjax.so:{long}") == f"libjax.so:{long[:77]}..."
    assert short("/lib/libjax.so:_Zshort") == "libjax.so:_Zshort"


def test_where_threads_of_a_pool_wait_for_work_is_no_candidate() -> None:
    main = Place("/lib/libpool.so", "worker_main", "worker_main")
    wait = Place("/lib/libpool.so", "wait_for_work", "wait_for_work")
    futex = Place("/lib/libc.so.6", "pthread_cond_wait", "pthread_cond_wait")
    seen = look_at(
        (None, 40, (futex, wait, main)),  # about to sleep, or woken
        (None, 200, (SLOW, DEFLATE, main)),
    )
    seen.add(look_at((None, 700, (futex, wait, main)), sleeps=True))
    # Not the function that calls it: what it computes is worth measuring.
    found = natives.weigh(seen)
    assert {key[1] for key in found.total} == {"worker_main", "deflate", "longest_match"}
    # So is one that reads and computes, and the caller of a function without a name.
    read = Place("/lib/libc.so.6", "read", "read")
    following = Place("/lib/libreader.so", "next", "next")
    outer = Place("/lib/libstripped.so", "outer", "outer")
    seen = look_at((None, 200, (following, main)), (None, 50, (outer, main)))
    unknown = Place("/lib/libstripped.so")
    seen.add(look_at((None, 300, (read, following, main)), sleeps=True))
    seen.add(look_at((None, 700, (futex, unknown, outer, main)), sleeps=True))
    found = natives.weigh(seen)
    assert {key[1] for key in found.total} == {"worker_main", "next", "outer"}


def test_what_is_nearly_all_of_a_c_function_is_the_same_question() -> None:
    pack = stack("__main__:unit", "zlib:compress")
    weighed = natives.weigh(
        look_at(
            (pack, 300, (DEFLATE, ZLIB, PYTHON)),
            (pack, 300, (SLOW, DEFLATE, ZLIB, PYTHON)),
            (stack("__main__:unit", leaf=False), 300, (NEW, PYTHON)),
        )
    )
    deflate, slow = ((one.path, one.symbol) for one in (DEFLATE, SLOW))
    assert weighed.is_leaf(deflate, "zlib:compress")
    assert not weighed.is_leaf(slow, "zlib:compress")
    assert not weighed.is_leaf(deflate, "zlib:crc32")
    assert not weighed.alike(deflate, slow)


def test_what_can_be_asked_is_known_before_any_breakpoint(library: str) -> None:
    app = Place(library, WORK, "app::work(int)")
    gone = Place(library, "no_such_function", "no_such_function")
    other = Place(library, "piece", "piece")
    unit = parse_targets(f"native:{library}:app::often", "unit")
    often = Place(library, OFTEN, "app::often(int)")
    weighed = natives.weigh(
        look_at(
            (stack("m:f", "lib:work"), 300, (app,)),
            (stack("m:f", "lib:work"), 300, (app,)),
            (stack("m:g", leaf=False), 200, (gone, PYTHON)),
            (stack("m:g", leaf=False), 200, (gone, PYTHON)),
            (stack("m:h", leaf=False), 100, (other, PYTHON)),
            (stack("m:h", leaf=False), 100, (other, PYTHON)),
            (stack("m:h", leaf=False), 50, (often, PYTHON)),
            (stack("m:h", leaf=False), 50, (often, PYTHON)),
        )
    )
    found = natives.Natives(weighed=weighed)
    wanted = natives.askable(found, unit, ["lib:work"])
    # A C function by its Python name is equivalent, and needs no breakpoint.
    assert [key for key, _ in wanted] == [(library, "piece")]
    assert found.reasons() == {
        f"{library}:{WORK}": "nearly all of lib:work: the same question",
        f"{library}:no_such_function": (
            "it can't be a target, or its file has several functions of this name"
        ),
        f"{library}:{OFTEN}": "its calls are the units of work",
    }


def test_files_are_kept_until_they_change(tmp_path: Path, library: str) -> None:
    copy, later = tmp_path / "lib.so", tmp_path / "later.so"
    shutil.copy(library, copy)
    (tmp_path / "later.c").write_text("int other(void) { return 1; }\n")
    build = ["cc", "-shared", "-fPIC", "-o", later, tmp_path / "later.c"]
    subprocess.run(build, check=True)
    _core.keep_files(True)
    try:
        (offset,) = _core.places_of(copy, "piece")
        sampler = _core.NativeSampler()
        # Two threads may read one file at the same time.
        assert sampler.symbol(str(copy), offset) == ("piece", "piece", offset)
        assert _core.places_of(copy, "piece") == [offset]
        later.replace(copy)
        assert len(_core.places_of(copy, "other")) == 1
        with pytest.raises(OSError, match="piece"):
            _core.places_of(copy, "piece")
    finally:
        _core.keep_files(False)


@pytest.mark.one_python
def test_what_is_kept_of_stacks_is_of_the_looks_that_are(library: str) -> None:
    with Runner(command(library), show_output=False) as runner:
        everything = parse_targets("*:*", "found")
        with Workload(runner, everything, Progress(), calls=True) as program:
            while not program.sampler.stacks(50_000_000).samples:
                assert program.is_running()
            program.sampler.begin_native_looks(natives.is_asked_of)
            looks = program.sampler._native_looks_of
            assert looks
            # As during imports: the samples are discarded repeatedly.
            for _ in range(30):
                since = looks.since_ns
                program.sampler.stacks(50_000_000)
                program.sampler.forget_native_looks()
            if looks.refused:
                pytest.skip(looks.refused)
            moments = program.sampler._looking.note_moments(False)
    assert moments
    assert min(seen[0][0] for seen in moments.values()) >= since


def test_a_frame_is_asked_by_either_of_its_names() -> None:
    frame = Frame(MACHINE, "libapp.so:app::work(int)", "/app/libapp.so", symbol=WORK)
    mangled, readable = f"/app/libapp.so:{WORK}", "/app/libapp.so:app::work(int)"
    assert asked_name(frame, {mangled}) == mangled
    assert asked_name(frame, {readable}) == readable
    assert asked_name(frame, {"/lib/libapp.so:app::work(int)"}) == ""


@pytest.mark.parametrize(
    ("readable", "bare"),
    [
        ("app::work(int)", "app::work"),
        ("void app::sort<int, (Kind)2>(int*, int*)", "app::sort<int, (Kind)2>"),
        ("app::(anonymous namespace)::f(int) const", "app::(anonymous namespace)::f"),
        ("std::ostream& operator<< <char>(int)", "operator<< <char>"),
        ("A::operator()(int)", "A::operator()"),
        ("operator new(unsigned long)", "operator new"),
        ("<alloc::Vec<T> as core::Drop>::drop", "<alloc::Vec<T> as core::Drop>::drop"),
        ("deflate", "deflate"),
    ],
)
def test_a_name_without_its_parameters(readable: str, bare: str) -> None:
    assert base(readable) == bare


@pytest.mark.parametrize(
    ("symbol", "shown"),
    [
        (
            "std::vector<std::pair<int, long>, std::allocator<std::pair<int, long> > >"
            "::_M_realloc_insert<int>(int*)",
            "std::vector<...>::_M_realloc_insert<...>",
        ),
        ("app::f(std::map<int, std::basic_string<char, std::traits<char> > >)", "app::f"),
        ("std::vector<int>::at(int)", "std::vector<int>::at(int)"),
        (
            "std::basic_ostream<char, std::char_traits<char> >& std::operator<< "
            "<std::char_traits<char> >(std::basic_ostream<char, int>&, char const*)",
            "std::operator<< <std::char_traits<char> >",
        ),
    ],
)
def test_a_long_name_fits_into_a_table(symbol: str, shown: str) -> None:
    assert short(f"/lib/libapp.so:{symbol}") == f"libapp.so:{shown}"


# ------------------------------------------------------------------ how it is counted


class FakeProbes:
    """The kernel refuses breakpoints in functions whose names begin with "bad"."""

    adds = 0

    def __init__(self, pid: int) -> None:
        self.symbols: list[str] = []

    def add(self, asked: list[_core.NativeTarget]) -> list[SimpleNamespace]:
        # While others are tried, none is in the way of the program.
        assert not self.symbols
        FakeProbes.adds += 1
        for index, target in enumerate(asked):
            if target.symbol.startswith("bad"):
                error = native.NativeError(errno.ENOTSUP, "no breakpoint")
                error.target = index
                raise error
        self.symbols = [target.symbol for target in asked]
        return [
            SimpleNamespace(id=n, label=f"/a.so:{name}", target=n)
            for n, name in enumerate(self.symbols)
        ]

    def close(self) -> None:
        self.symbols = []


def test_none_stays_while_a_refused_one_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "Probes", FakeProbes)
    FakeProbes.adds = 0
    names = [f"bad{n}" if n % 13 == 7 else f"f{n}" for n in range(40)]
    wanted = [
        (("/a.so", name), parse_targets(f"native:/a.so:{name}", "x")[0]) for name in names
    ]
    counting = natives.Counting(natives.Natives(), wanted)
    counting.begin(1)
    assert {one.key[1] for one in counting.natives.values()} == {
        name for name in names if name.startswith("f")
    }
    assert FakeProbes.adds == 1 + 3


class RefusingProbes(FakeProbes):
    """The kernel refuses all breakpoints, for a reason that is not of one function."""

    def add(self, asked: list[_core.NativeTarget]) -> list[SimpleNamespace]:
        FakeProbes.adds += 1
        raise native.NativeError(errno.ENOSPC, "no room: 65536 targets")


def test_what_concerns_all_ends_the_adding_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "Probes", RefusingProbes)
    FakeProbes.adds = 0
    wanted = [
        (("/a.so", f"f{n}"), parse_targets(f"native:/a.so:f{n}", "x")[0])
        for n in range(40)
    ]
    counting = natives.Counting(natives.Natives(), wanted)
    counting.begin(1)
    found = counting.finish(lambda: True, 0.2)
    assert FakeProbes.adds == 1
    assert (found.asked, found.left_out) == ({}, {})
    assert showing.lines(Aim(native_refused=found.refused))[1:] == [
        "native functions are not candidates: no room: 65536 targets"
    ]


@pytest.mark.one_python
@pytest.mark.needs_device
@pytest.mark.any_backend
def test_a_refusal_says_which_target_it_was(library: str) -> None:
    try:
        probes = native.Probes(os.getpid())
    except native.NativeError as error:
        pytest.skip(str(error))
    names = ("piece", "start", "no_such_name")
    asked = [_core.native_target(library, name) for name in names]
    with pytest.raises(native.NativeError, match="no_such_name") as refused:
        probes.add(asked)
    assert refused.value.target == 2
    assert len(probes.add(asked[:2])) == 2
    # There already: the kernel's own word.
    with pytest.raises(native.NativeError) as refused:
        probes.add([_core.native_target(library, "once"), *asked[1:2]])
    assert refused.value.target == 1
    probes.close()
    # There is no such process: none of them is to blame.
    with subprocess.Popen(["true"]) as ended:
        pass
    probes = native.Probes(ended.pid)
    with pytest.raises(native.NativeError) as refused:
        probes.add(asked[:2])
    assert (refused.value.errno, refused.value.target) == (errno.ESRCH, None)
    probes.close()


def test_what_is_the_same_question_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(natives, "MAX_COUNTED", 2)
    monkeypatch.setattr(natives, "offsets_of", lambda target: [hash(target.right)])
    outer = [Place("/a.so", name, name) for name in ("work", "outer", "outermost")]
    others = [Place("/a.so", f"other{n}", f"other{n}") for n in range(3)]
    rows = [(stack("m:f", leaf=False), 300, (*outer, PYTHON)) for _ in range(4)]
    for n, other in enumerate(others):
        rows += [(stack("m:g", leaf=False), 100 - n, (other, PYTHON)) for _ in range(2)]
    found = natives.Natives(weighed=natives.weigh(look_at(*rows)))
    wanted = [key[1] for key, _ in natives.askable(found, [], [])]
    # Of one question a second function may do where the first is called too often.
    assert len(wanted) == 3
    assert len(set(wanted) & {"work", "outer", "outermost"}) == natives.MAX_ALIKE
    assert "other0" in wanted
    reasons = found.reasons()
    assert "same question" in "".join(reasons.values())
    assert reasons["/a.so:other1"] == "2 others take more time"


def counting_of(*readings: dict[str, int]) -> Any:
    """It has one reading after the other, and then the last one."""
    left = list(readings)
    return SimpleNamespace(
        read=lambda: left.pop(0) if len(left) > 1 else left[0],
        leave=lambda often: left.append({}),
    )


def test_a_call_at_the_start_of_a_short_run_counts() -> None:
    target = parse_targets("native:/a.so:once", "x")[0]
    once = natives.Native("/a.so:once", target, ("/a.so", "once"))

    def ended() -> bool:
        return False

    start = time.monotonic() - 1, dict[str, int]()
    rates, hot = natives._rates(
        counting_of({once.name: 1}), [once], {once.name: 1e9}, ended, start
    )
    assert 0 < rates[once.name] <= 1
    assert not hot
    # In a program that goes on, it was called before.
    rates, _ = natives._rates(
        counting_of({once.name: 1}), [once], {once.name: 1e9}, ended, None
    )
    assert rates[once.name] == 0


def test_breakpoints_may_cost_a_part_of_the_slowdown() -> None:
    """Those of functions that take more time come first; what costs little may stay."""
    calls = {
        "most": (20_000.0, 1000),
        "too often": (1e6, 500),
        "next": (20_000.0, 1000),
        "too much": (20_000.0, 1000),
        "dear": (5_000.0, 20_000),
        "little": (900.0, 1000),
    }
    left_out = natives.affordable(calls, 0.2)
    assert list(left_out) == ["too often", "too much", "dear"]
    assert left_out["too often"].startswith(
        "called 1,000,000 times a second: 500 ns for each breakpoint are 50.0% of the"
    )
    assert not natives.affordable(calls, 10.0)


def test_a_breakpoint_costs_what_its_instruction_does(library: str) -> None:
    measured = []

    def hit_cost_ns(is_stepped: bool) -> int:
        measured.append(is_stepped)
        return 20_000 if is_stepped else 500

    probes: Any = SimpleNamespace(session=SimpleNamespace(hit_cost_ns=hit_cost_ns))
    costs = natives.HitCosts(probes)
    (offset,) = _core.places_of(library, WORK)
    found = costs.of(library, offset)
    assert found == (20_000 if _core.is_stepped(library, offset) else 500)
    assert costs.of(library, offset) == found and len(measured) == 1
    assert costs.of("/no/such/file", 0) == 20_000
    assert natives.HitCosts(None).of(library, offset) == natives.HIT_NS


@pytest.mark.one_python
@pytest.mark.needs_device
@pytest.mark.any_backend
@pytest.mark.skipif(
    "SPEED_BUMP_GUEST" in os.environ,
    reason="on an emulated CPU, what a CPU does in 0.3 s is no short run",
)
def test_a_function_called_once_in_a_short_run_is_a_candidate(library: str) -> None:
    for _ in range(4):
        said: list[str] = []
        line = [sys.executable, "-c", SHORT, library]
        with Runner(line, show_output=False) as runner:
            found = aim(runner, Progress(), 20.0, said.append, event=said.append)
        if found.native_refused:
            pytest.skip(found.native_refused)
        if f"{library}:once" in found.natives:
            break
    assert f"{library}:once" in found.natives, found.left_out
    assert not found.goes_on
    assert any("it is run again" in text for text in said)


# ------------------------------------------------------------- how long it is looked at


class FakeSampler:
    """Looks until it is told to stop, or once."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.runs = 0

    def keep_stacks(self, keep: bool) -> None:
        pass

    def add_process(self, pid: int) -> None:
        pass

    def run(self, ns: int) -> _core.NativeTimes:
        self.runs += 1
        self.over.wait(60)
        return made(_core.NativeTimes, clock_ns=ns)

    def stacks(self) -> list[object]:
        return []

    def stop(self) -> None:
        self.over.set()


def test_what_is_forgotten_needs_no_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = FakeSampler()
    monkeypatch.setattr(_core, "NativeSampler", lambda: sampler)
    looks = NativeLooks(list, lambda: True, lambda path: True)
    looks.start()
    while not sampler.runs:
        time.sleep(0.001)
    # A program that imports for long: one round after the other is of no use.
    forgot_ns = time.monotonic_ns()
    looks.forget()
    assert looks.since_ns >= forgot_ns
    looks.stop()
    assert sampler.runs == 1


def test_what_follows_an_import_in_the_same_round_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A short run may be over within a round."""
    forgot = threading.Event()
    moments: list[int] = []

    class TwoParts(FakeSampler):
        def run(self, ns: int) -> _core.NativeTimes:
            begin_ns = time.monotonic_ns()
            moments.append(begin_ns)
            forgot.wait(60)
            moments.append(time.monotonic_ns())
            self.over.wait(60)
            return made(_core.NativeTimes, clock_ns=time.monotonic_ns() - begin_ns)

        def stacks(self) -> list[Any]:
            return [
                made(_core.NativeStack, tid=1, time_ns=ns, ns=1000, frames=())
                for ns in moments[:2]
            ]

    sampler = TwoParts()
    monkeypatch.setattr(_core, "NativeSampler", lambda: sampler)
    looks = NativeLooks(list, lambda: True, lambda path: True)
    looks.start()
    while not moments:
        time.sleep(0.001)
    looks.forget()
    forgot.set()
    while len(moments) < 2:
        time.sleep(0.001)
    looks.stop()
    seen = looks.seen({}, lambda key: None)
    assert len(seen.looks) == 1
    assert 0 < seen.clock_ns < time.monotonic_ns() - moments[0]


def test_where_looks_are_refused_no_moments_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise PermissionError(errno.EPERM, "not for you")

    monkeypatch.setattr(_core, "NativeSampler", refuse)
    looks = NativeLooks(list, lambda: True, lambda path: True)
    looks.start()
    looks.stop()
    assert looks.refused == "not for you"
    now_ns = time.monotonic_ns()
    assert looks.since_ns >= now_ns


def test_looks_end_with_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = FakeSampler()
    sampler.over.set()
    monkeypatch.setattr(_core, "NativeSampler", lambda: sampler)
    program = subprocess.Popen(["sleep", "1000"])
    try:
        looks = NativeLooks(
            lambda: [program.pid], lambda: is_alive(program.pid), lambda path: True
        )
        looks.start()
        while not sampler.runs:
            time.sleep(0.001)
    finally:
        program.kill()
    # It was not waited for yet.
    looks._thread.join(60)
    assert not looks._thread.is_alive()
    program.wait()


# --------------------------------------------------------------- programs without Python

BUSY = """
#include <unistd.h>
static volatile unsigned long sum;
__attribute__((noinline)) void piece(void)
{
	for (volatile long i = 0; i < 3000000; i++)
		;
}
__attribute__((noinline)) void page(void)
{
	piece();
	piece();
	sum++;
}
int main(int argc, char **argv)
{
	if (argc > 1)
		for (;;)
			pause();
	for (;;)
		page();
}
"""


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("busy")
    (folder / "busy.c").write_text(BUSY)
    subprocess.run([compiler, "-O1", "-o", "busy", "busy.c"], cwd=folder, check=True)
    return str(folder / "busy")


def seems(pid: int, seconds: float, *others: int, refused: str = "") -> str:
    program: Any = SimpleNamespace(pid=pid, pids={pid, *others})
    return launcher.Launch(60, refused=refused).machine_code(program, seconds)


def test_a_program_that_computes_is_not_waited_for(busy: str) -> None:
    sure_s, later_s = launcher.SURE_S, launcher.NO_PYTHON_S + 0.1
    with subprocess.Popen([busy]) as works, subprocess.Popen([busy, "x"]) as waits:
        sleeps = subprocess.Popen(["sleep", "1000"])
        try:
            while seems(works.pid, sure_s) != busy:
                assert works.poll() is None
                time.sleep(0.05)
            # A launcher waits, or has children; its Python may be yet to come.
            assert seems(works.pid, sure_s, sleeps.pid) == ""
            assert seems(waits.pid, sure_s) == ""
            assert seems(waits.pid, later_s) == ""
            assert seems(works.pid, 0.0) == ""
            # A server of several processes.
            assert seems(waits.pid, sure_s, works.pid) == busy
            assert seems(waits.pid, later_s, works.pid, sleeps.pid) == busy
            # Where it can't be measured, a launcher is all that it can be.
            assert seems(works.pid, sure_s, refused="not for you") == ""
            assert not machine_code.embeds_python(works.pid)
        finally:
            works.kill()
            waits.kill()
            sleeps.kill()
            sleeps.wait()
    # As an interpreter in a library or in the executable.
    assert machine_code.embeds_python(os.getpid())


# ------------------------------------------------------------- a counting run that ends


class SilentProbes(FakeProbes):
    """Nothing is called."""

    open = 0

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        SilentProbes.open += 1
        self.session = SimpleNamespace(hit_cost_ns=lambda is_stepped: 1000)

    def read(self) -> list[SimpleNamespace]:
        return []

    def close(self) -> None:
        super().close()
        SilentProbes.open -= 1


@pytest.mark.parametrize(
    ("program", "status"), [("exit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_a_counting_run_that_fails_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, program: str, status: int
) -> None:
    monkeypatch.setattr(native, "Probes", SilentProbes)
    SilentProbes.open = 0
    wanted = [(("/a.so", "f"), parse_targets("native:/a.so:f", "x")[0])]
    weighed = natives.Weighed({("/a.so", "f"): 0.5}, readable={("/a.so", "f"): "f"})
    begin = time.monotonic()
    with Runner([sys.executable, "-c", program], show_output=False) as runner:
        counting = natives.Counting(natives.Natives(weighed=weighed), wanted)
        with pytest.raises(RankError, match=f"status {status}"):
            # Its imports may take an hour.
            count_whole_run(runner, Progress(), counting, 0.2, 3600.0)
        assert os.listdir(runner.directory) == []
    assert time.monotonic() - begin < 360
    assert SilentProbes.open == 0
    assert not children()


def test_a_counting_run_that_can_not_start_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "Probes", SilentProbes)
    SilentProbes.open = 0
    wanted = [(("/a.so", "f"), parse_targets("native:/a.so:f", "x")[0])]
    with Runner(["/no/such/program"], show_output=False) as runner:
        counting = natives.Counting(natives.Natives(), wanted)
        with pytest.raises((LaunchError, RankError)):
            count_whole_run(runner, Progress(), counting, 0.2, 3600.0)
        assert os.listdir(runner.directory) == []
    assert SilentProbes.open == 0
    assert not children()


@pytest.mark.ranks_native
def test_the_first_line_of_a_program_without_python_is_soon(busy: str) -> None:
    if not native.is_available():
        pytest.skip("native functions can't be delayed here")
    for _ in range(4):
        said: list[str] = []
        with Runner([busy], show_output=False) as runner:
            found = aim(runner, Progress(), 20.0, said.append, event=said.append)
        # Where others have the CPUs it takes longer.
        if found.first_line_s < 5:
            break
    assert found.first_line_s < 5
    assert found.unit_name.endswith((":page", ":piece"))
    assert 0 < found.cpu_share <= 1
    assert found.as_json()["first_line_s"] == found.first_line_s


@pytest.mark.ranks_native
def test_a_running_program_without_python_is_looked_at(busy: str) -> None:
    if not native.is_available():
        pytest.skip("native functions can't be delayed here")
    with subprocess.Popen([busy]) as works, subprocess.Popen([busy, "x"]) as waits:
        try:
            said = [
                speed_bump("rank", "--budget", "3s", "--json", "-", *words)
                for words in (
                    ("--pid", str(works.pid)),
                    ("--pid", str(waits.pid)),
                    # What was named need not be what takes time.
                    ("--pid", str(works.pid), "--native", "libc.so.6:usleep"),
                    ("--pid", f"{works.pid},{waits.pid}", "--native", f"{busy}:page"),
                )
            ]
            assert works.poll() is None and waits.poll() is None
        finally:
            works.kill()
            waits.kill()
    found = json.loads(said[0].stdout)
    assert found["unit"] in (
        f"call of native:{busy}:page",
        f"call of native:{busy}:piece",
    )
    (candidate,) = found["findings"]
    assert candidate["target"] in (f"{busy}:page", f"{busy}:piece")
    assert said[1].returncode == 1
    assert f"no function of {busy} was seen to take time" in said[1].stderr
    assert "usleep was never called" in said[2].stderr
    assert f"process {waits.pid} is not below {works.pid}" in said[3].stderr


def test_a_supervisor_of_python_is_not_what_takes_time() -> None:
    sleeps = f"'{sys.executable}' -c 'import time; time.sleep(99)' & wait"
    with subprocess.Popen(["sh", "-c", sleeps], start_new_session=True) as shell:
        try:
            end = time.monotonic() + 60
            while len(tree(shell.pid)) < 2 and time.monotonic() < end:
                time.sleep(0.02)
            with (
                AttachedRunner([], pids=[shell.pid]) as runner,
                pytest.raises(RankError, match=f"use --pid-tree {shell.pid}"),
            ):
                aim(runner, Progress(), 20.0, lambda _: None)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        # Of scikit-learn and SciPy.
        ("pw_7sklearn_9neighbors_8_kd_tree_15NeighborsHeap32_5get_arrays",
         "NeighborsHeap32.get_arrays [wrapper]"),
        ("pf_7sklearn_9neighbors_8_kd_tree_15NeighborsHeap32_4get_arrays",
         "NeighborsHeap32.get_arrays [def]"),
        ("f_7sklearn_9neighbors_8_kd_tree__simultaneous_sort", "_simultaneous_sort"),
        ("pw_5scipy_8_kd_tree_1065__pyx_fuse_0ncfdtri", "ncfdtri [wrapper]"),
        ("pw_4test_1f", "test.f [wrapper]"),
    ],
)  # fmt: skip
def test_names_of_cython_are_readable(symbol: str, name: str) -> None:
    file = "_kd_tree.cpython-313-x86_64-linux-gnu.so"
    assert short(f"/opt/{file}:__pyx_{symbol}") == f"{file}:{name}"
    assert (
        short(f"/opt/{file}:__pyx_tp_new_7sklearn_A") == f"{file}:__pyx_tp_new_7sklearn_A"
    )


def test_symbols_that_a_stripped_executable_exports_are_not_all(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("there is no C compiler")
    (tmp_path / "busy.c").write_text(BUSY)
    for option in ("-rdynamic", "-s"):
        subprocess.run(
            [compiler, "-O1", option, "-o", option, "busy.c"], cwd=tmp_path, check=True
        )
    assert machine_code._has_symbols(str(tmp_path / "-rdynamic"))
    assert not machine_code._has_symbols(str(tmp_path / "-s"))
    assert not machine_code._has_symbols("/no/such/file")


@pytest.mark.ranks_native
def test_of_a_program_without_symbols_the_libraries_are_looked_at(tmp_path: Path) -> None:
    if not native.is_available():
        pytest.skip("native functions can't be delayed here")
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("there is no C compiler")
    code, _, main = BUSY.partition("int main")
    (tmp_path / "pages.c").write_text(code)
    (tmp_path / "main.c").write_text(
        f"#include <unistd.h>\nvoid page(void);\nint main{main}"
    )
    for arguments in (
        ("-shared", "-fPIC", "-o", "libpages.so", "pages.c"),
        ("-s", "-o", "stripped", "main.c", "-L.", "-lpages", "-Wl,-rpath,$ORIGIN"),
    ):
        subprocess.run([compiler, "-O1", *arguments], cwd=tmp_path, check=True)
    with Runner([str(tmp_path / "stripped")], show_output=False) as runner:
        found = aim(runner, Progress(), 20.0, lambda _: None)
    library = tmp_path / "libpages.so"
    assert found.unit_name in (f"{library}:page", f"{library}:piece")
    assert found.candidates.keys() <= {f"{library}:page", f"{library}:piece"}
    assert [target.left for target in found.targets()] == [str(library)]


def test_demangled_names_are_those_at_the_offsets(library: str) -> None:
    (work,) = _core.places_of(library, WORK)
    (piece,) = _core.places_of(library, "piece")
    found = _core.readable_names(library, (piece, 0, work))
    assert found in (["piece", None, "app::work(int)"], ["piece", None, WORK])
    assert _core.readable_names(library, ()) == []
    with pytest.raises(FileNotFoundError, match="no_such_file"):
        _core.readable_names("/no_such_file", ())
    with pytest.raises(TypeError):
        _core.readable_names(library, ("piece",))


def open_files() -> set[str]:
    return {os.readlink(fd.path) for fd in os.scandir("/proc/self/fd") if fd.is_file()}


def test_more_files_are_kept_than_a_program_has(tmp_path: Path, library: str) -> None:
    copies = [str(tmp_path / f"lib{n}.so") for n in range(20)]
    for copy in copies:
        shutil.copy(library, copy)
    _core.keep_files(True)
    try:
        for copy in copies:
            _core.places_of(copy, "piece")
        assert set(copies) <= open_files()
    finally:
        _core.keep_files(False)
    assert not set(copies) & open_files()


def many_functions(path: Path, count: int) -> str:
    """A library with so many functions."""
    source = path.with_suffix(".c")
    source.write_text("".join(f"void f{n}(void) {{ }}\n" for n in range(count)))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    return str(path)


def test_a_file_over_the_limit_drives_no_others_out(tmp_path: Path, library: str) -> None:
    small = many_functions(tmp_path / "small.so", 10)
    large = [many_functions(tmp_path / f"large{n}.so", 400) for n in range(2)]
    _core.keep_files(True, 200)
    try:
        for path in (small, large[0]):
            _core.places_of(path, "f0")
        # To read it again for each of its functions would take long, too.
        assert {small, large[0]} <= open_files()
        _core.places_of(large[1], "f0")
        assert {small, large[0], large[1]} & open_files() == {small, large[1]}
        # The limit is that of all the others.
        others = [many_functions(tmp_path / f"other{n}.so", 60) for n in range(4)]
        for path in others:
            _core.places_of(path, "f0")
        kept = {small, *others, *large} & open_files()
        assert kept & set(large) == {large[1]}
        assert small not in kept
        assert others[3] in kept
        assert others[0] not in kept
    finally:
        _core.keep_files(False)
