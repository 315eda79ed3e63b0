# SPDX-License-Identifier: MIT
"""Lines of Python files as targets: checks before anything runs."""

from __future__ import annotations

import os
import sys

from speed_bump.config import ConfigError

TYPE_CHECKING = False  # not from typing, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from types import CodeType

    from speed_bump.config import Target

# inspect.CO_OPTIMIZED: set for functions.
OPTIMIZED = 0x1
FIRST_VERSION = (3, 12)


def lines_in(source: bytes | str, path: str) -> set[int]:
    """The lines on which a statement begins; empty if the source can't be compiled."""
    try:
        codes = [compile(source, path, "exec", dont_inherit=True)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    found: set[int] = set()
    while codes:
        code = codes.pop()
        found |= _lines_of(code)
        codes += [c for c in code.co_consts if hasattr(c, "co_lines")]
    return found


def _lines_of(code: CodeType) -> set[int]:
    """As the extension sees them: the code around a function executes "def"."""
    lines = {line for _, _, line in code.co_lines() if line}
    if code.co_flags & OPTIMIZED:
        lines.discard(code.co_firstlineno)
    return lines


def check_version(target: Target) -> None:
    """Check that this interpreter supports lines as targets.

    Raises:
        ConfigError: it does not
    """
    if target.source_line and sys.version_info < FIRST_VERSION:
        raise ConfigError(
            f"{target.pattern}: a line is a target from CPython 3.12 on, and this is "
            f"{sys.version_info[0]}.{sys.version_info[1]}: name its function"
        )


def check(
    targets: Iterable[Target],
    files: Collection[str],
    directories: Collection[str] = (),
    main: str | None = None,
) -> None:
    """Check that statements begin on the lines, as far as the files are known.

    Args:
        files: paths of Python files, which a target may name by the end of the path
        directories: where modules may be
        main: the file of ``__main__``

    Raises:
        ConfigError: none does; the message names the nearest lines that do
    """
    for target in targets:
        line, left = target.source_line, target.left
        if not line or set("*?[") & set(left):
            continue
        is_path = "/" in left or left.endswith(".py")
        wanted = left if is_path else left.replace(".", "/") + ".py"
        found = {path for path in files if f"/{path}".endswith(f"/{wanted}")}
        if main and (left == "__main__" or f"/{main}".endswith(f"/{wanted}")):
            found.add(main)
        # A module has one file. The end of a path may match other files too.
        if not found and not is_path:
            found = {os.path.join(directory, wanted) for directory in directories}
        there = [path for path in found if os.path.isfile(path)]
        # With several files it is unknown which is meant.
        if len(there) == 1:
            _check_line(target, line, there[0])


def _check_line(target: Target, line: int, path: str) -> None:
    try:
        with open(path, "rb") as file:
            there = lines_in(file.read(), path)
    except OSError:
        return
    if not there or line in there:
        return
    before = max((n for n in there if n < line), default=None)
    after = min((n for n in there if n > line), default=None)
    near = [str(n) for n in (before, after) if n is not None]
    nearest = (
        f"the nearest that do are {' and '.join(near)}"
        if len(near) > 1
        else f"the nearest that does is {near[0]}"
    )
    raise ConfigError(
        f"{target.pattern}: no statement begins on line {line} of {path}: {nearest}"
    )


def check_here(target: Target) -> None:
    """Check a line against the modules that are imported.

    Raises:
        ConfigError: as ``check`` and ``check_version``
    """
    if not target.source_line:
        return
    check_version(target)
    modules = list(sys.modules.values())
    files = {getattr(module, "__file__", None) for module in modules}
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    check(
        [target],
        [path for path in files if isinstance(path, str) and path.endswith(".py")],
        main=main if isinstance(main, str) else None,
    )
