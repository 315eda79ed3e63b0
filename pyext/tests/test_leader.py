# SPDX-License-Identifier: MIT
"""``speed-bump live``: a leader that ends the delays of what is decided.

The node, the leader and the transport are tested with the same made rows, and then
together as a job: hence the length.
"""

import asyncio
import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import platform
import re
import signal
import socket
import ssl
import subprocess
import sys
import time

import numpy as np
import pytest
import schemas
from ranking import command_line, environment
from speed_bump.experiment.cluster import (
    epochs,
    join,
    meeting,
    minder,
    plan,
    rows,
    worker,
)
from speed_bump.experiment.cluster import leader as leading
from speed_bump.experiment.cluster import node as on_node
from speed_bump.experiment.cluster.leader import LOOKS, Leader
from speed_bump.experiment.job_ranks import Rank
from speed_bump.experiment.show import leading as show

pytestmark = pytest.mark.one_python

HAVE_DASK = all(importlib.util.find_spec(name) for name in meeting.NEEDED)
needs_dask = pytest.mark.skipif(
    not HAVE_DASK, reason="dask.distributed or cryptography is not installed"
)
SETUP = plan.Setup(7, ("m:*",), ("default",), 0, 0.1, "0.1.0", (), True)
FUNCTIONS = ("m:f", "m:g")


def epoch(number, first, *functions, setup=SETUP):
    return epochs.epoch(number, first, functions, setup)


def say(where, *some, until=None):
    """What a worker writes down of a leader."""
    value = {"epochs": epochs.as_json(some), "until": until}
    epochs.write(str(where / epochs.COURSE), value)


def arms(course, first, count):
    return course.allowed(FUNCTIONS, first, count).tolist()


# ------------------------------------------------------------------------ the node


def test_epochs_hold_from_their_steps_on(tmp_path):
    course = epochs.Course(str(tmp_path), SETUP)
    assert not course.look()
    course.settle(100)
    assert arms(course, 90, 20) == [3] * 20
    say(tmp_path, epoch(1, 120, "m:g"), epoch(2, 140), until=epochs.now_s() + 60)
    assert course.look()
    assert not course.look()
    course.settle(110)
    assert arms(course, 118, 4) == [3, 3, 2, 2]
    assert arms(course, 138, 4) == [2, 2, 0, 0]
    assert course.held(100, 119) == [[0, 0]]
    assert course.held(119, 150) == [[0, 0], [120, 1], [140, 2]]
    assert course.held(130, 131) == [[120, 1]]


def test_steps_that_were_begun_stay_as_they_were(tmp_path):
    course = epochs.Course(str(tmp_path), SETUP)
    say(tmp_path, epoch(1, 120, "m:g"), until=epochs.now_s() + 60)
    assert course.look()
    # Too late: step 150 is the first that can be planned.
    course.settle(150)
    assert arms(course, 148, 4) == [3, 3, 2, 2]
    assert course.held(0, 200) == [[0, 0], [150, 1]]


def test_a_node_that_comes_late_has_the_plan_of_each_step(tmp_path):
    course = epochs.Course(str(tmp_path), SETUP)
    say(tmp_path, epoch(1, 120, "m:g"), epoch(2, 140), until=epochs.now_s() + 60)
    course.look()
    course.settle(2)
    assert arms(course, 119, 2) == [3, 2]
    assert arms(course, 139, 2) == [2, 0]


def test_without_a_leader_delays_end_and_with_one_they_go_on(tmp_path):
    course = epochs.Course(str(tmp_path), SETUP)
    say(tmp_path, until=epochs.now_s() - 1)
    assert course.look()
    assert course.is_off
    course.settle(50)
    say(tmp_path, epoch(1, 60, "m:f"), until=epochs.now_s() + 60)
    assert course.look()
    assert not course.is_off
    course.settle(80)
    assert arms(course, 49, 2) == [3, 0]
    assert arms(course, 79, 2) == [0, 1]
    assert course.held(0, 99) == [[0, 0], [50, epochs.OFF], [80, 1]]
    # After the last epoch no leader is needed.
    say(tmp_path, epoch(1, 60, "m:f"), epoch(2, 90), until=None)
    course.look()
    assert course.is_final
    assert not course.is_off


