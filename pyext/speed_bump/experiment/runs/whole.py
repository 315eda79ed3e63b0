# SPDX-License-Identifier: MIT
"""Where the time of a whole run goes, of a program that is too short for slots."""

from __future__ import annotations

from collections.abc import Sequence

from speed_bump.config import Target
from speed_bump.experiment.account import Looks, together
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner
from speed_bump.experiment.program.samples import Samples, added, self_times
from speed_bump.experiment.program.workload import Workload
from speed_bump.experiment.record import Record
from speed_bump.experiment.watcher import Watcher

# The number of samples of a whole run, of several runs if necessary.
WHOLE_LOOKS, MAX_WHOLE_RUNS = 500, 5
# The duration of one round of samples.
LOOK_NS = 250_000_000


def look_at_a_whole_run(
    runner: Runner,
    targets: Sequence[Target],
    record: Record,
    watcher: Watcher,
    has_native: bool,
) -> bool:
    """Sample one more run, undelayed, from start to end, into the record.

    A very short run is repeated.

    Args:
        has_native: C functions are among the targets by the names that they give

    Returns:
        False if it was interrupted

    Raises:
        LaunchError, NativeError: from starting the program
    """
    seen, whole = Samples(), list[Looks]()
    interrupted = False
    while seen.ticks < WHOLE_LOOKS and len(whole) < MAX_WHOLE_RUNS and not interrupted:
        with Workload(runner, targets, Progress(), calls=has_native) as program:
            while program.is_running():
                watcher.now("looking at a whole run, nothing is delayed")
                seen = added(seen, program.sampler.sample(LOOK_NS, lambda: None))
            looks = program.sampler.looks()
            interrupted = program.wait().interrupted
            looks.mark((), program.pid, program.exited)
        whole.append(looks)
    record.looks = together(whole)
    record.self_times = self_times(seen)
    return not interrupted
