# SPDX-License-Identifier: MIT
"""speed_bump: slow chosen functions by a known delay, and see whether it matters.

The command ``speed-bump`` slows a program from outside; this package slows it from
inside. Importing the package prints nothing and slows nothing.

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

TYPE_CHECKING = False  # not from typing, which is slow to import
if TYPE_CHECKING:
    from speed_bump import native as native
    from speed_bump.attachment import AttachError as AttachError
    from speed_bump.attachment import attach as attach

    clock_overhead_ns: int
    min_delay_ns: int

__version__ = "1.0.0rc1"

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
    """The cost of one read of the clock, in ns, measured in this process."""
    from speed_bump import _core

    return _core.clock_overhead_ns()


def get_min_delay_ns() -> int:
    """The shortest possible delay, in ns: twice the overhead of the clock."""
    from speed_bump import _core

    return _core.min_delay_ns()


def is_calibrated() -> bool:
    """Whether the clock is calibrated. Always true: this call calibrates it."""
    return get_min_delay_ns() > 0


def __getattr__(name: str) -> object:
    if name == "native":
        import importlib

        return importlib.import_module("speed_bump.native")
    # The import is large, and slowing functions of this process does not need it.
    if name in ("attach", "AttachError"):
        from speed_bump import attachment

        return getattr(attachment, name)
    # Calibration takes milliseconds, and most programs that import the package don't need
    # it.
    if name == "clock_overhead_ns":
        return get_clock_overhead_ns()
    if name == "min_delay_ns":
        return get_min_delay_ns()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
