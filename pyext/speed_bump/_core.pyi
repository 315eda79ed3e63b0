# SPDX-License-Identifier: MIT
from collections.abc import Callable, Hashable, Sequence
from os import PathLike
from types import CodeType
from typing import Any, Literal, final

from typing_extensions import Buffer, Self

from speed_bump.native import Probes

# Records. At run time they are struct sequences, which are tuples; here they are not, so
# that mypy refuses numbers instead of names, and unpacking. docs of the fields:
# core/records.c, and help().

@final
class ParsedTarget:
    kind: int
    left: str
    right: str
    delay_ns: int | None
    every: int | None
    start_ns: int | None
    duration_ns: int | None
    resume: int | None
    pid: int | None
    line: int
    mode: Literal["spin", "sleep", "wait"]
    dist: Literal["fixed", "exp", "uniform", "lognormal"]
    sigma: float
    thread: str | None
    delay_ppm: int

@final
class Policy:
    number: int
    delay_ns: int
    every: int
    start_ns: int
    end_ns: int
    resume: bool

@final
class Entry:
    text: str
    line: bytes
    delay_ns: int | None
    every: int | None
    start_ns: int | None
    end_ns: int | None
    resume: bool

@final
class Site:
    kind: int
    name: str
    pid: int
    target: int
    delay_ns: int
    calls: int
    delayed: int
    requested_ns: int
    delivered_ns: int

@final
class Latency:
    name: str
    kind: int
    begun: bool
    begins: int
    unbegun: int
    sum_ns: int
    max_ns: int
    buckets: bytes

@final
class LatencyEvents:
    data: bytes
    at: int
    behind: int
    lost: int

@final
class NativeDurations:
    sum_ns: int
    max_ns: int
    buckets: bytes

@final
class NativeEvents:
    data: bytes
    lost: int
    more: bool

@final
class NativeTarget:
    path: str | PathLike[str]
    symbol: str
    delay_ns: int
    every: int
    start_ns: int
    duration_ns: int
    sleeps: bool
    delay_ppm: int
    record: int

@final
class NativePlace:
    id: int
    label: str
    target: int

@final
class NativeSite:
    id: int
    label: str
    delay_ns: int
    calls: int
    delayed: int
    requested_ns: int
    delivered_ns: int
    unarmed: int
    unreturned: int
    missed: int

@final
class ShownProcess:
    pid: int
    label: str
    group: int

@final
class ControlTarget:
    kind: int
    name: str
    pid: int
    label: str
    delay_ns: int
    every: int
    enabled: bool
    is_ruled: bool
    calls: int
    delayed: int
    delivered_ns: int

@final
class State:
    # Another copy of the package may have made the first and the last.
    config: Any
    table: Table | None
    numbers: dict[str, int]
    probes: Probes | None
    baseline: Any

@final
class Rank:
    index: int
    pid: int
    rank: int
    world: int
    local: int
    node: int
    attempt: int
    launcher: str
    units: int
    number: int | None

@final
class Slots:
    slots: bytes
    calls: bytes
    delivered_ns: bytes

@final
class StackTotals:
    ticks: int
    lost: int
    cpu_ns: int

@final
class Stack:
    pid: int
    tid: int
    wait: str
    offset: int
    looks: int
    queued_ns: int
    codes: tuple[int, ...]

@final
class TakenStacks:
    stacks: list[Stack]
    moments: list[tuple[int, int, int]]
    lost: list[tuple[int, int]]

@final
class StackTarget:
    address: int
    name: str | None

@final
class StackCode:
    pid: int
    address: int
    target: str | None
    qualname: str | None
    file: str | None
    first_line: int
    has_columns: bool
    lines: bytes

@final
class StackThread:
    pid: int
    tid: int
    looks: int
    run_ns: int
    wait_ns: int

@final
class SelfTime:
    self_ns: int
    looks: int

@final
class NativeTimes:
    own: list[SelfTime]
    clock_ns: int
    cpu_ns: int
    off_ns: int
    unseen_ns: int
    stacks: int
    lost: int

@final
class NativeStack:
    tid: int
    time_ns: int
    ns: int
    off_cpu: bool
    whole: bool
    frames: tuple[tuple[str, int], ...]

@final
class Symbol:
    name: str
    demangled: str | None
    begin: int

