# SPDX-License-Identifier: MIT
"""What a record says of each function: how much it matters, how sure that is, and why.

All of it is worked out from the record alone, so that an old file can be judged again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from speed_bump.duration import human
from speed_bump.experiment import robust
from speed_bump.experiment.estimate import Interval
from speed_bump.experiment.records import (
    GROUP,
    JOINT,
    SHAM,
    SLEEP,
    SOLO,
    SPIN,
    Census,
    Pair,
    Record,
    Window,
)

LINEAR = "linear"
HINGE = "hinge"
AMPLIFIED = "amplified"
NEGATIVE = "negative"
INCONCLUSIVE = "inconclusive"

# Fewer pairs at a level say nothing.
LEAST_PAIRS = 8
# Nor do fewer delays off the CPU contradict those on it.
LEAST_SLEEPS = 12
# An answer is final with so many pairs at least: whoever stops as soon as an interval is
# narrow enough stops where a few pairs agree by chance.
LEAST_DECIDED = 32
# Half an interval of the criticality that is asked for, and that of the lowest level,
# which tells whether the response bends.
PRECISION = 0.05
LOW_PRECISION = 0.15
# Less than this part of a delay that arrives counts as hidden, for certain.
HIDDEN = 0.1
# More than this part of the time at unknown places is worth a word.
MUCH_UNSEEN = 0.05
# A function is told apart from the serial ones above this, for certain.
AMPLIFYING = 1.1
NEGATIVE_BELOW = -0.05
# A response bends, and windows of two lengths disagree, from this difference of two
# criticalities on, if it is no accident.
BEND = 0.1
BEND_Z = 3.3
# The slack of a hinge is known when half its interval is this part of it.
SLACK_PRECISION = 0.15
# Above these the machine was too busy for an answer: what delays took of what was asked;
# the share of the time that threads of the program waited for a CPU, or where that is not
# known anybody did (PSI); the share that the hypervisor took; and the time that threads
# waited more with the delays than without, in parts of the delay. The last is what wrong
# labels come from: without it 7 of 25 answers of bench/rank/coverage.py were wrong under
# up to two other busy processes on two CPUs, with it none of 9, whatever the others are.
BUSY_DELAY = 1.2
BUSY_WAIT = 0.2
BUSY_STALL = 0.2
BUSY_STEAL = 0.05
BUSY_EXCESS = 0.1
# Two functions share a bottleneck above, hide one another below this part of the sum.
SERIAL_ABOVE = 0.85
PARALLEL_BELOW = 0.75
ALARM_CONFIDENCE = 0.99


@dataclass(frozen=True)
class Level:
    """The response at one delay: ``delivered_ns`` and ``extra_ns`` are per unit."""

    share: float
    pairs: int
    delivered_ns: float
    extra_ns: Interval
    criticality: Interval


@dataclass
class Finding:
    """What is known of one function.

    ``criticality`` is the trimmed estimate, ``mean`` the plain one with its bootstrap
    interval, ``slope`` that of Theil and Sen; ``headroom`` the criticality times
    ``self_share``, of the total time. ``slack_ns`` is the delay per unit of work that is
    hidden, an interval that is open upwards where no hinge was reached. ``rate`` is the
    rate of false discoveries at which the function matters. ``needs_s`` is how much
    longer the experiment must be for an answer, 0 where there is one. ``contended`` says
    why the machine was no place to measure it, "" if it was one.
    """

    name: str
    calls: float = 0.0
    self_share: Interval | None = None
    pairs: int = 0
    levels: list[Level] = field(default_factory=list)
    length_ns: int = 0
    criticality: Interval | None = None
    mean: Interval | None = None
    slope: Interval | None = None
    sleeping: Interval | None = None
    headroom: Interval | None = None
    shape: str = INCONCLUSIVE
    slack_ns: Interval | None = None
    rate: float = 1.0
    busy: float = 1.0
    decided: bool = False
    needs_s: float = 0.0
    contended: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def matters(self) -> bool:
        """Whether a delay in it arrives, for certain."""
        return (
            self.criticality is not None
            and self.criticality.low > 0
            and self.rate <= 0.05
            and self.shape != INCONCLUSIVE
        )

    @property
    def supported(self) -> bool:
        """Whether the data support a number."""
        return self.shape != INCONCLUSIVE and self.criticality is not None

    @property
    def verdict(self) -> str:
        """The shape in words."""
        if self.shape == INCONCLUSIVE:
            if self.contended:
                return f"inconclusive: {self.contended}"
            if self.notes and not self.pairs:
                return f"inconclusive: {self.notes[0]}"
            if self.needs_s:
                return f"inconclusive: needs about {seconds(self.needs_s)} more"
            return "inconclusive"
        if self.shape == HINGE and self.slack_ns:
            if math.isinf(self.slack_ns.high):
                return f"hinge, slack over {micros(self.slack_ns.low)}"
            return f"hinge, slack {micros(self.slack_ns.value)}"
        return self.shape


@dataclass(frozen=True)
class Together:
    """Two functions delayed at once: ``part`` is of the sum of both effects."""

    names: tuple[str, str]
    part: Interval
    verdict: str


@dataclass
class Verdict:
    """What is known of all of them, the one with the most headroom first."""

    findings: list[Finding]
    unit_ns: float
    together: list[Together]
    sham: Interval | None
    sham_alarm: bool
    sham_pairs: int
    wait_share: float
    stall_share: float
    steal_share: float
    notes: list[str]

    def of(self, name: str) -> Finding | None:
        """The finding of a function."""
        return next((f for f in self.findings if f.name == name), None)


def micros(ns: float) -> str:
    """In microseconds, with three digits."""
    us = ns / 1000
    if us >= 100:
        return f"{us:,.0f} µs"
    return f"{us:.1f} µs" if us >= 10 else f"{us:.2f} µs"


def seconds(value: float) -> str:
    """Rounded up for people."""
    if value < 90:
        return f"{max(math.ceil(value), 1)} s"
    if value < 5400:
        return f"{math.ceil(value / 60)} min"
    return f"{math.ceil(value / 3600)} h"


# ------------------------------------------------------------------ estimates


def delivered(pairs: Sequence[Pair]) -> list[float]:
    """The delay per unit of each pair, ns.

    A delay in which the thread was off the CPU took longer than asked, and where it
    happened is chance: what was asked in each pair is taken, times ``overrun()``.
    """
    factor = overrun(pairs)
    return [p.requested_ns * factor for p in pairs]


def overrun(pairs: Sequence[Pair]) -> float:
    """What delays took of what was asked, as most pairs have it.

    Trimmed as the estimates are: a delay of a few µs in which the thread was off the CPU
    for milliseconds would weigh more than all others, and its pair does not count.
    """
    parts = [p.delivered_ns / p.requested_ns for p in pairs if p.requested_ns > 0]
    return robust.trimmed_mean(parts) if parts else 1.0


def criticality_of(pairs: Sequence[Pair], confidence: float = 0.95) -> Interval | None:
    """The headline estimate of pairs of one function; None: too few."""
    pairs = [p for p in pairs if p.is_good]
    if len(pairs) < LEAST_PAIRS:
        return None
    x = delivered(pairs)
    if math.fsum(x) <= 0:
        return None
    return robust.trimmed_ratio([p.change_ns for p in pairs], x, confidence)


def _level(share: float, pairs: Sequence[Pair]) -> Level | None:
    found = criticality_of(pairs)
    if found is None:
        return None
    x = math.fsum(delivered(pairs)) / len(pairs)
    extra = Interval(found.value * x, found.low * x, found.high * x)
    return Level(share, len(pairs), x, extra, found)


def _error(interval: Interval, pairs: int) -> float:
    return max(robust.standard_error(interval, pairs), 1e-9)


def _half(interval: Interval) -> float:
    return (interval.high - interval.low) / 2


def _differ(a: Interval, a_pairs: int, b: Interval, b_pairs: int) -> bool:
    difference = a.value - b.value
    error = math.hypot(_error(a, a_pairs), _error(b, b_pairs))
    return abs(difference) > BEND and abs(difference) > BEND_Z * error


def agreeing_length(pairs: Sequence[Pair]) -> tuple[int, list[Pair], bool]:
    """The pairs whose windows are long enough, of what length, and whether that is known.

    A buffer between a function and the progress hides a delay for a time. Windows of the
    longest length count, and those shorter ones that say the same.
    """
    lengths = sorted({p.length_ns for p in pairs})
    by_length = {n: [p for p in pairs if p.length_ns == n] for n in lengths}
    known = [n for n in lengths if len(by_length[n]) >= LEAST_PAIRS]
    if not known:
        return (lengths[-1] if lengths else 0), list(pairs), False
    taken = list(by_length[known[-1]])
    shortest = known[-1]
    for length in reversed(known[:-1]):
        if _lengths_differ(by_length[length], taken):
            break
        taken += by_length[length]
        shortest = length
    taken.sort(key=lambda p: p.at_ns)
    return shortest, taken, len(known) > 1 and shortest < known[-1]


def _lengths_differ(a: Sequence[Pair], b: Sequence[Pair]) -> bool:
    """Whether windows of two lengths disagree at some level that both have."""
    for share in {p.share for p in a} & {p.share for p in b}:
        one = [p for p in a if p.share == share]
        other = [p for p in b if p.share == share]
        x, y = criticality_of(one), criticality_of(other)
        if x and y and _differ(x, len(one), y, len(other)):
            return True
    return False


# ---------------------------------------------------------------------- hinge


def fit_hinge(levels: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """The slack and the slope behind it of ``extra = slope * max(0, x - slack)``.

    Args:
        levels: delay, extra time and its standard error at each level

    Weighted least squares; the slack by search, since the slope then has a closed form.
    Where one level alone is behind the hinge it can't tell slope from slack, and the
    slope is taken as 1: behind the slack every nanosecond arrives.
    """
    most = max(x for x, _, _ in levels)
    best = (math.inf, most, 1.0)
    steps = 200
    for i in range(steps):
        slack = most * i / steps
        behind = [(x - slack, e, s) for x, e, s in levels if x > slack]
        if len(behind) > 1:
            below = math.fsum(x * x / s**2 for x, _, s in behind)
            slope = math.fsum(x * e / s**2 for x, e, s in behind) / below
            slope = min(max(slope, 0.2), 2.0)
        else:
            slope = 1.0
        error = math.fsum(
            ((e - slope * max(x - slack, 0.0)) / s) ** 2 for x, e, s in levels
        )
        # A slope other than 1 must be worth it.
        error += ((slope - 1) / 0.25) ** 2
        if error < best[0]:
            best = (error, slack, slope)
    return best[1], best[2]


def hinge(levels: Sequence[Level], seed: int) -> Interval:
    """The slack, ns per unit, with an interval by parametric bootstrap of the levels."""
    points = [
        (v.delivered_ns, v.extra_ns.value, _error(v.extra_ns, v.pairs)) for v in levels
    ]
    slack, _ = fit_hinge(points)
    draw = random.Random(seed)
    drawn = sorted(
        fit_hinge([(x, draw.gauss(e, s), s) for x, e, s in points])[0] for _ in range(200)
    )
    # A grid of 1/200 of the largest delay is as fine as it gets.
    grain = max(x for x, _, _ in points) / 200
    return Interval(
        slack, max(min(drawn[5], slack) - grain, 0.0), max(drawn[194], slack) + grain
    )


# -------------------------------------------------------------------- findings


class Judge:
    """Judges a record; made anew when it has grown.

    Args:
        full: with the estimates that stand beside the headline, which take longer
        precision: half the interval of the criticality that is asked for
    """

    def __init__(
        self, record: Record, *, full: bool = True, precision: float = PRECISION
    ) -> None:
        """Sort the pairs by what they are for."""
        self._record = record
        self._full = full
        self._precision = precision
        self._solo: dict[str, list[Pair]] = {}
        self._good = [p for p in record.pairs if p.is_good]
        for pair in self._good:
            if pair.kind == SOLO:
                self._solo.setdefault(pair.names[0], []).append(pair)

    def verdict(self) -> Verdict:
        """All that is known."""
        record = self._record
        findings = [self._find(name, pairs) for name, pairs in self._solo.items()]
        findings += self._not_measured({f.name for f in findings})
        self._hold_false_discoveries(findings)
        sham, alarm, shams = self._sham()
        wait, stall, steal = pressure(self._good)
        whole = "a sham, zero delay, seemed to have an effect" if alarm else ""
        for finding in findings:
            if finding.pairs:
                finding.contended = whole or finding.contended
            self._settle(finding)
        findings.sort(key=_rank)
        self._estimate_needs(findings)
        verdict = Verdict(
            findings,
            self.unit_ns(),
            self._together(findings),
            sham,
            alarm,
            shams,
            wait,
            stall,
            steal,
            [],
        )
        verdict.notes = _notes(record, verdict)
        return verdict

    def unit_ns(self) -> float:
        """The undelayed time of a unit of work."""
        times = [p.off.unit_ns for p in self._good]
        if times:
            return robust.trimmed_mean(times)
        units = sum(c.units for c in self._record.censuses)
        return sum(c.clock_ns for c in self._record.censuses) / units if units else 0.0

    def _find(self, name: str, pairs: list[Pair]) -> Finding:
        finding = Finding(name, calls=self._calls(name))
        finding.self_share = self_share(self._record.censuses, name)
        spin = [p for p in pairs if p.mode == SPIN]
        finding.pairs = len(spin)
        finding.busy = overrun(spin)
        finding.sleeping = criticality_of([p for p in pairs if p.mode == SLEEP])
        finding.length_ns, taken, _ = agreeing_length(spin)
        shares = sorted({p.share for p in taken})
        levels = [_level(s, [p for p in taken if p.share == s]) for s in shares]
        finding.levels = [level for level in levels if level]
        if not finding.levels:
            finding.contended = contention(spin)
            finding.notes.append(
                "too few windows in which it was called"
                if len(spin) >= LEAST_PAIRS
                else "too few windows"
            )
            return finding
        self._shape(finding, taken)
        finding.contended = contention(spin) or _disagreement(finding, spin, pairs)
        return finding

    def _shape(self, finding: Finding, taken: list[Pair]) -> None:
        levels = finding.levels
        all_pairs = [p for p in taken if any(p.share == v.share for v in levels)]
        pooled = criticality_of(all_pairs)
        assert pooled is not None
        headline, of = pooled, all_pairs
        low, high = levels[0], levels[-1]
        bends = len(levels) > 1 and _differ(
            low.criticality, low.pairs, high.criticality, high.pairs
        )
        if bends and high.criticality.value > low.criticality.value:
            finding.slack_ns = hinge(levels, self._record.seed)
            # What matters for making it faster is the response to the least delay.
            before = [v for v in levels if v.delivered_ns <= finding.slack_ns.value]
            shares = {v.share for v in before or [low]}
            of = [p for p in all_pairs if p.share in shares]
            headline = criticality_of(of) or low.criticality
            finding.shape = HINGE
        elif len(levels) > 1 and pooled.high < HIDDEN and pooled.low > -HIDDEN:
            finding.slack_ns = Interval(high.delivered_ns, high.delivered_ns, math.inf)
            finding.shape = HINGE
        elif pooled.low > AMPLIFYING:
            finding.shape = AMPLIFIED
        elif pooled.high < NEGATIVE_BELOW:
            finding.shape = NEGATIVE
        elif (
            len(levels) > 1
            and pooled.low > HIDDEN
            and _half(pooled) <= LOW_PRECISION
            and _half(low.criticality) <= 2 * LOW_PRECISION
        ):
            finding.shape = LINEAR
        if bends and high.criticality.value < low.criticality.value:
            finding.notes.append("longer delays arrive less than short ones")
        finding.criticality = headline
        if self._full:
            changes, x = [p.change_ns for p in of], delivered(of)
            finding.mean = robust.bootstrap_ratio(changes, x, self._record.seed)
            finding.slope = robust.theil_sen(
                [p.change_ns for p in all_pairs], delivered(all_pairs), self._record.seed
            )
            _warn_of_disagreement(finding)

    def _calls(self, name: str) -> float:
        units = sum(c.units for c in self._record.censuses)
        calls = sum(c.calls.get(name, 0) for c in self._record.censuses)
        return calls / units if units else 0.0

    def _not_measured(self, known: set[str]) -> list[Finding]:
        """Those that screening took out, and those that were never called."""
        found = []
        for test in self._record.tests:
            if test.matters:
                continue
            for name in test.names:
                if name in known:
                    continue
                known.add(name)
                finding = Finding(name, calls=self._calls(name))
                finding.self_share = self_share(self._record.censuses, name)
                unit = self.unit_ns()
                finding.criticality = Interval(
                    test.effect / test.share,
                    test.low / test.share,
                    test.high / test.share,
                )
                finding.shape = HINGE
                finding.slack_ns = Interval(
                    test.share * unit, test.share * unit, math.inf
                )
                finding.decided = True
                finding.pairs = test.pairs
                finding.contended = contention(
                    [p for p in self._good if p.names == test.names]
                )
                finding.notes.append(
                    f"tested with {len(test.names) - 1} others, none of which matters"
                    if len(test.names) > 1
                    else "did not matter when it was screened"
                )
                found.append(finding)
        for name in self._record.header.get("candidates", []):
            if name not in known:
                finding = Finding(name, calls=self._calls(name))
                finding.self_share = self_share(self._record.censuses, name)
                finding.notes.append(
                    "not reached in the time that there was"
                    if finding.calls
                    else "not called while it was measured"
                )
                found.append(finding)
        return found

    def _hold_false_discoveries(self, findings: Iterable[Finding]) -> None:
        """Of all that were estimated one by one."""
        asked = [f for f in findings if f.levels and f.criticality]
        values = []
        for f in asked:
            assert f.criticality is not None
            pairs = sum(v.pairs for v in f.levels)
            z = f.criticality.value / _error(f.criticality, pairs)
            values.append(1 - robust.normal_cdf(z))
        rates = robust.false_discovery(values)
        for finding, rate in zip(asked, rates, strict=True):
            finding.rate = rate

    def _settle(self, finding: Finding) -> None:
        """Headroom, and whether the question is decided."""
        c = finding.criticality
        if c is None:
            return
        if finding.self_share is not None:
            finding.headroom = headroom(c, finding.self_share)
        if finding.contended:
            finding.shape, finding.decided = INCONCLUSIVE, False
            return
        if finding.levels:
            if finding.shape == LINEAR and (c.low <= 0 or finding.rate > 0.05):
                finding.shape = INCONCLUSIVE
            finding.decided = is_decided(finding, self._precision)

    def _estimate_needs(self, findings: list[Finding]) -> None:
        open_ones = [f for f in findings if not f.decided and f.criticality and f.levels]
        for f in open_ones:
            if f.contended:
                continue  # more of the same would not help
            assert f.criticality is not None
            pairs = self._solo[f.name]
            low = f.levels[0].criticality
            # Hidden or not must be known, too; what is just between never will be.
            beside = max(abs(f.criticality.value - HIDDEN), self._precision / 4)
            ratio = max(
                (_half(f.criticality) / self._precision / scale(f.criticality)) ** 2,
                (_half(low) / LOW_PRECISION) ** 2,
                (_half(f.criticality) / beside) ** 2,
                1.1,
            )
            took = math.fsum(p.off.clock_ns * 1.25 + p.on.clock_ns * 1.25 for p in pairs)
            f.needs_s = took * (ratio - 1) * max(len(open_ones), 1) / 1e9

    def _sham(self) -> tuple[Interval | None, bool, int]:
        pairs = [p for p in self._good if p.kind == SHAM]
        if len(pairs) < LEAST_PAIRS:
            return None, False, len(pairs)
        x = [p.share * p.off.unit_ns for p in pairs]
        changes = [p.change_ns for p in pairs]
        alarm = robust.trimmed_ratio(changes, x, ALARM_CONFIDENCE)
        found = robust.trimmed_ratio(changes, x)
        return found, not alarm.low <= 0 <= alarm.high, len(pairs)

    def _together(self, findings: Sequence[Finding]) -> list[Together]:
        joint: dict[tuple[str, ...], list[Pair]] = {}
        for pair in self._good:
            if pair.kind == JOINT:
                joint.setdefault(pair.names, []).append(pair)
        known = {f.name: f.criticality for f in findings if f.criticality and f.supported}
        found = []
        for names, pairs in joint.items():
            both = criticality_of(pairs)
            a, b = known.get(names[0]), known.get(names[1])
            if both is None or a is None or b is None or a.value + b.value <= 0:
                continue
            # Both are delayed by the same share, so alone they add up to their mean.
            alone = (a.value + b.value) / 2
            error = math.hypot(_half(both), _half(a) / 2, _half(b) / 2)
            part = Interval(
                both.value / alone,
                (both.value - error) / alone,
                (both.value + error) / alone,
            )
            if part.low > PARALLEL_BELOW and part.high > SERIAL_ABOVE:
                text = "serial: their delays add up"
            elif part.high < SERIAL_ABOVE and part.low < PARALLEL_BELOW:
                text = "parallel: they hide one another, only both together gain"
            else:
                text = "inconclusive"
            found.append(Together((names[0], names[1]), part, text))
        return found


def scale(criticality: Interval) -> float:
    """What a precision is relative to: an amplified criticality is known to a part."""
    return max(1.0, abs(criticality.value))


def is_decided(finding: Finding, precision: float) -> bool:
    """Whether more data would not change the answer."""
    c = finding.criticality
    if c is None or finding.shape == INCONCLUSIVE or not finding.levels:
        return False
    if sum(level.pairs for level in finding.levels) < LEAST_DECIDED:
        return False
    low = finding.levels[0]
    if _half(low.criticality) > LOW_PRECISION * scale(low.criticality):
        return False
    if finding.shape == HINGE and finding.slack_ns:
        if math.isinf(finding.slack_ns.high):
            return True
        least = finding.levels[-1].delivered_ns / 50
        return _half(finding.slack_ns) <= max(
            SLACK_PRECISION * finding.slack_ns.value, least
        )
    return _half(c) <= precision * scale(c)


def headroom(criticality: Interval, share: Interval) -> Interval:
    """Criticality times self time, in parts of the total; never above 1 or below 0.

    Its error by the delta method: both were measured independently.
    """
    c, s = criticality.value, share.value
    error = math.hypot(s * _half(criticality), c * _half(share))
    low, value, high = (
        min(max(v, 0.0), 1.0) for v in (c * s - error, c * s, c * s + error)
    )
    return Interval(value, low, high)


def is_native(name: str) -> bool:
    """Whether it is the name of a native function: with the path of its file."""
    return name.startswith("/")


def self_share(censuses: Sequence[Census], name: str) -> Interval | None:
    """The average number of threads in the function, which is its self time ÷ total.

    None: it could not be seen. The interval is Wilson's score interval for a proportion
    (Journal of the American Statistical Association 22, 1927), the looks being apart.
    """
    if is_native(name):
        times = [c.native for c in censuses if c.native and name in c.native.self_ns]
        looks = sum(t.looks[name] for t in times)
        clock_ns = sum(t.clock_ns for t in times)
        share = sum(t.self_ns[name] for t in times) / clock_ns if clock_ns else 0.0
    else:
        seen = [c for c in censuses if c.self_from]
        looks = sum(c.ticks for c in seen)
        share = sum(c.samples.get(name, 0) for c in seen) / looks if looks else 0.0
    if not looks:
        return None
    threads = max(1, math.ceil(share))
    n, p = looks * threads, share / threads
    z = robust.normal_quantile(0.975)
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(
        p * threads, max(middle - half, 0.0) * threads, (middle + half) * threads
    )


def pressure(pairs: Sequence[Pair]) -> tuple[float, float, float]:
    """Shares of the time: the program's threads waited for a CPU, anybody did, stolen."""
    windows = [w for p in pairs for w in (p.off, p.on)]
    clock = sum(w.clock_ns for w in windows)
    if not clock:
        return 0.0, 0.0, 0.0
    return (
        sum(w.run_delay_ns for w in windows) / clock,
        sum(w.stall_ns for w in windows) / clock,
        sum(w.steal_ns for w in windows) / clock,
    )


