# SPDX-License-Identifier: MIT
"""The flame graph as a file: a picture, or a format of other viewers.

``FILE.svg`` is the picture; ``FILE.json`` is speedscope's format; ``FILE.pb.gz`` is
pprof's, a gzipped protocol buffer. That message has a dozen fields of two kinds, numbers
and lengths, and is only written here. This takes a page of code; a library for it would
be one more package that every installation needs, and a generated module.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from typing import Any

from speed_bump.experiment.account import C, Frame, Looks, asked_name
from speed_bump.experiment.fit.verdict import INCONCLUSIVE, Verdict
from speed_bump.experiment.record import Record
from speed_bump.experiment.show import flame
from speed_bump.experiment.show.text import command_of, unit_ns

SUFFIXES = (".svg", ".json", ".pb.gz")
# The length of a unit in these formats if its time is unknown, so that parts can be read.
UNKNOWN_UNIT_NS = 1e9


class ExportError(Exception):
    """There is nothing to draw, or no such format; the message says what to do."""


def check(path: str) -> None:
    """ExportError: no format has this suffix."""
    if not path.endswith(SUFFIXES):
        raise ExportError(
            f"--flamegraph {path}: the name says the format: .svg, .json (speedscope) or "
            ".pb.gz (pprof)"
        )


def flamegraph(record: Record, verdict: Verdict, path: str) -> bytes:
    """The contents of the file with this name.

    Raises:
        ExportError: the suffix is unknown, or the record has no stacks
    """
    check(path)
    found = flame.flame(record, verdict)
    if found is None or record.looks is None:
        raise ExportError(
            "no stacks of the program were seen: the flame graph needs a program in "
            "Python that rank measures by slots"
        )
    if path.endswith(".svg"):
        return flame.svg(record, verdict, found).encode()
    if path.endswith(".json"):
        text = json.dumps(speedscope(record, verdict, record.looks))
        return text.encode()
    return gzip.compress(pprof(record, verdict, record.looks), mtime=0)


def _unit_ns(record: Record, verdict: Verdict) -> float:
    return unit_ns(record, verdict) or UNKNOWN_UNIT_NS


def _of_threads(looks: Looks) -> dict[str, list[tuple[list[Frame], float]]]:
    """Stacks with their part of the time: of the unit, and of each other thread."""
    found: dict[str, list[tuple[list[Frame], float]]] = {}
    for (at, row), n in looks.stacks.items():
        thread = looks.threads[at]
        name = "a unit of work" if thread.reports else f"thread {thread.tid}"
        frames = flame.trimmed([looks.frames[f] for f in row])
        found.setdefault(name, []).append((frames, n))
    return {
        name: [(frames, n / sum(n for _, n in rows)) for frames, n in rows]
        for name, rows in sorted(found.items())
    }


# --------------------------------------------------------------------- speedscope


def speedscope(record: Record, verdict: Verdict, looks: Looks) -> dict[str, Any]:
    """A profile of the unit, and one of each other thread, each as long as a unit."""
    unit_ns = _unit_ns(record, verdict)
    known: dict[Frame, int] = {}
    profiles = []
    for name, rows in _of_threads(looks).items():
        rows.sort(key=lambda row: [frame.name for frame in row[0]])
        profiles.append(
            {
                "type": "sampled",
                "name": name,
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": unit_ns,
                "samples": [
                    [known.setdefault(frame, len(known)) for frame in frames]
                    for frames, _ in rows
                ],
                "weights": [share * unit_ns for _, share in rows],
            }
        )
    frames = [
        {"name": flame.label(f), **({"file": f.file, "line": f.line} if f.file else {})}
        for f in known
    ]
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"speed-bump {record.header.get('version', '')}".strip(),
        "name": command_of(record),
        "shared": {"frames": frames},
        "profiles": profiles,
    }


# -------------------------------------------------------------------------- pprof


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value) if value else b""


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _packed(field: int, values: Iterable[int]) -> bytes:
    return _bytes(field, b"".join(map(_varint, values)))


class _Strings:
    """A table of strings; the first is ""."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {"": 0}

    def __call__(self, text: str) -> int:
        return self.known.setdefault(text, len(self.known))


def pprof(record: Record, verdict: Verdict, looks: Looks) -> bytes:
    """The message ``perftools.profiles.Profile`` of pprof's profile.proto.

    Values are ns of a unit; each sample has labels with its thread and with the verdict
    of the function that its time belongs to.
    """
    unit_ns = _unit_ns(record, verdict)
    findings = {f.name: f for f in verdict.findings}
    strings = _Strings()
    known: dict[Frame, int] = {}
    samples = []
    total = sum(looks.stacks.values())
    for name, rows in _of_threads(looks).items():
        for frames, share in rows:
            owners = [asked_name(frame, findings) for frame in frames]
            owner = next((o for o in reversed(owners) if o), "")
            said = findings[owner].verdict if owner else "not asked"
            said = "not known" if said == INCONCLUSIVE else said
            places = [known.setdefault(f, len(known) + 1) for f in reversed(frames)]
            labels = b"".join(
                _bytes(3, _number(1, strings(key)) + _number(2, strings(value)))
                for key, value in (("thread", name), ("verdict", said))
            )
            values = _packed(2, [round(share * unit_ns)])
            samples.append(_bytes(2, _packed(1, places) + values + labels))
    functions = []
    for frame, place in known.items():
        called = strings(flame.label(frame))
        line = _bytes(4, _number(1, place) + _number(2, frame.line))
        functions.append(_bytes(4, _number(1, place) + line))
        functions.append(
            _bytes(
                5,
                _number(1, place)
                + _number(2, called)
                + _number(3, called)
                + _number(4, strings(frame.file or ("C" if frame.kind == C else "")))
                + _number(5, frame.line),
            )
        )
    kind = _number(1, strings("time of a unit")) + _number(2, strings("nanoseconds"))
    comment = strings(f"{command_of(record)}: {total} looks")
    parts = [_bytes(1, kind), *samples, *functions]
    parts += [_bytes(6, text.encode()) for text in strings.known]
    parts += [_number(10, round(unit_ns)), _packed(13, [comment])]
    return b"".join(parts)
