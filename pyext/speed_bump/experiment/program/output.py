# SPDX-License-Identifier: MIT
"""Watching the output of a program for lines that report a unit of work."""

from __future__ import annotations

import os
import re
import sys
import termios
import threading
import tty
from collections.abc import Callable

# The end of output that is not shown is kept, for a message if the program fails.
KEPT = 1 << 16


class Watched:
    """A terminal for the program to write to, so that it writes each line at once.

    Args:
        pattern: lines that contain it count
        count: called with the number of lines, from another thread
        show: pass the output on
    """

    def __init__(
        self, pattern: re.Pattern[bytes], count: Callable[[int], None], show: bool
    ) -> None:
        """Make the terminal."""
        self._pattern = pattern
        self._count = count
        self._show = show
        self._kept = b""
        self._master, self.stdout = os.openpty()
        tty.setraw(self._master, termios.TCSANOW)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._is_open = True

    def start(self) -> None:
        """Begin to read; the program has the other end now."""
        os.close(self.stdout)
        self.stdout = -1
        self._thread.start()

    def finish(self) -> None:
        """After the end of the program: read the rest."""
        # Other processes may still have its terminal, and continue to write.
        self._thread.join(1.0)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            if self.stdout >= 0:
                os.close(self.stdout)
            if not self._thread.is_alive():
                os.close(self._master)

    def output(self) -> bytes:
        """The end of the output, if it was not shown."""
        return b"" if self._show else self._kept

    def _read(self) -> None:
        rest = b""
        while True:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:  # no process has the other end any more
                data = b""
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            found = sum(1 for line in lines if self._pattern.search(line))
            if found:
                self._count(found)
            if self._show:
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            else:
                self._kept = (self._kept + data)[-KEPT:]
        if rest and self._pattern.search(rest):
            self._count(1)
