# SPDX-License-Identifier: MIT
"""The effect of each function's delay on the latency of requests.

A request belongs to the slot in which it arrived; the functions delayed in that slot were
drawn at random. Requests of a slot's first and last part are left out, because they also
met the previous or next slot. If a queue is carried over to the next slot, the effect of
a slot on the requests of the next one is added.

The mean is estimated by least squares over requests. Quantiles are quantile regressions
(Koenker & Bassett, Econometrica 46, 1978) of latencies on the delays: with one function
at a time, this is the difference of the quantiles with and without it. They are computed
by Newton's method; a step is a regression of recentred influence functions (Firpo, Fortin
& Lemieux, Econometrica 77, 2009). A single step is correct only for delays that are short
compared with the spread of latencies: it counts the requests that cross the old quantile,
and if all of them do, as with a stage that takes the same time for each, the count no
longer tells how far (``queues.py`` of the tests has such a server). Steps that start with
a wide window and end with a narrow one converge (smoothed quantile regression: Fernandes,
Guerre & Horta, Journal of Business & Economic Statistics 39, 2021).

Requests of one slot are not independent, so standard errors are computed from sums over
slots. They are the larger of one by the schedule, drawn again hypothetically
(``effects.py``), and one by clusters which allows for correlated neighbours (Newey &
West, Econometrica 55, 1987; quantiles: Parente & Santos Silva, Journal of Econometric
Methods 5, 2016).

The estimate is the difference between a program in which the function is always delayed
by the dose used, and one in which it never is. Quantiles and queues are not proportional
to the delay: for a small dose the number per ms is the derivative, and it does not hold
for other doses.

The regressions, the requests that they use and the findings are about the same design:
hence the length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

# isort: off
import speed_bump.experiment.algebra  # noqa: F401
import numpy as np
import numpy.typing as npt
# isort: on

from speed_bump.duration import human
from speed_bump.experiment.fit.columns import (
    SINGLE,
    Table,
    block_index,
    is_rest,
    table,
    undelayed,
)
from speed_bump.experiment.fit.effects import by_design, lagged, sham_bound
from speed_bump.experiment.fit.finding import lasting
from speed_bump.experiment.fit.interval import (
    HIDDEN,
    INCONCLUSIVE,
    NORMAL,
    THRESHOLD,
    WHOLE,
    Interval,
    around,
    discoveries,
    quantile,
    upper_tail,
)
from speed_bump.experiment.fit.judge import FALSE_DISCOVERIES
from speed_bump.experiment.fit.load import OVERLOADED, Load, load
from speed_bump.experiment.fit.noise import Booleans, ages
from speed_bump.experiment.fit.number import AMPLIFIED
from speed_bump.experiment.record import Floats, Integers, Record

Events = npt.NDArray[np.void]

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
STATISTICS = ("mean", *QUANTILES)
# At most this part of a slot is left out at either end.
MAX_WASHOUT = 0.25
# With a larger correlation of neighbouring slots, a queue is carried over.
CARRIED = 0.1
# With a larger correlation of slots that are two apart, over several slots.
CARRIED_FAR = 0.3
# Slots between two knots of the slow changes.
SPACING = 100
MAX_SLOW = 40
# With fewer slots, or requests beyond a quantile with a function on, there is no answer.
MIN_ROWS = 40
MIN_ON = 8
# With half as many, 14 of 19 intervals of the p99 contained the truth ("two classes" of
# bench/rank/latency_coverage.py).
MIN_BEYOND = 40
# Slots that may be correlated: a hold and the slot after it.
NEIGHBOURS = 4
MAX_STEPS = 40


# ---------------------------------------------------------------------------- regression


@dataclass
class Design:
    """The regression's input: rows are slots.

    Args:
        x: what was on in each slot, with a column for each column of the table, by its
            dose in parts of the function's mean dose
        member: for each column of ``x`` the answer that it belongs to
        other: columns that were not drawn
        rows: the rows that are used
        lags: of ``x``
    """

    data: Table
    x: Floats
    member: Integers
    other: Floats
    rows: Integers
    lags: int

    def __post_init__(self) -> None:
        self.answers = int(self.member.max()) + 1
        joined = np.zeros((len(self.x), self.answers))
        for k, to in enumerate(self.member):
            joined[:, to] += self.x[:, k]
        columns = lagged(joined, self.bins)
        self.matrix = np.concatenate([columns, self.other], axis=1)[self.rows]
        self.sums = np.zeros((self.answers, self.matrix.shape[1]))
        for lag in range(self.lags + 1):
            at = lag * self.answers + np.arange(self.answers)
            self.sums[np.arange(self.answers), at] = 1

    def on(self, k: int) -> Booleans:
        """For each row, whether an answer's columns are on, at any lag."""
        some = np.zeros(len(self.rows), bool)
        for lag in range(self.lags + 1):
            some |= self.matrix[:, lag * self.answers + k] > 0
        return some

    @property
    def bins(self) -> tuple[tuple[int, ...], ...]:
        """The lags, each as a bin of its own."""
        return tuple((lag,) for lag in range(self.lags + 1))


