# SPDX-License-Identifier: MIT
"""The function that each tool names first, and the gain of following that advice.

``peers.py [--only NAME,...] [--tools NAME,...] [--runs N] [--seconds S] [--json FILE]``
runs programs whose limiting function is known by construction (truth.py) under each tool
for the same time. The answer of a profiler is the function with most of its samples; a
sample belongs to the innermost of the program's functions on the stack. The answer of Coz
and speed-bump is the function with the largest predicted gain; each may give none.

Then each function that was named is made twice as fast, in whole runs without any tool,
in pairs in random order: the gain in throughput is the value of the advice.

py-spy and Scalene come from PyPI (``--venv``), perf and Coz from Debian; ``--native`` is
native.c as rank uses it, ``--coz`` the same with Coz's progress points.
build-aux/bench-peers builds all of them. If a tool can't run here, the table gives the
reason.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from truth import ENVIRON, PROGRAMS, Program, interval, run_once

HERE = pathlib.Path(__file__).parent
SCRIPT, SOURCE = HERE / "programs.py", HERE / "native.c"
NONE = "none"
# The minimal prediction for naming a function.
MIN_GAIN = 0.01
PATIENCE_S = 120


class CantRun(Exception):
    """The tool does not run here; the message says why."""


@dataclass
class Tools:
    """The paths of the tools and programs."""

    venv: str
    native: str
    coz: str
    seconds: float


def execute(
    command: list[str], tools: Tools, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a tool, with all its children ended if it hangs.

    Raises:
        CantRun: it hangs
    """
    process = subprocess.Popen(
        command,
        env={**ENVIRON, **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=tools.seconds + PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise CantRun(
            f"{command[0]} was still running after {PATIENCE_S} s more"
        ) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else "it said nothing"


def first_of(counts: dict[str, float]) -> str:
    return max(counts, key=lambda name: counts[name]) if counts else NONE


# ------------------------------------------------------------------------------ the tools


def speed_bump(
    program: Program, tools: Tools, seed: int, directory: str, native: bool
) -> str:
    """The most headroom of functions that matter, alone or with others."""
    words = [sys.executable, "-m", "speed_bump", "rank", "--seed", str(seed)]
    words += ["--budget", f"{tools.seconds:g}s"]
    words += ["-o", f"{directory}/record", "--json", f"{directory}/json"]
    for name in program.functions:
        words += (
            ["--native", f"{tools.native}:{name}"]
            if native
            else ["-t", f"__main__:{name}"]
        )
    if native:
        words += ["--progress", f"{tools.native}:unit_done", "--", tools.native]
    else:
        words += ["--", sys.executable, str(SCRIPT)]
    done = execute([*words, program.name, "100000"], tools, program.undisturbed)
    try:
        text = pathlib.Path(f"{directory}/json").read_text("utf-8")
    except OSError:
        raise CantRun(last_line(done.stderr)) from None
    worth = {}
    for found in json.loads(text)["findings"]:
        alone = not any(note.startswith("in parallel") for note in found.get("notes", []))
        if found["verdict"] in ("matters", "partly") and alone:
            gain = found["headroom"] or found["criticality"]
            worth[found["target"].rpartition(":")[2]] = gain["value"]
    return first_of(worth)


def py_spy(
    program: Program, tools: Tools, seed: int, directory: str, native: bool
) -> str:
    """``py-spy record``, with its own settings, and child processes."""
    out = f"{directory}/stacks"
    done = execute(
        [
            *(f"{tools.venv}/bin/py-spy", "record", "--subprocesses", "--format", "raw"),
            *("--output", out, "--duration", f"{tools.seconds:g}", "--"),
            *(f"{tools.venv}/bin/python", str(SCRIPT), program.name),
            str(tools.seconds + 5),
        ],
        tools,
        program.undisturbed,
    )
    if not os.path.exists(out):
        raise CantRun(last_line(done.stderr))
    counts: Counter[str] = Counter()
    for line in pathlib.Path(out).read_text("utf-8").splitlines():
        stack, _, n = line.rpartition(" ")
        names = [frame.partition(" ")[0] for frame in stack.split(";")]
        for name in reversed(names):
            if name in program.functions:
                counts[name] += int(n)
                break
    return first_of(counts)


def scalene(
    program: Program, tools: Tools, seed: int, directory: str, native: bool
) -> str:
    """``scalene run --cpu-only``: its CPU time by function, Python, native and system."""
    out = f"{directory}/scalene.json"
    done = execute(
        [
            *(f"{tools.venv}/bin/python", "-m", "scalene", "run", "--cpu-only"),
            *("--outfile", out, str(SCRIPT), "---", program.name, f"{tools.seconds:g}"),
        ],
        tools,
        program.undisturbed,
    )
    try:
        found = json.loads(pathlib.Path(out).read_text("utf-8"))
    except (OSError, ValueError):
        raise CantRun(last_line(done.stderr + done.stdout)) from None
    counts: Counter[str] = Counter()
    for file in found.get("files", {}).values():
        for function in file.get("functions", []):
            name = str(function["line"]).rpartition(".")[2]
            if name in program.functions:
                counts[name] += (
                    function["n_cpu_percent_python"]
                    + function["n_cpu_percent_c"]
                    + function["n_sys_percent"]
                )
    if not counts:
        raise CantRun(
            f"no function of the program in its profile; {last_line(done.stdout)}"
        )
    return first_of(counts)


def perf(program: Program, tools: Tools, seed: int, directory: str, native: bool) -> str:
    """``perf record -g`` and ``perf script``."""
    if not native:
        raise CantRun("names Python functions from 3.12 on only (-X perf)")
    if not shutil.which("perf"):
        raise CantRun("perf is not installed")
    out = f"{directory}/perf.data"
    done = execute(
        [
            *("perf", "record", "-q", "-g", "-o", out, "--"),
            *(tools.native, program.name, f"{tools.seconds:g}"),
        ],
        tools,
        program.undisturbed,
    )
    if not os.path.exists(out):
        raise CantRun(last_line(done.stderr))
    told = execute(["perf", "script", "-i", out, "-F", "ip,sym,comm"], tools)
    counts: Counter[str] = Counter()
    for sample in told.stdout.split("\n\n"):
        symbols = re.findall(r"^\s+[0-9a-f]+ (\S+)", sample, re.MULTILINE)
        for name in symbols:
            if name in program.functions:
                counts[name] += 1
                break
    if not counts:
        raise CantRun(last_line(told.stderr or done.stderr))
    return first_of(counts)


def lines_of(functions: dict) -> dict[int, str]:
    """Of native.c, which lines are in which function."""
    lines, inside = {}, ""
    for number, line in enumerate(SOURCE.read_text("utf-8").splitlines(), 1):
        if match := re.match(r"void TARGET (\w+)\(", line):
            inside = match[1]
        if inside in functions:
            lines[number] = inside
        if line.startswith("}"):
            inside = ""
    return lines


def coz(program: Program, tools: Tools, seed: int, directory: str, native: bool) -> str:
    """``coz run``: the line with the steepest gain in throughput, by regression through
    its virtual speedups."""
    if not native:
        raise CantRun("Coz is for native programs")
    if not shutil.which("coz"):
        raise CantRun("coz is not installed")
    if not tools.coz:
        raise CantRun("native.c was not compiled for it")
    out = f"{directory}/profile.coz"
    done = execute(
        [
            *("coz", "run", "--output", out, "---"),
            *(tools.coz, program.name, f"{tools.seconds:g}"),
        ],
        tools,
        program.undisturbed,
    )
    if not os.path.exists(out):
        raise CantRun(last_line(done.stderr))
    where = lines_of(program.functions)
    rates: dict[str, dict[float, list[float]]] = defaultdict(
        lambda: defaultdict(lambda: [0, 0])
    )
    selected = None
    for line in pathlib.Path(out).read_text("utf-8").splitlines():
        kind, *words = line.split("\t")
        parts = dict(word.split("=", 1) for word in words if "=" in word)
        if kind == "experiment":
            path, _, number = parts["selected"].rpartition(":")
            known = os.path.basename(path) == SOURCE.name
            name = where.get(int(number)) if known else None
            selected = name and (name, float(parts["speedup"]), float(parts["duration"]))
        elif kind == "throughput-point" and selected and int(parts["delta"]):
            name, speedup, duration = selected
            rates[name][speedup][0] += duration
            rates[name][speedup][1] += int(parts["delta"])
    gains = {}
    for name, found in rates.items():
        if 0.0 not in found:
            continue
        base = found[0.0][0] / found[0.0][1]
        points = [(s, 1 - (d / n) / base) for s, (d, n) in found.items() if s > 0]
        if points:
            gains[name] = sum(s * g for s, g in points) / sum(s * s for s, _ in points)
    if not rates:
        raise CantRun(f"no experiment on a line of the functions in {tools.seconds:g} s")
    gains = {name: gain for name, gain in gains.items() if gain > MIN_GAIN}
    return first_of(gains)


Tool = Callable[[Program, Tools, int, str, bool], str]
TOOLS: dict[str, Tool] = {
    "speed-bump": speed_bump,
    "py-spy": py_spy,
    "scalene": scalene,
    "perf": perf,
    "coz": coz,
}
OF_PYTHON = ("speed-bump", "py-spy", "scalene", "perf", "coz")
OF_NATIVE = ("speed-bump", "perf", "coz")


# ----------------------------------------------------------------------------- the advice


def gain_of(
    program: Program, name: str, options: argparse.Namespace, native: str | None
) -> tuple[float, float]:
    """The relative gain in throughput if ``name`` takes half of its time.

    With half of its 95% interval.
    """
    if name == NONE:
        return 0.0, 0.0
    draw = random.Random(options.seed)
    gains = []
    for _ in range(options.pairs):
        order = ["", f"{name}*0.5"]
        draw.shuffle(order)
        took = {c: run_once(program, options.each, native, c) for c in order}
        gains.append(took[""] / took[f"{name}*0.5"] - 1)
    return interval(gains)


def compare(
    program: Program, native: bool, options: argparse.Namespace, tools: Tools
) -> dict:
    """A program under all tools: a row of the table."""
    row: dict = {"program": program.name, "native": native, "limits": program.limits}
    row["tools"] = {}
    for tool in OF_NATIVE if native else OF_PYTHON:
        if tool not in options.tools:
            continue
        named: list[str] = []
        cannot = ""
        for run in range(options.runs):
            with tempfile.TemporaryDirectory() as directory:
                try:
                    seed = options.seed + run
                    named.append(TOOLS[tool](program, tools, seed, directory, native))
                except CantRun as error:
                    cannot = str(error)
                    break
        row["tools"][tool] = {"named": named, "cannot": cannot}
    names = {n for found in row["tools"].values() for n in found["named"]}
    names |= set(program.limits)
    path = tools.native if native else None
    row["gains"] = {name: gain_of(program, name, options, path) for name in sorted(names)}
    for found in row["tools"].values():
        named = found["named"]
        found["right"] = sum(name in program.limits for name in named)
        found["gain"] = (
            statistics.mean(row["gains"][name][0] for name in named) if named else None
        )
    return row


def cell(found: dict) -> str:
    if found["cannot"]:
        return "can't run"
    named = Counter(found["named"]).most_common(1)[0][0]
    return f"{named} {found['right']}/{len(found['named'])} {found['gain']:+.0%}"


def print_row(row: dict, tools: list[str]) -> None:
    kind = "C" if row["native"] else "Python"
    limits = " or ".join(row["limits"])
    best = max(row["gains"][name][0] for name in row["limits"])
    cells = [cell(row["tools"][t]) if t in row["tools"] else "" for t in tools]
    line = f"{row['program']:16} {kind:7} {f'{limits} {best:+.0%}':24} "
    print(line + " ".join(f"{text:24}" for text in cells), flush=True)


def print_totals(rows: list[dict], tools: list[str]) -> None:
    print()
    for kind in (False, True):
        some = [row for row in rows if row["native"] is kind]
        for tool in tools:
            found = [row["tools"][tool] for row in some if tool in row["tools"]]
            could = [f for f in found if not f["cannot"]]
            reasons = sorted({f["cannot"] for f in found if f["cannot"]})
            what = f"{tool}, {'C' if kind else 'Python'}:"
            if could:
                runs = sum(len(f["named"]) for f in could)
                right = sum(f["right"] for f in could)
                gain = statistics.mean(f["gain"] for f in could)
                print(
                    f"{what} right first in {right} of {runs} runs, mean gain {gain:+.1%}"
                )
            for reason in reasons:
                print(f"{what} can't run: {reason}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME,...")
    parser.add_argument("--tools", default=",".join(TOOLS), metavar="NAME,...")
    parser.add_argument("--kind", choices=["python", "native", "both"], default="both")
    parser.add_argument("--runs", type=int, default=int(os.environ.get("RUNS") or 5))
    parser.add_argument("--seconds", type=float, default=25, help="of each run of a tool")
    parser.add_argument("--pairs", type=int, default=4, help="of runs, for a gain")
    parser.add_argument("--each", type=float, default=3, help="seconds of such a run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--venv", required=True, help="where py-spy and Scalene are")
    parser.add_argument("--native", default="", help="native.c, compiled")
    parser.add_argument("--coz", default="", help="the same for Coz")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    options.tools = options.tools.split(",")
    if unknown := set(options.tools) - set(TOOLS):
        parser.error(f"no tool {', '.join(unknown)}: {', '.join(TOOLS)}")
    wanted = options.only.split(",") if options.only else [p.name for p in PROGRAMS]
    chosen = [p for p in PROGRAMS if p.name in wanted and len(p.functions) > 1]
    tools = Tools(options.venv, options.native, options.coz, options.seconds)
    heads = "".join(f"{tool:25}" for tool in options.tools)
    print(f"{'program':16} {'kind':7} {'limits: gain if halved':24} {heads}")
    rows = []
    for native in (False, True):
        if options.kind == ("python" if native else "native"):
            continue
        for program in chosen:
            if native and not (program.native and options.native):
                continue
            row = compare(program, native, options, tools)
            rows.append(row)
            print_row(row, options.tools)
            if options.json:
                pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    print_totals(rows, options.tools)
    return 0


if __name__ == "__main__":
    sys.exit(main())
