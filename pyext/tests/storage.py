# SPDX-License-Identifier: MIT
"""What BPF can't have on an emulated CPU."""

from __future__ import annotations

import platform
from pathlib import Path


def refused() -> str:
    """Why BPF programs have no memory for each task here; "" if they have.

    From Linux 7 on it is allocated by kmalloc_nolock(), which needs cmpxchg16b on x86-64.
    Every CPU of today has that; that of a guest has not, as QEMU 7.2 emulates it wrongly
    (selftests/guest/README.md).
    """
    if platform.machine() != "x86_64" or int(platform.release().partition(".")[0]) < 7:
        return ""
    flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0]
    if "cx16" in flags.split():
        return ""
    return "this kernel's memory for tasks needs a CPU with cmpxchg16b"
