# SPDX-License-Identifier: MIT
"""``speed-bump member`` on every rank, and ``report DIR`` of the results.

Real jobs and made ones are judged by the same reports, so the tests share helpers: hence
the length.
"""

import dataclasses
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import schemas
from ranking import command_line, environment
from speed_bump import waits
from speed_bump.experiment.cluster import groups, join, node, places, plan, problems, rows
from speed_bump.experiment.fit.interval import Interval
from speed_bump.experiment.job_ranks import Rank
from speed_bump.experiment.show import job as showing
from test_ranks import HAVE_TORCH, WORKLOAD

pytestmark = pytest.mark.one_python

PROGRAM = """
import sys, time
import speed_bump
def work(seconds): time.sleep(seconds)
for step in range(int(sys.argv[1])):
    work(0.02)
    speed_bump.progress()
    print(step, flush=True)
"""
NODE = platform.node()
CAN_UNSHARE = not subprocess.run(
    ["unshare", "--mount", "--uts", "--pid", "--fork", "true"],
    capture_output=True,
    check=False,
).returncode
HAVE_MPI = bool(shutil.which("mpirun") and importlib.util.find_spec("mpi4py"))


def start(run, rank, steps, *more, world=2):
    environ = {**environment(), "RANK": str(rank), "WORLD_SIZE": str(world)}
    return subprocess.Popen(
        command_line(
            "member", "--run", str(run), "-t", "__main__:work", *more, "--",
            sys.executable, "-c", PROGRAM, str(steps),
        ),
        env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def report(run, *more):
    done = subprocess.run(
        command_line("report", str(run), *more),
        env=environment(), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def written(run):
    """The results, after the helper of this node has ended."""
    for _ in range(600):
        if not os.path.exists(node.room(str(run))):
            break
        time.sleep(0.1)
    else:
        raise AssertionError("the helper goes on")
    return schemas.read("job", report(run, "--json"))


@pytest.mark.timed
def test_ranks_are_joined_and_a_killed_one_has_lost_nothing(tmp_path):
    members = [start(tmp_path, rank, 300, world=3) for rank in (0, 1)]
    killed = members[1]
    # Killed in the middle, without a chance to report.
    finished = [int(killed.stdout.readline()) for _ in range(160)]
    killed.send_signal(signal.SIGKILL)
    finished += [int(line) for line in killed.stdout]
    assert (
        members[0]
        .communicate(timeout=120)[1]
        .startswith(f"speed-bump: rank 0 of 3, node {NODE}, by its environment")
    )
    killed.communicate()
    found = written(tmp_path)
    assert [rank["rank"] for rank in found["job"]["ranks"]] == [0, 1]
    (path,) = rows.files(str(tmp_path))
    parts = [part for part in rows.read(path) if part.rank.rank == 1]
    numbers = np.concatenate([part.number for part in parts])
    # The report of the last step may have been in progress.
    assert numbers[-1] >= finished[-1] - 1
    assert list(numbers) == list(range(len(numbers)))
    problems = "\n".join(found["warnings"])
    assert "rank 2 of 3 left nothing here" in problems
    assert f"rank 1 on {NODE} has" in problems
    # Each rank was delayed in the steps that the seed selects, and in no others.
    on = plan.is_on(1, "__main__:work", 0, len(numbers))
    delivered = np.concatenate([part.delivered_ns for part in parts])[:, -1] > 0
    assert delivered.any()
    assert not (delivered & ~on).any()
    assert (found["findings"][0]["target"]) == "__main__:work"
    # The rows that the killed rank did not report take few bytes too.
    count = sum(len(part.number) for part in rows.read(path))
    assert os.path.getsize(path) < 20 * count + 1000


def test_members_of_a_node_are_told_the_same(tmp_path):
    first = start(tmp_path, 0, 2000)
    first.stdout.readline()
    other = start(tmp_path, 1, 10, "--seed", "8")
    _, errors = other.communicate(timeout=60)
    first.kill()
    first.communicate()
    assert other.returncode == 1
    assert errors == (
        f"speed-bump: rank 1 of 2, node {NODE}, by its environment: seed is 8 here and 1 "
        "in another member of this node: give all members the same\n"
    )
    written(tmp_path)


def test_a_member_whose_program_has_no_speed_bump_is_named(tmp_path):
    first = start(tmp_path, 0, 100)
    silent = subprocess.run(
        command_line(
            "member", "--run", str(tmp_path), "-t", "__main__:work", "--",
            sys.executable, "-I", "-S", "-c", "import time; time.sleep(1)",
        ),
        env={**environment(), "RANK": "1", "WORLD_SIZE": "2"}, check=True,
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert b"rank 1 of 2" in silent.stderr
    assert first.wait(timeout=120) == 0
    first.communicate()
    found = written(tmp_path)
    assert found["warnings"][0] == (
        f"rank 1 on {NODE} is a member and reported no step: is speed-bump installed for "
        "the Python of its program, and does it reach --progress?"
    )
    assert not any("left nothing here" in line for line in found["warnings"])
    # That of rank 0 is not lost, and the places of the others are known as before.
    assert found["steps"] > 80
    assert [rank["rank"] for rank in found["job"]["ranks"]] == [0]


def test_a_member_that_starts_the_ranks_is_none_of_the_silent(tmp_path):
    """A launcher behind the member: the processes it starts have numbers."""
    loop = f"{sys.executable} -c '{PROGRAM}' 60"
    script = f"RANK=0 WORLD_SIZE=2 {loop} & RANK=1 WORLD_SIZE=2 {loop} & wait"
    done = subprocess.run(
        command_line(
            "member", "--run", str(tmp_path), "-t", "__main__:work", "--",
            "sh", "-c", script,
        ),
        env=environment(), check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert b"of a rank that is not known yet" in done.stderr
    found = written(tmp_path)
    assert [rank["rank"] for rank in found["job"]["ranks"]] == [0, 1]
    assert not any("reported no step" in line for line in found["warnings"])


def worker_of_ray(run, rank, steps):
    """Ray sets the rank after the start."""
    begin = f"import os; os.environ.update(RANK='{rank}', WORLD_SIZE='2')\n"
    return subprocess.Popen(
        command_line(
            "member", "--run", str(run), "-t", "__main__:work", "--",
            sys.executable, "-c", begin + PROGRAM, str(steps),
        ),
        env={**environment(), "RAY_RAYLET_PID": "1"},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_workers_that_ray_starts_again_are_another_attempt(tmp_path):
    for steps in (60, 90):
        workers = [worker_of_ray(tmp_path, rank, steps) for rank in (0, 1)]
        for worker in workers:
            assert "of a rank that is not known yet" in worker.communicate(timeout=60)[1]
            assert worker.returncode == 0
        found = written(tmp_path)
    assert [rank["launcher"] for rank in found["job"]["ranks"]] == ["Ray Train"] * 2
    assert "the job was started 2 times (attempts [0, 1])" in found["warnings"]
    assert not any("two processes" in line for line in found["warnings"])
    parts = [part for path in rows.files(str(tmp_path)) for part in rows.read(path)]
    ended = {}
    for part in parts:
        key = part.rank.attempt, part.rank.rank
        ended[key] = max(ended.get(key, 0), part.number[-1] % plan.ATTEMPT)
    assert ended == {(0, 0): 59, (0, 1): 59, (1, 0): 89, (1, 1): 89}


def test_an_attempt_begins_after_those_that_have_steps(tmp_path):
    save(tmp_path, "n1-7", part_of(0), part_of(0, attempt=1))
    assert rows.next_attempt(str(tmp_path), "n1") == 2
    # Of other hosts it is enough to know how they began.
    save(tmp_path, "n2-7", rows.none(Rank(1, attempt=8), {}), part_of(1, attempt=2))
    assert rows.next_attempt(str(tmp_path), "n1") == 3
    (tmp_path / "n3-7.rows").write_bytes(b"\x05\0\0\0wrong")
    assert rows.next_attempt(str(tmp_path), "n4") == 3
    assert rows.next_attempt(str(tmp_path / "empty"), "n1") == 0


def test_a_node_without_ranks_names_its_members_while_they_live(tmp_path, monkeypatch):
    where = tmp_path / "room"
    where.mkdir()
    monkeypatch.setattr(node, "FLUSH_S", 0)
    monkeypatch.setattr(node, "SILENT_S", -1)
    setup = plan.Setup(1, ("m:*",), ("default",), 0, 0.1, "0.1.0")
    helper = node.Helper(str(tmp_path), str(where), setup)
    member = dataclasses.asdict(Rank(3, 4, pid=1, host=NODE))
    (where / f"{node.MEMBER}1.json").write_text(json.dumps(member))
    helper.work()
    helper.work()
    (path,) = rows.files(str(tmp_path))
    assert [(part.rank.rank, len(part.number)) for part in rows.read(path)] == [(3, 0)]
    helper.finish()


def test_a_role_of_torchrun_is_recorded(tmp_path):
    member = subprocess.run(
        command_line(
            "member", "--run", str(tmp_path), "-t", "__main__:work", "--",
            sys.executable, "-c", PROGRAM, "60",
        ),
        env={
            **environment(), "RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "x",
            "ROLE_NAME": "actor",
        }, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert b"by torchrun" in member.stderr
    assert [rank["role"] for rank in written(tmp_path)["job"]["ranks"]] == ["actor"]


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    member = start(tmp_path / "file" / "run", 3, 1, world=4)
    _, errors = member.communicate(timeout=60)
    assert member.returncode == 1
    assert errors.startswith(
        f"speed-bump: rank 3 of 4, node {NODE}, by its environment: "
    )
    assert len(errors.splitlines()) == 1


@pytest.mark.timed
def test_groups_to_confirm_are_delayed_apart(tmp_path):
    members = [start(tmp_path, rank, 160, "--confirm", "1") for rank in (0, 1)]
    for member in members:
        assert member.wait(timeout=120) == 0
        member.communicate()
    found = written(tmp_path)
    assert {one["ranks"] for one in found["confirmed"]} == {"1"}
    (path,) = rows.files(str(tmp_path))
    parts = list(rows.read(path))
    planned = plan.confirming(1, ["__main__:work"], 1, 0, plan.ATTEMPT // 1000)
    for rank, arm in ((0, 0), (1, plan.arms_of_group(1))):
        mine = [part for part in parts if part.rank.rank == rank]
        number = np.concatenate([part.number for part in mine])
        delivered = np.concatenate([part.delivered_ns for part in mine])[:, -1] > 0
        on = (planned[number] >> np.uint64(arm) & np.uint64(1)) > 0
        assert delivered.any()
        assert not (delivered & ~on).any()
        # Except for the first steps, which a busy helper planned too late.
        assert delivered.sum() > on.sum() / 3


def test_groups_that_are_none_are_refused(tmp_path):
    for wrong, words in (
        (("one",), "'one' is not a list of ranks such as 3 or 0,4-7"),
        (("0-3", "2"), "a rank is in two groups"),
    ):
        more = [word for group in wrong for word in ("--confirm", group)]
        member = start(tmp_path, 0, 1, *more)
        _, errors = member.communicate(timeout=60)
        assert member.returncode == 2
        assert words in errors


TRAIN = """
import os, time
assert os.environ["MASTER_ADDR"] == "train-0.train"
def load(): time.sleep(0.01)
def step():
    load()
for _ in range(80):
    step()
"""


@pytest.mark.skipif(not CAN_UNSHARE, reason="namespaces can't be made here")
def test_pods_of_an_indexed_job_are_ranks(tmp_path):
    """The containers of docs/how-to/kubernetes/ranks.yaml as Kubernetes starts them."""
    yaml = pytest.importorskip("yaml")
    path = WORKLOAD.parents[2] / "docs" / "how-to" / "kubernetes" / "ranks.yaml"
    (job,) = [one for one in yaml.safe_load_all(path.read_text()) if one["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (tmp_path / "train.py").write_text(TRAIN)
    run = tmp_path / "runs"
    places = {"speed-bump": None, "/runs/1": str(run), "python": sys.executable}
    words = [places.get(word, word) for word in container["command"]]
    command = [*command_line(words[1]), *words[2:]]
    pods = []
    for index in range(job["spec"]["completions"]):
        environ = {**environment(), "JOB_COMPLETION_INDEX": str(index)}
        for one in container["env"]:
            environ[one["name"]] = one.get("value", str(index))
        inside = f'hostname train-{index}; mount -t tmpfs tmpfs /dev/shm; exec "$@"'
        pods.append(
            subprocess.Popen(
                [
                    "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child",
                    "--mount-proc", "--propagation", "private",
                    "sh", "-euc", inside, "sh", *command,
                ],
                env=environ, cwd=tmp_path, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    for index, pod in enumerate(pods):
        errors = pod.communicate(timeout=120)[1]
        assert pod.returncode == 0, errors
        assert f"rank {index} of 2, node train-{index}, by " in errors
    # A helper ended with its pod, after it had written all steps.
    parts = [part for path in rows.files(str(run)) for part in rows.read(path)]
    for index in range(2):
        mine = [part.number for part in parts if part.rank.rank == index]
        assert list(np.concatenate(mine)) == list(range(80))
    found = schemas.read("job", report(run, "--json"))["findings"]
    names = {one["target"] for one in found}
    assert names >= {"__main__:load", "__main__:step"}


def by_torchrun(run, kind, steps, *more):
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
            "--no-python", *command_line("member"), "--dir", str(run),
            "-t", "__main__:load", "-t", "__main__:forward",
            "--progress", "__main__:step", "--dose", "0.2", *more, "--",
            sys.executable, str(WORKLOAD), kind, "--steps", str(steps),
        ],
        env=environment(), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return written(run)


@pytest.mark.skipif(not HAVE_TORCH, reason="torch is not installed")
@pytest.mark.timed
def test_what_a_straggler_would_gain_by_torchrun(tmp_path):
    # Other programs make the interval wider: repeated with another seed.
    for seed in ("1", "2", "3"):
        found = by_torchrun(
            tmp_path / seed, "straggler", 400, "--confirm", "1", "--seed", seed
        )
        assert sorted(one["target"] for one in found["confirmed"]) == [
            "__main__:forward", "__main__:load"
        ]  # fmt: skip
        if all(
            one["only"] and one["all_but"] and one["gain"]
            and one["gain"]["low"] > 0.1
            and one["only"]["value"] > one["all_but"]["value"] + 0.4
            for one in found["confirmed"]
        ):  # fmt: skip
            return
    raise AssertionError(found["confirmed"])


@pytest.mark.skipif(not HAVE_MPI, reason="Open MPI or mpi4py is not installed")
@pytest.mark.timed
def test_waits_in_mpi_by_mpirun(tmp_path):
    done = subprocess.run(
        [
            "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2",
            *command_line("member"), "--run", str(tmp_path / "run"),
            "-t", "__main__:load", "-t", "__main__:forward",
            "--progress", "__main__:step", "--dose", "0.2", "--",
            sys.executable, str(WORKLOAD), "straggler", "--steps", "200",
        ],
        env=environment(), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"rank 1 of 2, node {NODE}, by mpirun" in done.stderr
    found = written(tmp_path / "run")
    assert found["job"]["limiting"] == [1]
    first, late = found["job"]["places"]
    assert first["wait_ns"] > 10e6
    assert late["wait_ns"] < first["wait_ns"] / 2
    assert late["own_ns"] > first["own_ns"] + 10e6


PART_OF_MPI = """
int PMPI_Barrier(int x) { return x + 1; }
int MPI_Barrier(int x) { return PMPI_Barrier(x); }
int MPI_Send(int x) { return x + 2; }
int MPI_Recv(int x) { return x + 3; }
int PMPI_Allreduce_c(int x) { return x + 4; }
int MPI_Allreduce_c(int x) { return PMPI_Allreduce_c(x); }
#define TWELVE long *a, long *b, long *c, long *d, long *e, long *f, long *g, long *h, \\
	long *i, long *j, long *k, long *l
void pmpi_sendrecv_(TWELVE, long *error) { *error = 7; }
void mpi_sendrecv_(TWELVE, long *error) { *error = 8; }
"""
CALLER = """
int MPI_Barrier(int), MPI_Send(int), MPI_Recv(int), MPI_Bcast(int);
int all(void) { return MPI_Barrier(10) + MPI_Send(100) + MPI_Recv(1000) + MPI_Send(1); }
int absent(void) { return MPI_Bcast(1); }
int MPI_Allreduce_c(int);
int MPI_Bcast_c(int) __attribute__((weak));
int asked(void) { return MPI_Bcast_c ? MPI_Bcast_c(1) : 1; }
#define TWELVE long *, long *, long *, long *, long *, long *, long *, long *, long *, \\
	long *, long *, long *
void mpi_sendrecv_(TWELVE, long *error);
int more(void)
{
	long x = 0, error;

	mpi_sendrecv_(&x, &x, &x, &x, &x, &x, &x, &x, &x, &x, &x, &x, &error);
	return MPI_Allreduce_c(10000) + error;
}
"""
PROGRAM_OF_MPI = """
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
static int count;
static void told(uint64_t ns) { count++; }
int main(int argc, char **argv)
{
	void *caller = dlopen(argv[1], RTLD_NOW | (argc > 3 ? RTLD_GLOBAL : RTLD_LOCAL));
	void (**listener)(uint64_t) = dlsym(RTLD_DEFAULT, "speed_bump_mpi_waited");

	*listener = told;
	int sum = ((int (*)(void))dlsym(caller, argv[2]))();
	printf("%d %d\\n", sum, count);
}
"""


def test_an_mpi_without_the_profiling_interface_works(tmp_path):
    """In whole or in part, and if only one object of the program has it."""
    (tmp_path / "mpi.c").write_text(PART_OF_MPI)
    (tmp_path / "caller.c").write_text(CALLER)
    (tmp_path / "main.c").write_text(PROGRAM_OF_MPI)
    shared = ["cc", "-shared", "-fPIC", f"-L{tmp_path}", f"-Wl,-rpath,{tmp_path}"]
    caller, program = str(tmp_path / "caller.so"), str(tmp_path / "main")
    for command in (
        [*shared, str(tmp_path / "mpi.c"), "-o", str(tmp_path / "libpart.so")],
        [*shared, str(tmp_path / "caller.c"), "-o", caller, "-lpart"],
        ["cc", str(tmp_path / "main.c"), "-o", program, "-ldl"],
    ):
        subprocess.run(command, check=True)
    environ = environment() | waits.preloaded({})
    for more in [], ["global"]:
        done = subprocess.run(
            [program, caller, "all", *more],
            env=environ, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "1119 4\n"), done.stderr
        # Once: not for each function, and not at each call.
        assert done.stderr == (
            "speed-bump: this MPI has no PMPI_Send: MPI_Send is called in its place\n"
        )
    # Of MPI 4, and called from Fortran.
    done = subprocess.run(
        [program, caller, "more"],
        env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "10011 2\n"), done.stderr
    done = subprocess.run(
        [program, caller, "absent"],
        env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 127
    assert done.stderr == "speed-bump: undefined symbol: MPI_Bcast\n"
    # A function of MPI 4, which the program takes for being there.
    done = subprocess.run(
        [program, caller, "asked"],
        env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 127
    assert done.stderr == (
        "speed-bump: undefined symbol: MPI_Bcast_c: this MPI is older than MPI 4; a "
        "program built for it does not call that function (of mpi4py: pip install "
        "--no-binary mpi4py mpi4py)\n"
    )


@pytest.mark.timed
@pytest.mark.skipif(not HAVE_TORCH, reason="torch is not installed")
@pytest.mark.parametrize("kind", ["straggler", "prefetch"])
def test_known_answers_by_torchrun(tmp_path, kind):
    found = by_torchrun(tmp_path / "run", kind, 400)
    # 399 of them, except those whose counts were missed on a busy machine.
    assert found["steps"] > 200
    first, second = found["job"]["places"]
    if kind == "straggler":
        assert found["job"]["limiting"] == [1]
        assert first["wait_ns"] > 10e6
        return
    for place in (first, second):
        cells = place["targets"]
        hidden, serial = cells["__main__:load"], cells["__main__:forward"]
        assert serial["low"] > 0.3
        assert hidden["value"] < serial["value"] - 0.3


# ------------------------------------------------------------------------ the parts


def test_plan_is_the_same_whoever_computes_it():
    whole = plan.is_on(7, "m:f", 0, 5000)
    assert not whole[: plan.CENSUS].any()
    assert (whole[40::2] == whole[41::2]).all()
    assert whole[40:].mean() == pytest.approx(plan.CHANCE, abs=0.03)
    for first, count in ((41, 10), (1023, 700), (4999, 1)):
        assert (plan.is_on(7, "m:f", first, count) == whole[first : first + count]).all()
    assert (plan.is_on(8, "m:f", 0, 5000) != whole).any()
    assert (plan.is_on(7, "m:g", 0, 5000) != whole).any()
    both = plan.masks(7, ["m:f", "m:g"], 0, 5000)
    assert ((both & np.uint64(1)) > 0).tolist() == whole.tolist()


def some_rows(rank, n=1000, seed=7, functions=16, late=0.0, world=4, host="n1"):
    draw = np.random.default_rng(100 + rank)
    names = tuple(f"m:f{k}" for k in range(functions))
    number = np.arange(n)
    on = np.stack([plan.is_on(seed, name, 0, n) for name in names], axis=1)
    delivered = on * draw.normal(1e6, 1e3, on.shape)
    base = np.random.default_rng(5).normal(20e6, 0.2e6, n)
    return rows.Rows(
        Rank(rank, world, rank, 0, 0, "srun", 10 + rank, host),
        {"seed": seed, "key": "k", "version": "0.1.0"}, names, (1.0,) * functions,
        number, base + delivered[:, 0] + late, draw.normal(late or 0.5e6, 1e5, n),
        delivered, np.ones(on.shape),
    )  # fmt: skip


def job_of_four(
    directory, late=None, groups=(), n=1500, names=("m:f0", "m:f1"), delays=(2e6,) * 4,
    displaced=0.0, share=1.0,
):  # fmt: skip
    """Four ranks on two nodes that meet in each step: f0 is in it, f1 is hidden.

    Where delays have a ``share`` of a CPU, f1's displace others in the collective.
    """
    draw = np.random.default_rng(3)
    number = np.arange(n)
    if groups:
        masks = plan.confirming(7, names, len(groups), 0, n)
    else:
        masks = plan.masks(7, names, 0, n)
    delivered = np.zeros((4, n, 2))
    for rank in range(4):
        inside = [k for k, group in enumerate(groups, 1) if rank in plan.ranks_of(group)]
        first = inside[0] * plan.arms_of_group(len(groups)) if inside else 0
        for k in range(2):
            on = (masks >> np.uint64(first + k) & np.uint64(1)) > 0
            delivered[rank, :, k] = on * delays[rank]
    own = draw.normal(20e6, 0.1e6, (4, n)) + delivered[:, :, 0]
    if late is not None:
        own[late] += 10e6
    step = own.max(axis=0) + 0.2e6 + displaced * delivered[:, :, 1].max(axis=0)
    for rank in range(4):
        part = rows.Rows(
            Rank(rank, 4, rank % 2, rank // 2, 0, "srun", 10 + rank, f"n{rank // 2}"),
            {"seed": 7, "key": "k", "version": "0.1.0", "groups": groups}, names,
            (share, share), number, step, step - own[rank], delivered[rank],
            np.ones((n, 2)),
        )  # fmt: skip
        save(directory, f"n{rank}", part)


def test_confirmation_says_what_a_faster_group_gains(tmp_path):
    job_of_four(tmp_path, late=2, groups=("2", "0-1"))
    found = {(c.name, c.group): c for c in join.load(str(tmp_path)).confirmed}
    straggler, others = found["m:f0", "2"], found["m:f0", "0-1"]
    assert straggler.everywhere.value == pytest.approx(1, abs=0.1)
    assert straggler.alone.value == pytest.approx(1, abs=0.1)
    assert straggler.without.value == pytest.approx(0, abs=0.1)
    assert straggler.gain.value == pytest.approx(1, abs=0.1)
    assert straggler.expected.alone == pytest.approx(1, abs=0.1)
    assert straggler.expected.without == pytest.approx(0, abs=0.1)
    assert others.alone.value == pytest.approx(0, abs=0.1)
    assert others.gain.value == pytest.approx(0, abs=0.1)
    assert not any(c.differs for c in found.values())
    assert found["m:f1", "2"].gain.value == pytest.approx(0, abs=0.1)
    text = report(tmp_path)
    assert "rank 2: of each millisecond that m:f0 is made faster there alone" in text
    assert "rank 0-1: making a function faster there gains nothing" in text


def test_a_gain_that_is_not_known_is_not_called_nothing(tmp_path):
    job_of_four(tmp_path, late=2, groups=("0-1",), n=200)
    found = join.load(str(tmp_path))
    assert showing.conclusions(found) == [
        "rank 0-1: making a function faster there gains nothing"
    ]
    wide = Interval(0.5, 0.05, 0.95)
    found.confirmed = [dataclasses.replace(found.confirmed[0], gain=wide)]
    assert showing.conclusions(found) == [
        "rank 0-1: not known whether making a function faster there gains anything "
        "(m:f0 0.50 ± 0.45); more steps would tell"
    ]


def test_to_confirm_what_was_never_called_is_said(tmp_path):
    part, none = some_rows(0, world=1), np.zeros((1000, 0))
    part.setup["groups"] = ("0",)
    part.functions, part.shares, part.delivered_ns, part.calls = (), (), none, none
    save(tmp_path, "n1", part)
    assert "none of the targets was called there" in report(tmp_path)


def test_groups_that_are_no_part_of_the_ranks_are_said(tmp_path):
    job_of_four(tmp_path, groups=("9", "0-3", "2,7"), n=120)
    problems = join.load(str(tmp_path)).problems
    assert "--confirm 9: no such rank" in problems
    assert "--confirm 2,7: no rank 7" in problems
    assert "--confirm 0-3: these are all ranks; it is for a part of them" in problems
    assert len([line for line in problems if "--confirm" in line]) == 3


def test_functions_for_which_there_is_no_arm_are_counted(tmp_path):
    program = """
import time
import speed_bump
for k in range(26):
    exec(f"def f{k}(): pass")
for step in range(60):
    for k in range(26):
        globals()[f"f{k}"]()
    time.sleep(0.01)
    speed_bump.progress()
"""
    done = subprocess.run(
        command_line(
            "member", "--run", str(tmp_path), "-t", "__main__:f*", "--confirm", "1",
            "--", sys.executable, "-c", program,
        ),
        env={**environment(), "RANK": "0", "WORLD_SIZE": "1"}, capture_output=True,
        text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    problems = written(tmp_path)["warnings"]
    assert "2 functions were called and not delayed: at most 24 with 1 group" in problems


def test_ranks_without_a_number_are_not_to_be_confirmed(tmp_path):
    job_of_four(tmp_path, late=2)
    with_number = join.load(str(tmp_path))
    assert "--confirm 2" in " ".join(showing.expectation(with_number))
    for rank in range(4):
        path = tmp_path / f"n{rank}.rows"
        (part,) = rows.read(str(path))
        part.rank = Rank(pid=10 + rank, host=part.rank.host)
        save(tmp_path, f"n{rank}", part)
    (line,) = showing.expectation(join.load(str(tmp_path)))
    assert "on rank 12 alone" in line
    assert "--confirm" not in line


def test_where_ranks_are_alike_none_of_them_gains_alone(tmp_path):
    job_of_four(tmp_path, groups=("2",))
    (found,) = [c for c in join.load(str(tmp_path)).confirmed if c.name == "m:f0"]
    assert found.alone.value == pytest.approx(1, abs=0.15)
    assert found.without.value == pytest.approx(1, abs=0.15)
    assert found.gain.value == pytest.approx(0, abs=0.15)


def test_what_limits_is_said_with_how_to_confirm_it(tmp_path):
    job_of_four(tmp_path, late=2)
    text = " ".join(report(tmp_path).split())
    assert "rank 2 limits: it is last in 100.0% of the steps" in text
    told = re.search(
        r"m:f0 on rank 2 alone: ([\d.]+) of it, on all others ([\d.]+);", text
    )
    assert float(told[1]) == pytest.approx(1, abs=0.1)
    assert float(told[2]) == pytest.approx(0, abs=0.1)
    assert "--confirm 2" in text


def save(directory, name, *parts):
    with open(directory / f"{name}.rows", "wb") as file:
        for part in parts:
            rows.write(file, part)


def test_rows_are_few_bytes_and_read_as_they_were(tmp_path):
    of = some_rows(0)
    save(tmp_path, "n1", of)
    path = tmp_path / "n1.rows"
    assert path.stat().st_size < 20 * len(of.number)
    (again,) = rows.read(str(path))
    assert again.rank == of.rank
    assert (again.number == of.number).all()
    assert (again.calls == of.calls).all()
    assert np.abs(again.time_ns - of.time_ns).max() < of.time_ns.mean() / 4000
    assert np.abs(again.delivered_ns - of.delivered_ns).max() < 5000
    # Cut off in the middle of a chunk, as by a kill: the chunks before it are valid.
    save(tmp_path, "n1", of, some_rows(1))
    path.write_bytes(path.read_bytes()[:-100])
    assert [part.rank.rank for part in rows.read(str(path))] == [0]
    path.write_bytes(b"no rows at all")
    with pytest.raises(ValueError, match="not rows of a run"):
        list(rows.read(str(path)))


def test_of_many_ranks_the_table_has_few_lines(tmp_path):
    draw = np.random.default_rng(11)
    names, n, ranks = ("m:f0", "m:f1"), 300, 256
    masks = plan.masks(7, names, 0, n)
    on = np.stack([(masks >> np.uint64(k) & np.uint64(1)) > 0 for k in range(2)], 1)
    delivered = on * 2e6
    parts = []
    for rank in range(ranks):
        own = draw.normal(20e6, 0.2e6, n) + delivered[:, 0] + (rank == 77) * 8e6
        step = 29e6 + delivered[:, 0]
        parts.append(rows.Rows(
            Rank(rank, ranks, rank % 8, rank // 8, 0, "srun", 10 + rank, f"n{rank // 8}"),
            {"seed": 7, "key": "k", "version": "0.1.0"}, names, (1.0, 1.0),
            np.arange(n), step, step - own, delivered, np.ones((n, 2)),
        ))  # fmt: skip
    for first in range(0, ranks, 8):
        save(tmp_path, f"n{first}", *parts[first : first + 8])
    job = join.load(str(tmp_path))
    few = places.merged(job.places, 10).places
    assert [len(place.ranks) for place in few] == [255, 1]
    text = report(tmp_path)
    assert re.search(
        r"own work (1.0|0.9)\d on all 256; arrives on rank 77", " ".join(text.split())
    )
    assert "hidden everywhere" in text
    assert len(text.splitlines()) < 30


def test_join_says_who_is_missing_short_or_of_another_seed(tmp_path):
    save(tmp_path, "n1", some_rows(0), some_rows(1))
    save(tmp_path, "n2", some_rows(2, n=300, host="n2"))
    save(tmp_path, "n3", some_rows(3, seed=8, host="n3"))
    job = join.load(str(tmp_path))
    text = "\n".join(job.problems)
    assert "rank 3 on n3 has --seed 8, the others 7; its steps are left out" in text
    assert "rank 2 on n2 has 300 steps, others 1,000" in text
    assert [rank.rank for rank in job.ranks.who] == [0, 1, 2]
    os.unlink(tmp_path / "n2.rows")
    assert "rank 2 of 4 left nothing here" in "\n".join(join.load(str(tmp_path)).problems)


def part_of(rank, n=100, attempt=0, world=4, host="n1", local=None, seed=7, **setup):
    """Rows of a rank without any function."""
    number = np.arange(n) + attempt * plan.ATTEMPT
    local = rank % 2 if local is None else local
    return rows.Rows(
        Rank(rank, world, local, 0, attempt, "torchrun", 10 + rank, host),
        {"seed": seed, "key": "k", "version": "0.1.0", **setup}, ("m:f",), (1.0,), number,
        np.full(n, 20e6), np.zeros(n), np.zeros((n, 1)), np.ones((n, 1)),
    )  # fmt: skip


def problems_of(directory):
    return join.load(str(directory)).problems


def test_of_another_version_or_other_targets_is_said(tmp_path):
    save(tmp_path, "n1", part_of(0), part_of(1))
    save(
        tmp_path, "n2", part_of(2, host="n2", version="0.2.0"),
        part_of(3, host="n2", key="other"),
    )  # fmt: skip
    assert problems_of(tmp_path) == [
        "rank 3 on n2 was given other targets, --progress, --delay or --dose than the "
        "others",
        "rank 2 on n2 has speed-bump 0.2.0, the others 0.1.0",
    ]


def test_who_is_missing_is_said_with_the_node(tmp_path):
    asks = ": is 'speed-bump member' in front of the program there"
    save(tmp_path, "n1", part_of(0), part_of(1))
    save(tmp_path, "n2", part_of(3, host="n2"))
    # Ranks 2 and 3 are on one node, as launchers number them.
    assert problems_of(tmp_path) == [
        f"rank 2 of 4 on n2 left nothing here, other ranks of that node did{asks}?"
    ]
    # Where a rank has no neighbour that left something, its node follows from no number.
    os.unlink(tmp_path / "n2.rows")
    assert problems_of(tmp_path) == [
        f"rank 2, 3 of 4 left nothing here{asks}, is speed-bump installed on that node, "
        "and is the directory shared with it?"
    ]
    # Slurm tells the names of the nodes.
    nodes = problems.nodes_of("n[1-2]")
    save(tmp_path, "n1", part_of(0, nodes=nodes), part_of(1, nodes=nodes))
    (line,) = problems_of(tmp_path)
    assert line.startswith("rank 2, 3 of 4 (node n2) left nothing here")
    # Ranks that are dealt out in turn: rank 2 may be anywhere.
    save(tmp_path, "n1", part_of(0, local=0), part_of(1, local=0, host="n2"))
    save(tmp_path, "n2", part_of(3, local=1, host="n2"))
    (line,) = problems_of(tmp_path)
    assert line.startswith("rank 2 of 4 left nothing here")


def test_nodes_are_read_as_slurm_writes_them():
    assert problems.nodes_of("") == ()
    assert problems.nodes_of("a,b7") == ("a", "b7")
    assert problems.nodes_of("n[08-10,3],m1") == ("n08", "n09", "n10", "n3", "m1")


def test_a_rank_that_does_not_know_its_number_is_said(tmp_path):
    alone = part_of(-1, world=-1, host="n2", local=-1)
    save(tmp_path, "n1", part_of(0, world=2))
    save(tmp_path, "n2", alone)
    found = problems_of(tmp_path)
    assert found[0].startswith("rank 1 of 2 left nothing here")
    assert found[1].startswith("process 9 on n2 does not know its rank: the variables")
    # Processes of one machine need no numbers.
    os.unlink(tmp_path / "n1.rows")
    assert problems_of(tmp_path) == []


def test_a_member_beside_a_complete_job_is_none_of_its_ranks(tmp_path):
    """Tasks that a worker of Ray starts have its member in front of them too."""
    ranks = [part_of(r, world=2) for r in range(2)]
    task = rows.none(Rank(pid=9, host="n1"), ranks[0].setup)
    save(tmp_path, "n1", *ranks, task)
    assert problems_of(tmp_path) == []
    save(tmp_path, "n1", ranks[0], task)
    found = problems_of(tmp_path)
    assert found[0].startswith("rank 1 of 2 left nothing here")
    assert found[1].startswith("process 9 on n1 is a member and reported no step")


def test_a_world_that_shrinks_is_said(tmp_path):
    hosts = {0: "n1", 1: "n1", 2: "n2", 3: "n2"}
    before = [part_of(r, host=hosts[r], n=150) for r in range(4)]
    # The first node is lost; the ranks of the second are numbered anew.
    after = [part_of(r, host="n2", world=2, attempt=1, n=500) for r in range(2)]
    save(tmp_path, "n1", *before[:2])
    save(tmp_path, "n2", *before[2:], *after)
    assert problems_of(tmp_path) == [
        "the job was started 2 times (attempts [0, 1])",
        "attempt 1 has 2 ranks, attempt 0 had 4; no longer there: rank 0 on n1, rank 1 "
        "on n1",
    ]
    # One of a later attempt is missing, although it was there before.
    save(tmp_path, "n2", *before[2:], after[0])
    assert problems_of(tmp_path)[0].startswith(
        "in attempt 1, rank 1 of 2 left nothing here"
    )
    # One that is short in one of them.
    short = part_of(1, host="n2", world=2, attempt=1, n=300)
    save(tmp_path, "n2", *before[2:], after[0], short)
    assert problems_of(tmp_path)[0] == (
        "in attempt 1, rank 1 on n2 has 300 steps, others 500: it ended early, began "
        "late, or counts other steps"
    )


def test_the_same_problem_of_many_ranks_is_a_few_lines(tmp_path):
    parts = [part_of(r, world=40, n=50 if r > 4 else 100, local=-1) for r in range(30)]
    save(tmp_path, "n1", *parts)
    found = problems_of(tmp_path)
    assert found[0].startswith("rank 30, 31, 32, 33, 34, 35, 36, 37 and 2 more of 40 ")
    assert len(found) == 10
    assert found[-1] == "the same of 17 more ranks"


def test_join_finds_the_function_that_the_step_pays_for(tmp_path):
    save(tmp_path, "n1", *(some_rows(r) for r in range(4)))
    job = join.load(str(tmp_path))
    assert not job.problems
    of = {effect.name: effect.criticality for effect in job.effects}
    assert of["m:f0"].low < 1 < of["m:f0"].high
    assert of["m:f0"].half < 0.2
    assert all(abs(of[f"m:f{k}"].value) < 0.2 for k in range(1, 16))


@pytest.mark.parametrize("late", [None, 0, 2])
def test_ranks_may_have_chosen_different_delays(tmp_path, late):
    job_of_four(tmp_path, late=late, delays=(2e6, 2e6, 3e6, 2e6))
    found, hidden = join.load(str(tmp_path)).effects
    # Without a delay each rank is the last at times, by a tenth of a millisecond.
    assert found.criticality.value == pytest.approx(1, abs=0.05)
    assert abs(hidden.criticality.value) < 0.05
    # That of the rank that is last, on which the others wait.
    last = 2e6 if late == 0 else 3e6
    assert found.delay_ns == pytest.approx(last, rel=0.01)


def test_what_delays_take_from_others_on_shared_cpus_is_not_said_to_matter(tmp_path):
    job_of_four(tmp_path, displaced=0.2, share=0.8)
    matters, hidden = written(tmp_path)["findings"]
    assert matters["verdict"] == "matters"
    assert hidden["verdict"] == "inconclusive"
    assert hidden["criticality"]["low"] < 0 < hidden["criticality"]["high"]


def test_ranks_that_begin_to_count_in_different_steps_choose_the_same_delay():
    for calls in (1, 30):
        whole = np.full(40, calls)
        late = np.where(np.arange(40) < 5, 0, whole)
        assert plan.usual_calls(late) == plan.usual_calls(whole) == calls
    rare = np.where(np.arange(40) % 4 == 3, 2, 0)
    assert plan.usual_calls(rare) == pytest.approx(0.5, abs=0.05)
    assert plan.usual_calls(np.zeros(40)) == plan.usual_calls(np.zeros(0)) == 0


def test_without_rows_it_says_what_to_do(tmp_path):
    with pytest.raises(join.JobError, match="in front of the program on every rank"):
        join.load(str(tmp_path))


# ------------------------------------------------------------------------ groups


def test_a_layout_is_read_and_its_last_dimension_varies_fastest():
    found = groups.layout("pp=2,dp=3, tp=4")
    assert found.world == 24
    assert [found.coordinates(rank) for rank in (0, 3, 4, 12, 23)] == [
        (0, 0, 0), (0, 0, 3), (0, 1, 0), (1, 0, 0), (1, 2, 3)
    ]  # fmt: skip
    for wrong, words in (
        ("8", "'8' is not such as tp=8"),
        ("tp=0", "'tp=0' is not such as tp=8"),
        ("tp=2,tp=2", "'tp' is there twice"),
        ("node=2", "'node' is known without it"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            groups.layout(wrong)


def stages(directory, slow_stage=None, odd_stage=None, late=None, n=400):
    """32 ranks on 4 nodes, in 2 stages by rank // 16, where f0 is in each step."""
    draw = np.random.default_rng(5)
    names = ("m:f0", "m:f1")
    masks = plan.masks(7, names, 0, n)
    delivered = np.zeros((n, 2))
    for k in range(2):
        delivered[:, k] = ((masks >> np.uint64(k) & np.uint64(1)) > 0) * 2e6
    own = draw.normal(20e6, 0.3e6, (32, n)) + delivered[:, 0]
    for rank in range(32):
        own[rank] += (rank // 16 == slow_stage) * 6e6 + (rank == late) * 12e6
        own[rank] += (rank // 16 == odd_stage) * delivered[:, 1]
    step = own.max(axis=0)
    for first in range(0, 32, 8):
        save(directory, f"n{first}", *(
            rows.Rows(
                Rank(r, 32, r % 8, r // 8, 0, "srun", 10 + r, f"n{r // 8}"),
                {"seed": 7, "key": "k", "version": "0.1.0"}, names, (1.0, 1.0),
                np.arange(n), step, step - own[r], delivered, np.ones((n, 2)),
            )
            for r in range(first, first + 8)
        ))  # fmt: skip


LAYOUT = ("--layout", "pp=2,dp=16")


def test_a_stage_that_limits_is_named(tmp_path):
    stages(tmp_path, slow_stage=1)
    found = schemas.read("job", report(tmp_path, "--json", *LAYOUT))
    assert found["job"]["limiting"] == list(range(16, 32))
    (stage,) = (one for one in found["job"]["groups"] if one["name"] == "pp=1")
    assert stage["last"] == pytest.approx(1)
    # None of its ranks alone would do.
    assert max(place["last"] for place in found["job"]["places"]) < 0.3
    text = " ".join(report(tmp_path, *LAYOUT).split())
    assert "pp=1 limits: it is last in 100.0% of the steps" in text
    assert "arrives on pp=1" in text
    assert "--confirm 16-31" in text
    # Without the layout it is two nodes, neither of which is last in most steps.
    plain = schemas.read("job", report(tmp_path, "--json"))
    assert plain["job"]["limiting"] is None


def test_ranks_that_are_alike_are_shown_by_their_group(tmp_path):
    stages(tmp_path, odd_stage=1, late=3)
    text = report(tmp_path, *LAYOUT)
    rows = [line.split("  ")[0] for line in text.splitlines()]
    assert "pp=1" in rows
    assert "3" in rows
    assert "15 others" in rows
    words = " ".join(text.split())
    assert "m:f1" in words
    assert "own work of pp=1" in words
    assert "rank 3 limits" in words
    # By nodes it is the same, of which two have f1.
    assert "own work of 16 others" in " ".join(report(tmp_path).split())


def test_where_nothing_differs_one_line_is_enough(tmp_path):
    stages(tmp_path)
    job = join.load(str(tmp_path), groups.layout("pp=2,dp=16"))
    assert job.places.limiting is None
    (place,) = places.merged(job.places, 10).places
    assert len(place.ranks) == 32


def test_more_places_than_lines_are_the_largest_the_odd_ones_and_the_rest():
    def place(rank, own, cell):
        cells = (Interval(cell, cell - 0.01, cell + 0.01),)
        return places.Place((Rank(rank, 64),), own, 1e6, 1 / 64, cells)

    all_ranks = [place(r, 20e6, 0.0) for r in range(40)]
    all_ranks += [place(r, 20e6 + (r - 39) * 3e6, r / 20) for r in range(40, 64)]
    found = places.Places(("m:f",), tuple(all_ranks), 50e6)
    few = places.merged(found, 6).places
    assert len(few) == 6
    assert sum(len(one.ranks) for one in few) == 64
    assert len(few[0].ranks) == 40
    # The most different ones have a line each; the others' contains all of them.
    assert sum(len(one.ranks) == 1 for one in few) == 4
    (rest,) = (one for one in few if 1 < len(one.ranks) < 40)
    assert rest.cells[0].low < 2
    assert rest.cells[0].high > 59 / 20


def test_a_layout_of_another_number_of_ranks_is_refused(tmp_path):
    stages(tmp_path, n=60)
    done = subprocess.run(
        command_line("report", str(tmp_path), "--layout", "tp=8"),
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "speed-bump: --layout: these dimensions make 8 ranks, and the run has 32\n"
    )
    for path, layout, words in (
        (tmp_path, "tp", "--layout: 'tp' is not such as tp=8"),
        ("no-directory", "tp=8", "--layout: FILE is not the directory of a run"),
    ):
        done = subprocess.run(
            command_line("report", str(path), "--layout", layout),
            env=environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert words in done.stderr


def test_groups_stay_together_where_their_ranks_are_alike():
    def place(rank, low, high):
        cells = (Interval((low + high) / 2, low, high),)
        return places.Place((Rank(rank, 4, host=f"n{rank // 2}"),), 1e6, 0, 0.25, cells)

    # One after the other, the third would do beside the first two.
    each = tuple(
        place(rank, *ends)
        for rank, ends in enumerate(((0, 0.6), (0.5, 1.1), (0.55, 1.2), (1.15, 1.8)))
    )
    nodes = groups.groups_of([rank for one in each for rank in one.ranks])
    found = places.Places(("m:f",), each, 2e6, nodes, (0.0, 0.0))
    few = places.merged(found, 3).places
    assert [[rank.rank for rank in one.ranks] for one in few] == [[0, 1], [2, 3]]
