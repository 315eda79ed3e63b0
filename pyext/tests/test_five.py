# SPDX-License-Identifier: MIT
"""``rank`` with no option, on five programs of five kinds, in short.

Each has a unit of work that a person would have chosen, and an answer or a reason for
each function of which there is one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import sys

import pytest
from ranking import speed_bump
from speed_bump import native

pytestmark = pytest.mark.one_python

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
# As a person writes it: no progress(), and nothing but the framework says what a unit is.
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
    for seed, budget in enumerate((15, 45), 1):
        done = speed_bump(
            "rank", "--budget", f"{budget}s", "--seed", str(seed), "--json", str(numbers),
            "-o", str(tmp_path / "x"), "--", *command,
        )  # fmt: skip
        if done.returncode == 0 and numbers.exists():
            break
    assert done.returncode == 0, done.stderr
    found = json.loads(numbers.read_text())
    # All of it is answered, or it is said why not and what helps.
    for f in found["findings"]:
        assert f["verdict"] != "inconclusive" or (f["reason"] and f["help"]), f
    assert "found " in done.stderr
    # Those that take less time are named.
    assert set(found["found"]["shares"]) | set(found["found"]["others"]) >= {
        f["name"] for f in found["findings"]
    }
    return done, {f["name"]: f for f in found["findings"]}


def says_unit(done, text):
    (line,) = [x for x in done.stderr.splitlines() if "a unit of work is" in x]
    assert text in line, line
    assert "--progress to change it" in line


def test_a_training_loop_in_small(tmp_path):
    needs("pygments")
    done, found = ranked(tmp_path, sys.executable, str(WORKLOADS / "train.py"))
    says_unit(done, "call of __main__:record: its steadiest call")
    assert "pygments.lexer:RegexLexer.get_tokens_unprocessed" in found
    # The device is waited for, in time.sleep: that is no function's time.
    # Before 3.12 the interpreter does not say which C function it is in.
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
    # Time in the import of torch is no work.
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