def contention(pairs: Sequence[Pair]) -> str:
    """Why the machine was too busy for these pairs to say anything; "": it was not.

    A thread that waits for a CPU makes a unit of work longer for a reason that has
    nothing to do with the program. Where it waits more with the delays than without, what
    is seen is competition for CPUs, not what the program makes of a delay.
    """
    took = overrun(pairs)
    wait, stall, steal = pressure(pairs)
    waited = f"the program waited for a CPU {wait:.0%} of the time"
    why = ""
    if took > BUSY_DELAY:
        why = f"delays took {took:.1f} times what was asked"
    elif wait > BUSY_WAIT:
        why = waited
    elif not wait and stall > BUSY_STALL:
        why = f"somebody waited for a CPU {stall:.0%} of the time"
    elif steal > BUSY_STEAL:
        why = f"the hypervisor took {steal:.0%} of it"
    elif excess := excess_wait(pairs):
        error = _error(excess, len(pairs))
        if abs(excess.value) > max(BUSY_EXCESS, 2 * error):
            why = f"threads waited {excess.value:+.2f} of each delay for a CPU"
    return f"the machine is contended, {why}" if why else ""


def excess_wait(pairs: Sequence[Pair]) -> Interval | None:
    """How much longer threads wait for a CPU with the delays, in parts of the delay."""
    x = delivered(pairs)
    if len(pairs) < LEAST_PAIRS or math.fsum(x) <= 0:
        return None
    return robust.trimmed_ratio([_waiting(p.on) - _waiting(p.off) for p in pairs], x)