@dataclass
class Estimate:
    """For each answer its value and its standard error.

    The interval of a quantile is not symmetric: above the quantile there are fewer
    requests than below. ``down`` and ``up`` are its two sides; infinite: there are too
    few requests.
    """

    value: Floats
    error: Floats
    down: Floats | None = None
    up: Floats | None = None

    def times(self, scale: float) -> Estimate:
        down, up = (None if e is None else e * scale for e in (self.down, self.up))
        return Estimate(self.value * scale, self.error * scale, down, up)

    def interval(self, k: int, df: int) -> Interval:
        value = float(self.value[k])
        if self.up is None or self.down is None:
            return around(value, float(self.error[k]), df)
        return Interval(value, value - float(self.down[k]), value + float(self.up[k]))


def _inverse(gram: Floats) -> Floats:
    """The inverse of a matrix of products, in which some columns may be empty."""
    size = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    scaled = gram / size[:, None] / size[None, :] + 1e-9 * np.eye(len(gram))
    found = np.linalg.inv(scaled) / size[:, None] / size[None, :]
    found[size < 1e-100] = 0
    found[:, size < 1e-100] = 0
    return np.asarray(found)


def estimate(design: Design, b: Floats, score: Floats, weight: Floats) -> Estimate:
    """Sums over lags of the coefficients ``b``, with errors by slots.

    Args:
        score: of each row the sum of its requests' scores
        weight: of each row the sum of the scores' slopes
    """
    a = design.matrix
    inverse = _inverse((a * weight[:, None]).T @ a)
    # The row's influence on its own fit (MacKinnon & White, Journal of Econometrics 29,
    # 1985).
    own = np.minimum(weight * np.einsum("ij,jk,ik->i", a, inverse, a), 0.9)
    score = score / (1 - own)
    rows = design.sums @ inverse
    g = (a @ rows.T) * score[:, None]
    error = np.sqrt(_by_clusters(g, design.data.age[design.rows]))
    v = np.zeros(len(design.data.age))
    v[design.rows] = score
    weights = np.concatenate(
        [rows[:, lag * design.answers + design.member] for lag in range(design.lags + 1)],
        axis=1,
    )
    # Each row has only the columns of its own answer, and the amount subtracted for the
    # effects of others.
    drawn = by_design(
        v, design.x, weights, design.data.age, design.data.plans, design.bins
    )
    return Estimate(design.sums @ b, np.fmax(error, drawn))


def _by_clusters(g: Floats, age: Integers) -> Floats:
    """Variances of the sums of ``g``, whose neighbouring rows may be correlated."""
    total = (g * g).sum(0)
    least = total.copy()
    for lag in range(1, NEIGHBOURS + 1):
        same = (age[lag:] >= lag)[:, None]
        total += 2 * (1 - lag / (NEIGHBOURS + 1)) * (g[lag:] * g[:-lag] * same).sum(0)
    return np.asarray(np.maximum(total, least))


def least_squares(design: Design, total: Floats, count: Floats) -> Estimate:
    """Effects on the mean, from the ``count`` and the ``total`` of each slot."""
    a = design.matrix
    total, count = total[design.rows], count[design.rows]
    b = _inverse((a * count[:, None]).T @ a) @ (a.T @ total)
    return estimate(design, b, total - count * (a @ b), count)


def window_of(tau: float, count: int) -> float:
    """The half-width of a quantile's window, as a part (Hall & Sheather, 1988).

    Journal of the Royal Statistical Society B 50.
    """
    at = NORMAL.inv_cdf(tau)
    density = math.exp(-at * at / 2) / math.sqrt(2 * math.pi)
    width = 1.5 * density**2 / (2 * at * at + 1)
    wide = count ** (-1 / 3) * 1.96 ** (2 / 3) * width ** (1 / 3)
    return float(min(wide, 0.9 * min(tau, 1 - tau)))


