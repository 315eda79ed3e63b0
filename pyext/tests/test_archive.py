# SPDX-License-Identifier: MIT
"""Records in files."""

from __future__ import annotations

import dataclasses
import json
import zipfile

import numpy as np
import pytest
from speed_bump.experiment import archive
from speed_bump.experiment.record import (
    Arm,
    Block,
    Delay,
    Machine,
    Record,
    SelfTime,
    Slots,
)

pytestmark = pytest.mark.one_python


def record():
    n, draw = 50, np.random.default_rng(1)
    values = {field.name: draw.integers(0, 100, n) for field in dataclasses.fields(Slots)}
    values["calls"] = draw.random((n, 2))
    values["delivered_ns"] = draw.random((n, 2))
    values["cpu_ns"] = np.full(n, np.nan)
    block = Block(
        "single",
        (Arm(("m:f",), ((Delay(5, 2), Delay(7)),)), Arm(())),
        np.arange(3, dtype=np.uint64),
        np.zeros(3, np.uint8),
        (0.25, 0.25),
        (1, 2, 3),
        True,
        (0.1, 0.3),
        1,
        (1, 2),
    )
    return Record(
        {"seed": 7, "command": ["a", "b"]},
        ("m:f", "m:\udce9"),
        Slots(**values),
        [block],
        1.5e6,
        3,
        {"m:f": SelfTime(0.5, 100, 0.1, 0.2, 0.1, 0.3)},
        Machine(0.5, 2.0, 2, 0.01, 0.4, 1.5),
        {"m:f": 0.75},
        ("m:g",),
        {"interrupted": False},
        side_by_side=7.5,
    )


def test_what_is_read_is_what_was_saved(tmp_path):
    path = str(tmp_path / "record")
    saved = record()
    archive.save(saved, path)
    found = archive.load(path)
    for field in dataclasses.fields(Slots):
        before, after = (getattr(r.slots, field.name) for r in (saved, found))
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(found.blocks[0].masks, saved.blocks[0].masks)
    for name in (
        "stage",
        "arms",
        "chance",
        "holds",
        "one",
        "doses",
        "coins",
        "stretches",
    ):
        assert getattr(found.blocks[0], name) == getattr(saved.blocks[0], name)
    for field in dataclasses.fields(Record):
        if field.name not in ("slots", "blocks"):
            assert getattr(found, field.name) == getattr(saved, field.name)


def test_an_old_record_is_of_one_thread(tmp_path):
    path, old = tmp_path / "record", tmp_path / "old"
    archive.save(record(), str(path))
    with zipfile.ZipFile(path) as file, zipfile.ZipFile(old, "w") as other:
        for name in file.namelist():
            content = file.read(name)
            if name == archive.TEXT:
                text = json.loads(content)
                del text["side_by_side"]
                content = json.dumps(text).encode()
            other.writestr(name, content)
    assert archive.load(str(old)).side_by_side == 1


def test_a_file_is_whole_or_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "record"
    archive.save(record(), str(path))
    before = path.read_bytes()

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", fail)
    with pytest.raises(OSError, match="No space"):
        archive.save(record(), str(path))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_can_not_be_read_is_said_in_one_line(tmp_path):
    old = tmp_path / "old.jsonl"
    old.write_text(json.dumps({"what": "header", "format": 1}) + "\n")
    with pytest.raises(archive.ArchiveError, match="show it with the version that made"):
        archive.load(str(old))
    with pytest.raises(archive.ArchiveError, match="No such file"):
        archive.load(str(tmp_path / "none"))
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as file:
        file.writestr("x", "y")
    with pytest.raises(archive.ArchiveError, match="not a record"):
        archive.load(str(other))
    newer = tmp_path / "newer"
    with zipfile.ZipFile(newer, "w") as file:
        file.writestr(archive.TEXT, json.dumps({"format": 3}))
    with pytest.raises(archive.ArchiveError, match="format 3"):
        archive.load(str(newer))


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (b'"shares"', b'"parts"'),
        (b'"steal"', b'"stolen"'),
        (b'"header": {', b'"header": 1, "end": {'),
        (b"slots/delivered_ns.npy", b"slots/injected_ns.npy"),
    ],
)
def test_other_names_in_a_record_are_said_in_one_line(tmp_path, here, there):
    path, other = tmp_path / "record", tmp_path / "other"
    archive.save(record(), str(path))
    found = 0
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(other, "w") as after:
        for name in before.namelist():
            data = before.read(name)
            found += data.count(here) + name.count(here.decode())
            if name == archive.TEXT:
                data = data.replace(here, there)
            after.writestr(name.replace(here.decode(), there.decode()), data)
    assert found
    with pytest.raises(archive.ArchiveError, match="not a record of this") as error:
        archive.load(str(other))
    assert "\n" not in str(error.value)


def test_damage_is_no_crash(tmp_path):
    path = tmp_path / "record"
    archive.save(record(), str(path))
    whole = path.read_bytes()
    draw = np.random.default_rng(2)
    for _ in range(150):
        damaged = bytearray(whole)
        for at in draw.integers(0, len(whole), 3):
            damaged[at] ^= int(draw.integers(1, 256))
        path.write_bytes(
            bytes(damaged[: int(draw.integers(len(whole) // 2, len(whole) + 1))])
        )
        try:
            archive.load(str(path))
        except archive.ArchiveError as error:
            assert str(path) in str(error)
