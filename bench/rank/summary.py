# SPDX-License-Identifier: MIT
"""``summary.py FILE`` prints results of coverage.py as the table of docs/evidence.

A line for each program, with all its functions and runs together, of Python and native.
The last line is of all programs.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass, field
from typing import Any

from coverage import Tally
from truth import by_name

HEADS = (
    "| program "
    + "| {}runs | with the truth | half-width | right | inconclusive | wrong " * 2
    + "|"
)


@dataclass
class Sum:
    """Of several functions."""

    runs: int = 0
    verdicts: int = 0
    numbers: int = 0
    inside: int = 0
    right: int = 0
    open: int = 0
    wrong: int = 0
    halves: list[float] = field(default_factory=list)

    def add(self, other: Tally | Sum) -> None:
        """``runs`` stay as they are."""
        self.verdicts += other.verdicts if isinstance(other, Sum) else other.runs
        self.numbers += other.numbers
        self.inside += other.inside
        self.right += other.right
        self.open += other.open
        self.wrong += other.wrong
        self.halves += other.halves

    def cells(self) -> list[str]:
        """Of the table; empty if there was no run."""
        if not self.verdicts:
            return [""] * 6
        half = f"{statistics.median(self.halves):.2f}" if self.halves else "-"
        inside = f"{self.inside} of {self.numbers}"
        counts = (str(n or "") for n in (self.right, self.open, self.wrong))
        return [str(self.runs), inside, half, *counts]


def of_program(name: str, runs: list[dict[str, Any]]) -> Sum:
    """All functions of a program, in these runs."""
    (program,) = by_name([name], False)
    found = Sum(runs=len(runs))
    for function, truth in program.functions.items():
        tally = Tally()
        for run in runs:
            tally.add(truth, run["findings"].get(function))
        found.add(tally)
    return found


def main(path: str) -> None:
    """Print the table of the results in a file."""
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    print(HEADS.format("", "native "))
    print("|---" + "|--:" * 12 + "|")
    whole = [Sum(), Sum()]
    for name in dict.fromkeys(line["program"] for line in lines):
        row = []
        for native in (False, True):
            runs = [
                line
                for line in lines
                if (line["program"], line["native"]) == (name, native)
            ]
            found = of_program(name, runs)
            whole[native].add(found)
            whole[native].runs = max(whole[native].runs, found.runs)
            row += found.cells()
        print(f"| {name} | " + " | ".join(row) + " |")
    print("| all | " + " | ".join(whole[0].cells() + whole[1].cells()) + " |")


if __name__ == "__main__":
    main(sys.argv[1])
