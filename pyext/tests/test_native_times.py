# SPDX-License-Identifier: MIT
"""Self time of native functions: what is seen of it, kept, and said where it is not."""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest
import simulated
from speed_bump import _core
from speed_bump.experiment import html, records, show
from speed_bump.experiment.judge import Judge, self_share
from speed_bump.experiment.native_times import NativeSampling
from speed_bump.experiment.records import Census, NativeTimes, Writer

NAME, OTHER, PYTHON = "/lib/x.so:f", "/lib/x.so:g", "m:f"
SECOND = 10**9
# Runs by itself: what it calls most is known.
BUSY = "import zlib\nwhile True: zlib.crc32(bytes(10**7))"


def census(native, self_from="stack samples"):
    calls = {NAME: 100, OTHER: 100, PYTHON: 100}
    samples = {PYTHON: 100}
    return Census(0, 1, SECOND, 1000, calls, 1000, samples, self_from, native)


def times(own_ns, **more):
    looks = dict.fromkeys((NAME, OTHER), more.pop("looks", 1000))
    values = {"clock_ns": SECOND, "thread_ns": SECOND, "stacks": 1000, **more}
    return NativeTimes(self_ns={NAME: own_ns, OTHER: 0}, looks=looks, **values)


def recorded(native):
    found = simulated.record(1, (NAME, PYTHON))
    found.censuses[:] = [census(native)]
    for i, name in enumerate((NAME, PYTHON)):
        simulated.add(found, random.Random(i), name, lambda x: x)
    return found


