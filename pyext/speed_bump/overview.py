# SPDX-License-Identifier: MIT
"""All that is slowed on this machine, by whatever means, and its switches.

The data of libsb's ``sb_control``: Python functions in every process with delays in force
that this user may read, and native targets of the module or BPF.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from speed_bump import _core
from speed_bump.kinds import ControlKind
from speed_bump.process import command_of

Key = tuple[bool, int, str, str]


@dataclass(frozen=True)
class Process:
    """A process with delays in force.

    ``label`` is their origin: "environment", "program" (its own ``install()`` or
    ``slow()``), "attach" or "experiment". Functions of processes with the same ``group``
    are switched together.
    """

    pid: int
    label: str
    group: int
    words: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command line as a line of text."""
        return printable(" ".join(self.words))


@dataclass(frozen=True)
class Slowed:
    """A function that was called since, or a native target.

    ``pid`` is 0 for all processes, ``every`` is 0 if unknown. ``is_ruled``: an experiment
    or the session of another process controls it, and only that can change it.
    """

    index: int
    is_native: bool
    name: str
    pid: int
    label: str
    delay_ns: int
    every: int
    enabled: bool
    is_ruled: bool
    calls: int
    delayed: int
    delivered_ns: int

    @property
    def is_counted_only(self) -> bool:
        """Whether it has no delay, and never had one."""
        return not self.delay_ns and not self.delayed

    @property
    def key(self) -> Key:
        """A key that identifies it in later snapshots."""
        return self.is_native, self.pid, self.name, self.label


class Overview:
    """A snapshot of everything, with the switches."""

    def __init__(self, control: _core.Control, native_problem: str) -> None:
        """``native_problem``: why native targets are missing; "" if they are there."""
        self._control = control
        self.native_problem = native_problem
        self.left_out = control.left_out()
        self.processes = sorted(
            (
                Process(
                    shown.pid,
                    shown.label,
                    shown.group,
                    tuple(command_of(shown.pid)),
                )
                for shown in control.processes()
            ),
            key=lambda process: process.pid,
        )
        self.targets = sorted(
            (_slowed(n, target) for n, target in enumerate(control.targets())),
            key=lambda target: (target.is_native, target.pid, target.name),
        )

    @property
    def problems(self) -> list[str]:
        """What is missing and why, a line each."""
        lines = []
        if self.native_problem:
            lines.append(f"native targets are not seen: {self.native_problem}")
        if self.cut:
            lines.append(self.cut)
        return lines

    @property
    def cut(self) -> str:
        """A warning that functions of processes with too many were left out; or ""."""
        if not self.left_out:
            return ""
        shows = "process shows" if self.left_out == 1 else "processes show"
        return f"{self.left_out} {shows} too many functions: some are left out"

    def find(self, pattern: str, pid: int | None = None) -> list[Slowed]:
        """The targets with a name that the glob matches, in that process or in all."""
        pattern = pattern.removeprefix("native:")
        return [
            target
            for target in self.targets
            if pid in (None, target.pid) and _core.glob_match(pattern, target.name)
        ]

    def set_enabled(self, targets: Iterable[Slowed], enabled: bool) -> None:
        """Switch them on or off.

        Raises:
            OSError: one is controlled elsewhere (EBUSY), or gone, or another user's
        """
        self._control.set_enabled([target.index for target in targets], enabled)

    def set_delay(self, targets: Iterable[Slowed], delay_ns: int) -> None:
        """Set another delay, ns; OSError as for ``set_enabled``."""
        self._control.set_delay([target.index for target in targets], delay_ns)

    def remove(self, targets: Iterable[Slowed]) -> None:
        """Remove native targets; switch functions off. OSError as for ``set_enabled``."""
        self._control.remove([target.index for target in targets])


def _slowed(index: int, target: _core.ControlTarget) -> Slowed:
    return Slowed(
        index=index,
        is_native=target.kind == ControlKind.NATIVE,
        name=target.name,
        pid=target.pid,
        label=target.label,
        delay_ns=target.delay_ns,
        every=target.every,
        enabled=target.enabled,
        is_ruled=target.is_ruled,
        calls=target.calls,
        delayed=target.delayed,
        delivered_ns=target.delivered_ns,
    )


class Looker:
    """Takes snapshots repeatedly. The caller closes it."""

    def __init__(self) -> None:
        """Open a session with the backend, if there is one."""
        self._session: _core.Session | None = None
        self._problem = ""
        try:
            self._session = _core.Session()
        except OSError as error:
            self._problem = error.strerror or str(error)

    def look(self) -> Overview:
        """A snapshot.

        Raises:
            OSError: it can't be taken
        """
        return Overview(_core.Control(self._session), self._problem)

    def close(self) -> None:
        """Close the session with the backend."""
        if self._session:
            self._session.close()

    def __enter__(self) -> Looker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def printable(text: str) -> str:
    """The text without control characters of a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def rates(
    before: Sequence[Slowed], now: Sequence[Slowed], seconds: float
) -> dict[Key, tuple[float, float]]:
    """For each target its calls a second, and the share of time that was delay."""
    old = {target.key: target for target in before}
    found = {}
    for target in now:
        was = old.get(target.key)
        calls = target.calls - was.calls if was else 0
        delivered = target.delivered_ns - was.delivered_ns if was else 0
        # Counted from 0 again, in another table.
        if min(calls, delivered) < 0:
            calls = delivered = 0
        found[target.key] = calls / seconds, delivered / 1e9 / seconds
    return found
