# SPDX-License-Identifier: MIT
"""The machine and the interpreter, as kept in a record."""

from __future__ import annotations

import os
import platform
import sys
import time
from typing import Any

from speed_bump import _core


def environment() -> dict[str, Any]:
    """Describe this machine and interpreter."""
    return {
        "host": platform.node(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
        "hook": _core.HOOK,
        "clock": _core.clock_name(),
        "min_delay_ns": _core.min_delay_ns(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "load": list(os.getloadavg()),
    }


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""
