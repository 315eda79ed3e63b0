# SPDX-License-Identifier: MIT
"""C callables as targets, by their Python names: a table of kinds, and the traps."""

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

CALLS = 500
DELAY_NS = 1_000

# pattern, what to do before, and an expression with one call of the target
KINDS: list[tuple[str, str, str]] = [
    # functions of modules, of every calling convention
    ("zlib:compress", "import zlib", 'zlib.compress(b"abc")'),
    ("zlib:crc32", "from zlib import crc32", 'crc32(b"abc")'),
    ("_json:encode_basestring_ascii", "import _json as j", 'j.encode_basestring_ascii("a")'),
    ("time:sleep", "import time", "time.sleep(0)"),
    ("time:monotonic", "import time", "time.monotonic()"),
    ("_pickle:dumps", "import _pickle", "_pickle.dumps({})"),
    ("_functools:reduce", "import functools, operator", "functools.reduce(operator.add, (1, 2))"),
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
    ("_socket:socket.recv", "import socket; a, b = socket.socketpair(); b.send(bytes(9999))",
     "a.recv(1)"),
    ("_socket:socket.getsockname", "import socket; s = socket.socket(socket.AF_UNIX)",
     "s.getsockname()"),
    ("_struct:Struct.pack", "import struct; s = struct.Struct('i')", "s.pack(1)"),
    ("re:Pattern.match", "import re; p = re.compile('a')", 'p.match("a")'),
    ("_collections:deque.append", "import collections; d = collections.deque(maxlen=3)",
     "d.append(1)"),
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
    ("datetime:timedelta.__lt__", "import datetime; d = datetime.timedelta(1)",
     "(d < d, d == d, d > d)"),
    ("datetime:timedelta.__neg__", "import datetime; d = datetime.timedelta(1)", "-d"),
    ("datetime:timedelta.__bool__", "import datetime; d = datetime.timedelta(1)", "not d"),
    ("datetime:timedelta.__hash__", "import datetime; d = datetime.date(1, 1, 1)",
     "hash(datetime.timedelta(1))"),
    ("_collections:deque.__contains__", "import collections; d = collections.deque()",
     "1 in d"),
    ("_collections:deque.__getitem__", "import collections; d = collections.deque([1])",
     "d[0]"),
    ("_collections:deque.__len__", "import collections; d = collections.deque()",
     "d.__len__()"),
    ("_collections:deque.__init__", "import collections", "collections.deque(())"),
    ("array:array.__getitem__", "import array; class_ = array.array; a = class_('i', [1])",
     "a[0]"),
    # objects that are called
    ("made:cached", "import functools\n@functools.lru_cache\ndef cached(x): return x",
     "cached(1)"),
    ("made:Class.method", "import functools\nclass Class:\n @functools.lru_cache\n"
     " def method(self): pass\no = Class()", "o.method()"),
    ("made:part", "import functools, operator; part = functools.partial(operator.add, 1)",
     "part(2)"),
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
    ("numpy:add.reduce", "import numpy as np; a = np.ones(3)",
     "(np.add.reduce(a), np.multiply.reduce(a))"),
    ("numpy.random:random", "import numpy.random", "numpy.random.random()"),
    ("numpy.random:Generator.random", "import numpy as np; g = np.random.default_rng()",
     "g.random()"),
    ("msgpack:unpackb", "import msgpack", r'msgpack.unpackb(b"\x01")'),
    ("msgpack:Packer.pack", "import msgpack; p = msgpack.Packer()", "p.pack(1)"),
    ("frozenlist:FrozenList.append", "import frozenlist; f = frozenlist.FrozenList()",
     "f.append(1)"),
    ("frozenlist:FrozenList.__len__", "import frozenlist; f = frozenlist.FrozenList()",
     "f.__len__()"),
    ("contourpy._contourpy:max_threads", "import contourpy._contourpy as c",
     "(c.max_threads(), c.SerialContourGenerator.supports_threads())"),
    ("contourpy:max_threads", "import contourpy", "contourpy.max_threads()"),
    ("rpds:HashTrieMap.insert", "import rpds; m = rpds.HashTrieMap({})", "m.insert(1, 2)"),
    ("rpds:HashTrieMap.__len__", "import rpds; m = rpds.HashTrieMap({})", "m.__len__()"),
]


class Made:
    """A module with what a row makes, and a loop over its expression."""

    def __init__(self, setup: str, expression: str) -> None:
        self.module = type(sys)("made")
        self.expression = expression
        try:
            exec(setup, self.module.__dict__)
        except ImportError as error:
            pytest.skip(str(error))
        sys.modules["made"] = self.module

    def loop(self) -> Callable[[int], None]:
        """New code, of which no instruction is specialised yet."""
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
    """Calls in work: those by the counting itself are taken off."""
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
        found = found.__dict__[name] if isinstance(found, type) and name in found.__dict__ \
            else getattr(found, name)
    return found


@pytest.mark.parametrize(
    ("pattern", "setup", "expression"), KINDS, ids=[f"{k[0]} {k[2]}" for k in KINDS]
)
def test_each_kind(pattern: str, setup: str, expression: str) -> None:
    made = Made(setup, expression)
    warm = made.loop()
    warm(100)
    before = eval(expression, made.module.__dict__)
    target = resolve(pattern)
    references = sys.getrefcount(target)

    install(pattern)
    assert calls_of(pattern, lambda: warm(CALLS)) == CALLS
    cold = made.loop()
    assert calls_of(pattern, lambda: cold(CALLS)) == CALLS
    after = eval(expression, made.module.__dict__)
    assert (type(after), reasons()) == (type(before), {})

    speed_bump.uninstall()
    total = counted(pattern)
    warm(CALLS)
    made.loop()(CALLS)
    assert counted(pattern) == total
    del before, after
    assert sys.getrefcount(target) == references
    assert resolve(pattern) is target or "reduce" in pattern

    install(pattern, delay_ns=DELAY_NS)
    took = 0

    def timed() -> None:
        nonlocal took
        start = time.perf_counter_ns()
        warm(CALLS)
        took = time.perf_counter_ns() - start

    assert calls_of(pattern, timed) == CALLS
    (function,) = (f for f in speed_bump.stats().functions if f.calls)
    speed_bump.uninstall()
    assert function.delayed == function.calls
    assert function.requested_ns == function.calls * DELAY_NS
    assert function.measured_ns >= function.requested_ns
    assert took >= CALLS * DELAY_NS
