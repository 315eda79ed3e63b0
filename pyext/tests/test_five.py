# SPDX-License-Identifier: MIT
"""``rank`` without options on five programs of different kinds, in short.

Each has an obvious unit of work, and an answer or a reason for each function whose answer
is known.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest
from ranking import speed_bump
from speed_bump import native

pytestmark = [pytest.mark.one_python, pytest.mark.timed]

ROOT = pathlib.Path(__file__).parents[2]
WORKLOADS = ROOT / "bench" / "workloads"
WORDS = ROOT / "build" / "bench" / "workloads" / "words"

NUMPY = """
import time
import numpy as np
def make(rng):
    return rng.standard_normal((100, 100))
def solve(a, b):
    return np.linalg.solve(a, b)
def spectrum(a):
    return np.abs(np.fft.fft2(a)).sum()
def step(rng):
    return spectrum(solve(make(rng), make(rng)))
def main():
    rng, total, end = np.random.default_rng(1), 0.0, time.monotonic() + 5
    while time.monotonic() < end:
        total += step(rng)
    print(total)
main()
"""
# Without progress(): only the framework defines a unit.
TORCH = """
import torch
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self):
        return 1 << 20
    def __getitem__(self, n):
        return torch.ones(64) * sum(range(300))
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
def main():
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(
        Rows(), batch_size=32, num_workers=1, multiprocessing_context="fork"
    )
    for batch in loader:
        train_step(model, optimizer, batch)
