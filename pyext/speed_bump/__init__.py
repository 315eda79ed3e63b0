# SPDX-License-Identifier: MIT
"""speed_bump: slow chosen functions by a known delay, and see whether it matters.

The command ``speed-bump`` does it to a program from outside; this package is for those
who want it from inside. Importing it prints nothing and slows nothing.

>>> from speed_bump import Config, install, stats, uninstall
>>> import json
>>> install(Config(["json:dumps"], delay_ns=5_000))
True
>>> json.dumps({})
'{}'
>>> [(function.name, function.calls) for function in stats().functions]
[('json:dumps', 1)]
>>> uninstall()
"""

from __future__ import annotations

import sys

if sys.implementation.name != "cpython":
    raise ImportError(
        f"speed_bump works with CPython 3.10 or later; this is {sys.implementation.name}"
    )

from speed_bump._core import begin, end, progress, spin_delay_ns
from speed_bump.config import Config, ConfigError, Target, load_config
from speed_bump.control import (
    clear_cache,
    get_config,
    install,
    is_installed,
    reset,
    slow,
    stats,
    uninstall,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from speed_bump import native as native
    from speed_bump.attachment import AttachError as AttachError
    from speed_bump.attachment import attach as attach

    clock_overhead_ns: int
    min_delay_ns: int

__version__ = "0.1.0"

__all__ = [
    "AttachError",
    "Config",
    "ConfigError",
    "Target",
    "attach",
    "begin",
    "clear_cache",
    "clock_overhead_ns",
    "end",
    "get_clock_overhead_ns",
    "get_config",
    "get_min_delay_ns",
    "install",
    "is_calibrated",
    "is_installed",
    "load_config",
    "min_delay_ns",
    "progress",
    "reset",
    "slow",
    "spin_delay_ns",
    "stats",
    "uninstall",
]


def get_clock_overhead_ns() -> int:
    """What one read of the clock costs, ns, measured in this process."""
    from speed_bump import _core

    return _core.clock_overhead_ns()


def get_min_delay_ns() -> int:
    """The shortest delay that can be had, ns: twice the overhead of the clock."""
    from speed_bump import _core

    return _core.min_delay_ns()


def is_calibrated() -> bool:
    """Whether the clock is calibrated. It is at its first use, and this is one."""
    return get_min_delay_ns() > 0


def __getattr__(name: str) -> object:
    if name == "native":
        import importlib

        return importlib.import_module("speed_bump.native")
    # What it needs is much, and nothing that slows functions of this process needs it.
    if name in ("attach", "AttachError"):
        from speed_bump import attachment

        return getattr(attachment, name)
    # Calibration takes milliseconds, and most programs that import us need none.
    if name == "clock_overhead_ns":
        return get_clock_overhead_ns()
    if name == "min_delay_ns":
        return get_min_delay_ns()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
