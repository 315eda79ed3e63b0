# SPDX-License-Identifier: MIT
"""``speed-bump rank`` without options on five programs: ``five.py [NAME]...``.

A training loop, one with torch and two DataLoader workers, a web server under load, a
numpy script that ends after five seconds, and a C++ program with threads. The output of
each is in build/five/NAME.txt, the lines with times in NAME.times, and its numbers in
NAME.json. A summary of each is printed, and is in build/five/summary.txt.

The exit status is 1 if a program was not measured, or if a function with at least 5%
headroom has no answer.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from speed_bump import native

ROOT = pathlib.Path(__file__).parents[2]
WORKLOADS = pathlib.Path("bench", "workloads")
WORDS = pathlib.Path("build", "bench", "workloads", "words")
OUT = ROOT / "build" / "five"
# A function that could gain this much must have an answer.
MIN_HEADROOM = 0.05
# A run takes the budget of a minute, and the time to look, to import and to end. It is
# asked to end, and killed if it does not.
TIMEOUT_S, GRACE_S = 300, 30


@dataclass(frozen=True)
class Program:
    """A program, and the module that it needs; "": it is not Python."""

    words: tuple[str, ...]
    needs: str = ""

    def command(self) -> list[str]:
        return [*(["python"] if self.needs else []), *self.words]

    def why_not(self) -> str:
        """Why it can't be run here; "" if it can."""
        if self.needs and importlib.util.find_spec(self.needs) is None:
            version = ".".join(map(str, sys.version_info[:2]))
            return (
                f"{self.needs} is not installed: there was no wheel of it for Python "
                f"{version} (PYTHON names another; five -d takes Debian's PyTorch)"
            )
        if self.needs:
            return ""
        if not os.access(self.words[0], os.X_OK):
            return f"{self.words[0]} is not built: it needs a C++ compiler"
        try:
            native.caveats()
        except native.NativeError as error:
            return str(error)
        return ""


PROGRAMS = {
    "train": Program((str(WORKLOADS / "train.py"),), "pygments"),
    "torch": Program(
        (str(WORKLOADS / "torch_train.py"), "--steps", "0", "--workers", "2"), "torch"
    ),
    "web": Program((str(WORKLOADS / "http_server.py"),), "aiohttp"),
    "numpy": Program((str(WORKLOADS / "clusters.py"),), "numpy"),
    "words": Program((str(WORDS), "0")),
}


@dataclass
class Ranked:
    """The result of one run.

    ``unit_s`` is when the line with the unit of work came, in seconds from the start;
    ``numbers`` are those of ``report --json``.
    """

    status: int = 0
    timed_out: bool = False
    seconds: float = 0.0
    unit: str = ""
    unit_s: float = 0.0
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def worth(self) -> list[dict[str, Any]]:
        """The findings that have, or may have, enough headroom."""
        return [f for f in self.numbers.get("findings", []) if may_gain(f)]

    @property
    def open(self) -> list[str]:
        """The functions that may have enough headroom and have no answer."""
        found = self.numbers.get("found") or {}
        left = [
            one["target"]
            for one in found.get("targets", [])
            if not one["chosen"] and one["self_share"] >= MIN_HEADROOM
        ]
        return [f["target"] for f in self.worth if f["verdict"] == "inconclusive"] + left

    @property
    def first_line_s(self) -> float | None:
        """From the first unit of work to the first line of the report."""
        ns = (self.numbers.get("found") or {}).get("first_line_ns")
        return None if ns is None else ns / 1e9


def may_gain(finding: dict[str, Any]) -> bool:
    """Whether the headroom is large enough; without an answer, whether it may be."""
    headroom = finding["headroom"]
    if finding["verdict"] != "inconclusive" and headroom:
        return headroom["value"] >= MIN_HEADROOM
    if headroom and headroom["high"] is not None:
        return headroom["high"] >= MIN_HEADROOM
    share = finding["self_share"]
    return share is None or share >= MIN_HEADROOM


