# SPDX-License-Identifier: MIT
"""Whether the JIT of a program's interpreter is on, and what that means."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from speed_bump.experiment.program.elsewhere import TIMEOUT_S, interpreter, is_python
from speed_bump.experiment.program.ways import environ_of

# Prints (3, 14) if the JIT is on; nothing if there is none, or it is off.
QUESTION = """
import sys
jit = getattr(sys, "_jit", None)
if jit and jit.is_enabled():
    print(*sys.version_info[:3])
"""
SAID: dict[tuple[int, ...], str] = {
    (3, 14): "its JIT has corrupted local variables of functions that are monitored "
    "(cpython issue 156319)",
    (3, 15): "its code is discarded when delays begin, and compiled again: the first "
    "units take longer",
}
OTHERS = "delays were not tested with its JIT"


def warning(command: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
    """A warning about the JIT of the Python that ``command`` starts; "" if it is off."""
    python = interpreter(command) if command else None
    return _sentence(_version(python, environ)) if python else ""


def warning_of_process(pid: int) -> str:
    """The same for a running process; "" also if it is unknown.

    The interpreter is started with the process's environment, except for a process of
    another user, because root would then execute code of that user.
    """
    try:
        path = os.readlink(f"/proc/{pid}/exe")
        # In a container, another file may have that name.
        is_seen = os.path.samefile(path, f"/proc/{pid}/exe")
        is_ours = os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return ""
    environ = environ_of(pid)
    if not (is_seen and is_ours and is_python(path) and environ):
        return ""
    return _sentence(_version(path, environ))


def _sentence(version: tuple[int, ...]) -> str:
    if not version:
        return ""
    name = ".".join(map(str, version))
    return (
        f"the JIT of CPython {name} is on: {SAID.get(version[:2], OTHERS)}; "
        "PYTHON_JIT=0 turns it off"
    )


def _version(python: str, environ: Mapping[str, str] | None) -> tuple[int, ...]:
    if environ is None and os.path.abspath(python) == os.path.abspath(sys.executable):
        # The setting is inherited.
        jit = vars(sys).get("_jit")
        return tuple(sys.version_info[:3]) if jit and jit.is_enabled() else ()
    try:
        done = subprocess.run(
            [python, "-S", "-c", QUESTION],
            capture_output=True,
            check=True,
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env=environ,
        )
        return tuple(int(word) for word in done.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()
