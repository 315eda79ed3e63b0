# SPDX-License-Identifier: MIT
"""Every kind of call, warm and cold, with the same expectation.

CPython specialises instructions after some executions, and a specialised instruction may
call a function in another way. Here each kind of call is executed often enough for that,
before and after delays come into force, and each call must be counted once.
"""

# ruff: noqa: E501 (a call is a line, and its program is in it)

from __future__ import annotations

import sys
import sysconfig
from typing import Any

import pytest
import speed_bump
from speed_bump import Config

MANY = 1_000

# The definition, and one call of the function called target.
PLAIN: dict[str, tuple[str, str]] = {
    "no arguments": ("def target(): pass", "target()"),
    "positional": ("def target(a, b): pass", "target(1, 2)"),
    "named": ("def target(a, b): pass", "target(b=1, a=2)"),
    "defaults": ("def target(a, b=2, c=3): pass", "target(1)"),
    "star": ("def target(*a): pass", "target(1, 2)"),
    "star given": ("def target(*a): pass\nX = (1, 2)", "target(*X)"),
    "two stars": ("def target(**k): pass\nX = {'a': 1}", "target(**X)"),
    "named only": ("def target(*, a): pass", "target(a=1)"),
    "named only, defaults": ("def target(*, a=1): pass", "target()"),
    "positional only": ("def target(a, /): pass", "target(1)"),
    "closure": ("def make():\n x = 1\n def target(): return x\n return target\nf = make()", "f()"),
    "cells of its own": ("def target(a): return lambda: a", "target(1)"),
    "nested": ("def drive_once():\n def target(): pass\n target()", "drive_once()"),
    "decorated": ("import functools\ndef w(f):\n @functools.wraps(f)\n def g(): return f()\n return g\n@w\ndef target(): pass", "target()"),
    "in a list": ("def target(): pass\nX = [target]", "X[0]()"),
    "returns a call": ("def target(): pass\ndef other(): return target()", "other()"),
    "raises": ("def target(): raise KeyError", "try: target()\n  except KeyError: pass"),
    "in except": ("def target(): pass", "try: 1/0\n  except Exception: target()"),
    "in finally": ("def target(): pass", "try: pass\n  finally: target()"),
    "many locals": ("def target():\n a = b = c = d = e = f = g = 1\n return [a]*9", "target()"),
    "in an f-string": ("def target(): return 1", "f'{target()}'"),
    "as a default": ("def target(): return 1", "(lambda a=target(): a)()"),
    "in a condition": ("def target(): return 0", "1 if target() else 2"),
    "walrus": ("def target(): return 1", "(x := target())"),
    "by exec": ("def target(): pass", "exec('target()')"),
    "by eval": ("def target(): pass", "eval('target()')"),
    "of two that take turns": ("def target(): pass\ndef f(): pass\nX = [0]", "X[0] += 1; (target if X[0] % 2 else f)(); (f if X[0] % 2 else target)()"),
    "class body": ("def make():\n class target: pass", "make()"),
    # ------------------------------------------------------------------- methods
    "method": ("class A:\n def target(self): pass\na = A()", "a.target()"),
    "method, arguments": ("class A:\n def target(self, b, c=1): pass\na = A()", "a.target(2)"),
    "inherited": ("class A:\n def target(self): pass\nclass B(A): pass\na = B()", "a.target()"),
    "bound": ("class A:\n def target(self): pass\nf = A().target", "f()"),
    "through the class": ("class A:\n def target(self): pass\na = A()", "A.target(a)"),
    "super": ("class A:\n def target(self): pass\nclass B(A):\n def m(self): super().target()\na = B()", "a.m()"),
    "super, two": ("class A:\n def target(self): pass\nclass B(A):\n def m(self): super(B, self).target()\na = B()", "a.m()"),
    "class method": ("class A:\n @classmethod\n def target(cls): pass\na = A()", "a.target()"),
    "class method of the class": ("class A:\n @classmethod\n def target(cls): pass", "A.target()"),
    "static method": ("class A:\n @staticmethod\n def target(): pass\na = A()", "a.target()"),
    "in the instance": ("class A: pass\na = A()\ndef target(): pass\na.f = target", "a.f()"),
    "slots": ("class A:\n __slots__ = ()\n def target(self): pass\na = A()", "a.target()"),
    "of a metaclass": ("class M(type):\n def target(cls): pass\nclass A(metaclass=M): pass", "A.target()"),
    "of a module": ("import types\ndef target(): pass\nm = types.ModuleType('m')\nm.f = target", "m.f()"),
    "partial": ("import functools\ndef target(a): pass\nf = functools.partial(target, 1)", "f()"),
    "partial method": ("import functools\nclass A:\n def target(self, a): pass\n f = functools.partialmethod(target, 1)\na = A()", "a.f()"),
    "method caller": ("import operator\nclass A:\n def target(self): pass\na = A()\nf = operator.methodcaller('target')", "f(a)"),
    "cached": ("import functools\n@functools.lru_cache(0)\ndef target(): pass", "target()"),
    "single dispatch": ("import functools\n@functools.singledispatch\ndef target(a): pass", "target(1)"),
    # ---------------------------------------------------------------- properties
    "property": ("class A:\n @property\n def target(self): pass\na = A()", "a.target"),
    "property, set": ("class A:\n def target(self, v): pass\n p = property(None, target)\na = A()", "a.p = 1"),
    "property, deleted": ("class A:\n def target(self): pass\n p = property(None, None, target)\na = A()", "del a.p"),
    "property of a subclass": ("class A:\n @property\n def target(self): pass\nclass B(A): pass\na = B()", "a.target"),
    "cached property": ("import functools\nclass A:\n @functools.cached_property\n def target(self): pass", "A().target"),
    # ----------------------------------------------------------------- from C code
    "map": ("def target(a): pass", "list(map(target, (1,)))"),
    "filter": ("def target(a): pass", "list(filter(target, (1,)))"),
    "key of sorted": ("def target(a): return a", "sorted((1,), key=target)"),
    "key of a sort": ("def target(a): return a\nX = [1]", "X.sort(key=target)"),
    "key of max": ("def target(a): return a", "max((1,), key=target)"),
    "comparison of a sort": ("import functools\ndef target(a, b): return 0\nk = functools.cmp_to_key(target)", "sorted((1, 2), key=k)"),
    "reduce": ("import functools\ndef target(a, b): return a", "functools.reduce(target, (1, 2))"),
    "accumulate": ("import itertools\ndef target(a, b): return a", "list(itertools.accumulate((1, 2), target))"),
    "star map": ("import itertools\ndef target(a): return a", "list(itertools.starmap(target, [(1,)]))"),
    "group by": ("import itertools\ndef target(a): return a", "list(itertools.groupby((1,), target))"),
    "take while": ("import itertools\ndef target(a): return a", "list(itertools.takewhile(target, (1,)))"),
    "replacement": ("import re\ndef target(m): return ''\np = re.compile('a')", "p.sub(target, 'a')"),
    "call until": ("def target(): return 1", "list(iter(target, 1))"),
    "missing from a dict": ("import collections\ndef target(): return 1", "collections.defaultdict(target)[1]"),
    "JSON default": ("import json\ndef target(o): return 1", "json.dumps(print, default=target)"),
    "end of a weak reference": ("import weakref\ndef target(r): pass\nclass A: pass", "a = A(); r = weakref.ref(a, target); del a"),
    "through a C function": ("def target(): pass\nimport _functools\nf = _functools.partial(target)", "f()"),
    "in a context": ("import contextvars\ndef target(): pass\nc = contextvars.Context()", "c.run(target)"),
    "by __call__": ("def target(): pass", "target.__call__()"),
    # ---------------------------------------------------------------- generators
    "generator": ("def target():\n yield 1", "for _ in target(): pass"),
    "generator, next": ("def target():\n yield 1", "next(target())"),
    "generator, list": ("def target():\n yield 1", "list(target())"),
    "generator, send": ("def target():\n yield 1", "target().send(None)"),
    "generator, many values": ("def target():\n yield from (1, 2, 3)", "for _ in target(): pass"),
    "yield from": ("def target():\n yield 1\ndef g():\n yield from target()", "for _ in g(): pass"),
    "yield from, deeper": ("def target():\n yield 1\ndef g():\n yield from target()\ndef h():\n yield from g()", "list(h())"),
    "generator, unpacked": ("def target():\n yield 1", "x, = target()"),
    "generator, in": ("def target():\n yield 1", "1 in target()"),
    "from a generator": ("def target(): pass\ndef g():\n yield target()", "next(g())"),
    "generator, thrown into": ("def target():\n try: yield 1\n except KeyError: yield 2", "g = target(); next(g); g.throw(KeyError)"),
    "generator, closed": ("def target():\n yield 1", "g = target(); next(g); g.close()"),
    "coroutine": ("async def target(): pass", "try: target().send(None)\n  except StopIteration: pass"),
    "await": ("async def target(): pass\nasync def f(): await target()", "try: f().send(None)\n  except StopIteration: pass"),
    "await, deeper": ("async def target(): pass\nasync def f(): await target()\nasync def g(): await f()", "try: g().send(None)\n  except StopIteration: pass"),
    "from a coroutine": ("def target(): pass\nasync def f(): target()", "try: f().send(None)\n  except StopIteration: pass"),
    "asynchronous generator": ("async def target():\n yield 1\nasync def f():\n async for _ in target(): pass", "try: f().send(None)\n  except StopIteration: pass"),
    "types.coroutine": ("import types\n@types.coroutine\ndef target():\n return\n yield\nasync def f(): await target()", "try: f().send(None)\n  except StopIteration: pass"),
    "context manager": ("import contextlib\n@contextlib.contextmanager\ndef target(): yield", "with target(): pass"),
}  # fmt: skip

