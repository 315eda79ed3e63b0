# SPDX-License-Identifier: MIT
"""Self time of native functions: how it is measured and stored, and why it is missing."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from speed_bump import _core
from speed_bump.experiment.program.native_times import NativeSampling, NativeTimes
from speed_bump.experiment.program.samples import Own, Samples, self_times

pytestmark = pytest.mark.two_pythons

NAME, OTHER, PYTHON = "/lib/x.so:f", "/lib/x.so:g", "m:f"
SECOND = 10**9
# Runs by itself; the function that it calls most is known.
BUSY = "import zlib\nwhile True: zlib.crc32(bytes(10**7))"


def times(own_ns, **more):
    looks = dict.fromkeys((NAME, OTHER), more.pop("looks", 1000))
    values = {"clock_ns": SECOND, "thread_ns": SECOND, "stacks": 1000, **more}
    return NativeTimes(self_ns={NAME: own_ns, OTHER: 0}, looks=looks, **values)


def test_a_share_is_of_the_time_and_of_all_threads():
    several = times(SECOND // 4).added(times(SECOND // 2))
    found = self_times(Samples(2 * SECOND, native=several))
    assert found[NAME].share == pytest.approx(3 / 8)
    assert found[NAME].looks == 2000
    # Two threads that are always in it, and a function that no thread is in.
    assert self_times(Samples(native=times(2 * SECOND)))[NAME].share == pytest.approx(2)
    assert self_times(Samples(native=times(2 * SECOND)))[OTHER].share == 0


def test_each_language_has_its_own_way_of_seeing():
    python = Samples(SECOND, 1000, {(1, PYTHON): Own(awake=100)}, seen=True)
    assert list(self_times(python)) == [PYTHON]
    assert self_times(python)[PYTHON].share == pytest.approx(0.1)
    # A value that was not measured is not 0.
    assert not self_times(Samples(SECOND, native=NativeTimes(refused="no")))
    assert not self_times(
        Samples(SECOND, 1000, {(1, PYTHON): Own(awake=100)}, seen=False)
    )


def test_a_refusal_stays():
    both = NativeTimes(refused="of one").added(times(5))
    assert both.refused == "of one"
    assert both.self_ns[NAME] == 5


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
        "from speed_bump.experiment.program.native_times import NativeSampling\n"
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


@pytest.mark.timed
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
        "from speed_bump.experiment.program.native_times import NativeSampling\n"
        "sampling = NativeSampling({'/b': (sys.argv[1], int(sys.argv[2]))})\n"
        "try:\n"
        "    with sampling.running([os.getpid()], 20 * 10**9): print(flush=True)\n"
        "except KeyboardInterrupt: print(threading.active_count(), flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, path, str(offset)], stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        # It only waits.
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        # The only thread that existed before.
        assert child.stdout.read().split() == [b"1"]
