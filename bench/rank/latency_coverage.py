# SPDX-License-Identifier: MIT
"""How often the intervals of latency effects hold the truth, of simulated servers.

``latency_coverage.py [--seeds N] [--cycles N] [--only NAME,...]``: a table with a line
for each server, function and statistic: what the delay adds by a long simulation with and
without it, the mean of the estimates, their deviation over the seeds, the mean half of
the 95% interval, in how many seeds it holds the truth, and how many gave a number. Below
it the verdicts. ``--truth`` prints what the tests have of the truth.

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
from speed_bump.experiment.fit.latency import STATISTICS, latency

# Requests of a long simulation: of one worker all at once, of others one by one.
AT_ONCE, ONE_BY_ONE = 4_000_000, 400_000


def truth_of(server: queues.Server) -> dict[str, dict[str, float]]:
    """What each delay adds, ns."""
    simple = server.rate and server.workers == 1 and server.batch == 1
    return queues.truth(server, AT_ONCE if simple else ONE_BY_ONE)


def slot_units(server: queues.Server) -> int:
    """A tenth of a second."""
    return max(round(0.1 * server.rate), 30) if server.rate else 60


def print_truth(names: list[str]) -> None:
    """As test_quantile.py has it, in us."""
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
        found = latency(record, events)
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
    """Print what was asked for."""
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
