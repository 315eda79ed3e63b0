# SPDX-License-Identifier: MIT
"""The hosts of check-cluster, made of namespaces, and the launchers that run on them."""

import contextlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import time

TREE = pathlib.Path(__file__).resolve().parent.parent
LOGS = TREE / "build/check-cluster"
HOSTS = {"n1": "10.77.0.1", "n2": "10.77.0.2"}
NAMESPACES = ("--mount", "--net", "--uts", "--ipc")
# Where Slurm's programs expect munge.
MUNGE = "/run/munge"
# Ray's sockets and logs, on each host its own.
RAY = "/tmp/ray"
RAY_S = 120
LIMIT_S = 240
# Of torchrun, for a job that may be started again. PORT is replaced.
ELASTIC = (
    *("--rdzv_backend", "c10d", "--rdzv_endpoint", "n1:PORT", "--rdzv_id", "check"),
    *("--rdzv_conf", "last_call_timeout=3"),
)


class Failure(Exception):
    """What is not as it must be."""


class Host:
    """A host made of namespaces; they live as long as a process in them that sleeps."""

    def __init__(self, name):
        self.name = name
        names = LOGS / "hosts"
        ready = "\n".join(
            [
                f"echo {name} >/proc/sys/kernel/hostname",
                "mount -t tmpfs -o mode=1777 tmpfs /dev/shm",
                f"mount --bind {names} /etc/hosts",
                "ip link set lo up",
                "echo ready",
                "exec sleep infinity",
            ]
        )
        self.holder = subprocess.Popen(
            ["unshare", *NAMESPACES, "--propagation", "private", "sh", "-euc", ready],
            stdout=subprocess.PIPE,
            text=True,
        )
        if self.holder.stdout.readline() != "ready\n":
            raise Failure(f"{name}: namespaces can't be made here")

    def command(self, *words):
        """The words, to be run on this host."""
        enter = ["nsenter", "-t", str(self.holder.pid), *NAMESPACES, "--"]
        return [*enter, *map(str, words)]

    def run(self, *words, **options):
        return subprocess.run(self.command(*words), check=True, **options)

    def start(self, log, *words, **environment):
        with open(log, "ab") as output:
            return subprocess.Popen(
                self.command(*words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=clean(environment),
            )

    def processes(self):
        """All of this host but the one that holds it."""
        mine = os.readlink(f"/proc/{self.holder.pid}/ns/uts")
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                is_here = os.readlink(f"/proc/{name}/ns/uts") == mine
                if is_here and int(name) != self.holder.pid:
                    yield int(name)

    def lose_power(self):
        """Kill all programs; nothing is left in memory."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        for path in self.rooms():
            shutil.rmtree(path, ignore_errors=True)

    def rooms(self):
        """Where members of this host meet, and their helper writes."""
        shared = pathlib.Path(f"/proc/{self.holder.pid}/root/dev/shm")
        return [path for path in shared.glob("speed-bump-*") if path.is_dir()]


def clean(more=None):
    """The environment of all programs of a run."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SPEED_BUMP_")}
    environ |= {"GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0"}
    return environ | (more or {})


