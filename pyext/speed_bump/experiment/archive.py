# SPDX-License-Identifier: MIT
"""Records in files: a zip archive of arrays (numpy's .npz) and a text, ``record.json``.

A file is written beside the old one and replaces it when it is complete: the results so
far can be read at any time, and a tool that is killed leaves the last state.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from dataclasses import asdict, fields
from typing import Any

# isort: off
import speed_bump.experiment.algebra  # noqa: F401
import numpy as np
# isort: on

from speed_bump.experiment import symbols
from speed_bump.experiment.account import Looks
from speed_bump.experiment.job_ranks import Rank, Ranks
from speed_bump.experiment.record import (
    REQUEST,
    Arm,
    Block,
    Delay,
    Machine,
    Metered,
    Record,
    SelfTime,
    Slots,
)

FORMAT = 2
TEXT = "record.json"
# Records of 1.0 and before have none.
LOOKS = "looks.json"
# The arrays of ranks, if a record has them.
OF_RANKS = ("time_ns", "waited_ns", "delivered_ns", "calls")
# The arrays of a metric.
OF_METRIC = ("uncertain_ns", "count", "sum_ns", "buckets", "bounds")


class ArchiveError(Exception):
    """A file is not a record, or is damaged; the message says where and what to do."""


def save(record: Record, path: str) -> None:
    """Write a record, replacing the previous one.

    Raises:
        OSError: it can't be written
    """
    text = {
        "format": FORMAT,
        "header": record.header,
        "functions": record.functions,
        "unit_ns": record.unit_ns,
        "slot_units": record.slot_units,
        "side_by_side": record.side_by_side,
        "self_times": {name: asdict(t) for name, t in record.self_times.items()},
        "machine": asdict(record.machine),
        "shares": record.shares,
        "idle": record.idle,
        "end": record.end,
        "blocks": [_block_text(block) for block in record.blocks],
        "ranks": [asdict(rank) for rank in record.ranks.who] if record.ranks else [],
    }
    beside = f"{path}.{os.getpid()}.tmp"
    try:
        with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
            file.writestr(TEXT, json.dumps(text))
            if record.looks is not None:
                file.writestr(LOOKS, json.dumps(record.looks.as_json()))
            for part in fields(Slots):
                _put(file, f"slots/{part.name}", getattr(record.slots, part.name))
            for name in OF_RANKS if record.ranks else ():
                _put(file, f"ranks/{name}", getattr(record.ranks, name))
            for name in OF_METRIC if record.metered else ():
                _put(file, f"metric/{name}", getattr(record.metered, name))
            if record.requests is not None:
                for name in REQUEST.names or ():
                    _put(file, f"requests/{name}", record.requests[name])
            for number, block in enumerate(record.blocks):
                _put(file, f"blocks/{number}/masks", block.masks)
                _put(file, f"blocks/{number}/levels", block.levels)
        os.replace(beside, path)
    except BaseException:
        if os.path.exists(beside):
            os.unlink(beside)
        raise


def _put(file: zipfile.ZipFile, name: str, array: Any) -> None:
    data = io.BytesIO()
    np.lib.format.write_array(data, np.ascontiguousarray(array), allow_pickle=False)
    file.writestr(f"{name}.npy", data.getvalue())


def _get(file: zipfile.ZipFile, name: str) -> Any:
    data = io.BytesIO(file.read(f"{name}.npy"))
    return np.lib.format.read_array(data, allow_pickle=False)


def _block_text(block: Block) -> dict[str, Any]:
    return {
        "stage": block.stage,
        "chance": block.chance,
        "holds": block.holds,
        "one": block.one,
        "doses": block.doses,
        "coins": block.coins,
        "stretches": block.stretches,
        "arms": [
            {
                "functions": arm.functions,
                "delays": [[[d.delay_ns, d.every] for d in row] for row in arm.delays],
            }
            for arm in block.arms
        ],
    }


def _block_of(text: dict[str, Any], masks: Any, levels: Any) -> Block:
    arms = tuple(
        Arm(
            tuple(arm["functions"]),
            tuple(tuple(Delay(*d) for d in row) for row in arm["delays"]),
        )
        for arm in text["arms"]
    )
    return Block(
        text["stage"],
        arms,
        masks,
        levels,
        tuple(text["chance"]),
        tuple(text["holds"]),
        bool(text["one"]),
        tuple(text["doses"]),
        text["coins"],
        tuple(text["stretches"]),
    )


def load(path: str) -> Record:
    """Read a record.

    Raises:
        ArchiveError: it can't be read; says why and what to do
    """
    try:
        with open(path, "rb") as start:
            first = start.read(1)
        if first == b"{":
            raise ArchiveError(
                f"{path}: a record of speed-bump 0.1 (pairs of windows), which this "
                "version does not read: show it with the version that made it"
            )
        with zipfile.ZipFile(path) as file:
            return _record_of(file, path)
    except OSError as error:
        raise ArchiveError(f"{path}: {error.strerror or error}") from None
    except ArchiveError:
        raise
    except Exception as error:
        # zipfile, zlib, json and numpy raise a dozen kinds for a damaged file.
        raise ArchiveError(
            f"{path}: not a record of this version of speed-bump, or damaged ({error})"
        ) from None


def _record_of(file: zipfile.ZipFile, path: str) -> Record:
    text = json.loads(file.read(TEXT))
    if text["format"] != FORMAT:
        raise ArchiveError(
            f"{path}: a record of format {text['format']}, which this version does not "
            "read: show it with the version that made it"
        )
    slots = Slots(**{p.name: _get(file, f"slots/{p.name}") for p in fields(Slots)})
    blocks = [
        _block_of(
            block,
            _get(file, f"blocks/{number}/masks"),
            _get(file, f"blocks/{number}/levels"),
        )
        for number, block in enumerate(text["blocks"])
    ]
    found = text["header"].get("found") or {}
    symbols.know({str(k): str(v) for k, v in dict(found.get("readable", {})).items()})
    return Record(
        text["header"],
        tuple(text["functions"]),
        slots,
        blocks,
        text["unit_ns"],
        text["slot_units"],
        {name: SelfTime(**t) for name, t in text["self_times"].items()},
        Machine(**text["machine"]),
        text["shares"],
        tuple(text["idle"]),
        text["end"],
        Looks.of_json(json.loads(file.read(LOOKS))) if LOOKS in file.namelist() else None,
        _ranks_of(file, text.get("ranks") or []),
        _metered_of(file),
        _requests_of(file),
        text.get("side_by_side", 1.0),
    )


def _metered_of(file: zipfile.ZipFile) -> Metered | None:
    if f"metric/{OF_METRIC[0]}.npy" not in file.namelist():
        return None
    return Metered(**{name: _get(file, f"metric/{name}") for name in OF_METRIC})


def _requests_of(file: zipfile.ZipFile) -> Any:
    """None: the record has none, as in 1.0 and before."""
    names = REQUEST.names or ()
    if f"requests/{names[0]}.npy" not in file.namelist():
        return None
    columns = [_get(file, f"requests/{name}") for name in names]
    found = np.zeros(len(columns[0]), REQUEST)
    for name, column in zip(names, columns, strict=True):
        found[name] = column
    return found


def _ranks_of(file: zipfile.ZipFile, who: list[dict[str, Any]]) -> Ranks | None:
    if not who:
        return None
    arrays = {name: _get(file, f"ranks/{name}") for name in OF_RANKS}
    return Ranks([Rank(**rank) for rank in who], **arrays)