# Special methods: arguments, return value, and an expression on "a" that calls the
# method.
SPECIAL: dict[str, tuple[str, str, str]] = {
    "__getitem__": ("i", "1", "a[0]"),
    "__setitem__": ("i, v", "None", "a[0] = 1"),
    "__delitem__": ("i", "None", "del a[0]"),
    "__contains__": ("i", "True", "1 in a"),
    "__len__": ("", "1", "len(a)"),
    "__bool__": ("", "True", "if a: pass"),
    "__iter__": ("", "iter(())", "for _ in a: pass"),
    "__reversed__": ("", "iter(())", "reversed(a)"),
    "__next__": ("", "1", "next(a)"),
    "__call__": ("", "1", "a()"),
    "__hash__": ("", "1", "hash(a)"),
    "__eq__": ("o", "True", "a == 1"),
    "__ne__": ("o", "True", "a != 1"),
    "__lt__": ("o", "True", "a < 1"),
    "__ge__": ("o", "True", "a >= 1"),
    "__add__": ("o", "1", "a + 1"),
    "__radd__": ("o", "1", "1 + a"),
    "__iadd__": ("o", "self", "b = a; b += 1"),
    "__sub__": ("o", "1", "a - 1"),
    "__mul__": ("o", "1", "a * 1"),
    "__matmul__": ("o", "1", "a @ 1"),
    "__truediv__": ("o", "1", "a / 1"),
    "__mod__": ("o", "1", "a % 1"),
    "__divmod__": ("o", "1", "divmod(a, 1)"),
    "__pow__": ("o", "1", "a ** 1"),
    "__lshift__": ("o", "1", "a << 1"),
    "__and__": ("o", "1", "a & 1"),
    "__or__": ("o", "1", "a | 1"),
    "__neg__": ("", "1", "-a"),
    "__invert__": ("", "1", "~a"),
    "__abs__": ("", "1", "abs(a)"),
    "__int__": ("", "1", "int(a)"),
    "__float__": ("", "1.0", "float(a)"),
    "__index__": ("", "0", "(1, 2)[a]"),
    "__round__": ("", "1", "round(a)"),
    "__str__": ("", "''", "str(a)"),
    "__repr__": ("", "''", "repr(a)"),
    "__format__": ("s", "''", "f'{a}'"),
    "__bytes__": ("", "b''", "bytes(a)"),
    "__dir__": ("", "[]", "dir(a)"),
    "__fspath__": ("", "''", "import os; os.fspath(a)"),
    "__getattr__": ("n", "1", "a.missing"),
    "__getattribute__": ("n", "1", "a.anything"),
    "__setattr__": ("n, v", "None", "a.b = 1"),
    "__delattr__": ("n", "None", "del a.b"),
    "__enter__": ("", "1", "with W(): pass"),
    "__init__": ("", "None", "A()"),
    "__del__": ("", "None", "A()"),
    "__length_hint__": ("", "1", "import operator; operator.length_hint(a)"),
    "__copy__": ("", "1", "import copy; copy.copy(a)"),
    "__reduce_ex__": ("n", "(int, ())", "import copy; copy.copy(a)"),
    "__instancecheck__": ("o", "True", "isinstance(1, a)"),
    "__class_getitem__": ("i", "1", "A[0]"),
    "__new__": ("", "object.__new__(self)", "A()"),
}
EXTRA = {
    "__enter__": " def __exit__(self, *_): pass\nW = A",
    "__next__": " def __iter__(self): return self",
    "__eq__": " __hash__ = None",
}
OF_OTHERS: dict[str, tuple[str, str]] = {
    "__exit__": ("class A:\n def __enter__(self): pass\n def __exit__(self, *_): pass\na = A()", "with a: pass"),
    "__get__": ("class D:\n def __get__(self, o, t): return 1\nclass A:\n d = D()\na = A()", "a.d"),
    "__set__": ("class D:\n def __set__(self, o, v): pass\nclass A:\n d = D()\na = A()", "a.d = 1"),
    "__delete__": ("class D:\n def __delete__(self, o): pass\nclass A:\n d = D()\na = A()", "del a.d"),
    "__missing__": ("class A(dict):\n def __missing__(self, k): return 1\na = A()", "a[1]"),
    "__init_subclass__": ("class A:\n def __init_subclass__(cls): pass", "class B(A): pass"),
    "__set_name__": ("class D:\n def __set_name__(self, o, n): pass", "class A: d = D()"),
    "__prepare__": ("class M(type):\n @classmethod\n def __prepare__(m, n, b): return {}", "class A(metaclass=M): pass"),
    "__next__": ("class A:\n n = 0\n def __iter__(self): return self\n def __next__(self): raise StopIteration\na = A()", "for _ in a: pass"),
    "__await__": ("class A:\n def __await__(self): return iter(())\nasync def f(): await A()", "try: f().send(None)\n  except StopIteration: pass"),
    "__aenter__": ("class A:\n async def __aenter__(self): pass\n async def __aexit__(self, *_): pass\nasync def f():\n async with A(): pass", "try: f().send(None)\n  except StopIteration: pass"),
    "__aexit__": ("class A:\n async def __aenter__(self): pass\n async def __aexit__(self, *_): pass\nasync def f():\n async with A(): pass", "try: f().send(None)\n  except StopIteration: pass"),
    "__anext__": ("class A:\n def __aiter__(self): return self\n async def __anext__(self): raise StopAsyncIteration\nasync def f():\n async for _ in A(): pass", "try: f().send(None)\n  except StopIteration: pass"),
    "<lambda>": ("f = lambda: 1", "f()"),
    "<genexpr>": ("X = (1, 2)", "list(x for x in X)"),
}  # fmt: skip

