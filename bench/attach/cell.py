#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""cell.py WAY SHAPE N DIRECTORY: attach N times, in one way, to programs of one shape.

Run with the interpreter to be tested. Prints a JSON object: "verdict" (passed, failed or
skipped) and "text". What is kept of a failure is in DIRECTORY. build-aux/check-attach
runs all cells.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import container
import speed_bump
import subject
from program import EXECUTABLE, SETTLE_S, Failure, Program, State
from speed_bump.experiment.program import debugger, directory

# A refusal comes within 5 s; so much more for a machine that is used by others.
REFUSAL_S = 5.0
SLACK_S = float(os.environ.get("SB_SLACK_S", "1"))
# For everything that can hang.
HANG_S = 120
# If so many attempts in a row are refused, that is what this program does.
ALL_REFUSED = 5
# Programs that a debugger may never meet at a safe place, and those whose main thread
# never comes back to the interpreter, without which sys.remote_exec does nothing; others
# must be attached to.
SELDOM = ("native", "allocating")
NEVER_IN_PYTHON = ("reading", "locked")
# The address space may grow by this from the first attach to the last, KiB: the kept
# stacks of threads, and an arena of the allocator for each.
GROWTH_KB = 160 << 10
# How far two measurements before may differ, and how much of a CPU others may use.
STEADY, OTHERS = 0.01, 0.05
RATIO = 1.02
KILLS = 100
# What an epoch may take a second after the tool was killed, in times of before.
FULL_SPEED = 3


class Skip(Exception):
    """The cell can't be judged here, with the reason."""


class Hang(Failure):
    """Something did not end."""


def on_alarm(*_: object) -> None:
    raise Hang(f"something took more than {HANG_S} s")


