# SPDX-License-Identifier: MIT
"""A signal during a long delay: an exception of its handler ends the call."""

from __future__ import annotations

import signal

import pytest
from conftest import Run

# The timer's signal arrives during the delay of 10 s.
PROGRAM = """
import asyncio, collections, functools, signal, sys, zlib
import speed_bump
from speed_bump import Config

class Stop(BaseException): pass
def handler(number, frame):
    handled.append(number)
    {handler}
handled, ran, closed = [], [], []
signal.signal(signal.SIGALRM, handler)

def plain(): ran.append(1)
def steps():
    try:
        while True: yield ran.append(1)
    finally: closed.append(1)
async def waits(): ran.append(1)
class Thing:
    def __init__(self): ran.append(1)
def nested(): plain()
cached = functools.lru_cache(None)(ord)
queue = collections.deque([1])

def call():
    {call}

speed_bump.install(Config(["{target} delay={delay}"]))
signal.setitimer(signal.ITIMER_REAL, 0.3)
raised = False
try:
    call()
except Stop as error:
    raised = True
    names = []
    traceback = error.__traceback__
    while traceback:
        names.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert names[-1] == "handler", names
signal.setitimer(signal.ITIMER_REAL, 0)
assert handled == [signal.SIGALRM], handled
assert not sys.exc_info()[0]
measured = sum(f.delivered_ns for f in speed_bump.stats().functions)
requested = sum(f.requested_ns for f in speed_bump.stats().functions)
delayed = sum(f.delayed for f in speed_bump.stats().functions)
print(raised, len(ran), len(closed), delayed, measured < requested / 2)
speed_bump.uninstall()
call()
"""

CALLS = [
    ("__main__:plain", "plain()", "True 0 0"),
    ("__main__:nested", "nested()", "True 0 0"),
    ("__main__:Thing.__init__", "Thing()", "True 0 0"),
    ("__main__:waits", "asyncio.run(waits())", "True 0 0"),
    ("__main__:steps", "[None for _ in zip(range(2), steps())]", "True 0 0"),
    ("zlib:crc32", "zlib.crc32(b'')", "True 0 0"),
    ("builtins:sorted", "sorted([])", "True 0 0"),
    ("time:sleep", "__import__('time').sleep(0)", "True 0 0"),
    ("collections:deque.append", "collections.deque().append(1)", "True 0 0"),
    ("collections:deque.__len__", "len(queue)", "True 0 0"),
    ("collections:deque.__contains__", "1 in queue", "True 0 0"),
    ("collections:deque.__getitem__", "queue[0]", "True 0 0"),
    ("__main__:cached", "cached('a')", "True 0 0"),
]


@pytest.mark.parametrize(("target", "call", "expected"), CALLS)
def test_an_exception_of_a_handler_ends_the_delay_and_the_call(
    python: Run, target: str, call: str, expected: str
) -> None:
    program = PROGRAM.format(handler="raise Stop", call=call, target=target, delay="10s")
    done = python(program, SPEED_BUMP_QUIET="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{expected} 1 True\n"


def test_an_exception_at_a_resumption_is_raised_in_the_generator(python: Run) -> None:
    resumed = "speed_bump.install(Config(['__main__:steps resume=1 delay=10s']))"
    # The program's second call must not take 10 s.
    call = f"g = steps(); next(g); handled or {resumed}; next(g)"
    program = PROGRAM.format(
        handler="raise Stop", call=call, target="nothing:there", delay="0"
    )
    done = python(program, SPEED_BUMP_QUIET="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "True 1 1 1 True\n"


def test_a_handler_that_returns_leaves_the_delay_as_long_as_it_is(python: Run) -> None:
    program = PROGRAM.format(
        handler="pass", call="plain()", target="__main__:plain", delay="600ms"
    )
    done = python(program, SPEED_BUMP_QUIET="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "False 1 0 1 False\n"


@pytest.mark.parametrize("call", ["plain()", "zlib.crc32(b'')", "nested()"])
@pytest.mark.parametrize(
    "deed",
    [
        "speed_bump.uninstall(); speed_bump.install(Config(['a:b']))",
        "speed_bump.install(Config(['*:* delay=0'])); import gc; gc.collect()",
        "plain(); zlib.crc32(b'')",
    ],
)
def test_a_handler_may_change_what_is_in_force(python: Run, call: str, deed: str) -> None:
    target = 'zlib:crc32 delay=400ms", "__main__:*'
    program = PROGRAM.format(handler=deed, call=call, target=target, delay="400ms")
    program = program.split("measured =")[0] + "print('good')\n"
    done = python(program, SPEED_BUMP_QUIET="1")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "good\n")


def test_ctrl_c_ends_a_program_that_is_in_a_delay(python: Run) -> None:
    program = """
import os, signal, time
import speed_bump
def plain(): print("ran")
speed_bump.install(speed_bump.Config(["__main__:plain delay=10s"]))
if not os.fork():
    time.sleep(0.5)
    os.kill(os.getppid(), signal.SIGINT)
    os._exit(0)
plain()
"""
    done = python(program, SPEED_BUMP_QUIET="1")
    assert done.returncode == -signal.SIGINT
    assert done.stdout == ""
    assert "KeyboardInterrupt" in done.stderr
