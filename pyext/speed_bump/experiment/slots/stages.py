# SPDX-License-Identifier: MIT
"""What to do next: which functions are delayed, and by how much, in the next slots.

The engine runs the slots of a block, adds them to the record, and calls again. The next
block depends on the seed, its index and the record.

First all functions are asked how much of a delay arrives: with few slots in a balanced
way, many of them in groups, and else one at a time. When most is known, or late, come the
questions that answers raise: shorter delays, slack, ties.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from speed_bump.experiment.fit.bill import ALARM_LOOKING, Bill, bills
from speed_bump.experiment.fit.interval import INCONCLUSIVE
from speed_bump.experiment.fit.longer import LONGER, uses_slack
from speed_bump.experiment.fit.verdict import verdict
from speed_bump.experiment.record import MAX_ARMS, Arm, Block, Record
from speed_bump.experiment.slots.arms import Delays, cost, rare_dose
from speed_bump.experiment.slots.blocks import (
    APART,
    BLOCK,
    BLOCKS_A_REST,
    BUSY_SHARE,
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
from speed_bump.experiment.slots.known import Known, is_little
from speed_bump.experiment.slots.now import Clock, Now
from speed_bump.experiment.slots.plan import HOLDS, SHAM, rest
from speed_bump.experiment.slots.second_order import (
    between,
    jumps,
    only_shorter_are_left,
    pedestal_block,
    shorter,
    tied_block,
)

# The length of a block, if slots are short.
BLOCK_S = 2.0
MAX_BLOCK = 960
# Where others use the machine, and there are few slots, blocks are shorter, down to
# MIN_BLOCK: CYCLES of blocks and a rest show how much the machine changes between them.
CYCLES, MIN_BLOCK = 5, 45
# The maximal number of functions in a block that are called seldom.
MAX_RARE = 8
# No answer is final, and no dose changed, before there are this many slots.
MIN_SLOTS = 100
# After this part of the budget, questions of second order are examined in any case.
LEVELS_FROM = 0.6
# From this part of the budget on, functions that may have headroom are delayed more
# often than others.
WEIGHTS_FROM = 0.4
# From this part on, those that seem hidden have delays that are longer by this factor.
LONGER_FROM, TIMES = 0.15, 2.0
TIES_SLOTS = 640
MIN_TIES = 240
# They may begin when intervals are narrower than this multiple of the requested width.
TIES_PRECISION = 1.6


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
        self._doses = Doses()
        # Whether there are few slots in all the available time.
        self._few: bool | None = None
        self._round: Round | None = None
        # Functions that are delayed one at a time, and all that could have been.
        self._singles: list[str] | None = None
        self._asked: set[str] = set()
        # The next one of those that are called seldom.
        self._rare_from = 0
        self._estimate: Estimate | None = None
        self._weights: dict[str, float] = {}
        self._judged_at = -1
        self._is_answered = True
        # Whether shorter delays, in turns with other questions, are next.
        self._turn = False
        # Whether the last block had longer delays, of functions that seem hidden.
        self._longer = False
        # Functions whose slack was asked, and slots in which functions were tied.
        self._pedestals: set[str] = set()
        self._ties = 0

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
            block = replace(block, masks=block.masks[:most], levels=block.levels[:most])
        return block

    def _decide(self, record: Record, now: Now) -> None:
        """Fill the queue, which is empty; if it stays so, the experiment is done."""
        if not now.called:
            # Calls may still come.
            self._queue.append(rest(self._block_slots(now)))
            return
        cap = self.options.cap
        if self._few is None:
            self._few = now.slots + now.left_slots < FEW
            self._doses = Doses.largest(len(now.called), cap)
        if self._few:
            draw = self._draw(record)
            self._queue.append(few_slots(now.called, self._delays, now, cap, draw))
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
        self._ask(record, now, self._singles)

    def _screened(self, record: Record, now: Now) -> list[str] | None:
        """The functions that are left to be examined; None: the queue has a block."""
        if len(now.often) <= MAX_SINGLE:
            return now.often
        if self._round is None:
            self._round = first_round(now.often, self._draw(record, 1000), now)
        else:
            self._round = self._round.after(record, now)
        if self._round.is_over:
            return self._round.functions
        doses = (self._round.dose,)
        arms = (SHAM, *(self._delays.arm(g, doses, now) for g in self._round.groups))
        costs = [cost(arm, now) for arm in arms]
        chances = thinned(chances_of(len(arms)), costs, self.options.cap)
        self._take_turns(Turns("groups", arms, doses, chances), record, now)
        return None

    def _ask(self, record: Record, now: Now, names: list[str]) -> None:
        """Ask the functions one at a time, or what their answers raise, or nothing."""
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
                found.effects,
                found.threads,
                self.options.precision,
                self._doses.alarms,
                found.visible,
            )
            if is_fresh and names:
                self._doses = self._doses.chosen(known, now, LEVELS_FROM)
            if is_fresh and now.elapsed_s > WEIGHTS_FROM * self.options.budget_s:
                self._weights = known.weights(names, record)
            wanted = [*names, *now.seldom]
            narrow = known.are_narrow(wanted)
            late = now.elapsed_s > LEVELS_FROM * self.options.budget_s
            late = late and known.are_clear(names)
            late = late or only_shorter_are_left(known, names)
            if self._ask_more(record, now, known, names, narrow, late):
                return
            is_done = narrow and not found.is_refused
            is_done = is_done and (not known.alarms or known.are_settled(names))
            if is_done and self._has_answers(record, found, wanted):
                return
            if self._ask_with_longer(record, now, known, names):
                return
        self._one_at_a_time("single", names, (self._doses.dose,), record, now)

    def _ask_more(
        self,
        record: Record,
        now: Now,
        known: Known,
        names: list[str],
        narrow: bool,
        late: bool,
    ) -> bool:
        """Questions of second order; True: the queue has a block."""
        if known.alarms:
            return False
        wanted = self._to_be_shortened(record, known, names, narrow, late)
        if wanted:
            some, doses = shorter(wanted)
            self._one_at_a_time("levels", some, doses, record, now)
            return True
        cap = self.options.cap
        if narrow:
            free = [
                name
                for name in names
                if name not in self._pedestals and self._delays.given(name) is None
            ]
            draw = self._draw(record)
            block = pedestal_block(
                known, free, record.self_times, self._delays, now, cap, draw
            )
            if block is not None:
                self._pedestals.update(block.arms[0].functions)
                self._push(block, now, rests=True)
                return True
        elif not late or known.widest() > TIES_PRECISION * self.options.precision:
            return False
        if self._ties >= (TIES_SLOTS if narrow else MIN_TIES):
            return False
        count = max(MIN_TIES, self._block_slots(now))
        largest = max(self._doses.dose, DOSES[-1])
        draw = self._draw(record)
        block = tied_block(known, names, largest, count, self._delays, now, cap, draw)
        if block is None:
            return False
        self._ties += count
        self._push(block, now, rests=True)
        return True

    def _ask_with_longer(
        self, record: Record, now: Now, known: Known, names: list[str]
    ) -> bool:
        """Longer delays of functions that seem hidden, in turns; True: there is a block.

        Of a delay that is twice as long, half the width of an interval is left. Hidden is
        what costs less than a tenth of its delay, and what is hidden of a longer delay is
        of a shorter one, too: slack only bends the response upwards. If less slack is
        left, the shorter delays still have the last word.
        """
        is_late = now.elapsed_s > LONGER_FROM * self.options.budget_s
        some = [
            name for name in known.seem_hidden(names) if self._delays.given(name) is None
        ]
        # Longer ones would move the bottleneck, if these do.
        moves = any(map(uses_slack, bills(known.effects)))
        may = is_late and bool(some) and not moves and not known.alarms
        self._longer = may and not self._longer
        if self._longer:
            dose = float(f"{TIMES * self._doses.dose:.6g}")
            self._one_at_a_time(LONGER, some, (dose,), record, now)
        return self._longer

    def _to_be_shortened(
        self, record: Record, known: Known, names: list[str], narrow: bool, late: bool
    ) -> dict[str, float]:
        """The functions of which shorter delays are next, and the doses until now."""
        wanted = between(known, names)
        if narrow:
            return wanted
        if not late:
            # A few shorter delays tell a jump.
            wanted = {n: dose for n, dose in wanted.items() if jumps(known, n)}
            if not wanted:
                return {}
        # Functions of which little is known need time, too: in turns.
        self._turn = not self._turn or not known.are_open(names)
        if not self._turn:
            return {}
        return {n: dose for n, dose in wanted.items() if not is_little(record, n)}

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
            is_false = judged.vague or any(bill.alarm for bill in judged.bills)
            is_sound = has_labels or not is_false
            if not is_sound:
                self._heed(judged.bills)
            is_noisy = any(f.is_too_noisy for f in judged.findings if f.name in names)
            self._is_answered = is_sound and not is_noisy
        return self._is_answered

    def _heed(self, found: Sequence[Bill]) -> None:
        """Change the dose after an alarm, unless all delays are given."""
        names = self._singles
        if not names or any(self._delays.given(name) is None for name in names):
            self._doses = self._doses.after(found)

    def _one_at_a_time(
        self,
        stage: str,
        names: list[str],
        doses: tuple[float, ...],
        record: Record,
        now: Now,
    ) -> None:
        """Append a block for these functions, and for those that are called seldom."""
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
        self._take_turns(Turns(stage, arms, doses, chances, holds, rare), record, now)

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

    def _take_turns(self, turns: Turns, record: Record, now: Now) -> None:
        count = self._block_slots(now)
        self._push(turns.block(self._draw(record), count, now, self.options.cap), now)

    def _push(self, block: Block, now: Now, rests: bool = False) -> None:
        """Append a block; a rest follows every second one, or this one (``rests``)."""
        self._queue.append(block)
        self._since_rest += 1
        if rests or self._since_rest >= BLOCKS_A_REST:
            slots = max(_least_block(now), self._block_slots(now))
            self._queue.append(rest(slots * REST // BLOCK))
            self._since_rest = 0

    def _block_slots(self, now: Now) -> int:
        by_time = BLOCK_S * 1e9 / now.slot_ns
        long = min(max(_least_block(now), by_time), MAX_BLOCK)
        return int(min(long, math.ceil(now.left_slots)))

    def _draw(self, record: Record, more: int = 0) -> np.random.Generator:
        """The random generator of the next block."""
        return np.random.default_rng((self.seed, len(record.blocks) + more))


def _least_block(now: Now) -> int:
    """The slots of a block, if slots are long."""
    if not now.is_shared:
        return BLOCK
    cycle = (now.seen + now.left_slots) / CYCLES
    return int(min(max(cycle * BUSY_SHARE / BLOCKS_A_REST, MIN_BLOCK), BLOCK))
