# SPDX-License-Identifier: MIT
"""Reports of experiments with known answers."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
from dataclasses import replace

import experiments
import model
import numpy as np
import pytest
import schemas
from speed_bump.experiment.fit.interval import Interval
from speed_bump.experiment.fit.verdict import Verdict, verdict
from speed_bump.experiment.record import Record
from speed_bump.experiment.show import changes, html, text
from speed_bump.experiment.show.encode import dumps
from speed_bump.experiment.show.sentence import sentence
from speed_bump.experiment.show.wording import number, ranked, shared_note

pytestmark = pytest.mark.one_python

PROGRAMS = ("serial", "stages", "starved", "fork_join", "tick", "amplified", "rare")
KINDS = ("heavy", "recorded")


@pytest.fixture(scope="module")
def known() -> dict[tuple[str, str], tuple[Record, Verdict]]:
    found = {}
    for name in PROGRAMS:
        for kind in KINDS:
            record = experiments.run(name, kind=kind)
            found[name, kind] = (record, verdict(record))
    return found


def contended(record: Record, share: float) -> Record:
    """The same program with a part of a CPU: the rest of the time it waits for one."""
    slots = record.slots
    slots.cpu_ns = slots.time_ns.copy()
    slots.wait_ns = slots.time_ns * (1 / share - 1)
    slots.time_ns = slots.cpu_ns + slots.wait_ns
    slots.end_ns = np.cumsum(slots.time_ns).astype(np.int64)
    record.machine = replace(record.machine, share=share)
    record.unit_ns /= share
    return record


def table_of(shown: str) -> list[str]:
    """The lines of the table, without its header."""
    lines = shown.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("function"))
    return lines[first + 1 : lines.index("", first)]


def test_lines_fit_into_80_columns() -> None:
    for name, kind in itertools.product(PROGRAMS, KINDS):
        record = experiments.run(name, kind=kind)
        names = [f"package.module:Class.a_long_method_of_{f}" for f in record.functions]
        found = verdict(experiments.renamed(record, names))
        for line in text.text(record, found, width=80).splitlines():
            assert len(line) <= 80, (name, kind, line)
        # Where output is not a terminal, programs may search for names.
        whole = text.text(record, found)
        assert all(table_of(whole)[k].split()[0] in names for k in range(len(names)))


def test_no_row_is_without_a_reason(known) -> None:
    some = 0
    for (name, kind), (record, found) in known.items():
        shown = " ".join(text.text(record, found, width=10_000).split())
        for finding in found.findings:
            if finding.verdict == "inconclusive":
                some += 1
                assert finding.reason and finding.help, (name, kind, finding)
                assert text.NUMBER_FIRST.sub("", finding.reason) in shown
                words = re.split(text.TIME, finding.help)
                assert words[0] in shown and words[-1] in shown
            for note in finding.notes:
                assert note in shown
    assert some > 3


def test_a_record_without_delays_says_why_it_says_nothing() -> None:
    record = experiments.run("serial", budget_s=5.0)
    record.blocks = []
    record.slots.block[:] = -1
    record.slots.mask[:] = 0
    record.idle = ("m:never",)
    record.functions = (*record.functions, "m:never")
    record.slots.calls = np.column_stack(
        [record.slots.calls, record.slots.calls[:, 0] * 0]
    )
    record.slots.delivered_ns = np.zeros_like(record.slots.calls)
    shown = text.text(record, verdict(record), width=80)
    flat = " ".join(shown.split())
    assert "m:never: inconclusive: it was never called" in flat
    assert "No function is known to matter yet; what helps:" in flat


def test_rows_are_ranked_by_headroom() -> None:
    record = experiments.run("starved")
    record.self_times["m:f3"].share = 0.9
    again = verdict(record)
    names = [line.split()[0] for line in table_of(text.text(record, again))]
    by_name = {f.name: f for f in again.findings}
    headrooms = [by_name[n].headroom.value if by_name[n].headroom else 0 for n in names]
    assert headrooms == sorted(headrooms, reverse=True)
    assert len(names) == len(again.findings)


def test_numbers_of_the_table_are_those_of_the_verdict(known) -> None:
    record, found = known["stages", "heavy"]
    for line in table_of(text.text(record, found)):
        name, calls, share, rest = line.split(None, 3)
        finding = found.of(name)
        assert float(calls) == 1
        assert share == "10.0%"
        assert rest.split()[0] == f"{finding.criticality.value:.2f}".replace(
            "-0.00", "0.00"
        )
        assert rest.split()[2] == f"{finding.criticality.half:.2f}"
        assert line.endswith(finding.verdict)


def test_the_last_sentence_says_what_to_do(known) -> None:
    for (name, kind), (record, found) in known.items():
        flat = " ".join(text.text(record, found, width=80).split("\n\n")[-1].split())
        matter = [f for f in ranked(found.findings) if f.verdict in ("matters", "partly")]
        hidden = [f.name for f in found.findings if f.verdict == "hidden"]
        if matter:
            first = matter[0]
            assert flat.startswith(f"Look first at {first.name} ({first.verdict}"), (
                name,
                kind,
            )
            assert f"gains at most {100 * first.headroom.value:.1f}%" in flat
        assert ("not worth touching" in flat) == bool(hidden)
        # One sentence, in which dots belong to numbers and names.
        assert flat.endswith(".") and ". " not in flat


def test_where_all_is_hidden_something_else_limits_the_program() -> None:
    draw = np.random.default_rng(3)
    record = experiments.run_of(model.Weighted(draw, [0.0, 0.0, 0.0]), draw)
    shown = text.text(record, verdict(record))
    assert "None of these functions limits the program" in shown
    assert "Look first" not in shown


def test_slack_that_is_never_used_up_has_no_upper_end() -> None:
    record = experiments.run("tick")
    found = verdict(record)
    endless = Interval(20e6, 19e6, math.inf)
    found.findings = [
        replace(f, slack_ns=endless) if f.slack_ns else f for f in found.findings
    ]
    assert "slack at least 19.0 ms a unit" in text.text(record, found)
    entries = json.loads(dumps(text.as_json(record, found)))["findings"]
    (slack,) = (f["slack_ns"] for f in entries if f["slack_ns"])
    assert slack == {"value": 20e6, "low": 19e6, "high": None}
    assert "inf" not in re.findall(r"class='slack'[^>]*", html.page(record, found))[0]


def test_slack_is_shaded_where_slots_have_several_units() -> None:
    """The figure is of slots, and slack is that of a unit."""
    record = experiments.run("tick")
    of_one = re.findall(r"<rect class='slack'[^>]*", html.page(record, verdict(record)))
    units = replace(record.slots, units=4 * record.slots.units)
    record = replace(record, slots=units)
    of_four = re.findall(r"<rect class='slack'[^>]*", html.page(record, verdict(record)))
    assert of_one and of_four == of_one


def test_the_share_of_a_cpu_stands_beside_the_number() -> None:
    record = contended(experiments.run("sham"), 0.47)
    found = verdict(record)
    matter = [f for f in ranked(found.findings) if f.verdict == "matters"]
    assert matter, [f.reason for f in found.findings]
    flat = " ".join(text.text(record, found, width=80).split())
    assert "all numbers: with a CPU of its own (it had 47%)" in flat
    first = matter[0]
    assert (
        f"(matters, {number(first.criticality)} with a CPU of its own (it had 47%))"
        in flat
    )
    # Once for all, not in each row.
    assert flat.count("it had 47%") == 2


def test_one_reason_of_all_is_said_once() -> None:
    record = contended(experiments.run("sham"), 0.08)
    found = verdict(record)
    flat = " ".join(text.text(record, found, width=80).split())
    reason = "the program had only 8% of the CPU time that it wanted"
    assert flat.count(reason) == 1
    assert f"all 6 functions: inconclusive: {reason}" in flat
    assert "What helps: run it when the machine has less to do" in flat


def test_a_bill_that_does_not_add_up_is_said_in_words() -> None:
    draw = np.random.default_rng(2)
    program = model.Stages(draw, depth=4, cpu=1.0, device=0.95)
    record = experiments.run_of(program, draw)
    found = verdict(record)
    assert any(bill.alarm for bill in found.bills)
    flat = " ".join(text.text(record, found, width=80).split())
    assert "less than the sum of their effects: they used up slack" in flat


def test_what_is_not_asked_is_said(known) -> None:
    record, found = known["serial", "heavy"]
    assert "before the work" not in text.text(record, found)
    early = ["app:<module>", "app:read_settings", "app:main"]
    record.header["called_before_only"] = early
    flat = " ".join(text.text(record, found, width=80).split())
    del record.header["called_before_only"]
    assert "called only before the work began: app:read_settings and app:main" in flat


def test_an_interval_with_one_end_is_said_by_that() -> None:
    assert number(Interval(0.01, 0.0, 0.08)) == "< 0.08"
    assert number(Interval(-0.001, -0.05, 0.048)) == "0.00 ± 0.05"
    assert number(Interval(0.34, 0.0, 0.42)) == "< 0.42"
    assert number(Interval(0.5, 0.2, 0.6)) == "0.20 to 0.60"
    assert number(None) == "-"


def test_rows_that_differ_in_numbers_alone_are_explained_together(known) -> None:
    _, found = known["serial", "heavy"]
    said = "of its delay arrives: above or below 0.1 is not certain"
    findings = [
        replace(
            f,
            verdict="inconclusive",
            reason=f"0.0{k} ± 0.10 {said}",
            help=f"run it for {time} more, or with fewer functions",
            notes=("it changed while it ran",) if k == 1 else (),
        )
        for k, (f, time) in enumerate(
            zip(found.findings, ("3 min", "40 s", "90 s", "2 h"), strict=False)
        )
    ]
    few = replace(found, findings=[*findings, *found.findings[4:]])
    lines = text.reasons(few, ranked(few.findings))
    assert len(lines) == 2
    names, words = lines[0]
    assert sorted(names.split(", ")) == ["m:f0", "m:f1", "m:f2", "m:f3"]
    assert words == (
        "inconclusive: above or below 0.1 is not certain. What helps: run it for 40 s to "
        "2 h more, or with fewer functions"
    )
    assert lines[1] == ("m:f1", "it changed while it ran")


@pytest.mark.parametrize(
    ("reasons", "together"),
    [
        (
            ("too noisy: ± 0.9 after 1,018 slots", "too noisy: ± 0.5 after 26 slots"),
            "too noisy: ± 0.5 to 0.9 after 26 to 1,018 slots",
        ),
        (
            (
                "1.00 ± 0.24 of its delay arrives of one of 0.3 of a unit; with 19%",
                "1.14 ± 0.38 of its delay arrives of one of 0.1 of a unit; with 19%",
            ),
            "with 19%",
        ),
        (("in the way of m:f1 and f1", "in the way of m:f2 and f2"), ""),
    ],
)
def test_numbers_in_a_reason_of_several_rows(known, reasons, together) -> None:
    _, found = known["serial", "heavy"]
    findings = [
        replace(f, verdict="inconclusive", reason=reason, help="", notes=())
        for f, reason in zip(found.findings, reasons, strict=False)
    ]
    lines = text.reasons(
        replace(found, findings=[*findings, found.findings[4]]), findings
    )
    if together:
        assert lines == [("m:f0, m:f1", f"inconclusive: {together}")]
    else:
        assert len(lines) == 2


def test_a_note_of_all_rows_is_said_once(known) -> None:
    """Also where no row has a number."""
    _, found = known["serial", "heavy"]
    note = "with a CPU of its own (it had 31%)"
    findings = [
        replace(f, verdict="inconclusive", reason="x", criticality=None, notes=(note,))
        for f in found.findings
    ]
    all_of_them = replace(found, findings=findings)
    assert shared_note(all_of_them) == note
    assert len(text.reasons(all_of_them, findings)) == 1


def test_without_numbers_what_has_most_time_is_first(known) -> None:
    """So the sentence says what would help there."""
    record, found = known["serial", "heavy"]
    findings = [
        replace(
            f,
            verdict="inconclusive",
            criticality=None,
            headroom=None,
            share=Interval(k / 10, k / 10, k / 10),
            help=f"run it for {k} min more",
        )
        for k, f in enumerate(found.findings[:3])
    ]
    assert [f.name for f in ranked(findings)] == ["m:f2", "m:f1", "m:f0"]
    said = sentence(record, replace(found, findings=findings))
    assert said.endswith("what helps: run it for 2 min more.")


def test_many_rows_are_cut_and_counted(known) -> None:
    record, found = known["serial", "heavy"]
    shown = text.text(record, found, max_rows=2)
    assert len(table_of(shown)) == 3
    assert "... and 4 more" in shown


def test_json_is_valid_and_has_all(known) -> None:
    for record, found in known.values():
        again = schemas.read("report", dumps(text.as_json(record, found)))
        assert again["format"] == text.FORMAT
        assert again["command"] == record.header["command"]
        assert again["seed"] == 1
        assert again["slots"] == len(record.slots)
        assert 0 < again["slowdown"] < 0.3
        assert again["unit_ns"] == pytest.approx(50e6, rel=0.2)
        assert {f["target"] for f in again["findings"]} == set(record.functions)
        for row in again["findings"]:
            finding = found.of(row["target"])
            assert row["verdict"] == finding.verdict
            assert row["reason"] == finding.reason
            assert row["help"] == finding.help
            if finding.criticality is None:
                assert row["criticality"] is None
            else:
                assert set(row["criticality"]) == {"value", "low", "high"}
                assert row["criticality"]["value"] == finding.criticality.value
            assert 0 < row["self_share"] < 1


def test_what_is_not_finite_is_null_in_json(known) -> None:
    record, found = known["tick", "heavy"]
    first = replace(found.findings[0], slack_ns=Interval(1e6, 5e5, math.inf))
    odd = replace(
        found,
        findings=[first, *found.findings[1:]],
        cpu_share=math.nan,
        slowdown=math.nan,
    )
    again = schemas.read("report", dumps(text.as_json(record, odd)))
    assert again["cpu_share"] is None
    row = next(f for f in again["findings"] if f["target"] == first.name)
    assert row["slack_ns"] == {"value": 1e6, "low": 5e5, "high": None}


def test_csv_has_a_line_for_each_function(known) -> None:
    _, found = known["starved", "recorded"]
    rows = list(csv.DictReader(io.StringIO(text.table_csv(found))))
    assert [row["target"] for row in rows] == [f.name for f in ranked(found.findings)]
    for row in rows:
        finding = found.of(row["target"])
        assert row["verdict"] == finding.verdict
        if finding.criticality:
            assert float(row["criticality_low"]) == finding.criticality.low


def test_markdown_is_a_table(known) -> None:
    record, found = known["stages", "heavy"]
    lines = text.markdown(record, found).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 + len(found.findings)
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1


# ------------------------------------------------------------------------- compare


def of_parts(parts: list[float], seed: int, budget_s: float = 60.0) -> Record:
    draw = np.random.default_rng(seed)
    return experiments.run_of(model.Weighted(draw, parts), draw, seed, budget_s)


def test_what_changed_and_what_did_not() -> None:
    a = of_parts([1.0, 1.0, 0.0, 1.0], 1)
    b = of_parts([0.0, 1.0, 1.0, 1.0], 2)
    experiments.renamed(b, ("m:f0", "m:f1", "m:f2", "m:new"))
    found = changes.compare(a, b)
    verdicts = {c.name: c.verdict for c in found.changes}
    assert verdicts == {
        "m:f0": "less critical",
        "m:f1": "alike",
        "m:f2": "more critical",
        "m:f3": "only in A",
        "m:new": "only in B",
    }
    by = {c.name: c.by for c in found.changes}
    assert by["m:f0"].low < -1 < by["m:f0"].high
    assert by["m:f2"].low < 1 < by["m:f2"].high
    assert {c.name for c in found.changes[:2]} == {"m:f0", "m:f2"}
    shown = changes.text(found, width=80)
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "2 functions changed for certain" in shown
    values = schemas.read("compare", dumps(changes.as_json(found, ["a", "b"])))
    assert [c["target"] for c in values["changes"]] == [c.name for c in found.changes]


def test_a_program_that_is_faster_is_so_by_that_much() -> None:
    a, b = of_parts([1.0, 1.0], 1), of_parts([1.0, 1.0], 2)
    b.slots.time_ns *= 0.8
    b.slots.delivered_ns *= 0.8
    # Slots have two units now.
    b.slots.units *= 2
    b.slots.time_ns *= 2
    b.slots.delivered_ns *= 2
    b.slot_units = 2
    found = changes.compare(a, b)
    assert found.unit.low < 0.8 < found.unit.high
    assert found.unit.high - found.unit.low < 0.1


def test_what_else_differs_is_said() -> None:
    a, b = of_parts([1.0, 1.0], 1), of_parts([1.0, 1.0], 1)
    assert changes.compare(a, b).notes == []
    b.header["command"] = ["other"]
    b.header["environment"] = {"host": "there", "cpus": 2}
    notes = changes.compare(a, b).notes
    assert "the commands differ" in notes
    assert "host: here in A, there in B" in notes


def test_no_answer_in_one_is_no_change() -> None:
    a, b = of_parts([1.0, 1.0], 1), of_parts([1.0, 1.0], 2, budget_s=5.0)
    b.blocks = []
    b.slots.block[:] = -1
    b.slots.mask[:] = 0
    for change in changes.compare(a, b).changes:
        assert change.verdict == "inconclusive"
        assert change.reason