class Cluster:
    """Both hosts, and the cable between them."""

    def __init__(self, venv):
        self.python = f"{venv}/bin/python"
        self.speed_bump = f"{venv}/bin/speed-bump"
        self.port = 29500
        self.daemons = []
        self.rays = []
        lines = ["127.0.0.1 localhost", *(f"{ip} {name}" for name, ip in HOSTS.items())]
        (LOGS / "hosts").write_text("".join(f"{line}\n" for line in lines))
        self.hosts = [Host(name) for name in HOSTS]
        pids = [str(host.holder.pid) for host in self.hosts]
        cable = ["ip", "link", "add", "eth0", "netns", pids[0], "type", "veth"]
        subprocess.run([*cable, "peer", "name", "eth0", "netns", pids[1]], check=True)
        for host in self.hosts:
            host.run("ip", "address", "add", f"{HOSTS[host.name]}/24", "dev", "eth0")
            host.run("ip", "link", "set", "eth0", "up")
            (LOGS / f"{host.name}.pid").write_text(str(host.holder.pid))
        # A launcher's remote shell.
        self.shell = LOGS / "shell"
        enter = " ".join(["nsenter", "-t", '"$pid"', *NAMESPACES])
        self.shell.write_text(
            f'#!/bin/sh\npid=$(cat "{LOGS}/$1.pid")\nshift\nexec {enter} -- sh -c "$*"\n'
        )
        self.shell.chmod(0o755)

    def new_port(self):
        self.port += 1
        return self.port

    def settle(self):
        """Wait until the helpers have written everything."""
        for _ in range(600):
            if not any(host.rooms() for host in self.hosts):
                return
            time.sleep(0.1)
        raise Failure("a helper goes on after its members")

    def clear(self):
        """End what a case that failed has left."""
        try:
            self.settle()
        except Failure:
            for host in self.hosts:
                host.lose_power()
            self.daemons.clear()

    def report(self, run, *words, host=None):
        command = [self.speed_bump, "report", str(run), *words]
        done = subprocess.run(
            host.command(*command) if host else command,
            env=clean(), capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise Failure(f"report: {done.stderr.strip()}")
        return done.stdout

    # -------------------------------------------------------------------- launchers

    def member(self, run, *options, name="--run"):
        return [self.speed_bump, "member", name, str(run), *map(str, options), "--"]

    def torchrun(self, run, options, program, *, more=(), late_s=0, member=None):
        """A rank on each host; ``member`` changes the words in front of it, by host."""
        port = self.new_port()
        jobs = []
        for k, host in enumerate(self.hosts):
            mine = self.member(run, *options, name="--dir")
            mine = member(host, mine) if member else mine
            if k:
                time.sleep(late_s)
            where = more or (
                *("--node_rank", k),
                *("--master_addr", self.hosts[0].name, "--master_port", port),
            )
            where = [str(word).replace("PORT", str(port)) for word in where]
            job = host.start(
                f"{run}.log", self.python, "-m", "torch.distributed.run",
                *(() if more else ("--nnodes", 2)), "--nproc_per_node", 1, *where,
                # Torch 1.13 can't read the defaults of these with Python 3.11.
                "--redirects", "0:1", "--tee", "0:1", "--log_dir", LOGS / "torchrun",
                "--no_python", *mine, self.python, *program, OMP_NUM_THREADS="1",
            )  # fmt: skip
            jobs.append(job)
        return jobs

    def mpirun(self, run, options, program, **_):
        mca = {
            "plm": "rsh", "plm_rsh_agent": self.shell, "pml": "ob1", "btl": "tcp,self",
            "btl_tcp_if_include": "eth0", "oob_tcp_if_include": "eth0",
            "mpi_yield_when_idle": 1,
        }  # fmt: skip
        words = [word for name, value in mca.items() for word in ("--mca", name, value)]
        job = self.hosts[0].start(
            f"{run}.log", "mpirun", "--allow-run-as-root", *words,
            # Cores of one host are those of the other.
            "--bind-to", "none", "--host", ",".join(f"{n}:1" for n in HOSTS),
            "-n", 2, *self.member(run, *options), self.python, *program,
        )  # fmt: skip
        return [job]

    def srun(self, run, options, program, *, srun=(), front=None, **_):
        """By Slurm; ``front`` are words in front of the member, or in its place."""
        self.start_slurm()
        job = self.hosts[0].start(
            f"{run}.log", "srun", "-N", 2, "-n", 2, "--ntasks-per-node", 1, *srun,
            *(front or self.member(run, *options)), self.python, *program,
            SLURM_CONF=str(LOGS / "slurm/slurm.conf"),
            MASTER_ADDR=self.hosts[0].name, MASTER_PORT=str(self.new_port()),
        )  # fmt: skip
        return [job]

    def start_slurm(self):
        """munge for both hosts, a controller, and a slurmd on each."""
        if self.daemons and all(daemon.poll() is None for daemon in self.daemons):
            return
        # A host may have been lost since.
        for daemon in self.daemons:
            daemon.kill()
            daemon.wait()
        self.daemons.clear()
        where = LOGS / "slurm"
        shutil.rmtree(where, ignore_errors=True)
        (where / "state").mkdir(parents=True)
        key = where / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        (where / "slurm.conf").write_text(slurm_conf(where))
        if slurm_version() >= (23, 11):
            (where / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        # Only here: mounts of this check are its own.
        os.makedirs(MUNGE, exist_ok=True)
        first = self.hosts[0]
        for host in self.hosts:
            host.run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", MUNGE)
            log = where / f"munged-{host.name}"
            munged = ("munged", "--foreground", "--force", f"--key-file={key}")
            files = ("pid", "seed")
            munged += tuple(f"--{kind}-file={MUNGE}/munged.{kind}" for kind in files)
            munged += (f"--log-file={log}.messages",)
            self.daemons.append(host.start(f"{log}.log", *munged))
        conf = str(where / "slurm.conf")
        log = where / "slurmctld.log"
        self.daemons.append(first.start(log, "slurmctld", "-D", "-f", conf))
        for host in self.hosts:
            log = where / f"slurmd-{host.name}.log"
            self.daemons.append(host.start(log, "slurmd", "-D", "-f", conf))
        for _ in range(120):
            done = subprocess.run(
                first.command("sinfo", "-h", "-N", "-o", "%N %t"),
                env=clean({"SLURM_CONF": conf}), capture_output=True, text=True,
            )  # fmt: skip
            if done.stdout.split() == ["n1", "idle", "n2", "idle"]:
                return
            if any(daemon.poll() is not None for daemon in self.daemons):
                break
            time.sleep(0.5)
        raise Failure(f"Slurm does not start: {done.stdout.strip()} (logs in {where})")

    def ray(self, run, options, program, **_):
        """By Ray Train: the member is in front of the Python of its workers."""
        self.start_ray()
        storage = f"{run}.ray"
        os.mkdir(storage)
        worker = shlex.join([*self.member(run, *options), self.python])
        job = self.hosts[0].start(
            f"{run}.log", self.python, *program,
            "--by", "ray", "--python", worker, "--storage", storage,
        )  # fmt: skip
        return [job]

    def start_ray(self):
        """A head on the first host, a node on the other; no metrics, no dashboard."""
        if self.rays and all(ray.poll() is None for ray in self.rays):
            return
        command = self.python.replace("bin/python", "bin/ray")
        first = self.hosts[0]
        if self.rays:
            # On both hosts, which see each other's processes.
            first.run(command, "stop", "--force", stdout=subprocess.DEVNULL)
        self.rays.clear()
        where = f"{HOSTS[first.name]}:{self.new_port()}"
        os.makedirs(RAY, exist_ok=True)
        for host in self.hosts:
            host.run("mount", "-t", "tmpfs", "tmpfs", RAY)
            log = LOGS / f"ray-{host.name}.log"
            log.unlink(missing_ok=True)
            mine = ("--address", where)
            if host is first:
                port = where.rpartition(":")[2]
                mine = ("--head", "--port", port, "--include-dashboard=false")
            ray = host.start(
                log, command, "start", *mine, "--node-ip-address", HOSTS[host.name],
                "--num-cpus", 2, "--object-store-memory", 100_000_000,
                "--disable-usage-stats", "--block",
            )  # fmt: skip
            self.rays.append(ray)
            end = time.monotonic() + RAY_S
            while "Ray runtime started" not in log.read_text(errors="replace"):
                if time.monotonic() > end or ray.poll() is not None:
                    raise Failure(f"Ray does not start: {last_line(log)} ({log})")
                time.sleep(0.2)


def slurm_conf(where):
    nodes = "".join(
        f"NodeName={name} NodeAddr={ip} CPUs=2 State=UNKNOWN\n"
        for name, ip in HOSTS.items()
    )
    return f"""ClusterName=check
SlurmctldHost=n1({HOSTS["n1"]})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation={where}/state
SlurmdSpoolDir={where}/spool-%n
SlurmctldPidFile={where}/slurmctld.pid
SlurmdPidFile={where}/slurmd-%n.pid
{nodes}PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""


def slurm_version():
    shown = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True)
    return tuple(map(int, re.findall(r"\d+", shown.stdout)[:2]))


def wait(jobs, log, ok=(0,)):
    """Until all have ended, each with one of these statuses."""
    end = time.monotonic() + LIMIT_S
    try:
        for job in jobs:
            status = job.wait(max(end - time.monotonic(), 0.1))
            if ok and status not in ok:
                raise Failure(f"status {status}: {last_line(log)}")
    except subprocess.TimeoutExpired:
        raise Failure(f"still running after {LIMIT_S} s: {last_line(log)}") from None
    finally:
        for job in jobs:
            if job.poll() is None:
                job.kill()


def last_line(log):
    lines = pathlib.Path(log).read_text(errors="replace").splitlines()
    return lines[-1] if lines else "no output"
