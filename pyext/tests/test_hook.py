# SPDX-License-Identifier: MIT
"""The hook in this process: calls are counted, and delayed by the requested time.

All tests change the one hook of this process, with the same functions to call: hence the
length.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import os
import pstats
import statistics
import sys
import sysconfig
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import speed_bump
from conftest import Run, calls
from speed_bump import Config, _core

HERE = __name__


def plain() -> None:
    pass


def other() -> None:
    pass


class Outer:
    class Inner:
        def method(self) -> None:
            pass

    @staticmethod
    def static() -> None:
        pass

    @classmethod
    def klass(cls) -> None:
        pass


def outer() -> Callable[[], None]:
    def inner() -> None:
        pass

    return inner


def generator(n: int) -> Iterator[int]:
    yield from range(n)


async def coroutine() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def async_generator() -> AsyncIterator[int]:
    for i in range(3):
        yield i


def install(*targets: str, **options: Any) -> None:
    speed_bump.install(Config(targets, **options))


@pytest.mark.parametrize(
    "pattern",
    [
        f"{HERE}:plain",
        "*/test_hook.py:plain",
        f"{__file__}:plain",
        f"{HERE}:pl?in",
        f"{HERE}:[o-q]lain",
        "*:plain",
    ],
)
def test_patterns_that_match(pattern: str) -> None:
    install(pattern, delay_ns=0)
    for _ in range(7):
        plain()
        other()
    (only,) = speed_bump.stats().functions
    assert (only.name, only.target, only.calls) == (f"{HERE}:plain", pattern, 7)
    assert (only.delayed, only.delivered_ns, only.pid) == (0, 0, os.getpid())


def test_patterns_that_do_not_match() -> None:
    install(f"{HERE}:Plain", f"{HERE}:plai", "tests:plain", "test_hook.py:plain")
    plain()
    assert speed_bump.stats().functions == ()


def test_qualified_names() -> None:
    install(f"{HERE}:*")
    Outer.Inner().method()
    Outer.static()
    Outer.klass()
    outer()()
    for name in ("Outer.Inner.method", "Outer.static", "Outer.klass", "outer"):
        assert calls(name) == 1
    assert calls("outer.<locals>.inner") == 1


def test_exclusion_and_own_options() -> None:
    install(f"{HERE}:*", f"!{HERE}:other", f"{HERE}:plain delay=0")
    plain()
    other()
    assert (calls("plain"), calls("other")) == (1, 0)


def test_counts_are_exact() -> None:
    install(f"{HERE}:plain", delay_ns=100)
    for _ in range(10_000):
        plain()
    (only,) = speed_bump.stats().functions
    assert only.calls == only.delayed == 10_000
    assert only.requested_ns == 1_000_000
    assert only.delivered_ns >= only.requested_ns * 0.9


def test_frequency() -> None:
    install(f"{HERE}:plain", f"{HERE}:other every=2", delay_ns=200, frequency=5)
    for _ in range(23):
        plain()
        other()
    delayed = {f.name: f.delayed for f in speed_bump.stats().functions}
    assert delayed == {f"{HERE}:plain": 4, f"{HERE}:other": 11}


@pytest.mark.parametrize("bound", ["start_ns", "end_ns"])
def test_a_window_opens_and_closes(bound: str) -> None:
    for length_ns in (50_000_000, 500_000_000, 5_000_000_000):
        end = time.monotonic_ns() + length_ns
        install(f"{HERE}:plain", delay_ns=200, **{bound: end})
        plain()
        in_time = time.monotonic_ns() < end
        while time.monotonic_ns() < end + 1_000_000:
            time.sleep(0.01)
        plain()
        if in_time:  # on a busy machine 50 ms may have passed
            break
        speed_bump.uninstall()
    (only,) = speed_bump.stats().functions
    assert (only.calls, only.delayed) == (2, 1)


def per_call_ns(calls: int) -> float:
    begin = time.perf_counter_ns()
    for _ in range(calls):
        plain()
    return (time.perf_counter_ns() - begin) / calls


def net_delay_ns(delay_ns: int) -> float:
    """Bare and slowed batches alternate; of each, the quieter quarter counts."""
    bare, slowed = [], []
    for _ in range(40):
        bare.append(per_call_ns(50))
        install(f"{HERE}:plain", delay_ns=delay_ns)
        plain()
        slowed.append(per_call_ns(50))
        speed_bump.uninstall()
    return statistics.quantiles(slowed, n=4)[0] - statistics.quantiles(bare, n=4)[0]


def quiet(measure: Callable[[], float], truth: float, error: float) -> float:
    """Under steady load no batch may be quiet: repeat."""
    measured = measure()
    for _ in range(20):
        if abs(measured - truth) <= error:
            break
        measured = measure()
    return measured


@pytest.mark.timed
@pytest.mark.parametrize("delay_ns", [2_000, 20_000])
def test_the_net_delay_is_what_was_asked(delay_ns: int) -> None:
    error = 0.1 * delay_ns
    net = quiet(lambda: net_delay_ns(delay_ns), delay_ns, error)
    assert net == pytest.approx(delay_ns, abs=error)


def taken_off_ns(table: _core.Table, overhead_ns: int) -> float:
    """How much shorter a slowed call is if the overhead of the hook is set to this."""
    policies = [_core.policy(delay_ns=300)]
    times: dict[int, list[float]] = {0: [], overhead_ns: []}
    for _ in range(60):
        for said, batches in times.items():
            _core.start(table, f"{HERE}:plain".encode(), policies, said)
            plain()
            batches.append(per_call_ns(100))
            _core.stop()
    gross, net = (statistics.quantiles(batches, n=4)[0] for batches in times.values())
    return gross - net


@pytest.mark.timed
def test_the_cost_of_the_hook_is_taken_off() -> None:
    table = _core.Table()
    assert quiet(lambda: taken_off_ns(table, 200), 200, 50) == pytest.approx(200, abs=50)
    assert table.overhead_ns == pytest.approx(200, abs=1)


@pytest.mark.timed
def test_the_cost_of_the_hook_is_measured(python: Run) -> None:
    program = """
