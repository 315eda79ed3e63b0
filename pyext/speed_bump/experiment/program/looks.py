# SPDX-License-Identifier: MIT
"""Sampling the whole stacks of a running program, while nothing is delayed."""

from __future__ import annotations

import ast
import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from speed_bump import _core
from speed_bump.experiment.account import CPU_WAIT, WAIT, C, Frame, Looks, Thread
from speed_bump.experiment.account import PYTHON as PYTHON_KIND
from speed_bump.experiment.program.native_frames import Key, NativeFrames

# The highest rate of samples; lower with many threads, so that sampling takes no more
# than a twentieth of a CPU (core/stacks.c).
INTERVAL_NS = 1_000_000
# The names of calls are not searched for in larger files.
MAX_SOURCE = 2_000_000
# In a longer chain of attributes, only the last one is kept.
MAX_NAME = 60


@dataclass
class Look:
    """The result of one round of sampling: ``ticks`` samples, taken in ``seconds``.

    ``stacks`` are those of the extension. ``targets`` has what their codes refer to.
    ``lost`` is by thread the number of stacks that could not be read; ``moments`` has
    pairs: the number of the sample, and the index of a stack that was seen in it.
    """

    ticks: int
    seconds: float
    stacks: list[_core.Stack]
    targets: list[_core.StackTarget]
    lost: Counter[int] = field(default_factory=Counter)
    moments: list[tuple[int, int]] = field(default_factory=list)


class Looking:
    """Samples processes and keeps the results. For use by one thread."""

    def __init__(self, table: _core.Table) -> None:
        self._stacks = _core.Stacks(table)
        self._known: dict[int, tuple[int, ...] | None] = {}
        self._seen: Counter[Key] = Counter()
        # How long threads waited for a CPU, by the stack in which they were awake.
        self._queued_ns: Counter[Key] = Counter()
        self._totals: _core.StackTotals | None = None
        self._clock_ns = 0
        self._sources: dict[str, Source] = {}
        self._moments: dict[int, list[tuple[int, Key]]] | None = None
        self.native = NativeFrames()

    def note_moments(self, on: bool) -> dict[int, list[tuple[int, Key]]]:
        """Start or stop recording when each stack is seen; drop earlier records."""
        noted, self._moments = self._moments or {}, {} if on else None
        return noted

    def forget_moments(self, before_ns: int) -> None:
        """Drop the moments of stacks that were seen earlier than that."""
        for tid, seen in list((self._moments or {}).items()):
            del seen[: bisect_left(seen, before_ns, key=lambda moment: moment[0])]
            if not seen and self._moments:
                del self._moments[tid]

    def targets(self) -> list[_core.StackTarget]:
        """Like ``Look.targets``, of all samples so far."""
        return self._stacks.targets()

    def add(self, pid: int, layout: tuple[int, ...] | None) -> bool:
        """Sample this process, too; without Python in it, it has no layout, or none yet.

        Returns:
            whether its memory can be read
        """
        if self._known.get(pid) is None and not (layout is None and pid in self._known):
            if not self._stacks.add(pid, layout):
                return False
            self._known[pid] = layout
        return True

    def begin(self) -> None:
        """Begin a period: what threads did since the last look does not count."""
        self._stacks.begin()

    def look(self, ns: int, interval_ns: int = INTERVAL_NS) -> Look:
        """Sample for the given time."""
        before = self._totals.ticks if self._totals else 0
        begin = time.monotonic_ns()
        self._totals = self._stacks.run(ns, interval_ns)
        took = time.monotonic_ns() - begin
        self._clock_ns += took
        taken = self._stacks.take()
        keys = [Key.of(stack) for stack in taken.stacks]
        for key, stack in zip(keys, taken.stacks, strict=True):
            if stack.looks:
                self._seen[key] += stack.looks
            self._queued_ns[key._replace(wait="")] += stack.queued_ns
        if self._moments is not None:
            for time_ns, index, _ in taken.moments:
                key = keys[index]
                self._moments.setdefault(key.tid, []).append((time_ns, key))
        ticks = self._totals.ticks - before
        moments = [(tick, index) for _, index, tick in taken.moments]
        return Look(
            ticks,
            took / 1e9,
            taken.stacks,
            self._stacks.targets(),
            Counter(dict(taken.lost)),
            moments,
        )

    def looks(self) -> Looks:
        """All samples so far."""
        named = _Names(self._stacks.codes(), self._seen, self._sources)
        found = Looks(
            threads=[
                Thread(t.pid, t.tid, t.looks, t.run_ns, t.wait_ns)
                for t in self._stacks.threads()
            ]
        )
        at = {(t.pid, t.tid): k for k, t in enumerate(found.threads)}
        known: dict[Frame, int] = {}
        for key, n in self._seen.items():
            frames = [frame for k in reversed(key.codes) if (frame := named.frames[k])]
            in_c = bool(frames) and frames[-1].kind == C
            called = "" if in_c else named.called(key)
            if called:
                frames.append(Frame(C, called))
            thread = at[key.pid, key.tid]
            for wait, looks in self._divided(key, n):
                asleep = [Frame(WAIT, wait)] if wait else []
                for below, part in self.native.below(key):
                    # The callable itself has its Python name.
                    inner = below[1:] if called or in_c else below
                    whole = [*frames, *inner, *asleep]
                    there = thread, tuple(known.setdefault(f, len(known)) for f in whole)
                    found.stacks[there] = found.stacks.get(there, 0) + looks * part
        found.frames = list(known)
        if self._totals:
            found.ticks, found.lost = self._totals.ticks, self._totals.lost
            found.cpu_ns = self._totals.cpu_ns
        found.clock_ns = self._clock_ns
        return found

    def _divided(self, key: Key, n: int) -> list[tuple[str, float]]:
        """Looks by wait: a thread that is awake runs, or waits for a CPU."""
        if key.wait or not self._queued_ns[key] or not self._totals:
            return [(key.wait, n)]
        queued = self._queued_ns[key] * self._totals.ticks / max(self._clock_ns, 1)
        queued = min(queued, n)
        return [part for part in (("", n - queued), (CPU_WAIT, queued)) if part[1] > 0]


