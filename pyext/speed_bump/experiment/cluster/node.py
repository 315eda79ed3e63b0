# SPDX-License-Identifier: MIT
"""The members of a run on one node: shared memory, and the helper that records it.

The first member makes a table in shared memory and starts a helper; all members tell
their programs where the table is. The steps that a rank has finished are in the table,
and are not lost if the rank is killed. The helper has the lowest priority. It plans
ahead, writes rows to the directory of the run, and ends when no member of the node is
left.

With ``member --live`` the helper plans as the leader of the run says (epochs.py), as far
as it is heard of: another process, which the helper starts, talks to it (minder.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import IO, Any

from speed_bump.config import MAX_SEED
from speed_bump.experiment.cluster.epochs import Course
from speed_bump.experiment.cluster.minder import Minder
from speed_bump.experiment.cluster.plan import CENSUS, Setup, arms_of_group, ranks_of
from speed_bump.experiment.cluster.problems import nodes_of
from speed_bump.experiment.cluster.rows import next_attempt
from speed_bump.experiment.job_ranks import Rank
from speed_bump.last_steps import HELPER, MEMBER, REQUEST, ROOM

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
# A member without a step is reported after this time, and when the job is over.
SILENT_S = 60.0
# Set by Ray for its workers; what a member tells them, for libsb (launcher.c).
RAYLET = "RAY_RAYLET_PID"
ATTEMPT = "SPEED_BUMP_ATTEMPT"
# With a leader, which waits for rows.
LIVE_FLUSH_S = 2.0


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


def join(
    run: str, setup: Setup, lines: list[str], rank: Rank
) -> tuple[dict[str, str], bool]:
    """Become a member; returns the environment for the program, and whether it is first.

    A lock of this process, which the program inherits, shows that the member lives.

    Args:
        run: the directory of the run; absolute
        lines: of the target file
        rank: of this process, as far as its launcher says

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
            is_first = not os.path.exists(ready)
            if is_first:
                _begin(run, where, setup, lines)
            attempt = _check(ready, setup)
            _be_alive(where)
            _sign(where, rank)
    except OSError as error:
        raise MemberError(f"{error.filename or run}: {error.strerror}") from None
    told = {
        "SPEED_BUMP_TARGETS": os.path.join(where, "targets"),
        "SPEED_BUMP_TABLE": os.path.join(where, "table"),
        ROOM: where,
        "SPEED_BUMP_QUIET": "1",
        ATTEMPT: str(attempt),
        # No process number: each rank draws delays of its own.
        "SPEED_BUMP_SEED": f"{setup.seed & MAX_SEED}:0",
    }
    return told, is_first


def _check(ready: str, setup: Setup) -> int:
    """Compare the settings with those of the first member; returns its attempt."""
    with open(ready, encoding="utf-8") as file:
        other = json.load(file)
    mine = json.loads(json.dumps(asdict(setup)))
    for name, value in mine.items():
        if other[name] != value:
            raise MemberError(
                f"{name} is {value} here and {other[name]} in another member of this "
                "node: give all members the same"
            )
    return int(other["attempt"])


