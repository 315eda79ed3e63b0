# SPDX-License-Identifier: MIT
"""Names of functions for display: short paths and demangled names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

# The end of a name of a line, and of one of its places in native code.
LINE = re.compile(r"[^:]:\d+(@.*)?$")
# A longer name is shown without its parameters, and then without template arguments.
MAX_WHOLE = 60
# Of a name that stays mangled so many characters are shown.
MAX_MANGLED = 80
# A function of Cython: its kind, and the names of module, class and function. In the
# symbols of scikit-learn 1.9 and SciPy 1.18 each name but the last has its length before
# it. The last has a number or nothing, and the number of its types if there are several.
CYTHON = re.compile(r"(?:__pyx_fuse_[\d_]+)?__pyx_(pw|pf|f|gb)_(\d.*)")
CYTHON_TYPES = re.compile(r"__pyx_fuse_\d+(_\d+)*")
CYTHON_KINDS = {"pw": " [wrapper]", "pf": " [def]", "f": "", "gb": " [generator]"}
# Demangled names of the mangled names seen so far; these never change.
_readable: dict[str, str] = {}


def know(readable: Mapping[str, str]) -> None:
    """Add demangled names; names that are not mangled are skipped."""
    _readable.update((name, text) for name, text in readable.items() if name != text)


def known(symbol: str) -> str:
    """The demangled name if it is known; else the name itself."""
    return _readable.get(symbol, symbol)


def of_whole(symbol: str, demangled: str | None) -> tuple[str, str]:
    """The name and the demangled name of a function, if the symbol is a part of it that
    the compiler split off (``.cold``); else of the symbol itself.
    """
    readable = (demangled or symbol).partition(" [clone .cold")[0]
    return symbol.partition(".cold")[0], readable.partition(".cold")[0]


def is_line(name: str) -> bool:
    """Whether a target's name is that of a line: ``app:42``, ``/path:util.c:42@main``."""
    text = name.partition(":")[2] if name.startswith("/") else name
    return LINE.search(text) is not None


def short(name: str) -> str:
    """The last part of a native function's path, and a long name without parameters."""
    if not name.startswith("/"):
        return name
    path, colon, symbol = name.partition(":")
    symbol = shortened(cython(symbol, os.path.basename(path)) or known(symbol))
    return f"{os.path.basename(path)}{colon}{symbol}"


def shortened(readable: str) -> str:
    """A long demangled name without parameters and, if it is still long, without template
    arguments. Of one that can't be demangled only the beginning.
    """
    if len(readable) > MAX_WHOLE:
        readable = base(readable)
    if len(readable) > MAX_WHOLE:
        readable = plain(readable)
    if len(readable) > MAX_MANGLED and readable.startswith(("_Z", "_R")):
        return readable[: MAX_MANGLED - 3] + "..."
    return readable


def cython(symbol: str, file: str) -> str:
    """The name of a function that Cython compiled, without the module that ``file`` is,
    such as ``Class.function [wrapper]``; "" for others.
    """
    found = CYTHON.fullmatch(symbol)
    if not found:
        return ""
    kind, rest = found.groups()
    names = []
    while digits := re.match(r"\d+", rest):
        end = digits.end() + int(digits[0])
        if rest[end : end + 1] != "_":
            rest = rest[digits.end() :]
            break
        names.append(rest[digits.end() : end])
        rest = rest[end + 1 :]
    module = file.partition(".")[0]
    if module in names:
        del names[: names.index(module) + 1]
    names.append(CYTHON_TYPES.sub("", rest, 1))
    return ".".join(names) + CYTHON_KINDS[kind]


def plain(readable: str) -> str:
    """A demangled name with ``<...>`` for each list of template arguments."""
    found, depth = "", 0
    for at, char in enumerate(readable):
        is_operator = readable.endswith(("operator", "operator<", "operator-"), 0, at)
        if char == "<" and not is_operator:
            found += "" if depth else "<...>"
            depth += 1
        elif char == ">" and depth and readable[at - 1] != "-":
            depth -= 1
        elif not depth:
            found += char
    return found


def base(readable: str) -> str:
    """A demangled name without parameters and return type, if these can be recognised."""
    anonymous = "(anonymous namespace)"
    depth, start, at = 0, 0, 0
    operator = readable.find("operator")
    while at < len(readable):
        char = readable[at]
        if at == operator and not depth:
            # operator(), operator<, operator new[]
            end = readable.find("(", at + len("operator()"))
            return readable[start : end if end >= 0 else len(readable)]
        if readable.startswith(anonymous, at):
            at += len(anonymous)
            continue
        if char == "(" and not depth:
            return readable[start:at]
        if char in "<([{":
            depth += 1
        elif char in ">)]}" and readable[at - 1 : at] != "-":
            depth -= 1
        elif char == " " and not depth:
            start = at + 1
        at += 1
    return readable[start:]
