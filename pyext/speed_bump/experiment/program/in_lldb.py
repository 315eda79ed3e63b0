# SPDX-License-Identifier: MIT
"""Inside lldb: load the extension into a program and have it run a file.

``lldb -o "command script import"`` imports this file into lldb's own Python, which may be
of another version than the tool's, and has no speed_bump. The environment says what to
do, in JSON. Prints the same lines as gdb's commands (``debugger.py``).
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import lldb  # type: ignore[import-not-found]

# For a call in the program.
CALL_US = 10_000_000


class _Failed(Exception):
    """A call was not possible, with the reason."""


def __lldb_init_module(debugger: Any, _names: Any) -> None:
    """Called by lldb."""
    asked = json.loads(os.environ["SPEED_BUMP_ENTER"])
    debugger.SetAsync(False)
    target = debugger.CreateTarget("")
    try:
        process = _stopped_in_safe_place(debugger, target, asked)
        if process is None:
            print("speed-bump: no safe place")
            return
        # One that lldb has sent when it attached may come late, and would end a call.
        process.GetUnixSignals().SetShouldStop(signal.SIGSTOP, False)
        try:
            thread = process.GetThreadByID(asked["pid"])
            print(f"speed-bump: entered {_enter(target, thread, asked)}")
        finally:
            process.Detach()
    except _Failed as error:
        print(f"speed-bump: {error}")


def _stopped_in_safe_place(debugger: Any, target: Any, asked: dict[str, Any]) -> Any:
    """Attach until the main thread is in a safe place; None if it never is."""
    last, same = tuple(asked["waits_at"]), 2
    until, half = None, 0.0
    first_sp, last_sp = asked["stack"]
    while until is None or time.monotonic() < until:
        error = lldb.SBError()
        process = target.AttachToProcessWithID(
            debugger.GetListener(), asked["pid"], error
        )
        if error.Fail():
            raise _Failed(f"not attached: {error.GetCString()}")
        if until is None:
            now = time.monotonic()
            until = now + max(asked["until"] - time.time(), asked["min_search_s"])
            half = (now + until) / 2
        frame = process.GetThreadByID(asked["pid"]).GetFrameAtIndex(0)
        here = frame.GetPC(), frame.GetSP()
        at_call = _is_at_call(process, here[0])
        same = same + 1 if here == last and at_call else 0
        last = here
        if (
            same >= 3
            or any(a <= here[0] < b for a, b in asked["text"])
            or (at_call and _call_of(asked["pid"]) in asked["calls"])
            or (
                time.monotonic() >= half
                and first_sp <= here[1] < last_sp
                and any(a <= here[0] < b for a, b in asked["libraries"])
            )
        ):
            return process
        process.Detach()
        time.sleep(asked["pause_s"])
    return None


def _is_at_call(process: Any, at: int) -> bool:
    """Whether the instruction before is a system call."""
    call = b"\x0f\x05" if os.uname().machine == "x86_64" else b"\x01\x00\x00\xd4"
    read = process.ReadMemory(at - len(call), len(call), lldb.SBError())
    return bool(read == call)


def _call_of(pid: int) -> int:
    """The number of the system call that the stopped main thread is in; -1: in none."""
    try:
        with open(f"/proc/{pid}/task/{pid}/syscall", encoding="ascii") as file:
            word = file.read().split()[0]
    except OSError:
        return -1
    return int(word) if word.lstrip("-").isdigit() else -1


def _enter(target: Any, thread: Any, asked: dict[str, Any]) -> int:
    """What ``speed_bump_enter()`` returns."""
    dlopen, dlsym, dlerror = (
        _address(target, name) for name in ("dlopen", "dlsym", "dlerror")
    )
    handle = _call(
        thread,
        f"(unsigned long)((void *(*)(const char *, int)){dlopen})"
        f"({json.dumps(asked['extension'])}, 2)",
    ).GetValueAsUnsigned()
    if not handle:
        why = _call(thread, f"((const char *(*)(void)){dlerror})()")
        raise _Failed(f"not loaded {why.GetSummary()}")
    enter = _call(
        thread,
        f"(unsigned long)((void *(*)(void *, const char *)){dlsym})"
        f'((void *){handle}, "speed_bump_enter")',
    ).GetValueAsUnsigned()
    script = json.dumps(asked["script"])
    entered = _call(thread, f"((int (*)(const char *)){enter})({script})")
    return int(entered.GetValueAsSigned())


def _address(target: Any, name: str) -> int:
    """The address of a function of libc, or of libdl before glibc 2.34."""
    found: dict[str, int] = {}
    for context in target.FindSymbols(name):
        file = context.GetModule().GetFileSpec().GetFilename() or ""
        symbol = context.GetSymbol()
        at = symbol.GetStartAddress().GetLoadAddress(target)
        if symbol.GetType() == lldb.eSymbolTypeCode and at != lldb.LLDB_INVALID_ADDRESS:
            found[file] = at
    for start in ("libc.", "libdl", "ld-"):
        for file, at in found.items():
            if file.startswith(start):
                return at
    raise _Failed(f"there is no {name} in the program")


def _call(thread: Any, text: str) -> Any:
    """The value of an expression in the program, whose other threads run meanwhile."""
    options = lldb.SBExpressionOptions()
    options.SetIgnoreBreakpoints(True)
    options.SetUnwindOnError(True)
    options.SetTryAllThreads(True)
    options.SetStopOthers(False)
    options.SetTimeoutInMicroSeconds(CALL_US)
    options.SetSuppressPersistentResult(True)
    options.SetLanguage(lldb.eLanguageTypeC)
    value = thread.GetFrameAtIndex(0).EvaluateExpression(text, options)
    if value.GetError().Fail():
        raise _Failed(f"no call: {value.GetError().GetCString()}")
    return value
