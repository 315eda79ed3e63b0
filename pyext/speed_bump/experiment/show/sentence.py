# SPDX-License-Identifier: MIT
"""The last sentence of a report: what to look at first, and what to leave alone."""

from __future__ import annotations

from speed_bump.experiment.account import Account, Inside, Own
from speed_bump.experiment.fit.interval import Interval
from speed_bump.experiment.fit.verdict import (
    HIDDEN,
    INCONCLUSIVE,
    MATTERS,
    PARTLY,
    Finding,
    Verdict,
)
from speed_bump.experiment.record import Record
from speed_bump.experiment.show import spent, wording
from speed_bump.experiment.symbols import is_line, short

# A smaller headroom is not worth the work, and the sentence says so.
LITTLE = 0.01
# If the rest is waiting, code that can gain no more than this is not worth it.
LITTLE_BESIDE_WAITING = 0.05
# A function with this part of its own time in waits is called waiting.
MOSTLY = 0.5


def sentence(record: Record, verdict: Verdict) -> str:
    """What to look at first, what that can gain at most, and what to leave alone."""
    found = wording.ranked(verdict.findings)
    account = spent.of(record, verdict)
    matter = [f for f in found if f.verdict in (MATTERS, PARTLY)]
    hidden = [f.name for f in found if f.verdict == HIDDEN]
    unknown = [f for f in found if f.verdict == INCONCLUSIVE]
    parts = []
    inside = _most_inside(record, verdict)
    nothing = _nothing(record, found, account, inside[0] if inside else 0.0)
    if nothing:
        parts.append(nothing)
    elif matter:
        parts.append(
            _first_inside(inside, matter[0])
            or _first(matter, account, wording.shared_note(verdict))
        )
    elif unknown:
        parts.append(_while_busy(unknown) or "No function is known to matter yet")
        # What has the most time is of the most interest.
        helps = max(unknown, key=wording.own_part).help
        if helps:
            parts.append(f"what helps: {helps}")
    elif hidden:
        parts.append(
            "None of these functions limits the program; something else does: "
            + (_waits(record, account) or "name others, or native ones")
        )
    if hidden:
        parts.append(f"not worth touching: {wording.listed(hidden)}")
    if (matter or nothing) and unknown:
        parts.append(f"not known yet: {wording.listed([f.name for f in unknown])}")
    text = "; ".join(parts)
    return f"{text}." if text else ""


def _while_busy(unknown: list[Finding]) -> str:
    """What is known for as long as the machine is as busy; "" if nothing is."""
    busy = [f for f in unknown if f.while_busy]
    if not busy:
        return ""
    first = busy[0]
    text = f"As long as the machine is this busy, look first at {short(first.name)}"
    if first.headroom:
        text += f": making it faster gains at most {100 * first.headroom.high:.1f}% "
        text += "of the time"
    return f"{text}; with a CPU of its own, what matters is not known"


def _own(account: Account | None, name: str) -> Own:
    return (account.own.get(name) if account else None) or Own()


def _asleep(own: Own) -> float:
    """The part of a function's own time in which it waits."""
    total = own.cpu + own.asleep
    return own.asleep / total if total else 0.0


def computing(finding: Finding, account: Account | None) -> Interval | None:
    """The part of the headroom that faster code can gain: what is not waiting."""
    if finding.headroom is None:
        return None
    part = 1.0 - _asleep(_own(account, finding.name))
    h = finding.headroom
    return Interval(h.value * part, h.low * part, h.high * part)


def _waits(record: Record, account: Account | None) -> str:
    """The most frequent wait and its place; "" if there is none."""
    rows = account.waiting if account else []
    if not rows or sum(row.share for row in rows) < 0.1:
        return ""
    row, whole = rows[0], spent.whole(record)
    where = row.parts[0][0] if row.parts else ""
    return f"{100 * row.share:.0f}% of a {whole} is waiting ({row.what})" + (
        f", {where if where.startswith('in ') else f'in {where}'}" if where else ""
    )


def _nothing(
    record: Record, found: list[Finding], account: Account | None, inside: float
) -> str:
    """A sentence if the unit is nearly all waiting; else "".

    Args:
        inside: what the functions that were not delayed can gain at most
    """
    waits = _waits(record, account)
    if not account or not waits:
        return ""
    asleep = sum(row.share for row in account.waiting)
    if asleep < MOSTLY:
        return ""
    gains = [c for f in found if f.verdict != HIDDEN and (c := computing(f, account))]
    # A function without a number can gain no more than all the time that is not waiting.
    unknown = any(f.headroom is None and f.verdict != HIDDEN for f in found)
    most = max([inside, *(gain.high for gain in gains)])
    most = max(most, (1 - asleep)) if unknown or not gains else most
    if most >= LITTLE_BESIDE_WAITING:
        return ""
    return (
        f"Nothing here is worth optimising: {waits}, and faster code gains at most "
        f"{spent.part(most)} of the time"
    )


def _most_inside(
    record: Record, verdict: Verdict
) -> tuple[float, Inside, Finding] | None:
    """Which function that was not delayed can gain the most, and what calls it."""
    gains = [
        (caller.criticality.value * one.share, one, caller)
        for one, caller in spent.answered(record, verdict)
        if caller.criticality is not None
    ]
    return max(gains, key=lambda gain: gain[0], default=None)


def _first_inside(inside: tuple[float, Inside, Finding] | None, first: Finding) -> str:
    """If a function that was not delayed can gain more than those that were; else ""."""
    if not inside:
        return ""
    most, one, caller = inside
    if most < LITTLE or (first.headroom and most <= first.headroom.value):
        return ""
    return (
        f"Look first at {short(one.name)} (called by {short(one.of)}, {caller.verdict}, "
        f"{wording.number(caller.criticality)}): making it faster gains at most "
        f"{spent.part(most)} of the time"
    )


def _first(matter: list[Finding], account: Account | None, shared: str) -> str:
    first = matter[0]
    how = f"{first.verdict}, {wording.number(first.criticality)}"
    how += f" {shared}" if shared else ""
    name = short(first.name)
    if first.headroom is None and is_line(first.name):
        return (
            f"Look first at {name} ({how}); a line has no self time of its own: ask for "
            "its function to know what it can gain"
        )
    if first.headroom is None:
        return (
            f"Look first at {name} ({how}); its self time was not seen, so what it can "
            "gain is not known"
        )
    most = wording.percent_between(first.headroom)
    if first.headroom.high < LITTLE:
        return (
            f"Nothing here can gain much: at most {most} of the time, in {name} ({how})"
        )
    own = _own(account, first.name)
    if first.beside:
        return (
            f"Look first at {name} ({how}), and at {short(first.beside)}, which works at "
            f"the same time: making only one of them faster gains at most {most} of the "
            "time"
        )
    if _asleep(own) < MOSTLY:
        return (
            f"Look first at {name} ({how}): making it faster gains at most {most} of the "
            "time"
        )
    where = own.waits[0][0].partition(", called from")[0] if own.waits else ""
    where = "" if where.startswith("in ") else f" in {where}"
    text = (
        f"Look first at {name} ({how}): {100 * _asleep(own):.0f}% of its own time is "
        f"waiting{where}, so that a shorter wait gains at most {most} of the time"
    )
    code = computing(first, account)
    if code:
        text += f", and faster code {wording.percent_between(code)}"
    return text
