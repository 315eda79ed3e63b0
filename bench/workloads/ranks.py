# SPDX-License-Identifier: MIT
"""A job of several ranks that work in step, of which the answer is known.

Each step of a rank loads, computes, and waits for all others. Work is sleeping, so that
ranks that share CPUs do not hinder each other. A unit of work is a step (``--progress
__main__:step``).

    balanced    all ranks do the same: load and forward matter, 1 each
    straggler   rank 1 takes 20 ms more: load and forward matter there alone
    prefetch    load runs ahead in a thread of its own: hidden, forward matters
    jitter      forward takes 0 to 12 ms more, drawn for each rank and step: both matter,
                1 each, and no rank is the last for long

With torchrun the ranks meet in an all_reduce of gloo, with mpirun and srun in one of MPI
(mpi4py), or of gloo with --by torch (MASTER_ADDR and MASTER_PORT are set then); with
--spawn N they are processes of multiprocessing that meet at a barrier. With --by ray this
is the driver of Ray Train, which starts a rank on each of two nodes; they meet in gloo.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
KINDS = ("balanced", "straggler", "prefetch", "jitter")
MORE_S = 0.020
JITTER_S = 0.012
# Ray starts processes beside the ranks, which import torch for some seconds.
SETTLING_S = 4


def load(seconds: float) -> None:
    time.sleep(seconds)


def forward(seconds: float) -> None:
    time.sleep(seconds)


class Loader:
    """Loads two steps ahead."""

    def __init__(self, seconds: float) -> None:
        self._ready: queue.Queue[None] = queue.Queue(2)
        self._seconds = seconds
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            load(self._seconds)
            self._ready.put(None)

    def take(self) -> None:
        self._ready.get()


def step(more_s: float, loader: Loader | None, meet: Callable[[], None]) -> None:
    if loader:
        loader.take()
    else:
        load(0.006)
    forward(0.012 + more_s)
    meet()


def work(
    kind: str, rank: int, steps: int, meet: Callable[[], None], die_at: int = -1
) -> None:
    loader = Loader(0.002) if kind == "prefetch" else None
    draw = random.Random(rank)
    more_s = MORE_S * (kind == "straggler" and rank == 1)
    for number in range(steps):
        if number == die_at and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "jitter":
            more_s = draw.uniform(0, JITTER_S)
        step(more_s, loader, meet)


def by_torch(kind: str, steps: int, die_at: int) -> None:
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    else:
        torch.distributed.init_process_group(
            "gloo",
            init_method="tcp://{MASTER_ADDR}:{MASTER_PORT}".format_map(os.environ),
            rank=int(os.environ["SLURM_PROCID"]),
            world_size=int(os.environ["SLURM_NTASKS"]),
        )
    # Only the first attempt of a job that is started again.
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        die_at = -1
    work_by_gloo(kind, steps, die_at)
    torch.distributed.destroy_process_group()


def work_by_gloo(kind: str, steps: int, die_at: int) -> None:
    import torch.distributed

    gradient = torch.ones(8)

    def meet() -> None:
        torch.distributed.all_reduce(gradient)

    work(kind, torch.distributed.get_rank(), steps, meet, die_at)


def rank_of_ray(config: dict[str, Any]) -> None:
    """A worker of Ray Train, which has made the group."""
    import ray
    import torch

    torch.set_num_threads(1)
    if config["task"]:
        ray.get(ray.remote(num_cpus=0)(lambda: time.sleep(0.1)).remote())
    die_at = config["die_at"]
    if die_at >= 0 and torch.distributed.get_rank() == 1:
        # Ray does not tell which attempt this is.
        try:
            os.mkdir(config["died"])
        except FileExistsError:
            die_at = -1
    time.sleep(SETTLING_S)
    work_by_gloo(config["kind"], config["steps"], die_at)


def by_ray(args: argparse.Namespace) -> None:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init("auto")
    died = os.path.join(os.path.abspath(args.storage), "died")
    config = {name: getattr(args, name) for name in ("kind", "steps", "die_at", "task")}
    TorchTrainer(
        rank_of_ray,
        train_loop_config={**config, "died": died},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
        run_config=RunConfig(
            storage_path=os.path.abspath(args.storage),
            failure_config=FailureConfig(max_failures=int(args.die_at >= 0)),
            worker_runtime_env={"py_executable": args.python},
        ),
    ).fit()


def by_mpi(kind: str, steps: int) -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    work(kind, world.Get_rank(), steps, lambda: world.allreduce(1.0))


def by_spawn(kind: str, steps: int, count: int) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(count)
    ranks = [
        context.Process(target=work, args=(kind, rank, steps, barrier.wait))
        for rank in range(count)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--spawn", type=int, default=0, metavar="N")
    parser.add_argument(
        "--by", choices=("torch", "ray"), help="torch: also without torchrun"
    )
    parser.add_argument(
        "--die-at",
        type=int,
        default=-1,
        metavar="STEP",
        help="rank 1, once (torchrun, Ray)",
    )
    of_ray = parser.add_argument_group("with --by ray")
    of_ray.add_argument("--python", default="python", help="of the workers; with words")
    of_ray.add_argument("--storage", default=".", help="directory that nodes share")
    of_ray.add_argument("--task", action="store_true", help="each rank starts a task")
    args = parser.parse_args()
    if args.by == "ray":
        by_ray(args)
    elif args.spawn:
        by_spawn(args.kind, args.steps, args.spawn)
    elif args.by:
        by_torch(args.kind, args.steps, args.die_at)
    elif any(name in os.environ for name in MPI_RANKS):
        by_mpi(args.kind, args.steps)
    elif "RANK" in os.environ:
        by_torch(args.kind, args.steps, args.die_at)
    else:
        by_spawn(args.kind, args.steps, 2)


if __name__ == "__main__":
    main()