def _waiting(window: Window) -> float:
    """The time that threads waited for a CPU, per unit of work."""
    if not window.clock_ns:
        return 0.0
    return window.run_delay_ns / window.clock_ns * window.unit_ns


def _disagreement(finding: Finding, spin: list[Pair], pairs: list[Pair]) -> str:
    """Delays off the CPU must say what those on it say, or it was the CPU they met at.

    At the same levels. Where the response bends, a sleep, which is longer than what was
    asked, is another level.
    """
    # In a program of phases many windows have no calls, and few sleeps are left to say
    # anything.
    sleep = [p for p in pairs if p.mode == SLEEP and p.requested_ns > 0]
    if len(sleep) < LEAST_SLEEPS:
        return ""
    shares = {p.share for p in sleep}
    same = [p for p in spin if p.share in shares and p.requested_ns > 0]
    off, on = criticality_of(sleep), criticality_of(same)
    if off is None or on is None or finding.shape == HINGE:
        return ""
    if not _differ(off, len(sleep), on, len(same)):
        return ""
    return (
        "CPUs are contended, delays that hold one say "
        f"{on.value:.2f} and those that sleep {off.value:.2f}"
    )


def _warn_of_disagreement(finding: Finding) -> None:
    c, mean = finding.criticality, finding.mean
    if c is None or mean is None:
        return
    if (mean.low > c.high or mean.high < c.low) and abs(mean.value - c.value) > BEND:
        finding.notes.append(
            f"the plain mean says {mean.value:.2f} [{mean.low:.2f}, {mean.high:.2f}]: "
            "some windows are unlike the others (phases, or a noisy machine)"
        )