def test_epochs_of_another_run_are_not_followed(tmp_path):
    other = dataclasses.replace(SETUP, seed=8)
    course = epochs.Course(str(tmp_path), SETUP)
    say(tmp_path, epoch(1, 0, setup=other), until=epochs.now_s() + 60)
    assert not course.look()
    (tmp_path / epochs.COURSE).write_text('{"epochs": 3}')
    assert not course.look()
    assert arms(course, 0, 1) == [3]


def test_a_worker_that_hangs_or_ends_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(minder, "WORKER", "sched")  # ends at once
    monkeypatch.setattr(minder, "AGAIN_S", 0.0)
    found = minder.Minder(str(tmp_path), str(tmp_path), SETUP, "rows")

    def turn(is_final=False):
        found.mind(3, 0, is_final)
        return found._process.pid

    first = turn()
    until(lambda: turn() != first, 30)
    found._command = ["sleep", "1000"]
    until(lambda: pathlib.Path(f"/proc/{turn()}/comm").read_text() == "sleep\n", 30)
    hung = turn()
    assert turn() == hung
    monkeypatch.setattr(minder, "HUNG_S", -1000.0)
    # Killed; and another is started only if there will be other epochs.
    until(lambda: turn(is_final=True) == hung and found._process.poll() is not None, 30)
    assert turn(is_final=True) == hung
    assert turn() != hung
    found._process.kill()
    state = json.loads((tmp_path / epochs.STATE).read_text())
    assert (state["step"], state["rows"], state["over"]) == (3, "rows", False)


# ---------------------------------------------------------------------- the leader


def some_rows(rank, first, count, held=((0, 0),), names=FUNCTIONS, setup=SETUP, off=()):
    """Steps of one of two ranks; all of a delay of m:f arrives, and nothing of m:g."""
    number = np.arange(first, first + count)
    on = np.stack([plan.is_on(setup.seed, n, first, count) for n in names], axis=1)
    for k, name in enumerate(names):
        on[:, k] &= name not in off
    draw = np.random.default_rng(1000 * rank + first)
    delivered = on * 2e6
    time_ns = 20e6 + draw.normal(0, 1e5, count) + delivered[:, 0]
    return rows.Rows(
        Rank(rank, 2, 0, rank, 0, "srun", 10 + rank, f"n{rank}"),
        {
            "seed": setup.seed, "key": setup.key, "version": setup.version,
            "epochs": [list(one) for one in held],
        }, names, (1.0,) * len(names), number, time_ns, np.full(count, 1e5), delivered,
        np.ones(on.shape),
    )  # fmt: skip


class FakeNode:
    """A node without ranks: its helper's files, and the client of its worker."""

    def __init__(self, tmp_path, rank, setup=SETUP):
        self.where = tmp_path / f"room-{rank}"
        self.where.mkdir()
        self.rows = tmp_path / f"n{rank}-1.rows"
        self.rows.write_bytes(b"")
        self.rank, self.setup = rank, setup
        self.client = worker.NodeClient(str(self.where))
        self.course = epochs.Course(str(self.where), setup)
        self.step = 0
        self.tell()

    def tell(self, is_over=False):
        state = {
            "rows": str(self.rows), "setup": dataclasses.asdict(self.setup),
            "step": self.step, "epoch": self.course.number, "over": is_over,
        }  # fmt: skip
        epochs.write(str(self.where / epochs.STATE), state)

    def work(self, count, off=()):
        with open(self.rows, "ab") as file:
            rows.write(file, some_rows(self.rank, self.step, count, off=off))
        self.step += count
        self.tell()

    def exchange(self, leader, loses_answer=False):
        asked_s = epochs.now_s()
        answer = leader.receive(*self.client.message())
        if not loses_answer:
            self.client.take(answer, asked_s)
            self.course.look()
        return json.loads(answer)