class _Names:
    """The names of code objects and of what they call."""

    def __init__(
        self,
        codes: list[_core.StackCode],
        stacks: Iterable[Key],
        sources: dict[str, Source],
    ) -> None:
        self._codes = codes
        self._sources = sources
        # Names of targets give the module name of a file.
        self._modules = {
            (code.pid, code.file): code.target.rpartition(":")[0]
            for code in codes
            if code.target and code.file
        }
        for stack in stacks:
            self._find_main(stack)
        self.frames = [self._frame(code) for code in codes]

    def _find_main(self, stack: Key) -> None:
        for index in reversed(stack.codes):
            code = self._codes[index]
            if "runpy" in (code.file or ""):
                continue
            if code.qualname == "<module>" and code.file:
                self._modules.setdefault((code.pid, code.file), "__main__")
            return

    def _frame(self, code: _core.StackCode) -> Frame | None:
        name, file, line = code.qualname, code.file, code.first_line
        if name is None:
            # A C function; if it is no longer a target, nothing is known about it.
            return Frame(C, code.target.replace(":", ".")) if code.target else None
        if not name or not file:
            return Frame(PYTHON_KIND, "?")
        if code.target:
            return Frame(PYTHON_KIND, code.target, file, line)
        if not code.has_columns:
            name = self._source(file).qualname(line, name)
        module = self._modules.get((code.pid, file)) or module_of(file)
        return Frame(PYTHON_KIND, f"{module}:{name}", file, line)

    def _source(self, file: str) -> Source:
        if file not in self._sources:
            self._sources[file] = read_source(file)
        return self._sources[file]

    def called(self, stack: Key) -> str:
        """The name of the call there that is not Python; "" if none, or unknown."""
        if not stack.codes:
            return ""
        code = self._codes[stack.codes[0]]
        if stack.offset < 0 or not code.file:
            return ""
        if code.has_columns:
            place = position(code.lines, code.first_line, stack.offset)
            return self._source(code.file).called(place) if place else ""
        # 3.10 knows only the line: a waiting thread is in its call; a computing one may
        # be anywhere.
        if not stack.wait:
            return ""
        line = line_of(code.lines, code.first_line, stack.offset)
        return self._source(code.file).called_in(line)


def module_of(path: str) -> str:
    """The dotted module name of a file, as far as the file system shows it."""
    if path.startswith("<"):
        return path.strip("<>").removeprefix("frozen ")
    folder, name = os.path.split(path)
    parts = [name.removesuffix(".py")]
    while os.path.exists(os.path.join(folder, "__init__.py")):
        folder, name = os.path.split(folder)
        parts.insert(0, name)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


