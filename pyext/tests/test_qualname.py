# SPDX-License-Identifier: MIT
"""Qualified names of functions, also if the code object has none (3.10)."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import speed_bump
from conftest import calls
from speed_bump import Config, _core

HERE = __name__

SOURCE = (
    '''
import functools
def plain(): pass
def outer():
    def inner():
        return [lambda: x for x in range(3)]
    class Local:
        def method(self): return {y: (lambda: y) for y in ()}
    global declared
    def declared():
        def below(): pass
    class Also:
        global hidden
        def hidden(self): pass
    return inner, Local
class A(object):
    """With a docstring."""
    class B:
        @staticmethod
        def static(): pass
        @classmethod
        def klass(cls): pass
        @property
        def prop(self): return super().prop
        __private = lambda self: 0
    def __mangled(self): return __class__
    gen = (z for z in (lambda: 1, lambda: 2))
async def coroutine():
    async with x as y: pass
    return [i async for i in (j async for j in k)]
@functools.wraps(plain)
def decorated(a: (lambda: 0) = lambda: 1, *, b=lambda: 2): return lambda: (lambda: 3)
first = lambda: 0; second = lambda: (lambda: 0)
if True:
    def plain(): return 2
'''
    + "def many():\n    x = 0\n"
    + "".join(  # more constants than fit into one byte
        f"    x += {i}.5; f = lambda: {i}\n" for i in range(300)
    )
)

# Prints (line, name, qualified name) of every code object in the files of argv.
LISTER = """
import json, sys, types
def walk(code):
    yield code.co_firstlineno, code.co_name, code.co_qualname
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from walk(constant)
for path in sys.stdin.read().splitlines():
    with open(path, "rb") as file:
        text = file.read()
    print(json.dumps(sorted(set(walk(compile(text, path, "exec", dont_inherit=True))))))
"""


def walk(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from walk(constant)


def named(text: bytes, path: str) -> list[list[object]]:
    code = compile(text, path, "exec", dont_inherit=True)
    assert _core.qualname(code) == "<module>"  # the name follows from the enclosing code
    return [
        list(row)
        for row in sorted(
            {(c.co_firstlineno, c.co_name, _core.qualname(c)) for c in walk(code)}
        )
    ]


@pytest.fixture(scope="module")
def python311() -> str:
    """A CPython 3.11, whose co_qualname is the reference."""
    root = Path(__file__).parents[2]
    for python in subprocess.run(
        [root / "build-aux/pythons"], capture_output=True, text=True, check=True
    ).stdout.split():
        version = subprocess.run(
            [python, "-ISc", "import sys; print(sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        if version.strip() == "(3, 11)":
            return python
    pytest.skip("no CPython 3.11 here")


def answers(python: str, paths: list[Path]) -> list[list[list[object]]]:
    import json

    done = subprocess.run(
        [python, "-ISc", LISTER],
        input="".join(f"{path}\n" for path in paths),
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="compiles to other code objects")
def test_as_co_qualname_of_3_11(python311: str, tmp_path: Path) -> None:
    path = tmp_path / "source.py"
    path.write_text(SOURCE)
    (theirs,) = answers(python311, [path])
    assert named(SOURCE.encode(), str(path)) == theirs
    assert len(theirs) > 320


@pytest.mark.skipif(sys.version_info >= (3, 11), reason="3.10 has no co_qualname")
def test_the_standard_library_as_co_qualname_of_3_11(python311: str) -> None:
    directory = Path(sysconfig.get_path("stdlib"))
    paths = [
        path
        for path in sorted(directory.rglob("*.py"))
        if not {"site-packages", "test", "tests", "lib2to3"} & set(path.parts)
    ]
    compared = 0
    for path, theirs in zip(paths, answers(python311, paths), strict=True):
        assert named(path.read_bytes(), str(path)) == theirs, path
        compared += len(theirs)
    assert compared > 10_000


# ------------------------------------------ executed before the hook was installed


def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@decorate
def wrapped() -> None:
    pass


class Base:
    def method(self) -> None:
        pass

    @staticmethod
    def static() -> None:
        pass

    @classmethod
    def klass(cls) -> None:
        pass

    @property
    def prop(self) -> int:
        return 1

    key = staticmethod(lambda: 0)


class Derived(Base):
    def method(self, *other: object) -> None:
        super().method()


def outer() -> Callable[[], Iterator[int]]:
    def inner() -> Iterator[int]:
        return (i for i in range(3))

    return inner


def test_functions_that_were_there_before() -> None:
    speed_bump.install(Config([f"{HERE}:*"], delay_ns=0))
    wrapped()
    derived = Derived()
    derived.method(Base)
    derived.static()
    derived.klass()
    assert derived.prop == 1
    derived.key()
    list(outer()())
    expected = [
        "decorate.<locals>.wrapper",
        "wrapped",
        "Base.method",
        "Derived.method",
        "Base.static",
        "Base.klass",
        "Base.prop",
        "Base.<lambda>",
        "outer",
        "outer.<locals>.inner",
        "outer.<locals>.inner.<locals>.<genexpr>",
    ]
    assert {name: calls(name) for name in expected} == dict.fromkeys(expected, 1)


def test_functions_that_come_later() -> None:
    speed_bump.install(Config(["later:*"], delay_ns=0))
    space: dict[str, Any] = {"__name__": "later"}
    exec(
        "class A:\n"
        "    def m(self): return (lambda: 0)()\n"
        "def f():\n"
        "    global g\n"
        "    def g(): pass\n",
        space,
    )
    space["A"]().m()
    space["f"]()
    space["g"]()
    names = {f.name for f in speed_bump.stats().functions}
    assert names == {
        f"later:{name}"
        for name in ("<module>", "A", "A.m", "A.m.<locals>.<lambda>", "f", "g")
    }


def test_a_name_of_its_own_counts_only_if_it_can_be_the_code_s() -> None:
    space: dict[str, Any] = {"__name__": "renamed"}
    exec("def f(): pass\ndef g(): pass", space)
    space["f"].__qualname__ = "something.else"
    gc.collect()
    speed_bump.install(Config(["renamed:*"], delay_ns=0))
    space["f"]()
    space["g"]()
    assert (calls("f"), calls("g")) == (1, 1)


def test_only_code_has_one() -> None:
    with pytest.raises(TypeError):
        _core.qualname(len)  # type: ignore[arg-type]