def _rank(finding: Finding) -> tuple[float, float, str]:
    head = finding.headroom.value if finding.headroom else -1.0
    c = finding.criticality.value if finding.criticality else -1.0
    if not finding.levels and finding.shape == INCONCLUSIVE:
        head, c = -2.0, -2.0
    return (-head, -c, finding.name)


def _notes(record: Record, verdict: Verdict) -> list[str]:
    notes = []
    worst = max((f.busy for f in verdict.findings), default=1.0)
    if verdict.wait_share > BUSY_WAIT or worst > BUSY_DELAY:
        text = (
            "measured under contention: the program waited for a CPU "
            f"{verdict.wait_share:.0%} of the time"
        )
        if worst > BUSY_DELAY:
            text += f", delays took up to {worst:.1f} times what was asked"
        notes.append(text + _contrast(verdict))
    if verdict.steal_share > 0.02:
        notes.append(f"the hypervisor took {verdict.steal_share:.0%} of the CPU time")
    if verdict.sham_alarm and verdict.sham:
        notes.append(
            f"a sham, zero delay, seemed to have an effect ({verdict.sham.value:+.2f} "
            f"[{verdict.sham.low:+.2f}, {verdict.sham.high:+.2f}]): do not trust this run"
        )
    lengths = {f.length_ns for f in verdict.findings if f.levels and f.length_ns}
    shortest = min((p.length_ns for p in record.pairs if p.length_ns), default=0)
    if lengths and max(lengths) > shortest:
        notes.append(
            f"buffers hide delays for a time: those of up to {human(max(lengths))} count"
        )
    if record.pairs:
        notes += _self_time_notes(record, verdict)
    return notes


