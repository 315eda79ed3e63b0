# SPDX-License-Identifier: MIT
"""Delays that are a part of each call's duration, at its end: ``delay=5%``."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
import speed_bump
from conftest import Run
from speed_bump import Config, ConfigError
from speed_bump.config import parse_targets

pytestmark = pytest.mark.timed

# For functions of 1 us to 10 ms: the difference between the time outside and the time
# inside, divided by the requested delay, in the median. Each call is compared with
# itself, minus the difference of a bare call. For long delays CPU time is used: other
# programs may run in between, which the duration includes. On a busy machine all delays
# are longer, so fixed delays are measured too.
SLOPE = """
import statistics, time, speed_bump
from time import perf_counter_ns as now
spin = speed_bump.spin_delay_ns
def work(ns):
    global inside, own
    first, begin = clock(), now()
    spin(ns)
    own = now() - begin
    inside = clock() - first
def outside(ns, calls):
    found = []
    for _ in range(calls + 2):
        begin = clock()
        work(ns)
        found.append((clock() - begin - inside, own))
    return found[2:]
ratios, fixed = [], []
for ns, calls in ((1_000, 100), (3_000, 100), (10_000, 50), (30_000, 30), (100_000, 9),
                  (300_000, 5), (1_000_000, 3), (3_000_000, 1), (10_000_000, 1)):
    found, beside = [], []
    clock = now if ns < 100_000 else time.thread_time_ns
    for _ in range(30 if ns < 3_000_000 else 10):
        bare = statistics.median(more for more, _ in outside(ns, calls))
        with speed_bump.slow("__main__:work", "20%"):
            found += [(more - bare) / (0.2 * own) for more, own in outside(ns, calls)]
        with speed_bump.slow("__main__:work", ns // 5):
            beside += [(more - bare) / (ns // 5) for more, _ in outside(ns, calls)]
    ratios.append(statistics.median(found))
    fixed.append(statistics.median(beside))
print(statistics.median(ratios) / statistics.median(fixed), *ratios)
"""

# A body that can be part of a program: work(ns) uses the CPU for about this time.
WORK = """
import speed_bump, sys, threading, time
from speed_bump import Config, install, slow, spin_delay_ns, stats, uninstall
def count(name="work"):
    found = [f for f in stats().functions if f.name == f"__main__:{name}"]
    return tuple(sum(getattr(f, field) for f in found) for field in
                 ("calls", "delayed", "requested_ns", "delivered_ns"))
"""


def test_functions_of_all_durations_become_slower_by_what_was_asked(python: Run) -> None:
    """In the median; for the shortest, the cost of the hooks is a large part."""
    for _ in range(6):
        done = python(SLOPE)
        assert done.stderr == ""
        middle, *ratios = map(float, done.stdout.split())
        if 0.96 < middle < 1.04:
            break
    assert 0.96 < middle < 1.04, ratios
    for ratio in ratios:
        assert 0.5 < ratio < 2, ratios


def test_recursion_does_not_pile_up(python: Run) -> None:
    """Nested calls of one pattern are each slower by their own part only."""
    done = python(
        WORK + "def spin():\n"
        "    global spent\n"
        "    begin = time.perf_counter_ns()\n"
        "    spin_delay_ns(100_000)\n"
        "    spent += time.perf_counter_ns() - begin\n"
        "def work(depth):\n"
        "    spin()\n"
        "    if depth: work(depth - 1)\n"
        "def odd(depth):\n"
        "    spin()\n"
        "    if depth: even(depth - 1)\n"
        "def even(depth):\n"
        "    spin()\n"
        "    if depth: odd(depth - 1)\n"
        "def part(call, *names):\n"
        "    global spent\n"
        "    spent, before = 0, [count(name) for name in names]\n"
        "    call(9)\n"
        "    after = [count(name) for name in names]\n"
        "    return sum(b[2] - a[2] for a, b in zip(before, after)) / spent\n"
        "def middle(*args): return sorted(part(*args) for _ in range(9))[4]\n"
        "with slow('__main__:work', '100%'): print(middle(work, 'work'))\n"
        "with slow('__main__:[oe]*', '100%'): print(middle(odd, 'odd', 'even'))\n"
        # Two patterns are independent.
        "with slow('__main__:odd', '100%'), slow('__main__:even', '50%'):\n"
        "    print(middle(odd, 'odd', 'even'))\n"
    )
    assert done.stderr == ""
    one, two, own = map(float, done.stdout.split())
    # Ten nested calls: 1 + 9/10 + ... would be 5.5 times as much.
    assert 0.8 < one < 1.3
    assert 0.8 < two < 1.3
    # All of the outermost one, and half of nine tenths of it, though those are in it.
    assert 1 < own < 2


@pytest.mark.parametrize(
    ("target", "call"),
    [
        ("__main__:inner delay=40ms", "inner()"),
        ("__main__:inner delay=40ms mode=wait", "inner()"),
        ("zlib:crc32 delay=40ms", "zlib.crc32(b'')"),
        ("__main__:inner delay=4000%", "inner()"),
    ],
)
def test_delays_inside_are_no_duration(python: Run, target: str, call: str) -> None:
    done = python(
        WORK + "import zlib\n"
        "def inner(): spin_delay_ns(1_000_000)\n"
        "def work():\n"
        f"    {call}\n"
        "    spin_delay_ns(1_000_000)\n"
        f"install(Config(['__main__:work delay=100%', {target!r}]))\n"
        "asked = []\n"
        "for _ in range(5):\n"
        "    before = count()[2]\n"
        "    work()\n"
        "    asked.append(count()[2] - before)\n"
        "print(min(asked))\n"
    )
    assert done.stderr == ""
    assert 900_000 < int(done.stdout) < 20_000_000


def test_delays_that_other_threads_wait_for_are_no_duration(python: Run) -> None:
    """Where there is a GIL, in a free-threaded CPython too."""
    free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    done = python(
        WORK + "def inner(): pass\n"
        "def work():\n"
        "    begun.set()\n"
        "    ended.wait()\n"
        "def other():\n"
        "    begun.wait()\n"
        "    inner()\n"
        "    ended.set()\n"
        "install(Config(['__main__:work delay=100%', '__main__:inner delay=60ms']))\n"
        "asked = []\n"
        "for _ in range(5):\n"
        "    begun, ended = threading.Event(), threading.Event()\n"
        "    thread = threading.Thread(target=other)\n"
        "    thread.start()\n"
        "    before = count()[2]\n"
        "    work()\n"
        "    thread.join()\n"
        "    asked.append(count()[2] - before)\n"
        "print(min(asked))\n",
        **({"PYTHON_GIL": "1"} if free else {}),
    )
    assert done.stderr == ""
    assert int(done.stdout) < 30_000_000


def test_however_a_call_ends(python: Run) -> None:
    """Returns, exceptions, through other frames, and in a thread that ends this way."""
    done = python(
        WORK + "import _thread\n"
        "def work(end): end()\n"
        "def fails(): raise KeyError(7)\n"
        "def again():\n"
        "    try: work(fails)\n"
        "    finally: fails()\n"
        "def goes_on():\n"
        "    try: fails()\n"
        "    except KeyError: pass\n"
        "def leave(): _thread.exit()\n"
        "install(Config(['__main__:work delay=50%']))\n"
        "def outcome(end):\n"
        "    try: return work(end)\n"
        "    except BaseException as error:\n"
        "        context = error.__context__\n"
        "        return type(error).__name__, error.args, type(context).__name__\n"
        "for end in (lambda: None, fails, again, goes_on, sys.exit):\n"
        "    print(outcome(end), count()[:2])\n"
        "thread = threading.Thread(target=work, args=(leave,))\n"
        "thread.start(); thread.join()\n"
        "print(count()[:2])\n"
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "None (1, 1)",
        "('KeyError', (7,), 'NoneType') (2, 2)",
        "('KeyError', (7,), 'KeyError') (4, 4)",
        "None (5, 5)",
        "('SystemExit', (), 'NoneType') (6, 6)",
        "(7, 7)",
    ]


def test_generators_and_coroutines_are_timed_while_they_run(python: Run) -> None:
    """Each resumption is a call, also one by an exception that is thrown into it."""
    done = python(
        WORK + "import asyncio\n"
        "def steps():\n"
        "    try:\n"
        "        for i in range(3): yield i\n"
        "    except KeyError: yield 'caught'\n"
        "def outer(): return (yield from steps())\n"
        "async def waits(): await asyncio.sleep(0.05); return 5\n"
        "async def nested(): return await waits()\n"
        "async def numbers():\n"
        "    for i in range(2):\n"
        "        await asyncio.sleep(0.02)\n"
        "        yield i\n"
        "async def main():\n"
        "    async for _ in numbers(): pass\n"
        "    return await asyncio.gather(*(nested() for _ in range(50)))\n"
        "names = ('steps', 'outer', 'waits', 'nested', 'numbers')\n"
        "install(Config([f'__main__:{name} delay=1000%' for name in names]))\n"
        "for _ in outer(): time.sleep(0.05)\n"
        "generator = steps()\n"
        "print(next(generator), generator.throw(KeyError()))\n"
        "generator.close()\n"
        "try: steps().throw(ValueError())\n"
        "except ValueError: pass\n"
        "print(set(asyncio.run(main())))\n"
        "for name in names:\n"
        "    calls, delayed, asked, _ = count(name)\n"
        "    print(name, calls, delayed == calls, asked < 10 * 20_000_000)\n"
    )
    assert done.stderr == ""
    # 3.13 and later end a generator that is suspended outside any block without
    # running it.
    assert done.stdout.splitlines() == [
        "0 caught",
        "{5}",
        "steps 8 True True",
        "outer 4 True True",
        "waits 100 True True",
        "nested 100 True True",
        "numbers 5 True True",
    ]


def test_what_changes_while_calls_are_open(python: Run) -> None:
    done = python(
        WORK + "def work(change=None, depth=20):\n"
        "    spin_delay_ns(1000)\n"
        "    if depth: return work(change, depth - 1)\n"
        "    if change: change()\n"
        "def steps():\n"
        "    while True: yield\n"
        "ours = Config(['__main__:work delay=100%', '__main__:steps delay=10%'])\n"
        "def again(): install(ours)\n"
        "def other(): install(Config(['__main__:work delay=1us']))\n"
        "def inside():\n"
        "    with slow('__main__:work', '10%'): work()\n"
        "for change in (uninstall, again, other, inside, speed_bump.clear_cache):\n"
        "    install(ours)\n"
        "    generator = steps()\n"
        "    next(generator)\n"
        "    work(change)\n"
        "    next(generator)\n"
        "    install(ours)\n"
        "    before = count()\n"
        "    work()\n"
        "    next(generator)\n"
        "    print(*(b - a for a, b in zip(before[:2], count()[:2])))\n"
        "uninstall()\n"
        "for _ in range(3): work(), next(generator)\n"
    )
    assert (done.stdout, done.stderr) == ("21 21\n" * 5, "")


def test_threads_and_forks_inside(python: Run) -> None:
    done = python(
        WORK + "import os, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "def work(depth=0):\n"
        "    spin_delay_ns(1000)\n"
        "    if depth: work(depth - 1)\n"
        "def forks():\n"
        "    pid = os.fork()\n"
        "    if pid: os.waitpid(pid, 0)\n"
        "    return pid\n"
        "install(Config(['__main__:*or* delay=30%']))\n"
        "def many():\n"
        "    for i in range(300): work(i % 90)\n"
        "threads = [threading.Thread(target=many) for _ in range(8)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "calls, delayed = count()[:2]\n"
        "print(calls == 8 * sum(i % 90 + 1 for i in range(300)), calls == delayed)\n"
        "pid = forks()\n"
        "work(5)\n"
        "print(*(f.delayed for f in stats().functions if f.name == '__main__:forks'),\n"
        "      flush=True)\n"
        "if not pid: os._exit(0)\n"
        # A thread that never returns.
        "def sleeps(): time.sleep(100)\n"
        "install(Config(['__main__:sleeps delay=30%']))\n"
        "threading.Thread(target=sleeps, daemon=True).start()\n"
        "time.sleep(0.1)\n"
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["True True", "1", "1"]
    assert done.returncode == 0


def test_greenlets_leave_their_calls_and_come_back(python: Run) -> None:
    pytest.importorskip("greenlet")
    done = python(
        WORK + "import greenlet\n"
        "def work(n):\n"
        "    for _ in range(n): main.switch()\n"
        "main = greenlet.getcurrent()\n"
        "install(Config(['__main__:work delay=10%']))\n"
        "all = [greenlet.greenlet(work) for _ in range(500)]\n"
        "for i, one in enumerate(all): one.switch(i % 7)\n"
        "while any(all):\n"
        "    for one in all:\n"
        "        if one: one.switch()\n"
        "print(*count()[:2])\n"
    )
    assert (done.stdout, done.stderr) == ("500 500\n", "")


def test_other_options_count_calls_as_ever(python: Run) -> None:
    done = python(
        WORK + "def work(): spin_delay_ns(1000)\n"
        "def calls():\n"
        "    for _ in range(10): work()\n"
        "for options in ('every=5', 'thread=worker', 'start=100s',\n"
        "                'dist=exp mode=sleep'):\n"
        "    speed_bump.stats(); before = count()\n"
        "    with slow(f'__main__:work {options}', '50%'):\n"
        "        calls()\n"
        "        thread = threading.Thread(target=calls, name='worker')\n"
        "        thread.start(); thread.join()\n"
        "    print(*(b - a for a, b in zip(before[:2], count()[:2])))\n"
    )
    assert "drawn from the seed" in done.stderr
    assert done.stdout == "20 4\n10 10\n20 0\n20 20\n"


def test_a_signal_ends_it(python: Run) -> None:
    """Not while a generator is suspended, because the yielded value would be lost."""
    done = python(
        WORK + "import signal\n"
        "class Stop(Exception): pass\n"
        "def stop(*_): raise Stop\n"
        "def soon(): signal.setitimer(signal.ITIMER_REAL, 0.02)\n"
        "def work(): spin_delay_ns(30_000_000); soon()\n"
        "def fails(): spin_delay_ns(30_000_000); soon(); raise KeyError\n"
        "def steps():\n"
        "    spin_delay_ns(1_000_000)\n"
        "    soon()\n"
        "    yield 1\n"
        "    yield 2\n"
        "signal.signal(signal.SIGALRM, stop)\n"
        "names = ('work', 'fails', 'steps')\n"
        "install(Config([f'__main__:{name} delay=10000%' for name in names]))\n"
        "generator = steps()\n"
        "def next_step(): next(generator)\n"
        "for name, call in zip(names, (work, fails, next_step)):\n"
        "    try: call(); print('went on')\n"
        "    except Stop: print('stopped', end=' ')\n"
        "    asked, took = count(name)[2:]\n"
        "    print(took < asked / 2)\n"
        "print(list(generator))\n"
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "stopped True",
        "stopped True",
        "stopped False",
        "[2]",
    ]


def test_where_the_table_is_full_programs_see_their_own_exceptions(python: Run) -> None:
    done = python(
        WORK + "from speed_bump import _core, control\n"
        "def first(): pass\n"
        "def steps():\n"
        "    while True:\n"
        "        try: yield\n"
        "        except KeyError: print('caught')\n"
        "control._install(Config(['__main__:* delay=10%']), _core.Table(capacity=1))\n"
        "first()\n"
        "generator = steps()\n"
        "for _ in range(3):\n"
        "    next(generator)\n"
        "    generator.throw(KeyError())\n"
        "print(stats().lost)\n"
    )
    assert done.stdout == "caught\ncaught\ncaught\n1\n"


def test_what_is_switched_off_meanwhile_is_not_delayed(python: Run) -> None:
    done = python(
        WORK + "from speed_bump import _core, control\n"
        "def work(on):\n"
        "    spin_delay_ns(1_000_000)\n"
        "    table.enabled = on\n"
        "table = _core.Table()\n"
        "control._install(Config(['__main__:work delay=100%']), table)\n"
        "for on in (True, False):\n"
        "    before = count()[3]\n"
        "    work(on)\n"
        "    print(count()[3] - before > 500_000)\n"
    )
    assert (done.stdout, done.stderr) == ("True\nFalse\n", "")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring")
def test_only_what_matches_is_told_of(python: Run) -> None:
    """Ends of other code are not reported to any tool, and without delays none are."""
    done = python(
        WORK + "def work(): pass\n"
        "def other(): pass\n"
        "monitoring = sys.monitoring\n"
        "E = monitoring.events\n"
        "install(Config(['__main__:work delay=10%']))\n"
        "work(); other()\n"
        "(tool,) = [i for i in range(6) if monitoring.get_tool(i) == 'speed_bump']\n"
        "def events(function):\n"
        "    return monitoring.get_local_events(tool, function.__code__)\n"
        "print(bool(events(work) & E.PY_RETURN), events(other),\n"
        "      monitoring.get_events(tool) & (E.PY_RETURN | E.PY_YIELD | E.PY_RESUME))\n"
        "def local(): pass\n"
        "for _ in range(1000):\n"
        "    exec('def work(): pass\\nwork()', {'__name__': '__main__'})\n"
        "uninstall()\n"
        "monitoring.use_tool_id(tool, 'another')\n"
        "seen = []\n"
        "for event in (E.PY_RETURN, E.PY_START, E.PY_UNWIND):\n"
        "    monitoring.register_callback(tool, event, lambda *args: seen.append(args))\n"
        "work(); other()\n"
        "print(events(work), seen)\n"
    )
    assert (done.stdout, done.stderr) == ("True 0 0\n0 []\n", "")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring")
def test_another_tool_keeps_what_it_has_set(python: Run) -> None:
    done = python(
        WORK + "def work(): return 7\n"
        "monitoring, seen = sys.monitoring, []\n"
        "E = monitoring.events\n"
        "monitoring.use_tool_id(2, 'another')\n"
        "def see(*args): seen.append(args[2])\n"
        "monitoring.register_callback(2, E.PY_RETURN, see)\n"
        "monitoring.set_local_events(2, work.__code__, E.PY_RETURN)\n"
        "with slow('__main__:work', '50%'): work()\n"
        "work()\n"
        "print(seen, *count()[:2])\n"
    )
    assert (done.stdout, done.stderr) == ("[7, 7] 1 1\n", "")


def test_the_environment_has_it_too(python: Run, targets: Callable[[str], str]) -> None:
    path = targets("__main__:work delay=2.5%\n")
    done = python(
        WORK + "import multiprocessing\n"
        "def work(): spin_delay_ns(10_000)\n"
        "def child():\n"
        "    for _ in range(5): work()\n"
        "if __name__ == '__main__':\n"
        "    child()\n"
        "    for way in ('fork', 'spawn'):\n"
        "        process = multiprocessing.get_context(way).Process(target=child)\n"
        "        process.start(); process.join()\n"
        "    print(speed_bump.get_config())\n",
        SPEED_BUMP_TARGETS=path,
    )
    start = f"slowing 1 target of {path}, 2.5% of each call (process"
    assert start in done.stderr.splitlines()[0]
    assert "speed_bump: 10 calls, 10 of them delayed" in done.stderr
    assert "speed_bump: 5 calls, 5 of them delayed" in done.stderr
    assert "'__main__:work delay=2.5%'" in done.stdout


@pytest.mark.one_python
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a:b delay=%", "'delay=%': '%' is not a percentage over 0 and at most 10000%"),
        ("a:b delay=0%", "is not a percentage over 0"),
        ("a:b delay=10001%", "is not a percentage over 0 and at most 10000%"),
        ("a:b delay=1.23456%", "with at most 4 decimals"),
        ("a:b delay=5%us", "is not a percentage"),
        ("a:b delay=5% resume=0", "'resume=0': a percentage is of each resumption too"),
        ("a:b delay=5% delay=1us", "the delay is given twice"),
        ("*/app.py:42 delay=5%", "'*/app.py:42': a line has no duration"),
        ("native:./x:a.c:42 delay=5%", "'./x:a.c:42': a line has no duration"),
        ("native:libc.so.6:getpid 0%", "is not a percentage over 0"),
    ],
)
def test_what_is_no_part_is_said(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config([text])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.one_python
def test_a_target_says_its_part() -> None:
    for text in (
        "a:b delay=5%",
        "a:b delay=0.0001%",
        "a:b delay=10000% every=2 mode=wait",
        "native:libc.so.6:getpid delay=0.25%",
    ):
        (target,) = parse_targets(text, "here")
        assert str(target) == text
        assert target.delay_ns is None
    with pytest.raises(ConfigError, match="percentage"):
        speed_bump.slow("a:b", "x%")


def test_functions_in_c_are_refused_in_a_line(python: Run) -> None:
    done = python(
        "import _bisect, speed_bump, zlib\n"
        "speed_bump.install(speed_bump.Config(\n"
        "    ['zlib:crc32 delay=5%', '_bisect:* delay=5%']))\n"
        "zlib.crc32(b''); _bisect.bisect_left([], 1)\n"
        "print(speed_bump.stats().calls)\n"
    )
    first, second = sorted(done.stderr.splitlines(), key=lambda line: "_bisect" in line)
    assert "zlib:crc32 can't be slowed: the end of a function in C is not seen" in first
    assert "_bisect:* can't be slowed: functions in C are left out" in second
    assert done.stdout == "0\n"


@pytest.mark.one_python
def test_the_tool_has_it_too(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "app.py").write_text(
        "import time\n"
        "def work():\n"
        "    end = time.perf_counter() + 0.002\n"
        "    while time.perf_counter() < end: pass\n"
        "for _ in range(50): work()\n"
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "speed_bump", *words]
        return subprocess.run(
            [*command, "--", sys.executable, "app.py"],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    done = run("run", "-t", "__main__:work", "-d", "50%", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert '"delayed": 50' in done.stdout
    for words in (("run", "--compare"), ("sweep",), ("rank",)):
        refused = run(*words, "-t", "__main__:work delay=5%")
        assert refused.returncode == 2
        assert "delay=5% is for 'run' without --compare" in refused.stderr
    # Without a backend nothing sees the returns of native functions.
    if not Path("/dev/speed_bump").exists():
        environ["SPEED_BUMP_BACKEND"] = "driver"
        refused = run("run", "--native", "libc.so.6:getpid", "-d", "5%")
        assert refused.returncode != 0
