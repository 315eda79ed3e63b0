#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The results of all CPythons here side by side: ``python3 bench/python/table.py``.

For each of them, the package is installed in a virtual environment (build-aux/venv) and
hooks.py is run there. One Markdown table is printed, with values over the limit in bold.
Arguments are files with output of hooks.py, which are used instead.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


Cells = dict[str, tuple[str, str]]  # by figure: the value and its limit, or ""


def read(text: str) -> tuple[str, Cells]:
    first, _, *lines = text.splitlines()
    cells = {}
    for line in lines:
        figure, value, *rest = re.split(r"\s{2,}", line)
        limit, verdict = [*rest, "", ""][:2]
        number, _, unit = value.rpartition(" ")
        if unit in ("ns", "us"):
            figure, value = f"{figure}, {unit}", number
            limit = limit.removesuffix(f" {unit}")
        cells[figure] = f"**{value}**" if verdict == "NO" else value, limit
    return first.split()[1].rstrip(","), cells


def measure() -> list[str]:
    pythons = subprocess.check_output([ROOT / "build-aux/pythons"], text=True).split()
    texts = []
    for python in pythons:
        venv = subprocess.check_output([ROOT / "build-aux/venv", python], text=True)
        command = [f"{venv.strip()}/bin/python", str(ROOT / "bench/python/hooks.py")]
        texts.append(subprocess.check_output(command, text=True))
        print(texts[-1], file=sys.stderr, flush=True)
    return texts


def main() -> None:
    texts = [Path(name).read_text() for name in sys.argv[1:]] or measure()
    columns = dict(read(text) for text in texts)
    limits: dict[str, dict[str, None]] = {}
    for cells in columns.values():
        for figure, (_, limit) in cells.items():
            limits.setdefault(figure, {}).update({limit: None} if limit else {})
    print("|", " | ".join(["figure", "at most", *columns]), "|")
    print("|---" * (len(columns) + 2) + "|")
    for figure, its_limits in limits.items():
        values = [cells.get(figure, ("", ""))[0] for cells in columns.values()]
        print("|", " | ".join([figure, ", ".join(its_limits), *values]), "|")


if __name__ == "__main__":
    main()
