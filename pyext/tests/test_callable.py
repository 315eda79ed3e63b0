# SPDX-License-Identifier: MIT
"""C callables as targets, by their Python names: a table of kinds, and special cases.

The table has a line for each kind, and the special cases use its helpers: hence
the length.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import speed_bump
from conftest import Run
from speed_bump import Config, _core

CALLS = 10_000
DELAY_NS = 1_000

# pattern, preparation, and an expression with one call of the target
KINDS: list[tuple[str, str, str]] = [
    # functions of modules, of every calling convention
    ("zlib:compress", "import zlib", 'zlib.compress(b"abc")'),
    ("zlib:crc32", "from zlib import crc32", 'crc32(b"abc")'),
    (
        "_json:encode_basestring_ascii",
        "import _json as j",
        'j.encode_basestring_ascii("a")',
    ),
    ("time:sleep", "import time", "time.sleep(0)"),
    ("time:monotonic", "import time", "time.monotonic()"),
    ("_pickle:dumps", "import _pickle", "_pickle.dumps({})"),
    (
        "_functools:reduce",
        "import functools, operator",
        "functools.reduce(operator.add, (1, 2))",
    ),
    ("math:hypot", "import math", "math.hypot(3.0, 4.0)"),
    ("itertools:tee", "import itertools", "itertools.tee(())"),
    # builtins
    ("builtins:sorted", "", "sorted((3, 1))"),
    ("builtins:sum", "", "sum((1, 2))"),
    ("builtins:abs", "", "abs(-1)"),
    ("builtins:print", "import io; s = io.StringIO()", "print(1, file=s)"),
    ("builtins:len", "", "len((1, 2))"),
    ("builtins:isinstance", "", "isinstance(1, int)"),
    ("builtins:any", "", "any(x for x in (0, 1))"),
    ("builtins:all", "", "all([1, 1])"),
    # methods of static types, of heap types, of classes
    ("builtins:str.join", "", '"-".join(("a", "b"))'),
    ("builtins:str.upper", "t = 'a'", "t.upper()"),
    ("builtins:list.sort", "t = [2, 1]", "t.sort(reverse=True)"),
    ("builtins:dict.get", "t = {}", "t.get(1)"),
    ("builtins:dict.fromkeys", "", "dict.fromkeys(())"),
    ("builtins:bytes.maketrans", "", 'bytes.maketrans(b"a", b"b")'),
    ("builtins:int.bit_length", "a = 10", "a.bit_length()"),
    (
        "_socket:socket.recv",
        "import socket; a, b = socket.socketpair(); b.send(bytes(99999))",
        "a.recv(1)",
    ),
    (
        "_socket:socket.getsockname",
        "import socket; s = socket.socket(socket.AF_UNIX)",
        "s.getsockname()",
    ),
    ("_struct:Struct.pack", "import struct; s = struct.Struct('i')", "s.pack(1)"),
    ("re:Pattern.match", "import re; p = re.compile('a')", 'p.match("a")'),
    (
        "_collections:deque.append",
        "import collections; d = collections.deque(maxlen=3)",
        "d.append(1)",
    ),
    ("_random:Random.random", "import random; r = random.Random()", "r.random()"),
    ("_random:Random.random", "import random", "random.random()"),
    ("_random:Random.random", "import random; f = random.Random().random", "f()"),
    ("random:random", "import random", "random.random()"),
    ("datetime:datetime.now", "import datetime", "datetime.datetime.now()"),
    ("_hashlib:HASH.update", "import hashlib; h = hashlib.md5()", 'h.update(b"a")'),
    # getters, operators
    ("datetime:datetime.year", "import datetime; d = datetime.datetime.now()", "d.year"),
    ("datetime:timedelta.__mul__", "import datetime; d = datetime.timedelta(1)", "d * 2"),
    ("datetime:timedelta.__mul__", "import datetime; d = datetime.timedelta(1)", "2 * d"),
    (
        "datetime:timedelta.__lt__",
        "import datetime; d = datetime.timedelta(1)",
        "(d < d, d == d, d > d)",
    ),
    ("datetime:timedelta.__neg__", "import datetime; d = datetime.timedelta(1)", "-d"),
    (
        "datetime:timedelta.__bool__",
        "import datetime; d = datetime.timedelta(1)",
        "not d",
    ),
    (
        "datetime:timedelta.__hash__",
        "import datetime; d = datetime.date(1, 1, 1)",
        "hash(datetime.timedelta(1))",
    ),
    (
        "_collections:deque.__contains__",
        "import collections; d = collections.deque()",
        "1 in d",
    ),
    (
        "_collections:deque.__getitem__",
        "import collections; d = collections.deque([1])",
        "d[0]",
    ),
    (
        "_collections:deque.__len__",
        "import collections; d = collections.deque()",
        "d.__len__()",
    ),
    ("_collections:deque.__init__", "import collections", "collections.deque(())"),
    (
        "array:array.__getitem__",
        "import array; class_ = array.array; a = class_('i', [1])",
        "a[0]",
    ),
    (
        "array:array.__setitem__",
        "import array, operator; a = array.array('i', [1])",
        "operator.setitem(a, 0, 2)",
    ),
    (
        "array:array.__iadd__",
        "import array, operator; a = array.array('i')",
        "operator.iadd(a, a)",
    ),
    ("decimal:Decimal.__pow__", "import decimal; d = decimal.Decimal(1)", "d ** 1"),
    ("decimal:Decimal.__pow__", "import decimal; d = decimal.Decimal(1)", "pow(d, d, d)"),
    (
        "decimal:Decimal.__divmod__",
        "import decimal; d = decimal.Decimal(1)",
        "divmod(d, d)",
    ),
    ("decimal:Decimal.__float__", "import decimal; d = decimal.Decimal(1)", "float(d)"),
    (
        "decimal:Context.prec",
        "import decimal; c = decimal.Context()",
        "c.prec",
    ),
    (
        "datetime:timedelta.__repr__",
        "import datetime; d = datetime.timedelta(1)",
        "f'{d!r}'",
    ),
    (
        "datetime:timedelta.__str__",
        "import datetime; d = datetime.timedelta(1)",
        "str(d)",
    ),
    (
        "_collections:deque.__iter__",
        "import collections; d = collections.deque()",
        "[x for x in d]",
    ),
    ("itertools:count.__next__", "import itertools; c = itertools.count()", "next(c)"),
    ("_io:BytesIO.write", "import io; f = io.BytesIO()", "(f.seek(0), f.write(b'a'))"),
    ("_io:BytesIO.closed", "import io; f = io.BytesIO()", "f.closed"),
    ("_io:TextIOWrapper.write", "f = open('/dev/null', 'w')", "f.write('a')"),
    (
        "_asyncio:Future.done",
        "import asyncio; f = asyncio.Future(loop=asyncio.new_event_loop())",
        "f.done()",
    ),
    (
        "sqlite3:Connection.execute",
        "import sqlite3; c = sqlite3.connect(':memory:')",
        "c.execute('select 1')",
    ),
    (
        "sqlite3:Connection.__call__",
        "import sqlite3; c = sqlite3.connect(':memory:')",
        "c('select 1')",
    ),
    # objects that are called
    (
        "made:cached",
        "import functools\n@functools.lru_cache\ndef cached(x): return x",
        "cached(1)",
    ),
    (
        "made:Class.method",
        "import functools\nclass Class:\n @functools.lru_cache\n"
        " def method(self): pass\no = Class()",
        "o.method()",
    ),
    (
        "made:part",
        "import functools, operator; part = functools.partial(operator.add, 1)",
        "part(2)",
    ),
    (
        "made:link",
        "import weakref\nclass Class: pass\no = Class(); link = weakref.ref(o)",
        "link()",
    ),
    ("made:getter", "import operator; getter = operator.itemgetter(0)", "getter('ab')"),
    # extensions, where they are installed
    ("numpy:dot", "import numpy as np; a = np.ones(3)", "np.dot(a, a)"),
    ("numpy:array", "import numpy as np", "np.array([1])"),
    ("numpy:ndarray.dot", "import numpy as np; a = np.ones(3)", "a.dot(a)"),
    ("numpy:ndarray.sum", "import numpy as np; a = np.ones(3)", "a.sum()"),
    ("numpy:ndarray.T", "import numpy as np; a = np.ones(3)", "a.T"),
    ("numpy:ndarray.__add__", "import numpy as np; a = np.ones(3)", "a + a"),
    ("numpy:ndarray.__matmul__", "import numpy as np; a = np.ones((2, 2))", "a @ a"),
    ("numpy:ndarray.__getitem__", "import numpy as np; a = np.ones(3)", "a[1]"),
    ("numpy:add", "import numpy as np; a = np.ones(3)", "np.add(a, a)"),
    ("numpy:add", "import numpy as np; a = np.ones(3)", "a + a"),
    (
        "numpy:add.reduce",
        "import numpy as np; a = np.ones(3)",
        "(np.add.reduce(a), np.multiply.reduce(a))",
    ),
    ("numpy.random:random", "import numpy.random", "numpy.random.random()"),
    (
        "numpy.random:Generator.random",
        "import numpy as np; g = np.random.default_rng()",
        "g.random()",
    ),
    ("msgpack:unpackb", "import msgpack", r'msgpack.unpackb(b"\x01")'),
    ("msgpack:Packer.pack", "import msgpack; p = msgpack.Packer()", "p.pack(1)"),
    (
        "frozenlist:FrozenList.append",
        "import frozenlist, frozenlist._frozenlist; f = frozenlist.FrozenList()",
        "f.append(1)",
    ),
    (
        "frozenlist:FrozenList.__len__",
        "import frozenlist, frozenlist._frozenlist; f = frozenlist.FrozenList()",
        "f.__len__()",
    ),
    (
        "contourpy._contourpy:max_threads",
        "import contourpy._contourpy as c",
        "(c.max_threads(), c.SerialContourGenerator.supports_threads())",
    ),
    ("contourpy:max_threads", "import contourpy", "contourpy.max_threads()"),
    (
        "rpds:HashTrieMap.insert",
        "import rpds; m = rpds.HashTrieMap({})",
        "m.insert(1, 2)",
    ),
    (
        "gemmi:find_spacegroup_by_name",
        "import gemmi",
        "(gemmi.find_spacegroup_by_name('P 1'), gemmi.find_spacegroup_by_number(1))",
    ),
    ("gemmi:Vec3.length", "import gemmi; v = gemmi.Vec3(1, 2, 3)", "v.length()"),
    ("gemmi:Vec3.__add__", "import gemmi; v = gemmi.Vec3(1, 2, 3)", "v + v"),
    ("rpds:HashTrieMap.__len__", "import rpds; m = rpds.HashTrieMap({})", "m.__len__()"),
]


class Made:
    """A module with the preparation of a row, and a loop over its expression."""

    def __init__(self, setup: str, expression: str) -> None:
        self.module = type(sys)("made")
        self.expression = expression
        try:
            exec(setup, self.module.__dict__)
        except ImportError as error:
            pytest.skip(str(error))
        sys.modules["made"] = self.module

    def loop(self) -> Callable[[int], None]:
        """New code, whose instructions are not specialised yet."""
        text = f"def loop(n):\n for _ in range(n):\n  {self.expression}\n"
        exec(text, self.module.__dict__)
        loop: Callable[[int], None] = self.module.loop
        return loop


@pytest.fixture(autouse=True)
def no_module_left() -> Any:
    yield
    sys.modules.pop("made", None)


def install(*patterns: str, delay_ns: int = 0) -> None:
    speed_bump.install(Config(list(patterns), delay_ns=delay_ns))


def counted(name: str) -> int:
    return sum(f.calls for f in speed_bump.stats().functions if f.name == name)


def calls_of(name: str, work: Callable[[], None]) -> int:
    """Calls in the program; those of the counting itself are subtracted."""
    first = counted(name)
    second = counted(name)
    work()
    return counted(name) - second - (second - first)


def reasons() -> dict[str, str]:
    return dict(_core.refused())


def resolve(pattern: str) -> Any:
    module, _, path = pattern.partition(":")
    found = sys.modules[module]
    for name in path.split("."):
        found = (
            found.__dict__[name]
            if isinstance(found, type) and name in found.__dict__
            else getattr(found, name)
        )
    return found


@pytest.mark.parametrize(
    ("pattern", "setup", "expression"), KINDS, ids=[f"{k[0]} {k[2]}" for k in KINDS]
)
def test_each_kind(pattern: str, setup: str, expression: str) -> None:
    # Each is a system call, with the timer's slack.
    calls = CALLS // 20 if pattern == "time:sleep" else CALLS
    made = Made(setup, expression)
    warm = made.loop()
    warm(100)
    before = eval(expression, made.module.__dict__)
    target = resolve(pattern)
    references = sys.getrefcount(target)

    install(pattern)
    assert calls_of(pattern, lambda: warm(calls)) == calls
    cold = made.loop()
    assert calls_of(pattern, lambda: cold(calls)) == calls
    after = eval(expression, made.module.__dict__)
    assert (type(after), reasons()) == (type(before), {})

    speed_bump.uninstall()
    total = counted(pattern)
    warm(calls)
    made.loop()(calls)
    assert counted(pattern) == total
    del before, after
    assert sys.getrefcount(target) == references
    assert resolve(pattern) is target or "reduce" in pattern

    install(pattern, delay_ns=DELAY_NS)
    took = 0

    def timed() -> None:
        nonlocal took
        start = time.perf_counter_ns()
        warm(calls)
        took = time.perf_counter_ns() - start

    assert calls_of(pattern, timed) == calls
    (function,) = (f for f in speed_bump.stats().functions if f.calls)
    speed_bump.uninstall()
    assert function.delayed == function.calls
    assert function.requested_ns == function.calls * DELAY_NS
    assert function.delivered_ns >= function.requested_ns
    assert took >= calls * DELAY_NS


# ------------------------------------------------------------- many at once


def test_globs_mean_what_belongs_to_the_module() -> None:
    made = Made(
        "import functools\nfrom zlib import crc32\nfrom random import random\n"
        "@functools.lru_cache\ndef cached(x): return x",
        "crc32(b''), cached(1)",
    )
    assert made.loop()
    install("made:*", "zlib:*compress", "!zlib:decompress", "_collections:deque.p*")
    import collections
    import zlib

    zlib.decompress(zlib.compress(b""))
    zlib.crc32(b"")
    d = collections.deque([1, 2])
    d.pop()
    d.popleft()
    d.append(1)
    made.loop()(3)
    assert {f.name: f.calls for f in speed_bump.stats().functions if f.calls} == {
        "made:<module>": 1,
        "made:loop": 1,
        "made:cached": 3,
        "zlib:compress": 1,
        "_collections:deque.pop": 1,
        "_collections:deque.popleft": 1,
    }


def test_a_star_for_every_module_leaves_c_functions_alone() -> None:
    import zlib

    install("*:*")
    zlib.crc32(b"")
    assert not [f for f in speed_bump.stats().functions if f.name.startswith("zlib")]
    install("zli*:*")
    zlib.crc32(b"")
    assert counted("zlib:crc32") == 1


def test_a_whole_module_again_and_again() -> None:
    import datetime

    for number in range(1, 20):
        install("datetime:*", "builtins:dict.*", "builtins:str.*")
        for _ in range(5):
            datetime.datetime(2000, 1, 1) + datetime.timedelta(number)
            repr(datetime.date(2000, 1, 1))
        assert counted("datetime:datetime.__add__") == 5
        speed_bump.uninstall()
    assert counted("datetime:datetime.__add__") == 5


def test_the_first_pattern_gives_the_options_and_aliases_are_one() -> None:
    import _random
    import random

    assert _random
    install(
        "random:random delay=0",
        "_random:Random.random",
        "random:ran*",
        "zlib:crc32",
        "zlib:*",
    )
    for _ in range(7):
        random.random()
    assert counted("random:random") == 7
    assert counted("_random:Random.random") == 0
    random.Random().random()
    assert counted("_random:Random.random") == 1


def test_slow_comes_before_and_goes() -> None:
    import zlib

    install("zlib:crc32 every=3", delay_ns=2_000)
    for _ in range(9):
        zlib.crc32(b"")
    with speed_bump.slow("zlib:crc32", 5_000):
        zlib.crc32(b"")
    zlib.crc32(b"")
    done = {
        f.target: (f.calls, f.delayed, f.requested_ns)
        for f in speed_bump.stats().functions
    }
    assert done["zlib:crc32 every=3"] == (10, 3, 6_000)
    assert done["zlib:crc32 delay=5us"] == (1, 1, 5_000)


def test_every_change_of_patterns_is_exact() -> None:
    import time as module

    f = module.monotonic
    for number in range(1, 30):
        install(
            *(["time:monotonic"] if number % 2 else []), "time:perf_counter", "zlib:crc32"
        )
        for _ in range(number):
            f()
        assert counted("time:monotonic") == (number if number % 2 else 0)


# ------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("builtins:int", "is a class"),
        ("builtins:int.__new__", "calls its __new__ by itself"),
        ("_random:Random", "such as Random."),
        ("builtins:int.__add__", "by itself, without a call"),
        ("_thread:_local.__getattribute__", "gets and sets attributes by itself"),
        ("sys:maxsize", "can't be called"),
        ("builtins:slice.start", "is a member"),
        pytest.param(
            "weakref:ref.__call__",
            "name an object",
            marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="3.12"),
        ),
        pytest.param(
            "builtins:list.append",
            "an instruction of its own",
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="3.11"),
        ),
    ],
)
def test_what_cant_be_had_is_refused_with_a_reason(pattern: str, reason: str) -> None:
    install(pattern, "zlib:crc32")
    assert reason in reasons()[pattern]
    speed_bump.uninstall()


def test_the_pool_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(
        "import functools, operator\n"
        "parts = [functools.partial(operator.add, i) for i in range(9000)]\n"
        "globals().update((f'part{i}', p) for i, p in enumerate(parts))",
        "1",
    )
    # partial belongs to another module: it is a target only by its exact name.
    install(*(f"made:part{i}" for i in range(9000)))
    refused = reasons()
    assert 0 < len(refused) < 9000
    assert "no more can be" in next(iter(refused.values()))
    for part in made.module.parts:
        assert part(1)
    calls = sum(f.calls for f in speed_bump.stats().functions)
    assert 0 < calls < 9000
    speed_bump.uninstall()
    for part in made.module.parts:
        assert part(1)
    # A tool id that is no longer in use is available to others.
    install(*(f"made:part{i}" for i in range(10)))
    assert not reasons()
    made.module.part1(1)
    assert counted("made:part1") == 1


# ------------------------------------------------------------------ special cases


def test_objects_of_one_c_function_are_told_apart() -> None:
    made = Made(
        "import functools\n@functools.lru_cache\ndef one(x): return x\n"
        "@functools.lru_cache\ndef two(x): return x\n"
        "@functools.lru_cache\ndef three(x): return x",
        "(one(1), two(2), three(3))",
    )
    loop = made.loop()
    install("made:one", "made:two", "!made:three")
    loop(10)
    loop(5)
    assert [counted(f"made:{x}") for x in ("one", "two", "three")] == [15, 15, 0]


def test_a_cached_function_is_counted_once_a_call() -> None:
    made = Made("import functools\n@functools.lru_cache\ndef cached(x): return x", "1")
    install("made:cached")
    for number in range(10):
        assert made.module.cached(number) == number
        assert made.module.cached(number) == number
    assert counted("made:cached") == 20
    speed_bump.clear_cache()
    assert made.module.cached(100) == 100
    assert counted("made:cached") == 21


def test_bound_methods_of_before_and_after() -> None:
    import random

    generator = random.Random()
    before = generator.random
    install("_random:Random.random")
    during = generator.random
    before()
    during()
    assert counted("_random:Random.random") == 2
    speed_bump.uninstall()
    before()
    during()
    generator.random()
    assert counted("_random:Random.random") == 2


def test_exceptions_pass_through() -> None:
    import zlib

    install(
        "zlib:decompress", "builtins:len", "datetime:timedelta.__add__", delay_ns=1_000
    )
    for _ in range(50):
        with pytest.raises(zlib.error):
            zlib.decompress(b"nonsense")
        with pytest.raises(TypeError):
            len(1)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            zlib.decompress()  # type: ignore[call-arg]
    assert counted("zlib:decompress") == 100


def test_subclasses_inherit_and_give_back() -> None:
    import datetime

    class Old(datetime.timedelta):
        pass

    install("datetime:timedelta.__neg__")

    class New(datetime.timedelta):
        pass

    class Own(datetime.timedelta):
        def __neg__(self) -> Any:
            return super().__neg__()

    for _ in range(5):
        assert -Old(1) == -New(1) == -Own(1)
    assert counted("datetime:timedelta.__neg__") == 15
    New.__abs__ = lambda self: self  # type: ignore[method-assign]
    -New(1)
    assert counted("datetime:timedelta.__neg__") == 16
    speed_bump.uninstall()
    assert -Old(1) == -New(1) == -Own(1) == -datetime.timedelta(1)
    assert counted("datetime:timedelta.__neg__") == 16


def test_threads_while_patterns_come_and_go() -> None:
    import zlib

    made = Made("import functools\n@functools.lru_cache\ndef cached(x): return x", "1")
    done = threading.Event()
    failed: list[BaseException] = []

    def work() -> None:
        import datetime

        day = datetime.timedelta(1)
        try:
            while not done.is_set():
                assert zlib.crc32(b"abc") == 891568578
                assert len(b"abc") == 3
                assert "-".join(("a", "b")) == "a-b"
                assert (day + day).days == 2
                assert made.module.cached(7) == 7
        except BaseException as error:  # reported to the main thread
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(8):
        install(
            "zlib:crc32",
            "builtins:len",
            "builtins:str.join",
            "made:cached",
            "datetime:timedelta.*",
            delay_ns=500 if number % 2 else 0,
        )
        time.sleep(0.001)
        speed_bump.uninstall()
    done.set()
    for thread in threads:
        thread.join()
    assert not failed


def test_calls_of_many_threads_are_counted_exactly() -> None:
    import zlib

    install("zlib:crc32")

    def work() -> None:
        for _ in range(20_000):
            zlib.crc32(b"")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted("zlib:crc32") == 80_000


def test_nothing_is_left_behind() -> None:
    made = Made(
        "import functools, zlib, random, datetime\n"
        "@functools.lru_cache\ndef cached(x): return x",
        "1",
    )
    patterns = [
        "zlib:crc32",
        "builtins:len",
        "_random:Random.random",
        "made:cached",
        "datetime:timedelta.__add__",
        "datetime:date.year",
        "_frozen_importlib:x",
    ]
    importer = sys.modules["_frozen_importlib"].__dict__
    targets = [
        made.module.cached,
        made.module.zlib.crc32,
        len,
        type(made),
        importer,
        importer["_find_and_load"],
        made.module.random.Random.__mro__[1],
    ]

    def cycle() -> None:
        install(*patterns)
        speed_bump.uninstall()

    cycle()
    gc.collect()
    references = [sys.getrefcount(target) for target in targets]
    for _ in range(200):
        cycle()
    gc.collect()
    assert [sys.getrefcount(target) for target in targets] == references
    assert len is targets[2]
    assert type(importer["_find_and_load"]).__name__ == "function"


def test_an_import_is_seen_when_it_comes(python: Run, tmp_path: Any) -> None:
    (tmp_path / "later.py").write_text(
        "import functools\n@functools.lru_cache\ndef cached(x): return x\n"
        "from _heapq import heapify\ncached(0)\n"
        "@functools.lru_cache\ndef second(): pass\n"
    )
    done = python("""
