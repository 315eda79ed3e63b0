# SPDX-License-Identifier: MIT
"""Who is told how an experiment goes on."""

from __future__ import annotations

from typing import Protocol

from speed_bump.experiment.record import Record


class Watcher(Protocol):
    """Receives the progress of the experiment."""

    def now(self, text: str) -> None:
        """The current activity."""
        ...

    def event(self, text: str) -> None:
        """An event for the user."""
        ...

    def known(self, record: Record, left_s: float) -> None:
        """The results so far."""
        ...