# ----------------------------------------------------------------- tables of lines


def position(table: bytes, first_line: int, offset: int) -> tuple[int, int] | None:
    """Line and column (bytes) of the end of the expression of an instruction.

    ``table`` is ``co_linetable`` of CPython 3.11 and later (its locations.md).
    """
    at, line, address = 0, first_line, 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = table[at]
            at += 1
            value |= (byte & 63) << shift
            shift += 6
            if not byte & 64:
                return value

    def signed() -> int:
        value = varint()
        return -(value >> 1) if value & 1 else value >> 1

    with suppress(IndexError):
        while True:
            head = table[at]
            at += 1
            kind, end_line, end = head >> 3 & 15, -1, -1
            if kind < 10:
                end_line, end = line, (kind << 3 | table[at] >> 4 & 7) + (table[at] & 15)
                at += 1
            elif kind < 13:
                line += kind - 10
                end_line, end = line, table[at + 1]
                at += 2
            elif kind < 15:
                line += signed()
                if kind == 14:
                    end_line = line + varint()
                    varint()
                    end = varint() - 1
            address += 2 * ((head & 7) + 1)
            if offset < address:
                return (end_line, end) if end >= 0 else None
    return None


def line_of(table: bytes, first_line: int, offset: int) -> int:
    """The line of an instruction, -1 for none, by ``co_linetable`` of CPython 3.10."""
    line, address = first_line, 0
    for size, delta in zip(table[::2], table[1::2], strict=False):
        is_none = delta == 128
        if not is_none:
            line += delta - 256 if delta > 127 else delta
        address += size
        if offset < address:
            return -1 if is_none else line
    return -1


# ------------------------------------------------------------------------ sources


@dataclass
class Source:
    """The calls in a file by position, and the names of its functions."""

    by_end: dict[tuple[int, int], str] = field(default_factory=dict)
    by_line: dict[int, set[str]] = field(default_factory=dict)
    functions: dict[tuple[int, str], str] = field(default_factory=dict)

    def called(self, end: tuple[int, int]) -> str:
        """The call that ends at this line and column."""
        return self.by_end.get(end, "")

    def called_in(self, line: int) -> str:
        """The only call of a line; "" if there are several."""
        names = self.by_line.get(line, set())
        return next(iter(names)) if len(names) == 1 else ""

    def qualname(self, line: int, name: str) -> str:
        """The function that begins there; if unknown, the given name."""
        return self.functions.get((line, name), name)


def read_source(path: str) -> Source:
    """The source of a file; empty if it can't be read or parsed."""
    found = Source()
    try:
        if os.path.getsize(path) > MAX_SOURCE:
            return found
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return found
    imported: dict[str, str] = {}
    defined: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                whole = name.name if name.asname else name.name.partition(".")[0]
                imported[name.asname or whole] = whole
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for name in node.names:
                imported[name.asname or name.name] = f"{node.module}.{name.name}"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
    _read_functions(tree, "", found)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or node.end_lineno is None:
            continue
        text = _dotted(node.func)
        root, _, rest = text.partition(".")
        if not text or (root in defined and root not in imported):
            continue
        if root in imported:
            text = imported[root] + (f".{rest}" if rest else "")
        found.by_end[node.end_lineno, node.end_col_offset or 0] = text
        found.by_line.setdefault(node.lineno, set()).add(text)
    return found


def _dotted(node: ast.expr) -> str:
    """``a.b().c`` of an expression; "" if it does not end with a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = _dotted(node.value)
        return f"{left or '…'}.{node.attr}" if len(left) < MAX_NAME else f"….{node.attr}"
    if isinstance(node, ast.Call):
        left = _dotted(node.func)
        return f"{left}()" if left else ""
    if isinstance(node, ast.Subscript):
        left = _dotted(node.value)
        return f"{left}[]" if left else ""
    return ""


def _read_functions(node: ast.AST, above: str, found: Source) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{above}{child.name}"
            first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
            if isinstance(child, ast.ClassDef):
                _read_functions(child, f"{name}.", found)
            else:
                found.functions[first, child.name] = name
                _read_functions(child, f"{name}.<locals>.", found)
        else:
            _read_functions(child, above, found)
