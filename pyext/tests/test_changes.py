# SPDX-License-Identifier: MIT
"""``speed-bump compare`` and ``report``, on records whose truth is known."""

from __future__ import annotations

import json
import pathlib
import random
import re

import pytest
import simulated
from speed_bump.experiment import changes, records
from speed_bump.command.main import main

UNIT = simulated.UNIT_NS


def linear(part):
    return lambda x: part * x


def record(seed, parts, pairs=100):
    """With functions of which so large a part of a delay arrives."""
    found = simulated.record(seed, tuple(parts))
    draw = random.Random(seed)
    for name, part in parts.items():
        simulated.add(found, draw, name, linear(part), pairs=pairs)
    return found


def write(found, path):
    with path.open("w", encoding="utf-8") as file:
        writer = records.Writer(found.header, file)
        for census in found.censuses:
            writer.census(census)
        for pair in found.pairs:
            writer.pair(pair)
        writer.end({"runs": 1, "seconds": 2.0})
    return str(path)


def verdicts(found):
    return {c.name: c.verdict for c in found.changes}


def test_what_changed_and_what_did_not():
    a = record(1, {"m:gone": 1.0, "m:same": 0.5, "m:more": 0.2, "m:a": 1.0})
    b = record(2, {"m:gone": 0.0, "m:same": 0.5, "m:more": 0.8, "m:b": 1.0})
    found = changes.compare(a, b)
    assert verdicts(found) == {
        "m:gone": "less critical",
        "m:same": "alike",
        "m:more": "more critical",
        "m:a": "only in A",
        "m:b": "only in B",
    }
    assert [c.name for c in found.changes[:2]] == ["m:gone", "m:more"]
    gone = found.changes[0]
    assert gone.by.low < -1 < gone.by.high
    # Units of both take the same.
    assert found.unit.low < 1 < found.unit.high


def test_differences_by_chance_are_rare():
    certain = 0
    for seed in range(30):
        parts = {f"m:f{i}": 0.5 for i in range(5)}
        found = changes.compare(record(seed, parts), record(1000 + seed, parts))
        certain += any(c.is_certain for c in found.changes)
    assert certain <= 4


def test_nothing_is_said_of_what_has_no_answer():
    a = record(1, {"m:f": 1.0})
    b = record(2, {"m:f": 1.0}, pairs=6)
    found = changes.compare(a, b)
    assert verdicts(found) == {"m:f": "inconclusive: no answer in B"}
    assert "-" in changes.text(found).splitlines()[-1]


def test_what_else_differs_is_said():
    a, b = record(1, {"m:f": 1.0}), record(2, {"m:f": 1.0})
    a.header |= {"unit": "call of x:y", "command": ["one"], "environment": {"cpus": 2}}
    b.header |= {"unit": "", "command": ["two"], "environment": {"cpus": 4}}
    text = changes.text(changes.compare(a, b))
    assert "note: A counts call of x:y, B runs as units of work" in text
    assert "note: the commands differ" in text
    assert "note: cpus: 2 in A, 4 in B" in text


def test_compare_on_the_command_line(tmp_path, capsys):
    a = write(record(1, {"m:f": 1.0}), tmp_path / "a")
    b = write(record(2, {"m:f": 0.0}), tmp_path / "b")
    assert main(["compare", a, b]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^m:f +0\.98 +-?0\.0\d +-\d\.\d\d .* less critical$", text, re.M)
    assert main(["compare", a, b, "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)["functions"]
    assert only["verdict"] == "less critical"
    assert only["difference"]["high"] < -0.5
    output = tmp_path / "out"
    assert main(["compare", a, a, "-o", str(output)]) == 0
    assert "alike" in output.read_text("utf-8")
    assert capsys.readouterr().out == ""
    assert main(["compare", a, __file__]) == 1
    assert "not a file of speed-bump" in capsys.readouterr().err
    assert main(["compare", a, "/no/such"]) == 1
    assert "/no/such" in capsys.readouterr().err
    with pytest.raises(SystemExit) as usage:
        main(["compare", a])
    assert usage.value.code == 2


def test_a_file_is_reported_in_each_form(tmp_path, capsys):
    found = record(1, {"m:f": 1.0, "m:g": 0.3, "m:h": 0.0})
    file = write(found, tmp_path / "pairs")

    def shown(*more):
        assert main(["report", file, *more]) == 0
        return capsys.readouterr().out

    text = shown()
    assert text.splitlines()[2].split()[0] == "function"
    assert [line.split()[0] for line in text.splitlines()[3:6]] == ["m:f", "m:g", "m:h"]
    assert shown("--text") == text
    table = shown("--csv").splitlines()
    assert table[0].startswith("function,calls_per_unit")
    assert len(table) == 4
    assert "| `m:g` |" in shown("--md")
    functions = json.loads(shown("--json"))["functions"]
    assert [f["shape"] for f in functions] == ["linear", "linear", "hinge"]
    page = tmp_path / "page.html"
    assert shown("--html", "-o", str(page)) == ""
    html = page.read_text("utf-8")
    assert html.startswith("<!doctype html>")
    # Forest, bars, three curves, the pairs over time.
    assert html.count("<svg") == 6
    assert html.count("<svg") == html.count("</svg>")
    assert "Headroom" in html
    assert not re.search(r"(src|href)\s*=|https?://|<script", html)


def test_a_page_without_any_answer_shows_the_pairs(tmp_path, capsys):
    file = write(record(1, {"m:f": 1.0}, pairs=6), tmp_path / "pairs")
    assert main(["report", file, "--html"]) == 0
    html = capsys.readouterr().out
    assert html.count("<svg") == 1
    assert html.count("<circle") == 6


@pytest.mark.parametrize(
    ("condition", "status", "said"),
    [
        ("criticality(m:f) > 0.5", 3, "failed: criticality(m:f) > 0.5 (m:f, 0.98 ["),
        ("criticality(m:f) < 0.5", 0, ""),
        ("criticality(m:h) < 0.5", 3, "failed"),
        ("criticality(m:*) > 0.5", 3, "failed"),
        ("criticality(m:f) > 1", 0, "not known"),
        ("criticality(m:f) > 0.97", 0, "not known"),
        ("headroom(m:f) > 0.05", 3, "failed"),
        ("headroom(m:f) > 0.9", 0, ""),
        ("headroom(m:nothing) > 0.9", 1, "no function is called m:nothing"),
    ],
)
def test_conditions_and_their_exit_statuses(tmp_path, capsys, condition, status, said):
    file = write(record(1, {"m:f": 1.0, "m:h": 0.0}), tmp_path / "pairs")
    assert main(["report", file, "--fail-if", condition]) == status
    err = capsys.readouterr().err
    assert said in err
    assert bool(said) == bool(err)


def test_the_newest_file_is_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["report"]) == 1
    assert "none of an earlier" in capsys.readouterr().err
    kept = pathlib.Path(tmp_path / "speed-bump")
    kept.mkdir()
    write(record(1, {"m:f": 1.0}), kept / "rank-1.jsonl")
    assert main(["report"]) == 0
    assert "m:f" in capsys.readouterr().out
