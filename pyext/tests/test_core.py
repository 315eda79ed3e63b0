# SPDX-License-Identifier: MIT
"""The extension itself: for any argument it returns or raises an exception."""

from __future__ import annotations

import gc
import os
import random
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import speed_bump
from conftest import Run
from records import RECORDS, made
from speed_bump import Config, _core

HERE = __name__


def plain() -> None:
    pass


class Meddler:
    """Behaves differently whenever its type or attributes are requested."""

    def __init__(self, deed: Callable[[], object]) -> None:
        self.deed = deed

    def __index__(self) -> int:
        self.deed()
        return 1

    def __fspath__(self) -> str:
        self.deed()
        return "/nowhere/at/all"

    def __bool__(self) -> bool:
        self.deed()
        return True


def test_a_list_that_changes_while_it_is_read() -> None:
    policies: list[Any] = []
    meddler: Any = Meddler(policies.clear)
    policies += [made(_core.Policy, number=meddler, every=1) for _ in range(50)]
    table = _core.Table()
    _core.start(table, b"a:b\n" * 50, policies, 0)
    _core.stop()
    assert policies == []


def test_a_start_within_a_start() -> None:
    table, other = _core.Table(), _core.Table()
    inner: list[BaseException] = []

    def start() -> None:
        for again in (
            lambda: _core.start(other, b"a:b\n", [_core.policy()], 0),
            _core.stop,
            _core.clear_cache,
            table.close,
        ):
            try:
                again()
            except (RuntimeError, ValueError) as error:
                inner.append(error)

    policy = made(_core.Policy, number=Meddler(start), delay_ns=100, every=1)
    _core.start(table, f"{HERE}:plain\n".encode(), [policy], 0)
    plain()
    _core.stop()
    assert len(inner) == 4
    assert [site.calls for site in table.read()] == [1]