def run(name: str) -> Ranked:
    """Rank one program, and keep its output."""
    home = OUT / f"{name}.state"
    shutil.rmtree(home, ignore_errors=True)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SPEED_BUMP_")}
    environ |= {
        "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(home),
    }
    command = ["speed-bump", "rank", "--", *PROGRAMS[name].command()]
    found, begin = Ranked(), time.monotonic()
    with (
        # Line by line, to be read meanwhile.
        (OUT / f"{name}.txt").open("w", 1, encoding="utf-8") as text,
        (OUT / f"{name}.times").open("w", 1, encoding="utf-8") as times,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        ) as child,
    ):
        text.write(f"$ {shlex.join(command)}\n")
        limits = [
            threading.Timer(TIMEOUT_S, child.terminate),
            threading.Timer(TIMEOUT_S + GRACE_S, child.kill),
        ]
        for limit in limits:
            limit.daemon = True
            limit.start()
        try:
            assert child.stdout
            for line in child.stdout:
                now = time.monotonic() - begin
                text.write(line)
                times.write(f"{now:8.2f}  {line}")
                if not found.unit and is_unit(line):
                    found.unit, found.unit_s = said(line), now
            found.status = child.wait()
        except BaseException:
            child.terminate()
            raise
        finally:
            for limit in limits:
                limit.cancel()
    found.seconds = time.monotonic() - begin
    found.timed_out = bool(found.status) and found.seconds >= TIMEOUT_S
    for record in home.glob("speed-bump/*.speedbump"):
        done = subprocess.run(
            ["speed-bump", "report", "--json", str(record)],
            env=environ,
            stdout=subprocess.PIPE,
            check=True,
        )
        found.numbers = json.loads(done.stdout)
        (OUT / f"{name}.json").write_bytes(done.stdout)
    return found


def is_unit(line: str) -> bool:
    return "a unit of work is " in line or "a unit is a whole run" in line


def said(line: str) -> str:
    """The unit and why, without how to change it."""
    text = line.strip().removeprefix("speed-bump: ").removeprefix("a unit of work is ")
    return text.partition(" (--progress")[0]


def summary(name: str, found: Ranked) -> str:
    """What came of one program."""
    if found.timed_out:
        return f"{name}: not over after {TIMEOUT_S} s: see build/five/{name}.txt"
    if found.status or not found.unit:
        return f"{name}: failed with status {found.status}: see build/five/{name}.txt"
    first = found.first_line_s
    lines = [f"{name}: unit: {found.unit}"]
    lines.append(
        "first line: "
        + (f"{first:.1f} s after the first unit of work, " if first is not None else "")
        + f"{found.unit_s:.1f} s after the start; {found.seconds:.0f} s in all"
    )
    if not found.numbers:
        return "\n    ".join([*lines, f"whole runs: see build/five/{name}.txt"])
    answered = sum(f["verdict"] != "inconclusive" for f in found.worth)
    lines.append(
        f"headroom of at least {MIN_HEADROOM:.0%}: {answered + len(found.open)} "
        f"functions, {answered} of them answered; {len(found.numbers['findings'])} were "
        f"measured, with {found.numbers['cpu_share'] or 0:.0%} of the CPU time that the "
        "program wanted"
    )
    return "\n    ".join([*lines, *(f"no answer: {one}" for one in found.open)])


def main() -> int:
    """The summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROGRAMS))
    names = parser.parse_args().names or list(PROGRAMS)
    for name in names:
        if name not in PROGRAMS:
            parser.error(f"no program {name}: {', '.join(PROGRAMS)}")
    os.chdir(ROOT)
    OUT.mkdir(parents=True, exist_ok=True)
    status, texts = 0, []
    for name in names:
        why = PROGRAMS[name].why_not()
        if why:
            text, is_good = f"{name}: not run: {why}", False
        else:
            print(f"five: {name}: output in build/five/{name}.txt", file=sys.stderr)
            found = run(name)
            text = summary(name, found)
            is_good = not found.status and bool(found.unit) and not found.open
        print(text, flush=True)
        texts.append(f"{text}\n")
        status = status if is_good else 1
    (OUT / "summary.txt").write_text("".join(texts), encoding="utf-8")
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
