# SPDX-License-Identifier: MIT
"""What ``speed-bump rank`` says of programs of others, without any option.

``others.py [--budget TIME] [PROGRAM]...`` ranks programs of pyperformance, the collection
with which CPython is measured, each in an endless loop. They are run as they are: neither
functions nor a unit of work is named. For each program a line is printed: how many
functions were ranked, how many of them have an answer (matters, partly, hidden), how much
of a CPU the thread of the units had when it wanted one, and where to look first.
``--json FILE`` writes what rank said.

The exit status is 1 if rank failed for a program, or if it decided nothing of it.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import pyperformance
from speed_bump.command.options import budget as seconds_of
from truth import HIDDEN, MATTERS, PARTLY

BENCHMARKS = pathlib.Path(pyperformance.__file__).parent / "data-files/benchmarks"
PROGRAMS = {
    "docutils": "reStructuredText to HTML",
    "sqlalchemy_declarative": "an object-relational mapper on SQLite",
    "django_template": "a template engine",
    "html5lib": "an HTML parser",
    "tornado_http": "a web server and its clients, asyncio",
    "asyncio_tcp": "a TCP stream, asyncio",
    "fastapi": "a web server in a thread, clients by httpx",
    "dask": "a scheduler, a worker and a client",
    "concurrent_imap": "pools of processes and of threads",
}
DECIDED = (MATTERS, PARTLY, HIDDEN)
# Time after the budget: it imports before, is looked at, and is reported on.
PATIENCE_S = 240


def command_of(name: str) -> list[str]:
    script = BENCHMARKS / f"bm_{name}/run_benchmark.py"
    # One endless value: as many loops as there is time for.
    many = ["--worker", "--warmups", "0", "--values", "1", "--loops", str(10**9)]
    return [sys.executable, str(script), *many]


def rank(name: str, budget: str) -> dict[str, Any]:
    """What rank says in JSON; of a failure the last line of its messages, in "said"."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SPEED_BUMP_")}
    limit_s = seconds_of(budget) + PATIENCE_S
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "json"
        command = [sys.executable, "-m", "speed_bump", "rank", "--budget", budget]
        command += ["--json", str(path), "-o", f"{directory}/record", "--"]
        try:
            done = subprocess.run(
                command + command_of(name),
                env=environ,
                capture_output=True,
                text=True,
                check=False,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired:
            return {"said": f"no answer after {limit_s:.0f} s"}
        if not path.exists():
            return {"said": (done.stderr.strip().splitlines() or [""])[-1]}
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return found


def line(name: str, found: dict[str, Any]) -> tuple[str, bool]:
    """The line of the table, and whether it has an answer."""
    if "findings" not in found:
        return f"{name:24} failed: {found['said']}", False
    findings = found["findings"]
    decided = sum(f["verdict"] in DECIDED for f in findings)
    share = min(found["cpu_share"] or 1.0, 1.0)
    advice = found["advice"]
    first = advice.removeprefix("Look first at ").partition(" (")[0]
    return f"{name:24} {len(findings):9} {decided:8} {share:6.0%}  {first}", decided > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    known = ", ".join(f"{name} ({what})" for name, what in PROGRAMS.items())
    parser.add_argument("program", nargs="*", metavar="PROGRAM", help=known)
    parser.add_argument("--budget", default="60s", help="for each (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path)
    options = parser.parse_args()
    if unknown := set(options.program) - set(PROGRAMS):
        parser.error(f"no program {', '.join(sorted(unknown))}: {', '.join(PROGRAMS)}")
    print(f"{'program':24} functions answered    CPU  look first at")
    answered, all_found = True, {}
    for name in options.program or PROGRAMS:
        all_found[name] = found = rank(name, options.budget)
        text, is_answered = line(name, found)
        answered = answered and is_answered
        print(text, flush=True)
    if options.json:
        options.json.write_text(json.dumps(all_found, indent=1), "utf-8")
    return 0 if answered else 1


if __name__ == "__main__":
    sys.exit(main())
