# SPDX-License-Identifier: MIT
"""The worker of a node, as the helper sees it: a process that is started and replaced.

The helper and the worker meet in files in the node's shared memory alone (epochs.py), so
that a worker that hangs or dies holds up nothing.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import asdict

from speed_bump.experiment.cluster import epochs
from speed_bump.experiment.cluster.plan import Setup

WORKER = "speed_bump.experiment.cluster.worker"
# How often the worker is told where the node is.
STATE_S = 0.5
# The worker touches this file; if that is longer ago than HUNG_S, it is replaced. On a
# busy node, starting takes much longer.
ALIVE = "alive"
HUNG_S = 15.0
START_S = 90.0
AGAIN_S = 3.0
# The worker may take this long to send the last rows.
LEAVE_S = 2.0


class Minder:
    """Starts the worker of a node, and tells it where the node is.

    Args:
        run: the directory of the run
        where: the directory of the node in shared memory
        rows: the file that the helper writes
    """

    def __init__(self, run: str, where: str, setup: Setup, rows: str) -> None:
        self._command = [sys.executable, "-m", WORKER, run, where, str(os.getpid())]
        self._where = where
        self._setup = setup
        self._rows = rows
        self._process: subprocess.Popen[bytes] | None = None
        self._next_start_s = 0.0
        self._next_state_s = 0.0
        # The last one that the worker was told.
        self._epoch = 0

    def mind(self, step: int, epoch: int, is_final: bool) -> None:
        """One round; never waits.

        Args:
            step, epoch: the newest of the node
            is_final: no other epoch will come, so no new worker is needed
        """
        now = time.monotonic()
        if self._process is not None and self._process.poll() is None:
            if self._silent_s() > HUNG_S:
                self._process.kill()
        elif now >= self._next_start_s and not is_final:
            self._next_start_s = now + AGAIN_S
            self._start()
        if now >= self._next_state_s or epoch != self._epoch:
            self._next_state_s = now + STATE_S
            self._epoch = epoch
            self._tell(step, epoch, is_over=False)

    def leave(self, step: int, epoch: int) -> None:
        """The node is done: let the worker send the last rows."""
        self._tell(step, epoch, is_over=True)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LEAVE_S)
            self._process.kill()

    def _start(self) -> None:
        path = os.path.join(self._where, ALIVE)
        with contextlib.suppress(OSError):
            with open(path, "wb"):
                pass
            first = time.time() + START_S - HUNG_S
            os.utime(path, (first, first))
        environ = {k: v for k, v in os.environ.items() if not k.startswith("SPEED_BUMP_")}
        nothing = subprocess.DEVNULL
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                self._command,
                env=environ,
                # Modules in the program's directory are not for the worker.
                cwd="/",
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
            )

    def _silent_s(self) -> float:
        try:
            return time.time() - os.stat(os.path.join(self._where, ALIVE)).st_mtime
        except OSError:
            return 0.0

    def _tell(self, step: int, epoch: int, is_over: bool) -> None:
        with contextlib.suppress(OSError):
            epochs.write(
                os.path.join(self._where, epochs.STATE),
                {
                    "rows": self._rows,
                    "setup": asdict(self._setup),
                    "step": step,
                    "epoch": epoch,
                    "over": is_over,
                },
            )