def entry(
    text: str,
    line: bytes,
    /,
    *,
    delay_ns: int | None = None,
    every: int | None = None,
    start_ns: int | None = None,
    end_ns: int | None = None,
    resume: bool = False,
) -> Entry: ...
def policy(
    *,
    number: int = 0,
    delay_ns: int = 0,
    every: int = 1,
    start_ns: int = 0,
    end_ns: int = 0,
    resume: bool = False,
) -> Policy: ...
def native_target(
    path: str | PathLike[str],
    symbol: str,
    /,
    *,
    delay_ns: int = 0,
    every: int = 1,
    start_ns: int = 0,
    duration_ns: int = 0,
    sleeps: bool = False,
    delay_ppm: int = 0,
    record: int = 0,
) -> NativeTarget: ...

HOOK: str
MAX_DELAY_NS: int
SB_SCOPE_ALL: int
SB_SCOPE_TREE: int
SB_FEATURE_DURATIONS: int
SB_FEATURE_EVENTS: int
SB_RECORD_EVENTS: int
SB_CONTROL_FUNCTION: int
SB_CONTROL_NATIVE: int
SB_SITE_FUNCTION: int
SB_SITE_PROGRESS: int
DURATION_BUCKETS: int
LATENCY_FUNCTIONS: int
LATENCY_MARKS: int
LATENCY_NAMES: int
LATENCY_NOT_ASKED: int
LATENCY_RING_EVENTS: int
LATENCY_SHIFT: int
SB_SPEC_KIND_NATIVE: int
SB_SPEC_KIND_PYTHON: int
SB_SPEC_KIND_PYTHON_EXCLUDE: int

@final
class Table:
    enabled: bool
    watched: bool
    @property
    def lost(self) -> int: ...
    @property
    def overhead_ns(self) -> int: ...
    @property
    def rings(self) -> int: ...
    def __init__(
        self,
        path: str | PathLike[str] | None = None,
        capacity: int = 0,
        enabled: bool = True,
        planned: bool = False,
        label: str | None = "program",
        latencies: Sequence[str] = (),
        rings: int = 0,
    ) -> None: ...
    @classmethod
    def open(
        cls, path: str | PathLike[str], label: str | None = "experiment", /
    ) -> Table: ...
    @classmethod
    def of_process(cls) -> Table | None: ...
    def share(self) -> None: ...
    def close(self) -> None: ...
    def read(self) -> list[Site]: ...
    def progress(self, name: str, n: int, /) -> None: ...
    def latencies(self) -> list[Latency]: ...
    def latency_events(self, ring: int, at: int, skip: bool, /) -> LatencyEvents: ...

def begin(name: str, key: Hashable, /) -> None: ...
def end(name: str, key: Hashable, /) -> None: ...

class Slow:
    def __init__(self, entry: Entry | None, table_type: type[Table]) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc_info: object) -> None: ...
    def _run(
        self, function: Callable[..., Any], /, *args: object, **kwargs: object
    ) -> Any: ...

@final
class Control:
    def __init__(self, session: Session | None = None) -> None: ...
    def processes(self) -> list[ShownProcess]: ...
    def left_out(self) -> int: ...
    def targets(self) -> list[ControlTarget]: ...
    def set_enabled(self, indices: list[int], enabled: bool, /) -> None: ...
    def set_delay(self, indices: list[int], delay_ns: int, /) -> None: ...
    def remove(self, indices: list[int], /) -> None: ...

@final
class Session:
    @property
    def backend(self) -> str: ...
    @property
    def caveats(self) -> list[str]: ...
    @property
    def features(self) -> int: ...
    def __init__(self, device: str | PathLike[str] | None = None) -> None: ...
    def close(self) -> None: ...
    def close_after_fork(self) -> None: ...
    def add(
        self,
        targets: list[NativeTarget],
        scope: int,
        scope_id: int,
        enabled: bool,
        /,
    ) -> list[NativePlace]: ...
    def remove(self, ids: list[int], /) -> None: ...
    def set_targets_enabled(self, ids: list[int], enabled: bool, /) -> None: ...
    def plan(self, ids: list[int], unit_ids: list[int], /) -> int: ...
    def offsets(self) -> dict[int, int]: ...
    def hit_cost_ns(self, is_stepped: bool = True, /) -> int: ...
    def list(self) -> list[NativeSite]: ...
    def durations(self, id: int, /) -> NativeDurations: ...
    def events(self) -> NativeEvents: ...

