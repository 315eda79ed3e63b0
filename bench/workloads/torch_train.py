# SPDX-License-Identifier: MIT
"""A real training loop on the CPU: a small language model, a DataLoader, AdamW, a log.

The model has embeddings, a few transformer blocks of its own and a head; the data are the
modules of Python's standard library, packed, tokenised to bytes and cut into sequences by
the worker process of a DataLoader, which keeps two batches ahead. The main process takes
a batch, computes the loss and its gradients, steps the optimizer, and writes a line of
JSON. A step takes about 50 ms on one core.

By construction each function of the main process delays a step by what it is delayed, and
none of the worker's does: ``MAIN`` and ``WORKER`` below. Run it without end with
``--steps 0``. Needs torch and numpy. BENCH_CHANGE in the environment, as in
bench/rank/programs.py: ``Sequences.encode+2`` adds 2 ms of CPU time to each call.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import sys
import sysconfig
import time
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

try:
    from speed_bump import progress
except ImportError:

    def progress() -> None:
        pass


# Called once a step, but Block.forward (once for each block), load_text and encode, which
# the worker calls once for each sequence.
MAIN = (
    "train_step",
    "LanguageModel.forward",
    "Block.forward",
    "Attention.forward",
    "compute_loss",
    "clip_gradients",
    "write_log",
)
WORKER = ("Sequences.make_batch", "Sequences.load_text", "Sequences.encode")
LENGTH, WIDTH, HEADS, BLOCKS = 64, 96, 4, 3
EXTRA = {
    name: float(ms)
    for name, _, ms in (
        change.partition("+")
        for change in filter(None, os.environ.get("BENCH_CHANGE", "").split(","))
    )
}
if unknown := set(EXTRA) - {*MAIN, *WORKER}:
    sys.exit(f"torch_train.py: no function {', '.join(sorted(unknown))}")


def added(function: str) -> None:
    """CPU time that the environment adds to a function."""
    if function in EXTRA:
        end = time.thread_time() + EXTRA[function] / 1000
        while time.thread_time() < end:
            pass


class Sequences(IterableDataset):
    """Batches of bytes of real source files, for ever."""

    def __init__(self, batch: int) -> None:
        stdlib = pathlib.Path(sysconfig.get_paths()["stdlib"])
        texts = [p.read_bytes() for p in sorted(stdlib.glob("*.py"))[:40]]
        self.packed = [zlib.compress(t) for t in texts if len(t) > 2 * LENGTH]
        self.batch = batch

    def load_text(self, draw: random.Random) -> bytes:
        added("Sequences.load_text")
        return zlib.decompress(draw.choice(self.packed))

    def encode(self, text: bytes, draw: random.Random) -> np.ndarray:
        added("Sequences.encode")
        at = draw.randrange(len(text) - LENGTH - 1)
        return np.frombuffer(text, np.uint8, LENGTH + 1, at).astype(np.int64)

    def make_batch(self, draw: random.Random) -> torch.Tensor:
        added("Sequences.make_batch")
        rows = [self.encode(self.load_text(draw), draw) for _ in range(self.batch)]
        return torch.from_numpy(np.stack(rows))

    def __iter__(self):
        draw = random.Random(1)
        while True:
            yield self.make_batch(draw)


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added("Attention.forward")
        rows, length, _ = x.shape
        q, k, v = (
            part.view(rows, length, HEADS, -1).transpose(1, 2)
            for part in self.mix(x).chunk(3, dim=-1)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(rows, length, WIDTH))


class Block(nn.Module):
    """Attention and a perceptron, with residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.perceptron = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added("Block.forward")
        x = x + self.attention(self.before(x))
        return x + self.perceptron(self.between(x))


class LanguageModel(nn.Module):
    """Bytes in, probabilities of the next byte out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        added("LanguageModel.forward")
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def compute_loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    added("compute_loss")
    return nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def clip_gradients(model: nn.Module) -> float:
    added("clip_gradients")
    return float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))


def train_step(model: nn.Module, optimizer, batch: torch.Tensor) -> dict[str, float]:
    added("train_step")
    loss = compute_loss(model(batch[:, :-1]), batch[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    norm = clip_gradients(model)
    optimizer.step()
    return {"loss": float(loss.detach()), "norm": norm}


def write_log(file, step: int, found: dict[str, float], began: float) -> None:
    added("write_log")
    entry = {"step": step, "time": time.time() - began, **found}
    file.write(json.dumps(entry) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="0: without end")
    parser.add_argument("--seconds", type=float, default=0, help="end after these")
    parser.add_argument("--batch", type=int, default=32, help="sequences a step")
    parser.add_argument("--workers", type=int, default=1, help="of the DataLoader")
    parser.add_argument("--threads", type=int, default=1, help="of torch, in a process")
    parser.add_argument("--log", default=os.devnull, help="a line of JSON for each step")
    args = parser.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loader = DataLoader(
        Sequences(args.batch),
        batch_size=None,
        num_workers=args.workers,
        multiprocessing_context="fork" if args.workers else None,
    )
    began, steps = time.time(), 0
    with open(args.log, "w", encoding="utf-8") as file:
        for batch in loader:
            found = train_step(model, optimizer, batch)
            steps += 1
            write_log(file, steps, found, began)
            progress()
            took = time.time() - began
            if steps == args.steps or (args.seconds and took > args.seconds):
                break
    print(json.dumps({"units": steps, "seconds": time.time() - began}), flush=True)
    # The worker is in the middle of a batch: do not wait for it.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