def _half_window(values: Floats, tau: float) -> float:
    """Half the distance of the quantiles around ``tau``."""
    part = window_of(tau, len(values))
    low, high = np.quantile(values, (max(tau - part, 0.0), min(tau + part, 1.0)))
    # Clocks have a resolution, and a stage may take the same time for each request.
    return max(float(high - low) / 2, 1e-4 * abs(float(high)), 1e-12)


def regression_quantile(
    design: Design, took: Floats, at: Integers, tau: float
) -> Estimate:
    """Effects on the ``tau`` quantile.

    Args:
        took: duration of each request
        at: its index in ``design.rows``
    """
    a = design.matrix
    n = len(a)
    b = np.zeros(a.shape[1])
    # All rows have the constant, which is the first column that was not drawn.
    constant = design.sums.shape[1] - design.other.shape[1]
    b[constant] = np.quantile(took, tau)
    low, high = np.quantile(took, (tau - 0.4 * tau, 1 - 0.3 * (1 - tau)))
    half, last = float(high - low), _half_window(took, tau)
    residuals = took - (a @ b)[at]
    while True:
        half = max(half, last)
        b, residuals = _solved(a, b, took, at, tau, half)
        if half <= last:
            narrower = _half_window(residuals, tau)
            if narrower > 0.7 * half:
                break
            last = narrower
        half /= 3
    inside = np.bincount(at, np.clip(residuals / half, -1, 1), n) / 2
    score = inside + (tau - 0.5) * np.bincount(at, minlength=n)
    # In parts of the requests; converted to times by Woodruff's method (JASA 47, 1952):
    # by the quantiles at that distance, among the requests that arrived while it was on.
    found = estimate(design, b, score, np.bincount(at, minlength=n).astype(float))
    down, up = np.full((2, design.answers), math.inf)
    error = np.full(design.answers, math.inf)
    for k in range(design.answers):
        on = design.on(k)
        some = residuals[on[at]]
        times = quantile(max(int(on.sum()) - 1, 1))
        off = times * float(found.error[k])
        if not (len(some) and math.isfinite(off) and off < min(tau, 1 - tau)):
            continue
        low, middle, high = np.quantile(some, (tau - off, tau, tau + off))
        # A quantile of so few requests is one of them, and the next may be as far away
        # again.
        down[k], up[k] = max(middle - low, last), max(high - middle, last)
        error[k] = down[k] / times
    return Estimate(found.value, error, down, up)


def _solved(
    a: Floats, b: Floats, took: Floats, at: Integers, tau: float, half: float
) -> tuple[Floats, Floats]:
    """Coefficients for the check function smoothed by ``half``, and the residuals."""
    n = len(a)
    count = np.bincount(at, minlength=n)

    def loss(residuals: Floats) -> float:
        size = np.abs(residuals)
        round_ = np.where(size < half, (size**2 / half + half) / 2, size) / 2
        return float(round_.sum() + (tau - 0.5) * residuals.sum())

    residuals = took - (a @ b)[at]
    now = loss(residuals)
    for _ in range(MAX_STEPS):
        score = np.bincount(at, np.clip(residuals / half, -1, 1), n) / 2
        score += (tau - 0.5) * count
        near = np.bincount(at, np.abs(residuals) < half, n) / (2 * half)
        # A column without a request in the window may still change.
        near += 1e-3 * count / (2 * half)
        step = _inverse((a * near[:, None]).T @ a) @ (a.T @ score)
        for _ in range(20):
            trial = took - (a @ (b + step))[at]
            new = loss(trial)
            if new <= now:
                break
            step = step / 2
        else:
            break
        moved = float(np.abs(a @ step).max())
        b, residuals = b + step, trial
        if now - new <= 1e-9 * abs(now) or moved < 1e-3 * half:
            break
        now = new
    return b, residuals


# ------------------------------------------------------------------------ slots, requests


@dataclass
class Requests:
    """Requests and the slots in which they arrived, in order of arrival.

    Args:
        slot: row of the table
        took_ns: duration
        since_ns, until_ns: from the begin of the slot, and to its end
        count: for each row, all requests that arrived in it
    """

    slot: Integers
    took_ns: Floats
    since_ns: Floats
    until_ns: Floats
    count: Floats


