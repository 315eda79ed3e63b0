# SPDX-License-Identifier: MIT
"""Offsets in CPython's memory are compared with what the interpreter reports."""

from __future__ import annotations

import sys

import pytest
from conftest import Run

# The interpreter's own table of offsets, overwritten before the import.
MOVED = """
import ctypes
start = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
assert ctypes.string_at(start, 8) == b"xdebugpy"
memory = (ctypes.c_uint64 * 16).from_address(start)
memory[{index}] += {by}
try:
    import speed_bump
except ImportError as error:
    print(error)
"""
VERSION, INTERPRETERS, THREADS = 1, 5, 9


@pytest.mark.skipif(sys.version_info < (3, 13), reason="it has no table of offsets")
@pytest.mark.parametrize(
    ("index", "by", "what"),
    [
        (VERSION, 1 << 16, "offsets"),
        (INTERPRETERS, 64, "interpreters"),
        (THREADS, 16, "threads"),
    ],
)
def test_an_interpreter_with_another_layout_is_refused(
    python: Run, index: int, by: int, what: str
) -> None:
    done = python(MOVED.format(index=index, by=by))
    assert done.returncode == 0, done.stderr
    assert "speed_bump was compiled for CPython" in done.stdout
    assert f"has its {what} elsewhere: compile it here (pip install" in done.stdout


# The first word that points to this interpreter is the head of the list.
LOST = """
import ctypes
api = ctypes.pythonapi
api.PyInterpreterState_Get.restype = ctypes.c_void_p
mine = api.PyInterpreterState_Get()
memory = (ctypes.c_uint64 * 512).in_dll(api, "_PyRuntime")
head = next(i for i in range(512) if memory[i] == mine)
memory[head] = 0
try:
    import speed_bump
except ImportError as error:
    print(error)
finally:
    memory[head] = mine
"""


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="it says itself where things are")
def test_an_interpreter_that_is_not_where_its_headers_say(python: Run) -> None:
    done = python(LOST)
    assert done.returncode == 0, done.stderr
    assert "has its interpreters elsewhere: compile it here" in done.stdout
