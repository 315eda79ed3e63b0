# SPDX-License-Identifier: MIT
"""Native probes.

$FIXTURE_DIR has libsbfixture.so (selftests/fixture). The backend is the kernel module, or
that in SPEED_BUMP_BACKEND.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import storage
from records import made
from speed_bump import _core, native

pytestmark = [pytest.mark.two_pythons, pytest.mark.timed]

absent = pytest.mark.skipif(
    os.path.exists("/dev/speed_bump"), reason="/dev/speed_bump is there"
)
with_returns = pytest.mark.skipif(
    os.environ.get("SPEED_BUMP_BACKEND") == "bpf" and bool(storage.refused()),
    reason=storage.refused(),
)


@absent
def test_without_a_device_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEED_BUMP_BACKEND", "driver")
    assert native.backend() is None
    with pytest.raises(native.NativeError, match="sbctl doctor"):
        native.caveats()
    assert not native.is_available()
    probe = native.probe("libc.so.6", "malloc")
    with pytest.raises(native.NativeError, match="sbctl doctor") as raised, probe:
        pytest.fail("entered")
    assert isinstance(raised.value, OSError)
    assert raised.value.errno == errno.ENOENT
    with pytest.raises(native.NativeError, match="sbctl doctor"):
        native.add_probe("libc.so.6", "malloc")


@absent
def test_the_package_has_it_without_an_import_of_its_own() -> None:
    program = """
