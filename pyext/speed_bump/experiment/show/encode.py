# SPDX-License-Identifier: MIT
"""What all JSON has in common. ``docs/reference/json`` has the schemas."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from speed_bump.experiment.fit.interval import Interval


def finite(value: float | None) -> float | None:
    """JSON has no infinity and no NaN."""
    return float(value) if value is not None and math.isfinite(value) else None


def interval_json(interval: Interval | None) -> dict[str, float | None] | None:
    """An interval; None where there is none."""
    if interval is None:
        return None
    return {key: finite(value) for key, value in asdict(interval).items()}


def dumps(value: Mapping[str, Any], indent: int | None = 2) -> str:
    """One object as text, with a line feed at its end.

    A number that is not finite is null, wherever it is.
    """
    return json.dumps(_finite_inside(value), indent=indent, allow_nan=False) + "\n"


def _finite_inside(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite_inside(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite_inside(one) for one in value]
    if isinstance(value, float):
        return finite(value)
    return value
