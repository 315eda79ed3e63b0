# SPDX-License-Identifier: MIT
"""Durations of calls and between marks, as they are recorded.

A duration is at least what the body measures itself and at most what the caller measures.
So a busy machine makes the numbers larger, but no test fails. Most tests are programs
that check themselves with the same helpers: hence the length.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import schemas
from conftest import Run

# Before 3.12 a start needs C stack, and each start is seen; without a GIL a start may
# need C stack, and code is freed late.
GIL_SINCE_3_12 = pytest.mark.skipif(
    sys.version_info < (3, 12) or bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="a start is not as in 3.12 and later with a GIL",
)

# Records durations, and compares each event with times that the program measured around
# it and inside it. The two clocks are compared repeatedly.
HEAD = """
import asyncio, os, signal, sys, threading, time
import speed_bump
from speed_bump import Config, _core, begin, control, end, slow, spin_delay_ns
from speed_bump.experiment.program.latency import Events, histograms
now = time.monotonic_ns
def record(*names, targets=('nothing:nothing',)):
    global table, events
    table = _core.Table(latencies=names, rings=1)
    events = Events(table)
    control._install(Config(targets), table)
def counts():
    return [one.count for one in histograms(table)]
spans = []
def check(name=0, seen=None):
    found = [e for e in (events.events() if seen is None else seen) if e['name'] == name]
    found.sort(key=lambda e: int(e['begin_ns']))
    spans.sort(key=lambda span: span[1])
    assert len(found) == len(spans), (len(found), len(spans))
    for event, (before, first, last, after) in zip(found, spans):
        start, length = int(event['begin_ns']), int(event['duration_ns'])
        slack = 20_000 + length // 500
        assert before - slack <= start <= first + slack, (event, before, first)
        assert last - slack <= start + length <= after + slack, (event, last, after)
        assert length >= last - first - slack, (event, last - first)
    (one,) = [h for i, h in enumerate(histograms(table)) if i == name]
    assert one.count == len(spans)
    assert one.sum_ns == sum(int(e['duration_ns']) for e in found)
    assert one.max_ns == max(int(e['duration_ns']) for e in found)
    spans.clear()
    print('good', len(found))
"""


def test_calls_exceptions_and_recursion(python: Run) -> None:
    done = python(
        HEAD + "class Thing:\n"
        "    def work(self, ns, fails=False):\n"
        "        first = now()\n"
        "        spin_delay_ns(ns)\n"
        "        spans.append([0, first, now(), 0])\n"
        "        if fails: raise KeyError\n"
        "def down(depth):\n"
        "    before = now()\n"
        "    deeper(depth)\n"
        "    next(s for s in spans if s[3] == -depth)[0::3] = before, now()\n"
        "def deeper(depth):\n"
        "    first = now()\n"
        "    if depth > 1: down(depth - 1)\n"
        "    spin_delay_ns(1_000_000)\n"
        "    spans.append([0, first, now(), -depth])\n"
        "record('__main__:Thing.work', '__main__:deeper')\n"
        "for i in range(30):\n"
        "    before = now()\n"
        "    try: Thing().work(1_000 * 2 ** (i % 12), fails=i % 3 == 0)\n"
        "    except KeyError: pass\n"
        "    spans[-1][0::3] = before, now()\n"
        "check()\n"
        "down(40)\n"
        "check(1)\n"
        "print(speed_bump.stats().functions)\n"
    )
    assert (done.stdout, done.stderr) == ("good 30\ngood 40\n()\n", "")


def test_generators_from_first_entry_to_last_return(python: Run) -> None:
    """The duration includes suspended time, in whatever thread it is resumed."""
    done = python(
        HEAD + "def steps(fails=False):\n"
        "    first = now()\n"
        "    try:\n"
        "        yield 1\n"
        "        yield from [2, 3]\n"
        "        if fails: raise KeyError\n"
        "    finally: spans.append([0, first, now(), 0])\n"
        "record('__main__:steps')\n"
        "def run(generator, how):\n"
        "    before = now()\n"
        "    next(generator)\n"
        "    time.sleep(0.01)\n"
        "    try: how(generator)\n"
        "    except (KeyError, ValueError): pass\n"
        "    spans[-1][0::3] = before, now()\n"
        "def elsewhere(generator):\n"
        "    thread = threading.Thread(target=lambda: list(generator))\n"
        "    thread.start(); thread.join()\n"
        "def with_changes(generator):\n"
        "    with slow('__main__:nothing', '1us'): next(generator)\n"
        "    list(generator)\n"
        "run(steps(), list)\n"
        "run(steps(True), list)\n"
        "run(steps(), lambda generator: generator.throw(ValueError()))\n"
        "run(steps(), lambda generator: generator.close())\n"
        "run(steps(), elsewhere)\n"
        "run(steps(), with_changes)\n"
        "check()\n"
        # A generator that never starts has no duration, and a duration ends only where it
        # began.
        "steps().close()\n"
        "steps()\n"
        "half = steps()\n"
        "next(half)\n"
        "print(counts())\n"
        "record('__main__:steps')\n"
        "list(half)\n"
        "print(counts())\n"
    )
    assert (done.stdout, done.stderr) == ("good 6\n[6]\n[0]\n", "")


# Generators of each kind; how one goes with its end unseen, or only left alone; and a way
# to make one at the address that another had.
ADDRESSES = """
import ctypes, gc, warnings
warnings.simplefilter('ignore')
class Wait:
    def __await__(self): yield 1