@final
class Plan:
    @property
    def units(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def slowest(self) -> int: ...
    @property
    def lost(self) -> int: ...
    def __init__(self, table: Table) -> None: ...
    def use_memory(self, fd: int, /) -> None: ...
    def add_function(self, name: str, /) -> int: ...
    def add_target(self, index: int, /) -> int: ...
    def count_point(self, name: str, /) -> int: ...
    def count_function(self, name: str, /) -> int: ...
    def report(self, units: int, /) -> None: ...
    def end_slot(self, units: int, end_ns: int, /) -> int: ...
    def set_slot_units(self, units: int, /) -> None: ...
    def set(
        self, number: int, arm: int | None, levels: list[tuple[int, int]], /
    ) -> None: ...
    def schedule(self, first: int, masks: Buffer, levels: Buffer, /) -> int: ...
    def cancel(self) -> int: ...
    def renew(self, ns: int, /) -> None: ...
    def away(self, number: int, /) -> int: ...
    def read(self) -> Slots: ...
    def ranks(self) -> list[Rank]: ...
    def set_pace(self, first_unit: int, slot_units: int, by_attempt: bool, /) -> None: ...
    def set_rank_arms(self, index: int, first_arm: int, /) -> None: ...
    def read_rank(self, index: int, last: bool, /) -> Slots: ...

@final
class Stacks:
    def __init__(self, table: Table) -> None: ...
    def add(self, pid: int, layout: tuple[int, ...] | None, /) -> bool: ...
    def run(self, ns: int, interval_ns: int, /) -> StackTotals: ...
    def begin(self) -> None: ...
    def take(self) -> TakenStacks: ...
    def targets(self) -> list[StackTarget]: ...
    def codes(self) -> list[StackCode]: ...
    def threads(self) -> list[StackThread]: ...

@final
class NativeSampler:
    def __init__(self) -> None: ...
    def add_function(self, path: str | PathLike[str], offset: int, /) -> int: ...
    def add_process(self, pid: int, /) -> None: ...
    def leave_out_thread(self, tid: int, /) -> None: ...
    def run(self, ns: int, /) -> NativeTimes: ...
    def keep_stacks(self, keep: bool, /) -> None: ...
    def stacks(self) -> list[NativeStack]: ...
    def symbol(self, path: str | PathLike[str], offset: int, /) -> Symbol | None: ...
    def stop(self) -> None: ...

def adopt_orphans(on: bool, /) -> None: ...
def keep_files(on: bool, symbols: int = 2_000_000, /) -> None: ...
def places_of(path: str | PathLike[str], symbol: str, /) -> list[int]: ...
def is_stepped(path: str | PathLike[str], offset: int, /) -> bool: ...
def readable_names(
    path: str | PathLike[str], offsets: tuple[int, ...], /
) -> list[str | None]: ...
def layout() -> tuple[int, ...]: ...
def launched() -> Rank: ...
def waited(ns: int, /) -> None: ...
def is_rank() -> bool: ...
def watch_mpi() -> bool: ...
def install(
    config: object,
    table: Table,
    entries: tuple[Entry, ...],
    /,
    *,
    delay_ns: int,
    every: int,
    start_ns: int,
    end_ns: int,
    probes: Probes | None = None,
) -> Probes | None: ...
def uninstall() -> Probes | None: ...
def state() -> State: ...
def set_baseline(table: Table, baseline: object, /) -> None: ...
def kept() -> dict[str, Any]: ...
def start(
    table: Table, text: bytes, policies: list[Policy], overhead_ns: int | None, /
) -> None: ...
def stop() -> None: ...
def clear_cache() -> None: ...
def qualname(code: CodeType, /) -> str: ...
def refused() -> list[tuple[str, str]]: ...
def overhead_ns() -> int: ...
def progress(name: str = "default", n: int = 1) -> None: ...
def set_seed(number: int, /) -> None: ...
def seed() -> int | None: ...
def loader_code() -> bytes: ...
def spin_delay_ns(ns: int, /) -> int: ...
def clock_overhead_ns() -> int: ...
def min_delay_ns() -> int: ...
def clock_name() -> str: ...
def parse_targets(text: bytes, name: str | PathLike[str], /) -> list[ParsedTarget]: ...
def glob_match(glob: str, text: str, /) -> bool: ...
def parse_duration(text: str, /) -> int: ...
def format_duration(ns: int, /) -> str: ...
