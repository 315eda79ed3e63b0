# SPDX-License-Identifier: MIT
"""The members of a run on one node: shared memory, and the helper that records it.

The first member makes a table in shared memory and starts a helper; all members tell
their programs where the table is. The steps that a rank has finished are in the table,
and are not lost if the rank is killed. The helper has the lowest priority. It plans
ahead, writes rows to the directory of the run, and ends when no member of the node is
left.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import IO, Any

from speed_bump.config import MAX_SEED
from speed_bump.experiment.cluster.plan import CENSUS, Setup, arms_of_group, ranks_of

SHARED_MEMORY = "/dev/shm"
# If the helper is held up for less than this, the delays do not end.
LEASE_NS = 5_000_000_000
PAUSE_S = 0.1
FLUSH_S = 5.0
FLUSH_ROWS = 2048
# Steps that are planned ahead.
AHEAD = 512
CAPACITY = 1 << 13
START_S = 20.0
# Left by the first member for the others: its settings.
READY = "ready"


class MemberError(Exception):
    """The set-up is wrong; the message says how and what to do."""


def room(run: str) -> str:
    """The directory in which the members of a run on this node meet."""
    digest = hashlib.blake2b(run.encode(errors="surrogateescape"), digest_size=8)
    where = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else "/tmp"
    # Containers of one machine may share /dev/shm and have different host names.
    return f"{where}/speed-bump-{os.getuid()}-{digest.hexdigest()}-{platform.node()}"


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            # A previous helper may have removed it in the meantime.
            if os.path.exists(path) and os.path.samestat(os.fstat(file), os.stat(path)):
                yield
                return
        finally:
            os.close(file)


def join(run: str, setup: Setup, lines: list[str]) -> dict[str, str]:
    """Become a member; returns the environment for the program.

    A lock of this process, which the program inherits, shows that the member lives.

    Args:
        run: the directory of the run; absolute
        lines: of the target file

    Raises:
        MemberError: members of this node have different settings, or nothing can be
            written
    """
    try:
        os.makedirs(run, exist_ok=True)
        where = room(run)
        os.makedirs(where, mode=0o700, exist_ok=True)
        if os.stat(where).st_uid != os.getuid():
            raise MemberError(f"{where} belongs to another user")
        with _locked(f"{where}.lock"):
            ready = os.path.join(where, READY)
            if not os.path.exists(ready):
                _begin(run, where, setup, lines)
            _check(ready, setup)
            _be_alive(where)
    except OSError as error:
        raise MemberError(f"{error.filename or run}: {error.strerror}") from None
    return {
        "SPEED_BUMP_TARGETS": os.path.join(where, "targets"),
        "SPEED_BUMP_TABLE": os.path.join(where, "table"),
        "SPEED_BUMP_QUIET": "1",
        # No process number: each rank draws delays of its own.
        "SPEED_BUMP_SEED": f"{setup.seed & MAX_SEED}:0",
    }


def _check(ready: str, setup: Setup) -> None:
    with open(ready, encoding="utf-8") as file:
        other = json.load(file)
    mine = json.loads(json.dumps(asdict(setup)))
    for name, value in mine.items():
        if other[name] != value:
            raise MemberError(
                f"{name} is {value} here and {other[name]} in another member of this "
                "node: give all members the same"
            )


def _be_alive(where: str) -> None:
    """Hold the lock of members, across exec and in all processes of the program."""
    file = os.open(os.path.join(where, "members"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(file, fcntl.LOCK_SH)
    os.set_inheritable(file, True)


def _begin(run: str, where: str, setup: Setup, lines: list[str]) -> None:
    """Make the table and start the helper, which is ready when this returns."""
    for name in os.listdir(where):  # left by a helper that was killed
        os.unlink(os.path.join(where, name))
    with open(os.path.join(where, "targets"), "wb") as file:
        file.write(os.fsencode("".join(f"{line}\n" for line in lines)))
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork() == 0:
        os.close(read)
        _become_helper(run, where, setup, write)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        text = answer.read().decode(errors="replace")
    if text != "ready":
        raise MemberError(text or "the helper of this node ended at once")
    path = os.path.join(where, READY)
    with open(f"{path}.new", "w", encoding="utf-8") as out:
        json.dump(asdict(setup), out)
    os.replace(f"{path}.new", path)


def _become_helper(run: str, where: str, setup: Setup, answer: int) -> None:
    """The helper, in a child of the first member. Never returns."""
    try:
        os.setsid()
        # Detach: the member's program must neither wait for the helper nor find it as a
        # child.
        if os.fork():
            os._exit(0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        # A launcher waits until the output of the member is closed.
        keep = {0, 1, 2, answer}
        for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
            if fd not in keep:
                with contextlib.suppress(OSError):
                    os.close(fd)
        try:
            helper = Helper(run, where, setup)
        except Exception as error:
            os.write(answer, f"{type(error).__name__}: {error}".encode())
            os._exit(1)
        os.write(answer, b"ready")
        os.close(answer)
        # Only now: with low priority, starting on a busy node would take longer than the
        # job.
        os.nice(19)
        helper.run()
    finally:
        os._exit(0)


@dataclass
class _Pending:
    """Slots of a rank that have been read and not yet written."""

    slots: list[Any] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    delivered: list[Any] = field(default_factory=list)
    count: int = 0
    # End and number of the last slot written, and the time waited until then.
    before: tuple[int, int, int] | None = None


class Helper:
    """Plans ahead and records, for all ranks of a node."""

    def __init__(self, run: str, where: str, setup: Setup) -> None:
        """Make the table and the file, and load now what is needed later."""
        import speed_bump.experiment.cluster.rows
        import speed_bump.experiment.slots.measure  # noqa: F401
        from speed_bump import _core

        self._where = where
        self._setup = setup
        self._host = platform.node()
        self._table = _core.Table(os.path.join(where, "table"), CAPACITY, planned=True)
        self._plan = _core.Plan(self._table)
        for point in setup.progress:
            if ":" in point:
                self._plan.count_function(point)
            else:
                self._plan.count_point(point)
        self._plan.set_pace(0, 1, True)
        path = os.path.join(run, f"{self._host}-{os.getpid()}.rows")
        self._file: IO[bytes] = open(path, "ab")  # noqa: SIM115
        self._functions: list[str] = []
        # Functions that were called and have no arm.
        self._without_arm = 0
        self._planned = 0
        self._doses: dict[str, int] = {}
        self._pending: dict[int, _Pending] = {}
        self._flushed = time.monotonic()
        self._asked_to_end = False
        self._delivered: dict[str, float] = {}
        self._groups = [ranks_of(text) for text in setup.groups]
        self._grouped: set[int] = set()

    def run(self) -> None:
        """Run until no member is left."""
        signal.signal(signal.SIGTERM, self._ask_to_end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        while not self._asked_to_end:
            self.work()
            if self._is_alone():
                return
            time.sleep(PAUSE_S)
        self.finish()

    def _ask_to_end(self, *_: object) -> None:
        self._asked_to_end = True

    def _is_alone(self) -> bool:
        """Whether all members have ended; if so, everything is written and removed."""
        with _locked(f"{self._where}.lock"):
            members = os.open(
                os.path.join(self._where, "members"), os.O_RDWR | os.O_CREAT
            )
            try:
                fcntl.flock(members, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            finally:
                os.close(members)
            self.finish()
            return True

    def finish(self) -> None:
        """Write the rest, and leave nothing in shared memory."""
        self._plan.renew(0)
        self._read(last=True)
        self._flush()
        self._file.close()
        shutil.rmtree(self._where, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(f"{self._where}.lock")

    def work(self) -> None:
        """One round."""
        self._plan.renew(LEASE_NS)
        self._group()
        self._rule()
        self._schedule()
        self._read(last=False)
        rows = max((pending.count for pending in self._pending.values()), default=0)
        # The steps of the census are kept until the length of delays is chosen.
        is_due = time.monotonic() > self._flushed + FLUSH_S
        if rows > FLUSH_ROWS or (is_due and (self._doses or rows > CENSUS)):
            self._flush()

    # ------------------------------------------------------------------ planning

    def _group(self) -> None:
        """Give ranks of a group to be confirmed arms of their own."""
        if not self._groups:
            return
        for index, _, rank, *_ in self._plan.ranks():
            if index in self._grouped:
                continue
            for k, group in enumerate(self._groups, 1):
                if rank in group:
                    first = k * arms_of_group(len(self._groups))
                    self._plan.set_rank_arms(index, first)
            self._grouped.add(index)

    def _rule(self) -> None:
        from speed_bump import _core

        # Targets of --progress alone come last and are not delayed.
        first_progress = len(self._setup.targets)
        names = {
            site[1]
            for site in self._table.read()
            if site[0] == _core.SB_SITE_FUNCTION and site[3] < first_progress and site[5]
        }
        room = arms_of_group(len(self._groups))
        missing = sorted(names - set(self._functions))
        new = missing[: room - len(self._functions)]
        self._without_arm = len(missing) - len(new)
        if not new:
            return
        self._read(last=False)
        for name in new:
            self._plan.add_function(name)
            self._functions.append(name)
        # The plan made so far does not include them.
        self._planned = self._plan.cancel()

    def _schedule(self) -> None:
        import numpy as np

        from speed_bump.experiment.cluster.plan import ATTEMPT, confirming, masks

        now = self._plan.number
        first = max(self._planned, now + 2)
        count = now + AHEAD - first
        if now % ATTEMPT >= CENSUS // 2:
            self._choose_doses()
        if count < AHEAD // 4 or len(self._doses) < len(self._functions):
            return
        if self._groups:
            found = confirming(
                self._setup.seed, self._functions, len(self._groups), first, count
            )
        else:
            found = masks(self._setup.seed, self._functions, first, count)
        levels = np.zeros(count, np.uint8)
        self._planned = first + self._plan.schedule(first, found.data, levels.data)

    def _choose_doses(self) -> None:
        """Choose the delay of a call of each function, from the steps of the census."""
        import numpy as np

        from speed_bump.experiment.cluster.plan import rounded
        from speed_bump.experiment.slots.plan import delay_for

        new = [name for name in self._functions if name not in self._doses]
        if not new:
            return
        step_ns, calls = self._typical()
        for name in new:
            arm = self._functions.index(name)
            if self._setup.delay_ns:
                delay, every = self._setup.delay_ns, 1
            elif not np.isfinite(step_ns):
                return
            else:
                found = delay_for(
                    self._setup.dose, rounded(step_ns), rounded(calls[arm]) or 1.0, 250
                )
                delay, every = found.delay_ns, found.every
            self._plan.set(arm, arm, [(delay, every)])
            self._doses[name] = delay

    def _typical(self) -> tuple[float, Any]:
        """The median of the steps read and not written, and the calls in them."""
        import numpy as np

        times, calls = [], []
        width = len(self._functions)
        for pending in self._pending.values():
            for slots, called in zip(pending.slots, pending.calls, strict=True):
                times.append(np.diff(slots["end_ns"].astype(np.int64)))
                calls.append(called[:, :width])
        wide = [part for part in calls if part.shape[1] == width]
        known = np.concatenate(times) if times else np.zeros(0)
        if len(known) < 8 or not wide:
            return float("nan"), np.ones(width)
        mean = np.concatenate(wide).mean(axis=0)
        return float(np.median(known)), mean

    # ------------------------------------------------------------------- writing

    def _read(self, last: bool) -> None:
        import numpy as np

        from speed_bump.experiment.slots.measure import SLOT

        width = len(self._functions)
        for index, *_ in self._plan.ranks():
            read = partial(self._plan.read_rank, index, last)
            pending = self._pending.setdefault(index, _Pending())
            while True:
                slots, calls, delivered = read()
                found = np.frombuffer(slots, SLOT)
                if not len(found):
                    break
                shape = (len(found), width)
                pending.slots.append(found)
                pending.calls.append(np.frombuffer(calls, np.uint64).reshape(shape))
                part = np.frombuffer(delivered, np.uint64).reshape(shape)
                pending.delivered.append(part)
                for name, ns in zip(self._functions, part.sum(axis=0), strict=True):
                    self._delivered[name] = self._delivered.get(name, 0.0) + float(ns)
                pending.count += len(found)

    def _flush(self) -> None:
        from speed_bump.experiment import job_ranks as ranks
        from speed_bump.experiment.cluster import rows

        found = self._plan.ranks()
        for rank, who in zip(found, ranks.who(found), strict=True):
            pending = self._pending.get(rank[0])
            if pending and pending.count:
                rows.write(self._file, self._rows(pending, who))
        self._file.flush()
        self._flushed = time.monotonic()

    def _rows(self, pending: _Pending, who: Any) -> Any:
        from dataclasses import replace

        import numpy as np

        from speed_bump.experiment.cluster.rows import Rows

        slots = np.concatenate(pending.slots)
        number = slots["number"].astype(np.int64)
        end = slots["end_ns"].astype(np.int64)
        waited = slots["waited_ns"].astype(np.int64)
        before = pending.before or (int(end[0]), int(number[0]), int(waited[0]))
        follows = np.diff(number, prepend=before[1]) == 1
        good = follows & slots["complete"].astype(bool)
        time_ns = np.where(good, np.diff(end, prepend=before[0]), np.nan)
        wait_ns = np.where(good, np.diff(waited, prepend=before[2]), np.nan)
        if not waited.any():
            wait_ns[:] = np.nan
        rows = Rows(
            replace(who, host=self._host),
            {
                "seed": self._setup.seed,
                "key": self._setup.key,
                "version": self._setup.version,
                "groups": self._setup.groups,
                "without_arm": self._without_arm,
            },
            tuple(self._functions),
            self._shares(),
            number,
            time_ns,
            wait_ns,
            self._wide(pending.delivered),
            self._wide(pending.calls),
        )
        pending.before = (int(end[-1]), int(number[-1]), int(waited[-1]))
        pending.slots, pending.calls, pending.delivered = [], [], []
        pending.count = 0
        return rows

    def _shares(self) -> tuple[float, ...]:
        """The share of a CPU while each function was delayed, which stretches delays."""
        found = []
        for arm, name in enumerate(self._functions):
            delivered = self._delivered.get(name, 0.0)
            away = float(self._plan.away(arm))
            found.append(delivered / (delivered + away) if delivered else 1.0)
        return tuple(found)

    def _wide(self, parts: list[Any]) -> Any:
        """Add columns for functions that were not known yet when the rows were read."""
        import numpy as np

        width = len(self._functions)
        return np.concatenate(
            [np.pad(p.astype(float), ((0, 0), (0, width - p.shape[1]))) for p in parts]
        )