def looked(leader):
    parts = leader.due()
    if parts is not None:
        leader.look(join.measured(parts), 0.0)
    return parts is not None


def test_what_is_decided_is_dropped_and_then_all_ends(tmp_path):
    (tmp_path / meeting.FOLDER).mkdir()
    leader = Leader(str(tmp_path), 0.05, 30)
    nodes = [FakeNode(tmp_path, rank) for rank in range(2)]
    for _ in range(LOOKS + 1):
        for node in nodes:
            node.work(200)
            node.exchange(leader)
            node.exchange(leader)
        assert looked(leader)
        assert not looked(leader)
    assert leader.is_final
    of = {name: effect.criticality.value for name, effect in leader.decided.items()}
    assert of["m:f"] == pytest.approx(1, abs=0.05)
    assert of["m:g"] == pytest.approx(0, abs=0.05)
    # In time for all nodes, and at the beginning of a block.
    last = leader.epochs[-1]
    assert last.first > nodes[0].step
    assert last.first % plan.BLOCK == 0
    assert last.functions == ()
    assert not leader.is_told
    for node in nodes:
        node.exchange(leader)
        node.tell()
        node.exchange(leader)
        assert node.course.is_final
    assert leader.is_told
    assert Leader(str(tmp_path), 0.05, 30).was_ended()


def both(nodes, leader):
    for node in nodes:
        node.exchange(leader)
        node.exchange(leader)


def test_a_function_that_is_open_stays_delayed(tmp_path):
    (tmp_path / meeting.FOLDER).mkdir()
    leader = Leader(str(tmp_path), 0.05, 30)
    nodes = [FakeNode(tmp_path, rank) for rank in range(2)]
    # m:g is never delayed: of it nothing can be known.
    for _ in range(LOOKS + 2):
        for node in nodes:
            node.work(150, off=("m:g",))
        both(nodes, leader)
        looked(leader)
    assert [e.functions for e in leader.epochs] == [("m:g",)]
    assert not leader.is_final
    assert leader.not_decided == ["m:g"]
    # Another leader goes on where this one was.
    again = Leader(str(tmp_path), 0.05, 30)
    for node in nodes:
        node.client = worker.NodeClient(str(node.where))
    both(nodes, again)
    assert looked(again)
    assert again.epochs == leader.epochs
    assert list(again.decided) == ["m:f"]
    assert not again.was_ended()


def test_nothing_is_decided_while_a_rank_is_missing(tmp_path):
    (tmp_path / meeting.FOLDER).mkdir()
    leader = Leader(str(tmp_path), 0.05, 30)
    first, second = (FakeNode(tmp_path, rank) for rank in range(2))
    for _ in range(LOOKS + 1):
        first.work(200)
        both([first], leader)
        assert looked(leader)
    assert leader.missing == (1,)
    assert not leader.epochs
    assert "rank 1 has not joined, and nothing is decided" in show.summary(leader)
    for _ in range(LOOKS):
        second.work(300)
        both([second], leader)
        assert looked(leader)
    assert leader.missing == ()
    assert leader.is_final


def test_a_node_that_comes_after_the_leader_has_its_last_epoch(tmp_path):
    (tmp_path / meeting.FOLDER).mkdir()
    node = FakeNode(tmp_path, 0)
    node.client.take_last(str(tmp_path))
    assert not node.course.look()
    path = tmp_path / meeting.FOLDER / meeting.EPOCHS
    # One that was lost has none.
    epochs.write(str(path), {"epochs": epochs.as_json([epoch(1, 50, "m:f")])})
    node.client.take_last(str(tmp_path))
    assert not node.course.look()
    ended = [epoch(1, 50, "m:f"), epoch(2, 90)]
    epochs.write(str(path), {"epochs": epochs.as_json(ended)})
    node.client.take_last(str(tmp_path))
    assert node.client.is_final
    assert node.course.look()
    node.course.settle(10)
    assert arms(node.course, 48, 4) == [3, 3, 1, 1]
    assert arms(node.course, 89, 2) == [1, 0]


