# SPDX-License-Identifier: MIT
"""Subinterpreters, also with a GIL of their own: separate hooks, one table."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from conftest import Run

# How to make a subinterpreter and run code in it, which differs between versions.
PRELUDE = """
import sys, threading
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
def make(isolated):
    if sys.version_info >= (3, 13):
        return interpreters.create("isolated" if isolated else "legacy")
    return interpreters.create(isolated=isolated)
def run(interpreter, text):
    if sys.version_info >= (3, 13):
        failed = interpreters.run_string(interpreter, text)
        assert not failed, failed
    else:
        interpreters.run_string(interpreter, text)
def work(): pass
IN = '''
def work(): pass
for _ in range({n}): work()
'''
"""

# 3.10 and 3.11 have no interpreter that refuses such extensions.
kinds = pytest.mark.parametrize(
    "isolated", [False, True] if sys.version_info >= (3, 12) else [False]
)


@kinds
def test_each_has_its_own_hook(python: Run, isolated: bool) -> None:
    program = f"""{PRELUDE}
import speed_bump
from speed_bump import Config
first, second = make({isolated}), make({isolated})
speed_bump.install(Config(["__main__:work"], delay_ns=0))
run(first, IN.format(n=5))
run(second, '''
import speed_bump
speed_bump.install(speed_bump.Config(["__main__:work"], delay_ns=0))
''' + IN.format(n=7) + '''
(only,) = speed_bump.stats().functions
assert only.calls == 7, only
speed_bump.uninstall()
work()
''')
for _ in range(3): work()
interpreters.destroy(first)
interpreters.destroy(second)
for _ in range(3): work()
(only,) = speed_bump.stats().functions
print(only.calls)
"""
    done = python(program)
    assert (done.stdout, done.returncode) == ("6\n", 0), done.stderr


@kinds
def test_the_environment_slows_all_into_one_table(
    python: Run, targets: Callable[[str], str], isolated: bool
) -> None:
    program = f"""{PRELUDE}
import speed_bump
ids = [make({isolated}) for _ in range(3)]
for i in ids: run(i, IN.format(n=100))
threads = [threading.Thread(target=run, args=(i, IN.format(n=2000))) for i in ids]
for t in threads: t.start()
for t in threads: t.join()
for i in ids: interpreters.destroy(i)
work()
(only,) = [f for f in speed_bump.stats().functions if f.name == "__main__:work"]
print(only.calls)
"""
    done = python(program, SPEED_BUMP_TARGETS=targets("__main__:work delay=500"))
    assert done.returncode == 0, done.stderr
    first, last = done.stderr.splitlines()  # of the process, not of each interpreter
    assert "slowing 1 target" in first
    assert "6,301 calls" in last
    assert done.stdout == "6301\n"


@kinds
def test_one_that_comes_while_others_count(
    python: Run, targets: Callable[[str], str], isolated: bool
) -> None:
    """From then on two interpreters may count at once, one by an older quick way."""
    # 3.12 does not take the GIL from an interpreter for another that shares it: it is
    # given.
    program = f"""{PRELUDE}
import speed_bump, time
count = 0
def some():
    global count
    for _ in range(1000): work()
    count += 1000
some()
other = make({isolated})
thread = threading.Thread(target=run, args=(other, IN.format(n=1_000_000)))
thread.start()
while thread.is_alive(): some(); time.sleep(0)
interpreters.destroy(other)
(only,) = [f for f in speed_bump.stats().functions if f.name == "__main__:work"]
print(only.calls - count)
"""
    done = python(program, SPEED_BUMP_TARGETS=targets("__main__:work delay=0"))
    assert (done.stdout, done.returncode) == ("1000000\n", 0), done.stderr


@kinds
def test_one_that_ends_installed(python: Run, isolated: bool) -> None:
    program = f"""{PRELUDE}
for _ in range(5):
    i = make({isolated})
    run(i, "import speed_bump; from speed_bump import Config\\n"
           "speed_bump.install(Config(['*:*'], delay_ns=0))\\n" + IN.format(n=3))
    interpreters.destroy(i)
