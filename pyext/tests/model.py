# SPDX-License-Identifier: MIT
"""Programs with known answers, run slot by slot by a plan, and records of them.

The undelayed unit takes about 1; ``Program.slot`` returns the time in these units.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from speed_bump.experiment.fit.verdict import Verdict, verdict
from speed_bump.experiment.record import Block, Machine, Record, SelfTime, Slots
from speed_bump.experiment.slots.stages import Options
from speed_bump.experiment.slots.stages import Stages as Decisions

SERIES = np.array(json.loads((Path(__file__).parent / "unit_times.json").read_text()))
SERIES = SERIES / np.median(SERIES)
KINDS = ("recorded", "heavy", "drift", "steps", "bursts")
UNIT_NS = 50_000_000


class Noise:
    """A series of undelayed unit times with a mean near 1."""

    def __init__(
        self, kind: str, draw: np.random.Generator, expected: int = 1200
    ) -> None:
        self.kind, self.draw, self.expected = kind, draw, expected
        self.at = 0
        self.slow = 0.0
        self.high = False
        self.place = 0
        self.burst = 0

    def __call__(self) -> float:
        draw = self.draw
        self.at += 1
        if self.kind == "recorded":  # stationary bootstrap, blocks of 120 or so
            if self.at == 1 or draw.random() < 1 / 120:
                self.place = int(draw.integers(len(SERIES)))
            self.place = (self.place + 1) % len(SERIES)
            return float(SERIES[self.place])
        e = 0.03 * draw.standard_t(3)
        if self.kind == "heavy":
            return 1 + e
        if self.kind == "quiet":
            return 1 + e / 3
        self.slow = 0.9 * self.slow + e / 2
        if self.kind == "drift":
            t = self.at / self.expected
            return 1 + self.slow + 0.3 * t + 0.1 * math.sin(7 * t)
        if self.kind == "steps":
            if draw.random() < 1 / 80:
                self.high = not self.high
            return 1 + self.slow + 0.3 * self.high
        if draw.random() < 1 / 60:
            self.burst = 5
        self.burst -= 1
        return 1 + self.slow + (draw.exponential(1.0) if self.burst >= 0 else 0.0)


class Program:
    """Serial, and the base of the others. ``c`` is each function's criticality."""

    def __init__(self, draw: np.random.Generator, functions: int = 6) -> None:
        self.draw = draw
        self.functions = functions
        self.c = [1.0] * functions
        self.at = -1

    def calls(self) -> np.ndarray:
        """The calls of each function in the next slot."""
        return np.ones(self.functions)

    def slot(self, d: np.ndarray, b: float) -> float:
        """The time of a slot with these delays."""
        return b + float(d.sum())


class Weighted(Program):
    """Parts of the delays arrive, immediately."""

    def __init__(self, draw: np.random.Generator, c: list[float]) -> None:
        super().__init__(draw, len(c))
        self.c = list(c)
        self.parts = np.array(c)

    def slot(self, d: np.ndarray, b: float) -> float:
        return b + float(d @ self.parts)


class Amplified(Program):
    """0 is a convoy: 1.5 times the delay at once, and 1.0 times in the next units."""

    def __init__(self, draw: np.random.Generator, functions: int = 6) -> None:
        super().__init__(draw, functions)
        self.c[0] = 2.5
        self.late = [0.0] * 4

    def slot(self, d: np.ndarray, b: float) -> float:
        y = b + float(d[1:].sum())
        self.late = [
            late + part * d[0]
            for late, part in zip(self.late, (1.5, 0.5, 0.3, 0.2), strict=True)
        ]
        y += self.late[0]
        self.late = [*self.late[1:], 0.0]
        return y


class ForkJoin(Program):
    """0 and 1 are branches that a unit waits for; 0 takes 0.8 of a unit."""

    def __init__(
        self,
        draw: np.random.Generator,
        functions: int = 6,
        short: float = 0.5,
        jitter: float = 0.02,
    ) -> None:
        super().__init__(draw, functions)
        self.short, self.jitter = short, jitter
        self.slack = 0.8 - short
        self.c[1] = 0.0 if self.slack > 0.01 else 1.0

    def slot(self, d: np.ndarray, b: float) -> float:
        e = self.jitter * self.draw.standard_normal(2)
        both = max(0.8 + e[0] + d[0], self.short + e[1] + d[1])
        return b - 0.8 + both + float(d[2:].sum())