def _self_time_notes(record: Record, verdict: Verdict) -> list[str]:
    """Of which functions self time is not known, or not all of it."""
    blind = [f for f in verdict.findings if f.self_share is None]
    times = [c.native for c in record.censuses if c.native]
    refused = next((t.refused for t in times if t.refused), "")
    notes = []
    if any(not is_native(f.name) or not refused for f in blind):
        notes.append("self time could not be seen, so there is no headroom")
    if refused and any(is_native(f.name) for f in blind):
        notes.append(
            "self time of native functions could not be seen, so they have no headroom: "
            + refused
        )
    clock_ns = sum(t.clock_ns for t in times)
    unseen = sum(t.unseen_ns for t in times) / clock_ns if clock_ns else 0.0
    if unseen > MUCH_UNSEEN:
        notes.append(
            f"some stacks could not be followed to their end: up to {unseen:.0%} of the "
            "time more may be self time of native functions"
        )
    return notes


def _contrast(verdict: Verdict) -> str:
    """The same delays off the CPU: what of the effect is competition for CPUs."""
    parts = [
        f"{f.name} {f.sleeping.value:.2f}"
        for f in verdict.findings
        if f.sleeping and f.criticality and f.criticality.low > HIDDEN
    ][:3]
    return f"; with delays that sleep: {', '.join(parts)}" if parts else ""


__all__ = ["GROUP", "Finding", "Judge", "Level", "Together", "Verdict"]
