# SPDX-License-Identifier: MIT
"""The examples of the documentation work as shown."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest
from conftest import Run

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    "name",
    ["speed_bump", "speed_bump.config", "speed_bump.control", "speed_bump.duration"],
)
def test_docstrings(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.attempted > 0
    assert found.failed == 0


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.S | re.M)


@pytest.mark.skipif(not DOCS.exists(), reason="the tests are not in the tree")
def test_python_md(python: Run) -> None:
    texts = blocks("reference/python.md")
    assert len(texts) >= 3
    for text in texts:
        if "native" in text:
            compile(text, "reference/python.md", "exec")
            continue
        done = python(text)
        assert done.returncode == 0, done.stderr
    shown = python(next(text for text in texts if "stats()" in text)).stdout
    assert re.search(r"^json.encoder:JSONEncoder.encode 100 \d+$", shown, re.M)
