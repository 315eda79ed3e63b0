# SPDX-License-Identifier: MIT
"""The process of a node that talks to the leader: ``... RUN ROOM HELPER``.

It sends the rows that the node's helper has written, and puts what the leader says into
the node's shared memory. The ranks and the helper never wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import sys
import time
from typing import TYPE_CHECKING

from speed_bump.experiment.cluster import epochs, meeting, rows
from speed_bump.experiment.cluster.minder import ALIVE
from speed_bump.experiment.cluster.plan import Setup

if TYPE_CHECKING:
    from speed_bump.experiment.cluster.transport import NodeWorker

# Between two messages; and how long an answer may take.
PAUSE_S = 0.5
ANSWER_S = 10.0
# Until another attempt to find the leader, and to get through to it.
SEARCH_S = 2.0
START_S = 10.0
# Of one message.
MAX_BYTES = 1 << 22


class NodeClient:
    """Sends the rows of one helper, and writes down what the leader says.

    Args:
        where: the directory of the node in shared memory
    """

    def __init__(self, where: str) -> None:
        self._where = where
        # How much the leader has; unknown until it has answered once.
        self._offset: int | None = None
        # Another message is due at once.
        self.is_behind = False
        # All is sent, and there will be no more.
        self.is_over = False
        # The leader has published its last epoch.
        self.is_final = False
        self._setup: Setup | None = None
        self._is_last = False

    def message(self) -> tuple[str, bytes]:
        """The next message.

        Raises:
            OSError, ValueError: the helper has not told yet where the node is
        """
        with open(os.path.join(self._where, epochs.STATE), encoding="ascii") as file:
            state = json.load(file)
        data = b""
        if self._offset is not None:
            data = rows.whole(state["rows"], self._offset, MAX_BYTES)
        told = {
            "file": os.path.basename(state["rows"]),
            "host": platform.node(),
            "setup": state["setup"],
            "step": state["step"],
            "epoch": state["epoch"],
            "offset": self._offset or 0,
            # With the last rows.
            "over": bool(state["over"]) and self._offset is not None and not data,
        }
        self._setup = Setup.of(state["setup"])
        self._is_last = told["over"]
        return json.dumps(told), data

    def take_last(self, run: str) -> None:
        """Write down the last epoch of a leader that has ended already, if it has one."""
        with (
            contextlib.suppress(OSError, ValueError, TypeError, KeyError),
            open(os.path.join(meeting.folder(run), meeting.EPOCHS), "rb") as file,
        ):
            self.message()
            found = json.load(file)["epochs"]
            if found and not found[-1]["functions"]:
                last = {"offset": 0, "epochs": found, "lease_s": None}
                self.take(json.dumps(last), 0.0)

    def take(self, answer: str, asked_s: float) -> None:
        """Write down what the leader says.

        Args:
            asked_s: when it was asked, by ``epochs.now_s()``: a lease begins then

        Raises:
            ValueError: it is not what a leader says
        """
        told = json.loads(answer)
        self.is_over = self._is_last
        if "refused" in told or self._setup is None:
            return
        found = epochs.from_json(told["epochs"], self._setup)
        lease_s = told["lease_s"]
        until = None if lease_s is None else asked_s + float(lease_s)
        self.is_final = until is None
        path = os.path.join(self._where, epochs.COURSE)
        epochs.write(path, {"epochs": epochs.as_json(found), "until": until})
        offset = int(told["offset"])
        self.is_behind = self._offset is None or offset > self._offset
        self._offset = offset


async def _talk(worker: NodeWorker, client: NodeClient) -> None:
    """Talk to the leader until all is sent, or it is gone."""
    from distributed.core import Status

    while worker.status == Status.running and not client.is_over:
        with contextlib.suppress(FileNotFoundError):
            asked_s = epochs.now_s()
            message, data = client.message()
            answer = await asyncio.wait_for(worker.send(message, data), ANSWER_S)
            client.take(answer, asked_s)
            if client.is_behind:
                continue
        await asyncio.sleep(PAUSE_S)


async def _be_alive(where: str, helper: int) -> None:
    """Show that this process runs, until its helper does not."""
    while os.getppid() == helper and os.path.isdir(where):
        with contextlib.suppress(OSError):
            os.utime(os.path.join(where, ALIVE))
        await asyncio.sleep(1)


class _Log:
    """Why the leader was not reached: ``DIR/live/NODE.log``, each reason once."""

    def __init__(self, run: str) -> None:
        self._path = os.path.join(meeting.folder(run), f"{platform.node()}.log")
        self._known: set[str] = set()

    def write(self, line: str) -> None:
        if line not in self._known:
            self._known.add(line)
            with (
                contextlib.suppress(OSError),
                open(self._path, "a", encoding="utf-8", errors="replace") as file,
            ):
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")


async def _serve(run: str, where: str) -> None:
    from speed_bump.experiment.cluster import transport

    transport.prepare()
    client, log = NodeClient(where), _Log(run)
    name = f"{platform.node()}-{os.getpid()}"
    while not client.is_over and not client.is_final:
        found = None
        try:
            found = meeting.find(run)
            if found is None:
                client.take_last(run)
            else:
                # Another leader may have less.
                client = NodeClient(where)
                async with transport.NodeWorker(found, name, where, START_S) as worker:
                    found = None
                    await _talk(worker, client)
        except meeting.MeetingError as error:
            log.write(str(error))
        # TimeoutError of asyncio in Python 3.10 is no OSError.
        except (OSError, ValueError, RuntimeError, asyncio.TimeoutError) as error:
            # Those after the leader was reached are its end.
            if found is not None:
                log.write(f"{found.address}: {error.__cause__ or error}")
        await asyncio.sleep(0 if client.is_over else SEARCH_S)


async def _run(run: str, where: str, helper: int) -> None:
    serving = asyncio.ensure_future(_serve(run, where))
    alive = asyncio.ensure_future(_be_alive(where, helper))
    await asyncio.wait({serving, alive}, return_when=asyncio.FIRST_COMPLETED)
    # Closing in order would take longer than the job may wait.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
