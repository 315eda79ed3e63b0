# SPDX-License-Identifier: MIT
"""The unit of work."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass

from speed_bump import _core
from speed_bump.config import ConfigError, Target, parse_targets
from speed_bump.control import EXIT_POINT
from speed_bump.experiment.program import metric as metrics
from speed_bump.experiment.program.metric import Metric

# The point for counting lines of output.
OUTPUT_POINT = "speed_bump:output"


@dataclass(frozen=True)
class Progress:
    """The sources of progress.

    ``points`` of ``speed_bump.progress()``; calls of ``functions``, which are patterns;
    calls of native ``targets``; lines of the output that match ``regex``; or a
    ``metric``, with nothing else. If there are none: any point of the program, or else
    its wall time.
    """

    points: tuple[str, ...] = ()
    functions: tuple[Target, ...] = ()
    targets: tuple[Target, ...] = ()
    regex: re.Pattern[bytes] | None = None
    metric: Metric | None = None

    @property
    def is_open(self) -> bool:
        """Whether no unit was defined."""
        return not (self.points or self.functions or self.targets or self.metric)

    def is_counted(self, name: str) -> bool:
        """Whether the calls of a function, ``module:qualname``, are units."""
        left, _, right = name.rpartition(":")
        return any(
            _core.glob_match(t.left, left) and _core.glob_match(t.right, right)
            for t in self.functions
        )

    @property
    def text(self) -> str:
        """The description of a unit, for display."""
        named = [p for p in self.points if p not in (OUTPUT_POINT, EXIT_POINT)]
        parts = [f"progress point {p!r}" for p in named]
        parts += ["one Python process"] if EXIT_POINT in self.points else []
        parts += [f"call of {t.pattern}" for t in (*self.functions, *self.targets)]
        if self.regex:
            pattern = self.regex.pattern.decode(errors="replace")
            parts.append(f"line of output with {pattern!r}")
        if self.metric:
            parts.append(self.metric.text)
        return " or ".join(parts)


def read(texts: Sequence[str], regex: str | None, metric: str | None = None) -> Progress:
    """From the command line.

    Raises:
        ConfigError: a text is wrong
    """
    if metric is not None:
        if texts or regex is not None:
            raise ConfigError(
                "--progress-metric: the metric is the unit of work; leave --progress and "
                "--progress-regex out"
            )
        return Progress(metric=metrics.parse(metric))
    points: list[str] = []
    functions: list[Target] = []
    targets: list[Target] = []
    for text in texts:
        if ":" not in text or text == EXIT_POINT:
            points.append(text)
            continue
        target = _target(text)
        (targets if target.native else functions).append(target)
    compiled = None
    if regex is not None:
        if not regex:
            raise ConfigError(
                "--progress-regex: it is empty; give what a line of output has, or . for "
                "each line"
            )
        try:
            compiled = re.compile(regex.encode())
        except re.error as error:
            raise ConfigError(f"--progress-regex: {error}") from None
        points.insert(0, OUTPUT_POINT)
    return Progress(tuple(points), tuple(functions), tuple(targets), compiled)


def is_native(text: str) -> bool:
    """Whether a text means a native function: a path before the colon.

    Paths of Python files, and globs, mean modules.
    """
    left = text.rpartition(":")[0]
    of_modules = left.endswith(".py") or glob.escape(left) != left
    return text.startswith("native:") or ".so" in left or ("/" in left and not of_modules)


def _target(text: str) -> Target:
    if is_native(text) and not text.startswith("native:"):
        text = f"native:{text}"
    found = parse_targets(text, "--progress")
    if len(found) != 1 or found[0].excludes:
        raise ConfigError(f"--progress: {text!r} is not one function")
    return found[0]