import sys, speed_bump
assert "speed_bump.native" not in sys.modules
native = speed_bump.native
print(callable(native.probe), native is sys.modules["speed_bump.native"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True True\n"


def test_what_is_in_force_stays_when_another_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import json

    monkeypatch.setenv("SPEED_BUMP_BACKEND", "driver")

    import speed_bump

    before = speed_bump.Config(["json:dumps"])
    speed_bump.install(before)
    json.dumps([])
    with pytest.raises(native.NativeError):
        speed_bump.install(speed_bump.Config(["json:loads", "native:libc.so.6:malloc"]))
    assert speed_bump.get_config() is before
    json.dumps([])
    json.loads("[]")
    (only,) = speed_bump.stats().functions
    assert (only.name, only.calls) == ("json:dumps", 2)


def test_a_forked_child_lets_go_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Session:
        def close(self) -> None:
            closed.append(os.getpid())

        def close_after_fork(self) -> None:
            closed.append(os.getpid())

    monkeypatch.setattr("speed_bump._core.Session", Session)
    probes = native.Probes(os.getpid())
    pid = os.fork()
    if pid == 0:
        os._exit(closed != [os.getpid()])
    assert os.waitpid(pid, 0)[1] == 0
    assert closed == []
    probes.close()
    assert closed == [os.getpid()]


def test_calls_that_are_missing_are_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Session:
        def list(self) -> list[_core.NativeSite]:
            site = made(
                _core.NativeSite, id=4, label="/x:f", calls=7, unarmed=3, missed=2
            )
            return [site]

        def close(self) -> None:
            pass

    monkeypatch.setattr("speed_bump._core.Session", Session)
    probes = native.Probes(os.getpid())
    for _ in range(2):
        (site,) = probes.read()
        assert (site.name, site.calls, site.delayed) == ("/x:f", 7, 0)
    probes.close()
    said = capsys.readouterr().err
    assert said.count("missing") == 1
    assert said.count("/x:f: 2 calls were not delayed: of nested calls") == 1
    assert "/x:f: calls are missing: a breakpoint could not be inserted 3 times" in said


@pytest.mark.needs_device
def test_a_forked_child_does_not_keep_probes(fixture: tuple[str, ctypes.CDLL]) -> None:
    path, _ = fixture
    read, write = os.pipe()
    maker = os.fork()
    if maker == 0:
        native.add_probe(path, "fixture_plain")
        child = os.fork()
        if child == 0:
            files = [os.readlink(f"/proc/self/fd/{n}") for n in _descriptors()]
            ours = [f for f in files if f == "/dev/speed_bump" or "bpf" in f]
            os.write(write, str(len(ours)).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os._exit(0)
    os.waitpid(maker, 0)
    assert os.read(read, 10) == b"0"


def _descriptors() -> list[int]:
    found = []
    for number in range(64):
        try:
            os.fstat(number)
        except OSError:
            continue
        found.append(number)
    return found


def test_a_delay_out_of_range() -> None:
    with pytest.raises(native.NativeError) as raised:
        native.probe("libc.so.6", "malloc", delay_ns=10_000_000_001)
    assert raised.value.errno == errno.ERANGE


def test_removing_what_is_not_there() -> None:
    with pytest.raises(native.NativeError) as raised:
        native.remove_probe("libc.so.6", "malloc")
    assert raised.value.errno == errno.ENOENT


@pytest.fixture
def fixture() -> tuple[str, ctypes.CDLL]:
    directory = os.environ.get("FIXTURE_DIR")
    if not directory:
        pytest.skip("FIXTURE_DIR is not set")
    path = str(Path(directory) / "libsbfixture.so")
    return path, ctypes.CDLL(path)


def spin_ns(library: ctypes.CDLL, symbol: str, calls: int) -> int:
    import time

    function = getattr(library, symbol)
    begin = time.monotonic_ns()
    for i in range(calls):
        assert function(i) == i + 1
    return time.monotonic_ns() - begin


@pytest.mark.needs_device
def test_is_available() -> None:
    assert native.is_available()
    assert native.backend() in ("driver", "bpf")
    assert (native.caveats() == []) == (native.backend() == "driver")
    assert native.backend() == os.environ.get("SPEED_BUMP_BACKEND", native.backend())


def test_an_unknown_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEED_BUMP_BACKEND", "magic")
    assert not native.is_available()
    with pytest.raises(native.NativeError, match="SPEED_BUMP_BACKEND=magic"):
        native.caveats()


@pytest.mark.needs_device
def test_a_probe_works_the_moment_it_is_entered(fixture: tuple[str, ctypes.CDLL]) -> None:
    path, library = fixture
    bare = spin_ns(library, "fixture_plain", 20)
    with native.probe(path, "fixture_plain", delay_ns=20_000_000) as probe:
        slowed = spin_ns(library, "fixture_plain", 20)
        (counted,) = probe.stats()
    after = spin_ns(library, "fixture_plain", 20)
    assert (counted.calls, counted.delayed) == (20, 20)
    assert counted.delivered_ns >= 20 * 20_000_000
    assert slowed >= 20 * 20_000_000
    assert max(bare, after) < slowed / 2


@pytest.mark.needs_device
def test_probes_nest(fixture: tuple[str, ctypes.CDLL]) -> None:
    path, library = fixture
    with native.probe(path, "fixture_plain") as outer:
        with native.probe(path, "fixture_*") as inner:
            spin_ns(library, "fixture_plain", 3)
            assert len(inner.stats()) > 3
        spin_ns(library, "fixture_plain", 4)
        assert sum(f.calls for f in outer.stats()) == 7


@pytest.mark.needs_device
def test_another_process_is_left_alone(fixture: tuple[str, ctypes.CDLL]) -> None:
    path, library = fixture
    stranger = os.fork()
    if stranger == 0:
        import time

        time.sleep(60)
        os._exit(0)
    try:
        with native.probe(path, "fixture_plain", pid=stranger) as probe:
            spin_ns(library, "fixture_plain", 5)
            assert [f.calls for f in probe.stats()] == [0]
    finally:
        os.kill(stranger, 9)
        os.waitpid(stranger, 0)


@pytest.mark.needs_device
def test_children_are_slowed(fixture: tuple[str, ctypes.CDLL]) -> None:
    path, library = fixture
    with native.probe(path, "fixture_plain") as probe:
        pid = os.fork()
        if pid == 0:
            spin_ns(library, "fixture_plain", 6)
            os._exit(0)
        os.waitpid(pid, 0)
        assert [f.calls for f in probe.stats()] == [6]


@pytest.mark.needs_device
def test_a_forked_child_has_its_parent_s_probes_and_none_of_its_own(
    fixture: tuple[str, ctypes.CDLL],
) -> None:
    path, library = fixture
    native.add_probe(path, "fixture_plain")
    pid = os.fork()
    if pid == 0:
        spin_ns(library, "fixture_plain", 2)
        try:
            native.remove_probe(path, "fixture_plain")
        except native.NativeError as error:
            os._exit(0 if error.errno == errno.ENOENT else 1)
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    (probes,) = native._shared.sessions.values()
    assert [f.calls for f in probes.read()] == [2]
    native.remove_probe(path, "fixture_plain")


@pytest.mark.needs_device
def test_add_and_remove(fixture: tuple[str, ctypes.CDLL]) -> None:
    path, _ = fixture
    native.add_probe(path, "fixture_plain", delay_ns=5000)
    with pytest.raises(native.NativeError) as raised:
        native.add_probe(path, "fixture_plain")
    assert raised.value.errno == errno.EEXIST
    native.remove_probe(path, "fixture_plain")
    with pytest.raises(native.NativeError):
        native.remove_probe(path, "fixture_plain")


@pytest.mark.needs_device
def test_no_such_symbol(fixture: tuple[str, ctypes.CDLL]) -> None:
    path, _ = fixture
    with pytest.raises(native.NativeError) as raised:
        native.add_probe(path, "fixture_plan")
    assert raised.value.errno == errno.ENOENT
    assert "fixture_plain" in str(raised.value)


@pytest.mark.needs_device
def test_native_lines_of_a_configuration(fixture: tuple[str, ctypes.CDLL]) -> None:
    import speed_bump

    path, library = fixture
    speed_bump.install(speed_bump.Config([f"native:{path}:fixture_plain delay=5us"]))
    spin_ns(library, "fixture_plain", 4)
    (counted,) = speed_bump.stats().native
    assert counted.calls == counted.delayed == 4
    with speed_bump.slow(f"native:{path}:fixture_second", "5us"):
        spin_ns(library, "fixture_second", 2)
    speed_bump.uninstall()


@pytest.mark.needs_device
def test_the_runner_slows_a_program_from_outside(
    fixture: tuple[str, ctypes.CDLL],
) -> None:
    from speed_bump.config import parse_targets
    from speed_bump.experiment.program.runner import Runner, Slowed

    path, _ = fixture
    (target,) = parse_targets(f"native:{path}:fixture_plain", "here")
    program = (
        "import ctypes, sys\n"
        "f = ctypes.CDLL(sys.argv[1]).fixture_plain\n"
        "for i in range(50): f(i)\n"
    )
    command = [sys.executable, "-c", program, path]
    with Runner(command, show_output=False) as runner:
        result = runner.run([Slowed(target, 2_000_000)])
        counting = runner.run([Slowed(target, 2_000_000, on=False)])
    assert result.calls(target) == counting.calls(target) == 50
    assert result.delivered_ns(target) >= 50 * 2_000_000
    assert counting.delivered_ns(target) == 0


@pytest.mark.needs_device
def test_several_in_one_batch_or_none(fixture: tuple[str, ctypes.CDLL]) -> None:
    import speed_bump

    path, library = fixture
    lines = [f"native:{path}:{name}" for name in ("fixture_plain", "fixture_second")]
    speed_bump.install(speed_bump.Config(lines, delay_ns=5_000))
    spin_ns(library, "fixture_plain", 3)
    spin_ns(library, "fixture_second", 2)
    counted = {f.target.rpartition(":")[2]: f.calls for f in speed_bump.stats().native}
    assert counted == {"fixture_plain": 3, "fixture_second": 2}
    with pytest.raises(native.NativeError, match="fixture_nowhere"):
        speed_bump.install(speed_bump.Config([*lines, f"native:{path}:fixture_nowhere"]))
    spin_ns(library, "fixture_plain", 4)
    counted = {f.target.rpartition(":")[2]: f.calls for f in speed_bump.stats().native}
    assert counted == {"fixture_plain": 7, "fixture_second": 2}
    speed_bump.uninstall()


@pytest.mark.needs_device
def test_a_session_in_many_threads(fixture: tuple[str, ctypes.CDLL]) -> None:
    """libsb allows one thread at a time per session; here it is closed during calls."""
    import threading

    path, _ = fixture
    probes = native.Probes(os.getpid())
    failures: list[BaseException] = []
    rounds, tree = [0] * 4, native._core.SB_SCOPE_TREE

    def work(index: int) -> None:
        target = native._core.native_target(path, "fixture_plain", delay_ns=1000 + index)
        try:
            while True:
                try:
                    places = probes._session.add([target], tree, os.getpid(), True)
                except FileExistsError:
                    continue  # another thread uses it
                ids = [place.id for place in places]
                probes._session.set_targets_enabled(ids, False)
                assert set(ids) <= {site.id for site in probes._session.list()}
                probes._session.remove(ids)
                rounds[index] += 1
        except ValueError as error:
            if "closed" not in str(error):
                failures.append(error)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    while sum(rounds) < 20 and any(thread.is_alive() for thread in threads):
        threads[0].join(0.05)
    probes.close()
    for thread in threads:
        thread.join()
    assert not failures
    assert sum(rounds) >= 20


@pytest.mark.needs_device
@pytest.mark.any_backend
def test_compare_with_a_native_target(fixture: tuple[str, ctypes.CDLL]) -> None:
    import json
    import subprocess

    path, _ = fixture
    program = (
        "import ctypes, sys\n"
        "f = ctypes.CDLL(sys.argv[1]).fixture_plain\n"
        "for i in range(40): f(i)\n"
    )
    done = subprocess.run(
        [
            *[sys.executable, "-m", "speed_bump", "run", "--compare", "--runs", "3"],
            *["--native", f"{path}:fixture_plain", "-d", "10ms", "--json", "-"],
            *["--", sys.executable, "-c", program, path],
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (target,) = json.loads(done.stdout)["targets"]
    assert target["target"] == f"native:{path}:fixture_plain"
    assert target["calls_per_unit"] == 40
    assert target["delivered_per_unit_ns"] >= 40 * 10_000_000


@pytest.mark.needs_device
@with_returns
def test_a_percentage_of_a_native_function(tmp_path: Path) -> None:
    """BPF sees the end of a call; the module says what does, before anything starts."""
    (tmp_path / "app.py").write_text(
        "import ctypes, time\n"
        "usleep = ctypes.CDLL('libc.so.6').usleep\n"
        "begin = time.monotonic_ns()\n"
        "for _ in range(20): usleep(2000)\n"
        "print(time.monotonic_ns() - begin)\n"
    )
    command = [sys.executable, "-m", "speed_bump", "run"]
    for target in (
        ["-t", "native:libc.so.6:usleep delay=200%"],
        ["--native", "libc.so.6:usleep", "-d", "200%"],
    ):
        done = subprocess.run(
            [*command, *target, "--json", "out.json", "--", sys.executable, "app.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        (function,) = json.loads((tmp_path / "out.json").read_text())["targets"]
        assert (function["calls"], function["delayed"]) == (20, 20)
        # Twice what the calls took; on a busy machine they take longer.
        assert 20 * 2 * 1_990_000 < function["requested_ns"] < int(done.stdout)
        assert function["delivered_ns"] >= function["requested_ns"]


@pytest.mark.needs_device
@with_returns
def test_how_long_native_calls_take(tmp_path: Path) -> None:
    """The kernel records it, in the histograms that Python's functions have."""
    (tmp_path / "app.py").write_text(
        "import ctypes\n"
        "libc = ctypes.CDLL('libc.so.6')\n"
        "def nap(us): libc.usleep(us)\n"
        "for i in range(30): nap(20_000 if i % 10 == 0 else 2_000)\n"
    )
    names = ["__main__:nap", "libc.so.6:usleep", "native:libc.so.6:fdopendir"]
    words = [word for name in names for word in ("--latency", name)]
    command = [sys.executable, "-m", "speed_bump", "run", *words, "--json", "out.json"]
    done = subprocess.run(
        [*command, "--", sys.executable, "app.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "native:libc.so.6:fdopendir was never called: the program never" in done.stderr
    found = json.loads((tmp_path / "out.json").read_text())["latency"]
    python, usleep, never = found
    assert [one["name"] for one in found] == [
        "__main__:nap",
        "native:libc.so.6:usleep",
        "native:libc.so.6:fdopendir",
    ]
    assert (python["requests"], usleep["requests"], never["requests"]) == (30, 30, 0)
    assert 2_000_000 <= usleep["p50_ns"] < 20_000_000
    assert usleep["p99_ns"] >= 19_800_000
    # Each is inside the other.
    assert usleep["mean_ns"] <= python["mean_ns"] * 1.01
    assert usleep["mean_ns"] >= python["mean_ns"] * 0.8
    assert usleep["kind"] == "functions"
    assert (usleep["unended"], usleep["unbegun"]) == (0, 0)


@pytest.mark.needs_device
@with_returns
def test_native_calls_as_events() -> None:
    """When each began, and how long it lasted, as the histograms say too."""
    np = pytest.importorskip("numpy")
    from speed_bump.experiment.program.native_latency import NativeLatencies

    if native.backend() == "driver":
        with pytest.raises(native.NativeError, match="module reports no single calls"):
            NativeLatencies(["native:libc.so.6:usleep"], events=True)
        return
    usleep = ctypes.CDLL("libc.so.6").usleep
    names = ["native:libc.so.6:fdopendir", "native:libc.so.6:usleep"]
    recorder = NativeLatencies(names, events=True, first=3)
    try:
        assert not len(recorder.events())
        recorder.start(os.getpid())
        begin = time.monotonic_ns()
        for us in (2000, 1000, 3000):
            usleep(us)
        end = time.monotonic_ns()
        found = recorder.events()
        assert not len(recorder.events())
        never, one = recorder.histograms()
        # As many as the kernel keeps, and some more.
        for _ in range(40_000):
            usleep(0)
        many = recorder.events()
    finally:
        recorder.close()
    assert found["name"].tolist() == [4, 4, 4]
    assert (np.diff([begin, *found["begin_ns"].tolist()]) > 0).all()
    assert (found["duration_ns"] >= [2_000_000, 1_000_000, 3_000_000]).all()
    assert found["begin_ns"][-1] + found["duration_ns"][-1] < end
    assert len(set(found["pid"].tolist())) == 1
    assert (one.count, one.sum_ns) == (3, found["duration_ns"].sum())
    assert (never.count, never.begun) == (0, False)
    assert len(many) == 32_767
    assert recorder.lost == 40_000 - 32_767


@absent
@pytest.mark.one_python
@pytest.mark.parametrize("verb", ["rank", "run"])
def test_durations_without_a_backend_are_refused_at_once(
    tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, before the program starts."""
    monkeypatch.setenv("SPEED_BUMP_BACKEND", "driver")
    command = [sys.executable, "-m", "speed_bump", verb, "--latency", "libz.so.1:deflate"]
    done = subprocess.run(
        [*command, "--", "touch", str(tmp_path / "ran")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "sbctl doctor" in line
    assert done.stdout == ""
    assert not (tmp_path / "ran").exists()