def _be_alive(where: str) -> None:
    """Hold the lock of members, across exec and in all processes of the program."""
    file = os.open(os.path.join(where, "members"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(file, fcntl.LOCK_SH)
    os.set_inheritable(file, True)


def _sign(where: str, rank: Rank) -> None:
    """Leave one's name: a program that reports no step is known by it."""
    path = os.path.join(where, f"{MEMBER}{os.getpid()}")
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(asdict(rank), file)
    os.replace(f"{path}.new", f"{path}.json")


def _begin(run: str, where: str, setup: Setup, lines: list[str]) -> None:
    """Make the table and start the helper, which is ready when this returns."""
    for entry in os.scandir(where):  # left by a helper that was killed
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
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
    # Ray starts all ranks again when one is lost, and does not count that.
    attempt = next_attempt(run, platform.node()) if RAYLET in os.environ else 0
    with open(f"{path}.new", "w", encoding="utf-8") as out:
        json.dump({**asdict(setup), "attempt": attempt}, out)
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


def _age_s(path: str) -> float:
    """How long ago a file was written; 0 if it is gone."""
    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return 0.0


def _above(pid: int) -> frozenset[int]:
    """The processes above this one; none if it has ended."""
    found: set[int] = set()
    with contextlib.suppress(OSError, ValueError, IndexError):
        while pid > 1:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                # The name before it may contain anything.
                pid = int(file.read().rpartition(")")[2].split()[1])
            found.add(pid)
    return frozenset(found)


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
        import speed_bump.experiment.slots.measure
        import speed_bump.kinds  # noqa: F401
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
        self._path = os.path.join(run, f"{self._host}-{os.getpid()}.rows")
        self._file: IO[bytes] = open(self._path, "ab")  # noqa: SIM115
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
        # The nodes of the job, of which some may not share the directory.
        self._nodes = nodes_of(os.environ.get("SLURM_STEP_NODELIST", ""))
        # By file. A member is known if it has reported steps, or was itself reported.
        self._members: dict[str, Rank] = {}
        self._known: set[str] = set()
        # Processes that wait at their end until all of them is written.
        self._ending: set[int] = set()
        # The processes above each rank, read while it lives.
        self._above: dict[int, frozenset[int]] = {}
        self._flush_s = LIVE_FLUSH_S if setup.live else FLUSH_S
        # With a leader.
        self._course = Course(where, setup) if setup.live else None
        self._minder = Minder(run, where, setup, self._path) if setup.live else None

    def run(self) -> None:
        """Run until no member is left."""
        signal.signal(signal.SIGTERM, self._ask_to_end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        path = os.path.join(self._where, HELPER)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            file.write(str(os.getpid()))
        os.replace(f"{path}.new", path)
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
        self._flush(last=True)
        self._file.close()
        if self._course is not None and self._minder is not None:
            self._minder.leave(self._plan.number, self._course.number)
        shutil.rmtree(self._where, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(f"{self._where}.lock")

    def work(self) -> None:
        """One round."""
        if self._course is not None:
            self._follow(self._course)
        else:
            self._plan.renew(LEASE_NS)
        self._group()
        self._rule()
        self._schedule()
        requests = self._requests()
        self._read(last=False)
        rows = max((pending.count for pending in self._pending.values()), default=0)
        # The steps of the census are kept until the length of delays is chosen. Where no
        # rank has come, the members are reported that should have.
        is_due = time.monotonic() > self._flushed + self._flush_s
        if (
            requests
            or rows > FLUSH_ROWS
            or (is_due and (self._doses or rows > CENSUS or not self._pending))
        ):
            self._flush()
        for path in requests:
            os.unlink(path)

    def _requests(self) -> list[str]:
        """Of programs that end, which wait until their requests are gone."""
        found = []
        for entry in os.scandir(self._where):
            if entry.name.startswith(REQUEST):
                found.append(entry.path)
                self._ending.add(int(entry.name.removeprefix(REQUEST)))
        return found

    # ------------------------------------------------------------------ planning

    def _follow(self, course: Course) -> None:
        """Do as the leader says, as far as it was heard."""
        if course.look():
            now = self._plan.number
            self._planned = self._plan.cancel()
            # When a leader is gone delays end at once, in the middle of a step.
            course.settle(now if course.is_off else self._planned)
        self._plan.renew(0 if course.is_off else LEASE_NS)
        if self._minder is not None:
            self._minder.mind(self._plan.number, course.number, course.is_final)

    def _group(self) -> None:
        """Give ranks of a group to be confirmed arms of their own."""
        if not self._groups:
            return
        for rank in self._plan.ranks():
            if rank.index in self._grouped:
                continue
            for k, group in enumerate(self._groups, 1):
                if rank.rank in group:
                    first = k * arms_of_group(len(self._groups))
                    self._plan.set_rank_arms(rank.index, first)
            self._grouped.add(rank.index)

    def _rule(self) -> None:
        from speed_bump.kinds import SiteKind

        # Targets of --progress alone come last and are not delayed.
        first_progress = len(self._setup.targets)
        names = {
            site.name
            for site in self._table.read()
            if site.kind == SiteKind.FUNCTION
            and site.target < first_progress
            and site.calls
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
        if self._course is not None:
            found &= self._course.allowed(self._functions, first, count)
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
        """The median of the steps read and not written, and the usual calls in them."""
        import numpy as np

        from speed_bump.experiment.cluster.plan import usual_calls

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
        usual = [usual_calls(one) for one in np.concatenate(wide).T]
        return float(np.median(known)), usual

    # ------------------------------------------------------------------- writing

    def _read(self, last: bool) -> None:
        import numpy as np

        from speed_bump.experiment.slots.measure import SLOT

        width = len(self._functions)
        for rank in self._plan.ranks():
            if rank.pid not in self._above:
                self._above[rank.pid] = _above(rank.pid)
            is_over = last or rank.pid in self._ending
            read = partial(self._plan.read_rank, rank.index, is_over)
            pending = self._pending.setdefault(rank.index, _Pending())
            while True:
                over = read()
                found = np.frombuffer(over.slots, SLOT)
                if not len(found):
                    break
                shape = (len(found), width)
                pending.slots.append(found)
                calls = np.frombuffer(over.calls, np.uint64).reshape(shape)
                pending.calls.append(calls)
                part = np.frombuffer(over.delivered_ns, np.uint64).reshape(shape)
                pending.delivered.append(part)
                for name, ns in zip(self._functions, part.sum(axis=0), strict=True):
                    self._delivered[name] = self._delivered.get(name, 0.0) + float(ns)
                pending.count += len(found)

    def _flush(self, last: bool = False) -> None:
        from speed_bump.experiment import job_ranks as ranks
        from speed_bump.experiment.cluster import rows

        self._read_members()
        found = self._plan.ranks()
        who = ranks.who(found)
        for place, rank in zip(found, who, strict=True):
            pending = self._pending.get(place.index)
            if pending and pending.count:
                rows.write(self._file, self._rows(pending, rank))
        at_work = [
            rank
            for place, rank in zip(found, who, strict=True)
            if place.index in self._pending and self._pending[place.index].before
        ]
        for rank in self._silent(at_work, last):
            rows.write(self._file, rows.none(self._located(rank), self._head()))
        self._file.flush()
        self._flushed = time.monotonic()

    def _read_members(self) -> None:
        pattern = os.path.join(glob.escape(self._where), f"{MEMBER}*.json")
        for path in set(glob.glob(pattern)) - self._members.keys():
            # Names are for messages: rows are written without them.
            with (
                contextlib.suppress(OSError, ValueError, TypeError),
                open(path, encoding="utf-8") as file,
            ):
                self._members[path] = Rank(**json.load(file))

    def _silent(self, at_work: list[Rank], last: bool) -> list[Rank]:
        """Members whose programs reported no step, each once."""
        numbered = {(rank.attempt, rank.rank) for rank in at_work if rank.rank >= 0}
        # Some launchers do not count attempts.
        numbered |= {(-1, number) for _, number in numbered}
        # A member may start the processes that report steps.
        pids = {rank.pid for rank in at_work}
        pids |= {pid for rank in at_work for pid in self._above.get(rank.pid, ())}
        members = self._members.values()
        with_number = {member.rank for member in members if member.rank >= 0}
        known = {member.pid for member in members}
        # Ranks whose parent is not known: they ended too early.
        others = sum(
            not self._above.get(rank.pid)
            and rank.pid not in known
            and rank.rank not in with_number
            for rank in at_work
        )
        found = []
        for path, rank in sorted(self._members.items()):
            if rank.pid in pids or (rank.attempt, rank.rank) in numbered:
                self._known.add(path)
            if path in self._known:
                continue
            if rank.rank < 0 and others > 0:
                others -= 1
            elif last or rank.pid in self._ending or _age_s(path) > SILENT_S:
                self._known.add(path)
                found.append(rank)
        return found

    def _head(self) -> dict[str, Any]:
        # Once a file: those of a large job take more room than rows.
        nodes, self._nodes = self._nodes, ()
        return {
            "seed": self._setup.seed,
            "key": self._setup.key,
            "version": self._setup.version,
            "groups": self._setup.groups,
            "without_arm": self._without_arm,
            "nodes": nodes,
        }

    def _located(self, rank: Rank) -> Rank:
        """With what the launcher does not tell in the program's counts."""
        same = (
            member.role
            for member in self._members.values()
            if member.rank == rank.rank and member.attempt in (rank.attempt, -1)
        )
        return replace(rank, host=self._host, role=next(same, ""))

    def _rows(self, pending: _Pending, who: Rank) -> Any:
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
        setup = self._head()
        if self._course is not None:
            setup["epochs"] = self._course.held(int(number[0]), int(number[-1]))
        rows = Rows(
            self._located(who),
            setup,
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
