# SPDX-License-Identifier: MIT
"""Delays that sleep, random delays, and delays of some threads only."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import speed_bump
from conftest import Run
from speed_bump import Config, ConfigError, native
from speed_bump.config import parse_targets
from test_signals import PROGRAM as STOPPED

# How long a thread that computes all the time was stopped during each of some calls.
STOOD = """
import collections, datetime, threading, time, zlib
import speed_bump

def plain(): pass
def steps():
    while True: yield
async def waits(): pass
class Thing:
    def __init__(self): pass
generator = steps()
next(generator)
queue = collections.deque([1])
day = datetime.date(2020, 1, 1)
def coroutine():
    try: waits().send(None)
    except StopIteration: pass

CALLS = {
    "__main__:plain": plain,
    "__main__:Thing.__init__": Thing,
    "__main__:waits": coroutine,
    "__main__:steps resume=1": lambda: next(generator),
    "zlib:crc32": lambda: zlib.crc32(b""),
    "collections:deque.count": lambda: queue.count(1),
    "collections:deque.__contains__": lambda: 1 in queue,
    "datetime:date.year": lambda: day.year,
}

most = 0
def compute():
    global most
    last = time.monotonic_ns()
    while not done:
        now = time.monotonic_ns()
        most = max(most, now - last)
        last = now

def stood(call):
    global most
    time.sleep(0.002)
    most = 0
    call()
    time.sleep(0.002)  # it says so when it goes on
    return most

done = False
thread = threading.Thread(target=compute)
thread.start()
for target, call in CALLS.items():
    with speed_bump.slow(f"{target} mode={MODE}", "40ms"):
        before = time.thread_time_ns()
        still = all(stood(call) >= 40_000_000 for _ in range(ROUNDS))
        cpu = time.thread_time_ns() - before
    name = target.split()[0]
    (f,) = [f for f in speed_bump.stats().functions if f.target.startswith(name)]
    print(target, f.delayed > 0, f.delivered_ns >= f.requested_ns,
          cpu < f.delivered_ns / 2, still, sep="|")
done = True
thread.join()
"""

HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()


@pytest.mark.timed
@pytest.mark.parametrize("mode", ["spin", "sleep", "wait"])
def test_a_delay_keeps_or_gives_away(python: Run, mode: str) -> None:
    """Each hook: starts, resumptions, functions, methods, operators, getters."""
    stands = mode != "wait" and HAS_GIL
    # On a busy machine the thread may be stopped for other reasons, but not each time.
    rounds = 3 if stands else 30
    done = python(f"MODE, ROUNDS = {mode!r}, {rounds}\n" + STOOD)
    assert done.stderr == ""
    rows = [line.split("|") for line in done.stdout.splitlines()]
    assert len(rows) == 8
    for target, delayed, whole, off_cpu, stood in rows:
        assert delayed == "True", target
        assert off_cpu == str(mode != "spin"), target
        # A sleep is never too short; a spin may be, by one reading of the clock.
        assert whole == "True" or mode == "spin", target
        assert stood == str(stands), target


@pytest.mark.parametrize("mode", ["sleep", "wait"])
@pytest.mark.parametrize(
    ("target", "call"),
    [
        ("__main__:plain", "plain()"),
        ("__main__:steps", "[None for _ in zip(range(2), steps())]"),
        ("zlib:crc32", "zlib.crc32(b'')"),
    ],
)
def test_a_signal_ends_it(python: Run, mode: str, target: str, call: str) -> None:
    program = STOPPED.replace("{target}", f"{target} mode={mode}")
    program = program.replace("{call}", call).replace("{handler}", "raise Stop")
    done = python(program.replace("{delay}", "10s"))
    assert (done.stdout, done.stderr) == ("True 0 0 1 True\n", "")


def test_what_happens_while_it_waits(python: Run) -> None:
    """One generator: another process, a fork, other delays, the end of the program."""
    done = python(
        "import gc, os, threading, time, warnings, speed_bump\n"
        "warnings.simplefilter('ignore')  # a fork beside threads\n"
        "def steps():\n"
        "    while True: yield\n"
        "def work(): pass\n"
        "generator = steps()\n"
        "def calls(): return sum(f.calls for f in speed_bump.stats().functions)\n"
        "def during(call, then):\n"
        "    before, thread = calls(), threading.Thread(target=call)\n"
        "    thread.start()\n"
        "    while calls() == before: time.sleep(0.01)\n"
        "    then()\n"
        "    thread.join()\n"
        "def again():\n"
        "    try: next(generator)\n"
        "    except ValueError as error: print(error)\n"
        "def fork():\n"
        "    pid = os.fork()\n"
        "    if not pid: work(); os._exit(7)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        "def change():\n"
        "    speed_bump.uninstall()\n"
        "    speed_bump.install(speed_bump.Config(['a:b']))\n"
        "    gc.collect()\n"
        "with speed_bump.slow('__main__:steps resume=1 mode=wait', '2s'):\n"
        "    during(lambda: next(generator), again)\n"
        "    during(lambda: next(generator), again)\n"
        "with speed_bump.slow('__main__:work mode=wait', '2s'):\n"
        "    during(work, fork)\n"
        "speed_bump.install(speed_bump.Config(['__main__:work mode=wait delay=2s']))\n"
        "during(work, change)\n"
        "print([f.name for f in speed_bump.stats().functions])\n"
        "speed_bump.install(speed_bump.Config(['__main__:work mode=wait delay=10s']))\n"
        "during(threading.Thread(target=work, daemon=True).start, lambda: None)\n"
    )
    assert done.stderr == ""
    again = "generator already executing"
    assert done.stdout.splitlines() == [again, again, "7", "[]"]
    assert done.returncode == 0


DRAWN = """
import os, sys, threading, speed_bump
def work(): pass
def calls():
    for _ in range(5000): work()
    print(sum(f.requested_ns for f in speed_bump.stats().functions), flush=True)
