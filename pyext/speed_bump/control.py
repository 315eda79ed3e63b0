# SPDX-License-Identifier: MIT
"""Putting delays into force in this process, and taking them out again."""

from __future__ import annotations

import os
import sys
from _thread import RLock

from speed_bump import _core, process
from speed_bump.config import (
    LAST_NS,
    Config,
    ConfigError,
    Target,
    load_config,
    parse_targets,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from speed_bump import native
    from speed_bump.statistics import Statistics

    F = TypeVar("F", bound=Callable[..., Any])

# Set for the descendants of a process that holds the native targets of its whole tree.
NATIVE_OWNER = "SPEED_BUMP_NATIVE_OWNER"

# In the table of an experiment: a process has the delays in force.
PROCESS_POINT = "speed_bump:process"


class _State:
    """What is in force in this process."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.config: Config | None = None  # None: not installed
        self.slows: list[Target] = []  # the newest first: it comes before the others
        self.table: _core.Table | None = None  # outlives uninstall(), for stats()
        self.numbers: dict[str, int] = {}  # of targets in the table, by their text
        self.started = False
        self.native: native.Probes | None = None
        self.warned = False
        self.refused: set[tuple[str, str]] = set()  # said already

    def after_fork(self) -> None:
        self.lock = RLock()  # a thread that is gone may have held it
        _core.after_fork()


_state = _State()
os.register_at_fork(after_in_child=_state.after_fork)


def install(config: Config | None = None) -> bool:
    """Put delays into force, in every thread, in place of those in force before.

    Args:
        config: what to slow; None reads the environment as ``load_config()`` does

    Returns:
        whether there is something in force now; False if the configuration is not enabled

    Raises:
        ConfigError: the configuration is wrong
        RuntimeError: every ``sys.monitoring`` tool id is in use
        NativeError: there are native targets, and they can't be had

    With an exception what was in force stays so.
    """
    config = load_config() if config is None else config
    with _state.lock:
        if config.enabled:
            _install(config, _core.Table())
        else:
            uninstall()
    return config.enabled


def install_shared(config: Config, table_path: str | None) -> bool:
    """Like ``install()``, counting in a table that an experiment made (None: a new one).

    All interpreters of a process for which this is called count in the table of the
    first.

    Returns:
        whether this is the first of the process

    Raises:
        OSError: there is no such table
    """
    table = _core.Table.of_process()
    first = table is None
    if table is None:
        table = _core.Table.open(table_path) if table_path else _core.Table()
    with _state.lock:
        _install(config, table)
        if first:
            table.share()
            if table_path:
                write_layout(table_path)
                table.progress(PROCESS_POINT, 1)
    return first


def write_layout(table_path: str) -> None:
    """Leave word for the experiment where its sampler finds the stacks of this process.

    A child that is forked has them where its parent has.
    """
    text = " ".join(map(str, _core.layout()))
    try:
        with open(f"{table_path}.layout.{os.getpid()}", "w", encoding="ascii") as file:
            file.write(text)
    except OSError:
        pass  # its experiment is over


def write_refused(table_path: str) -> None:
    """Leave word for the experiment which C functions could not be slowed, and why."""
    refused = _core.refused()
    if not refused:
        return
    path = f"{table_path}.refused.{os.getpid()}"
    try:
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.writelines(f"{pattern}\t{reason}\n" for pattern, reason in refused)
    except OSError:
        pass  # its experiment is over


def _install(config: Config, table: _core.Table) -> None:
    """All of it or, with an exception, nothing: what was in force then stays."""
    numbers: dict[str, int] = {}
    for number, target in enumerate(config.targets):
        numbers.setdefault(str(target), number)
    probes = _open_native(config)
    before = _state.config, _state.table, _state.numbers
    try:
        _replace(config, table, numbers)
    except BaseException:
        if probes:
            probes.close()
        _replace(*before)
        raise
    _replace_native(probes)


def _replace(
    config: Config | None, table: _core.Table | None, numbers: dict[str, int]
) -> None:
    if _state.started:
        _state.started = False
        _core.stop()
    _state.config, _state.table, _state.numbers = config, table, numbers
    _apply()


def _replace_native(probes: native.Probes | None) -> None:
    before, _state.native = _state.native, probes
    if before:
        before.close()
    if probes:
        # The kernel slows the descendants too; they must not ask for it a second time.
        os.environ[NATIVE_OWNER] = str(os.getpid())
    elif before:
        os.environ.pop(NATIVE_OWNER, None)


def uninstall() -> None:
    """Take out what ``install()`` put into force; ``stats()`` still has what it counted.

    A ``slow()`` that is entered stays in force. Not installed is no error.
    """
    with _state.lock:
        _state.config = None
        _replace_native(None)
        _apply()


def is_installed() -> bool:
    """Whether ``install()`` is in force (also by the environment)."""
    return _state.config is not None


def get_config() -> Config | None:
    """What ``install()`` put into force; None if not installed."""
    return _state.config


def clear_cache() -> None:
    """Forget which functions match: each is looked up again when it is next called.

    Needed only where a module's ``__name__`` changes; other patterns clear it themselves.
    """
    with _state.lock:
        _core.clear_cache()


def stats(*, children: bool = False) -> Statistics:
    """What was counted since ``install()``, or since the first ``slow()``: a snapshot.

    Args:
        children: with the processes that were forked from this one

    Without either the result is empty.
    """
    from speed_bump import statistics

    with _state.lock:
        return statistics.read(
            _state.table,
            {number: text for text, number in _state.numbers.items()},
            None if children else os.getpid(),
            _state.native.read() if _state.native else [],
        )


# ------------------------------------------------------------------ into force


def _apply() -> None:
    """Make what is in force what ``_state`` says."""
    if _state.config is None and not _state.slows:
        if _state.started:
            _state.started = False
            _core.stop()
        return
    config = _state.config or Config()
    targets = [*_state.slows, *config.targets]
    targets = [target for target in targets if not target.native]
    text = os.fsencode("".join(f"{target}\n" for target in targets))
    policies = [_policy(target, config) for target in targets]
    if _state.started:
        _core.retarget(text, policies)
    else:
        if _state.table is None:
            _state.table = _core.Table()
        _core.start(_state.table, text, policies, None)
        _state.started = True
    say_refused()


def say_refused() -> None:
    """Say which C functions can't be slowed, each once."""
    if os.environ.get("SPEED_BUMP_QUIET", "") not in ("", "0"):
        return
    for pattern, reason in _core.refused():
        if (pattern, reason) not in _state.refused:
            _state.refused.add((pattern, reason))
            say(f"{pattern} can't be slowed: {reason}")


def _policy(target: Target, config: Config) -> _core.Policy:
    number = _state.numbers.setdefault(str(target), len(_state.numbers))
    delay_ns = config.delay_ns if target.delay_ns is None else target.delay_ns
    if not target.excludes:
        delay_ns = _achievable(delay_ns)
    start_ns, end_ns = _window(target, config)
    return (
        number,
        delay_ns,
        config.frequency if target.every is None else target.every,
        start_ns,
        end_ns,
        target.resume,
    )


def _window(target: Target, config: Config) -> tuple[int, int]:
    """(first, last) ns of CLOCK_MONOTONIC; 0: no limit."""
    if target.start_ns is None and target.duration_ns is None:
        return config.start_ns, config.end_ns or 0
    origin = process.start_ns()
    start_ns = origin + (target.start_ns or 0)
    end_ns = start_ns + target.duration_ns if target.duration_ns else 0
    return min(start_ns, LAST_NS), min(end_ns, LAST_NS)


def _achievable(delay_ns: int) -> int:
    if delay_ns == 0:  # counts and does not delay
        return 0
    least = _core.min_delay_ns()
    if delay_ns >= least:
        return delay_ns
    if not _state.warned:
        _state.warned = True
        every = -(-least // delay_ns)
        say(
            f"a delay of {delay_ns} ns can't be had, the shortest is {least} ns, which "
            f"is used; to slow by less delay every {every}th call (frequency, "
            f"SPEED_BUMP_FREQUENCY or every={every})"
        )
    return least


def _open_native(config: Config) -> native.Probes | None:
    targets = [target for target in config.targets if target.native]
    if not targets or _is_alive(os.environ.get(NATIVE_OWNER, "")):
        return None
    from speed_bump import native

    probes = native.Probes(os.getpid())
    try:
        probes.add([native.from_target(target, config) for target in targets])
    except BaseException:
        probes.close()
        raise
    return probes


def _is_alive(pid: str) -> bool:
    return pid.isdigit() and pid != str(os.getpid()) and os.path.exists(f"/proc/{pid}")


def say(text: str) -> None:
    """One line for people."""
    # A program may have no stderr, or have closed it.
    try:
        sys.stderr.write(f"speed_bump: {text}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass


# ------------------------------------------------------------------------ slow


class slow:
    """Slow what matches ``pattern`` while inside: a context manager and a decorator.

    >>> import json
    >>> with slow("json:dumps", "2us"):
    ...     json.dumps([])
    '[]'
    >>> [f.calls for f in stats().functions if f.requested_ns == 2_000]
    [1]

        with speed_bump.slow("json.*:*", "10us"):
            serve()

        @speed_bump.slow("__main__:Parser.*", 10_000)
        def benchmark(): ...

    Comes before the targets of ``install()`` and those of a ``slow()`` further out.

    Args:
        pattern: a line as in a target file; its own options come before ``delay``
        delay: ns, or a text with a unit such as "10us"

    Raises:
        ConfigError: the pattern or the delay is wrong
        NativeError: on entry, of a ``native:`` pattern that can't be had
    """

    def __init__(self, pattern: str, delay: int | str) -> None:
        """Read the pattern; nothing is slowed yet."""
        try:
            delay_ns = _core.parse_duration(delay) if isinstance(delay, str) else delay
        except ValueError as error:
            raise ConfigError(f"delay: {error}") from None
        if not 0 <= delay_ns <= _core.MAX_DELAY_NS:
            raise ConfigError(f"delay: {delay_ns} ns is not between 0 and 10 s")
        targets = parse_targets(pattern, "pattern")
        if len(targets) != 1:
            raise ConfigError(f"pattern: {pattern!r} is not one target")
        self._target = targets[0]
        if self._target.delay_ns is None:
            self._target.delay_ns = delay_ns
        self._probes: list[native.Probes] = []

    def __enter__(self) -> slow:
        """Put it into force."""
        with _state.lock:
            if self._target.native:
                self._probes.append(_probe(self._target))
                return self
            _state.slows.insert(0, self._target)
            try:
                _apply()
            except BaseException:
                _state.slows.remove(self._target)
                raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Take it out of force."""
        with _state.lock:
            if self._target.native:
                self._probes.pop().close()
                return
            _state.slows.remove(self._target)
            _apply()

    def __call__(self, function: F) -> F:
        """Slow what matches while ``function`` (also ``async def``) runs."""
        import functools
        import inspect

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


def _probe(target: Target) -> native.Probes:
    from speed_bump import native

    probes = native.Probes(os.getpid())
    try:
        probes.add([native.from_target(target, _state.config or Config())])
    except BaseException:
        probes.close()
        raise
    return probes