work()
print("alive")
"""
    done = python(program)
    assert (done.stdout, done.returncode) == ("alive\n", 0), done.stderr


@kinds
def test_one_that_ends_installed_gives_its_table_back(
    python: Run, isolated: bool
) -> None:
    program = f"""{PRELUDE}
import gc
def size():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * 4096
def once():
    i = make({isolated})
    run(i, "import speed_bump; from speed_bump import Config\\n"
           "speed_bump.install(Config(['*:work'], delay_ns=0))\\n" + IN.format(n=3))
    interpreters.destroy(i)
    gc.collect()
for _ in range(3): once()
before = size()
for _ in range(8): once()
print((size() - before) >> 20)
"""
    done = python(program)
    assert done.returncode == 0, done.stderr
    # A table is 11.8 MiB of address space; CPython itself leaks some.
    assert int(done.stdout) < 8 * 8


@pytest.mark.skipif(sys.version_info < (3, 11), reason="3.10 shares no code")
def test_what_another_extension_keeps_on_shared_code(python: Run) -> None:
    """Another extension may use its index in another interpreter, on shared code."""
    program = f"""{PRELUDE}
import ctypes, os
api = ctypes.pythonapi
prefix = "PyUnstable_" if sys.version_info >= (3, 12) else "_Py"
request = getattr(api, prefix + "Eval_RequestCodeExtraIndex")
put = getattr(api, prefix + "Code_SetExtra")
get = getattr(api, prefix + "Code_GetExtra")
request.restype = ctypes.c_ssize_t
put.argtypes = ctypes.py_object, ctypes.c_ssize_t, ctypes.c_void_p
get.argtypes = ctypes.py_object, ctypes.c_ssize_t, ctypes.POINTER(ctypes.c_void_p)
index = request(None)
codes = [f.__code__ for f in vars(os.path).values() if hasattr(f, "__code__")]
for code in codes: assert put(code, index, 4242) == 0
def kept():
    value, values = ctypes.c_void_p(), set()
    for code in codes:
        assert get(code, index, ctypes.byref(value)) == 0
        values.add(value.value)
    return values
assert kept() == {{4242}}
i = make(False)
run(i, '''
import os, speed_bump
from speed_bump import Config
for pattern in ("*:*", "posixpath:join"):
    speed_bump.install(Config([pattern], delay_ns=0))
    for _ in range(50): os.path.join("a", "b"); os.path.basename("a"); os.path.isabs("a")
    (only,) = [f for f in speed_bump.stats().functions if f.name == "posixpath:join"]
    assert only.calls == 50, only
speed_bump.uninstall()
''')
assert kept() == {{4242}}, kept()
interpreters.destroy(i)
assert kept() == {{4242}}, kept()
print("kept")
"""
    done = python(program)
    assert (done.stdout, done.returncode) == ("kept\n", 0), done.stderr


@pytest.mark.skipif(sys.version_info < (3, 12), reason="all are under one GIL")
def test_what_one_lets_go_is_not_read_by_another(python: Run) -> None:
    """All interpreters share the slots of static types, and so their thunks."""
    program = f"""{PRELUDE}
import os, weakref
# Threads are interrupted by each other, wherever they are.
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
proxied = lambda x: x
proxy, called, done = weakref.proxy(proxied), 0, False
def call():
    global called
    while not done:
        for _ in range(1000): proxy(1)
        called += 1000
thread = threading.Thread(target=call, daemon=True)
thread.start()
i = make(True)
run(i, '''
import sys, time, types, weakref, speed_bump
many = sys.modules["many"] = types.ModuleType("many")
names = ["f%d" % n for n in range(200)]
kept = [(lambda x: x) for _ in names]
for name, function in zip(names, kept): setattr(many, name, weakref.proxy(function))
config = speed_bump.Config(["many:" + name for name in names], delay_ns=0)
end = time.monotonic() + 1
while time.monotonic() < end:
    speed_bump.install(config)
    many.f7(1)
found = {{f.name: f.calls for f in speed_bump.stats().functions}}
assert found["many:f7"] >= 1, found
''')
done = True
thread.join()
assert called
print("alive")
"""
    # Freed memory is unmapped at once.
    done = python(program, MALLOC_MMAP_THRESHOLD_="4096")
    assert (done.stdout, done.returncode) == ("alive\n", 0), done.stderr
