# SPDX-License-Identifier: MIT
"""Candidates and units of work as lines of text."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from speed_bump.experiment.symbols import base, known, short

if TYPE_CHECKING:
    from speed_bump.experiment.aim import Aim

# Of the JSON of suggest.
FORMAT = 1
MAX_NAMED = 3
# At most this many lines of targets and of units are printed.
MAX_LINES, MAX_UNITS = 40, 12
# A smaller part of the time is not mentioned.
MIN_WORTH = 0.02


def first_lines(found: Aim) -> list[str]:
    """The unit of work, and the waits; known before the functions."""
    return [unit_line(found), *left_out(found)]


def lines(found: Aim) -> list[str]:
    """The functions to be measured, and native functions that are not."""
    text = f"found {len(found.candidates)} functions that take time"
    native = len(found.shares.native & set(found.candidates))
    if native:
        text += f", {native} of them written in C"
    machine = len(found.shares.machine & set(found.candidates))
    if machine:
        text += f", {machine} of them native"
    if found.others:
        names = [short(name) for name in found.others][:MAX_NAMED]
        text += (
            f"; {len(found.others)} more take less and are left out ({', '.join(names)}"
            + (", ..." if len(found.others) > MAX_NAMED else "")
            + "): name them with -t, or give a longer --budget"
        )
    return [text, *_left_out_native(found)]


def unit_line(found: Aim) -> str:
    """The unit of work, why, and how to change it."""
    what = found.progress.text or (
        "what progress() says" if "progress()" in found.why else ""
    )
    if not what:
        return f"{found.why} (--progress to change it)"
    return f"a unit of work is {what}: {found.why} (--progress to change it)"


def left_out(found: Aim) -> list[str]:
    """What takes time and is not a candidate: waits and imports."""
    said = []
    waiting = [(n, s) for n, s in found.shares.waiting.items() if s >= MIN_WORTH]
    if waiting:
        parts = []
        for name, share in waiting[:MAX_NAMED]:
            by = found.shares.callers.get(name)
            parts.append(f"{name} {share:.0%}" + (f" (called from {by})" if by else ""))
        said.append("waiting, which is no function's time: " + ", ".join(parts))
    if found.import_s >= 0.5:
        said.append(
            f"imports took {found.import_s:.1f} s before that ({found.imported}), and "
            "are in no unit of work"
        )
    return said


def table(found: Aim) -> str:
    """For ``suggest``: candidates and units with their rates."""
    names = [*found.candidates, *found.others]
    text: list[str] = []
    for is_native, option in ((False, "-t"), (True, "--native")):
        some = [name for name in names if (kind(found, name) == "native") == is_native]
        if some:
            what = "native functions that" if is_native else "what"
            text += [f"{what} may be measured ({option}), by its part of the time:"]
            text += [*_rows(found, some), ""]
    text += ["what may be a unit of work (--progress), with calls a second:"]
    units = list(found.units.items())[:MAX_UNITS]
    width = max((len(n) for n, _ in units), default=0)
    text += [f"  {name:<{width}}  {calls:10.4g}/s" for name, calls in units]
    if len(units) < len(found.units):
        text.append(f"  and {len(found.units) - len(units)} more (--json)")
    if not found.units:
        text.append("  nothing is called at an even pace: a whole run")
    text += ["", f"rank would take: {unit_line(found)}", *left_out(found)]
    text += _left_out_native(found)
    return "\n".join(text)


def _left_out_native(found: Aim) -> list[str]:
    """Native functions that take time and are not candidates, with the reasons."""
    if found.native_refused:
        return [f"native functions are not candidates: {found.native_refused}"]
    left = list(found.left_out.items())
    if not left:
        return []
    text = "; ".join(f"{short(name)} ({why})" for name, why in left[:MAX_NAMED])
    more = f"; and {len(left) - MAX_NAMED} more" if len(left) > MAX_NAMED else ""
    return [f"native functions that take time and are left out: {text}{more}"]


def _rows(found: Aim, names: list[str]) -> list[str]:
    """A line for each of these targets, with its pattern."""
    patterns = {name: asked_by(found, name) for name in names[:MAX_LINES]}
    width = max(map(len, patterns.values()), default=0)
    text = [
        f"  {pattern:<{width}}  {found.shares.total[name]:6.1%} in all"
        f"  {found.shares.own.get(name, 0.0):6.1%} itself  {rate(found, name)}"
        + (f"  {means}" if (means := readable(name)) else "")
        for name, pattern in patterns.items()
    ]
    if len(names) > MAX_LINES:
        text.append(f"  and {len(names) - MAX_LINES} more (--json)")
    return text


def readable(name: str) -> str:
    """The demangled name of a native function; "" for others."""
    symbol = name.partition(":")[2]
    means = known(symbol) if name.startswith("/") else symbol
    return base(means) if means != symbol else ""


def asked_by(found: Aim, name: str) -> str:
    """The pattern that matches only this function."""
    target = found.natives.get(name)
    return f"{target.left}:{target.right}" if target else name


def rate(found: Aim, name: str) -> str:
    """The calls of a function; those of C functions are not counted at this time."""
    if name in found.shares.native:
        return "written in C"
    return f"{found.rates.get(name, 0.0):.4g} calls/s"


def kind(found: Aim, name: str) -> str:
    if name in found.shares.machine or found.machine_code:
        return "native"
    return "c" if name in found.shares.native else "python"


def as_json(found: Aim) -> dict[str, Any]:
    """For programs."""
    return {
        "format": FORMAT,
        **_as_json(found.as_json()),
        "native_refused": found.native_refused,
        "wall_ns": round(found.seconds * 1e9),
    }


def of_record(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """What a record keeps of it, for programs; None: the functions were named."""
    if not found:
        return None
    seconds = found.get("first_line_s")
    return {
        **_as_json(found),
        "first_line_ns": None if seconds is None else round(seconds * 1e9),
    }


def _kind(name: str, native: Collection[str], machine: Collection[str]) -> str:
    # In a program without Python all names begin with the path of its file.
    if name in machine or (name.startswith("/") and name not in native):
        return "native"
    return "c" if name in native else "python"


def _as_json(kept: dict[str, Any]) -> dict[str, Any]:
    """Of ``Aim.as_json()``. Records of older versions lack some of it."""
    chosen = kept.get("shares", {})
    own, rates = kept.get("self", {}), kept.get("rates", {})
    native, machine = kept.get("native", ()), kept.get("machine", ())
    return {
        "targets": [
            {
                "target": name,
                "share": share,
                "self_share": own.get(name, 0.0),
                "calls_per_s": None if name in native else rates.get(name, 0.0),
                "kind": _kind(name, native, machine),
                "chosen": name in chosen,
            }
            for name, share in [*chosen.items(), *kept.get("others", {}).items()]
        ],
        "units": [
            {"name": name, "units_per_s": rate}
            for name, rate in kept.get("units", {}).items()
        ],
        "unit": kept.get("unit"),
        "why": kept.get("why", ""),
        "waiting": kept.get("waiting", {}),
        "native_left_out": kept.get("native_left_out", {}),
        "importing": kept.get("importing", 0.0),
        "import_ns": round(kept.get("import_s", 0.0) * 1e9),
    }