def steps():
    yield 1
    yield 2
async def waits(): await Wait()
async def numbers():
    yield 1
    yield 2
class Kind:
    def __init__(self, make): self.make = make
    def first(self, one): one.send(None)
    def throw(self, one): one.throw(KeyError())
    def close(self, one): one.close()
class Asynchronous(Kind):
    def first(self, one): self.drive(one.__anext__())
    def throw(self, one): one.athrow(KeyError()).send(None)
    def close(self, one): self.drive(one.aclose())
    def drive(self, step):
        try: step.send(None)
        except (StopIteration, StopAsyncIteration): pass
kinds = [Kind(steps), Kind(waits), Asynchronous(numbers)]
def unseen(deed):
    if sys.version_info >= (3, 12):
        # No tool is told of what a trace function does.
        def trace(*args):
            if deeds: deeds.pop()()
        deeds = [deed]
        sys.settrace(trace)
        (lambda: None)()
        sys.settrace(None)
        return
    api, pointer = ctypes.pythonapi, ctypes.c_void_p
    api.PyInterpreterState_Get.restype = pointer
    api._PyInterpreterState_GetEvalFrameFunc.restype = pointer
    interpreter = pointer(api.PyInterpreterState_Get())
    ours = pointer(api._PyInterpreterState_GetEvalFrameFunc(interpreter))
    own = ctypes.cast(api._PyEval_EvalFrameDefault, pointer)
    api._PyInterpreterState_SetEvalFrameFunc(interpreter, own)
    deed()
    api._PyInterpreterState_SetEvalFrameFunc(interpreter, ours)
def leave(kind, how):
    # The address of one that was run for a step, and went.
    one = kind.make()
    kind.first(one)
    held, address = [one], id(one)
    del one
    how(held.clear)
    assert not held
    return address
def make_at(address, make):
    others = []
    for _ in range(20_000):
        one = make()
        if id(one) == address: return one
        others.append(one)
    sys.exit('the address was not used again')
