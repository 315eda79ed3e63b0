# SPDX-License-Identifier: MIT
"""The command ``live``: the leader of a run of ``member --live``."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from speed_bump.command import options as reading
from speed_bump.command.options import INTERRUPTED, say, write
from speed_bump.config import ConfigError
from speed_bump.experiment.show.encode import dumps

if TYPE_CHECKING:
    from speed_bump.experiment.cluster.leader import Leader
    from speed_bump.experiment.cluster.rows import Rows
    from speed_bump.experiment.show.leading import Board

EPILOG = """\
Start it before the job or while it runs, on any machine that shares DIR and that the
nodes can connect to. All ranks need 'member --live'. When the leader ends or is lost, so
do the delays; the rows of all steps are in DIR, for 'speed-bump report DIR'.

examples:
  speed-bump live --run ~/runs/1 &
  srun -N 8 speed-bump member --live --run ~/runs/1 -t '__main__:*' -- python train.py

Needs dask.distributed: pip install 'speed-bump[cluster]'.

exit status: 0 when all is decided or the run is over; 1 if there are no results; 2 for
wrong usage; 130 if interrupted.
"""
ROUND_S = 0.2
DECIDED, OVER, STOPPED = "decided", "over", "interrupted"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "live",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="speed-bump live --run DIR [options]",
        help="lead a job of many ranks: end the delays of what is decided",
        description="Gather what the members of a run measure, while it runs; stop "
        "delaying functions whose effect is known, and end all delays when all are.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "--run",
        "--dir",
        dest="run",
        required=True,
        metavar="DIR",
        help="directory of the run, the same as of its members",
    )
    parser.add_argument(
        "--precision",
        type=float,
        default=0.05,
        metavar="X",
        help="half-width of an interval that is narrow enough (0.05)",
    )
    parser.add_argument(
        "--lease",
        default="30s",
        metavar="TIME",
        help="end the delays when the nodes have not heard from the leader for this "
        "time (30s)",
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        help="listen at this address of this machine (all; the nodes are told the one "
        "of its default route)",
    )
    parser.add_argument("--json", metavar="FILE", help="write JSON; - is stdout")
    parser.set_defaults(parser=parser, perform=live)


def live(options: argparse.Namespace) -> int:
    """Lead until all is decided, or the run is over."""
    from speed_bump.experiment.cluster import meeting

    try:
        if not 0.001 <= options.precision <= 1:
            raise ConfigError("--precision: not between 0.001 and 1")
        lease_s = reading.budget(options.lease, "--lease")
    except ConfigError as error:
        options.parser.error(str(error))
    try:
        meeting.check_installed()
        from speed_bump.experiment.cluster.leader import Leader
        from speed_bump.experiment.show.leading import Board

        run = os.path.abspath(options.run)
        os.makedirs(run, exist_ok=True)
        leader = Leader(run, options.precision, lease_s)
        if leader.was_ended():
            say(f"the delays of {run} were ended by a leader: a new run needs a new DIR")
            return 1
        board = Board()
        try:
            ended = asyncio.run(_lead(leader, board, options.host))
        finally:
            board.close()
    except meeting.MeetingError as error:
        say(str(error))
        return 1
    return _tell(options, leader, ended)


async def _lead(leader: Leader, board: Board, host: str | None) -> str:
    """Returns why it ended."""
    from speed_bump.experiment.cluster import meeting, transport

    transport.prepare()
    found = meeting.make_key(leader.run)
    try:
        try:
            scheduler = transport.LeaderScheduler(found, host, leader.receive)
            await scheduler
        except (OSError, ValueError, RuntimeError) as error:
            why = error.__cause__ or error
            raise meeting.MeetingError(f"can't listen at {host}: {why}") from None
        try:
            address = scheduler.address
            board.event(f"leads {leader.run} at {address}")
            if meeting.is_local(address):
                board.event(
                    f"other machines can't connect to {address}: name an address of "
                    "this one by --host"
                )
            meeting.announce(leader.run, address)
            return await _until_over(leader, board)
        finally:
            await scheduler.close()
    finally:
        meeting.forget(leader.run)


async def _until_over(leader: Leader, board: Board) -> str:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    final_s: float | None = None
    idle_s: float | None = None
    looking: asyncio.Task[None] | None = None
    while True:
        if looking is None or looking.done():
            if looking is not None:
                looking.result()
            looking = asyncio.create_task(_look(leader, leader.due()))
        board.show(leader)
        now = time.monotonic()
        if stop.is_set() and not leader.is_final:
            # Nothing can be told where no node has come.
            leader.publish(())
        if leader.is_final or stop.is_set():
            final_s = final_s or now
            if leader.is_told or now > final_s + leader.lease_s:
                return STOPPED if stop.is_set() else DECIDED
        idle_s = (idle_s or now) if leader.is_idle(now) else None
        # A job that is started again comes back.
        if idle_s and now > idle_s + leader.lease_s / 2:
            await looking
            await _look(leader, leader.due(is_last=True))
            return OVER
        await asyncio.sleep(ROUND_S)


async def _look(leader: Leader, parts: Sequence[Rows] | None) -> None:
    from speed_bump.experiment.cluster import join

    if parts is not None:
        begin = time.monotonic()
        # Workers are answered meanwhile.
        job = await asyncio.to_thread(join.measured, parts)
        leader.look(job, time.monotonic() - begin)


def _tell(options: argparse.Namespace, leader: Leader, ended: str) -> int:
    from speed_bump.experiment.show import leading

    status = INTERRUPTED if ended == STOPPED else 0
    if leader.job is None:
        say(f"no rank has finished a step in {leader.run}")
        return status or 1
    if options.json:
        write(options.json, dumps(leading.as_json(leader, ended)))
    if options.json != "-":
        write("-", f"{leading.as_text(leader, ended)}\n")
    return status
