# SPDX-License-Identifier: MIT
"""Programs that import while they work."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from speed_bump.experiment.aim import aim
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner

pytestmark = [pytest.mark.two_pythons, pytest.mark.timed]

ATTEMPTS = """
import time
def attempt():
    try:
        import optional
    except ImportError:
        return 1
def request():
    for _ in range(TIMES):
        attempt()
    sum(range(20000))
    time.sleep(0.002)
while True:
    request()
"""
SLOW_BODY = """
import time
end = time.monotonic() + 0.005
while time.monotonic() < end:
    pass
import absent
"""


@pytest.mark.parametrize("body, times", [("", 100), (SLOW_BODY, 2)])
def test_imports_that_fail_in_each_call_are_work(
    tmp_path: Path, body: str, times: int
) -> None:
    """As of an optional package: httpx searches for trio in each request."""
    if body:
        (tmp_path / "optional.py").write_text(body)
    program = tmp_path / "app.py"
    program.write_text(ATTEMPTS.replace("TIMES", str(times)))
    begin = time.monotonic()
    with Runner([sys.executable, str(program)], show_output=False) as runner:
        found = aim(runner, Progress(), 20.0, lambda said: None)
    assert "__main__:attempt" in found.candidates
    assert time.monotonic() - begin < 60
