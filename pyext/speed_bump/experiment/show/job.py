# SPDX-License-Identifier: MIT
"""The report of a job of many ranks, as text and JSON."""

from __future__ import annotations

from typing import Any

from speed_bump.duration import human
from speed_bump.experiment.cluster.confirm import Confirmed, Expected
from speed_bump.experiment.cluster.join import Effect, Job
from speed_bump.experiment.cluster.places import agree
from speed_bump.experiment.fit.interval import THRESHOLD, WIDEST
from speed_bump.experiment.fit.verdict import INCONCLUSIVE, label_of
from speed_bump.experiment.job_ranks import told
from speed_bump.experiment.show import ranks, text, wording
from speed_bump.experiment.show.encode import finite, interval_json
from speed_bump.experiment.show.table import LEFT, RIGHT, table

# The conclusion names the gains of at most this many functions.
FORMAT = 2
MAX_TOLD = 4
CONFIRM_HEADS = (
    ("function", LEFT),
    ("ranks", LEFT),
    ("all", RIGHT),
    ("only these", RIGHT),
    ("expected", RIGHT),
    ("all but these", RIGHT),
    ("expected", RIGHT),
    ("gain", RIGHT),
)
HEADS = (
    ("function", LEFT),
    ("calls", RIGHT),
    ("delay", RIGHT),
    ("all ranks", RIGHT),
    ("verdict", LEFT),
    ("where", LEFT),
)
LEGEND = (
    "calls, delay: in a step, the delay where it is on. all ranks: the part of a delay "
    "on all ranks at once that arrives in the step, with its 95% interval."
)


def verdict(effect: Effect) -> str:
    interval = effect.criticality
    if interval is None or interval.half > WIDEST:
        return INCONCLUSIVE
    return label_of(interval)


def where(job: Job, effect: Effect) -> str:
    """Where its delays arrive: in the own work of ranks, and in the step."""
    if job.places is None:
        return f"called on {effect.ranks} of {len(job.ranks.who)}"
    groups = job.places.groups
    k = job.functions.index(effect.name)
    known = [(place, place.cells[k]) for place in job.places.places]
    cells = [cell for _, cell in known if cell is not None]
    if not cells:
        return "not known"
    wider = job.places.wider
    inside = [
        place
        for place, cell in known
        if cell is not None and cell.value - wider * cell.half > THRESHOLD
    ]
    if not inside:
        most = max(cell.value + wider * cell.half for cell in cells)
        return "hidden everywhere" if most < WIDEST else "not known"
    if len(inside) == len(job.places.places):
        least, most = min(c.value for c in cells), max(c.value for c in cells)
        mean = sum(c.value for c in cells) / len(cells)
        is_one = agree(cells, wider)
        number = f"{mean:.2f}" if is_one else f"{least:.2f} to {most:.2f}"
        words = f"own work {number} on all {len(inside)}"
    else:
        some = [rank for place in inside for rank in place.ranks]
        words = f"own work of {ranks.called(some, groups)}"
    limiting = job.places.limiting
    if limiting is not None:
        there = {rank for place in inside for rank in place.ranks}
        if there.issuperset(limiting.ranks):
            words += f"; arrives on {ranks.called(limiting.ranks, groups)}"
    return words


def as_text(job: Job) -> str:
    width = text.columns() or text.PROSE
    parts = [
        text.wrapped(
            f"{told(job.ranks.who)}; {int(job.good.sum()):,} steps that all have; a "
            f"step takes {human(job.step_ns)} undelayed; seed {job.seed}",
            width,
            "  ",
        )
    ]
    parts += [text.wrapped(f"warning: {line}", width, "    ") for line in job.problems]
    lines = [
        [
            effect.name,
            wording.count(effect.calls),
            human(effect.delay_ns),
            wording.number(effect.criticality),
            verdict(effect),
            where(job, effect),
        ]
        for effect in ordered(job)
    ]
    parts += ["", table(HEADS, lines)]
    if job.confirmed:
        parts += ["", table(CONFIRM_HEADS, [confirmed_cells(c) for c in job.confirmed])]
        parts += ["", *(text.wrapped(line, width) for line in conclusions(job))]
    if job.places is not None:
        names = [effect.name for effect in ordered(job)]
        parts += ["", ranks.places_table(job.places, names)]
        parts += ["", text.wrapped(ranks.waiting(job.places), width)]
        parts += [text.wrapped(line, width) for line in expectation(job)]
    else:
        parts += ["", text.wrapped(ranks.NO_WAITS, width)]
    parts += ["", text.wrapped(LEGEND, width)]
    if job.places is not None:
        parts.append(text.wrapped(ranks.LEGEND, width))
    return "\n".join(parts)