def equal_branches(draw: np.random.Generator) -> ForkJoin:
    return ForkJoin(draw, short=0.8, jitter=0.005)


class Tick(Program):
    """After 0 the program waits for the next tick of a timer, for ``slack``."""

    def __init__(
        self, draw: np.random.Generator, functions: int = 6, slack: float = 0.4
    ) -> None:
        super().__init__(draw, functions)
        self.c[0] = 0.0
        self.slack = slack

    def slot(self, d: np.ndarray, b: float) -> float:
        work = math.ceil(1 - self.slack + 0.1 * (b - 1) + d[0])
        return work + 0.02 * self.draw.standard_normal() + float(d[1:].sum())


class Stages(Program):
    """0 is in the loop with a device; 1 is a process that prefetches ``depth`` units."""

    def __init__(
        self,
        draw: np.random.Generator,
        functions: int = 6,
        depth: int = 1,
        cpu: float = 0.8,
        device: float = 1.0,
        jitter: float = 0.05,
    ) -> None:
        super().__init__(draw, functions)
        self.depth, self.work, self.device, self.jitter = depth, cpu, device, jitter
        self.c[1] = 0.0
        self.slack = device - cpu
        if cpu >= device:
            self.c = [0.0, 1.0, *[0.0] * (functions - 2)]
        self.made = 0.0
        self.takes: list[float] = []
        self.ends: list[float] = [0.0]
        self.plan: list[float] = []
        # Of the loop, which reports the units.
        self.cpu: list[float] = []
        self.wait: list[float] = []

    def slot(self, d: np.ndarray, b: float) -> float:
        self.plan.append(float(d[1]))
        k = len(self.plan) - 1
        begin = max(self.made, self.takes[k - self.depth] if k >= self.depth else 0.0)
        seen = k
        while seen > 0 and self.ends[seen] > begin:
            seen -= 1
        work = self.work * (1 + self.jitter * self.draw.standard_normal())
        self.made = begin + work + self.plan[seen]
        take = max(self.made, self.ends[k])
        self.takes.append(take)
        self.cpu.append(self.device * b + float(d[0] + d[2:].sum()))
        self.wait.append(0.0)
        self.ends.append(take + self.cpu[-1])
        return self.ends[-1] - self.ends[-2]


def starved(draw: np.random.Generator, slack: float = 0.3) -> Stages:
    """1, the producer, is slower: the others are hidden until ``slack`` is used up."""
    program = Stages(draw, depth=4, cpu=1.0, device=1.0 - slack)
    program.slack = slack
    return program


class Lock(Program):
    """0 is inside a lock that 4 threads use, 1 outside. Units overlap: 4 per slot."""

    def __init__(
        self, draw: np.random.Generator, functions: int = 6, threads: int = 4
    ) -> None:
        super().__init__(draw, functions)
        self.c[1] = 0.0
        self.threads = threads
        self.ready = np.arange(threads) * 0.25
        self.free = 0.0

    def slot(self, d: np.ndarray, b: float) -> float:
        start = self.free
        part = self.threads
        for _ in range(part):
            who = int(self.ready.argmin())
            self.free = (
                max(self.ready[who], self.free) + (b + float(d[0] + d[2:].sum())) / part
            )
            outside = 2 / part * self.draw.uniform(0.8, 1.2)
            self.ready[who] = self.free + outside + float(d[1]) / part
        return self.free - start


class Rare(Program):
    """0 is called in every 50th unit, which takes 3."""

    def calls(self) -> np.ndarray:
        calls = np.ones(self.functions)
        calls[0] = float((self.at + 1) % 50 == 7)
        return calls

    def slot(self, d: np.ndarray, b: float) -> float:
        return b + 2 * (self.at % 50 == 7) + float(d.sum())