def test_rows_arrive_once_however_often_they_are_sent(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "MAX_BYTES", 2000)
    leader = Leader(str(tmp_path), 0.05, 30)
    node = FakeNode(tmp_path, 0)
    for _ in range(5):
        node.work(50)
    node.exchange(leader)
    for k in range(20):
        node.exchange(leader, loses_answer=k % 3 == 0)
    assert [part.number[0] for part in leader.parts] == [0, 50, 100, 150, 200]
    # A chunk that is not complete yet is left for later.
    whole = node.rows.read_bytes()
    node.work(50)
    more = node.rows.read_bytes()
    node.rows.write_bytes(more[:-10])
    node.exchange(leader)
    assert sum(len(part.number) for part in leader.parts) == 250
    node.rows.write_bytes(more)
    node.tell(is_over=True)
    node.exchange(leader)
    node.exchange(leader)
    assert sum(len(part.number) for part in leader.parts) == 300
    assert len(more) > len(whole)
    assert node.client.is_over
    assert leader.is_idle(time.monotonic())


def test_an_epoch_begins_soon_also_when_the_job_was_started_again(tmp_path):
    (tmp_path / meeting.FOLDER).mkdir()
    leader = Leader(str(tmp_path), 0.05, 30)
    node = FakeNode(tmp_path, 0)
    for node.step in (0, 5, plan.ATTEMPT + 8):
        node.tell()
        node.exchange(leader)
    leader.publish(["m:f"])
    (new,) = leader.epochs
    # As quick as those five, in 0.1 s at least.
    assert plan.ATTEMPT + 8 < new.first < plan.ATTEMPT + 1000


def test_of_too_many_rows_the_older_steps_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(leading, "MAX_ROWS", 600)
    leader = Leader(str(tmp_path), 0.05, 30)
    nodes = [FakeNode(tmp_path, rank) for rank in range(2)]
    for _ in range(10):
        for node in nodes:
            node.work(50)
            node.exchange(leader)
    for node in nodes:
        node.exchange(leader)
    job = join.measured(leader.due())
    assert job.number[0] == 250
    assert job.number[-1] == 499
    assert job.good.all()


def test_a_node_of_other_settings_is_named_and_not_followed(tmp_path):
    leader = Leader(str(tmp_path), 0.05, 30)
    first = FakeNode(tmp_path, 0)
    other = FakeNode(tmp_path, 1, setup=dataclasses.replace(SETUP, seed=8))
    first.exchange(leader)
    assert other.exchange(leader)["refused"] == "has --seed 8, the first node 7"
    other.exchange(leader)
    (line,) = leader.news
    assert line.endswith("has --seed 8, the first node 7; it continues with its own plan")
    assert not leader.parts
    with pytest.raises(ValueError, match="not a message of a node"):
        leader.receive('{"file": 3}', b"")


def test_a_node_that_is_silent_is_named(tmp_path, monkeypatch):
    leader = Leader(str(tmp_path), 0.05, 30)
    FakeNode(tmp_path, 0).exchange(leader)
    assert leader.due() is None
    assert not leader.news
    later = time.monotonic() + 20
    monkeypatch.setattr(time, "monotonic", lambda: later)
    leader.due()
    leader.due()
    (line,) = leader.news
    assert "has not been heard from for 15 s; after 30 s its delays end" in line
    assert not leader.is_idle(later)
    assert leader.is_idle(later + 20)