def requests(record: Record, data: Table, events: Events) -> Requests:
    """Assign the requests to the rows of a table."""
    slots = record.slots
    n = len(data.y)
    first = len(slots) - n
    rows = np.flatnonzero((data.age >= 0) & (slots.end_ns[first:] > 0))
    end = slots.end_ns[first:][rows]
    begin = end - slots.time_ns[first:][rows].astype(np.int64)
    came = events["begin_ns"].astype(np.int64)
    order = np.argsort(came, kind="stable")
    came = came[order]
    place = np.searchsorted(end, came, side="left")
    inside = place < len(rows)
    inside[inside] &= came[inside] > begin[place[inside]]
    came, place = came[inside], place[inside]
    slot = rows[place]
    return Requests(
        slot,
        events["duration_ns"][order][inside].astype(float),
        (came - begin[place]).astype(float),
        (end[place] - came).astype(float),
        np.bincount(slot, minlength=n).astype(float),
    )


def _since_oldest(record: Record, data: Table, events: Events) -> Table:
    """Without the slots of which requests were dropped: their calls have no requests."""
    slots = record.slots
    part = slice(len(slots) - len(data.y), len(slots))
    begin = slots.end_ns[part] - np.nan_to_num(slots.time_ns[part])
    dropped = record.header.get("requests_dropped", {})
    oldest = max(int(events["begin_ns"].min()), int(dropped.get("until_ns", 0)))
    usable = (data.age >= 0) & (begin >= oldest)
    return replace(data, age=ages(slots.number[part], slots.run[part], usable))


@dataclass
class Kept:
    """The requests that are used, chosen without regard to any effect.

    Args:
        washout_ns: what is left out at either end of a slot
        is_short: slots are short compared with requests
        alike, alike_far: the correlation of adjacent slots, and of slots two apart
    """

    use: Booleans
    washout_ns: float
    is_short: bool
    lags: int
    alike: float
    alike_far: float


def _correlation(values: Floats, age: Integers, apart: int) -> float:
    pairs = np.flatnonzero(age >= apart)
    if len(pairs) < MIN_ROWS:
        return 0.0
    e = values - values.mean()
    scale = float((e * e).mean())
    return float((e[pairs] * e[pairs - apart]).mean()) / scale if scale > 0 else 0.0


def keep(record: Record, data: Table, found: Requests) -> Kept:
    """Choose the requests to use, and over how many slots a queue is carried.

    The choice depends on the latencies only, whatever was on.
    """
    slot_ns = float(np.median(record.slots.time_ns[-len(data.y) :][data.age >= 0]))
    whole = float(np.quantile(found.took_ns, 0.99))
    washout = min(whole, MAX_WASHOUT * slot_ns)
    use = (found.since_ns >= washout) & (found.until_ns >= washout)
    if not use.any():
        use[:] = True
    n = len(data.y)
    count = np.bincount(found.slot[use], minlength=n)
    # The mean rank in each slot: one request that takes a second has little weight.
    ranks = np.empty(int(use.sum()))
    ranks[np.argsort(found.took_ns[use], kind="stable")] = np.arange(len(ranks))
    total = np.bincount(found.slot[use], ranks, n)
    means = np.where(count > 0, total / np.maximum(count, 1), 0.0)
    rows = np.flatnonzero((count > 0) & (data.age >= 0))
    level = np.zeros(n)
    columns = np.concatenate([np.ones((len(rows), 1)), _slow(data, rows)], axis=1)
    level[rows] = means[rows] - columns @ np.linalg.lstsq(columns, means[rows], None)[0]
    age = np.where(count > 0, data.age, -1)
    alike, far = (_correlation(level, age, apart) for apart in (1, 3))
    carried = alike > max(CARRIED, 2 / math.sqrt(len(rows))) or whole > washout
    return Kept(use, washout, whole > washout, int(carried), alike, far)


