# SPDX-License-Identifier: MIT
"""Putting delays into force in this process, and removing them."""

from __future__ import annotations

# Imported for the extension: a signal handler may raise anywhere in install(), and an
# interrupted import prints on stderr.
import gc  # noqa: F401
import os
import sys

from speed_bump import _core, process
from speed_bump.config import (
    LAST_NS,
    Config,
    ConfigError,
    Target,
    load_config,
    parse_targets,
)

TYPE_CHECKING = False  # not from typing, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    from speed_bump import native
    from speed_bump.statistics import Statistics

    F = TypeVar("F", bound=Callable[..., Any])

# Set for the descendants of a process that holds the native targets of its whole tree.
NATIVE_OWNER = "SPEED_BUMP_NATIVE_OWNER"

# The seed of drawn delays, and the process that it was given to.
SEED = "SPEED_BUMP_SEED"

# In an experiment's table: a process has the delays in force.
PROCESS_POINT = "speed_bump:process"
# Likewise: a process that its program did not fork from another one has ended by itself.
EXIT_POINT = "speed_bump:exit"
OWN_POINTS = (PROCESS_POINT, EXIT_POINT)


# Of this copy of the module: the warning about a short delay was printed.
_warned = False
# Likewise: C functions whose refusal was printed.
_refused: set[tuple[str, str]] = set()


def install(config: Config | None = None) -> bool:
    """Put delays into force, in every thread, replacing those in force.

    Args:
        config: what to slow; None reads the environment as ``load_config()`` does

    Returns:
        whether delays are in force now; False if the configuration is not enabled

    Raises:
        ConfigError: the configuration is wrong
        RuntimeError: every ``sys.monitoring`` tool id is in use
        NativeError: there are native targets, and native functions can't be delayed

    After an exception, the previous delays stay in force.
    """
    config = load_config() if config is None else config
    if config.enabled:
        _install(config, _core.Table())
    else:
        uninstall()
    return config.enabled


def install_shared(config: Config, table_path: str | None) -> bool:
    """Like ``install()``, but count in a table that an experiment made (None: a new one).

    All interpreters of a process that call this count in the table of the first.

    Returns:
        whether this is the first call in the process

    Raises:
        OSError: there is no such table
    """
    table = _core.Table.of_process()
    first = table is None
    if table is None:
        table = (
            _core.Table.open(table_path)
            if table_path
            else _core.Table(label="environment")
        )
    _install(config, table)
    if first:
        table.share()
        if table_path:
            write_layout(table_path)
            table.progress(PROCESS_POINT, 1)
    return first


def count_exit(pid: int) -> None:
    """Count the end of this process, if it is ``pid`` and not a fork of that."""
    table = _core.Table.of_process()
    if table and os.getpid() == pid:
        table.progress(EXIT_POINT, 1)


def install_quietly(config: Config, table: _core.Table) -> None:
    """Put delays into force in another user's program, without printing anything.

    Native targets of ``config`` are ignored. Otherwise like ``install()``.
    """
    entries = tuple(_entry(target, quiet=True) for target in config.targets)
    seed(config.targets, config.seed)
    _core.install(
        config,
        table,
        entries,
        delay_ns=config.delay_ns,
        every=config.frequency,
        start_ns=0,
        end_ns=0,
    )


def write_layout(table_path: str) -> None:
    """Tell the experiment where its sampler finds the stacks of this process.

    A forked child has them at the same place as its parent.
    """
    text = " ".join(map(str, _core.layout()))
    try:
        with open(f"{table_path}.layout.{os.getpid()}", "w", encoding="ascii") as file:
            file.write(text)
    except OSError:
        pass  # the experiment has ended


def write_refused(table_path: str) -> None:
    """Tell the experiment which C functions could not be slowed, and why."""
    refused = _core.refused()
    if not refused:
        return
    path = f"{table_path}.refused.{os.getpid()}"
    try:
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.writelines(f"{pattern}\t{reason}\n" for pattern, reason in refused)
    except OSError:
        pass  # the experiment has ended


def _install(config: Config, table: _core.Table) -> None:
    """Install all of it or, with an exception, nothing; the previous delays stay then.

    Everything is prepared first. ``_core.install()`` is the only step that takes effect,
    and a signal handler runs before or after it. If one interrupts the preparation, a
    session is closed with its object.
    """
    entries = tuple(_entry(target) for target in config.targets if not target.native)
    delay_ns = _achievable(config.delay_ns)
    probes = _open_native(config)
    _seed_aloud(config.targets, config.seed)
    owner = os.environ.get(NATIVE_OWNER)
    try:
        if probes:
            # The kernel slows the descendants too; they must not add the targets again.
            os.environ[NATIVE_OWNER] = str(os.getpid())
        before = _core.install(
            config,
            table,
            entries,
            delay_ns=delay_ns,
            every=config.frequency,
            start_ns=config.start_ns,
            end_ns=config.end_ns or 0,
            probes=probes,
        )
    except BaseException:
        if probes:
            probes.close()
            _set_owner(owner)
        raise
    _close(before)
    if before and not probes:
        _set_owner(None)
    say_refused()


