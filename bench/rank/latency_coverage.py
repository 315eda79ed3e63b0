# SPDX-License-Identifier: MIT
"""How often the intervals of latency effects contain the truth, for simulated servers.

``latency_coverage.py [--seeds N] [--cycles N] [--only NAME,...]`` prints a table with a
line for each server, function and statistic: what the delay adds according to a long
simulation with and without it, the mean of the estimates, their deviation over the seeds,
the mean half of the 95% interval, the number of seeds in which it contains the truth, and
the number of seeds that gave a result. The verdicts are printed below. ``--truth`` prints
the true values that the tests use.

The servers are in ``pyext/tests/queues.py``. A cycle is a block of 200 slots of 100 ms
and a rest of 30.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections import Counter

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "pyext" / "tests"))

import queues
from speed_bump.experiment.fit.latency import STATISTICS, request_latency

# Requests of a long simulation: for one worker computed in one step, for others event by
# event.
AT_ONCE, ONE_BY_ONE = 4_000_000, 400_000


def truth_of(server: queues.Server) -> dict[str, dict[str, float]]:
    """The effect of each delay, ns."""
    simple = server.rate and server.workers == 1 and server.batch == 1
    return queues.truth(server, AT_ONCE if simple else ONE_BY_ONE)


def slot_units(server: queues.Server) -> int:
    """A tenth of a second."""
    return max(round(0.1 * server.rate), 30) if server.rate else 60


def print_truth(names: list[str]) -> None:
    """As in test_quantile.py, in us."""
    for name in names:
        print(f'    "{name}": {{')
        for function, added in truth_of(queues.SERVERS[name]).items():
            values = ", ".join(f"{added[key] / 1000:.0f}" for key in STATISTICS)
            print(f'        "{function}": ({values}),')
        print("    },", flush=True)


def print_coverage(name: str, seeds: int, cycles: int) -> None:
    """The lines of a server."""
    server = queues.SERVERS[name]
    true = truth_of(server)
    got: dict[tuple[str, str], list[tuple[float, float, bool]]] = {}
    verdicts: Counter[tuple[str, str]] = Counter()
    for seed in range(seeds):
        record, events = queues.experiment(server, slot_units(server), seed, cycles)
        found = request_latency(record, events)
        if found.load:
            verdicts["load", found.load.kind] += 1
        for f in found.findings:
            verdicts[f.name, f.verdict] += 1
            for key, added in f.added_ns.items():
                held = added.low <= true[f.name][key] <= added.high
                got.setdefault((f.name, key), []).append((added.value, added.half, held))
    for (function, key), rows in got.items():
        value, half, held = np.array(rows, float).T
        print(
            f"{name:16} {function:8} {key:5} {true[function][key] / 1e3:8.0f}"
            f"{value.mean() / 1e3:8.0f} {value.std() / 1e3:8.0f} {half.mean() / 1e3:8.0f}"
            f" {int(held.sum()):4} of {len(held)}"
        )
    print(
        ", ".join(f"{who}: {what} {n}" for (who, what), n in sorted(verdicts.items())),
        flush=True,
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--only", default=",".join(queues.SERVERS))
    parser.add_argument("--truth", action="store_true")
    options = parser.parse_args()
    names = options.only.split(",")
    if options.truth:
        print_truth(names)
        return
    print(
        f"{'us':16} {'function':8} {'':5} {'truth':>8}{'got':>8} {'sd':>8} {'half':>8}"
        " held"
    )
    for name in names:
        print_coverage(name, options.seeds, options.cycles)


if __name__ == "__main__":
    main()
