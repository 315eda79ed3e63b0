# SPDX-License-Identifier: MIT
"""What the numbers of the extension mean, for the tool.

The numbers are those of libsb's headers. A program that is slowed uses the constants of
``_core`` themselves: an import of ``enum`` would lengthen its start.
"""

from __future__ import annotations

from enum import IntEnum

from speed_bump import _core


class SiteKind(IntEnum):
    """``_core.Site.kind``: what a table counts."""

    FUNCTION = _core.SB_SITE_FUNCTION
    PROGRESS = _core.SB_SITE_PROGRESS


class ControlKind(IntEnum):
    """``_core.ControlTarget.kind``: what is slowed."""

    FUNCTION = _core.SB_CONTROL_FUNCTION
    NATIVE = _core.SB_CONTROL_NATIVE


class LatencyKind(IntEnum):
    """``_core.Latency.kind``: what durations are of."""

    FUNCTIONS = _core.LATENCY_FUNCTIONS
    MARKS = _core.LATENCY_MARKS
    # Marks that a program sets, and that are not recorded.
    NOT_ASKED = _core.LATENCY_NOT_ASKED