class Phases(Program):
    """Half as fast in the second half; 1 is hidden."""

    def __init__(
        self, draw: np.random.Generator, functions: int = 6, middle: int = 500
    ) -> None:
        super().__init__(draw, functions)
        self.middle = middle
        self.c[1] = 0.0

    def slot(self, d: np.ndarray, b: float) -> float:
        return b * (1 + (self.at > self.middle)) + float(d.sum() - d[1])


def sham(draw: np.random.Generator) -> Weighted:
    return Weighted(draw, [1.0, 0.0, 1.0, 1.0, 1.0, 1.0])


class Shared(Program):
    """0 is in the thread that reports units, 1 in a helper beside it, 2 is hidden.

    The threads share two CPUs fairly with ``others``; ``work`` is the helper's part of a
    unit.
    """

    def __init__(self, draw: np.random.Generator, others: int, work: float = 0.4) -> None:
        super().__init__(draw, 3)
        self.others, self.work = others, work
        self.c = [1.0, 0.0, 0.0] if work < 1 else [0.0, 1.0, 0.0]
        self.cpu: list[float] = []
        self.wait: list[float] = []
        self.shares: list[float] = []

    def slot(self, d: np.ndarray, b: float) -> float:
        main, side = b + float(d[0]), self.work + float(d[1])
        count = self.others + (self.draw.random() < 0.3) * (self.others > 0)
        both, one = min(1.0, 2 / (count + 2)), min(1.0, 2 / (count + 1))
        blocked = max(side - main, 0.0) / one
        took = min(main, side) / both + abs(main - side) / one
        self.cpu.append(main)
        self.wait.append(took - main - blocked)
        self.shares.append(one)
        return took


PROGRAMS: dict[str, Callable[[np.random.Generator], Program]] = {
    "serial": Program,
    "sham": sham,
    "stages": Stages,
    "stages4": lambda draw: Stages(draw, depth=4),
    "stages16": lambda draw: Stages(draw, depth=16),
    "starved": starved,
    "fork_join": ForkJoin,
    "lock": Lock,
    "tick": Tick,
    "amplified": Amplified,
    "rare": Rare,
    "phases": Phases,
    "equal branches": equal_branches,
    "nearly balanced": lambda draw: starved(draw, 0.1),
    "parts": lambda draw: Weighted(draw, [1.0, 0.5, 0.3, 0.0, 0.0, 0.0]),
}