# From 3.12 on these are not functions any more.
if sys.version_info < (3, 12):
    OF_OTHERS |= {
        "<listcomp>": ("X = (1, 2)", "[x for x in X]"),
        "<setcomp>": ("X = (1, 2)", "{x for x in X}"),
        "<dictcomp>": ("X = (1, 2)", "{x: x for x in X}"),
    }


def kinds() -> list[Any]:
    found = [pytest.param(*text, "target", id=name) for name, text in PLAIN.items()]
    for name, (arguments, result, call) in SPECIAL.items():
        all_arguments = f"self, {arguments}" if arguments else "self"
        text = f"class A:\n def {name}({all_arguments}): return {result}\n"
        text += f"{EXTRA.get(name, '')}\n"
        text += "" if name in ("__init__", "__new__", "__del__") else "a = A()"
        found.append(pytest.param(text, call, name, id=name))
        if "a" in call.split("(")[0] and name in ("__getitem__", "__getattribute__"):
            text = text.replace("a = A()", "class B(A): pass\na = B()")
            found.append(pytest.param(text, call, name, id=f"{name}, inherited"))
    for name, (text, call) in OF_OTHERS.items():
        found.append(pytest.param(text, call, name, id=f"{name} of another"))
    return found


def make(text: str, call: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "made"}
    exec(f"{text}\ndef drive(n):\n for _ in range(n):\n  {call}\n", space)
    return space