import sys
import speed_bump
assert not {"later", "colorsys"} & set(sys.modules)
speed_bump.install(speed_bump.Config(["later:cached", "later:heapify", "l?ter:second",
                                      "__main__:mine", "__main__:s*"], delay_ns=0))
import later
for _ in range(5): later.cached(1); later.heapify([]); later.second()
import functools
@functools.lru_cache
def mine(x): return x
@functools.lru_cache
def second(x): return x
for i in range(6): mine(i); second(0)
print({f.name: f.calls for f in speed_bump.stats().functions if f.calls})
""")
    assert done.returncode == 0, done.stderr
    # One call of later:cached is in the module's own body.
    assert eval(done.stdout) == {
        "__main__:mine": 6,
        "__main__:second": 6,
        "later:cached": 6,
        "later:second": 5,
        "later:heapify": 5,
    }


def test_by_the_environment(python: Run, targets: Callable[[str], str]) -> None:
    done = python(
        "import zlib\nfor _ in range(9): zlib.crc32(b'')\n"
        "import speed_bump\n"
        "print([(f.name, f.calls) for f in speed_bump.stats().functions])",
        SPEED_BUMP_TARGETS=targets("zlib:crc32 delay=1us\n"),
    )
    assert done.stdout == "[('zlib:crc32', 9)]\n", done.stderr


def test_by_the_command(tmp_path: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text("import zlib\nfor _ in range(9): zlib.crc32(b'')\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "speed_bump",
            "run",
            "-t",
            "zlib:crc32",
            "-t",
            "zlib:error",
            "-d",
            "10us",
            "--",
            sys.executable,
            str(program),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "zlib:crc32" in done.stderr
    assert " 9 " in done.stderr
    assert "zlib:error can't be a target: it is a class" in done.stderr


def test_a_forked_child_counts_for_itself(python: Run) -> None:
    done = python("""
