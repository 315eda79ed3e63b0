# SPDX-License-Identifier: MIT
"""What to slow, by how much and when, from the environment or from a program."""

from __future__ import annotations

import os
import time

from speed_bump import _core, process

TYPE_CHECKING = False  # not from typing, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import NoReturn

DEFAULT_DELAY_NS = 1000
# The last moment that the clocks of the kernel and of Python can represent.
LAST_NS = 2**63 - 1
MAX_EVERY = 2**32 - 1
MAX_SEED = 2**64 - 1
# 31 years, which leaves room for the time since boot.
MAX_MS = 10**12


class ConfigError(ValueError):
    """A variable, a target file or a pattern is wrong; the message says where."""


def matches(pattern: str, name: str) -> bool:
    """Whether a function, ``module:qualname``, matches."""
    left, _, right = pattern.partition(":")
    module, _, qualname = name.rpartition(":")
    return _core.glob_match(left, module) and _core.glob_match(right, qualname)


class Target:
    """One target: a pattern for Python functions, a line, an exclusion, or a native one.

    ``delay_ns``, ``every``, ``start_ns`` and ``duration_ns`` (ns, the start since that of
    the process) are None where the text does not name them, and so is ``thread``, a glob
    of names of threads. ``delay_ppm`` is not 0 where the delay is a part of the duration
    of each call, in millionths, and ``delay_ns`` is None then. ``mode`` is "spin",
    "sleep" or "wait". ``dist`` is "fixed", "exp", "uniform" or "lognormal", with
    ``sigma`` for the last of them, else 0. ``line`` is the line in its file, 0 if it does
    not come from one.
    """

    __slots__ = (
        "delay_ns",
        "delay_ppm",
        "dist",
        "duration_ns",
        "every",
        "excludes",
        "left",
        "line",
        "mode",
        "native",
        "resume",
        "right",
        "sigma",
        "start_ns",
        "thread",
    )

    def __init__(self, parsed: _core.ParsedTarget) -> None:
        """Convert what ``_core.parse_targets`` found; use ``parse_targets`` instead."""
        self.native = parsed.kind == _core.SB_SPEC_KIND_NATIVE
        self.excludes = parsed.kind == _core.SB_SPEC_KIND_PYTHON_EXCLUDE
        self.left = parsed.left
        self.right = parsed.right
        self.delay_ns = parsed.delay_ns
        self.every = parsed.every
        self.start_ns = parsed.start_ns
        self.duration_ns = parsed.duration_ns
        self.resume = bool(parsed.resume)
        self.line = parsed.line
        self.mode = parsed.mode
        self.dist = parsed.dist
        self.sigma = parsed.sigma
        self.thread = parsed.thread
        self.delay_ppm = parsed.delay_ppm

    @property
    def pattern(self) -> str:
        """The text without its options, such as ``json.*:dumps``."""
        prefix = "native:" if self.native else "!" if self.excludes else ""
        return f"{prefix}{self.left}:{self.right}"

    @property
    def delay(self) -> str | None:
        """The delay as written, such as ``10us`` or ``5%``; None if there is none."""
        if self.delay_ppm:
            return f"{f'{self.delay_ppm / 10_000:.4f}'.rstrip('0').rstrip('.')}%"
        if self.delay_ns is None:
            return None
        return _core.format_duration(self.delay_ns)

    @property
    def source_line(self) -> int:
        """The line number in a Python file; 0 if functions or native code are meant."""
        right = self.right
        is_number = right.isascii() and right.isdigit() and len(right) < 10
        return int(right) if is_number and not self.native else 0

    @property
    def manner(self) -> str:
        """The options other than the amount of the delay, each with a blank before it."""
        text = " resume=1" if self.resume else ""
        if self.mode != "spin":
            text += f" mode={self.mode}"
        if self.dist == "lognormal":
            text += f" dist=lognormal({f'{self.sigma:.6f}'.rstrip('0').rstrip('.')})"
        elif self.dist != "fixed":
            text += f" dist={self.dist}"
        if self.thread is not None:
            text += f" thread={self.thread}"
        return text

    def __str__(self) -> str:
        """The whole text, which ``parse_targets`` reads back."""
        return self.text_with(self.delay)

    def text_with(self, delay: str | None) -> str:
        """The same with another delay, as text; None: without one."""
        text = self.pattern
        if delay is not None:
            text += f" delay={delay}"
        if self.every is not None:
            text += f" every={self.every}"
        if self.start_ns is not None:
            text += f" start={_core.format_duration(self.start_ns)}"
        if self.duration_ns is not None:
            text += f" duration={_core.format_duration(self.duration_ns)}"
        return text + self.manner

    def __repr__(self) -> str:
        return f"<Target {self}>"

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, Target) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))