def test_a_share_is_of_the_time_and_of_all_threads():
    share = self_share([census(times(SECOND // 4)), census(times(SECOND // 2))], NAME)
    assert share.value == pytest.approx(3 / 8)
    assert share.low < 3 / 8 < share.high
    assert share.high - share.low < 0.1
    # Two threads that are always in it, and a function that nobody is in.
    assert self_share([census(times(2 * SECOND))], NAME).value == pytest.approx(2)
    idle = self_share([census(times(2 * SECOND))], OTHER)
    assert idle.value == 0 < idle.high < 0.01


def test_fewer_looks_make_a_wider_interval():
    many, few = (
        self_share([census(times(SECOND // 2, looks=n))], NAME) for n in (1000, 10)
    )
    assert few.value == many.value
    assert few.high - few.low > 4 * (many.high - many.low)


def test_each_language_has_its_own_way_of_seeing():
    # Nobody looked at native functions: that they were not among the samples is nothing.
    assert self_share([census(None)], NAME) is None
    assert self_share([census(NativeTimes(refused="no"))], NAME) is None
    assert self_share([census(None)], PYTHON).value == pytest.approx(0.1)
    assert self_share([census(times(1), self_from="")], PYTHON) is None


def test_headroom_is_of_native_functions_too():
    verdict = Judge(recorded(times(SECOND // 2))).verdict()
    native = verdict.of(NAME)
    assert native.headroom.value == pytest.approx(0.5 * native.criticality.value)
    assert [f.name for f in verdict.findings] == [NAME, PYTHON]
    assert not any("self time" in note for note in verdict.notes)
    few = Judge(recorded(times(SECOND // 100))).verdict()
    assert [f.name for f in few.findings] == [PYTHON, NAME]


def test_it_is_in_every_form():
    found = recorded(times(SECOND // 2))
    verdict = Judge(found).verdict()
    text = show.text(found, verdict)
    assert "50.0%" in text
    assert "1,000 stack samples and 1,000 native stacks by perf events" in text
    assert "50.0%" in show.markdown(found, verdict)
    assert f"{NAME},0.1,0.5," in show.table_csv(verdict)
    by_name = {f["function"]: f for f in show.as_json(found, verdict)["functions"]}
    assert by_name[NAME]["self_share"]["value"] == pytest.approx(0.5)
    assert by_name[NAME]["headroom"]["value"] > 0.4
    assert "x.so:f" in html.page(found, verdict)


def test_a_refusal_is_said_and_the_rest_goes_on():
    found = recorded(NativeTimes(refused="run as root"))
    verdict = Judge(found).verdict()
    assert verdict.of(NAME).headroom is None
    assert verdict.of(NAME).criticality.value > 0.5
    assert verdict.of(PYTHON).headroom is not None
    (note,) = [n for n in verdict.notes if "self time" in n]
    assert "native functions" in note
    assert note.endswith("run as root")


def test_what_is_not_seen_is_said():
    verdict = Judge(recorded(times(SECOND // 2, unseen_ns=SECOND // 5))).verdict()
    assert any("up to 20% of the time" in note for note in verdict.notes)


def test_a_record_keeps_it(tmp_path):
    path = tmp_path / "record.jsonl"
    native = times(SECOND // 2, refused="of one", unseen_ns=3, lost=4)
    with path.open("w", encoding="utf-8") as file:
        writer = Writer({"format": records.FORMAT, "seed": 1}, file)
        writer.census(census(native))
        writer.census(census(None))
    assert [c.native for c in records.read(str(path)).censuses] == [native, None]
    # From before there was any.
    lines = path.read_text("utf-8").splitlines()
    old = json.loads(lines[2])
    del old["native"]
    path.write_text("\n".join([*lines[:2], json.dumps(old)]), "utf-8")
    assert records.read(str(path)).censuses[1] == census(None)


def sampler_or_skip():
    try:
        return _core.NativeSampler()
    except OSError as error:
        pytest.skip(str(error))


def place_of(address):
    """The file that is mapped at an address, and the offset there."""
    for line in pathlib.Path("/proc/self/maps").read_text("utf-8").splitlines():
        span, _, start, _, _, *path = line.split()
        low, high = (int(word, 16) for word in span.split("-"))
        if low <= address < high:
            return path[0], address - low + int(start, 16)
    raise AssertionError(f"nothing is at {address:#x}")


def place_in_libc():
    getpid = ctypes.CDLL(None).getpid
    return place_of(ctypes.cast(getpid, ctypes.c_void_p).value)


def place_in_libz():
    path = ctypes.util.find_library("z")
    if not path:
        pytest.skip("no libz.so here")
    # crc32() jumps there.
    function = ctypes.CDLL(path).crc32_z
    return place_of(ctypes.cast(function, ctypes.c_void_p).value)


def test_a_refusal_by_the_kernel_says_what_to_do():
    sampler_or_skip()
    path, offset = place_in_libc()
    program = (
        "import os, sys\n"
        "from speed_bump.experiment.native_times import NativeSampling\n"
        "sampling = NativeSampling({'/x:f': (sys.argv[1], int(sys.argv[2]))})\n"
        "assert not sampling.refused, sampling.refused\n"
        "if not os.geteuid(): os.setgroups([]); os.setuid(65534)\n"
        "with sampling.running([os.getpid()], 10**7): pass\n"
        "print(sampling.times.refused, sampling.times.self_ns)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path, str(offset)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "CAP_PERFMON" in done.stdout
    assert "perf_event_paranoid" in done.stdout
    assert done.stdout.strip().endswith("{}")


@pytest.mark.skipif(os.geteuid() != 0, reason="perf events are for root")
def test_a_library_is_seen_inside_a_program_of_python():
    sampler_or_skip()
    path, offset = place_in_libz()
    libz = f"{path}:crc32_z"
    sampling = NativeSampling({libz: (path, offset)})
    assert not sampling.refused
    done = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        share = most = 0.0
        for _ in range(20):
            with sampling.running([done.pid], SECOND // 5):
                pass
            if sampling.times.refused:
                pytest.skip(sampling.times.refused)
            most = max(most, sampling.times.thread_ns / sampling.times.clock_ns)
            share = max(share, sampling.times.self_ns[libz] / sampling.times.clock_ns)
            if share > 0.3:
                break
        assert share > 0.3
        assert most < 1.1
    finally:
        done.kill()
        done.wait()


def test_a_place_without_a_symbol_is_no_end_of_it():
    sampler_or_skip()
    path, offset = place_in_libc()
    sampling = NativeSampling({"/a": (path, 1), "/b": (path, offset)})
    assert "@0x1" in sampling.refused
    with sampling.running([], 1):
        pass
    if "CAP_PERFMON" in sampling.times.refused:
        pytest.skip(sampling.times.refused)
    assert sampling.times.self_ns == {"/b": 0}


def test_an_interrupt_ends_it_at_once():
    sampler_or_skip()
    sampling = NativeSampling({"/b": place_in_libc()})
    with pytest.raises(KeyboardInterrupt), sampling.running([os.getpid()], 3600 * SECOND):
        raise KeyboardInterrupt


def test_an_interrupt_while_stacks_are_followed_ends_it_too():
    sampler_or_skip()
    path, offset = place_in_libc()
    probe = NativeSampling({"/b": (path, offset)})
    with probe.running([], 1):
        pass
    if probe.times.refused:
        pytest.skip(probe.times.refused)
    program = (
        "import os, sys, threading\n"
        "from speed_bump.experiment.native_times import NativeSampling\n"
        "sampling = NativeSampling({'/b': (sys.argv[1], int(sys.argv[2]))})\n"
        "try:\n"
        "    with sampling.running([os.getpid()], 20 * 10**9): print(flush=True)\n"
        "except KeyboardInterrupt: print(threading.active_count(), flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, path, str(offset)], stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        # It has nothing left to do but wait.
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        # The one thread that there was before.
        assert child.stdout.read().split() == [b"1"]
