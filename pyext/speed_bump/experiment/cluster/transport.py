# SPDX-License-Identifier: MIT
"""The scheduler and the workers of dask.distributed, as a run uses them.

A worker sends one kind of message, JSON and bytes, and gets JSON; no task is ever given
to a worker. Both sides require TLS with the run's certificate, and open no other port:
distributed's own pages of HTTP would be open to all.

Between scheduler and workers, distributed itself accepts pickles, so a process that has
the key of a run can run code in it. Only the run's user has the key (meeting.py).
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable
from typing import Any

import dask
from distributed import Scheduler, Security, Worker
from distributed.comm import get_address_host
from distributed.utils import get_ip

from speed_bump.experiment.cluster.meeting import Meeting

OPERATION = "speed_bump"
# A worker is to cost its node as little as can be; nothing here is profiled or watched.
SETTINGS = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.system-monitor.disk": False,
    "distributed.admin.system-monitor.host-cpu": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.diagnostics.nvml": False,
    "distributed.scheduler.worker-ttl": "60s",
    "distributed.comm.timeouts.connect": "5s",
    "distributed.comm.timeouts.tcp": "20s",
}


def prepare() -> None:
    """Settings of distributed, for this process."""
    dask.config.set(SETTINGS)
    # Where there is no default route, the address of the host's name is used.
    warnings.filterwarnings("ignore", "Couldn't detect a suitable IP address")
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    logging.getLogger("tornado").setLevel(logging.CRITICAL)


class LeaderScheduler(Scheduler):
    """A scheduler without pages, whose workers may send a message to ``receive``.

    Args:
        host: the address to listen at; None: all of this machine
    """

    def __init__(
        self, meeting: Meeting, host: str | None, receive: Callable[[str, bytes], str]
    ) -> None:
        super().__init__(
            host=host,
            port=0,
            protocol="tls",
            security=Security(**meeting.security()),
            dashboard=False,
        )
        self._receive = receive
        self.handlers[OPERATION] = self._on_message

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Nothing: its port would be open to all."""

    async def _on_message(self, message: str, data: bytes) -> str:
        try:
            return self._receive(message, bytes(data))
        except ValueError as error:
            return json.dumps({"refused": str(error)})


class NodeWorker(Worker):
    """The worker of a node, without pages."""

    def __init__(self, meeting: Meeting, name: str, where: str, start_s: float) -> None:
        leader = get_address_host(meeting.address)
        super().__init__(
            meeting.address,
            # Not all addresses of this machine.
            host=None if ":" in leader else get_ip(leader),
            nthreads=1,
            name=name,
            local_directory=where,
            memory_limit=0,
            heartbeat_interval="5s",
            death_timeout=start_s,
            security=Security(**meeting.security()),
            dashboard=False,
        )

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Nothing: its port would be open to all."""

    async def send(self, message: str, data: bytes) -> str:
        """Ask the leader; returns its answer."""
        return str(await getattr(self.scheduler, OPERATION)(message=message, data=data))
