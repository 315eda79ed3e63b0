# SPDX-License-Identifier: MIT
"""``summary.py FILE`` prints results of coverage.py as the table of docs/evidence.

A line for each program, with all its functions and runs together, of Python and native.
The last line is of all programs.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from coverage import Tally, median
from truth import by_name

HEADS = (
    "| program "
    + "| {}runs | with the truth | half-width | right | inconclusive | wrong " * 2
    + "|"
)


def of_program(name: str, runs: list[dict[str, Any]]) -> Tally:
    """All functions of a program, in these runs."""
    (program,) = by_name([name], False)
    found = Tally()
    for run in runs:
        for function, truth in program.functions.items():
            found.add(truth, run["findings"].get(function))
    return found


def cells(runs: int, found: Tally) -> list[str]:
    """Of a line of the table; empty if there was no run."""
    if not runs:
        return [""] * 6
    inside = f"{found.inside} of {found.numbers}"
    counts = (str(n or "") for n in (found.right, found.open, found.wrong))
    return [str(runs), inside, median(found.halves, "{:.2f}"), *counts]


def main(path: str) -> None:
    """Print the table of the results in a file."""
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    print(HEADS.format("", "native "))
    print("|---" + "|--:" * 12 + "|")
    whole, most = (Tally(), Tally()), [0, 0]
    for name in dict.fromkeys(line["program"] for line in lines):
        row = []
        for native in (False, True):
            runs = [
                line
                for line in lines
                if (line["program"], line["native"]) == (name, native)
            ]
            found = of_program(name, runs)
            whole[native].join(found)
            most[native] = max(most[native], len(runs))
            row += cells(len(runs), found)
        print(f"| {name} | " + " | ".join(row) + " |")
    both = [*cells(most[0], whole[0]), *cells(most[1], whole[1])]
    print("| all | " + " | ".join(both) + " |")


if __name__ == "__main__":
    main(sys.argv[1])
