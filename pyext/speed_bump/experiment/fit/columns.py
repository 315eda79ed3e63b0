# SPDX-License-Identifier: MIT
"""The columns of the regression, made from a record: times, delays and covariates."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from speed_bump.experiment.fit.noise import Booleans, ages
from speed_bump.experiment.record import BESIDE, Block, Floats, Integers, Record

# Stages whose slots are regressed together.
SINGLE = frozenset({"single", "longer", "levels", "rare", "few"})
GROUPS = frozenset({"groups"})
# A rest begins with this many slots in which buffers may still refill.
SETTLING = 50
# Calls that vary by less than this part of their mean need no column.
STEADY = 0.05
# More columns of calls than these are replaced by their principal directions.
MAX_CALLS = 48
# Of more slots than these, divided by functions, only the newest are used.
MAX_CELLS = 24_000_000
# With this many rests in which the tool does nothing, blocks can be compared with them;
# records of before show only which of them were planned.
MIN_RESTS, MIN_PLANNED = 2, 4
# With this many slots of such rests, only these are undelayed ones.
MIN_CALM = 20
# More calls in a slot than this multiple of the 95th percentile are a flood.
FLOOD = 10.0
# If the mean time of slots is this many times their median, work ends in bursts.
BURSTS = 2.0
# Single holds that are on in less than this part of the slots leave buffers time to
# refill in between.
APART = 0.08


@dataclass(frozen=True)
class Column:
    """An arm at a dose, which has a criticality of its own.

    ``functions`` is empty for the sham; ``dose`` is the intended dose, in parts of the
    undelayed slot; ``apart``: single holds with long gaps between them.
    """

    functions: tuple[str, ...]
    dose: float
    apart: bool = False


@dataclass
class Plan:
    """Blocks that were drawn in the same way, for the standard error by design.

    ``columns`` has an entry for each arm and level; ``chance`` is the probability that it
    is on in a hold; if ``alone``, one is on at a time. ``coin``: drawn for each slot.
    """

    rows: Booleans
    columns: list[int]
    chance: Floats
    alone: bool
    coin: Booleans
    holds: tuple[int, ...]


@dataclass
class Table:
    """Rows are slots, in the order in which they ran; times in parts of ``base_ns``."""

    base_ns: float
    y: Floats
    cpu: Floats
    blocked: Floats
    age: Integers
    run: Integers
    columns: list[Column]
    x: Floats
    delayed: Integers
    other: Floats
    on: dict[tuple[float, bool], int]
    settling: int | None
    plans: list[Plan]
    cycle: float
    # How many rests began before each row: a rest and the blocks before it are a cycle.
    cycles: Integers | None = None
    # Where the plan had a column on, whether it was called there or not.
    switched: Booleans | None = None

    @property
    def rows(self) -> int:
        """How many rows are usable."""
        return int((self.age >= 0).sum())


def is_rest(block: Block) -> bool:
    """Whether nothing is delayed in the stage."""
    return block.stage == "census" or not block.arms


def is_apart(block: Block) -> bool:
    """Whether its holds are single slots with long gaps between them."""
    return block.one and block.holds == (1,) and sum(block.chance) < APART


def base_time(record: Record, last: int = 400) -> float:
    """The undelayed time of a slot, ns, in the newest rests; 0 if there is none."""
    slots = record.slots
    rest = undelayed(record) & slots.good & (slots.time_ns > 0)
    times = slots.time_ns[rest][-last:]
    if not len(times):
        times = slots.time_ns[slots.good & (slots.time_ns > 0)][-last:]
    return usual(times)


def usual(times: Floats) -> float:
    """The median; where work ends in bursts, the mean without the hundredth at each end.

    The median is the time within a burst then, and doses that are parts of it would be
    too small to be seen. It is 0 of nothing.
    """
    if not len(times):
        return 0.0
    cut = len(times) // 100
    mean = float(np.sort(times)[cut : len(times) - cut].mean())
    median = float(np.median(times))
    return mean if mean > BURSTS * median else median


def undelayed(record: Record) -> Booleans:
    """Slots in which nothing is on; if there are enough, only where the tool rests."""
    rest = np.array([is_rest(block) for block in record.blocks] + [True])
    found = np.asarray(rest[block_index(record)])
    return _calm(found, record.slots.block == BESIDE, record.slots.good)


def _calm(rests: Booleans, beside: Booleans, usable: Booleans) -> Booleans:
    """The rests in which the tool does nothing; all of them, if there are too few."""
    calm = rests & ~beside
    return calm if (calm & usable).sum() >= MIN_CALM else rests


def block_index(record: Record) -> Integers:
    """The block of each slot; -1 also if the record does not contain it."""
    block = record.slots.block
    return np.where((block >= 0) & (block < len(record.blocks)), block, -1)


def table(record: Record, stages: Collection[str] = SINGLE) -> Table | None:
    """The slots of these stages and the rests beside them; None if there are too few."""
    slots = record.slots
    count = len(slots)
    if count < 8 or not record.blocks:
        return None
    first = max(count - MAX_CELLS // (3 * len(record.functions) + 60), 0)
    part = slice(first, count)
    block = block_index(record)[part]
    rests = np.array([is_rest(b) for b in record.blocks] + [True])
    used = np.array(
        [b.stage in stages and not is_rest(b) for b in record.blocks] + [False]
    )
    resting = rests[block]
    busy = used[block]
    if busy.sum() < 4:
        return None
    n = count - first
    index = np.arange(n)
    run, number = slots.run[part], slots.number[part]
    # For a rest: the previous block, if it was in the same run.
    begin = np.maximum.accumulate(np.where(np.r_[True, run[1:] != run[:-1]], index, 0))
    last = np.maximum.accumulate(np.where(~resting, index, -1))
    since = np.where(last >= begin, index - last, n)
    before = np.where(last >= begin, block[np.maximum(last, 0)], -1)
    owner = np.where(resting, before, block)
    times = slots.time_ns[part]
    usable = slots.good[part] & np.isfinite(times) & (times > 0)
    foreign = (resting & (since <= SETTLING) & ~used[before]) & (before >= 0)
    usable &= (busy | resting) & ~foreign & ~floods(slots.calls[part]).any(1)
    age = ages(number, run, usable)
    settling = resting & (before >= 0) & used[before]
    settle = _settle_length(resting, run, number)
    settling &= since <= settle
    quiet = usable & resting & ~settling
    beside = slots.block[part] == BESIDE
    still = _calm(quiet, beside, usable)
    still = still if still.sum() >= 3 else usable & resting
    still = still if still.sum() >= 3 else usable
    base = usual(times[still])
    if not base > 0:
        return None
    columns, x, switched, plans = _delays(record, part, owner, busy, usable, base)
    delayed = (x > 0).sum(0)
    if not columns:
        return None
    with np.errstate(invalid="ignore"):
        cpu = slots.cpu_ns[part] / base
        blocked = np.maximum(times - slots.cpu_ns[part] - slots.wait_ns[part], 0) / base
    other, on, settle_at = _others(
        record, part, block, busy, usable, quiet, settling, beside, columns
    )
    rest_starts = np.flatnonzero(resting[1:] & ~resting[:-1])
    cycles = np.searchsorted(rest_starts, index, side="left")
    cycle = float(np.median(np.diff(rest_starts))) if len(rest_starts) >= 2 else 0.0
    return Table(
        base,
        np.where(usable, times / base, 0.0),
        cpu,
        blocked,
        age,
        run,
        columns,
        x,
        delayed,
        other,
        on,
        settle_at,
        plans,
        cycle,
        cycles,
        switched,
    )


def floods(calls: Floats) -> Booleans:
    """The slots, in rows, in which each function was called many times as often as usual.

    Such a slot has as much of its delays as thousands of others, so that an effect would
    rest on a few slots, in which the program did something else. Whether a delay was on
    makes no difference, so that leaving them out takes no side.
    """
    calls = np.nan_to_num(calls)
    found = np.zeros(calls.shape, np.bool_)
    for k in range(calls.shape[1]):
        some = calls[calls[:, k] > 0, k]
        if len(some):
            found[:, k] = calls[:, k] > FLOOD * np.quantile(some, 0.95)
    return found


def _settle_length(resting: Booleans, run: Integers, number: Integers) -> int:
    """Half of a usual rest at most: the other half is the baseline."""
    edge = np.ones(len(resting), bool)
    edge[1:] = (
        (resting[1:] != resting[:-1])
        | (run[1:] != run[:-1])
        | (number[1:] != number[:-1] + 1)
    )
    starts = np.flatnonzero(edge)
    lengths = np.diff(np.r_[starts, len(resting)])[resting[starts]]
    lengths = lengths[lengths >= 8]
    return min(SETTLING, int(np.median(lengths) * 5 / 8)) if len(lengths) else SETTLING


def _signature(block: Block) -> tuple[object, ...]:
    """The common properties of blocks that were drawn in the same way."""
    arms = tuple(arm.functions for arm in block.arms)
    return (arms, block.chance, block.holds, block.one, block.doses, block.coins)


def _delays(
    record: Record,
    part: slice,
    owner: Integers,
    busy: Booleans,
    usable: Booleans,
    base: float,
) -> tuple[list[Column], Floats, Booleans, list[Plan]]:
    """The columns of delays, where they were on, and how they were drawn."""
    slots = record.slots
    position = {name: k for k, name in enumerate(record.functions)}
    kinds: dict[tuple[object, ...], list[int]] = {}
    for k in np.unique(owner[busy]):
        kinds.setdefault(_signature(record.blocks[k]), []).append(int(k))
    found: dict[Column, int] = {}
    entries: list[tuple[int, Integers, Floats, Booleans]] = []
    plans: list[Plan] = []
    delivered = slots.delivered_ns[part]
    masks, levels = slots.mask[part], slots.level[part]
    for members in kinds.values():
        block = record.blocks[members[0]]
        rows = np.flatnonzero(np.isin(owner, members) & usable)
        if not len(rows):
            continue
        level = np.minimum(levels[rows].astype(int), len(block.doses) - 1)
        inside = busy[rows]
        shares = np.bincount(level[inside], minlength=len(block.doses)).astype(float)
        shares /= max(shares.sum(), 1)
        chances: list[float] = []
        at: list[int] = []
        coins: list[bool] = []
        for bit, arm in enumerate(block.arms):
            coin = bit >= len(block.arms) - block.coins
            where = [position[name] for name in arm.functions if name in position]
            if not where and not arm.is_sham:
                continue
            for index, dose in enumerate(block.doses):
                if coin and index:
                    break
                aimed = 1.0 if coin else float(f"{dose:.3g}")
                column = Column(arm.functions, aimed, is_apart(block) and not coin)
                k = found.setdefault(column, len(found))
                here = rows if coin or len(block.doses) == 1 else rows[level == index]
                on = (masks[here] >> np.uint64(bit)) & np.uint64(1) > 0
                on &= busy[here]
                if arm.is_sham:
                    values = dose * on.astype(float)
                else:
                    values = np.nan_to_num(delivered[here][:, where]).sum(1) / base
                    if record.metered:
                        values = _evened(values, on)
                    elif record.sleeping.issuperset(arm.functions):
                        calls = np.nan_to_num(slots.calls[part][here][:, where]).sum(1)
                        values = _evened(values, on, calls)
                entries.append((k, here, values, on))
                at.append(k)
                chances.append(block.chance[bit] * (1.0 if coin else shares[index]))
                coins.append(coin)
        mask = np.zeros(len(owner), bool)
        mask[rows] = True
        plans.append(
            Plan(mask, at, np.array(chances), block.one, np.array(coins), block.holds)
        )
    x = np.zeros((len(owner), len(found)))
    switched = np.zeros(x.shape, bool)
    for k, here, values, on in entries:
        x[here, k] += values
        switched[here, k] |= on
    return list(found), x, switched, plans


def _evened(values: Floats, on: Booleans, by: Floats | None = None) -> Floats:
    """The same delay in each slot that has the arm on, and as much in all.

    In a slot of time more is delivered where more units are done, and more units are
    what the slot is judged by: what chance did to one it did to the other. In the mean
    over the slots of an arm, which are drawn, it did nothing. The same holds for each
    call (``by``) of delays that sleep: they end late where the program waits, too.
    """
    parts = on.astype(float) if by is None else on * by
    total = parts.sum()
    return parts * (values.sum() / total) if total else np.zeros(len(values))


def _others(
    record: Record,
    part: slice,
    block: Integers,
    busy: Booleans,
    usable: Booleans,
    quiet: Booleans,
    settling: Booleans,
    beside: Booleans,
    columns: list[Column],
) -> tuple[Floats, dict[tuple[float, bool], int], int | None]:
    """Columns other than the delays: the common cost, settling, calls."""
    parts: list[Floats] = []
    on: dict[tuple[float, bool], int] = {}
    settle_at = None
    if quiet.sum() >= 12:
        keys = [
            (float(f"{max(b.doses):.3g}"), is_apart(b)) if b.doses else (0.0, False)
            for b in record.blocks
        ]
        for key in sorted({keys[k] for k in np.unique(block[busy])}):
            rows = np.array([k == key for k in keys] + [False])[block] & busy
            if (rows & usable).sum() >= 12:
                on[key] = len(parts)
                parts.append(rows.astype(float))
        if on and (settling & usable).sum() >= 4:
            settle_at = len(parts)
            parts.append(settling.astype(float))
        # Stacks are sampled before the first block and now and then, and effects are
        # computed after each, which costs the program something too. If there are enough
        # other rests, blocks are compared with those.
        is_known = bool(beside.any())
        disturbed = beside if is_known else (block < 0) & ~busy
        rests = np.unique(block[quiet & ~disturbed])
        enough = len(rests) >= (MIN_RESTS if is_known else MIN_PLANNED)
        if on and (quiet & disturbed).sum() >= 4 and enough:
            parts.append(disturbed.astype(float))
    units = record.slots.units[part].astype(float)
    if usable.any() and np.ptp(units[usable]) > 0:
        parts.append(units / units[usable].mean() - 1)
    names = {name for column in columns for name in column.functions}
    where = [k for k, name in enumerate(record.functions) if name in names]
    # In slots of time there are more calls where more units are done.
    if not record.metered:
        parts.extend(_calls(record.slots.calls[part][:, where], usable))
    other = np.stack(parts, 1) if parts else np.zeros((len(block), 0))
    return np.where(usable[:, None], other, 0.0), on, settle_at


def _calls(calls: Floats, usable: Booleans) -> list[Floats]:
    """Calls of functions that vary, each pattern once."""
    rows = np.flatnonzero(usable)
    if not len(rows) or not calls.shape[1]:
        return []
    seen = np.nan_to_num(calls[rows])
    mean = seen.mean(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        varies = (mean > 0) & (seen.std(0) > STEADY * mean)
    seen, mean = seen[:, varies], mean[varies]
    patterns: dict[bytes, Floats] = {}
    for k in range(seen.shape[1]):
        column = seen[:, k] / mean[k] - 1
        patterns.setdefault(np.round(column, 6).tobytes(), column)
    if not patterns:
        return []
    matrix = np.stack(list(patterns.values()), 1)
    most = min(MAX_CALLS, max(len(rows) // 12, 1))
    if matrix.shape[1] > most:
        matrix = matrix / matrix.std(0)
        _, directions = np.linalg.eigh(matrix.T @ matrix)
        matrix = matrix @ directions[:, -most:]
    full = np.zeros((len(calls), matrix.shape[1]))
    full[rows] = matrix
    return list(full.T)