class Cell:
    """Attaches of one kind."""

    def __init__(self, way: str, shape: str, times: int, where: Path) -> None:
        self.shape = shape
        self.times = times
        self.where = where
        self.refused: dict[str, int] = {}
        self.attached = 0
        self.slowest_s = 0.0
        self.remarks: list[str] = []
        self.program: Program | None = None
        self.kind = way
        self.way = way
        if way in debugger.DEBUGGERS:
            self.way = "debugger"
            for other in set(debugger.DEBUGGERS) - {way}:
                del debugger.DEBUGGERS[other]

    def start(self, shape: str, root: str = "", dormant: bool = True) -> Program:
        """A program that runs, and has a control socket if that is the way.

        Args:
            root: a directory for the root of a container that it runs in; "": here
            dormant: False: it has no control socket in any case
        """
        # A control socket's path is short.
        runtime = tempfile.mkdtemp(prefix="check-attach-", dir="/tmp")
        environ = {k: v for k, v in os.environ.items() if not k.startswith("SPEED_BUMP")}
        environ["XDG_RUNTIME_DIR"] = runtime
        if self.way == "socket" and dormant:
            environ["SPEED_BUMP_ATTACH"] = "1"
        # Free-threaded builds have an allocator of their own and refuse others.
        if shape == "allocating" and not sysconfig.get_config_var("Py_GIL_DISABLED"):
            environ["PYTHONMALLOC"] = "malloc"
        prefix = container.prefix(root, runtime) if root else []
        self.program = Program(shape, Path(runtime, "program"), environ, prefix)
        if self.kind == "lldb":
            # It does not unmap what it made its calls with.
            self.program.allowed = EXECUTABLE
        return self.program

    def close(self) -> None:
        if self.program:
            self.program.close()
            shutil.rmtree(self.program.where.parent, ignore_errors=True)
            self.program = None

    # ------------------------------------------------------------------ attaching

    def attach(self, program: Program) -> bool:
        """Attach, see that calls are counted, and detach; False: it was refused."""
        begin = time.monotonic()
        attached = speed_bump.attach(program.pid, ["__main__:work"], "1us", way=self.way)
        try:
            attached.__enter__()
        except speed_bump.AttachError as error:
            took = time.monotonic() - begin
            reason = str(error).replace(str(program.pid), "PID")
            self.refused[reason] = self.refused.get(reason, 0) + 1
            if took > REFUSAL_S + SLACK_S:
                raise Failure(f"it took {took:.1f} s to say: {reason}") from None
            return False
        try:
            self.slowest_s = max(self.slowest_s, time.monotonic() - begin)
            if self.shape != "exiting":
                self.wait_for_calls(program, attached)
        finally:
            attached.__exit__()
        self.attached += 1
        return True

    def wait_for_calls(self, program: Program, attached: speed_bump.attach) -> None:
        program.ask()
        until = time.monotonic() + HANG_S / 2
        while not attached.stats().calls:
            program.check_alive()
            if time.monotonic() > until:
                raise Failure("attached, and no call was counted")
            time.sleep(0.001)

    def repeatedly(self) -> None:
        """Attach to one program, N times."""
        program = self.start(self.shape)
        # What one attach leaves may stay, if more of them leave no more.
        before = program.settled()
        first = None
        begin = time.monotonic()
        for done in range(self.times):
            signal.alarm(HANG_S)
            if not self.attach(program):
                # It may not have noticed yet that this attempt is over.
                time.sleep(1)
            program.check_alive()
            if done == min(9, self.times - 1):
                first = program.settled(before)
            if not self.attached and done + 1 == ALL_REFUSED < self.times:
                self.remarks.append(f"{ALL_REFUSED} times instead of {self.times}")
                break
        self.took_s = time.monotonic() - begin
        signal.alarm(HANG_S)
        may_refuse = SELDOM + (NEVER_IN_PYTHON if self.way == "remote" else ())
        if not self.attached and self.shape not in may_refuse:
            raise Failure("it was never attached to")
        self.compare(program, before, first or before)
        if self.attached:
            # It still can be attached to, and works.
            program.ask()
        program.finish()

    def compare(self, program: Program, before: State, first: State) -> None:
        after = program.settled(before)
        files = after.new_files(before)
        if files:
            self.remarks.append(f"stay mapped: {', '.join(files)}")
        later = after.new_files(first)
        if self.kind == "lldb":
            later = [name for name in later if name != EXECUTABLE]
        if later and self.shape != "importing":
            raise Failure(f"mapped after the first attaches: {' '.join(later)}")
        growth = after.size_kb - first.size_kb
        if growth > GROWTH_KB:
            raise Failure(f"the address space grew by {growth >> 10} MiB")

    def exiting(self) -> None:
        """Attach to N programs, each at a random moment before its end."""
        begin = time.monotonic()
        last_s = 0.1
        for _ in range(self.times):
            signal.alarm(HANG_S)
            # Some attaches are over before the end, some are not, some come too late.
            life = random.uniform(0, 3 * min(last_s, 1))
            os.environ[subject.LIFE] = str(life)
            program = self.start("exiting")
            time.sleep(random.uniform(0, life))
            attaching = time.monotonic()
            self.attach(program)
            last_s = time.monotonic() - attaching
            program.finish(same_hooks=False)
            self.close()
        self.took_s = time.monotonic() - begin

    # ------------------------------------------------------------------ afterwards

    def timed(self) -> None:
        """What a call costs after ten attaches, in parts of what it cost before."""
        program = self.start("timed")

        def between() -> str:
            for _ in range(10):
                self.attach_timed(program)
            if self.attached < 10:
                raise Skip(f"only {self.attached} of 10 attaches: {_first(self.refused)}")
            return "after 10 attaches"

        self.ratio(program, between)

    def dormant(self) -> None:
        """What a call costs beside a control socket, in parts of what it cost before."""
        program = self.start("timed", dormant=False)
        before = program.settled()

        def between() -> str:
            program.ask(b"s")
            program.line("it did not open a control socket")
            after = program.settled()
            if after.threads > before.threads:
                raise Failure(f"{after.threads} threads instead of {before.threads}")
            if not sum((after.descriptors - before.descriptors).values()) == 1:
                raise Failure(f"descriptors: {after.descriptors - before.descriptors}")
            return "beside a control socket"

        self.ratio(program, between)
        self.remarks.append("one descriptor more, no thread")

    def ratio(self, program: Program, between: Callable[[], str]) -> None:
        """Compare the cost of a call before something and after it.

        Raises:
            Skip: it can't be judged
            Failure: it costs more
        """

        def measure() -> float:
            found = []
            for _ in range(3):
                signal.alarm(HANG_S)
                program.ask()
                found.append(float(program.line("it did not measure")))
            return statistics.median(found)

        begin = time.monotonic()
        busy = _busy_s() - _used_s(program.pid)
        measure()
        before = [measure(), measure()]
        what = between()
        # Code that was changed becomes what it was at the next calls.
        measure()
        after = measure()
        others = _busy_s() - _used_s(program.pid) - busy
        others /= time.monotonic() - begin
        program.finish()
        ratio = after / statistics.mean(before)
        differ = abs(before[1] / before[0] - 1)
        text = f"a call {what} costs {ratio:.4f} of before"
        if others > OTHERS:
            raise Skip(f"others used {others:.0%} of a CPU, so it is not judged ({text})")
        if differ > STEADY:
            raise Skip(f"two measurements before differ by {differ:.1%} ({text})")
        if ratio > RATIO:
            raise Failure(text)
        self.remarks.append(text)

    def attach_timed(self, program: Program) -> None:
        signal.alarm(HANG_S)
        attached = speed_bump.attach(program.pid, ["__main__:small"], "1us", way=self.way)
        try:
            attached.__enter__()
        except speed_bump.AttachError as error:
            self.refused[str(error)] = self.refused.get(str(error), 0) + 1
            return
        try:
            program.ask()
            program.line("it did not measure")
            if not attached.stats().calls:
                raise Failure("attached, and no call was counted")
        finally:
            attached.__exit__()
        self.attached += 1

    def killed(self) -> None:
        """SIGKILL of the tool at random moments: full speed within a second."""
        program = self.start("paced")
        signal.alarm(HANG_S)
        time.sleep(0.5)
        full = statistics.median(self.paces(program, 200))
        before = program.settled()
        longest = self.until_slow(program, full)
        slowed = 0
        places: set[str] = set()
        for _ in range(min(KILLS, self.times)):
            signal.alarm(HANG_S)
            tool = self.tool(program)
            time.sleep(random.uniform(0, 2 * longest))
            slowed += program.pace()[1] > FULL_SPEED * full
            places |= kill(tool)
            time.sleep(1)
            program.check_alive()
            pace = statistics.median(self.paces(program, 20))
            if pace > FULL_SPEED * full:
                times = pace / full
                raise Failure(f"a second later an epoch takes {times:.1f} times as long")
        self.remarks.append(
            f"{min(KILLS, self.times)} kills within {2 * longest:.1f} s, {slowed} of "
            "them while it was slowed"
        )
        program.settled(before)
        program.finish()
        self.check_removed(places)

    def check_removed(self, places: set[str]) -> None:
        """As at the start of the next tool, when debuggers of killed ones have ended."""
        end = time.monotonic() + SETTLE_S
        left = list(places)
        while left and time.monotonic() < end:
            for where in {os.path.dirname(place) for place in left}:
                directory.sweep(where)
            left = [place for place in left if os.path.exists(place)]
            time.sleep(0.1)
        if left:
            raise Failure(f"left by killed tools: {' '.join(left)}")

    def tool(self, program: Program) -> subprocess.Popen[bytes]:
        way = ["--attach", self.way]
        command = [sys.executable, "-m", "speed_bump", "run", "-t", "__main__:work"]
        environ = dict(os.environ)
        environ["XDG_RUNTIME_DIR"] = str(program.where.parent)
        if self.way == "debugger":
            # The other debugger is not found.
            environ["PATH"] = self.path_with_one_debugger(program.where)
        return subprocess.Popen(
            [*command, "-d", "500us", "--pid", str(program.pid), *way],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environ,
        )

    def path_with_one_debugger(self, where: Path) -> str:
        directory = where / "bin"
        directory.mkdir(exist_ok=True)
        for name in (self.kind, "sh", "sleep", "date"):
            found = shutil.which(name)
            if found and not (directory / name).exists():
                (directory / name).symlink_to(found)
        return str(directory)

    def until_slow(self, program: Program, full: float) -> float:
        """How long the tool takes until the program is slowed."""
        tool = self.tool(program)
        begin = time.monotonic()
        try:
            while statistics.median(self.paces(program, 5)) < FULL_SPEED * full:
                if tool.poll() is not None or time.monotonic() - begin > HANG_S / 2:
                    raise Skip(f"the tool did not attach (status {tool.poll()})")
                time.sleep(0.005)
            return time.monotonic() - begin
        finally:
            kill(tool)

    def paces(self, program: Program, count: int) -> list[int]:
        """Of so many epochs how long they took."""
        found = []
        last = program.pace()[0]
        until = time.monotonic() + HANG_S / 4
        while len(found) < count:
            now, took = program.pace()
            if now != last:
                found.append(took)
                last = now
            elif time.monotonic() > until:
                raise Failure("it does not go on")
            time.sleep(0.0001)
        return found

    def contained(self) -> None:
        """A program in a container without CAP_SYS_PTRACE."""
        with tempfile.TemporaryDirectory(prefix="check-attach-") as root:
            program = self.start("busy", root)
            self.remarks.append(container.check(program))
            program.finish()

    def run(self) -> tuple[str, str]:
        """The verdict, and a text."""
        signal.signal(signal.SIGALRM, on_alarm)
        # So that the program is ended.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        self.took_s = 0.0
        methods = {
            "exiting": self.exiting,
            "timed": self.timed,
            "paced": self.killed,
            "contained": self.contained,
            "dormant": self.dormant,
        }
        verdict = "passed"
        try:
            methods.get(self.shape, self.repeatedly)()
        except Skip as reason:
            return "skipped", str(reason)
        except Exception as error:
            signal.alarm(0)
            verdict = "failed"
            what = str(error) if isinstance(error, Failure) else repr(error)
            self.remarks.insert(0, f"{what} (in {self.where})")
            self.where.mkdir(parents=True, exist_ok=True)
            (self.where / "reason").write_text(traceback.format_exc())
            if self.program:
                self.program.keep_traces(self.where)
        finally:
            signal.alarm(0)
            self.close()
        return verdict, self.text()

    def text(self) -> str:
        parts = []
        if self.attached or self.refused:
            count = sum(self.refused.values())
            parts.append(f"{self.attached} attached, {count} refused")
        if self.attached and self.took_s:
            parts.append(f"slowest {self.slowest_s:.2f} s")
        if self.refused:
            parts.append(f"refused: {_first(self.refused)[:100]}")
        return "; ".join([*self.remarks, *parts])


def kill(tool: subprocess.Popen[bytes]) -> set[str]:
    """SIGKILL; returns the directories of files that the tool could not remove."""
    tool.send_signal(signal.SIGSTOP)
    maps = Path(f"/proc/{tool.pid}/maps").read_text()
    tool.kill()
    tool.wait()
    return set(re.findall(rf"(/\S*/{directory.PREFIX}\w+)/\d+\.table", maps))


def _first(refused: dict[str, int]) -> str:
    return max(refused, key=refused.__getitem__) if refused else "-"


def _busy_s() -> float:
    """CPU time of all programs so far."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _, _, irq, softirq, steal = map(int, words)
    ticks = user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def _used_s(pid: int) -> float:
    """CPU time of the program and of this tool."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    mine = os.times()
    ticks = int(after_name[11]) + int(after_name[12])
    return ticks / os.sysconf("SC_CLK_TCK") + sum(mine[:4])


def main() -> int:
    way, shape, times, where = sys.argv[1:]
    verdict, text = Cell(way, shape, int(times), Path(where)).run()
    print(json.dumps({"verdict": verdict, "text": text}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