def counted(name: str) -> int:
    return sum(
        f.calls
        for f in speed_bump.stats().functions
        if f.name.rpartition(":")[2].rpartition(".")[2] == name
    )


def install(name: str) -> None:
    # Without [ and ]; the library has functions of these names (such as __prepare__) too.
    speed_bump.install(Config([f"made:{name}", f"made:*.{name}"], delay_ns=0))


@pytest.mark.parametrize(("text", "call", "name"), kinds())
def test_each_call_is_counted_once(text: str, call: str, name: str) -> None:
    cold = make(text, call)
    install(name)
    before = counted(name)
    cold["drive"](MANY)
    assert counted(name) - before == MANY, "never called before delays were in force"
    speed_bump.uninstall()
    warm = make(text, call)
    warm["drive"](MANY)
    for _ in range(2):
        install(name)
        for _ in range(3):
            before = counted(name)
            warm["drive"](MANY)
            assert counted(name) - before == MANY, "called often before"
        speed_bump.uninstall()
        warm["drive"](MANY)


def test_a_site_that_is_warm_for_another_class() -> None:
    """It specialises itself for new objects without a general call before."""
    text = (
        "class A:\n def __getitem__(self, i): return 1\n"
        "class B:\n def __getitem__(self, i): return 1\n"
        "class C:\n def __getitem__(self, i): return 1\n"
        "things = [[1], {0: 1}, (1,), A(), B(), C()]"
    )
    space = make(text, "thing[0]")
    exec("def drive(thing, n):\n for _ in range(n):\n  thing[0]\n", space)
    for thing in space["things"][:-1]:
        space["drive"](thing, MANY)
    install("__getitem__")
    for thing in space["things"][3:]:
        before = counted("__getitem__")
        space["drive"](thing, MANY)
        assert counted("__getitem__") - before == MANY


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="threads take no turns"
)
def test_threads_take_turns_at_one_site() -> None:
    import threading

    space = make("class A:\n def __getitem__(self, i): return 1\na = A()", "a[0]")
    space["drive"](MANY)
    install("__getitem__")
    threads = [threading.Thread(target=space["drive"], args=(MANY,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted("__getitem__") == 4 * MANY
