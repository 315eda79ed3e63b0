# SPDX-License-Identifier: MIT
"""How often the experiment by slots is right, by simulation.

``model.py [--runs N] [--seconds S] [--jobs J] [TABLE]...`` simulates programs with known
answers (pyext/tests/model.py) slot by slot as the stages decide, with several kinds of
noise; "recorded" is the noise of a PyTorch loop with units of 50 ms. The tables are
``width`` (how narrow intervals are, by the number of functions), ``labels`` (for each
program), ``few`` (units of 2 s), ``many`` (256 functions), ``slack`` (pedestals) and
``shared`` (a machine with other programs). "cover" is the part of the 95% intervals that
contain the truth for a small delay.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "pyext/tests"))

import model
from speed_bump.experiment.fit.verdict import Finding, Verdict

Factory = Callable[[np.random.Generator], model.Program]


def serial(count: int) -> Factory:
    return lambda draw: model.Program(draw, count)


def row(*cells: object) -> None:
    print("  ".join(str(cell) for cell in cells), flush=True)


@cache
def truths(name: str, kind: str) -> tuple[float, ...]:
    factory = model.PROGRAMS[name]
    count = factory(np.random.default_rng(0)).functions
    return tuple(model.truth(factory, k, kind) for k in range(count))


def covers(finding: Finding, c: float) -> bool | None:
    interval = finding.criticality
    # The truth is a difference of sums.
    c = round(c, 9)
    return None if interval is None else interval.low <= c <= interval.high


def one(
    job: tuple[str, str, str, int, float],
) -> tuple[tuple[str, str, str], Verdict, object]:
    table, name, kind, seed, seconds = job
    if table == "width":
        run, verdict = model.experiment(serial(int(name)), kind, seed, seconds)
    elif table == "few":
        run, verdict = model.experiment(
            model.sham, kind, seed, seconds, 2e9, census=5, max_slowdown=float(name)
        )
    elif table == "many":
        c = np.zeros(256)
        c[np.random.default_rng(seed).permutation(256)[:4]] = (1.0, 1.0, 0.5, 0.3)
        run, verdict = model.experiment(
            lambda draw: model.Weighted(draw, list(c)),
            kind,
            seed,
            seconds,
            float(name) * 1e6,
        )
    elif table == "shared":
        others, work = name.split()
        run, verdict = model.experiment(
            lambda draw: model.Shared(draw, int(others), float(work)), kind, seed, seconds
        )
    else:
        run, verdict = model.experiment(model.PROGRAMS[name], kind, seed, seconds)
    return (
        (table, name, kind),
        verdict,
        (run.program.c, getattr(run.program, "slack", None), run.time_ns / 1e9),
    )


def summary(findings: list[tuple[Finding, float]]) -> str:
    labels = Counter(finding.verdict for finding, _ in findings)
    said = [hit for f, c in findings if (hit := covers(f, c)) is not None]
    halves = [f.criticality.half for f, _ in findings if f.criticality is not None]
    bad = sum(model.wrong(finding.verdict, c) for finding, c in findings)
    cover = (
        f"{np.mean(said):.3f} of {len(said)} ± {np.median(halves):.3f}" if said else "-"
    )
    return f"cover {cover}  wrong {bad}  {dict(labels)}"


def show(key: tuple[str, str, str], results: list[tuple[Verdict, object]]) -> None:
    table, name, kind = key
    slow = max(verdict.slowdown for verdict, _ in results)
    alarms = np.mean(
        [any(bill.alarm for bill in verdict.bills) for verdict, _ in results]
    )
    head = f"{table} {name:16}{kind:9}"
    took = np.mean([extra[2] for _, extra in results])  # type: ignore[index]
    tail = f"in {took:.0f} s  alarm {alarms:.2f} slowdown at most {slow:.2f}"
    if table in ("width", "few", "shared", "many"):
        groups: dict[float, list[tuple[Finding, float]]] = defaultdict(list)
        for verdict, (c, _, _) in results:  # type: ignore[misc]
            for finding, true in zip(verdict.findings, c, strict=True):
                groups[true].append((finding, true))
        for true, findings in sorted(groups.items(), reverse=True):
            row(head, f"c {true:.2f}", summary(findings), tail)
        return
    known = truths(name, kind)
    seen: dict[int, list[tuple[Finding, float]]] = defaultdict(list)
    for verdict, _ in results:
        for k, finding in enumerate(verdict.findings):
            # The others are like the last one.
            seen[min(k, 2)].append((finding, known[k]))
    for k, findings in seen.items():
        row(
            head,
            f"f{k}{'...' * (k == 2)} c {findings[0][1]:.2f}",
            summary(findings),
            tail,
        )
    joints = Counter(
        j.kind + str(j.functions)
        for v, _ in results
        for j in v.joints
        if j.kind != "serial"
    )
    if joints:
        row(head, "joint:", dict(joints.most_common(3)))
    slacks = [
        f.slack_ns for v, _ in results for f in v.findings if f.slack_ns is not None
    ]
    if slacks:
        true = results[0][1][1]  # type: ignore[index]
        inside = [s.low <= (true or 0) * model.UNIT_NS <= s.high for s in slacks]
        mean = np.mean([s.value for s in slacks]) / model.UNIT_NS
        row(
            head,
            f"slack {true}: {mean:.2f} in {len(slacks)}, cover {np.mean(inside):.2f}",
        )


KINDS = ("recorded", "heavy")
TABLES: dict[str, list[tuple[str, str]]] = {
    "width": [
        *((str(count), "recorded") for count in (1, 6, 13)),
        *(("6", kind) for kind in model.KINDS[1:]),
    ],
    "labels": [(name, kind) for name in model.PROGRAMS for kind in KINDS],
    "slack": [
        (name, "quiet") for name in ("stages", "stages4", "stages16", "fork_join", "tick")
    ],
    "few": [(share, kind) for kind in KINDS for share in ("0.2", "0.5")],
    "many": [("50", "heavy"), ("2", "heavy")],
    "shared": [(f"{o} {w}", "quiet") for o in (0, 1, 3) for w in (0.4, 1.6)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    for table in args.tables or TABLES:
        for name, kind in TABLES[table]:
            few = table == "many" and name == "2"
            runs = max(args.runs // 10, 2) if few else args.runs
            jobs = [(table, name, kind, seed, args.seconds) for seed in range(runs)]
            with ProcessPoolExecutor(args.jobs) as pool:
                results = [(v, extra) for _, v, extra in pool.map(one, jobs, chunksize=2)]
            show((table, name, kind), results)


if __name__ == "__main__":
    main()