import os, zlib, speed_bump
speed_bump.install(speed_bump.Config(["zlib:crc32", "builtins:str.join"], delay_ns=0))
for _ in range(5): zlib.crc32(b"")
def count(): return {f.name: f.calls for f in speed_bump.stats().functions}["zlib:crc32"]
if os.fork() == 0:
    for _ in range(7): zlib.crc32(b"")
    os._exit(0 if count() == 7 else 1)
print(os.wait()[1], count())
""")
    assert done.stdout == "0 5\n", done.stderr


def test_interpreters_that_share_types_count_their_own(python: Run) -> None:
    from test_interpreters import PRELUDE

    done = python(f"""{PRELUDE}
import datetime, speed_bump
inner = make(False)
speed_bump.install(speed_bump.Config(["builtins:str.join", "datetime:timedelta.__neg__"],
                                     delay_ns=0))
def count(): return {{f.name: f.calls for f in speed_bump.stats().functions}}
day = datetime.timedelta(1)
first = count(); second = count()
run(inner, '''
import datetime
day = datetime.timedelta(1)
for _ in range(100): "".join(("a", "b")); -day
''')
for _ in range(10): "".join(("a", "b")); -day
third = count()
own = second.get("builtins:str.join", 0) - first.get("builtins:str.join", 0)
inside = third["builtins:str.join"] - second["builtins:str.join"] - own
print(third["datetime:timedelta.__neg__"], inside < 100)
interpreters.destroy(inner)
-day
print(count()["datetime:timedelta.__neg__"])
""")
    assert done.stdout == "10 True\n11\n", done.stderr


# ------------------------------------------------------------------ self time

INSIDE = """
import functools, threading, time, zlib
import speed_bump
from speed_bump import _core