def _set_owner(owner: str | None) -> None:
    if owner is None:
        os.environ.pop(NATIVE_OWNER, None)
    else:
        os.environ[NATIVE_OWNER] = owner


def _close(probes: native.Probes | None) -> None:
    if probes:
        probes.close()


def uninstall() -> None:
    """Remove what ``install()`` put into force; ``stats()`` keeps the counts.

    A ``slow()`` that is entered stays in force. It is no error if nothing is installed.
    """
    probes = _core.uninstall()
    if probes:
        probes.close()
        _set_owner(None)


def is_installed() -> bool:
    """Whether ``install()`` is in force, including by the environment."""
    return _core.state().config is not None


def get_config() -> Config | None:
    """The configuration that ``install()`` put into force; None if not installed."""
    config = _core.state().config
    if config is None or isinstance(config, Config):
        return config
    # Another copy of this package, imported earlier, put it into force.
    return Config(
        [str(target) for target in config.targets],
        config.delay_ns,
        config.frequency,
        config.start_ns,
        config.end_ns,
        seed=getattr(config, "seed", None),
    )


def clear_cache() -> None:
    """Forget which functions match; each is looked up again at its next call.

    Needed only if a module's ``__name__`` changes. Installing other patterns does the
    same.
    """
    _core.clear_cache()


def stats(*, children: bool = False) -> Statistics:
    """The counts since ``install()``, the first ``slow()`` or ``reset()``.

    A snapshot; calls that are under way in other threads may be included or not. The
    result is empty if none of the three was called.

    Args:
        children: include the processes that were forked from this one
    """
    from speed_bump import statistics

    state = _core.state()
    return statistics.read(
        state.table,
        {number: text for text, number in state.numbers.items()},
        None if children else os.getpid(),
        state.probes.read() if state.probes else [],
        state.baseline,
    )


def reset() -> None:
    """Count from 0 again.

    This includes forked children; native functions and ``Statistics.lost`` continue. The
    delays stay in force. ``install()`` resets the counts too.
    """
    from speed_bump import statistics

    table = _core.state().table
    if table is not None:
        _core.set_baseline(table, statistics.baseline(table))


# ------------------------------------------------------------------ into force


def seed(targets: Iterable[Target], given: int | None) -> int | None:
    """Begin to draw delays from ``given``, or from a new seed if there is none yet.

    Returns:
        the seed, if it is a new one and some of ``targets`` are drawn; else None
    """
    if all(target.dist == "fixed" for target in targets):
        return None
    before = _core.seed()
    # Starting the same seed again would repeat the same delays, also in another
    # interpreter.
    if before is not None and given in (None, before):
        return None
    if given is None:
        given = int.from_bytes(os.urandom(4), "little")
    _core.set_seed(given)
    return given


def _seed_aloud(targets: Iterable[Target], given: int | None) -> None:
    drawn = seed(targets, given)
    if drawn is not None and os.environ.get("SPEED_BUMP_QUIET", "") in ("", "0"):
        say(f"delays are drawn from the seed {drawn} ({SEED}={drawn} draws them again)")


def say_refused() -> None:
    """Print which C functions can't be slowed, each once."""
    if os.environ.get("SPEED_BUMP_QUIET", "") not in ("", "0"):
        return
    for pattern, reason in _core.refused():
        if (pattern, reason) not in _refused:
            _refused.add((pattern, reason))
            say(f"{pattern} can't be slowed: {reason}")


def _entry(target: Target, quiet: bool = False) -> _core.Entry:
    """A target as ``_core`` takes it."""
    text = str(target)
    if target.source_line:
        from speed_bump import lines

        lines.check_here(target)
    if not quiet:
        _warn_of_comprehension(target)
    delay_ns = target.delay_ns
    if delay_ns is not None and not target.excludes:
        delay_ns = _achievable(delay_ns, quiet)
    start_ns, end_ns = _window(target)
    return _core.entry(
        text,
        os.fsencode(f"{text}\n"),
        delay_ns=delay_ns,
        every=target.every,
        start_ns=start_ns,
        end_ns=end_ns,
        resume=target.resume,
    )


