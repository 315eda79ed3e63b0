# SPDX-License-Identifier: MIT
"""Native functions of Python programs, and of their threads, found by looking."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from ranking import Ranked
from speed_bump import _core, native
from speed_bump.config import parse_targets
from speed_bump.experiment.account import MACHINE, Frame, account, asked_name
from speed_bump.experiment.aim import Aim, aim, natives
from speed_bump.experiment.program.native_looks import NativeLook, NativeSeen, Place
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner
from speed_bump.experiment.program.stacks import Stack
from speed_bump.experiment.program.workload import Workload
from speed_bump.experiment.show import found as showing
from speed_bump.experiment.symbols import base, short

# What a C++ compiler makes of app::work(int), app::often(int) and app::pool(void*).
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
	for (volatile long i = 0; i < 300000; i++)
		;
}}
void *pool(void *unused)
{{
	for (;;) {{
		piece();
		usleep(2000);
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


def look(library: str) -> Aim:
    said: list[str] = []
    with Runner(command(library), show_output=False) as runner:
        return aim(runner, Progress(), 20.0, said.append)


@pytest.mark.one_python
@pytest.mark.needs_device
def test_native_functions_are_candidates_beside_those_of_python(library: str) -> None:
    for _ in range(4):
        found = look(library)
        if found.native_refused:
            pytest.skip(found.native_refused)
        # Of C++ too, and of a thread that runs no Python.
        wanted = {f"{library}:{WORK}", f"{library}:piece"}
        if wanted <= set(found.candidates) and len(found.left_out) > 1:
            break
    assert wanted <= set(found.candidates), found.left_out
    assert found.shares.own[f"{library}:{WORK}"] > 0.05
    assert "__main__:unit" in found.candidates
    assert all(name.startswith("/") for name in found.natives)
    # What can be asked for, and a name that can be read.
    target = found.natives[f"{library}:{WORK}"]
    assert target in found.targets()
    assert (target.left, target.right) == (library, WORK)
    assert short(f"{library}:{WORK}") == "libapp.so:app::work(int)"
    assert f"{library}:{WORK}  " in showing.table(found)
    assert "app::work" in showing.table(found)
    # Nothing of the interpreter's, nor of what everything calls.
    assert not any("python" in n or "/libc" in n for n in found.natives)
    # A breakpoint costs more than the bound there; and one never entered again.
    reasons = {short(name): why for name, why in found.left_out.items()}
    assert "a second" in reasons["libapp.so:app::often(int)"]
    # Its callee is nearly all of it, if earlier samples have shown that.
    same = "nearly all of libapp.so:piece: the same question"
    pool = reasons["libapp.so:app::pool(void*)"]
    assert "not called" in pool or pool == same
    said = "\n".join(showing.lines(found))
    assert "of them native" in said
    assert "left out: " in said


@pytest.mark.one_python
@pytest.mark.needs_device
def test_a_native_function_that_is_the_unit_is_no_candidate(library: str) -> None:
    # By another name than that of its symbol.
    unit = parse_targets(f"native:{library}:app::work", "unit")
    name = f"{library}:{WORK}"
    for _ in range(4):
        said: list[str] = []
        with Runner(command(library), show_output=False) as runner:
            found = aim(runner, Progress(targets=tuple(unit)), 20.0, said.append)
        if found.native_refused:
            pytest.skip(found.native_refused)
        assert name not in found.candidates
        # Where looks are few, one may have none there.
        if name in found.left_out:
            break
    assert found.left_out[name] == "its calls are the units of work"


@pytest.mark.one_python
@pytest.mark.needs_device
def test_where_no_probe_can_be_had_that_is_said(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise native.NativeError(1, "not for you")

    monkeypatch.setattr(native, "Probes", refuse)
    found = look(library)
    assert "__main__:unit" in found.candidates
    assert not found.natives
    assert "no candidates: not for you" in "\n".join(showing.lines(found))


@pytest.mark.ranks_native
def test_they_are_asked_with_no_word_about_the_program(
    tmp_path: Path, library: str
) -> None:
    def fits(ranked: Any) -> bool:
        # A breakpoint for one function more, or one less, is no other answer.
        work = ranked.findings.get(WORK)
        return bool(work) and (
            work["verdict"] == "matters" or (ranked.is_last and work["reason"])
        )

    ranked = Ranked(tmp_path, [], command(library), fits=fits, budgets=(8, 25))
    assert ranked.findings[WORK]["calls_per_unit"] == pytest.approx(1, abs=0.1)
    if ranked.findings[WORK]["verdict"] == "matters":
        assert "libapp.so:app::work(int)" in ranked.done.stdout
    # Where the thread is that runs no Python, and what it waits in.
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
        # On a CPU it is on its way to sleep, or back.
        (stack("m:get", "_queue:SimpleQueue.get"), 100, (DEFLATE, PYTHON)),
        (None, 50, (SLOW, Place("/lib/libgomp.so.1", "GOMP_parallel", "GOMP_parallel"))),
        (None, 50, (COPY, Place("/b.so", "blas_thread_server", "blas_thread_server"))),
    )
    seen.add(look_at((pack, 400, (SLOW, PYTHON)), sleeps=True))
    seen.clock_ns = 1000
    found = natives.weigh(seen)
    keys = {place.symbol: (place.path, place.symbol) for place in (DEFLATE, SLOW, ZLIB)}
    # Time in what everything calls is that of its caller; imports and sleep do not count.
    assert found.total[keys["deflate"]] == pytest.approx(0.6)
    assert found.own[keys["deflate"]] == pytest.approx(0.4)
    assert found.own[keys["longest_match"]] == pytest.approx(0.25)
    assert keys["zlib_compress"] not in found.own
    assert not {"memcpy", "_Znwm", "blas_thread_server"} & {k[1] for k in found.total}


def test_what_is_below_a_call_that_waits_is_no_candidate() -> None:
    acquire = Place("/lib/_multiprocessing.so", "acquire_impl", "acquire_impl")
    waits = stack("m:put", "_multiprocessing:SemLock.acquire")
    seen = look_at(
        # A late sample of a thread about to sleep: its caller was sampled before it.
        (stack("m:put", leaf=False), 50, (acquire, PYTHON)),
        (stack("__main__:unit", leaf=False), 50, (DEFLATE, PYTHON)),
    )
    seen.add(look_at((waits, 400, (acquire, PYTHON)), sleeps=True))
    assert [key[1] for key in natives.weigh(seen).total] == ["deflate"]


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
    # A C function by its Python name is the same question, and takes no breakpoint.
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
        # Two may read one file at a time.
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
            while not program.stacks(50_000_000).samples:
                assert program.is_running()
            program.begin_native_looks(natives.is_asked_of)
            looks = program._native_looks_of
            assert looks
            # As while it imports: discarded repeatedly.
            for _ in range(30):
                since = looks.since_ns
                program.stacks(50_000_000)
                program.forget_native_looks()
            if looks.refused:
                pytest.skip(looks.refused)
            moments = program._looking.note_moments(False)
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
