# SPDX-License-Identifier: MIT
"""Files of rows: what the ranks of one node did, step by step, as the helper writes it.

A file is a sequence of chunks, each with some steps of one rank: the length of the chunk
as four bytes, then compressed by zlib: a line of JSON that describes it, then columns of
integers. A file that is cut off at the end, as by a kill, is valid up to there. Times are
in units of ``quantum`` ns, so that a row of 16 functions takes under 20 bytes.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from speed_bump.experiment.job_ranks import Rank

SUFFIX = ".rows"
FORMAT = 1
# A step has this many quanta, or up to twice as many.
PARTS = 4096
MAX_CHUNK = 1 << 26
# Raised by what is not a chunk.
DAMAGED = (zlib.error, KeyError, TypeError, ValueError)


@dataclass
class Rows:
    """Consecutive steps of one rank; a time that is NaN is unknown.

    Args:
        setup: the seed, key, version and groups of the member's settings, and the number
            of functions without an arm so far
        functions: of the columns of ``delivered_ns`` and ``calls``
        shares: the share of a CPU that each function had while it was delayed
    """

    rank: Rank
    setup: dict[str, Any]
    functions: tuple[str, ...]
    shares: tuple[float, ...]
    number: npt.NDArray[np.int64]
    time_ns: npt.NDArray[np.float64]
    waited_ns: npt.NDArray[np.float64]
    delivered_ns: npt.NDArray[np.floating]
    calls: npt.NDArray[np.floating]


def none(rank: Rank, setup: dict[str, Any]) -> Rows:
    """What a rank leaves that finished no step: that it was a member."""
    nothing, times = np.zeros((0, 0)), np.zeros(0)
    number = np.zeros(0, np.int64)
    return Rows(rank, setup, (), (), number, times, times, nothing, nothing)


def write(file: IO[bytes], rows: Rows) -> None:
    """Append the rows as a chunk."""
    typical = np.nanmedian(rows.time_ns) if np.isfinite(rows.time_ns).any() else 1e6
    quantum = max(int(typical) // PARTS, 1)
    head = {
        "format": FORMAT,
        "rank": asdict(rows.rank),
        "setup": rows.setup,
        "functions": rows.functions,
        "shares": [round(share, 4) for share in rows.shares],
        "count": len(rows.number),
        "first": int(rows.number[0]) if len(rows.number) else 0,
        "quantum": quantum,
        "waits": bool(np.isfinite(rows.waited_ns).any()),
    }
    # Calls seldom vary: their differences are zeros.
    calls = np.diff(rows.calls, axis=0, prepend=0.0)
    columns = [np.diff(rows.number, prepend=rows.number[:1]), *calls.T]
    columns += [
        np.nan_to_num(np.rint(times / quantum), nan=-1)
        for times in (rows.time_ns, rows.waited_ns, *rows.delivered_ns.T)
    ]
    matrix = np.stack(columns).astype("<i4")
    # Group bytes of the same significance: the upper ones are mostly zeros.
    data = matrix.view(np.uint8).reshape(len(columns), -1, 4).transpose(0, 2, 1).tobytes()
    packed = zlib.compress(json.dumps(head).encode() + b"\n" + data, 9)
    file.write(struct.pack("<I", len(packed)) + packed)


def _opened(packed: bytes) -> tuple[dict[str, Any], bytes]:
    """The description of a chunk, and its columns."""
    line, _, data = zlib.decompress(packed).partition(b"\n")
    head = json.loads(line)
    if head["format"] != FORMAT:
        raise ValueError(f"rows of format {head['format']}")
    return head, data


def _read_chunk(packed: bytes) -> Rows:
    head, data = _opened(packed)
    n, width = head["count"], len(head["functions"])
    bytes_ = np.frombuffer(data, np.uint8).reshape(3 + 2 * width, 4, n)
    matrix = np.ascontiguousarray(bytes_.transpose(0, 2, 1)).view("<i4")[..., 0]
    times = matrix[1 + width :].astype(np.float64)
    times = np.where(times < 0, np.nan, times * head["quantum"])
    return Rows(
        Rank(**head["rank"]),
        head["setup"],
        tuple(head["functions"]),
        tuple(head["shares"]),
        head["first"] + np.cumsum(matrix[0], dtype=np.int64),
        times[0],
        times[1] if head["waits"] else np.full(n, np.nan),
        # With thousands of ranks, these take most of the memory.
        times[2:].T.astype(np.float32),
        np.cumsum(matrix[1 : 1 + width], axis=1, dtype=np.int64).T.astype(np.float32),
    )


def read(path: str) -> Iterator[Rows]:
    """All complete chunks.

    Raises:
        ValueError: the file has another format
    """
    with open(path, "rb") as file:
        yield from parse(file, path)


def parse(file: IO[bytes], name: str) -> Iterator[Rows]:
    """Like ``read()``, from an open file; ``name`` is for messages."""
    for packed in _packed(file, name):
        try:
            yield _read_chunk(packed)
        except DAMAGED as error:
            raise ValueError(f"{name}: not rows of a run ({error})") from None


def _packed(file: IO[bytes], name: str) -> Iterator[bytes]:
    while True:
        size = file.read(4)
        if len(size) < 4:
            return
        (length,) = struct.unpack("<I", size)
        if length > MAX_CHUNK:
            raise ValueError(f"{name}: not rows of a run, or damaged")
        packed = file.read(length)
        if len(packed) < length:
            return
        yield packed


def next_attempt(directory: str, host: str) -> int:
    """The number of an attempt that begins now: after those that have steps.

    All nodes come to the same number if all ranks of an attempt are there before one of
    them takes a step. A file of this host is read whole, of others only the beginning.
    """
    last = -1
    for path in files(directory):
        is_own = os.path.basename(path).rpartition("-")[0] == host
        # What can't be read is reported with the results.
        with contextlib.suppress(OSError, *DAMAGED), open(path, "rb") as file:
            for packed in _packed(file, path):
                head, _ = _opened(packed)
                if head["count"]:
                    last = max(last, head["rank"]["attempt"])
                    if not is_own:
                        break
    return last + 1


def whole(path: str, offset: int, limit: int) -> bytes:
    """The chunks from ``offset`` on that are complete, of about ``limit`` bytes."""
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read(limit)
    end = 0
    while end + 4 <= len(data):
        (length,) = struct.unpack_from("<I", data, end)
        if end + 4 + length > len(data):
            break
        end += 4 + length
    if not end and len(data) == limit < MAX_CHUNK:
        return whole(path, offset, MAX_CHUNK + 4)
    return data[:end]


def files(directory: str) -> Sequence[str]:
    """The files of a run, one for each node."""
    return sorted(glob.glob(os.path.join(glob.escape(directory), f"*{SUFFIX}")))