def _warn_of_comprehension(target: Target) -> None:
    """Warn about a name that no function has in this version of Python."""
    if (
        sys.version_info >= (3, 12)
        and not target.native
        and not target.excludes
        and target.right.endswith(("<listcomp>", "<setcomp>", "<dictcomp>"))
    ):
        say(
            f"{target.pattern} will match nothing: from CPython 3.12 on a comprehension "
            "is part of the function that it is in; match that"
        )


def _window(target: Target) -> tuple[int | None, int | None]:
    """(first, last) ns of CLOCK_MONOTONIC; 0: no limit; None: the configuration's."""
    if target.start_ns is None and target.duration_ns is None:
        return None, None
    origin = process.start_ns()
    start_ns = origin + (target.start_ns or 0)
    end_ns = start_ns + target.duration_ns if target.duration_ns else 0
    return min(start_ns, LAST_NS), min(end_ns, LAST_NS)


def with_delay(target: Target, delay: int | str) -> Target:
    """The target with ``delay`` if it has none: ns, or a text as in a pattern."""
    if isinstance(delay, str) and delay.strip().endswith("%"):
        if target.delay is not None or target.excludes:
            return target
        return parse_targets(f"{target} delay={delay.strip()}", "delay")[0]
    try:
        delay_ns = _core.parse_duration(delay) if isinstance(delay, str) else delay
    except ValueError as error:
        raise ConfigError(f"delay: {error}") from None
    if not 0 <= delay_ns <= _core.MAX_DELAY_NS:
        raise ConfigError(f"delay: {delay_ns} ns is not between 0 and 10 s")
    if target.delay is None:
        target.delay_ns = delay_ns
    return target


def in_force(config: Config) -> list[tuple[int, int]]:
    """(delay in ns, every) of the targets, each once, as they are in force.

    Without those whose delays are parts of durations.
    """
    found = set()
    for target in config.targets:
        if target.excludes or target.delay_ppm:
            continue
        delay_ns = config.delay_ns if target.delay_ns is None else target.delay_ns
        every = config.frequency if target.every is None else target.every
        found.add((delay_ns if target.native else _achievable(delay_ns), every))
    return sorted(found)


def _achievable(delay_ns: int, quiet: bool = False) -> int:
    if delay_ns == 0:  # counts only
        return 0
    least = _core.min_delay_ns()
    if delay_ns >= least:
        return delay_ns
    global _warned  # noqa: PLW0603
    if not _warned and not quiet:
        _warned = True
        every = -(-least // delay_ns)
        say(
            f"a delay of {delay_ns} ns is too short: the shortest is {least} ns, which "
            f"is used. To slow by less, delay one call in {every} (frequency, "
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
    """Print one line on stderr."""
    # A program may have no stderr, or have closed it.
    try:
        sys.stderr.write(f"speed_bump: {text}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass


# ------------------------------------------------------------------------ slow


class slow(_core.Slow):
    """Slow what matches ``pattern``: a context manager and a decorator.

    >>> import json
    >>> with slow("json:dumps", "2us"):
    ...     json.dumps([])
    '[]'
    >>> [f.calls for f in stats().functions if f.requested_ns == 2_000]
    [1]

    Around a block, or a function::

        with speed_bump.slow("json.*:*", "10us"):
            serve()

        @speed_bump.slow("__main__:Parser.*", 10_000)
        def benchmark(): ...

    Takes precedence over the targets of ``install()`` and of outer ``slow()`` contexts. A
    decorated generator or coroutine (asynchronous generators too) slows from its start to
    its end, including other code that runs while it is suspended. If it is entered by
    hand, it ends with the object at the latest.

    Args:
        pattern: a line as in a target file; its own options override ``delay``
        delay: ns, or a text with a unit such as "10us", or "5%" of each call's duration

    Raises:
        ConfigError: the pattern or the delay is wrong
        NativeError: on entry, if a ``native:`` pattern can't be put into force
    """

    def __init__(self, pattern: str, delay: int | str) -> None:
        """Read the pattern; nothing is slowed yet."""
        targets = parse_targets(pattern, "pattern")
        if len(targets) != 1:
            raise ConfigError(f"pattern: {pattern!r} is not one target")
        self._target = with_delay(targets[0], delay)
        _seed_aloud(targets, None)
        super().__init__(
            None if self._target.native else _entry(self._target), _core.Table
        )

    def open(self) -> native.Probes:
        """Put a native target into force; called on entry to the context."""
        from speed_bump import native

        probes = native.Probes(os.getpid())
        try:
            config = get_config() or Config()
            probes.add([native.from_target(self._target, config)])
        except BaseException:
            probes.close()
            raise
        return probes

    def __call__(self, function: F) -> F:
        """Slow what matches while ``function`` runs, whatever kind of function it is."""
        from speed_bump import decorate

        return decorate.decorate(self, function)