calls()
if os.fork() == 0:
    calls()
    os._exit(0)
os.wait()
if os.fork() == 0:
    calls()
    os._exit(0)
os.wait()
"""


def test_delays_are_drawn_from_the_seed(
    python: Run, targets: Callable[[str], str]
) -> None:
    path = targets("__main__:work delay=4us dist=exp\n")

    def run(**variables: str) -> tuple[list[int], str]:
        done = python(DRAWN, SPEED_BUMP_TARGETS=path, **variables)
        return [int(line) for line in done.stdout.splitlines()], done.stderr

    first, said = run()
    for total in first:
        assert abs(total / 5000 - 4000) < 300  # five standard errors
    # The parent, and each of its children.
    assert len(set(first)) == 3
    seed = said.partition("drawn from the seed ")[2].split()[0]
    assert f"SPEED_BUMP_SEED={seed} draws them again" in said
    assert run(SPEED_BUMP_SEED=seed, SPEED_BUMP_QUIET="1") == (first, "")
    other, _ = run(SPEED_BUMP_SEED=str(int(seed) + 1))
    assert not set(other) & set(first)


def test_what_a_program_starts_draws_other_delays(
    python: Run, targets: Callable[[str], str], tmp_path: Path
) -> None:
    done = python(
        "import subprocess, sys, speed_bump\n"
        "def work(): pass\n"
        "for _ in range(100): work()\n"
        "print(sum(f.requested_ns for f in speed_bump.stats().functions), flush=True)\n"
        "if len(sys.argv) < 2:\n"
        "    for _ in 'ab': subprocess.run([sys.executable, __file__, 'child'])\n",
        SPEED_BUMP_TARGETS=targets("__main__:work dist=uniform\n"),
        SPEED_BUMP_SEED="5",
    )
    assert len(set(done.stdout.splitlines())) == 3


NAMED = """
import _thread, threading, time, speed_bump
def work(): pass
def slowed():
    before = speed_bump.stats()
    work()
    after = speed_bump.stats()
    assert after.calls - before.calls >= after.delayed - before.delayed
    return after.delayed - before.delayed
def in_thread(function, **options):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()), **options)
    thread.start(); thread.join()
    return found[0]
def renamed():
    found = [slowed()]
    for name in ("worker-9", "other", "worker-9"):
        threading.current_thread().name = name
        found.append(slowed())
    return found
class Named(threading.Thread):
    def __init__(self): super().__init__(name="worker 3")
    def __getattribute__(self, name): return super().__getattribute__(name)
    def run(self): print(slowed())
def bare():
    found, done = [], _thread.allocate_lock()
    done.acquire()
    _thread.start_new_thread(lambda: (found.append(slowed()), done.release()), ())
    done.acquire()
    return found[0]

with speed_bump.slow("__main__:work thread=worker*", "1us"):
    print(slowed(), in_thread(slowed, name="worker-1"), in_thread(slowed, name="x"))
    print(in_thread(renamed), bare())
    with speed_bump.slow("__main__:work thread=*", "1us"): print(bare())
    thread = Named(); thread.start(); thread.join()