# Not a frozen dataclass: importing dataclasses, which imports inspect, takes longer than
# everything else that happens at the start of a slowed program.
class Config:
    """What ``install()`` puts into force. Immutable.

    >>> config = Config(["json.*:dumps", "!*:*<lambda>"], delay_ns=10_000)
    >>> [str(target) for target in config.targets]
    ['json.*:dumps', '!*:*<lambda>']
    >>> config.is_in_window()
    True

    Args:
        targets: lines as in a target file, or targets of ``parse_targets``
        delay_ns: delay of each delayed call, ns, for targets without a delay
        frequency: delay every Nth call, for targets without ``every``
        start_ns: no delays before, ns as ``time.monotonic_ns()`` counts; 0: no limit
        end_ns: no delays from then on; None: no limit
        enabled: False makes ``install()`` do nothing
        seed: of the delays that are drawn (``dist=``), 0 to 2**64 - 1; None: the
            previous seed, or a new one, which is printed

    Raises:
        ConfigError: a target can't be parsed, or a number is out of range
    """

    __slots__ = (
        "delay_ns",
        "enabled",
        "end_ns",
        "frequency",
        "seed",
        "start_ns",
        "targets",
    )

    enabled: bool
    targets: tuple[Target, ...]
    delay_ns: int
    frequency: int
    start_ns: int
    end_ns: int | None
    seed: int | None

    def __init__(
        self,
        targets: Iterable[str | Target] = (),
        delay_ns: int = DEFAULT_DELAY_NS,
        frequency: int = 1,
        start_ns: int = 0,
        end_ns: int | None = None,
        enabled: bool = True,
        seed: int | None = None,
    ) -> None:
        if isinstance(targets, str):
            targets = (targets,)
        found: list[Target] = []
        for target in targets:
            if isinstance(target, Target):
                found.append(target)
            else:
                found.extend(parse_targets(target, "targets"))
        if not 0 <= delay_ns <= _core.MAX_DELAY_NS:
            raise ConfigError(f"delay_ns: {delay_ns} is not between 0 and 10 s")
        if not 1 <= frequency <= MAX_EVERY:
            raise ConfigError(f"frequency: {frequency} is not 1 to {MAX_EVERY}")
        if max(start_ns, end_ns or 0) > LAST_NS:
            raise ConfigError(f"start_ns {start_ns}, end_ns {end_ns}: over {LAST_NS}")
        if start_ns < 0 or (end_ns is not None and end_ns < start_ns):
            raise ConfigError(f"start_ns {start_ns}, end_ns {end_ns}: not a span of time")
        if seed is not None and not 0 <= seed <= MAX_SEED:
            raise ConfigError(f"seed: {seed} is not 0 to {MAX_SEED}")
        values = {
            "enabled": enabled,
            "targets": tuple(found),
            "delay_ns": delay_ns,
            "frequency": frequency,
            "start_ns": start_ns,
            "end_ns": end_ns,
            "seed": seed,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse, because a Config is immutable."""
        raise AttributeError(f"a Config does not change (setting {name})")

    def is_in_window(self, now_ns: int | None = None) -> bool:
        """Whether delays are due at ``now_ns`` (``time.monotonic_ns()``; None: now)."""
        if now_ns is None:
            now_ns = time.monotonic_ns()
        return now_ns >= self.start_ns and (self.end_ns is None or now_ns < self.end_ns)

    def __repr__(self) -> str:
        """The constructor call that makes an equal object."""
        lines = [str(target) for target in self.targets]
        return (
            f"Config(targets={lines!r}, delay_ns={self.delay_ns}, "
            f"frequency={self.frequency}, start_ns={self.start_ns}, "
            f"end_ns={self.end_ns}, enabled={self.enabled}"
            + (")" if self.seed is None else f", seed={self.seed})")
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Config):
            return NotImplemented
        return all(getattr(self, n) == getattr(other, n) for n in self.__slots__)

    def __hash__(self) -> int:
        return hash((self.targets, self.delay_ns, self.frequency, self.start_ns))


def parse_targets(text: str | bytes, name: str) -> list[Target]:
    """Parse the text of a target file; messages call it ``name``.

    >>> (target,) = parse_targets("json.*:dumps  delay=10us every=5", "here")
    >>> target.left, target.right, target.delay_ns, target.every
    ('json.*', 'dumps', 10000, 5)
    >>> parse_targets("json", "here")
    Traceback (most recent call last):
    speed_bump.config.ConfigError: ...

    Raises:
        ConfigError: naming ``name`` and the line
    """
    data = text if isinstance(text, bytes) else os.fsencode(text)
    try:
        targets = [Target(parsed) for parsed in _core.parse_targets(data, name)]
    except ValueError as error:
        raise ConfigError(str(error)) from None
    for target in targets:
        if target.source_line and target.resume:
            at = f"{name}:{target.line}: " if target.line else f"{name}: "
            raise ConfigError(f"{at}{target.pattern}: a line is not resumed (resume=1)")
    return targets


def read_targets(path: str) -> list[Target]:
    """Read a target file.

    Raises:
        ConfigError: the file can't be read, or a line is wrong (the message names it)
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    return parse_targets(data, path)


def load_config(environ: Mapping[str, str] | None = None) -> Config:
    """Read the configuration from the environment.

    ``SPEED_BUMP_TARGETS``, ``SPEED_BUMP_DELAY_NS``, ``SPEED_BUMP_FREQUENCY``,
    ``SPEED_BUMP_START_MS``, ``SPEED_BUMP_DURATION_MS`` and ``SPEED_BUMP_SEED``. Where the
    first is unset or empty the result is not enabled.

    Raises:
        ConfigError: naming the variable and, in a file, the line
    """
    environ = os.environ if environ is None else environ
    delay_ns = _read_delay(environ)
    frequency = _read_number(environ, "SPEED_BUMP_FREQUENCY", 1, 1, MAX_EVERY)
    start = _read_number(environ, "SPEED_BUMP_START_MS", 0, 0, MAX_MS) * 1_000_000
    duration = _read_number(environ, "SPEED_BUMP_DURATION_MS", 0, 0, MAX_MS) * 1_000_000
    origin = process.start_ns() if start or duration else 0
    path = environ.get("SPEED_BUMP_TARGETS", "")
    try:
        targets = read_targets(path) if path else []
    except ConfigError as error:
        raise ConfigError(f"SPEED_BUMP_TARGETS: {error}") from None
    return Config(
        targets,
        delay_ns,
        frequency,
        start_ns=origin + start if start else 0,
        end_ns=origin + start + duration if duration else None,
        enabled=bool(path),
        seed=_read_seed(environ),
    )


def seed_here(seed: int) -> int:
    """The seed of this process, where several processes are given the same seed."""
    return (seed + os.getpid() * 0x9E3779B97F4A7C15) & MAX_SEED


def _read_seed(environ: Mapping[str, str]) -> int | None:
    """Parse "SEED" or, in a program started by process PID, "SEED:PID"."""
    text = environ.get("SPEED_BUMP_SEED", "").strip()
    if not text:
        return None
    number, _, pid = text.partition(":")
    if not all(
        word.isascii() and word.isdigit() and len(word) < 21
        for word in (number, pid or "0")
    ):
        raise ConfigError(f"SPEED_BUMP_SEED: {text!r} is not a whole number")
    if int(number) > MAX_SEED:
        raise ConfigError(f"SPEED_BUMP_SEED: {number} is not 0 to {MAX_SEED}")
    if not pid or int(pid) == os.getpid():
        return int(number)
    return seed_here(int(number))


def _read_delay(environ: Mapping[str, str]) -> int:
    text = environ.get("SPEED_BUMP_DELAY_NS", "").strip()
    if not text:
        return DEFAULT_DELAY_NS
    try:
        delay_ns = _core.parse_duration(text)
    except ValueError as error:
        hint = f"; write delay={text} into the target file" if "%" in text else ""
        raise ConfigError(f"SPEED_BUMP_DELAY_NS: {error}{hint}") from None
    if delay_ns > _core.MAX_DELAY_NS:
        raise ConfigError(f"SPEED_BUMP_DELAY_NS: {text} is over 10 s")
    return delay_ns


def _read_number(
    environ: Mapping[str, str], name: str, default: int, least: int, most: int
) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 100):
        raise ConfigError(f"{name}: {text!r} is not a whole number")
    if not least <= int(text) <= most:
        raise ConfigError(f"{name}: {text} is not {least} to {most}")
    return int(text)
