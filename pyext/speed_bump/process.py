# SPDX-License-Identifier: MIT
"""What /proc says of a process: when this one began, what one was started with."""

from __future__ import annotations

import os
import time


def command_of(pid: int) -> list[str]:
    """The words that a process was started with, or its title; empty if it has none."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            # A title that a program gave itself ends in no NUL, or in many.
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
