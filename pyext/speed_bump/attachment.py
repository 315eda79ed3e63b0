# SPDX-License-Identifier: MIT
"""Slowing a program that is already running, from another program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from speed_bump import _core, duration, statistics
from speed_bump.config import Config, ConfigError, Target
from speed_bump.control import OWN_POINTS
from speed_bump.experiment.program import ways
from speed_bump.experiment.program.attached import AttachedRunner
from speed_bump.experiment.program.launch import Streams
from speed_bump.experiment.program.runner import CAPACITY, Slowed
from speed_bump.statistics import Statistics

AttachError = ways.AttachError


class attach:
    """Slow functions of processes that are already running: a context manager.

        with speed_bump.attach(4711, ["app.*:parse"], "10us") as attached:
            time.sleep(10)
            print(attached.stats().functions)

    The delays end with the context, and with this process, however it ends.

    Args:
        pids: of one process or of several
        targets: patterns of Python functions, as in a target file
        delay: of each call, where a pattern has none: ns, or a text such as "10us"
        way: "socket", "remote" or "debugger"; None: the first of them that works
        seed: of delays that are drawn (``dist=``); None: a new one in each process

    Raises:
        ConfigError: a pattern, the delay or the way is wrong
        AttachError: on entry, if a process can't be attached to; none is slowed then
    """

    def __init__(
        self,
        pids: int | Sequence[int],
        targets: Iterable[str | Target],
        delay: int | str = "1us",
        way: str | None = None,
        seed: int | None = None,
    ) -> None:
        """Read the targets; no process is touched yet."""
        try:
            delay_ns = duration.parse(delay) if isinstance(delay, str) else delay
        except ValueError as error:
            raise ConfigError(f"delay: {error}") from None
        self._config = Config(targets, delay_ns, seed=seed)
        if any(target.native for target in self._config.targets):
            raise ConfigError(
                "targets: Python functions only; for native ones, native.probe(pid=...)"
            )
        if way not in (None, "socket", "remote", "debugger"):
            raise ConfigError(f"way: {way!r} is not socket, remote or debugger")
        self._slowed = [
            Slowed(t, delay_ns if t.delay_ns is None else t.delay_ns)
            for t in self._config.targets
            if not t.excludes
        ]
        self._runner = AttachedRunner(
            (),
            [t for t in self._config.targets if t.excludes],
            pids=[pids] if isinstance(pids, int) else list(pids),
            way=way,
        )
        self._runner.seed = seed
        self._stack = ExitStack()
        self._table: _core.Table | None = None

    def __enter__(self) -> attach:
        """Put the delays into force in the processes."""
        with ExitStack() as stack:
            runner = stack.enter_context(self._runner)
            stem = runner.next_stem()
            runner.write_targets(f"{stem}.targets", self._slowed)
            self._table = _core.Table(f"{stem}.table", CAPACITY)
            child = runner.start(stem, Streams(), lambda _: None)
            stack.callback(child.end)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Remove the delays; ``stats()`` keeps the counts."""
        self._stack.close()

    @property
    def ways(self) -> dict[int, str]:
        """The way by which each process was entered."""
        return dict(self._runner.attached)

    def stats(self) -> Statistics:
        """The counts since entry, of all processes, including forked children."""
        numbers = {n: s.target.pattern for n, s in enumerate(self._slowed)}
        found = statistics.read(self._table, numbers, None, [], None)
        points = {k: n for k, n in found.progress.items() if k not in OWN_POINTS}
        return replace(found, progress=points)