main()
"""


def needs(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: pip install {module}")


def ranked(tmp_path, *command):
    numbers = tmp_path / "numbers.json"
    for seed, budget in enumerate((8, 30), 1):
        done = speed_bump(
            "rank", "--budget", f"{budget}s", "--seed", str(seed), "--json", str(numbers),
            "-o", str(tmp_path / "x"), "--", *command,
        )  # fmt: skip
        if done.returncode == 0 and numbers.exists():
            break
    assert done.returncode == 0, done.stderr
    found = json.loads(numbers.read_text())
    # Every function has an answer, or a reason with a remedy.
    for f in found["findings"]:
        assert f["verdict"] != "inconclusive" or (f["reason"] and f["help"]), f
    assert "found " in done.stderr
    # Functions that take less time are listed.
    assert {t["target"] for t in found["found"]["targets"]} >= {
        f["target"] for f in found["findings"]
    }
    return done, {f["target"]: f for f in found["findings"]}


def says_unit(done, text):
    (line,) = [x for x in done.stderr.splitlines() if "a unit of work is" in x]
    assert text in line, line
    assert "--progress to change it" in line


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["five", "nix"], "five: no program nix: train torch web numpy words"),
        (["five", "-s", "-x"], "five: unknown option -x"),
        (["check-kinds", "3.13", "3.9"], "check-kinds: no column 3.9"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_installed(command, text):
    done = subprocess.run(
        [str(ROOT / "build-aux" / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [text, f"try {command[0]} -h"]


def of_five():
    """The program that runs the five, as a module."""
    path = ROOT / "bench" / "rank" / "five.py"
    spec = importlib.util.spec_from_file_location("five", path)
    module = sys.modules["five"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_summary_of_the_five_names_what_has_no_answer():
    five = of_five()

    def finding(name, verdict, low, value, high):
        headroom = {"low": low, "value": value, "high": high}
        return {
            "target": name, "verdict": verdict, "headroom": headroom, "self_share": 0.5
        }  # fmt: skip

    found = five.Ranked(unit="a unit", unit_s=2.0, seconds=70.0)
    found.numbers = {
        "findings": [
            finding("m:right", "matters", 0.3, 0.4, 0.5),
            finding("m:small", "inconclusive", 0.0, 0.01, 0.02),
            finding("m:open", "inconclusive", 0.0, 0.1, 0.2),
        ],
        "found": {
            "targets": [
                {"target": "m:right", "self_share": 0.3, "chosen": True},
                {"target": "m:left", "self_share": 0.2, "chosen": False},
                {"target": "m:less", "self_share": 0.01, "chosen": False},
            ],
            "first_line_ns": 1_000_000_000,
        },
        "cpu_share": 1.0,
    }
    assert found.open == ["m:open", "m:left"]
    text = five.summary("web", found)
    assert "3 functions, 1 of them answered; 3 were measured" in text
    assert text.endswith("no answer: m:open\n    no answer: m:left")
    found.status = 3
    assert five.summary("web", found).startswith("web: failed with status 3")
    found.timed_out = True
    assert five.summary("web", found).startswith("web: not over after ")


RESULTS = """
<testsuites><testsuite>
<testcase name="test_each_kind[zlib:compress x]"/>
<testcase name="test_each_kind[zlib:crc32 x]"><failure/></testcase>
<testcase name="test_each_kind[numpy:dot x]"><skipped/></testcase>
<testcase name="test_a_trap"/>
</testsuite></testsuites>
"""


def test_the_table_of_kinds_says_what_did_not_run(tmp_path):
    script = tmp_path / "build-aux" / "kinds-table"
    script.parent.mkdir()
    script.write_text((ROOT / "build-aux" / "kinds-table").read_text())
    logs = tmp_path / "build" / "check-pythons"
    (logs / "3.13").mkdir(parents=True)
    (logs / "3.13" / "pytest.xml").write_text(RESULTS)
    (logs / "3.14-jit.log").write_text("it was built without a JIT\n")

    def table(*columns):
        done = subprocess.run(
            [sys.executable, str(script), *columns],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, [line.split() for line in done.stdout.splitlines()]

    status, rows = table("3.13", "3.14-jit")
    assert status == 1
    assert ["zlib", "1", "of", "2", "no", "JIT"] in rows
    assert ["numpy", "-", "no", "JIT"] in rows
    assert table("3.14-jit")[0] == 0
    (logs / "3.12.log").write_text("")
    status, rows = table("3.12")
    assert status == 1
    assert rows[1] == ["the", "traps", "not", "run"]
    assert rows[2][-1] == "build/check-pythons/3.12.log"


def test_a_training_loop_in_small(tmp_path):
    needs("pygments")
    done, found = ranked(tmp_path, sys.executable, str(WORKLOADS / "train.py"))
    says_unit(done, "call of __main__:record: its steadiest call")
    assert "pygments.lexer:RegexLexer.get_tokens_unprocessed" in found
    # The time in time.sleep, where the device is waited for, is not time of a function.
    # Before 3.12 the interpreter does not report C functions.
    if sys.version_info >= (3, 12):
        assert "waiting, which is no function's time" in done.stderr
        assert "time:sleep" in done.stderr
    assert "time:sleep" not in found


def test_a_training_loop_with_torch(tmp_path):
    needs("torch")
    program = tmp_path / "train.py"
    program.write_text(TORCH)
    done, found = ranked(tmp_path, sys.executable, str(program))
    says_unit(done, "a step of the optimizer, as torch is at work")
    assert "importing torch" in done.stderr
    assert "__main__:train_step" in found
    # Time in the import of torch is not work.
    imports = ("re:", "ctypes:", "importlib")
    assert not [name for name in found if name.startswith(imports)]


def test_a_web_server_under_load(tmp_path):
    needs("aiohttp")
    done, found = ranked(tmp_path, sys.executable, str(WORKLOADS / "http_server.py"))
    says_unit(done, "what progress() says: the program says it")
    assert found


def test_a_numpy_script_that_ends(tmp_path):
    needs("numpy")
    program = tmp_path / "script.py"
    program.write_text(NUMPY)
    done, found = ranked(tmp_path, sys.executable, str(program))
    says_unit(done, "call of __main__:step: its steadiest call")
    assert "__main__:solve" in found
    if sys.version_info >= (3, 12):
        assert [name for name in found if "standard_normal" in name]


# Not in guests, whose emulated CPUs make other functions expensive.
def test_a_native_program_with_threads(tmp_path):
    if not native.is_available():
        pytest.skip("native functions can't be delayed here")
    if not os.access(WORDS, os.X_OK):
        pytest.skip(f"{WORDS} is not built: build-aux/build")
    done, found = ranked(tmp_path, str(WORDS), "0")
    says_unit(done, "words:finish_page: its steadiest call")
    assert [name for name in found if "count" in name]
    assert [name for name in found if "summarise" in name]
    assert not [name for name in found if name.endswith((":main", ":_start"))]
    # A breakpoint in a function that is called a million times a second would be most of
    # the time.
    assert "times a second" in done.stderr
    assert not [name for name in found if "_M_construct" in name]