data = bytes(range(256)) * 40000
cached = functools.lru_cache(zlib.crc32)
other = functools.lru_cache(zlib.adler32)
speed_bump.install(speed_bump.Config(PATTERNS, delay_ns=0))
table = _core.state().table
done = threading.Event()
def key(one):
    return zlib.crc32(data)
def work():
    while not done.is_set():
        WORK
thread = threading.Thread(target=work)
thread.start()
stacks = _core.Stacks(table)
assert stacks.add(__import__("os").getpid(), _core.layout())
def targets(ns):
    # Of each stack the targets, innermost first, and how often it was seen.
    ticks = stacks.run(ns, 1_000_000).ticks
    taken, codes = stacks.take().stacks, stacks.targets()
    names = [code.name for code in codes]
    rows = [([names[k] for k in one.codes if names[k]], one.looks) for one in taken]
    return ticks, rows
done_before = 0
def seen(ns=300_000_000):
    global done_before
    ticks, rows = targets(ns)
    found = {}
    for names, n in rows:
        if names:
            found[names[0]] = found.get(names[0], 0) + n
    looks, done_before = max(ticks - done_before, 1), ticks
    return {name: n / looks for name, n in found.items()}
before = seen(50_000_000)
table.watched = True
time.sleep(0.1)
during = seen()
done_before, deep = targets(50_000_000)
table.watched = False
# A call that was under way leaves its word, until the thread has had a CPU again.
for _ in range(50):
    time.sleep(0.1)
    after = seen(50_000_000)
    if set(after) <= set(before):
        break
