# SPDX-License-Identifier: MIT
"""The end of a rank's program, which waits until its steps are in the run's directory.

Where a container ends with the program, or a step of Slurm with its tasks, all that is
left in it is killed: the helper of the node too, which writes the steps
(experiment/cluster/node.py). The program leaves a request, and the helper removes it when
all is written.
"""

from __future__ import annotations

import atexit
import os
import time

from speed_bump import _core

# Set by ``speed-bump member``: where the members of a node meet.
ROOM = "SPEED_BUMP_ROOM"
# The beginning of the name of a file that a member leaves, and of a request; the number
# of the process follows.
MEMBER = "member-"
REQUEST = "ends-"
HELPER = "helper"
# A helper has the lowest priority. If it takes longer than this, it is not waited for.
LONGEST_S = 10.0
PAUSE_S = 0.02


def watch(room: str) -> None:
    """Wait at the end of this process, if it is a member or a rank by then."""
    atexit.register(_wait, room, os.getpid())


def _wait(room: str, pid: int) -> None:
    # A forked child ends by itself; its parent is the member.
    if os.getpid() != pid:
        return
    if not (_core.is_rank() or os.path.exists(f"{room}/{MEMBER}{pid}.json")):
        return
    request = f"{room}/{REQUEST}{pid}"
    end = time.monotonic() + LONGEST_S
    try:
        with open(f"{room}/{HELPER}", encoding="utf-8") as file:
            helper = int(file.read())
        os.close(os.open(request, os.O_WRONLY | os.O_CREAT, 0o600))
        while os.path.exists(request) and time.monotonic() < end:
            os.kill(helper, 0)
            time.sleep(PAUSE_S)
    except (OSError, ValueError):
        # The helper has ended, or is of another container.
        return