def test_steps_in_which_ranks_had_other_epochs_are_left_out():
    parts = [
        some_rows(0, 0, 300, held=((0, 0), (100, 1))),
        some_rows(1, 0, 300, held=((0, 0), (130, 1))),
    ]
    job = join.measured(parts)
    assert int(job.good.sum()) == 270
    assert not job.good[100:130].any()
    (line,) = [line for line in job.problems if "left out" in line]
    assert line.startswith("30 steps are left out: rank 1 on n1 had another plan")
    # One that is not live has the plan without a leader.
    alone = some_rows(1, 0, 300)
    del alone.setup["epochs"]
    job = join.measured([some_rows(0, 0, 300, held=((0, 0), (200, 1))), alone])
    assert int(job.good.sum()) == 200


# -------------------------------------------------------------------- the transport


@needs_dask
def test_only_who_has_the_key_is_answered(tmp_path):
    from distributed import Security
    from distributed.core import rpc
    from speed_bump.experiment.cluster import transport

    run = str(tmp_path)
    got = []

    def receive(message, data):
        got.append((message, data))
        return "answered"

    def ports():
        """Where this process listens."""
        mine, found = set(), []
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):
                mine.add(os.readlink(f"/proc/self/fd/{fd}"))
        for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
            with open(table) as file:
                rows = [line.split() for line in file][1:]
            found += [
                row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine
            ]
        return found

    async def ask(address, **how):
        async with rpc(address, **how) as leader:
            return await leader.speed_bump(message="x", data=b"y")

    async def scenario():
        transport.prepare()
        made = meeting.make_key(run)
        scheduler = await transport.LeaderScheduler(made, "127.0.0.1", receive)
        meeting.announce(run, scheduler.address)
        found = meeting.find(run)
        assert found.address == scheduler.address
        assert scheduler.address.startswith("tls://")
        assert len(ports()) == 1, "another port is open"
        node = await transport.NodeWorker(found, "n1", run, 10)
        assert len(ports()) == 2, "another port is open"
        assert await node.send("hello", b"\0rows") == "answered"
        assert got == [("hello", b"\0rows")]
        stranger = Security.temporary()
        for address in (scheduler.address, node.address):
            with pytest.raises(OSError):
                await asyncio.wait_for(
                    ask(
                        address,
                        connection_args=stranger.get_connection_args("client"),
                        timeout=3,
                    ),
                    10,
                )
            with pytest.raises((OSError, RuntimeError)):
                await asyncio.wait_for(
                    ask(address.replace("tls://", "tcp://"), timeout=3), 10
                )
            host, _, port = address.removeprefix("tls://").rpartition(":")
            await asyncio.to_thread(_refuses_without_certificate, host, int(port))
        # The leader and its nodes are not disturbed.
        assert await node.send("again", b"") == "answered"
        assert got[1:] == [("again", b"")]
        await node.close()
        await scheduler.close()

    asyncio.run(asyncio.wait_for(scenario(), 120))


def _refuses_without_certificate(host, port):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        pytest.raises((ssl.SSLError, ConnectionError)),
        socket.create_connection((host, port), 5) as plain,
        context.wrap_socket(plain) as secure,
    ):
        secure.sendall(b"\0" * 64)
        if not secure.recv(1):
            raise ConnectionError


@needs_dask
def test_the_key_is_its_users_alone(tmp_path):
    run = str(tmp_path)
    made = meeting.make_key(run)
    where = pathlib.Path(made.where)
    assert where.stat().st_mode & 0o777 == 0o700
    for name in (meeting.KEY, meeting.CERTIFICATE):
        assert (where / name).stat().st_mode & 0o777 == 0o600
    assert meeting.find(run) is None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tls://127.0.0.1:{listener.getsockname()[1]}"
        meeting.announce(run, address)
        assert meeting.find(run).address == address
        assert meeting.doubt(run) == ""
        with pytest.raises(meeting.MeetingError, match=r"another leader of .* at work"):
            meeting.make_key(run)
    assert f"the leader at {address} can't be reached (" in meeting.doubt(run)
    # Another key for another leader.
    before = (where / meeting.KEY).read_bytes()
    meeting.make_key(run)
    assert (where / meeting.KEY).read_bytes() != before
    (where / meeting.KEY).chmod(0o644)
    with pytest.raises(meeting.MeetingError, match=r"key\.pem is open to other users"):
        meeting.find(run)
    meeting.forget(run)
    assert os.listdir(where) == []
    where.chmod(0o755)
    with pytest.raises(meeting.MeetingError, match="is open to other users"):
        meeting.make_key(run)


