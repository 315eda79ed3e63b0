# SPDX-License-Identifier: MIT
"""Process data from /proc: the start of this process, and command lines."""

from __future__ import annotations

import os
import time


def command_of(pid: int) -> list[str]:
    """The command line that a process was started with, or its title; or empty."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            # A title that a program has set ends with no NUL, or with many.
            text = file.read().rstrip(b"\0")
    except OSError:
        return []
    return [os.fsdecode(word) for word in text.split(b"\0")] if text else []


def start_ns() -> int:
    """When this process began, ns as ``time.monotonic_ns()`` counts.

    The kernel gives it in clock ticks (10 ms) of CLOCK_BOOTTIME (proc(5), field 22 of
    ``/proc/self/stat``), rounded down.
    """
    with open("/proc/self/stat", "rb") as file:
        # The name of the program, in parentheses, may itself have spaces and parentheses.
        after_name = file.read().rpartition(b")")[2].split()
    ticks = int(after_name[22 - 3])
    since_boot = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    age = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - since_boot
    return max(time.monotonic_ns() - age, 0)