def test_what_is_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "Table", object)
    with pytest.raises(TypeError, match="not a Table"):
        _core.start(object(), b"a:b\n", [_core.policy()], 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not a Table"):
        _core.Stacks(object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a Table"):
        _core.Plan(object())  # type: ignore[arg-type]


def test_what_a_plan_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="no plan"):
        _core.Plan(_core.Table())
    table = _core.Table(planned=True)
    # The attributes of the module may be rebound; its own types are used.
    monkeypatch.delattr(_core, "Table")
    _core.Plan(table)


def test_a_closed_table() -> None:
    table = _core.Table()
    table.close()
    for use in (
        table.read,
        table.share,
        lambda: table.enabled,
        lambda: table.lost,
        lambda: table.progress("a", 1),
        lambda: _core.start(table, b"a:b", [_core.policy()], 0),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()
    with pytest.raises(AttributeError):
        del table.enabled


def test_a_table_in_use_is_not_closed() -> None:
    table = _core.Table()
    _core.start(table, f"{HERE}:plain\n".encode(), [_core.policy()], 0)
    with pytest.raises(ValueError, match="in use"):
        table.close()
    plain()
    _core.stop()
    table.close()


def test_a_name_that_asks_back(python: Run) -> None:
    # Looking for __name__ calls __eq__, whose first execution looks for __name__, and so
    # on.
    program = """
import speed_bump
class Key(str):
    __hash__ = str.__hash__
    def __eq__(self, other): return helper(self, other)
space = {}
exec("def helper(a, b): return str.__eq__(a, b)\\ndef work(): pass", space)
helper = space["helper"]
space[Key("__name__")] = "made"
Key.__eq__ = helper
speed_bump.install(speed_bump.Config(["*:*"], delay_ns=0))
space["work"]()
print("alive")
"""
    done = python(program)
    assert (done.stdout, done.returncode) == ("alive\n", 0), done.stderr


def test_an_exception_under_way_is_left_alone() -> None:
    speed_bump.install(Config([f"{HERE}:*"], delay_ns=0))

    class Bad:
        def __del__(self) -> None:
            exec("def fresh(): pass\nfresh()", {"__name__": 5})

    with pytest.raises(ZeroDivisionError):
        bad = Bad()
        try:
            1 / 0  # noqa: B018
        finally:
            del bad


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
def test_a_tool_id_that_was_freed_under_us() -> None:
    monitoring = sys.monitoring
    mine = {i for i in range(6) if monitoring.get_tool(i) is None}
    speed_bump.install(Config([f"{HERE}:plain"], delay_ns=0))
    (tool,) = (i for i in mine if monitoring.get_tool(i))
    monitoring.set_events(tool, 0)
    monitoring.free_tool_id(tool)
    monitoring.use_tool_id(tool, "theirs")
    try:
        monitoring.set_events(tool, monitoring.events.LINE)
        with speed_bump.slow(f"{HERE}:other", 0):
            plain()
        speed_bump.uninstall()
        assert monitoring.get_tool(tool) == "theirs"
        assert monitoring.get_events(tool) == monitoring.events.LINE
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
    assert all(monitoring.get_tool(i) is None for i in mine)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
def test_the_callback_in_other_hands() -> None:
    monitoring = sys.monitoring
    speed_bump.install(Config([f"{HERE}:plain"], delay_ns=0))
    (tool,) = (i for i in range(6) if monitoring.get_tool(i) == "speed_bump")
    callback = monitoring.register_callback(tool, monitoring.events.PY_START, None)
    assert callback is not None
    for arguments in ((), (1,), (1, 2), (plain.__code__,), (plain.__code__, 0, 0)):
        with pytest.raises(TypeError):
            callback(*arguments)
    callback(plain.__code__, 0)
    speed_bump.uninstall()
    callback(plain.__code__, 0)


# ------------------------------------------------------------------- random arguments


def anything(rng: random.Random) -> Any:
    kind = rng.randrange(17)
    if kind < 6:
        return rng.choice(
            (None, True, "", "a:b", "10us", b"a:b\n", -1, 0, 1, 10**6, 2**64, 1.5, "\0")
        )
    if kind == 6:
        return rng.randbytes(rng.randrange(40))
    if kind == 7:
        return "".join(chr(rng.randrange(1, 0x2FF)) for _ in range(rng.randrange(20)))
    if kind == 8:
        return "\udc80/\ud800"
    if kind == 9:
        return [anything(rng) for _ in range(rng.randrange(4))]
    if kind == 10:
        return tuple(anything(rng) for _ in range(rng.randrange(8)))
    if kind == 11:
        return _core.Table(capacity=rng.choice((1, 2, 100)))
    if kind == 12:
        return plain.__code__
    if kind == 13:
        return Meddler(gc.collect if rng.randrange(20) == 0 else _core.clear_cache)
    if kind == 14:
        delays = [rng.randrange(100) for _ in range(rng.randrange(3))]
        return [_core.policy(number=n, delay_ns=delay) for n, delay in enumerate(delays)]
    if kind == 15:
        some = (None, "a:b", b"a:b\n", 1, True, Meddler(_core.clear_cache))
        return (_core.Entry([rng.choice(some) for _ in range(7)]),)
    return rng.choice((object, object(), _core, Ellipsis, {}, "x" * 5000))


def targets(rng: random.Random) -> list[Callable[..., object]]:
    table = _core.Table(capacity=4)
    methods = [getattr(table, name) for name in dir(table) if name[0] != "_"]
    found = [value for value in methods if callable(value)]
    found += [
        getattr(_core, name)
        for name in dir(_core)
        if name[0] != "_" and name != "Session"
    ]
    found += [getattr(_core, name) for name in RECORDS]
    found = [value for value in found if callable(value)]
    assert _core.start in found
    return found


@pytest.mark.parametrize("seed", range(4))
def test_anything_into_everything(seed: int, tmp_path: Any) -> None:
    """No crash, no hang, only exceptions that describe the error."""
    rng = random.Random(int(os.environ.get("SPEED_BUMP_SEED", "0")) + seed)
    expected = (
        TypeError,
        ValueError,
        OverflowError,
        OSError,
        RuntimeError,
        MemoryError,
        AttributeError,
    )
    where = os.getcwd()
    os.chdir(tmp_path)  # Table() makes files of that name
    answered = 0
    try:
        for _ in range(int(os.environ.get("SPEED_BUMP_ROUNDS", "60"))):
            for function in targets(rng):
                arguments = [anything(rng) for _ in range(rng.randrange(5))]
                if function is _core.spin_delay_ns and arguments:
                    arguments[0] = rng.choice((-1, 5, "x", 2**70))
                try:
                    function(*arguments)
                    answered += 1
                except expected:
                    pass
                plain()
    finally:
        os.chdir(where)
        _core.stop()
    assert answered > 100


# -------------------------------------------------------------------- numbers


def of_numbers() -> dict[str, tuple[int, Callable[[Any], object]]]:
    """(bits, function of one number) of each number that is taken as unsigned."""
    table = _core.Table(planned=True)
    plan = _core.Plan(_core.Table(planned=True))
    stacks, sampler = _core.Stacks(table), _core.NativeSampler()
    here = sys.executable

    def start(**values: object) -> None:
        _core.start(table, b"a:b\n", [made(_core.Policy, **values)], 0)

    return {
        "policy number": (32, lambda n: _core.policy(number=n)),
        "policy delay": (64, lambda n: _core.policy(delay_ns=n)),
        "policy every": (32, lambda n: _core.policy(every=n)),
        "policy start": (64, lambda n: _core.policy(start_ns=n)),
        "policy end": (64, lambda n: _core.policy(end_ns=n)),
        "native delay": (64, lambda n: _core.native_target("a", "b", delay_ns=n)),
        "native every": (32, lambda n: _core.native_target("a", "b", every=n)),
        "native start": (64, lambda n: _core.native_target("a", "b", start_ns=n)),
        "native duration": (64, lambda n: _core.native_target("a", "b", duration_ns=n)),
        "start number": (32, lambda n: start(number=n)),
        "start delay": (64, lambda n: start(delay_ns=n)),
        "start every": (32, lambda n: start(every=n)),
        "start start": (64, lambda n: start(start_ns=n)),
        "start end": (64, lambda n: start(end_ns=n)),
        "capacity": (32, lambda n: _core.Table(None, n)),
        "rings": (32, lambda n: _core.Table(latencies=["a:b"], rings=n)),
        "progress": (64, lambda n: table.progress("x", n)),
        "ring": (32, lambda n: table.latency_events(n, 0, False)),
        "event": (64, lambda n: table.latency_events(0, n, False)),
        "units": (64, lambda n: plan.end_slot(n, 0)),
        "slot's end": (64, lambda n: plan.end_slot(0, n)),
        "level": (64, lambda n: plan.set(0, None, [(n, 1)])),
        "level every": (32, lambda n: plan.set(0, None, [(0, n)])),
        "schedule": (64, lambda n: plan.schedule(n, b"", b"")),
        "pace": (64, lambda n: plan.set_pace(n, 1, False)),
        "slot units": (64, lambda n: plan.set_pace(1, n, False)),
        "rank": (32, lambda n: plan.set_rank_arms(n, 0)),
        "arm": (32, lambda n: plan.set_rank_arms(0, n)),
        "offset": (64, lambda n: sampler.add_function(here, n)),
        "symbol": (64, lambda n: sampler.symbol(here, n)),
        "run": (64, lambda n: stacks.run(n, 1)),
        "interval": (64, lambda n: stacks.run(0, n)),
    }


@pytest.mark.parametrize("name", of_numbers())
def test_a_number_that_does_not_fit(name: str) -> None:
    """None of its bits are left out."""
    bits, function = of_numbers()[name]
    most = 2**bits - 1
    for number in (-1, -(2**63), most + 1, 2**64 + 5, 10**5000):
        with pytest.raises(OverflowError, match=f"out of range: 0 to {most}$"):
            function(number)
    with pytest.raises(TypeError):
        function(1.0)
    with pytest.raises(TypeError):
        function("1")


def test_numbers_that_fit() -> None:
    policy = _core.policy(
        number=2**32 - 1, delay_ns=2**64 - 1, every=True, start_ns=0, end_ns=2**63
    )
    assert (policy.number, policy.delay_ns, policy.every) == (2**32 - 1, 2**64 - 1, 1)
    assert (policy.start_ns, policy.end_ns) == (0, 2**63)
    index: Any = Meddler(lambda: None)
    assert _core.native_target("a", "b", every=index).every == 1


def test_levels_that_change_while_they_are_read() -> None:
    plan = _core.Plan(_core.Table(planned=True))
    levels: list[Any] = []
    meddler: Any = Meddler(levels.clear)
    levels += [(meddler, meddler) for _ in range(4)]
    plan.set(plan.add_function("a:b"), 0, levels)
    assert levels == []


def test_records_without_memory(python: Run) -> None:
    """Each allocation fails once: that is a MemoryError, and nothing else."""
    pytest.importorskip("_testcapi")
    done = python(
        "import _testcapi\n"
        "from speed_bump import _core\n"
        "big = 2**31\n"
        "table = _core.Table()\n"
        "table.progress('x', big)\n"
        "makers = (\n"
        "    lambda: _core.policy(number=big, delay_ns=big, every=big, end_ns=big),\n"
        "    lambda: _core.native_target('a', 'b', delay_ns=big, every=big),\n"
        "    lambda: _core.entry('a:b', b'a:b', delay_ns=big),\n"
        "    lambda: _core.parse_targets(b'a:b delay=1us every=3000', 'x'),\n"
        "    table.read,\n"
        ")\n"
        "failed = []\n"
        "for make in makers:\n"
        "    expected = make()\n"
        "    for n in range(60):\n"
        "        _testcapi.set_nomemory(n, n + 1)\n"
        "        try: made = make()\n"
        "        except MemoryError: made = None\n"
        "        finally: _testcapi.remove_mem_hooks()\n"
        "        if made is None: failed.append(make)\n"
        "        else: assert made == expected, made\n"
        "assert set(failed) == set(makers), failed\n"
        "print('good')\n"
    )
    assert (done.stdout, done.stderr) == ("good\n", "")


# ---------------------------------------------------------------------- leaks


def resident_kb() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4


def cycle(times: int) -> None:
    config = Config([f"{HERE}:plain", f"{HERE}:other"], delay_ns=0)
    for _ in range(times):
        speed_bump.install(config)
        plain()
        speed_bump.uninstall()


def test_install_and_uninstall_leave_nothing_behind() -> None:
    times = int(os.environ.get("SPEED_BUMP_CYCLES", "500"))
    cycle(50)
    gc.collect()
    objects, memory = len(gc.get_objects()), resident_kb()
    references = getattr(sys, "gettotalrefcount", lambda: 0)()
    cycle(times)
    gc.collect()
    grown = getattr(sys, "gettotalrefcount", lambda: 0)() - references
    assert abs(grown) < max(50, times // 10)  # a leak per cycle would be ten times that
    assert len(gc.get_objects()) - objects < 50
    # A leaked table takes over 100 KiB, a leaked object 16 bytes.
    assert resident_kb() - memory < max(4096, times // 10)


def test_short_lived_functions_leave_nothing_behind(python: Run) -> None:
    program = """
import gc, speed_bump
def resident_kb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4
def grown():
    before = resident_kb()
    for _ in range(10_000):
        exec("def f(): pass\\nf()", {"__name__": "made"})
    gc.collect()
    return resident_kb() - before
speed_bump.install(speed_bump.Config(["made:never"], delay_ns=0))
# The interpreter itself keeps some, the less the longer it runs.
print(any(grown() < 10_000 * 50 // 1024 for _ in range(6)))
"""
    done = python(program)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_an_error_is_caught_as_what_its_number_says(tmp_path: Path) -> None:
    # Raised by the interpreter: in 3.10 the type of a bare OSError differs.
    caught = ""
    try:
        _core.Table.open(str(tmp_path / "none"))
    except FileNotFoundError:
        caught = "FileNotFoundError"
    except OSError:
        caught = "OSError"
    assert caught == "FileNotFoundError"


def test_a_first_call_at_the_recursion_limit(python: Run) -> None:
    """There is no memory to look the function up, so that is done at the next call."""
    program = """
import sys, speed_bump
def target(): pass
def dive(_):
    try:
        return max((0,), key=dive)
    except RecursionError:
        target()
        return 0
sys.setrecursionlimit(LIMIT)
speed_bump.install(speed_bump.Config(["__main__:target"], delay_ns=0))
dive(0)
def calls():
    return sum(f.calls for f in speed_bump.stats().functions)
before = calls()
for _ in range(5): target()
print(calls() - before)
"""
    for limit in (200, 1_000, 100_000 if sys.version_info >= (3, 12) else 5_000):
        done = python(program.replace("LIMIT", str(limit)))
        assert (done.stdout, done.returncode) == ("5\n", 0), done.stderr


@pytest.mark.parametrize("change", ["", "again", "retarget"])
def test_stacks_do_not_take_one_function_for_another(change: str, python: Run) -> None:
    """The code of a function is freed, and that of another is at the same address."""
    program = """
import gc, sys, threading, speed_bump
from speed_bump import Config, _core
source = "def NAME(stop):\\n while not stop: pass"
def make(name):
    space = {"__name__": "made"}
    exec(source.replace("NAME", name), space)
    return space[name]
def sample():
    stacks = _core.Stacks(_core.state().table)
    assert stacks.add(__import__("os").getpid(), _core.layout())
    stacks.run(50_000_000, 500_000)
    names = stacks.targets()
    taken = stacks.take().stacks
    return {names[code].name for stack in taken for code in stack.codes} - {None}
def seen(function):
    stop = []
    thread = threading.Thread(target=function, args=(stop,))
    thread.start()
    names = sample()
    stop.append(1)
    thread.join()
    return names
speed_bump.install(Config(["made:yes"], delay_ns=0))
# The first four are all that a slot has room for.
them = [(make("yes"), make("between")) for _ in range(4)]
for yes, _ in them: assert list(seen(yes)) == ["made:yes"]
change = CHANGE
if change == "retarget":
    with speed_bump.slow("made:nothing", 0): yes([1])
if change == "again":
    speed_bump.uninstall()
    speed_bump.install(Config(["made:yes"], delay_ns=0))
    for yes, _ in them: yes([1])
addresses = {id(yes.__code__) for yes, _ in them}
del yes
them = [between for _, between in them]
gc.collect()
kept = []
for n in range(2_000):
    other = make("other")
    if id(other.__code__) in addresses:
        names = seen(other)
        assert names == set(), names
        print("other")
        break
    if n % 3: kept.append(other)
else:
    print("elsewhere")
"""
    for _ in range(10):
        done = python(program.replace("CHANGE", repr(change)))
        assert done.returncode == 0, done.stderr
        if done.stdout == "other\n":
            return
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.fail("no address was used twice")


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="co_extra is not used there"
)
def test_another_user_of_co_extra_that_ends_before_the_code(python: Run) -> None:
    """CPython calls its function for each code object that has room for its index."""
    program = """
import ctypes, gc, sys, speed_bump
from speed_bump import Config
prefix = "PyUnstable_" if sys.version_info >= (3, 12) else "_Py"
request = getattr(ctypes.pythonapi, prefix + "Eval_RequestCodeExtraIndex")
def fresh():
    space = {"__name__": "made"}
    exec("def f(): return g()\\ndef g(): return 1", space)
    return space["f"]
before = fresh()
speed_bump.install(Config(["made:f", "made:g"], delay_ns=0))
before()
kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
freed = []
theirs = kind(freed.append)
assert request(theirs) >= 0
after = [fresh() for _ in range(100)]
for function in after: function()
del before, after, function
gc.collect()
assert freed == [], freed
after = [fresh() for _ in range(100)]
for function in after: function()
del theirs
gc.collect()
filler = [kind(print) for _ in range(50)]
del after, function
gc.collect()
assert sum(f.calls for f in speed_bump.stats().functions) == 2 + 400
print("right")
"""
    done = python(program)
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr
