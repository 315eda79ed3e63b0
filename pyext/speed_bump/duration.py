# SPDX-License-Identifier: MIT
"""Durations as text."""

from __future__ import annotations

from speed_bump import _core


def parse(text: str) -> int:
    """Parse a duration into nanoseconds.

    >>> parse("500"), parse("10us"), parse("1.5ms")
    (500, 10000, 1500000)

    Raises:
        ValueError: the text is not a duration
    """
    return _core.parse_duration(text)


def human(ns: float) -> str:
    """Format nanoseconds with three digits.

    >>> human(12_345_678), human(500), human(0)
    ('12.3 ms', '500 ns', '0 ns')
    """
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= size * 0.9995:
            return f"{_three_digits(ns / size)} {unit}"
    return f"{_three_digits(ns)} ns"


def _three_digits(value: float) -> str:
    if value == 0 or abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
