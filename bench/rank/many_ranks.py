# SPDX-License-Identifier: MIT
"""The report of a job of thousands of ranks: how long it takes, and how much memory.

    bench/rank/many_ranks.py --ranks 4096 --steps 1000 --functions 16

This writes the files that the helpers of nodes with 8 ranks each would have written, runs
``report`` on them, and prints bytes per row, CPU seconds and the maximal memory.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np
from speed_bump.experiment.cluster import plan, rows
from speed_bump.experiment.job_ranks import Rank

SEED = 7
ON_A_NODE = 8
LATE = 5
STAGES, STAGE = 8, 3


def write(directory: str, ranks: int, steps: int, functions: int) -> None:
    """Two functions are in the step, the others hidden; one rank is late.

    In one of eight stages, a third function is in the own work, within the slack.
    """
    draw = np.random.default_rng(1)
    names = tuple(f"model.layer:Layer.part_{k}" for k in range(functions))
    on = np.stack([plan.is_on(SEED, name, 0, steps) for name in names], axis=1)
    for rank in range(ranks):
        delivered = on * draw.normal(2e6, 2e3, on.shape)
        serial = delivered[:, :2].sum(axis=1)
        own = draw.normal(20e6, 0.2e6, steps) + serial + (rank == LATE) * 5e6
        if rank * STAGES // ranks == STAGE and functions > 2:
            own += delivered[:, 2]
        step = 26e6 + serial
        node = rank // ON_A_NODE
        part = rows.Rows(
            Rank(rank, ranks, rank % ON_A_NODE, node, 0, "srun", rank + 1, f"n{node}"),
            {"seed": SEED, "key": "k", "version": "0"},
            names,
            (1.0,) * functions,
            np.arange(steps),
            step,
            np.maximum(step - own, 0),
            delivered,
            np.ones(on.shape),
        )
        with open(os.path.join(directory, f"n{node}.rows"), "ab") as file:
            rows.write(file, part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--functions", type=int, default=16)
    parser.add_argument("--layout", help="for report, such as pp=8,dp=64,tp=8")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        write(directory, args.ranks, args.steps, args.functions)
        size = sum(entry.stat().st_size for entry in os.scandir(directory))
        begin = time.monotonic()
        command = [sys.executable, "-m", "speed_bump", "report", directory]
        command += ["--layout", args.layout] if args.layout else []
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        took = time.monotonic() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(done.stdout)
    print(f"{size / args.ranks / args.steps:.1f} bytes a row")
    print(f"report: {took:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of CPU,", end=" ")
    print(f"{used.ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
