# SPDX-License-Identifier: MIT
"""What to do next: which functions are delayed, and by how much, in the next slots.

The engine runs the slots of a block, adds them to the record, and calls again. The next
block depends on the seed, its index and the record.

It is one object, Stages: each stage begins with the state in which another one ended.
Hence the length.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from speed_bump.experiment.fit.bill import ALARM_LOOKING, Bill, bills
from speed_bump.experiment.fit.interval import INCONCLUSIVE, THRESHOLD
from speed_bump.experiment.fit.number import is_certain, is_jump, tells
from speed_bump.experiment.fit.verdict import verdict
from speed_bump.experiment.record import MAX_ARMS, Arm, Block, Record
from speed_bump.experiment.slots.arms import Delays, cost, rare_dose
from speed_bump.experiment.slots.blocks import (
    APART,
    BLOCK,
    BLOCKS_A_REST,
    REST,
    Turns,
    chances_of,
    thinned,
    weighted,
)
from speed_bump.experiment.slots.doses import DOSES, Doses
from speed_bump.experiment.slots.estimate import Estimate, estimate
from speed_bump.experiment.slots.few import FEW, few_slots
from speed_bump.experiment.slots.groups import MAX_LAST, MAX_SINGLE, Round, first_round
from speed_bump.experiment.slots.known import MIN_HOLDS, Known, is_little
from speed_bump.experiment.slots.now import Clock, Now
from speed_bump.experiment.slots.plan import (
    HOLDS,
    PEDESTAL_HOLDS,
    SHAM,
    Levels,
    Masks,
    each_on_its_own,
    pedestal,
    rest,
)

# The maximal number of functions in a block that are called seldom.
MAX_RARE = 8
# The length of a block, if slots are short.
BLOCK_S = 2.0
MAX_BLOCK = 960
# No answer is final, and no dose changed, before there are this many slots.
MIN_SLOTS = 100
# Effects of smaller doses than this are not looked for.
MIN_LEVEL = 0.04
# After these parts of the budget, questions of second order are examined in any case.
LEVELS_FROM = 0.6
# From this part of the budget on, functions that may have headroom are delayed more
# often than others.
WEIGHTS_FROM = 0.4
# Slots of each height of a pedestal, and before the highest one.
PEDESTAL_SLOTS, PEDESTAL_SETTLE, PEDESTAL_STEPS = 80, 60, 6
PEDESTAL_STEP = 0.15
MIN_PEDESTAL_STEP = 0.05
TIES_CHANCE = 0.25
TIES_SLOTS = 640
MIN_TIES = 240
# They may begin when intervals are narrower than this multiple of the requested width.
TIES_PRECISION = 1.6
MAX_TIED = 6


@dataclass(frozen=True)
class Options:
    """The user's options.

    Args:
        budget_s: seconds from the first slot to the last
        precision: half-width of the intervals at which an experiment is done
        max_slowdown: the part of its throughput that the program may lose, on average
            over the whole run
        min_delay_ns: the shortest delay of a call; that of a native function is longer
        fixed: functions with a given delay of a call, ns; a missing one has none (a
            defaultdict gives one to all)
    """

    budget_s: float
    precision: float = 0.05
    max_slowdown: float = 0.2
    min_delay_ns: int = 1000
    fixed: Mapping[str, int] = field(default_factory=dict)

    @property
    def cap(self) -> float:
        """The ratio of delay to undelayed time that keeps ``max_slowdown``."""
        share = min(max(self.max_slowdown, 1e-4), 0.9)
        return share / (1 - share)


class Stages:
    """An experiment's decisions, block by block.

    Args:
        options: of the user
        seed: the same seed and the same record give the same block
    """

    def __init__(self, options: Options, seed: int) -> None:
        self.options = options
        self.seed = seed
        self._clock = Clock(options.budget_s)
        self._delays = Delays(options.min_delay_ns, options.fixed)
        self._queue: deque[Block] = deque()
        self._since_rest = 0
        self._estimate: Estimate | None = None
        self._asked: set[str] = set()
        self._doses = Doses()
        self._few: bool | None = None
        self._round: Round | None = None
        self._singles: list[str] | None = None
        self._pedestals: set[str] = set()
        self._ties = 0
        self._rare_from = 0
        self._turn = False
        self._judged_at = -1
        self._is_answered = True
        self._weights: dict[str, float] = {}

    def next_block(self, record: Record) -> Block | None:
        """The next block; None: everything is decided, or the time is up."""
        now = self._clock.now(record)
        if now is None or now.left_s <= 0:
            return None
        if not self._queue:
            self._decide(record, now)
        if not self._queue:
            return None
        block = self._queue.popleft()
        most = math.ceil(now.left_slots)
        if len(block) > most and not block.stretches:
            block = _cut(block, most)
        return block

    # What is known

    def _draw(self, record: Record, more: int = 0) -> np.random.Generator:
        """The random generator of the next block."""
        index = len(record.blocks) + len(self._queue) + more
        return np.random.default_rng((self.seed, index))

    # Decisions

    def _decide(self, record: Record, now: Now) -> None:
        """Fill the queue; if it stays empty, the experiment is done."""
        functions = now.called
        if not functions:
            # Calls may still come.
            self._queue.append(rest(self._block_slots(now)))
            return
        if self._few is None:
            self._few = now.slots + now.left_slots < FEW
            self._doses = Doses.largest(len(functions), self.options.cap)
        if self._few:
            self._queue.append(
                few_slots(
                    functions, self._delays, now, self.options.cap, self._draw(record)
                )
            )
            return
        if self._singles is None:
            self._singles = self._screened(record, now)
            if self._singles is None:
                return
            self._asked = set(now.often)
        # More may come while it runs.
        for name in now.often:
            if name not in self._asked and len(self._singles) < MAX_LAST:
                self._singles.append(name)
                self._asked.add(name)
        self._single_stage(record, now)

    def _block_slots(self, now: Now) -> int:
        by_time = BLOCK_S * 1e9 / now.slot_ns
        return int(min(max(BLOCK, by_time), MAX_BLOCK, math.ceil(now.left_slots)))

    def _rest_slots(self, now: Now) -> int:
        return max(REST, self._block_slots(now) * BLOCKS_A_REST // 3)

    def _push(self, turns: Turns, record: Record, now: Now) -> None:
        """Append a block, with a rest after every second one."""
        count = self._block_slots(now)
        draw = self._draw(record)
        self._queue.append(turns.block(draw, count, now, self.options.cap))
        self._since_rest += 1
        if self._since_rest >= BLOCKS_A_REST:
            self._queue.append(rest(self._rest_slots(now)))
            self._since_rest = 0

    def _rare_arms(self, now: Now, room: int) -> tuple[Arm, ...]:
        """Functions that are called seldom, in turns."""
        seldom = now.seldom
        count = min(len(seldom), MAX_RARE, room)
        names = [seldom[(self._rare_from + k) % len(seldom)] for k in range(count)]
        self._rare_from += count
        dose = rare_dose(names, now, self.options.cap)
        if self._doses.alarms:
            dose /= 3
        return tuple(self._delays.rare_arm(name, dose, now) for name in names)

    # Groups

    def _screened(self, record: Record, now: Now) -> list[str] | None:
        """The functions that are left to be examined; None: the queue has a block."""
        often = now.often
        if len(often) <= MAX_SINGLE:
            return often
        if self._round is None:
            self._round = first_round(often, self._draw(record, 1000), now)
        else:
            self._round = self._round.after(record, now)
        if self._round.is_over:
            return self._round.functions
        doses = (self._round.dose,)
        arms = (SHAM, *(self._delays.arm(g, doses, now) for g in self._round.groups))
        costs = [cost(arm, now) for arm in arms]
        chances = thinned(chances_of(len(arms)), costs, self.options.cap)
        self._push(Turns("groups", arms, doses, chances), record, now)
        return None

    # One at a time

    def _single_stage(self, record: Record, now: Now) -> None:
        names = list(self._singles or [])
        previous = self._estimate
        if now.slots >= MIN_SLOTS:
            most = MAX_SINGLE + MAX_LAST
            self._estimate = estimate(record, now, previous, most)
        found = self._estimate
        if found is not None:
            is_fresh = found is not previous
            if is_fresh:
                self._heed(bills(found.effects, ALARM_LOOKING))
            known = Known(
                found.effects, found.threads, self.options.precision, self._doses.alarms
            )
            if is_fresh and names:
                self._doses = self._doses.chosen(known, now, LEVELS_FROM)
            wanted = [*names, *now.seldom]
            narrow = known.are_narrow(wanted)
            late = now.elapsed_s > LEVELS_FROM * self.options.budget_s
            late = late and known.are_clear(names)
            late = late or self._only_slack(known, names)
            if is_fresh and now.elapsed_s > WEIGHTS_FROM * self.options.budget_s:
                self._weights = known.weights(names, record)
            if self._second_order(record, now, known, narrow, late):
                return
            is_done = narrow and not found.is_refused
            is_done = is_done and (not known.alarms or known.are_settled(names))
            if is_done and self._has_answers(record, found, wanted):
                return
        self._one_block(record, now, names, (self._doses.dose,), "single")

    def _one_block(
        self,
        record: Record,
        now: Now,
        names: list[str],
        doses: tuple[float, ...],
        stage: str,
    ) -> None:
        names = names[: MAX_ARMS - 1]
        arms = (SHAM, *(self._delays.arm((name,), doses, now) for name in names))
        rare = self._rare_arms(now, MAX_ARMS - len(arms))
        chances = chances_of(len(arms))
        if self._weights:
            chances = weighted(chances, [self._weights.get(n, 1.0) for n in names])
        holds: tuple[int, ...] = HOLDS
        if self._doses.alarms.apart:
            # Long gaps, in which buffers fill again.
            chances = [APART / len(arms)] * len(arms)
            holds = (1,)
        costs = np.array([[cost(arm, now, k) for k in range(len(doses))] for arm in arms])
        chances = thinned(chances, costs.mean(1), self.options.cap)
        stage = stage if names else "rare"
        self._push(Turns(stage, arms, doses, chances, holds, rare), record, now)

    def _has_answers(self, record: Record, found: Estimate, names: list[str]) -> bool:
        """Whether no function is too noisy in the verdict, and no bill refuses labels.

        If a bill does, delays are changed, because there is time left (``_heed()``). The
        verdict's intervals can be wider than those of an estimation during the
        experiment, because they allow for drift and for other programs. As estimations
        are repeated, they need a clearer bill for an alarm.
        """
        if self._judged_at != found.seen:
            self._judged_at = found.seen
            judged = verdict(record)
            has_labels = any(f.verdict != INCONCLUSIVE for f in judged.findings)
            is_sound = has_labels or not any(bill.alarm for bill in judged.bills)
            if not is_sound:
                self._heed(judged.bills)
            is_noisy = any(f.is_too_noisy for f in judged.findings if f.name in names)
            self._is_answered = is_sound and not is_noisy
        return self._is_answered

    def _heed(self, found: Sequence[Bill]) -> None:
        """Change the dose after an alarm, if it was not given."""
        names = self._singles
        if not names or any(self._delays.given(name) is None for name in names):
            self._doses = self._doses.after(found)

    def _only_slack(self, known: Known, names: list[str]) -> bool:
        """Whether shorter delays are the only remaining question."""
        between = self._between(known, names)
        for name in names:
            effect = known.headline(name)
            if effect is None or effect.delayed < MIN_HOLDS:
                return False
            interval = effect.interval
            is_clear = interval.low > THRESHOLD or interval.high < THRESHOLD
            if not is_clear or interval.half > 0.2:
                return False
        return bool(between)

    # Questions of second order

    def _between(self, known: Known, names: list[str]) -> dict[str, float]:
        """Functions of which a part arrives, if small doses don't tell whether always.

        The value is the dose with which shorter ones are to be compared.
        """
        some = {}
        for name in names:
            best = known.headline(name)
            if best is None:
                continue
            interval = best.interval
            part = interval.low > THRESHOLD and best.c < 0.9 and interval.half < 0.3
            if not (part or is_jump(best, known.threads)):
                continue
            far = max(2 * self.options.precision, 0.1)
            told = [e for e in known.valid(name) if tells(e, far)] or [best]
            least = min(e.column.dose for e in told)
            # Slack that a third of a delay uses up may hide a ninth of it.
            if least > MIN_LEVEL and not is_certain(told, known.threads):
                some[name] = least
        return some

    def _second_order(
        self, record: Record, now: Now, known: Known, narrow: bool, late: bool
    ) -> bool:
        """Levels, slack, ties; True: the queue has a block."""
        names = list(self._singles or [])
        if known.alarms:
            return False
        between = self._between(known, names)
        if not (narrow or late):
            # A few shorter delays tell a jump.
            between = {n: d for n, d in between.items() if self._jumps(known, n)}
            if not between:
                return False
        if not narrow:
            between = {
                name: dose
                for name, dose in between.items()
                if not is_little(record, name)
            }
            # Functions of which little is known need time, too: in turns.
            self._turn = not self._turn or not known.are_open(names)
            between = between if self._turn else {}
        if between:
            dose = max(between.values())
            some = [name for name, largest in between.items() if largest > 0.9 * dose]
            doses = (float(f"{dose:.6g}"), float(f"{dose / 3:.6g}"))
            self._one_block(record, now, some, doses, "levels")
            return True
        if not (narrow or late):
            return False
        if narrow and self._pedestal(record, now, known, names):
            return True
        if not narrow and known.widest() > TIES_PRECISION * self.options.precision:
            return False
        most = TIES_SLOTS if narrow else MIN_TIES
        return self._ties < most and self._tie(record, now, known, names)

    def _jumps(self, known: Known, name: str) -> bool:
        effect = known.headline(name)
        return effect is not None and is_jump(effect, known.threads)

    def _pedestal(self, record: Record, now: Now, known: Known, names: list[str]) -> bool:
        """Measure the slack of functions in between, and of the busiest hidden ones."""
        wanted = []
        for name in names:
            effect = known.headline(name)
            if (
                effect is None
                or name in self._pedestals
                or self._delays.given(name) is not None
            ):
                continue
            own = record.self_times.get(name)
            share = own.share if own is not None else 0.0
            if THRESHOLD < effect.c < 0.85 and effect.interval.high < 1:
                wanted.append((2.0 + share, name))
            elif effect.interval.high < THRESHOLD and share > 0.02:
                wanted.append((share, name))
        for _, name in sorted(wanted, reverse=True):
            count = PEDESTAL_SETTLE + PEDESTAL_SLOTS * PEDESTAL_STEPS
            # In steps: each height with half of the next one, the highest while settling.
            total = PEDESTAL_SLOTS * PEDESTAL_STEPS**2 / 2
            total += PEDESTAL_SETTLE * (PEDESTAL_STEPS - 0.5)
            room = now.room(self.options.cap, count)
            step = min(PEDESTAL_STEP, 0.95 * room / total)
            longer = count + total * step
            if step < MIN_PEDESTAL_STEP or longer > 0.95 * now.left_slots:
                return False
            self._pedestals.add(name)
            doses = tuple(step * (k + 1) for k in range(PEDESTAL_STEPS))
            masks, levels, parts = pedestal(
                self._draw(record), PEDESTAL_STEPS, PEDESTAL_SLOTS, PEDESTAL_SETTLE
            )
            arm = self._delays.arm((name,), doses, now)
            self._queue.append(
                Block(
                    "pedestal",
                    (arm,),
                    masks,
                    levels,
                    (0.5,),
                    PEDESTAL_HOLDS,
                    False,
                    doses,
                    0,
                    parts,
                )
            )
            self._queue.append(rest(self._rest_slots(now)))
            self._since_rest = 0
            return True
        return False

    def _tie(self, record: Record, now: Now, known: Known, names: list[str]) -> bool:
        """Delay those that matter together: do they matter as they do alone?"""
        strong = []
        for name in names:
            effect = known.headline(name)
            if effect is not None and effect.interval.low > THRESHOLD:
                strong.append((effect.c, name))
        strong.sort(reverse=True)
        if len(strong) < 2:
            return False
        tied = sorted(name for _, name in strong[:MAX_TIED])
        count = max(MIN_TIES, self._block_slots(now))
        room = now.room(self.options.cap, count)
        dose = min(
            max(self._doses.dose, DOSES[-1]),
            0.95 * room / (TIES_CHANCE * len(tied) * count),
        )
        longer = count * (1 + TIES_CHANCE * len(tied) * dose)
        if dose < DOSES[1] or longer > now.left_slots:
            return False
        self._ties += count
        dose = float(f"{dose:.2g}")
        arms = tuple(self._delays.arm((name,), (dose,), now) for name in tied)
        chances = (TIES_CHANCE,) * len(arms)
        masks = each_on_its_own(self._draw(record), count, chances, HOLDS)
        levels = np.zeros(count, np.uint8)
        self._queue.append(
            Block("ties", arms, masks, levels, chances, HOLDS, False, (dose,))
        )
        self._queue.append(rest(self._rest_slots(now)))
        self._since_rest = 0
        return True


def _cut(block: Block, count: int) -> Block:
    """The first slots of a block."""
    masks: Masks = block.masks[:count]
    levels: Levels = block.levels[:count]
    return Block(
        block.stage,
        block.arms,
        masks,
        levels,
        block.chance,
        block.holds,
        block.one,
        block.doses,
        block.coins,
    )