from speed_bump import _core
table = _core.Table()
_core.start(table, b"nothing:*", [_core.policy(delay_ns=300)], None)
assert abs(table.overhead_ns - _core.overhead_ns()) <= 1
print(table.overhead_ns)
"""
    # The difference may be lost in other costs, but not each time.
    for _ in range(20):
        done = python(program)
        assert done.returncode == 0, done.stderr
        if int(done.stdout) > 0:
            break
    assert int(done.stdout) > 0


def test_every_thread_running_and_to_come() -> None:
    go = threading.Event()
    counted = threading.Barrier(5)

    def work() -> None:
        go.wait()
        for _ in range(1000):
            plain()
        counted.wait()

    running = [threading.Thread(target=work) for _ in range(2)]
    for thread in running:
        thread.start()
    install(f"{HERE}:plain", delay_ns=100)
    later = [threading.Thread(target=work) for _ in range(2)]
    for thread in later:
        thread.start()
    go.set()
    counted.wait()
    for thread in running + later:
        thread.join()
    assert calls("plain") == 4000


def test_a_thread_not_made_by_threading() -> None:
    import _thread

    done = threading.Event()

    def work() -> None:
        plain()
        done.set()

    install(f"{HERE}:plain")
    _thread.start_new_thread(work, ())
    assert done.wait(10)
    assert calls("plain") == 1


def test_fork() -> None:
    install(f"{HERE}:plain", delay_ns=100)
    plain()
    pid = os.fork()
    if pid == 0:
        for _ in range(5):
            plain()
        (mine,) = speed_bump.stats().functions
        os._exit(0 if (mine.calls, mine.pid) == (5, os.getpid()) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    plain()
    assert calls("plain") == 2
    by_pid = {f.pid: f.calls for f in speed_bump.stats(children=True).functions}
    assert by_pid == {os.getpid(): 2, pid: 5}


def test_generators_start_and_resume() -> None:
    install(f"{HERE}:generator")
    assert list(generator(4)) == [0, 1, 2, 3]
    assert calls("generator") == 1
    install(f"{HERE}:generator resume=1")
    assert list(generator(4)) == [0, 1, 2, 3]
    assert calls("generator") == 5


def test_a_generator_never_started_is_not_delayed() -> None:
    install(f"{HERE}:generator resume=1")
    generator(4).close()
    assert calls("generator") == 0


def test_what_is_thrown_into_a_generator_is_no_resumption() -> None:
    install(f"{HERE}:generator resume=1")
    started = generator(4)
    next(started)
    started.close()
    assert calls("generator") == 1


def test_coroutines_start_and_resume() -> None:
    async def main() -> None:
        await coroutine()
        async for _ in async_generator():
            pass

    install(f"{HERE}:coroutine", f"{HERE}:async_generator")
    asyncio.run(main())
    assert (calls("coroutine"), calls("async_generator")) == (1, 1)
    install(f"{HERE}:coroutine resume=1", f"{HERE}:async_generator resume=1")
    asyncio.run(main())
    assert (calls("coroutine"), calls("async_generator")) == (3, 4)


def test_functions_at_reused_addresses() -> None:
    # Names alternate: if functions were identified by address, they would be confused.
    install("made:yes")
    addresses: set[int] = set()
    made = 0
    # Without a GIL each collection is a full one.
    every, most = (
        (50, 1_000) if sysconfig.get_config_var("Py_GIL_DISABLED") else (1, 5_000)
    )
    while made < 600 or (len(addresses) == made and made < most):
        made += 1
        space: dict[str, Any] = {"__name__": "made"}
        exec(f"def {'yes' if made % 3 else 'no'}(): pass", space)
        function = space.get("yes") or space["no"]
        addresses.add(id(function.__code__))
        function()
        del function, space
        if made % every == 0:
            gc.collect(0)
    if len(addresses) == made and sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this CPython used no address twice: this shows nothing")
    assert len(addresses) < made
    (only,) = speed_bump.stats().functions
    assert (only.name, only.calls) == ("made:yes", made - made // 3)


def profiled() -> None:
    for _ in range(50):
        plain()
        other()


def test_cprofile_beside_it() -> None:
    install(f"{HERE}:plain", delay_ns=20_000)
    profile = cProfile.Profile()
    profile.enable()
    profiled()
    profile.disable()
    rows = {key[2]: row for key, row in pstats.Stats(profile).stats.items()}  # type: ignore[attr-defined]
    assert (rows["plain"][0], rows["other"][0]) == (50, 50)
    assert calls("plain") == 50
    # sys.monitoring calls the tool with the higher id first, and before 3.12 the hook
    # runs before the frame is evaluated: the delay is over when cProfile begins to count
    # the callee's time, and is in the caller's.
    assert rows["profiled"][2] > 0.9 * 50 * 20e-6
    plain()
    assert calls("plain") == 51


def test_cprofile_that_was_there_first() -> None:
    profile = cProfile.Profile()
    profile.enable()
    install(f"{HERE}:plain")
    profiled()
    speed_bump.uninstall()
    profiled()
    profile.disable()
    rows = {key[2]: row for key, row in pstats.Stats(profile).stats.items()}  # type: ignore[attr-defined]
    assert rows["plain"][0] == 100
    assert calls("plain") == 50


def test_a_python_profiler_beside_it() -> None:
    seen: list[str] = []

    def theirs(frame: Any, event: str, arg: object) -> None:
        if event == "call":
            seen.append(frame.f_code.co_name)

    install(f"{HERE}:plain")
    sys.setprofile(theirs)
    profiled()
    assert sys.getprofile() is theirs
    sys.setprofile(None)
    assert seen.count("plain") == 50
    plain()
    assert sys.getprofile() is None
    assert calls("plain") == 51


def test_tracing_beside_it() -> None:
    lines = 0

    def trace(frame: Any, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line" and frame.f_code.co_name == "profiled"
        return trace

    install(f"{HERE}:plain")
    sys.settrace(trace)
    profiled()
    sys.settrace(None)
    assert lines > 100
    assert calls("plain") == 50


def test_uninstall_restores() -> None:
    install(f"{HERE}:plain", delay_ns=1_000_000)
    assert speed_bump.is_installed()
    assert speed_bump.get_config() is not None
    speed_bump.uninstall()
    assert not speed_bump.is_installed()
    assert speed_bump.get_config() is None
    assert sys.getprofile() is None
    if sys.version_info >= (3, 12):
        assert all(sys.monitoring.get_tool(i) != "speed_bump" for i in range(6))
    plain()
    assert calls("plain") == 0
    speed_bump.uninstall()


def test_other_patterns_take_effect() -> None:
    for _ in range(3):
        install(f"{HERE}:plain")
        plain()
        other()
        assert (calls("plain"), calls("other")) == (1, 0)
        install(f"{HERE}:other")
        plain()
        other()
        assert (calls("plain"), calls("other")) == (0, 1)


def test_clear_cache_looks_again() -> None:
    space: dict[str, Any] = {"__name__": "before"}
    exec("def renamed(): pass", space)
    install("after:renamed")
    space["renamed"]()
    space["__name__"] = "after"
    space["renamed"]()
    assert calls("renamed") == 0
    speed_bump.clear_cache()
    space["renamed"]()
    assert calls("renamed") == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
def test_a_tool_id_in_use_is_left_alone() -> None:
    taken = [i for i in range(6) if sys.monitoring.get_tool(i) is None]
    for i in taken:
        sys.monitoring.use_tool_id(i, "theirs")
    try:
        with pytest.raises(RuntimeError, match="tool ids are in use"):
            install(f"{HERE}:plain")
        assert not speed_bump.is_installed()
        sys.monitoring.free_tool_id(taken[0])
        install(f"{HERE}:plain")
        plain()
        assert calls("plain") == 1
        assert sys.monitoring.get_tool(taken[0]) == "speed_bump"
    finally:
        speed_bump.uninstall()
        for i in taken[1:]:
            sys.monitoring.free_tool_id(i)


def test_a_short_delay_is_clamped_with_one_warning(
    capfd: pytest.CaptureFixture[str],
) -> None:
    least = speed_bump.min_delay_ns
    speed_bump.control._warned = False
    install(f"{HERE}:plain", f"{HERE}:other", delay_ns=1)
    plain()
    (only,) = speed_bump.stats().functions
    assert only.requested_ns == least
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert f"the shortest is {least} ns" in lines[0]
    assert f"SPEED_BUMP_FREQUENCY or every={least}" in lines[0]


def test_a_name_that_this_version_never_has(capfd: pytest.CaptureFixture[str]) -> None:
    install(f"{HERE}:*.<locals>.<listcomp>", f"!{HERE}:*<setcomp>", f"{HERE}:<lambda>")
    speed_bump.slow(f"{HERE}:f.<locals>.<dictcomp>", 0)
    lines = capfd.readouterr().err.splitlines()
    if sys.version_info < (3, 12):
        assert lines == []
    else:
        assert len(lines) == 2
        assert f"{HERE}:*.<locals>.<listcomp> will match nothing" in lines[0]
        assert "<dictcomp>" in lines[1]


def test_install_without_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPEED_BUMP_TARGETS", raising=False)
    assert not speed_bump.install()
    assert not speed_bump.is_installed()
    assert not speed_bump.install(Config(["*:*"], enabled=False))


def test_progress() -> None:
    speed_bump.progress()
    install(f"{HERE}:plain")
    speed_bump.progress()
    speed_bump.progress(n=4)
    speed_bump.progress("bytes", 1000)
    assert speed_bump.stats().progress == {"default": 5, "bytes": 1000}
    with pytest.raises(ValueError):
        speed_bump.progress(n=-1)


# ------------------------------------------------------------------------ slow


def test_slow_as_a_context_manager() -> None:
    speed_bump.install(Config([f"{HERE}:nothing"]))
    with speed_bump.slow(f"{HERE}:plain", "2us"):
        plain()
        with speed_bump.slow(f"{HERE}:other", 3_000):
            plain()
            other()
        other()
    plain()
    requested = {f.name: f.requested_ns for f in speed_bump.stats().functions}
    assert requested == {f"{HERE}:plain": 4_000, f"{HERE}:other": 3_000}
    assert speed_bump.is_installed()


def test_slow_comes_before_what_is_further_out() -> None:
    install(f"{HERE}:pl*", delay_ns=1_000)
    with speed_bump.slow(f"{HERE}:plain", 5_000):
        plain()
    plain()
    requested = sorted(f.requested_ns for f in speed_bump.stats().functions)
    assert requested == [1_000, 5_000]


def test_slow_as_a_decorator() -> None:
    @speed_bump.slow(f"{HERE}:plain", 1_000)
    def work(n: int) -> int:
        plain()
        return n + 1

    @speed_bump.slow(f"{HERE}:plain", 1_000)
    async def async_work() -> None:
        await asyncio.sleep(0)
        plain()

    install(f"{HERE}:nothing")
    assert work(1) == 2
    plain()
    asyncio.run(async_work())
    assert calls("plain") == 2
    assert work.__name__ == "work"


def test_slow_as_a_decorator_of_generators() -> None:
    @speed_bump.slow(f"{HERE}:plain", 0)
    def work(n: int) -> Iterator[int]:
        """Doc."""
        got = []
        for i in range(n):
            plain()
            try:
                got.append((yield i))
            except KeyError:
                got.append("thrown")
        return got  # type: ignore[return-value]

    install(f"{HERE}:nothing")
    assert list(work(3)) == [0, 1, 2]
    assert calls("plain") == 3
    plain()
    assert calls("plain") == 3
    started: Any = work(5)
    plain()
    assert calls("plain") == 3, "not started yet"
    assert [next(started), started.send("a"), started.throw(KeyError)] == [0, 1, 2]
    assert calls("plain") == 6
    started.close()
    plain()
    assert calls("plain") == 6
    ended: Any = work(2)
    assert (next(ended), next(ended)) == (0, 1)
    with pytest.raises(StopIteration) as end:
        ended.send("b")
    assert end.value.value == [None, "b"]
    assert (work.__name__, work.__doc__) == ("work", "Doc.")


def test_slow_as_a_decorator_of_asynchronous_generators() -> None:
    ended = []

    @speed_bump.slow(f"{HERE}:plain", 0)
    async def work(n: int) -> AsyncIterator[Any]:
        try:
            for i in range(n):
                plain()
                await asyncio.sleep(0)
                try:
                    got = yield i
                    assert got in (None, "sent")
                except KeyError:
                    yield "thrown"
        finally:
            ended.append(n)

    async def main() -> None:
        assert [i async for i in work(3)] == [0, 1, 2]
        assert calls("plain") == 3
        plain()
        assert calls("plain") == 3
        started: Any = work(4)
        assert await started.__anext__() == 0
        assert await started.asend("sent") == 1
        assert await started.athrow(KeyError) == "thrown"
        await started.aclose()
        assert calls("plain") == 5
        plain()
        assert calls("plain") == 5
        failing: Any = work(2)
        await failing.__anext__()
        with pytest.raises(ZeroDivisionError):
            await failing.athrow(ZeroDivisionError)
        plain()
        assert calls("plain") == 6

    install(f"{HERE}:nothing")
    asyncio.run(main())
    assert ended == [3, 4, 2]


def test_reset() -> None:
    speed_bump.reset()  # nothing is installed, so nothing is done
    install(f"{HERE}:*", delay_ns=1_000)
    for _ in range(3):
        plain()
    other()
    speed_bump.progress(n=5)
    speed_bump.reset()
    assert (speed_bump.stats().functions, speed_bump.stats().progress) == ((), {})
    plain()
    speed_bump.progress()
    (only,) = [f for f in speed_bump.stats().functions if f.calls]
    assert (only.name, only.calls, only.delayed) == (f"{HERE}:plain", 1, 1)
    assert only.requested_ns == 1_000
    assert speed_bump.stats().progress == {"default": 1}
    assert speed_bump.is_installed()
    install(f"{HERE}:plain")
    plain()
    assert calls("plain") == 1


def test_reset_and_forked_children() -> None:
    install(f"{HERE}:plain", delay_ns=0)
    plain()
    speed_bump.reset()
    pid = os.fork()
    if pid == 0:
        for _ in range(5):
            plain()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    by_pid = {f.pid: f.calls for f in speed_bump.stats(children=True).functions}
    assert by_pid == {pid: 5}
    speed_bump.reset()
    assert speed_bump.stats(children=True).functions == ()


def test_slow_refuses() -> None:
    for pattern, delay in (("nothing", 5), ("a:b", "soon"), ("a:b", -1), ("", 5)):
        with pytest.raises(speed_bump.ConfigError):
            speed_bump.slow(pattern, delay)


def test_names_that_are_no_utf_8(tmp_path: Any) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9.py"
    with open(path, "wb") as file:
        file.write(b"def plain(): pass\nclass A:\n  def plain(self): pass\n")
    code = compile("def plain(): pass\n", os.fsdecode(path), "exec")
    space: dict[str, Any] = {"__name__": os.fsdecode(b"caf\xe9")}
    exec(code, space)
    for pattern in ("*/caf?.py:plain", f"{tmp_path}/caf*.py:plain", "caf?:plain"):
        install(pattern, delay_ns=0)
        space["plain"]()
        assert calls("plain") == 1, pattern
        (only,) = speed_bump.stats().functions
        assert only.name == os.fsdecode(b"caf\xe9:plain")


def test_a_name_that_is_too_long_is_said_to_be_lost() -> None:
    space: dict[str, Any] = {"__name__": "made"}
    for length, lost in ((1_000, 0), (40_000, 1)):
        name = "f" * length
        exec(f"def {name}(): pass", space)
        install("made:f*", delay_ns=1_000)
        space[name]()
        space[name]()
        stats = speed_bump.stats()
        assert (stats.lost, stats.calls) == (lost, 0 if lost else 2)


def test_more_functions_than_the_table_has_room_for() -> None:
    from speed_bump import control
    from speed_bump._core import Table

    control._install(Config([f"{HERE}:*"], delay_ns=1000), Table(capacity=3))
    for function in (plain, other, outer, Outer.static, Outer.klass):
        function()
    stats = speed_bump.stats()
    assert len(stats.functions) == 3
    assert stats.lost > 0