class Run:
    """A running program, and the record of it."""

    def __init__(
        self,
        program: Program,
        kind: str,
        draw: np.random.Generator,
        unit_ns: float = UNIT_NS,
        expected: int = 1200,
    ) -> None:
        self.program, self.draw, self.unit_ns = program, draw, unit_ns
        self.noise = Noise(kind, draw, expected)
        self.names = tuple(f"m:f{k}" for k in range(program.functions))
        self.rows: list[tuple[float, ...]] = []
        self.calls: list[np.ndarray] = []
        self.delivered: list[np.ndarray] = []
        self.time_ns = 0.0
        self.record = Record({}, self.names, empty(program.functions))
        self.record.unit_ns = unit_ns
        self.record.machine = Machine(share=1.0, threads=1.0, cpus=2)
        self.record.self_times = {name: SelfTime(0.1, 400.0) for name in self.names}

    def undelayed(self, count: int) -> None:
        self._slots(None, count)

    def run(self, block: Block, most_ns: float = math.inf) -> None:
        """Run a block and append its slots to the record."""
        self.record.blocks.append(block)
        self._slots(block, len(block), most_ns)

    def _slots(self, block: Block | None, count: int, most_ns: float = math.inf) -> None:
        program = self.program
        at = len(self.record.blocks) - 1 if block is not None else -1
        place = {name: k for k, name in enumerate(self.names)}
        for k in range(count):
            mask = int(block.masks[k]) if block is not None else 0
            level = int(block.levels[k]) if block is not None else 0
            calls = program.calls()
            program.at += 1
            d = np.zeros(program.functions)
            if block is not None and mask:
                for bit, arm in enumerate(block.arms):
                    if mask >> bit & 1:
                        for name, delays in zip(arm.functions, arm.delays, strict=True):
                            delay = delays[min(level, len(delays) - 1)]
                            f = place[name]
                            d[f] += delay.delay_ns * calls[f] / delay.every
            took = program.slot(d / self.unit_ns, self.noise()) * self.unit_ns
            took = max(took, 0.05 * self.unit_ns)
            self.time_ns += took
            self.rows.append((at, self.time_ns, took, mask, level))
            self.calls.append(calls)
            self.delivered.append(d)
            if self.time_ns >= most_ns:
                break
        self.fill()

    def fill(self) -> None:
        rows = np.array(self.rows)
        n = len(rows)
        full = np.full(n, np.nan)
        self.record.slots = Slots(
            number=np.arange(n),
            block=rows[:, 0].astype(np.int64),
            run=np.zeros(n, np.int64),
            end_ns=rows[:, 1].astype(np.int64),
            time_ns=rows[:, 2],
            units=np.ones(n, np.int64),
            mask=rows[:, 3].astype(np.uint64),
            level=rows[:, 4].astype(np.uint8),
            good=np.ones(n, bool),
            cpu_ns=full,
            wait_ns=full.copy(),
            calls=np.array(self.calls),
            delivered_ns=np.array(self.delivered),
        )
        program, slots = self.program, self.record.slots
        if isinstance(program, Shared | Stages):
            slots.cpu_ns = np.array(program.cpu) * self.unit_ns
            slots.wait_ns = np.array(program.wait) * self.unit_ns
        if isinstance(program, Shared):
            share = float(np.mean(program.shares))
            self.record.machine = Machine(share=share, threads=1.4, cpus=2)


def empty(functions: int) -> Slots:
    none = np.zeros(0)
    whole = np.zeros(0, np.int64)
    table = np.zeros((0, functions))
    return Slots(
        whole,
        whole,
        whole,
        whole,
        none,
        whole,
        np.zeros(0, np.uint64),
        np.zeros(0, np.uint8),
        np.zeros(0, bool),
        none,
        none,
        table,
        table,
    )


def experiment(
    factory: Callable[[np.random.Generator], Program],
    kind: str,
    seed: int,
    budget_s: float = 60.0,
    unit_ns: float = UNIT_NS,
    census: int = 70,
    threads: float = 1.0,
    **options: float,
) -> tuple[Run, Verdict]:
    """A whole experiment, controlled by ``Stages``, and its verdict."""
    draw = np.random.default_rng(seed)
    run = Run(factory(draw), kind, draw, unit_ns)
    run.record.side_by_side = threads
    run.undelayed(census)
    stages = Decisions(Options(budget_s, **options), seed)  # type: ignore[arg-type]
    while (block := stages.next_block(run.record)) is not None:
        run.run(block, budget_s * 1e9)
    return run, verdict(run.record)


def truth(
    factory: Callable[[np.random.Generator], Program],
    function: int,
    kind: str,
    dose: float = 0.05,
    count: int = 3000,
) -> float:
    """By definition: one function is always or never delayed, the others never."""
    total = []
    for on in (0.0, dose):
        program = factory(np.random.default_rng(3))
        noise = Noise(kind, np.random.default_rng(4), count)
        d = np.zeros(program.functions)
        times = []
        for _ in range(count):
            calls = program.calls()
            program.at += 1
            d[function] = on * calls[function]
            times.append(program.slot(d.copy(), noise()))
        given = on * (1.0 if not isinstance(program, Rare) or function else 1 / 50)
        total.append((sum(times[200:]) / (count - 200), given))
    return (total[1][0] - total[0][0]) / total[1][1]


def wrong(label: str, c: float) -> bool:
    """Whether a label contradicts the truth; near a threshold no label does."""
    if label == "hidden":
        return c > 0.13
    if label == "matters":
        return c < 0.07
    return label == "partly" and not 0.07 < c < 0.95