done.set()
thread.join()
print([before, during, after, sorted({tuple(reversed(names)) for names, _ in deep})])
"""


def inside(python: Run, patterns: list[str], work: str) -> list[Any]:
    done = python(INSIDE.replace("PATTERNS", repr(patterns)).replace("WORK", work))
    assert done.returncode == 0, done.stderr
    return list(eval(done.stdout))


def test_the_time_of_c_functions_is_seen_from_outside(python: Run) -> None:
    before, during, after, deep = inside(
        python,
        ["zlib:crc32", "builtins:sorted", "__main__:key", "__main__:work"],
        "sorted((1, 2, 3), key=key)",
    )
    # Without a reader, C functions do not publish their calls: the caller has the time.
    assert "zlib:crc32" not in {**before, **after}
    assert before["__main__:key"] > 0.5
    # Where it is the innermost function, and not where it calls Python code that is a
    # target.
    assert during["zlib:crc32"] > 0.5
    assert during["zlib:crc32"] > 3 * sum(
        during.get(name, 0) for name in ("builtins:sorted", "__main__:key")
    )
    whole = ("__main__:work", "builtins:sorted", "__main__:key", "zlib:crc32")
    assert whole in deep


def test_a_c_function_has_the_time_of_what_it_calls(python: Run) -> None:
    _, during, _, _ = inside(
        python, ["builtins:sorted", "__main__:work"], "sorted((1, 2, 3), key=key)"
    )
    assert during["builtins:sorted"] > 5 * during.get("__main__:work", 0)


def test_the_time_of_one_object_of_many(python: Run) -> None:
    _, during, _, _ = inside(
        python,
        ["__main__:cached", "__main__:work"],
        "cached(data); cached.cache_clear(); other(data)",
    )
    assert during["__main__:cached"] > 0.5