"""


@pytest.mark.parametrize("how", ["unseen", "lambda deed: deed()"])
def test_generators_at_reused_addresses_are_told_apart(python: Run, how: str) -> None:
    """One that went without an end has nothing to do with the next."""
    done = python(
        HEAD
        + ADDRESSES
        + "names = '__main__:steps', '__main__:waits', '__main__:numbers'\n"
        "record(*names)\n"
        "def thrown(kind, one):\n"
        "    try: kind.throw(one)\n"
        "    except KeyError: return 0\n"
        "def closed(kind, one):\n"
        "    kind.close(one)\n"
        "    return 0\n"
        "def dropped(kind, one): return 0\n"
        "def ended(kind, one):\n"
        "    kind.first(one)\n"
        "    thrown(kind, one)\n"
        "    return 1\n"
        "for kind in kinds:\n"
        "    for way in (thrown, closed, dropped, ended):\n"
        f"        address = leave(kind, {how})\n"
        "        time.sleep(0.01)\n"
        "        start = now()\n"
        "        one = make_at(address, kind.make)\n"
        "        events.events()\n"
        "        expected = way(kind, one)\n"
        "        del one\n"
        "        found = events.events()\n"
        "        assert len(found) == expected, (kind.make, way, found)\n"
        "        for event in found:\n"
        "            assert int(event['begin_ns']) > start - 5_000_000, way\n"
        "print('good')\n"
    )
    assert (done.stdout, done.stderr) == ("good\n", "")


@GIL_SINCE_3_12
def test_a_start_at_reused_addresses_that_is_not_recorded(python: Run) -> None:
    """There is no room to look the function up: its end is not that of another start."""
    done = python(
        HEAD + ADDRESSES + "record('__main__:steps')\n"
        "def step(one):\n"
        "    for _ in one: break\n"
        "def dive(_):\n"
        "    try: return max((0,), key=dive)\n"
        "    except RecursionError: step(one)\n"
        "    return 0\n"
        "for _ in range(100): step(steps())\n"
        "one = make_at(leave(kinds[0], unseen), steps)\n"
        "with slow('__main__:nothing', '1us'): pass\n"
        "events.events()\n"
        "time.sleep(0.01)\n"
        "start = now()\n"
        "sys.setrecursionlimit(100_000)\n"
        "dive(0)\n"
        "print(list(one))\n"
        # In 3.12 there is room, and it is recorded.
        "for event in events.events():\n"
        "    assert int(event['begin_ns']) > start - 5_000_000\n"
    )
    assert (done.stdout, done.stderr) == ("[2]\n", "")


@GIL_SINCE_3_12
def test_code_at_reused_addresses_is_told_apart(python: Run) -> None:
    """What is not recorded has no duration, wherever it and its code are."""
    done = python(
        HEAD + ADDRESSES + "def define(name):\n"
        "    space = {'__name__': '__main__'}\n"
        "    exec(f'def {name}():\\n yield 1\\n raise KeyError', space)\n"
        "    return space[name]\n"
        "def fail(one):\n"
        "    try: list(one)\n"
        "    except KeyError: pass\n"
        "record('__main__:recorded')\n"
        "kind = Kind(define('recorded'))\n"
        "address, code = leave(kind, unseen), id(kind.make.__code__)\n"
        "del kind\n"
        "gc.collect()  # of it, and of the names around it\n"
        "others = []\n"
        "while id((other := define('other__')).__code__) != code:\n"
        "    others.append(other)\n"
        "    assert len(others) < 20_000, 'the address was not used again'\n"
        # Its start is told of once, elsewhere, and then no more.
        "here = make_at(address, other)\n"
        "fail(other())\n"
        "del here\n"
        "fail(make_at(address, other))\n"
        "print(counts())\n"
    )
    assert (done.stdout, done.stderr) == ("[0]\n", "")


def test_a_thousand_tasks_at_once(python: Run) -> None:
    """Coroutines, some of which are cancelled or fail, and asynchronous generators."""
    done = python(
        HEAD + "import random\n"
        "random.seed(1)\n"
        "async def request(i, span):\n"
        "    span[1] = now()\n"
        "    try:\n"
        "        for _ in range(i % 5): await asyncio.sleep(random.random() / 100)\n"
        "        if i % 50 == 4: await asyncio.sleep(1000)\n"
        "        if i % 50 == 7: raise KeyError\n"
        "    finally: span[2] = now()\n"
        "async def numbers(span):\n"
        "    span[1] = now()\n"
        "    for i in range(3):\n"
        "        await asyncio.sleep(0.001)\n"
        "        yield i\n"
        "    span[2] = now()\n"
        "async def client(i):\n"
        "    span = [now(), 0, 0, 0]\n"
        "    try:\n"
        "        if i % 10: await request(i, span)\n"
        "        else: assert [n async for n in numbers(span)] == [0, 1, 2]\n"
        "    except (KeyError, asyncio.CancelledError): pass\n"
        "    span[3] = now()\n"
        "    (spans if i % 10 else others).append(span)\n"
        "others = []\n"
        "async def main():\n"
        "    tasks = [asyncio.ensure_future(client(i)) for i in range(1000)]\n"
        "    await asyncio.wait([t for i, t in enumerate(tasks) if i % 50 != 4])\n"
        "    for task in tasks: task.cancel()\n"
        "    await asyncio.gather(*tasks)\n"
        "record('__main__:request', '__main__:numbers')\n"
        "asyncio.run(main())\n"
        "seen = events.events()\n"
        "check(0, seen)\n"
        "spans = others\n"
        "check(1, seen)\n"
    )
    assert (done.stdout, done.stderr) == ("good 900\ngood 100\n", "")


def test_delays_are_a_part_of_it(python: Run) -> None:
    done = python(
        HEAD + "def work(): spin_delay_ns(1_000_000)\n"
        "async def waits(): await asyncio.sleep(0.001)\n"
        "names = ('__main__:work', '__main__:waits')\n"
        "for delay in ('0', '5ms', '500%'):\n"
        "    record(*names, targets=[f'{name} delay={delay}' for name in names])\n"
        "    for _ in range(20): work(), asyncio.run(waits())\n"
        "    seen = events.events()\n"
        "    found = [min(int(e['duration_ns']) for e in seen if e['name'] == name)\n"
        "             for name in (0, 1)]\n"
        "    calls = sum(f.calls for f in speed_bump.stats().functions)\n"
        "    print(calls, [ns > 4_900_000 for ns in found], counts())\n"
    )
    lines = done.stdout.splitlines()
    assert done.stderr == ""
    assert lines[0].startswith("40 [") and lines[0].endswith("] [20, 20]")
    assert lines[1] == "40 [True, True] [20, 20]"
    # For a coroutine, a part of the time in which it runs.
    assert " [True, " in lines[2] and lines[2].endswith("] [20, 20]")


def test_threads_and_changes_meanwhile(python: Run) -> None:
    done = python(
        HEAD + "names = [f'work{i}' for i in range(6)]\n"
        "for name in names:\n"
        "    exec(f'def {name}(span):\\n'\n"
        "         '    span[1] = now()\\n'\n"
        "         '    time.sleep(0.0002)\\n'\n"
        "         '    span[2] = now()\\n')\n"
        "each = {name: [] for name in names}\n"
        "def many(name):\n"
        "    function = globals()[name]\n"
        "    for _ in range(200):\n"
        "        span = [now(), 0, 0, 0]\n"
        "        function(span)\n"
        "        span[3] = now()\n"
        "        each[name].append(span)\n"
        "record(*(f'__main__:{name}' for name in names))\n"
        "threads = [threading.Thread(target=many, args=(name,)) for name in names]\n"
        "for thread in threads: thread.start()\n"
        # A call during which patterns change is recorded all the same.
        "while any(thread.is_alive() for thread in threads):\n"
        "    with slow('__main__:other', '1us'): time.sleep(0.003)\n"
        "seen = events.events()\n"
        "for i, name in enumerate(names):\n"
        "    spans = each[name]\n"
        "    check(i, seen)\n"
    )
    assert (done.stdout, done.stderr) == ("good 200\n" * 6, "")


def test_calls_that_are_under_way_when_it_begins_are_left_out(python: Run) -> None:
    """Later calls are recorded, but not those that began in another table."""
    done = python(
        HEAD + "def work(n=0):\n"
        "    if n == 1: record('__main__:work')\n"
        # One return instruction for all, which calls in progress reach first.
        "    for _ in range(n > 0): work(n - 1)\n"
        "for _ in range(2):\n"
        "    work(3)\n"
        "    for _ in range(5): work()\n"
        "    print(counts())\n"
    )
    assert (done.stdout, done.stderr) == ("[6]\n[6]\n", "")


def test_forks_and_killed_children_are_counted_once_each(python: Run) -> None:
    done = python(
        HEAD + "def work(n=0):\n"
        "    spin_delay_ns(1000)\n"
        "    if n: work(n - 1)\n"
        "def forks():\n"
        "    global pid\n"
        "    pid = os.fork()\n"
        "record('__main__:work', '__main__:forks', 'mark')\n"
        "work(4)\n"
        "children = []\n"
        "begin('mark', 0)\n"
        "for i in range(5):\n"
        "    ends = os.pipe()\n"
        "    forks()\n"
        "    if not pid:\n"
        "        end('mark', 0)\n"
        "        for _ in range(100 * i): work()\n"
        "        os.write(ends[1], b'.')\n"
        "        if i % 2: os._exit(0)\n"
        "        time.sleep(1000)\n"
        "    os.read(ends[0], 1)\n"
        "    os.kill(pid, signal.SIGKILL)\n"
        "    os.waitpid(pid, 0)\n"
        "    children.append(pid)\n"
        "end('mark', 0)\n"
        "work()\n"
        "found = events.events()\n"
        "print(counts(), [h.unbegun for h in histograms(table)], len(found))\n"
        "print([int(((found['pid'] == pid) & (found['name'] == 0)).sum())\n"
        "       for pid in (os.getpid(), *children)])\n"
    )
    assert done.stderr == ""
    # forks() returns in parent and child: only the calling process records its duration.
    assert done.stdout.splitlines() == [
        "[1006, 5, 1] [0, 0, 5] 1012",
        "[6, 0, 100, 200, 300, 400]",
    ]


def test_quantiles_are_those_of_numpy(python: Run) -> None:
    """Exact to 1/128: those of all processes, and of merged histograms."""
    done = python(
        HEAD + "import random\n"
        "import numpy as np\n"
        "def work(ns): spin_delay_ns(ns)\n"
        "all, merged = [], None\n"
        "for run in range(2):\n"
        "    record('__main__:work')\n"
        "    for _ in range(2000): work(int(10 ** random.uniform(1.5, 5.5)))\n"
        "    all.append(events.events()['duration_ns'])\n"
        "    (one,) = histograms(table)\n"
        "    merged = merged.merged(one) if merged else one\n"
        "values = np.concatenate(all).astype(float)\n"
        "def near(a, b): return abs(a - b) <= b / 128 + 1\n"
        "for q in (0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1):\n"
        "    exact = np.quantile(values, q, method='inverted_cdf')\n"
        "    assert near(merged.quantile_ns(q), exact), (q, exact)\n"
        "assert merged.count == 4000 and merged.sum_ns == int(values.sum())\n"
        "assert near(merged.mean_ns, values.mean()) and merged.max_ns == values.max()\n"
        "print('good')\n"
    )
    assert (done.stdout, done.stderr) == ("good\n", "")


@pytest.mark.one_python
def test_buckets_have_every_duration_once() -> None:
    from speed_bump.experiment.program.latency import lowest, middle

    bounds = [lowest(bucket) for bucket in range(2242)]
    assert bounds[:129] == [*range(128), 128]
    assert bounds[2240] == 2**40
    for low, high, bucket in zip(bounds, bounds[1:], range(2241), strict=False):
        assert low < high <= max(low + 1, low * 65 / 64)
        assert low <= middle(bucket) < high


def test_what_is_overwritten_unread_is_counted(python: Run) -> None:
    done = python(
        HEAD + "record('mark')\n"
        "def marks(first, last):\n"
        "    for i in range(first, last):\n"
        "        begin('mark', i); end('mark', i)\n"
        "size = _core.LATENCY_RING_EVENTS\n"
        "marks(0, size)\n"
        "print(len(events.events()) == size, events.lost)\n"
        "marks(0, size + 1234)\n"
        "print(len(events.events()) == size, events.lost)\n"
        # Nothing is lost if events are read in time, whatever happened before.
        "got = 0\n"
        "for i in range(50):\n"
        "    marks(0, 1000)\n"
        "    got += len(events.events())\n"
        "print(got, events.lost, len(events.events(ended=True)))\n"
        "print(counts()[0] == 2 * size + 1234 + 50_000)\n"
    )
    assert done.stdout == "True 0\nTrue 1234\n50000 1234 0\nTrue\n", done.stderr


def test_events_are_whole_while_others_write(python: Run) -> None:
    """Read while four processes write into two rings as fast as they can."""
    done = python(
        HEAD + "table = _core.Table(latencies=['mark'], rings=2)\n"
        "control._install(Config(['nothing:nothing']), table)\n"
        "events = Events(table)\n"
        "pids = []\n"
        "for _ in range(4):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        for i in range(20_000):\n"
        "            begin('mark', i); end('mark', i)\n"
        "        os._exit(0)\n"
        "    pids.append(pid)\n"
        "per, start = dict.fromkeys(pids, 0), now()\n"
        "def drain(ended=False):\n"
        "    for event in events.events(ended=ended):\n"
        "        per[int(event['pid'])] += 1\n"
        "        assert event['name'] == 0\n"
        "        assert start - 10**9 < event['begin_ns'] < now() + 10**9\n"
        "        assert event['duration_ns'] < now() - start + 10**9\n"
        "left = set(pids)\n"
        "while left:\n"
        "    drain()\n"
        "    left -= {pid for pid in left if os.waitpid(pid, os.WNOHANG)[0]}\n"
        "drain(True)\n"
        "print(sum(per.values()) + events.lost, counts())\n"
        "print(all(n <= 20_000 for n in per.values()))\n"
    )
    assert (done.stdout, done.stderr) == ("80000 [80000]\nTrue\n", "")


def test_marks_cross_threads_and_are_matched_by_key(python: Run) -> None:
    done = python(
        HEAD + "begin('a', 1); end('a', 1); end('a', 2)\n"  # not recorded
        "record('a', 'b', '__main__:work')\n"
        "def work(): pass\n"
        "for key in (1, 'x', (1, 2), None, object()):\n"
        "    before = now()\n"
        "    begin('a', key)\n"
        "    begin('b', key)\n"
        "    span = [before, now(), 0, 0]\n"
        "    def finish():\n"
        "        span[2] = now()\n"
        "        end('a', key)\n"
        "        span[3] = now()\n"
        "    thread = threading.Thread(target=finish)\n"
        "    thread.start(); thread.join()\n"
        "    spans.append(span)\n"
        "check()\n"
        # Begun again, ended twice, and with names that are not recorded or belong to
        # functions.
        "begin('a', 7); begin('a', 7); end('a', 7); end('a', 7)\n"
        "begin('c', 7); end('c', 7); begin('__main__:work', 1); end('__main__:work', 1)\n"
        "print([(h.count, h.unended, h.unbegun) for h in histograms(table)])\n"
        "class Wrong:\n"
        "    def __hash__(self): return 1\n"
        "    def __eq__(self, other): raise ValueError('eq')\n"
        "begin('a', Wrong())\n"
        "for call in (lambda: begin('a', []), lambda: begin(b'a', 1), lambda: end('a'),\n"
        "             lambda: begin('a', Wrong())):\n"
        "    try: call(); print('went')\n"
        "    except (TypeError, ValueError) as error: print(type(error).__name__)\n"
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "good 5",
        "[(6, 1, 1), (0, 5, 0), (0, 0, 0)]",
        "TypeError",
        "TypeError",
        "TypeError",
        "ValueError",
    ]


def test_marks_without_end_take_no_more_and_more_room(python: Run) -> None:
    done = python(
        HEAD + "import gc, weakref\n"
        "class Key: pass\n"
        "record('a')\n"
        "alive = weakref.WeakSet()\n"
        "for i in range(150_000):\n"
        "    key = Key()\n"
        "    alive.add(key)\n"
        "    begin('a', key)\n"
        "gc.collect()\n"
        "print(32_768 <= len(alive) <= 65_537)\n"
        # The newest are kept.
        "end('a', key)\n"
        "print(counts(), histograms(table)[0].unended)\n"
        "record('a')\n"
        "begin('a', 1)\n"
        "gc.collect()\n"
        "print(len(alive) <= 1)\n"
    )
    assert (done.stdout, done.stderr) == ("True\n[1] 149999\nTrue\n", "")


def test_keys_are_let_go_when_nothing_is_recorded(python: Run) -> None:
    done = python(
        HEAD + "import gc, weakref\n"
        "class Key: pass\n"
        "record('a')\n"
        "key = Key(); begin('a', key)\n"
        "seen = weakref.ref(key); del key\n"
        "gc.collect(); print(seen() is not None)\n"
        "speed_bump.uninstall()\n"
        "gc.collect(); print(seen())\n"
        "end('a', 1); begin('a', 2); print('good')\n"
    )
    assert (done.stdout, done.stderr) == ("True\nNone\ngood\n", "")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="no collector there")
def test_a_mark_that_begins_within_another(python: Run) -> None:
    """To make room for one may run the garbage collector, which begins another here."""
    done = python(
        HEAD + "import gc\n"
        "class Ends:\n"
        "    def __del__(self): begin('mark', 'inner')\n"
        "gc.disable()\n"
        "held = []\n"
        "for _ in range(5):\n"
        "    record('mark')\n"
        "    one = Ends(); one.self = one; del one\n"
        "    held += [{} for _ in range(100)]  # no dictionary is at hand\n"
        "    limits = gc.get_threshold()\n"
        "    gc.set_threshold(1)\n"
        "    gc.enable()\n"
        "    begin('mark', 'outer')\n"
        "    gc.disable()\n"
        "    gc.set_threshold(*limits)\n"
        "    end('mark', 'inner'); end('mark', 'outer')\n"
        "    print(counts(), [h.unbegun for h in histograms(table)])\n"
    )
    assert (done.stdout, done.stderr) == ("[2] [0]\n" * 5, "")


def test_marks_of_a_recording_that_is_over_do_no_harm(python: Run) -> None:
    """A thread may be in the middle of one while the next recording begins."""
    done = python(
        HEAD + "stop = False\n"
        "def other():\n"
        "    while not stop:\n"
        "        for i in range(100): begin('other', i); end('other', i)\n"
        "threads = [threading.Thread(target=other) for _ in range(6)]\n"
        "record('mark', 'other')\n"
        "for thread in threads: thread.start()\n"
        "for _ in range(200):\n"
        "    record('mark', 'other')\n"
        "    for i in range(30): begin('mark', i)\n"
        "    for i in range(30): end('mark', i)\n"
        "    (one,) = [h for h in histograms(table) if h.name == 'mark']\n"
        "    if (one.count, one.unbegun) != (30, 0): print(one.count, one.unbegun)\n"
        "stop = True\n"
        "for thread in threads: thread.join()\n"
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_names_that_can_not_be_asked_for_are_no_errors(python: Run) -> None:
    done = python(
        HEAD + "from speed_bump.experiment.program.latency import marks_not_asked_for\n"
        "record('req')\n"
        "for name in ('\\udc80', 'req\\0x'):\n"
        "    begin(name, 1); end(name, 1)\n"
        "print(counts())\n"
        # They do not use the places of others either.
        "for i in range(40): begin('n' * 40_000, i)\n"
        "begin('other', 1)\n"
        "print(marks_not_asked_for(table))\n"
    )
    assert (done.stdout, done.stderr) == ("[0]\n['other']\n", "")


def test_interpreters_do_not_forget_the_calls_of_each_other(python: Run) -> None:
    done = python(
        HEAD + "try: import _interpreters as interpreters\n"
        "except ImportError: import _xxsubinterpreters as interpreters\n"
        "def steps():\n"
        "    yield 1\n"
        "record('__main__:steps')\n"
        "table.share()\n"
        "waiting = [steps() for _ in range(2_000)]\n"
        "for one in waiting: next(one)\n"
        "interpreters.run_string(interpreters.create(), '''\n"
        "from speed_bump import Config, _core, control\n"
        "table = _core.Table.of_process()\n"
        "control._install(Config(('nothing:nothing',)), table)\n"
        "def steps():\n"
        "    yield 1\n"
        "waiting = [steps() for _ in range(20_000)]\n"
        "for one in waiting: next(one)\n"
        "for one in waiting: list(one)\n"
        "''')\n"
        "for one in waiting: list(one)\n"
        "print(counts())\n"
    )
    assert (done.stdout, done.stderr) == ("[22000]\n", "")


# ------------------------------------------------------------------------- the tool

APP = """
import asyncio, json, multiprocessing, os, sys, time
import speed_bump
class Server:
    def handle(self): time.sleep(0.001)
