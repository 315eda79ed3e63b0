# SPDX-License-Identifier: MIT
"""The command ``member``, which goes in front of the program on every rank of a job."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from speed_bump.command.options import (
    PATTERNS,
    add_progress,
    add_targets,
    delay,
    gather_checked,
    say,
    with_command,
)
from speed_bump.config import ConfigError

if TYPE_CHECKING:
    from speed_bump.experiment.job_ranks import Rank

MEMBER_EPILOG = (
    PATTERNS
    + """
The same words in front of the program on every rank, whatever starts the ranks; DIR is
one directory for all of them. When the job is over: speed-bump report DIR.

examples:
  srun -N 8 speed-bump member --run ~/runs/1 -t '__main__:*' -- python train.py
  mpirun -n 16 speed-bump member --run ~/runs/1 -t '__main__:*' -- python train.py
  torchrun --nproc-per-node 8 --no-python speed-bump member --dir ~/runs/1 \\
      -t '__main__:*' --progress __main__:step -- python train.py
  RunConfig(worker_runtime_env={"py_executable":          # of ray.train, in the driver
      "speed-bump member --run /runs/1 -t '__main__:*' -- python"})
  speed-bump live --run ~/runs/1    # with --live of all members: ends what is decided

exit status: that of CMD; 1 if the set-up is wrong; 2 for wrong usage.
"""
)


def add(commands: Any) -> None:
    parser = with_command(
        commands,
        "member",
        help="measure a job of many ranks: goes in front of the program on each rank",
        description="Run CMD as one rank of a job whose functions are slowed in the same "
        "steps on all ranks. What each rank does is written to DIR.",
        epilog=MEMBER_EPILOG,
    )
    what = parser.add_argument_group("what to measure")
    add_targets(what)
    add_progress(what)
    how = parser.add_argument_group("measuring")
    # torchrun accepts --run, anywhere on its command line, as short for --run-path.
    how.add_argument(
        "--run",
        "--dir",
        dest="run",
        required=True,
        metavar="DIR",
        help="directory of the run, the same for all ranks (with torchrun: --dir)",
    )
    how.add_argument(
        "--seed", type=int, default=1, help="seed, the same for all ranks (1)"
    )
    how.add_argument(
        "-d", "--delay", metavar="DELAY", help="delay of a call (default: chosen)"
    )
    how.add_argument(
        "--dose",
        type=float,
        default=0.1,
        metavar="X",
        help="delay of a function in a step, as a fraction of the step (0.1)",
    )
    how.add_argument(
        "--confirm",
        action="append",
        default=[],
        metavar="RANKS",
        help="delay one function at a time: on these ranks alone (such as 3 or 0,4-7), "
        "on all others, on all; up to 5 times",
    )
    how.add_argument(
        "--live",
        action="store_true",
        help="let a leader ('speed-bump live') end the delays of what is decided",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(perform=member)


def member(options: argparse.Namespace) -> int:
    """Join the run, and execute the program."""
    from speed_bump import __version__
    from speed_bump.experiment.cluster import meeting, node
    from speed_bump.experiment.cluster.plan import Setup
    from speed_bump.experiment.program import progress
    from speed_bump.experiment.program.runner import Slowed, line

    targets, excludes = gather_checked(options)
    try:
        unit = progress.read(options.progress, options.progress_regex)
        delay_ns = delay(options.delay) or 0
        if not 0.001 <= options.dose <= 1:
            raise ConfigError("--dose: not between 0.001 and 1")
        if any(target.native for target in [*targets, *unit.targets]):
            raise ConfigError("native functions can't be measured by rank yet")
        if unit.regex:
            raise ConfigError(
                "--progress-regex: lines of output can't be told apart by rank"
            )
        _check_groups(options.confirm)
        if options.live and options.confirm:
            raise ConfigError("--live and --confirm are for different runs")
        points = unit.points
        for function in unit.functions:
            if set("*?[") & set(function.pattern):
                raise ConfigError("--progress: name one function, without globs")
            points = (*points, f"{function.left}:{function.right}")
    except ConfigError as error:
        options.parser.error(str(error))
    setup = Setup(
        options.seed,
        tuple(target.pattern for target in targets),
        points or ("default",),
        delay_ns,
        options.dose,
        __version__,
        tuple(options.confirm),
        options.live,
    )
    lines = [line(Slowed(t, 0)) for t in [*targets, *unit.functions]]
    lines += [str(target) for target in excludes]
    rank = _rank()
    who = _who(rank)
    run = os.path.abspath(options.run)
    try:
        if options.live:
            meeting.check_installed()
        told, is_first = node.join(run, setup, lines, rank)
    except (node.MemberError, meeting.MeetingError) as error:
        say(f"{who}: {error}")
        return 1
    say(f"{who}; the run is in {options.run}")
    # Once for each node.
    doubt = meeting.doubt(run) if options.live and is_first else ""
    if doubt:
        say(f"{who}: {doubt}")
    return _become(options.command, told, who)


def _check_groups(texts: list[str]) -> None:
    from speed_bump.experiment.cluster.plan import MAX_GROUPS, ranks_of

    if len(texts) > MAX_GROUPS:
        raise ConfigError(f"--confirm: more than {MAX_GROUPS} groups")
    known: set[int] = set()
    for text in texts:
        try:
            ranks = ranks_of(text)
        except ValueError:
            raise ConfigError(
                f"--confirm: '{text}' is not a list of ranks such as 3 or 0,4-7"
            ) from None
        if ranks & known:
            raise ConfigError("--confirm: a rank is in two groups")
        known |= ranks


def _rank() -> Rank:
    """The rank of this process, as far as its launcher says."""
    from speed_bump import _core
    from speed_bump.experiment.job_ranks import who

    (rank,) = who([_core.launched()])
    role = os.environ.get("ROLE_NAME", "") if rank.launcher == "torchrun" else ""
    return replace(rank, role=role)


def _who(rank: Rank) -> str:
    """Such as "rank 3 of 64, node n7, by srun"."""
    host = platform.node()
    if rank.rank < 0:
        return f"process {rank.pid}, node {host}, of a rank that is not known yet"
    of = f" of {rank.world}" if rank.world > 0 else ""
    return f"rank {rank.rank}{of}, node {host}, by {rank.launcher}"


def _become(command: list[str], told: dict[str, str], who: str) -> int:
    from speed_bump import waits

    environ = {k: v for k, v in os.environ.items() if not k.startswith("SPEED_BUMP_")}
    environ.update(told)
    environ.update(waits.preloaded(environ))
    if shutil.which(command[0]) is None:
        say(f"{who}: {command[0]}: no such program")
        return 127
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        say(f"{who}: {command[0]}: {error.strerror}")
        return 126