def _slow(data: Table, rows: Integers) -> Floats:
    """Columns of slow changes, and of all runs of the program except the first."""
    n = len(rows)
    count = min(n // SPACING, MAX_SLOW)
    at = (np.arange(n) + 0.5) / max(n, 1)
    waves = np.cos(math.pi * np.outer(at, np.arange(1, count + 1)))
    runs = data.run[rows]
    others = [(runs == run).astype(float)[:, None] for run in np.unique(runs)[1:]]
    return np.concatenate([waves, *others], axis=1)


# ------------------------------------------------------------------------------ findings

EVERY = "adds to every request"
SLOW_ONES = "only to the slow ones"
QUEUE = "moves the queue"


@dataclass(frozen=True)
class Finding:
    """The effect of a function's delay on the latency.

    Args:
        delay_ns: delivered per call, on average, while it was on
        calls: per request
        dose_ns: delivered per request
        added_ns: by statistic ("mean", "p50", "p90", "p99"), the effect of the dose;
            statistics that the data do not support are missing
        arrives: the effect of the dose on the mean, in parts of the dose
        throughput: the relative change by the dose
        requests: number used with it on, in ``slots`` slots
        p: the probability of such numbers if there were no effect
        false_discovery: the false discovery rate at which it would be called
        reason, help: why this verdict, and what would help; help is "" if nothing is
            needed
    """

    name: str
    verdict: str = INCONCLUSIVE
    delay_ns: float = math.nan
    calls: float = math.nan
    dose_ns: float = math.nan
    added_ns: dict[str, Interval] = field(default_factory=dict)
    arrives: Interval | None = None
    throughput: Interval | None = None
    requests: int = 0
    slots: int = 0
    p: float = 1.0
    false_discovery: float = 1.0
    reason: str = ""
    help: str = ""

    def per_ms(self, statistic: str) -> Interval | None:
        """The effect of a ms of delay of each call, in ms; at the dose used."""
        added = self.added_ns.get(statistic)
        if added is None or not self.delay_ns > 0:
            return None
        return scaled(added, 1 / self.delay_ns)


def scaled(interval: Interval, by: float) -> Interval:
    """Multiply by a number; the ends stay in order."""
    ends = sorted((interval.low * by, interval.high * by))
    return Interval(interval.value * by, *ends)


@dataclass
class RequestLatency:
    """The results for one kind of request.

    Args:
        requests: number seen, of which ``used`` are regressed
        lost: number that was not recorded
        undelayed_ns: by statistic, while nothing was delayed
        rate: requests per second
        sham: the apparent effect of no delay on the mean, ns
        sham_alarms: whether it is certainly not 0
    """

    name: str
    requests: int = 0
    used: int = 0
    lost: int = 0
    undelayed_ns: dict[str, float] = field(default_factory=dict)
    rate: float = math.nan
    slot_ns: float = math.nan
    washout_ns: float = math.nan
    lags: int = 0
    load: Load | None = None
    sham: Interval | None = None
    sham_alarms: bool = False
    findings: list[Finding] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def of(self, name: str) -> Finding:
        return next(finding for finding in self.findings if finding.name == name)


# Latency must have changed by this many standard errors to be compared with throughput.
MOVED = 3.3


def _moves(
    latency: Estimate, mean: float, time: Estimate, unit: float, real: Sequence[int]
) -> Interval | None:
    """The relative change of throughput over that of latency.

    Little's law: the number of requests in progress is throughput times latency, and in a
    closed loop without pauses it is the number of clients.
    """
    total = weight = 0.0
    for k in real:
        moved = latency.value[k] / mean
        if not latency.value[k] > MOVED * latency.error[k] > 0:
            continue
        ratio = time.value[k] / unit / moved
        error = math.hypot(time.error[k] / unit, ratio * latency.error[k] / mean) / moved
        if math.isfinite(error) and error > 0:
            total += ratio / error**2
            weight += 1 / error**2
    if not weight:
        return None
    return around(total / weight, weight**-0.5, 1000)


# ----------------------------------------------------------------------------- verdicts


def request_latency(
    record: Record, events: Events, name: str = "", lost: int = 0
) -> RequestLatency:
    """The effects on the latency of these requests.

    Args:
        events: of one kind of request, as in a record
        name: of the kind
        lost: number of its requests that are not in ``events``
    """
    out = RequestLatency(name, len(events), lost=lost)
    data = table(record, SINGLE)
    names = [*record.functions, *(n for n in record.idle if n not in record.functions)]
    call = "a --latency function that is called while the program works"
    why, help_ = "no slot was measured", "a longer --budget"
    found = None
    if not len(events):
        why, help_ = "no request was seen", call
    elif data is not None and data.switched is not None:
        data = _since_oldest(record, data, events)
        found = requests(record, data, events)
        if not len(found.slot):
            why, help_ = "no request came while slots were measured", call
    if data is None or found is None or not len(found.slot):
        out.findings = [Finding(n, reason=why, help=help_) for n in names]
        return out
    kept = keep(record, data, found)
    out.washout_ns, out.lags = kept.washout_ns, kept.lags
    slots = record.slots
    part = slice(len(slots) - len(data.y), len(slots))
    usable = data.age >= 0
    span = float(slots.time_ns[part][usable].sum())
    out.slot_ns = float(np.median(slots.time_ns[part][usable])) if usable.any() else 0.0
    out.rate = len(found.slot) / span * 1e9 if span > 0 else math.nan
    at, took = found.slot[kept.use], found.took_ns[kept.use]
    out.undelayed_ns = _undelayed(record, part, at, took)
    built = _design(record, data, part, found, at, kept)
    if built is None:
        out.findings = [
            Finding(n, reason=f"only {int(usable.sum())} slots were seen",
                    help="a longer --budget") for n in names
        ]  # fmt: skip
        out.load = load(events, None)
        return out
    design, whose, doses = built
    # Calls of lost requests are counted.
    part_seen = _seen(record, events, lost)
    doses = [
        replace(d, request_ns=d.request_ns * part_seen, calls=d.calls * part_seen)
        for d in doses
    ]
    mine = np.isin(at, design.rows)
    place = np.searchsorted(design.rows, at[mine])
    took = took[mine]
    out.used = len(took)
    estimates = _estimates(design, took, place)
    count = slots.units[part].astype(float)
    time = least_squares(_with_lag(design), np.nan_to_num(slots.time_ns[part]), count)
    unit = span / max(float(count[usable].sum()), 1.0)
    mean = out.undelayed_ns.get("mean", float(took.mean()))
    real = [k for k, functions in enumerate(whose) if functions]
    out.load = load(events, _moves(estimates["mean"], mean, time, unit, real))
    out.sham, out.sham_alarms = _sham(design, whose, estimates["mean"])
    for n in names:
        if (n,) not in whose:
            out.findings.append(_unmeasured(record, n))
            continue
        k = whose.index((n,))
        out.findings.append(
            _measured(n, k, design, doses[k], estimates, time, unit, place)
        )
    rates = discoveries([f.p for f in out.findings])
    spent = span / 1e9
    out.findings = [
        _judged(f, rate, len(names), out, spent)
        for f, rate in zip(out.findings, rates, strict=True)
    ]
    _warn(out, kept, record.machine.share)
    return out


def _sham(
    design: Design, whose: Sequence[tuple[str, ...]], mean: Estimate
) -> tuple[Interval | None, bool]:
    """The apparent effect of no delay on the mean, and whether it is not 0."""
    if () not in whose:
        return None, False
    k = whose.index(())
    on = int((design.x[design.rows][:, design.member == k] > 0).any(1).sum())
    if on < MIN_ON:
        return None, False
    value, error = float(mean.value[k]), float(mean.error[k])
    return around(value, error, on - 1), abs(value) > sham_bound(on) * error


@dataclass(frozen=True)
class _Dose:
    """Delay per request and per call, and calls per request."""

    request_ns: float
    call_ns: float
    calls: float


def _seen(record: Record, events: Events, lost: int) -> float:
    """The part of the requests that was not lost, known for all kinds together."""
    seen = len(events if record.requests is None else record.requests)
    seen += int(record.header.get("requests_dropped", {}).get("count", 0))
    return seen / (seen + lost)


def _undelayed(
    record: Record, part: slice, at: Integers, took: Floats
) -> dict[str, float]:
    mask = record.slots.mask[part]
    quiet = (undelayed(record)[part] | (mask == 0))[at]
    some = took[quiet] if quiet.sum() >= MIN_BEYOND else took
    if not len(some):
        return {}
    quantiles = {key: float(np.quantile(some, tau)) for key, tau in QUANTILES.items()}
    return {"mean": float(some.mean()), **quantiles}


def _design(
    record: Record, data: Table, part: slice, found: Requests, at: Integers, kept: Kept
) -> tuple[Design, list[tuple[str, ...]], list[_Dose]] | None:
    """The columns of the regression, their answers, and their doses."""
    slots = record.slots
    on = data.switched
    assert on is not None
    n = len(data.y)
    block = block_index(record)[part]
    busy = np.array(
        [b.stage in SINGLE and not is_rest(b) for b in record.blocks] + [False]
    )[block]
    usable = data.age >= 0
    position = {name: k for k, name in enumerate(record.functions)}
    delivered, calls = slots.delivered_ns[part], slots.calls[part]
    of_requests = np.zeros(on.shape[1])
    for k, column in enumerate(data.columns):
        where = [position[name] for name in column.functions]
        inside = on[:, k] & usable
        total = float(np.nansum(delivered[inside][:, where]))
        of_requests[k] = total / max(float(found.count[inside].sum()), 1.0)
    whose = sorted({column.functions for column in data.columns})
    member = np.array([whose.index(column.functions) for column in data.columns])
    doses = []
    x = np.zeros(on.shape)
    for m, functions in enumerate(whose):
        mine = np.flatnonzero(member == m)
        inside = on[:, mine].any(1) & usable
        where = [position[name] for name in functions]
        came = max(float(found.count[inside].sum()), 1.0)
        total = float(np.nansum(delivered[inside][:, where]))
        called = float(np.nansum(calls[inside][:, where]))
        dose = _Dose(total / came, total / called if called else 0.0, called / came)
        doses.append(dose)
        for k in map(int, mine):
            times = of_requests[k] / dose.request_ns if dose.request_ns > 0 else 1.0
            x[:, k] = on[:, k] * times
    counted = np.bincount(at, minlength=n) > 0
    rows = np.flatnonzero((data.age >= kept.lags) & busy & counted)
    if len(rows) < max(MIN_ROWS, 3 * len(whose) * (1 + kept.lags)):
        return None
    slow = _slow(data, rows)
    other = np.zeros((n, 1 + slow.shape[1]))
    other[rows] = np.concatenate([np.ones((len(rows), 1)), slow], axis=1)
    return Design(data, x, member, other, rows, kept.lags), whose, doses


def _with_lag(design: Design) -> Design:
    """A unit that is late for one slot is early for the next, where it counts too."""
    rows = design.rows[design.data.age[design.rows] >= 1]
    return Design(design.data, design.x, design.member, design.other, rows, 1)


def _estimates(design: Design, took: Floats, place: Integers) -> dict[str, Estimate]:
    n = len(design.data.y)
    rows = design.rows[place]
    total = np.asarray(np.bincount(rows, took, n), float)
    count = np.asarray(np.bincount(rows, minlength=n), float)
    found = {"mean": least_squares(design, total, count)}
    scale = float(np.median(took)) or 1.0
    for key, tau in QUANTILES.items():
        one = regression_quantile(design, took / scale, place, tau)
        found[key] = one.times(scale)
    return found


def _measured(
    name: str,
    k: int,
    design: Design,
    dose: _Dose,
    estimates: dict[str, Estimate],
    time: Estimate,
    unit: float,
    place: Integers,
) -> Finding:
    """The numbers of a function, and their p value."""
    on = np.asarray((design.x[design.rows][:, design.member == k] > 0).any(1))
    slots, count = int(on.sum()), int(on[place].sum())
    found = Finding(
        name,
        delay_ns=dose.call_ns,
        calls=dose.calls,
        dose_ns=dose.request_ns,
        requests=count,
        slots=slots,
    )
    if slots < MIN_ON or not dose.request_ns > 0:
        return found
    added, tails = {}, []
    for key, one in estimates.items():
        value, error = float(one.value[k]), float(one.error[k])
        tau = QUANTILES.get(key, 0.5)
        if not (math.isfinite(value) and math.isfinite(error) and error > 0):
            continue
        if count * min(tau, 1 - tau) < MIN_BEYOND:
            continue
        added[key] = one.interval(k, slots - 1)
        tails.append(upper_tail(value / error, slots - 1))
    arrives = scaled(added["mean"], 1 / dose.request_ns) if "mean" in added else None
    moved = around(float(time.value[k]), float(time.error[k]), slots - 1)
    return replace(
        found,
        added_ns=added,
        arrives=arrives,
        throughput=scaled(moved, -1 / unit),
        p=min(1.0, len(tails) * min(tails, default=1.0)),
    )


def _unmeasured(record: Record, name: str) -> Finding:
    if name in record.idle or name not in record.functions:
        return Finding(name, reason="it was never called", help="a load that calls it")
    seen = np.nansum(record.slots.calls[:, record.functions.index(name)])
    if not seen:
        return Finding(
            name,
            reason="it was never called while the experiment ran",
            help="a longer run",
        )
    return Finding(
        name,
        reason="it was not delayed on its own",
        help="name fewer functions, or a longer --budget",
    )


def _times(interval: Interval, wanted: float, spent: float) -> str:
    """How much more time is needed until half of the interval is ``wanted``."""
    more = spent * ((interval.half / max(wanted, 1e-9)) ** 2 - 1)
    return f"about {lasting(max(more, 10))} more, or more requests a second"


def _judged(
    f: Finding, rate: float, functions: int, out: RequestLatency, spent: float
) -> Finding:
    """Add the verdict to a finding."""
    f = replace(f, false_discovery=rate)
    if f.reason:
        return f
    if out.load is not None and out.load.kind == OVERLOADED:
        return replace(
            f,
            reason="more requests come than are answered: the queue grew all the time",
            help="fewer requests a second",
        )
    if f.slots < MIN_ON or f.arrives is None or not f.dose_ns > 0:
        return replace(
            f,
            reason=f"only {f.requests} requests came in {f.slots} slots in which it was "
            "delayed",
            help=f"about {lasting(max(spent, 10))} more, or fewer functions",
        )
    # The dose includes calls for other requests: whether a request waits for its own call
    # is judged per call, as in the table.
    mean = scaled(f.added_ns["mean"], 1 / min(f.dose_ns, f.delay_ns))
    whose = "its delay" if f.dose_ns <= f.delay_ns else "the delay of a call"
    said = f"{mean.value:.2f} ± {mean.half:.2f} of {whose} arrives in the mean"
    parts = {
        key: scaled(one, 1 / f.delay_ns)
        for key, one in f.added_ns.items()
        if key != "mean"
    }
    ordinary = parts.get("p50")
    moved = [key for key in parts if parts[key].low > THRESHOLD]
    still = [key for key in parts if parts[key].high < THRESHOLD]
    if mean.low <= THRESHOLD and not moved:
        if mean.high < THRESHOLD or len(still) == len(QUANTILES):
            return replace(f, verdict=HIDDEN, reason=f"{said}: no request waits for it")
        return replace(
            f,
            reason=f"{said}: above or below {THRESHOLD} is not certain",
            help=_times(mean, max(abs(mean.value - THRESHOLD), THRESHOLD / 2), spent),
        )
    if rate > FALSE_DISCOVERIES:
        return replace(
            f,
            reason=f"{said}; among {functions} functions that can be chance",
            help=_times(mean, mean.half / 2, spent),
        )
    if f.arrives.low > AMPLIFIED:
        said = f"{f.arrives.value:.2f} ± {f.arrives.half:.2f} of its delay arrives in"
        return replace(
            f,
            verdict=QUEUE,
            reason=f"{said} the mean: requests wait for others that it delays",
        )
    if ordinary is None:
        return replace(
            f,
            reason=f"{said}; too few requests came to say of which",
            help=_times(mean, mean.half / 2, spent),
        )
    of_ordinary = (
        f"the p50 moves by {ordinary.value:.2f} ({ordinary.low:.2f} to "
        f"{ordinary.high:.2f}) of the delay of a call"
    )
    if ordinary.low > THRESHOLD:
        return replace(f, verdict=EVERY, reason=f"{said}; {of_ordinary}")
    if ordinary.high < THRESHOLD:
        where = f"the {moved[0]} moves" if moved else said
        return replace(f, verdict=SLOW_ONES, reason=f"{where}; {of_ordinary}")
    return replace(
        f,
        reason=f"{said}; {of_ordinary}: whether all requests or only the slow ones "
        "is not certain",
        help=_times(ordinary, max(abs(ordinary.value - THRESHOLD), THRESHOLD / 2), spent),
    )


def _warn(out: RequestLatency, kept: Kept, share: float) -> None:
    """Warnings that apply to all numbers."""
    if share < WHOLE:
        out.warnings.append(
            f"the program had {share:.0%} of the CPU time that it wanted: what a delay "
            "takes from the others is in the numbers"
        )
    if out.lost:
        out.warnings.append(
            f"{out.lost:,} requests were lost before they were read: numbers are of the "
            "others"
        )
    if kept.is_short:
        out.warnings.append(
            f"requests take as long as a part of a slot ({human(out.slot_ns)}): what "
            "reaches over slots is missing; longer slots help"
        )
    if kept.alike_far > CARRIED_FAR:
        out.warnings.append(
            "the queue is carried over more than two slots: effects are at least what is "
            "said; longer slots help"
        )
    sham = out.sham
    if sham is not None and out.sham_alarms:
        out.warnings.append(
            f"nothing seems to add {human(abs(sham.value))}: something other than delays "
            "is at work"
        )