# -------------------------------------------------------------------------- a job


PROGRAM = """
import sys, time
import speed_bump
def work(): time.sleep(0.012)
def other(): time.sleep(0.006)
for step in range(int(sys.argv[1])):
    work()
    other()
    speed_bump.progress()
    print(step, flush=True)
"""
WITHOUT = """
import sys
sys.modules["distributed"] = None
from speed_bump.command.main import main
raise SystemExit(main())
"""
CAN_UNSHARE = (
    subprocess.run(
        ["unshare", "--mount", "--uts", "true"], capture_output=True, check=False
    ).returncode == 0
)  # fmt: skip
needs_nodes = pytest.mark.skipif(not CAN_UNSHARE, reason="namespaces can't be made here")
# A leader whose nodes have no CPU for longer than its lease ends the delays.
timed = pytest.mark.timed


class Job:
    """A leader, and ranks on nodes that have names and a /dev/shm of their own."""

    def __init__(self, run):
        self.run = run
        self.leader = None
        self.ranks = []

    def lead(self, *more):
        self.leader = subprocess.Popen(
            command_line(
                "live", "--run", str(self.run), "--host", "127.0.0.1", "--lease", "6s",
                "--precision", "0.4", *more,
            ),
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        line = self.leader.stderr.readline()
        assert line.startswith(f"speed-bump: leads {self.run} at tls://127.0.0.1:"), line

    def start(self, rank, steps, *more, live=True):
        inside = (
            f"hostname n{rank}; mount -t tmpfs tmpfs /dev/shm; "
            'exec "$@"'
        )  # fmt: skip
        member = command_line(
            "member", *(["--live"] if live else []), "--run", str(self.run),
            "-t", "__main__:work mode=sleep", "-t", "__main__:other mode=sleep",
            "--dose", "0.5", *more, "--", sys.executable, "-c", PROGRAM, str(steps),
        )  # fmt: skip
        environ = {**environment(), "RANK": str(rank), "WORLD_SIZE": "2"}
        environ["GROUP_RANK"] = str(rank)
        self.ranks.append(
            subprocess.Popen(
                [
                    "unshare", "--mount", "--uts", "--propagation", "private",
                    "sh", "-euc", inside, "sh", *member,
                ],
                env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        return self.ranks[-1]

    def have_heard(self):
        """Whether all nodes have heard of the leader."""
        shared = [pathlib.Path(f"/proc/{rank.pid}/root/dev/shm") for rank in self.ranks]
        return all(any(path.glob(f"*/{epochs.COURSE}")) for path in shared)

    def parts(self):
        found = []
        for path in rows.files(str(self.run)):
            found += [part for part in rows.read(path) if len(part.number)]
        return found

    def close(self):
        for process in [*self.ranks, self.leader]:
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate()


@pytest.fixture
def job(tmp_path):
    made = Job(tmp_path / "run")
    yield made
    made.close()


def last_delayed(parts):
    """By rank, the last step that was delayed, and the last one."""
    found = {}
    for part in parts:
        delayed = part.number[(part.delivered_ns > 0).any(axis=1)]
        before = found.get(part.rank.rank, (-1, -1))
        found[part.rank.rank] = (
            max(before[0], delayed[-1] if len(delayed) else -1),
            max(before[1], part.number[-1]),
        )
    return found


def until(condition, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.1)


@needs_dask
@needs_nodes
@timed
def test_a_run_ends_its_delays_when_all_is_decided(job, tmp_path):
    job.lead("--json", str(tmp_path / "found.json"))
    members = [job.start(rank, 100_000) for rank in range(2)]
    out, err = job.leader.communicate(timeout=600)
    assert job.leader.returncode == 0, err
    assert "decided after" in out
    found = schemas.read("job", (tmp_path / "found.json").read_text())
    assert found["live"]["ended"] == "decided"
    assert {one["target"] for one in found["live"]["decided"]} == {
        "__main__:work", "__main__:other"
    }  # fmt: skip
    assert sorted(node["host"] for node in found["live"]["nodes"]) == ["n0", "n1"]
    last = found["live"]["epochs"][-1]
    assert last["targets"] == []
    # The key is gone with its leader, and the program goes on at full speed.
    assert os.listdir(job.run / "live") == ["epochs.json"]
    for member in members:
        assert member.poll() is None
    until(
        lambda: all(
            end > last["first_step"] + 300
            for _, end in last_delayed(job.parts()).values()
        )
    )
    for delayed, _ in last_delayed(job.parts()).values():
        assert 0 < delayed < last["first_step"]
    for member in members:
        member.kill()
        assert "leader" not in member.communicate()[1]


@needs_dask
@needs_nodes
@timed
def test_a_leader_that_is_killed_takes_the_delays_with_it(job):
    # So narrow that it is never decided.
    job.lead("--precision", "0.001")
    members = [job.start(rank, 100_000) for rank in range(2)]
    until(lambda: min((x for x, _ in last_delayed(job.parts()).values()), default=0) > 60)
    until(job.have_heard)
    job.leader.send_signal(signal.SIGKILL)
    job.leader.wait()
    until(lambda: are_off(job.parts()))
    begin = {rank: end for rank, (_, end) in last_delayed(job.parts()).items()}
    until(
        lambda: all(
            end > begin[rank] + 200
            for rank, (_, end) in last_delayed(job.parts()).items()
        )
    )
    for rank, (delayed, end) in last_delayed(job.parts()).items():
        assert delayed <= begin[rank] < end
    for member in members:
        assert member.poll() is None
        member.kill()
        member.communicate()
    # What was measured until then is there.
    found = join.load(str(job.run))
    assert {e.name for e in found.effects} == {"__main__:work", "__main__:other"}
    assert all(e.criticality is not None for e in found.effects)


@needs_dask
@needs_nodes
@timed
def test_a_node_that_comes_late_follows_and_a_worker_that_hangs_holds_up_nobody(job):
    # An earlier leader has decided one of the functions.
    setup = plan.Setup(1, (), (), 0, 0.5, "")
    (job.run / "live").mkdir(0o700, parents=True)
    told = {
        "epochs": epochs.as_json([epoch(1, 100, "__main__:work", setup=setup)]),
        "decided": ["__main__:other"],
    }
    (job.run / "live" / meeting.EPOCHS).write_text(json.dumps(told))
    job.lead("--precision", "0.001")
    job.start(0, 100_000)
    until(lambda: last_delayed(job.parts()).get(0, (0, 0))[0] > 60)
    second = job.start(1, 100_000)
    until(lambda: {(0, True), (1, True)} <= followed(job.parts()))
    until(lambda: len(workers_of(second)) == 1)
    (hung,) = workers_of(second)
    os.kill(hung, signal.SIGSTOP)
    before = {rank: end for rank, (_, end) in last_delayed(job.parts()).items()}
    # A rank that waited for the worker, which never answers, would not get so far.
    until(
        lambda: all(
            end > before[rank] + 300
            for rank, (_, end) in last_delayed(job.parts()).items()
        )
    )
    # The helper kills it too, if this took long.
    with contextlib.suppress(ProcessLookupError):
        os.kill(hung, signal.SIGKILL)
    # The helper starts another, which goes on where the first one was.
    until(lambda: set(workers_of(second)) - {hung})
    job.leader.send_signal(signal.SIGINT)
    out, err = job.leader.communicate(timeout=60)
    assert job.leader.returncode == 130, err
    assert "interrupted after" in out


def workers_of(member):
    """The workers on the node of a member, which has a namespace of its own."""
    node = os.readlink(f"/proc/{member.pid}/ns/uts")
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if b"cluster.worker" in words and os.readlink(process / "ns/uts") == node:
                found.append(int(process.name))
    return found


def are_off(parts):
    """Whether the delays of both ranks have ended for want of a leader."""
    last = {part.rank.rank: part.setup["epochs"] for part in parts}
    return len(last) == 2 and all(
        [number for _, number in held] == [epochs.OFF] for held in last.values()
    )


def followed(parts):
    """The ranks with rows of the first epoch alone, and whether work was delayed."""
    found = set()
    for part in parts:
        if [number for _, number in part.setup["epochs"]] == [1]:
            on = dict(zip(part.functions, part.delivered_ns.sum(axis=0), strict=True))
            assert on["__main__:other"] == 0
            found.add((part.rank.rank, bool(on["__main__:work"] > 0)))
    return found


@needs_nodes
def test_without_the_extra_it_is_one_line(job):
    for verb, more in (("live", []), ("member", ["--live", "-t", "m:f", "--", "true"])):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT, verb, "--run", str(job.run), *more],
            env=environment(), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith("speed-bump: ")
        # cryptography may not be there either.
        assert re.search(
            r"needs distributed( and cryptography)?: "
            r"pip install 'speed-bump\[cluster\]'$",
            line,
        )


@needs_dask
def test_an_address_that_is_none_of_this_machine_is_one_line(tmp_path):
    done = subprocess.run(
        command_line("live", "--run", str(tmp_path), "--host", "203.0.113.1"),
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("speed-bump: can't listen at 203.0.113.1: ")
    assert os.listdir(tmp_path / "live") == []


def test_what_a_worker_left_is_in_nobodys_way(tmp_path):
    run = tmp_path / "run"
    left = pathlib.Path(on_node.room(str(run)), "dask-scratch-space", "worker")
    left.mkdir(parents=True)
    done = subprocess.run(
        command_line(
            "member", "--run", str(run), "-t", "__main__:work", "--", sys.executable,
            "-c", PROGRAM, "5",
        ),
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not left.exists()


@needs_dask
def test_a_node_that_cannot_reach_the_leader_says_why(tmp_path):
    run, where = tmp_path / "run", tmp_path / "room"
    where.mkdir()
    (where / minder.ALIVE).write_bytes(b"")
    meeting.make_key(str(run))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"tls://127.0.0.1:{closed.getsockname()[1]}"
    meeting.announce(str(run), address)
    process = subprocess.Popen(
        [sys.executable, "-m", minder.WORKER, str(run), str(where), str(os.getpid())],
        env=environment(),
    )
    try:
        log = run / "live" / f"{platform.node()}.log"
        until(lambda: log.exists() and address in log.read_text())
    finally:
        process.kill()
        process.wait()
    # One whose helper is gone ends.
    assert subprocess.run(
        [sys.executable, "-m", minder.WORKER, str(run), str(where), "1"],
        env=environment(), timeout=60, check=False,
    ).returncode == 0  # fmt: skip


@needs_dask
def test_a_member_says_once_that_no_leader_is_there(tmp_path):
    run = tmp_path / "run"
    for wrong in ([], ["--confirm", "0"]):
        done = subprocess.run(
            command_line(
                "member", "--live", *wrong, "--run", str(run), "-t", "__main__:work",
                "--", sys.executable, "-c", PROGRAM, "5",
            ),
            env=environment(), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        if wrong:
            assert done.returncode == 2
            assert "--live and --confirm are for different runs" in done.stderr
        else:
            assert done.returncode == 0
            assert done.stderr.count("\n") == 2
            assert f"no leader is at work in {run} yet" in done.stderr