def confirmed_cells(found: Confirmed) -> list[str]:
    """A line of the table of a confirmation."""
    told = found.expected
    return [
        found.name,
        found.group,
        wording.number(found.everywhere),
        wording.number(found.alone),
        "-" if told is None else f"{told.alone:.2f}",
        wording.number(found.without),
        "-" if told is None else f"{told.without:.2f}",
        wording.number(found.gain),
    ]


def conclusions(job: Job) -> list[str]:
    """The results of a confirmation, by group."""
    lines = []
    for group in job.groups:
        some = [found for found in job.confirmed if found.group == group]
        there = [f for f in some if f.gain and f.gain.low > THRESHOLD]
        for found in there:
            assert found.gain is not None
            lines.append(
                f"rank {group}: of each millisecond that {found.name} is made faster "
                f"there alone, the step gains {wording.number(found.gain)} ms, up to "
                f"{human(found.delay_ns)}"
            )
        unknown = [f for f in some if not f.gain or f.gain.high >= THRESHOLD]
        if some and not unknown:
            lines.append(f"rank {group}: making a function faster there gains nothing")
        elif not there and unknown:
            most = ", ".join(
                f"{f.name} {wording.number(f.gain)}" for f in unknown[:MAX_TOLD]
            )
            more = f" and {len(unknown) - MAX_TOLD} more" if unknown[MAX_TOLD:] else ""
            lines.append(
                f"rank {group}: not known whether making a function faster there gains "
                f"anything ({most}{more}); more steps would tell"
            )
        lines += [
            f"rank {group}: {found.name} differs from what waits and own work predict; "
            "ranks that share cores, or several collectives in a step, can cause this"
            for found in some
            if found.differs
        ]
    return lines


def expectation(job: Job) -> list[str]:
    """The expected result of confirming the limiting rank, and the command for it."""
    limiting = job.places.limiting if job.places else None
    if job.places is None or limiting is None or not job.expected or job.groups:
        return []
    name = next(e.name for e in ordered(job) if e.name in job.expected)
    place = ranks.called(limiting.ranks, job.places.groups)
    told = job.expected[name]
    line = (
        f"expected of a delay in {name} on {place} alone: {told.alone:.2f} of it, on "
        f"all others {told.without:.2f}"
    )
    # Ranks without numbers can't be named in another run.
    if all(r.rank >= 0 for r in limiting.ranks):
        line += (
            "; to see it, run the same with another directory and --confirm "
            f"{ranks.option(limiting.ranks)}"
        )
    return [line]


def ordered(job: Job) -> list[Effect]:
    """The most critical first."""
    return sorted(
        job.effects,
        key=lambda e: (-e.criticality.value if e.criticality else 9.0, e.name),
    )


def as_json(job: Job) -> dict[str, Any]:
    """The report as JSON. Times are ns."""
    return {
        "format": FORMAT,
        "seed": job.seed,
        "world": job.world,
        "steps": int(job.good.sum()),
        "step_ns": job.step_ns,
        "warnings": job.problems,
        "findings": [
            {
                "target": effect.name,
                "verdict": verdict(effect),
                "criticality": interval_json(effect.criticality),
                "calls_per_step": effect.calls,
                "delay_ns": effect.delay_ns,
                "delayed_steps": effect.delayed,
                "where": where(job, effect),
                "ranks": effect.ranks,
            }
            for effect in ordered(job)
        ],
        "confirmed": [
            {
                "target": found.name,
                "ranks": found.group,
                "all": interval_json(found.everywhere),
                "only": interval_json(found.alone),
                "all_but": interval_json(found.without),
                "gain": interval_json(found.gain),
                "delay_ns": found.delay_ns,
                "expected": found.expected and _expected_json(found.expected),
            }
            for found in job.confirmed
        ],
        "expected": {name: _expected_json(told) for name, told in job.expected.items()},
        "job": ranks.as_json(job.places, job.ranks.who),
    }


def _expected_json(told: Expected) -> dict[str, float | None]:
    return {"only": finite(told.alone), "all_but": finite(told.without)}