with speed_bump.slow("__main__:work thread=MainThread every=2", "1us"):
    print([slowed() + in_thread(slowed) for _ in range(4)])
with speed_bump.slow("zlib:crc32 thread=worker?3", "1us"):
    import zlib
    before = speed_bump.stats().delayed
    zlib.crc32(b"")
    in_thread(lambda: zlib.crc32(b""), name="worker 3")
    print(speed_bump.stats().delayed - before)
"""


def test_a_thread_is_a_scope(python: Run) -> None:
    done = python(NAMED)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "0 1 0",
        "[0, 1, 0, 1] 0",
        "1",
        "1",
        "[0, 1, 0, 1]",
        "1",
    ]


def test_a_thread_is_not_taken_for_one_that_had_its_number(python: Run) -> None:
    """It is asked for its name before threading knows it."""
    done = python(
        "import _thread, threading, time, speed_bump\n"
        "def work(): pass\n"
        "ended, numbers = [], set()\n"
        "def other():\n"
        "    threading.current_thread()\n"
        "    numbers.add(_thread.get_ident())\n"
        "    ended.append(1)\n"
        "for i in range(3):\n"
        "    _thread.start_new_thread(other, ())\n"
        "    while len(ended) <= i: time.sleep(0.001)\n"
        "time.sleep(0.05)\n"
        "def run():\n"
        "    again.append(_thread.get_ident() in numbers)\n"
        "    work()\n"
        "again, names = [], ('__main__:work', 'threading:Thread._set_ident')\n"
        "targets = [f'{name} thread=worker* delay=1us' for name in names]\n"
        "speed_bump.install(speed_bump.Config(targets))\n"
        "for i in range(5):\n"
        "    thread = threading.Thread(target=run, name=f'worker-{i}')\n"
        "    thread.start(); thread.join()\n"
        "found = speed_bump.stats().functions\n"
        "print(any(again), [f.delayed for f in found if f.name == '__main__:work'])\n"
    )
    assert (done.stdout, done.stderr) == ("True [5]\n", "")


def test_the_main_thread_of_a_program_without_threads(python: Run) -> None:
    done = python(
        "import sys, speed_bump\n"
        "def work(): pass\n"
        "with speed_bump.slow('__main__:work thread=Main*', '1us'): work()\n"
        "print(speed_bump.stats().delayed, 'threading' in sys.modules)\n"
    )
    assert done.stdout == "1 False\n"


@pytest.mark.one_python
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("mode=nap", "'mode=nap': write mode=spin, sleep or wait"),
        ("dist=lognormal(-1)", "'dist=lognormal(-1)': write lognormal(SIGMA), a number"),
        ("dist=often", "'dist=often': write dist=fixed, exp, uniform or lognormal"),
        ("thread=", "'thread=': a name of threads is missing"),
        ("mode=wait mode=sleep", "the mode is given twice"),
    ],
)
def test_what_is_no_kind_is_said_with_its_line(
    python: Run, targets: Callable[[str], str], options: str, says: str
) -> None:
    path = targets(f"a:b\n__main__:f {options}\n")
    done = python("print('runs')", SPEED_BUMP_TARGETS=path)
    (line,) = done.stderr.splitlines()
    assert f"{path}:2: " in line
    assert says in line
    assert done.stdout == "runs\n"
    with pytest.raises(ConfigError, match="targets:2: "):
        Config([f"\na:b {options}"])
    with pytest.raises(ConfigError):
        speed_bump.slow(f"a:b {options}", "1us")


@pytest.mark.one_python
@pytest.mark.parametrize("option", ["mode=wait", "dist=exp", "thread=w*"])
def test_what_a_native_target_can_not(option: str) -> None:
    with pytest.raises(ConfigError, match=r"mode=sleep|Python targets only"):
        Config([f"native:libc.so.6:getpid {option}"])


@pytest.mark.one_python
def test_a_target_says_its_kind() -> None:
    text = "a:b resume=1 mode=wait dist=lognormal(0.25) thread=w?*"
    (target,) = parse_targets(text, "here")
    assert str(target) == text
    assert (target.mode, target.dist, target.sigma, target.thread) == (
        "wait",
        "lognormal",
        0.25,
        "w?*",
    )
    (plain,) = parse_targets("a:b mode=spin dist=fixed", "here")
    assert str(plain) == "a:b"
    assert "seed=7" in repr(Config(["a:b"], seed=7))
    with pytest.raises(ConfigError, match="seed"):
        Config(["a:b"], seed=-1)


@pytest.mark.one_python
@pytest.mark.parametrize("text", ["x", "-1", str(2**64), "1:x"])
def test_a_seed_that_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SPEED_BUMP_SEED", text)
    with pytest.raises(ConfigError, match="SPEED_BUMP_SEED"):
        speed_bump.load_config()


@pytest.mark.one_python
def test_the_tool_has_them_too(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "app.py").write_text(
        "import threading\n"
        "def work(): pass\n"
        "def many():\n"
        "    for _ in range(50): work()\n"
        "many()\n"
        "thread = threading.Thread(target=many, name='worker'); thread.start()\n"
    )

    def run(seed: str) -> tuple[int, int, str]:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "speed_bump", "run", "--seed", seed),
                *("-t", "__main__:work mode=sleep dist=uniform thread=worker"),
                *("-d", "20us", "--json", "found.json", "--", sys.executable, "app.py"),
            ],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        (f,) = json.loads((tmp_path / "found.json").read_text())["targets"]
        assert (f["calls"], f["delayed"]) == (50, 50)
        # A sleep is never too short.
        assert f["delivered_ns"] >= f["requested_ns"]
        return f["requested_ns"], f["delayed"], done.stderr

    first, delayed, said = run("11")
    assert 0 < first < 2 * 20_000 * delayed
    assert "drawn from the seed 11" in said
    assert "wall time with mode=sleep or wait" in said
    assert run("11")[0] == first
    assert run("12")[0] != first


def test_a_scope_where_the_interpreter_ends(python: Run) -> None:
    """The name of a thread is looked up at shutdown, when modules are gone."""
    done = python(
        "import codecs, sys, zlib, speed_bump\n"
        "class Late:\n"
        "    def __init__(self): self.work = zlib.crc32\n"
        "    def __del__(self): self.work(b'')\n"
        "def search(name, late=Late()): return None\n"
        "codecs.register(search)\n"
        "speed_bump.install(speed_bump.Config(['zlib:crc32 thread=Main*'], 1000))\n"
        "zlib.crc32(b'')\n"
        "print(speed_bump.stats().delayed)\n"
        "del search\n"
    )
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="no collector there")
def test_a_scope_whose_table_goes_while_it_is_looked_up(python: Run) -> None:
    """The lookup of a thread's name at its first call may run the garbage collector."""
    done = python(
        "import _thread, gc, time, speed_bump\n"
        "class Ends:\n"
        "    def __del__(self):\n"
        "        speed_bump.install(speed_bump.Config(['a:b']))\n"
        "        ended.append(len(began))\n"
        "def work(): began.append(1); done.append(1)\n"
        "ended, began, done, held = [], [], [], []\n"
        "gc.disable()\n"
        "for i in range(20):\n"
        "    config = speed_bump.Config(['__main__:work thread=a* delay=1us'])\n"
        "    speed_bump.install(config)\n"
        "    work()  # where it is seen first other objects are made\n"
        "    del began[:], done[i:]\n"
        "    one = Ends(); one.self = one; del one\n"
        "    held += [{} for _ in range(100)]  # no dictionary is at hand\n"
        "    count, most, _ = gc.get_threshold()\n"
        "    gc.set_threshold(1)\n"
        "    gc.enable()\n"
        "    _thread.start_new_thread(work, ())\n"
        "    while len(done) <= i: time.sleep(0.001)\n"
        "    gc.disable()\n"
        "    gc.set_threshold(count, most)\n"
        "print(sorted(set(ended)), len(done))\n"
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == "[0] 20\n"


@pytest.mark.needs_device
@pytest.mark.one_python
def test_a_native_target_sleeps_or_is_refused(python: Run) -> None:
    """The module supports it; BPF refuses it before anything is slowed."""
    done = python(
        "import time, os, speed_bump\n"
        "from speed_bump import native\n"
        "text = 'native:libc.so.6:getppid mode=sleep'\n"
        "try: speed_bump.install(speed_bump.Config([text], 30_000_000))\n"
        "except native.NativeError as error: print(error); raise SystemExit\n"
        "before = time.thread_time_ns()\n"
        "for _ in range(3): os.getppid()\n"
        "cpu = time.thread_time_ns() - before\n"
        "(f,) = speed_bump.stats().native\n"
        "print(f.delayed, f.delivered_ns >= 90_000_000, cpu < 45_000_000)\n"
    )
    if native.backend() == "bpf":
        assert "BPF can't sleep in a delay (mode=sleep): load the module" in done.stdout
    else:
        assert done.stdout == "3 True True\n"