async def request(): await asyncio.sleep(0.001)
async def main(): await asyncio.gather(*(request() for _ in range(40)))
def child():
    for _ in range(10): Server().handle()
def hangs():
    os._exit(0)
if __name__ == "__main__":
    child()
    asyncio.run(main())
    for way in ("fork", "spawn"):
        process = multiprocessing.get_context(way).Process(target=child)
        process.start()
        process.join()
    for i in range(5): speed_bump.begin("job", i)
    speed_bump.end("job", 3)
    speed_bump.end("job", 9)
    if sys.argv[1:]: hangs()
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


def tool(
    app: Path, environ: dict[str, str], *words: str, then: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "speed_bump", *words, "--", sys.executable]
    return subprocess.run(
        [*command, app.name, *then],
        cwd=app.parent,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_run_shows_all_processes_together(app: Path, environ: dict[str, str]) -> None:
    names = ("__main__:Server.*", "__main__:request", "job")
    words = [word for name in names for word in ("--latency", name)]
    done = tool(app, environ, "run", *words, "--json", "-")
    assert done.returncode == 0, done.stderr
    found = schemas.read("run", done.stdout)["latency"]
    assert [(one["name"], one["requests"]) for one in found] == [
        (names[0], 30),
        (names[1], 40),
        (names[2], 1),
    ]
    for one in found[:2]:
        assert sum(n for _, _, n in one["buckets"]) == one["requests"]
        assert one["buckets"][0][1] >= 990_000
        assert one["p50_ns"] <= one["p90_ns"] <= one["p99_ns"] <= one["max_ns"]
        assert one["buckets"][0][0] <= one["mean_ns"] <= one["max_ns"]
        assert one["max_ns"] <= one["buckets"][-1][1]
    lines = done.stderr.splitlines()
    assert lines[0].split() == (
        ["count", "rate", "mean", "p50", "p90", "p99", "p99.9", "max", "latency"]
    )
    assert [line.split()[0] for line in lines[1:4]] == ["30", "40", "1"]
    assert lines[4] == "job: 4 of 5 begun have not ended, and are left out"
    assert lines[5] == "job: 1 ends had no beginning"


def test_run_attaches(tmp_path: Path, environ: dict[str, str]) -> None:
    path = tmp_path / "long.py"
    path.write_text(
        "import time, speed_bump\n"
        "def handle(): time.sleep(0.001)\n"
        "print('up', flush=True)\n"
        "while not speed_bump.is_installed(): handle()\n"
        "for _ in range(50): handle()\n"
    )
    program = subprocess.Popen(
        [sys.executable, str(path)],
        env=environ | {"SPEED_BUMP_ATTACH": "1"},
        stdout=subprocess.PIPE,
    )
    with program:
        assert program.stdout
        assert program.stdout.readline() == b"up\n"
        words = ("run", "--latency", "__main__:handle", "--pid", str(program.pid))
        done = subprocess.run(
            [sys.executable, "-m", "speed_bump", *words, "--json", "-"],
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        program.kill()
    assert '"name": "__main__:handle"' in done.stdout, done.stderr
    (one,) = schemas.read("run", done.stdout)["latency"]
    # One more may have begun before the program noticed.
    assert one["requests"] in (50, 51)


def test_run_says_why_nothing_was_recorded(app: Path, environ: dict[str, str]) -> None:
    asked = ("__main__:Server.handl", "jobs", "__main__:hangs", "datetime:datetime.now")
    words = [word for name in asked for word in ("--latency", name)]
    done = tool(app, environ, "run", *words, then=("hang",))
    assert done.returncode == 1
    assert "__main__:Server.handl was never called: " in done.stderr
    assert "did you mean __main__:Server.handle?" in done.stderr
    assert "jobs: the program never called speed_bump.begin('jobs', key); " in done.stderr
    assert "it has begun 'job'" in done.stderr
    assert "__main__:hangs: a request began, and none" in done.stderr
    assert "datetime:datetime.now can't be a target: it is written in C" in done.stderr


@pytest.mark.one_python
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--latency", "__main__:Server"], "it is a type; name a method of it, such as"),
        (["--latency", "zlib:crc32"], "it is written in C, and its end is not seen"),
        (["--latency", "native:./x:a.c:42"], "a line has no duration; name its function"),
        (["--latency", "libz.so.1:deflate 1us"], "options are of delays"),
        (["--latency", "app.py:7"], "a line has no duration; name its function"),
        (["--latency", "__main__:child delay=1us"], "options are of delays"),
        (["--latency", "!__main__:child"], "is not one function"),
        (["--latency", ""], "a name is not empty"),
        (["--compare", "-t", "a:b", "--latency", "a:b"], "without --compare"),
        ([f"--latency=a:b{i}" for i in range(33)], "at most 32, not 33"),
    ],
)
def test_what_has_no_duration_is_refused_before_anything_starts(
    app: Path, environ: dict[str, str], words: list[str], says: str
) -> None:
    app.write_text(APP + "open('started', 'w')\n")
    done = tool(app, environ, "run", *words)
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1]
    assert not (app.parent / "started").exists()


@pytest.mark.one_python
def test_events_are_read_while_a_program_runs(tmp_path: Path) -> None:
    """As the experiment does it."""
    import numpy as np
    from speed_bump.experiment.program.progress import Progress
    from speed_bump.experiment.program.runner import Runner
    from speed_bump.experiment.program.workload import Workload

    path = tmp_path / "app.py"
    path.write_text(
        "import os, time\n"
        "def handle(): time.sleep(0.001)\n"
        "os.fork()\n"
        "for _ in range(300): handle()\n"
    )
    names = ("__main__:other", "__main__:handle")
    with (
        Runner([sys.executable, str(path)], latencies=names) as runner,
        Workload(runner, [], Progress()) as workload,
    ):
        durations = workload.durations
        assert durations
        assert durations.names == names
        parts = []
        while workload.is_running():
            parts.append(durations.events())
        workload.wait()
        parts.append(durations.events(ended=True))
    found = np.concatenate(parts)
    assert len(found) + durations.lost >= 300
    assert set(found["name"]) == {1}
    assert (found["duration_ns"] >= 990_000).all()
    assert sum(len(part) > 0 for part in parts) > 1
