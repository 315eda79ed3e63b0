# SPDX-License-Identifier: MIT
"""A numpy script that ends by itself after some seconds: k-means of random points.

It has no call of progress(): a unit of work is an iteration (``--progress
__main__:iterate``), or a whole run. Everything is serial: each function matters by its
time. Needs numpy.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np


def make_points(n: int, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    middles = draw.normal(0, 10, (12, 8))
    return middles[draw.integers(0, 12, n)] + draw.normal(0, 1, (n, 8))


def measure(points: np.ndarray, middles: np.ndarray) -> np.ndarray:
    """The squared distance of each point from each centre."""
    square = (points**2).sum(1)[:, None] + (middles**2).sum(1)[None, :]
    return square - 2 * points @ middles.T


def assign(distances: np.ndarray) -> np.ndarray:
    return distances.argmin(1)


def move(points: np.ndarray, nearest: np.ndarray, middles: np.ndarray) -> np.ndarray:
    """Move each centre to the mean of the points that are nearest to it."""
    found = middles.copy()
    for k in range(len(middles)):
        mine = points[nearest == k]
        if len(mine):
            found[k] = mine.mean(0)
    return found


def iterate(points: np.ndarray, middles: np.ndarray) -> np.ndarray:
    nearest = assign(measure(points, middles))
    return move(points, nearest, middles)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--iterations", type=int, default=0, help="not seconds")
    args = parser.parse_args()
    points = make_points(args.points, 1)
    middles, done, begin = points[:12], 0, time.perf_counter()
    while True:
        middles = iterate(points, middles)
        done += 1
        took = time.perf_counter() - begin
        if done == args.iterations or (not args.iterations and took > args.seconds):
            break
    print(json.dumps({"units": done, "seconds": took, "sum": float(middles.sum())}))


if __name__ == "__main__":
    main()
