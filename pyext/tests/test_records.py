# SPDX-License-Identifier: MIT
"""What goes through the extension has names: records, and enumerations."""

from __future__ import annotations

import ast
import gc
import os
import pickle
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
import speed_bump
from conftest import Run
from records import RECORDS, made
from speed_bump import Config, _core, kinds

HERE = __name__
PACKAGE = Path(speed_bump.__file__).parent
STUB = ast.parse((PACKAGE / "_core.pyi").read_text(encoding="utf-8"))
HEADERS = Path(__file__).resolve().parents[2] / "libsb"


def plain() -> None:
    pass


def compute(stop: threading.Event) -> None:
    while not stop.is_set():
        sum(range(1_000))


def types() -> dict[str, Any]:
    return {name: getattr(_core, name) for name in RECORDS}


def classes() -> dict[str, ast.ClassDef]:
    return {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


# ------------------------------------------------------------------------- types


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_has_the_fields_that_the_stub_says(name: str) -> None:
    node, kind = classes()[name], getattr(_core, name)
    fields = [
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    ]
    assert kind.__match_args__ == tuple(fields)
    # Not as a tuple: so mypy refuses numbers, and unpacking.
    assert not node.bases
    assert kind.__doc__
    for field in fields:
        assert getattr(kind, field).__doc__, field


def test_the_stub_has_no_other_records() -> None:
    records = {
        name
        for name, node in classes().items()
        if all(isinstance(item, ast.AnnAssign) for item in node.body)
    }
    assert records == set(RECORDS)
    with pytest.raises(AttributeError, match="'Nothing'"):
        _core.Nothing  # noqa: B018


def test_no_function_returns_a_tuple_that_should_be_a_record() -> None:
    """Pairs of a target and why it is refused, and a layout that C alone reads."""
    tuples = {
        f"{node.name}: {ast.unparse(node.returns)}"
        for node in ast.walk(STUB)
        if isinstance(node, ast.FunctionDef) and node.returns
        if "tuple" in ast.unparse(node.returns)
    }
    assert tuples == {
        "refused: list[tuple[str, str]]",
        "layout: tuple[int, ...]",
    }


def test_a_record_does_not_change() -> None:
    for kind in types().values():
        # CPython would read behind its records.
        with pytest.raises(TypeError, match="immutable"):
            kind.n_fields = 1000
        first = kind.__match_args__[0]
        with pytest.raises(AttributeError):
            setattr(made(kind), first, 1)


def test_a_record_can_be_pickled() -> None:
    for kind in types().values():
        record = made(kind)
        assert type(pickle.loads(pickle.dumps(record))) is kind
        assert pickle.loads(pickle.dumps(record)) == record


def test_types_outlive_a_copy_of_the_module(python: Run) -> None:
    program = """
import gc, sys, speed_bump
from speed_bump import Config, _core
class Holder: pass
def work(): pass
speed_bump.install(Config(["__main__:work"], delay_ns=0))
work()
(site,) = _core.state().table.read()
kind = id(_core.Site)
# Rubbish that has a record in it, with all that might hold its type.
holder = Holder()
holder.site, holder.itself = site, holder
for name in list(sys.modules):
    if name.split(".")[0] == "speed_bump": del sys.modules[name]
del speed_bump, Config, _core, site, holder
for _ in range(3): gc.collect()
from speed_bump import _core, stats
assert id(_core.Site) == kind
(only,) = stats().functions
print(only.name, only.calls)
"""
    done = python(program)
    assert (done.stdout, done.stderr) == ("__main__:work 1\n", ""), done.stderr


def test_the_use_of_a_type_leaves_no_reference_to_it() -> None:
    """Each use holds one: without a GIL, the interpreter may end meanwhile."""
    before = sys.getrefcount(_core.NativeTarget)
    for _ in range(100):
        _core.native_target("/a.so", "f")
        with pytest.raises(TypeError):
            _core.native_target("/a.so", "f", nothing=1)  # type: ignore[call-arg]
        assert _core.NativeTarget
    gc.collect()
    assert sys.getrefcount(_core.NativeTarget) <= before + 5


def test_threads_that_need_a_type_first_at_once(python: Run) -> None:
    """There is one of each name: what one of them made the others take."""
    program = f"""
import threading
from speed_bump import _core
COUNT, NAMES = 6, {RECORDS!r}
turn = threading.Barrier(COUNT)
seen = [[] for _ in range(COUNT)]
def work(mine):
    for name in NAMES:
        turn.wait()
        mine.append(getattr(_core, name))
threads = [threading.Thread(target=work, args=(mine,)) for mine in seen]
for thread in threads: thread.start()
for thread in threads: thread.join()
print([len(set(kinds)) for kinds in zip(*seen)] == [1] * len(NAMES))
"""
    done = python(program)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_no_type_is_made_before_it_is_needed(python: Run) -> None:
    """To make all would lengthen the start of each program; so would an enumeration."""
    program = """
import sys
before = set(sys.modules)
import speed_bump
def made():
    return sorted(t.__name__ for t in tuple.__subclasses__()
                  if t.__module__ == "speed_bump._core")
print(made())
speed_bump.install(speed_bump.Config(["json:dumps"], delay_ns=0))
print(made())
print({"collections", "dataclasses", "enum", "typing"} & (set(sys.modules) - before))
"""
    done = python(program)
    assert done.stderr == ""
    # Where nothing is installed, defaults are an entry too.
    assert done.stdout == "['Entry']\n['Entry', 'ParsedTarget']\nset()\n"


# ------------------------------------------------------------------------ values


def test_the_counts_of_a_function() -> None:
    table = _core.Table(label=None)
    policy = _core.policy(number=5, delay_ns=2_000, every=2)
    _core.start(table, f"{HERE}:plain\n".encode(), [policy], 0)
    for _ in range(5):
        plain()
    _core.stop()
    table.progress("rows", 7)
    function, rows = sorted(table.read(), key=lambda site: site.kind)
    assert function.kind == kinds.SiteKind.FUNCTION
    assert (function.name, function.pid) == (f"{HERE}:plain", os.getpid())
    assert (function.target, function.delay_ns) == (5, 2_000)
    assert (function.calls, function.delayed) == (5, 2)
    assert function.requested_ns == 4_000
    assert function.delivered_ns >= 4_000
    assert rows.kind == kinds.SiteKind.PROGRESS
    assert (rows.name, rows.calls, rows.delayed) == ("rows", 7, 0)
    assert "delivered_ns=" in repr(function)


def test_a_parsed_target() -> None:
    text = b"a.*:b delay=5us every=3 start=1s duration=2s resume=1 thread=w*\n!c:d\n"
    target, excluded = _core.parse_targets(text, "here")
    assert target.kind == _core.SB_SPEC_KIND_PYTHON
    assert (target.left, target.right, target.line) == ("a.*", "b", 1)
    assert (target.delay_ns, target.delay_ppm, target.every) == (5_000, 0, 3)
    assert (target.start_ns, target.duration_ns) == (10**9, 2 * 10**9)
    assert (target.resume, target.pid, target.thread) == (1, None, "w*")
    assert (target.mode, target.dist, target.sigma) == ("spin", "fixed", 0)
    assert excluded.kind == _core.SB_SPEC_KIND_PYTHON_EXCLUDE
    assert (excluded.line, excluded.delay_ns, excluded.thread) == (2, None, None)
    (part,) = _core.parse_targets(b"a:b delay=5% dist=lognormal(0.5)", "here")
    assert (part.delay_ns, part.delay_ppm) == (None, 50_000)
    assert (part.dist, part.sigma) == ("lognormal", 0.5)


def test_an_entry_and_its_defaults() -> None:
    """What an entry does not say the defaults do, each in its own place."""
    table = _core.Table(label=None)
    said = _core.entry(
        f"{HERE}:plain", f"{HERE}:plain\n".encode(), delay_ns=3_000, every=2
    )
    assert (said.text, said.line) == (f"{HERE}:plain", f"{HERE}:plain\n".encode())
    assert (said.delay_ns, said.every) == (3_000, 2)
    assert (said.start_ns, said.end_ns, said.resume) == (None, None, False)
    silent = _core.entry(f"{HERE}:types", f"{HERE}:types\n".encode())
    config = Config()
    _core.install(
        config,
        table,
        (said, silent),
        delay_ns=1_000,
        every=4,
        start_ns=1,
        end_ns=0,
    )
    state = _core.state()
    assert (state.config, state.table) == (config, table)
    assert state.numbers == {said.text: 0, silent.text: 1}
    assert (state.probes, state.baseline) == (None, None)
    for _ in range(8):
        plain()
        types()
    speed_bump.uninstall()
    sites = {site.name.rpartition(":")[2]: site for site in table.read()}
    assert (sites["plain"].delayed, sites["plain"].requested_ns) == (4, 12_000)
    assert (sites["types"].delayed, sites["types"].requested_ns) == (2, 2_000)
    assert (sites["plain"].target, sites["types"].target) == (0, 1)
    assert _core.state().config is None


@pytest.mark.parametrize(
    ("field", "outside"), [("start_ns", 2**62), ("end_ns", 1)], ids=["later", "before"]
)
def test_the_window_of_an_entry(field: str, outside: int) -> None:
    entry = _core.entry(f"{HERE}:plain", f"{HERE}:plain\n".encode(), delay_ns=1_000)
    for window, delayed in (({}, 1), ({field: outside}, 0)):
        table = _core.Table(label=None)
        defaults = {"start_ns": 0, "end_ns": 0, **window}
        _core.install(Config(), table, (entry,), delay_ns=0, every=1, **defaults)
        plain()
        speed_bump.uninstall()
        assert [site.delayed for site in table.read()] == [delayed]


def test_what_is_no_record_is_refused() -> None:
    table = _core.Table(label=None)
    others: Any = (f"{HERE}:plain", b"x\n", None, None, None, None, False)
    with pytest.raises(TypeError, match="not an Entry"):
        _core.install(
            Config(), table, (others,), delay_ns=0, every=1, start_ns=0, end_ns=0
        )
    with pytest.raises(TypeError, match="not a Policy"):
        policy: Any = (0, 0, 1, 0, 0, False)
        _core.start(table, b"a:b\n", [policy], 0)
    assert not speed_bump.is_installed()


def test_a_native_target() -> None:
    target = _core.native_target(
        "/lib/x.so",
        "f",
        delay_ns=1,
        every=2,
        start_ns=3,
        duration_ns=4,
        sleeps=True,
        delay_ppm=5,
        record=_core.SB_RECORD_EVENTS,
    )
    assert (target.delay_ppm, target.record) == (5, 2)
    assert (target.path, target.symbol) == ("/lib/x.so", "f")
    assert (target.delay_ns, target.every) == (1, 2)
    assert (target.start_ns, target.duration_ns, target.sleeps) == (3, 4, True)
    least = _core.native_target("/lib/x.so", "f")
    assert (least.delay_ns, least.every, least.duration_ns) == (0, 1, 0)
    assert least.record == 0


def test_durations() -> None:
    table = _core.Table(label=None, latencies=["mark"], rings=1)
    speed_bump.control._install(Config([f"{HERE}:plain"], delay_ns=0), table)
    speed_bump.begin("mark", 1)
    speed_bump.end("mark", 1)
    speed_bump.begin("mark", 2)
    speed_bump.end("mark", 3)
    speed_bump.uninstall()
    (mark,) = table.latencies()
    assert (mark.name, mark.kind) == ("mark", kinds.LatencyKind.MARKS)
    assert (mark.begun, mark.begins, mark.unbegun) == (True, 2, 1)
    assert 0 < mark.max_ns == mark.sum_ns
    assert sum(mark.buckets) == 1
    events = table.latency_events(0, 0, False)
    assert (events.at, events.behind, events.lost) == (1, 0, 0)
    assert len(events.data) == 24


def test_a_plan_and_its_ranks() -> None:
    plan = _core.Plan(_core.Table(label=None, planned=True))
    plan.add_function("a:b")
    plan.report(3)
    over = plan.read()
    assert (over.slots, over.calls, over.delivered_ns) == (b"", b"", b"")
    assert plan.ranks() == []
    plan.set(0, None, [])
    plan.set(0, 3, [(1_000, 1)])
    with pytest.raises(OSError, match="out of range"):
        plan.set(0, 2**20, [])
    with pytest.raises(OverflowError):
        plan.set(0, -1, [])  # as no arm was once said
    rank = _core.launched()
    assert (rank.pid, rank.units, rank.number) == (os.getpid(), 0, None)
    assert isinstance(rank.launcher, str)


def resting(lock: threading.Lock) -> None:
    lock.acquire()


def test_stacks() -> None:
    stacks = _core.Stacks(_core.Table(label=None))
    assert stacks.add(os.getpid(), _core.layout())
    lock = threading.Lock()
    lock.acquire()
    thread = threading.Thread(target=resting, args=(lock,))
    thread.start()
    time.sleep(0.05)
    totals = stacks.run(50_000_000, 1_000_000)
    lock.release()
    thread.join()
    assert totals.ticks > 0
    assert totals.cpu_ns > 0
    taken, targets, codes = stacks.take(), stacks.targets(), stacks.codes()
    assert len(targets) == len(codes)
    assert len(taken.moments) == sum(stack.looks for stack in taken.stacks)
    (stack,) = (s for s in taken.stacks if s.tid == thread.native_id)
    assert (stack.pid, stack.wait) == (os.getpid(), "lock")
    assert 0 < stack.looks <= totals.ticks
    inner, target = codes[stack.codes[0]], targets[stack.codes[0]]
    code = resting.__code__
    assert inner.qualname == "resting"
    assert (inner.pid, inner.file) == (os.getpid(), code.co_filename)
    assert (inner.first_line, inner.lines) == (code.co_firstlineno, code.co_linetable)
    assert inner.has_columns == (sys.version_info >= (3, 11))
    assert (inner.address, inner.target) == (target.address, target.name)
    assert (target.address, target.name) == (id(code), None)
    (seen,) = (t for t in stacks.threads() if t.tid == thread.native_id)
    assert seen.pid == os.getpid()
    assert 0 < seen.looks <= totals.ticks
    assert seen.run_ns + seen.wait_ns >= 0


def spinning() -> None:
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end:
        pass


def crowded() -> None:
    spinning()


def alone() -> None:
    spinning()


def test_times_in_which_a_look_takes_long_are_seen_as_often() -> None:
    """As many samples with 30 other threads as without them, which takes as long."""
    stop = threading.Event()

    def alternating() -> None:
        while not stop.is_set():
            over = threading.Event()
            others = [threading.Thread(target=over.wait) for _ in range(30)]
            for other in others:
                other.start()
            crowded()
            over.set()
            for other in others:
                other.join()
            alone()

    stacks = _core.Stacks(_core.Table(label=None))
    assert stacks.add(os.getpid(), _core.layout())
    thread = threading.Thread(target=alternating)
    thread.start()
    try:
        stacks.run(3_000_000_000, 1_000_000)
    finally:
        stop.set()
        thread.join()
    seen: Counter[str] = Counter()
    codes = stacks.codes()
    for stack in stacks.take().stacks:
        names = {codes[index].qualname for index in stack.codes}
        for name in names & {"crowded", "alone"}:
            seen[name] += stack.looks
    assert seen["crowded"] == pytest.approx(seen["alone"], rel=0.5), seen


def test_native_stacks_and_times() -> None:
    try:
        sampler = _core.NativeSampler()
    except OSError as error:
        pytest.skip(str(error))
    sampler.keep_stacks(True)
    stop = threading.Event()
    thread = threading.Thread(target=compute, args=[stop])
    thread.start()
    stacks = 0
    try:
        # On a crowded machine the thread may not run for the first 50 ms.
        for _ in range(100):
            sampler.add_process(os.getpid())  # for the next run only
            times = sampler.run(50_000_000)
            stacks += times.stacks
            if stacks > 0:
                break
    except OSError as error:
        pytest.skip(str(error))
    finally:
        stop.set()
        thread.join()
    assert times.own == []
    assert times.clock_ns >= 50_000_000
    assert stacks > 0
    assert times.off_ns + times.cpu_ns > 0
    for stack in sampler.stacks():
        assert stack.tid > 0
        assert stack.time_ns > 0
        for path, offset in stack.frames:
            assert isinstance(path, str)
            assert offset >= 0


def test_all_that_is_slowed() -> None:
    speed_bump.install(Config([f"{HERE}:plain"], delay_ns=1_000))
    plain()
    control = _core.Control()
    (process,) = (p for p in control.processes() if p.pid == os.getpid())
    assert process.label == "program"
    assert process.group
    (target,) = (t for t in control.targets() if t.name == f"{HERE}:plain")
    assert target.kind == kinds.ControlKind.FUNCTION
    assert (target.pid, target.label) == (os.getpid(), "program")
    assert (target.enabled, target.is_ruled) == (True, False)
    assert (target.calls, target.delayed) == (1, 1)
    assert target.delay_ns <= target.delivered_ns


# ------------------------------------------------------------------ enumerations


def enumerators(path: str, name: str) -> dict[str, int]:
    """Of an enum of libsb, with their numbers."""
    text = (HEADERS / path).read_text(encoding="utf-8")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    (body,) = re.findall(rf"enum {name} \{{(.*?)\}};", text, re.S)
    found: dict[str, int] = {}
    for item in body.split(","):
        if item.strip():
            word, _, value = (part.strip() for part in item.partition("="))
            found[word] = int(value) if value else max(found.values()) + 1
    return found


@pytest.mark.parametrize(
    ("kind", "path", "name"),
    [
        (kinds.SiteKind, "include/libsb-provisional.h", "sb_site_kind"),
        (kinds.ControlKind, "include/libsb-provisional.h", "sb_control_kind"),
        (kinds.LatencyKind, "src/site/latency.h", "latency_kind"),
    ],
)
def test_an_enumeration_is_that_of_c(kind: type[IntEnum], path: str, name: str) -> None:
    """All of it: what C has more of is missing in Python."""
    found = enumerators(path, name)
    # Of no name that is recorded.
    internal = {"LATENCY_FREE", "LATENCY_TAKEN"}
    assert {m.name: m.value for m in kind} == {
        re.sub("^(SB_SITE|SB_CONTROL|LATENCY)_", "", word): value
        for word, value in found.items()
        if word not in internal
    }


@pytest.mark.parametrize(
    ("field", "name"), [("mode", "sb_delay_mode"), ("dist", "sb_delay_dist")]
)
def test_what_is_an_enumeration_in_c_is_a_word_in_python(field: str, name: str) -> None:
    words = [w.rpartition("_")[2].lower() for w in enumerators("include/libsb.h", name)]
    assert len(words) >= 3
    for word in words:
        option = "lognormal(0.5)" if word == "lognormal" else word
        (target,) = _core.parse_targets(f"a:b {field}={option}".encode(), "here")
        assert getattr(target, field) == word


# ---------------------------------------------------------------------- by name


def makers() -> set[str]:
    """What returns records, or lists of them."""
    return {
        node.name
        for node in ast.walk(STUB)
        if isinstance(node, ast.FunctionDef) and node.returns
        if set(re.findall(r"\w+", ast.unparse(node.returns))) & set(RECORDS)
    }


def by_position(tree: ast.AST, names: set[str]) -> Iterator[int]:
    """Lines that take a record apart by position, right where it is made."""

    def makes(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in names
        )

    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and makes(node.value):
            yield node.lineno
        if isinstance(node, ast.For | ast.comprehension):
            if makes(node.iter) and isinstance(node.target, ast.Tuple):
                yield node.iter.lineno
        elif isinstance(node, ast.Assign) and makes(node.value):
            yield from (t.lineno for t in node.targets if isinstance(t, ast.Tuple))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("name = _core.state()[0]", True),
        ("for kind, name, *_ in self._table.read(): pass", True),
        ("names = [name for kind, name in table.read()]", True),
        ("slots, calls, delivered = plan.read()", True),
        ("state = _core.state()", False),
        ("for site in table.read(): site.name", False),
    ],
)
def test_what_takes_a_record_apart_is_found(text: str, found: bool) -> None:
    assert bool(list(by_position(ast.parse(text), makers()))) == found


def test_nothing_takes_a_record_apart_by_position() -> None:
    """Where it is made. The rest mypy sees: it checks the package by the stub."""
    names = makers()
    assert {"read", "state", "ranks", "parse_targets"} <= names
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in PACKAGE.rglob("*.py")
        for line in by_position(ast.parse(path.read_text(encoding="utf-8")), names)
    ]
    assert found == []
