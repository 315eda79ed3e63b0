# SPDX-License-Identifier: MIT
"""The account of a unit's time: what is waited for, and how that affects the answer."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import experiments
import pytest
import ranking
import schemas
from speed_bump.experiment import archive
from speed_bump.experiment.account import (
    MACHINE,
    PYTHON,
    WAIT,
    C,
    Frame,
    Looks,
    Others,
    Thread,
    account,
    inside,
    together,
)
from speed_bump.experiment.fit.verdict import verdict
from speed_bump.experiment.record import Record
from speed_bump.experiment.show import export, flame, text
from speed_bump.experiment.show.encode import dumps

pytestmark = pytest.mark.one_python

MAIN = Frame(PYTHON, "__main__:main", "/app.py", 3)
DEVICE = Frame(PYTHON, "m:device", "/m.py", 7)
SLEEP = Frame(C, "time.sleep")
ASLEEP = Frame(WAIT, "sleep")
PARSE = Frame(PYTHON, "m:parse", "/m.py", 20)
LOADS = Frame(C, "json.loads")
FIND = Frame(PYTHON, "importlib._bootstrap:_find_and_load", "<frozen importlib>", 1)
POOL = Frame(PYTHON, "concurrent.futures.thread:_worker", "/t.py", 1)
LOCK = Frame(WAIT, "lock")


def looks_of(*rows: tuple[int, list[Frame], int]) -> Looks:
    """Two threads: 0 reports units, and half of its time it waits for a CPU."""
    found = Looks(threads=[Thread(10, 10, 0, 5, 5), Thread(10, 11, 0, 1, 0)])
    for at, frames, n in rows:
        for frame in frames:
            if frame not in found.frames:
                found.frames.append(frame)
        found.stacks[at, tuple(found.frames.index(f) for f in frames)] = n
        found.threads[at].looks += n
    found.ticks, found.cpu_ns, found.clock_ns = 100, 10**7, 10**9
    found.mark({10}, 10)
    return found


WAITING = looks_of(
    (0, [MAIN, DEVICE, SLEEP, ASLEEP], 90),
    (0, [MAIN, PARSE, LOADS], 4),
    (0, [MAIN], 2),
    (0, [MAIN, FIND, FIND], 4),
    (1, [POOL, LOCK], 100),
)


def test_all_of_the_time_is_in_the_account_and_that_of_others_is_not() -> None:
    found = account(WAITING, {"m:device", "m:parse"})
    assert found
    assert sum(row.share for row in found.rows) == pytest.approx(1)
    shares = {row.what: row.share for row in found.rows}
    assert shares == pytest.approx(
        {
            "sleep": 0.9,
            "a CPU": 0.05,
            "functions above": 0.02,
            "import": 0.02,
            "other functions": 0.01,
        }
    )
    assert found.rows[0].parts == (("time.sleep, called from m:device", 0.9),)
    assert found.own["m:device"].asleep == 0.9
    assert found.own["m:parse"].cpu == 0.04
    assert found.threads == 1
    assert found.others == [Others("concurrent.futures.thread:_worker", 1, 0.0, "lock")]


def test_the_thread_that_serves_the_tool_is_not_the_programs() -> None:
    serving = Frame(PYTHON, "speed_bump.link.visit:_serve", "/visit.py", 1)
    inner = Frame(PYTHON, "speed_bump.link.visit:_converse", "/visit.py", 9)
    found = account(
        looks_of((0, [MAIN], 10), (1, [serving, inner, LOCK], 100)), {"m:device"}
    )
    assert found
    assert found.others == []


def test_a_function_of_c_is_asked_by_its_own_name() -> None:
    found = account(WAITING, {"json:loads", "time:sleep"})
    assert found
    assert found.own["json:loads"].cpu == 0.04
    assert found.own["time:sleep"].asleep == 0.9


def test_the_threads_that_report_units_are_the_unit() -> None:
    looks = looks_of((0, [MAIN], 1), (1, [POOL], 1))
    looks.mark({11}, 10)
    assert [t.reports for t in looks.threads] == [False, True]
    # By default, units belong to the main thread of the program.
    looks.mark(set(), 10)
    assert [t.reports for t in looks.threads] == [True, False]
    looks.mark(set(), 9)
    assert [t.reports for t in looks.threads] == [True, False]


@pytest.mark.parametrize("ended, all_report", [(20, True), (2, False)])
def test_all_threads_that_are_for_one_request_each_report_units(
    ended: int, all_report: bool
) -> None:
    """With slots of several units most of them end none; a few threads are a pool."""
    serve = Frame(PYTHON, "socketserver:ThreadingMixIn.process_request_thread", "/s.py")
    looks = Looks(threads=[Thread(9, 10 + k, 1, 1, 0) for k in range(41)])
    looks.frames = [serve, POOL, MAIN]
    looks.stacks = {(k, (0, 2)): 1 for k in range(40)} | {(40, (1, 2)): 1}
    looks.mark(range(10, 10 + ended), 9)
    reports = [t.reports for t in looks.threads]
    assert reports == [all_report or k < ended for k in range(40)] + [False]


def test_a_shell_that_starts_python_is_not_the_program() -> None:
    """It only waits for the processes, also where its native frames are known."""
    shell, wait = Frame(MACHINE, "sh:main", "/bin/sh"), Frame(WAIT, "child process")
    looks = Looks(threads=[Thread(pid, pid, 1, 1, 0) for pid in (9, 10, 12, 14)])
    looks.frames = [shell, wait, MAIN]
    looks.stacks = {(0, (0, 1)): 9, (1, (2,)): 1, (2, (2,)): 1, (3, (2,)): 1}
    looks.mark(set(), 9, {10, 14})
    assert [t.reports for t in looks.threads] == [False, True, False, True]
    looks.mark(set(), 9)
    assert [t.reports for t in looks.threads] == [False, True, False, False]
    looks.mark(set(), 12, {10, 14})
    assert [t.reports for t in looks.threads] == [False, False, True, False]


def test_runs_are_put_together() -> None:
    one, two = looks_of((0, [MAIN], 3)), looks_of((0, [PARSE, MAIN], 4))
    both = together([one, two])
    named = {
        (at, tuple(both.frames[f] for f in row)): n
        for (at, row), n in both.stacks.items()
    }
    assert named == {(0, (MAIN,)): 3, (2, (PARSE, MAIN)): 4}
    assert both.ticks == 200
    assert [t.reports for t in both.threads] == [True, False, True, False]


def machine(symbol: str) -> Frame:
    return Frame(MACHINE, f"lib.so:{symbol}", "/lib.so", 0, symbol)


OUTER, HOT, LEAF, TWO = map(machine, ("outer", "hot", "leaf", "two"))
BELOW = (
    (0, [MAIN, OUTER], 20),
    (0, [MAIN, OUTER, HOT], 30),
    # What it calls, and is in no table, is its own time.
    (0, [MAIN, OUTER, HOT, LEAF], 10),
    (0, [MAIN, OUTER, TWO], 15),
    (0, [MAIN, PARSE, TWO], 15),
    (0, [MAIN, PARSE, ASLEEP], 5),
    (0, [MAIN, TWO, OUTER], 5),
)


def test_a_function_that_was_not_measured_has_the_answer_of_what_calls_it() -> None:
    looks = looks_of(*BELOW, (1, [POOL, HOT], 50))
    asked, others = {"/lib.so:outer", "m:parse"}, {"/lib.so:hot", "/lib.so:two"}
    (one,) = inside(looks, asked, others)
    assert (one.name, one.of) == ("/lib.so:hot", "/lib.so:outer")
    assert one.share == pytest.approx(0.4)
    assert not inside(looks, asked, ())
    assert not inside(None, asked, others)
    # Eight threads that do units have eight times the time, like self times.
    many = Looks(threads=[Thread(10, 10 + at, 1, 5, 5, True) for at in range(8)])
    many.frames = looks.frames
    for (at, row), n in looks.stacks.items():
        if not at:
            many.stacks |= {(k, row): n for k in range(8)}
    many.ticks = looks.ticks
    (one,) = inside(many, asked, others)
    assert one.share == pytest.approx(8 * 0.4)
    # Where its thread waits for a CPU, this is divided among what it computes, or is no
    # time of a function.
    queued = looks_of(*BELOW, (0, [MAIN, OUTER, Frame(WAIT, "a CPU")], 95))
    (one,) = inside(queued, asked, others)
    assert one.share == pytest.approx(2 * 0.4)
    (one,) = inside(queued, asked, others, given=0.8)
    assert one.share == pytest.approx(0.4 / 0.8)


def test_a_caller_that_waits_answers_for_nothing_that_it_calls() -> None:
    """A wait between the beginning of its call and that of the other may hide a delay."""
    asked, others = {"/lib.so:outer", "m:parse"}, {"/lib.so:hot"}
    waits = looks_of(*BELOW, (0, [MAIN, OUTER, ASLEEP], 5))
    assert not inside(waits, asked, others)


def test_native_functions_with_long_names_are_shown_without_their_types() -> None:
    """Instances of a template of C++ that call each other are one name."""
    types = "at::Tensor const&, c10::Scalar const&"
    first, second = (
        machine(f"at::impl::call<at::Tensor, {n}, ({types})>::call({types})")
        for n in "12"
    )
    record = experiments.renamed(experiments.run("serial"), ["m:parse", "m:main"])
    record.looks = looks_of(
        (0, [MAIN, first, second], 30), (0, [MAIN, first, second, machine("hot")], 20)
    )
    said = " ".join(text.text(record, verdict(record)).split())
    assert (
        "what they call: 100.0% lib.so:at::impl::call<...>::call, 40.0% lib.so:hot;"
        in said
    )


def test_the_report_says_what_was_not_delayed_and_can_gain_the_most() -> None:
    record = experiments.renamed(experiments.run("serial"), ["/lib.so:outer", "m:parse"])
    record.looks = looks_of(*BELOW)
    found = verdict(record)
    assert "not delayed" not in text.text(record, found)
    why = "called 1,000,000 times a second"
    record.header["found"] = {"native_left_out": {"/lib.so:hot": why}}
    said = " ".join(text.text(record, found).split())
    assert f"lib.so:hot: not delayed ({why}): 40.0% of the time, in calls from" in said
    gain = re.search(r"at most ([\d.]+)% to gain", said)
    assert gain and 35 < float(gain[1]) < 45
    assert "Look first at lib.so:hot (called by lib.so:outer, matters" in said
    inside_of = [
        {
            "function": "/lib.so:hot",
            "self_share": pytest.approx(0.4),
            "of": "/lib.so:outer",
        }
    ]
    numbers = schemas.read("report", dumps(text.as_json(record, found)))["account"]
    assert numbers["inside"] == inside_of
    # That nothing is worth it would be wrong.
    record.looks = looks_of(*BELOW, (0, [MAIN, SLEEP, ASLEEP], 120))
    assert "Nothing here" not in last_of(record)


def serial(looks: Looks) -> Record:
    """A record with functions that matter, with stacks."""
    record = experiments.renamed(experiments.run("serial"), ["m:device", "m:parse"])
    record.looks = looks
    return record


def last_of(record: Record) -> str:
    shown = text.text(record, verdict(record), width=80)
    return " ".join(shown.split("\n\n")[-1].split())


def test_nothing_is_worth_optimising_where_all_is_waiting() -> None:
    record = serial(WAITING)
    # The gain of faster code is limited to the part of self time that is not sleep.
    for own in record.self_times.values():
        own.share = 0.9
    for name in set(record.self_times) - {"m:device"}:
        record.self_times[name].share = 0.02
    last = last_of(record)
    assert last.startswith(
        "Nothing here is worth optimising: 90% of a unit is waiting (sleep), in "
        "time.sleep, called from m:device, and faster code gains at most "
    ), last
    assert last.count(".  ") == 0
    assert last.endswith(".")


def test_a_function_that_waits_is_told_from_one_that_computes() -> None:
    waits = looks_of((0, [MAIN, DEVICE, SLEEP, ASLEEP], 30), (0, [MAIN, PARSE], 70))
    record = serial(waits)
    for name, own in record.self_times.items():
        own.share = 0.6 if name == "m:device" else 0.1
    last = last_of(record)
    assert last.startswith("Look first at m:device (matters")
    assert "100% of its own time is waiting in time.sleep" in last
    assert "a shorter wait gains at most" in last
    record.looks = looks_of((0, [MAIN, DEVICE], 30), (0, [MAIN, PARSE], 70))
    assert "making it faster gains at most" in last_of(record)


def test_the_report_has_the_account(tmp_path: Path) -> None:
    record = serial(WAITING)
    found = verdict(record)
    shown = text.text(record, found, width=80)
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(
        r"^waiting: sleep +90\.0%  time\.sleep, called from m:dev", shown, re.M
    )
    assert "from 100 samples" in shown
    assert "concurrent.futures.thread:_worker (waiting: lock)" in " ".join(shown.split())
    assert "| waiting: sleep | 90.0% |" in text.markdown(record, found)
    numbers = schemas.read("report", dumps(text.as_json(record, found)))["account"]
    assert sum(row["share"] for row in numbers["rows"]) == pytest.approx(1)
    json.dumps(numbers, allow_nan=False)
    path = str(tmp_path / "record")
    archive.save(record, path)
    assert text.text(archive.load(path), found, width=80) == shown
    record.looks = None
    archive.save(record, path)
    assert archive.load(path).looks is None
    assert text.as_json(record, found)["account"] is None
    assert "waiting:" not in text.text(record, found)


# ------------------------------------------------------------------------ the picture


def test_colours_are_those_of_the_function_that_the_time_is_part_of() -> None:
    record = serial(WAITING)
    drawn = flame.flame(record, verdict(record))
    assert drawn
    by_name = {box.node.frame.name: box for box in flame.boxes(drawn)}
    kinds = {name: drawn.verdict(box.node) for name, box in by_name.items()}
    assert kinds["m:device"] == kinds["time.sleep"] == kinds["sleep"] == "matters"
    assert kinds["__main__:main"] == "unasked"
    assert by_name["m:device"].width == by_name["sleep"].width == 0.9
    assert by_name["sleep"].row == 4
    assert by_name["sleep"].node.asleep
    assert by_name["m:device"].node.asleep
    assert not by_name["m:parse"].node.asleep
    assert "lock" not in by_name
    # No frame is wider than the frame below it, and frames do not overlap.
    boxes = flame.boxes(drawn)
    for box in boxes:
        inside = [
            b for b in boxes
            if b.row == box.row + 1 and box.left - 1e-9 <= b.left < box.left + box.width
        ]  # fmt: skip
        assert sum(b.width for b in inside) <= box.width + 1e-9


def test_the_picture_alone_is_xml_with_words_for_each_frame() -> None:
    record = serial(WAITING)
    data = export.flamegraph(record, verdict(record), "x.svg")
    root = ElementTree.fromstring(data)
    space = "{http://www.w3.org/2000/svg}"
    titles = [a.findtext(f"{space}title") for a in root.iter(f"{space}a")]
    assert any(t and t.startswith("m:device: 90.0% of the time") for t in titles)
    assert any("matters as part of m:device" in (t or "") for t in titles)
    ids = {e.get("id") for e in root.iter()}
    assert all((a.get("href") or "")[1:] in ids for a in root.iter(f"{space}a"))


def test_speedscope_has_what_its_format_asks_for() -> None:
    record = serial(WAITING)
    found = json.loads(export.flamegraph(record, verdict(record), "x.json"))
    assert found["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = found["shared"]["frames"]
    unit, other = found["profiles"]
    for profile in (unit, other):
        assert profile["type"] == "sampled"
        assert len(profile["samples"]) == len(profile["weights"])
        assert sum(profile["weights"]) == pytest.approx(profile["endValue"])
        assert all(0 <= f < len(frames) for row in profile["samples"] for f in row)
    stacks = {
        tuple(frames[f]["name"] for f in row): weight / unit["endValue"]
        for row, weight in zip(unit["samples"], unit["weights"], strict=True)
    }
    whole = ("__main__:main", "m:device", "time.sleep()", "asleep: sleep")
    assert stacks[whole] == pytest.approx(0.9)
    assert {"name": "m:device", "file": "/m.py", "line": 7} in frames


def fields(data: bytes) -> dict[int, list[Any]]:
    """A message of protocol buffers: the values of each field, by the wire format."""
    found: dict[int, list[Any]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        value: Any
        if key & 7 == 0:
            value = varint()
        else:
            assert key & 7 == 2
            size = varint()
            value, at = data[at : at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


def numbers(data: bytes) -> list[int]:
    # Each is the only field of a message.
    out, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            out.append(value)
            value = shift = 0
    return out


def test_pprof_has_what_its_format_asks_for() -> None:
    record = serial(WAITING)
    found = verdict(record)
    whole = fields(gzip.decompress(export.flamegraph(record, found, "x.pb.gz")))
    strings = [part.decode() for part in whole[6]]
    assert strings[0] == ""
    kind = fields(whole[1][0])
    assert strings[kind[1][0]], strings[kind[2][0]] == ("time of a unit", "nanoseconds")
    functions = {}
    for part in map(fields, whole[5]):
        functions[part[1][0]] = (strings[part[2][0]], strings[part.get(4, [0])[0]])
    places = {}
    for part in map(fields, whole[4]):
        places[part[1][0]] = functions[fields(part[4][0])[1][0]]
    assert 0 not in places
    unit_ns = text.unit_ns(record, found)
    seen = {}
    for part in map(fields, whole[2]):
        names = tuple(places[k][0] for k in numbers(part[1][0]))
        labels = {
            strings[label[1][0]]: strings[label[2][0]] for label in map(fields, part[3])
        }
        seen[names] = (numbers(part[2][0])[0] / unit_ns, labels)
    # The innermost frame comes first.
    share, labels = seen["asleep: sleep", "time.sleep()", "m:device", "__main__:main"]
    assert share == pytest.approx(0.9, rel=1e-3)
    assert labels == {"thread": "a unit of work", "verdict": "matters"}
    assert seen["asleep: lock", POOL.name][1]["thread"] == "thread 11"
    assert ("m:device", "/m.py") in functions.values()


def test_a_record_without_stacks_has_no_picture(tmp_path: Path) -> None:
    record = experiments.run("serial", budget_s=5)
    with pytest.raises(export.ExportError, match="no stacks"):
        export.flamegraph(record, verdict(record), "x.svg")
    path = str(tmp_path / "record")
    archive.save(record, path)
    done = ranking.speed_bump("report", path, "--flamegraph", str(tmp_path / "x.svg"))
    assert done.returncode == 1
    assert "no stacks" in done.stderr
    assert not (tmp_path / "x.svg").exists()
    done = ranking.speed_bump("report", path, "--flamegraph", str(tmp_path / "x.png"))
    assert done.returncode == 2
    assert ".svg, .json (speedscope) or .pb.gz (pprof)" in done.stderr


# ------------------------------------------------------------------- a real program

PROGRAM = """
import threading, time
def device():
    time.sleep(0.02)
def note(n):
    return sum(range(n))
idle = threading.Event()
threading.Thread(target=idle.wait, daemon=True).start()
while True:
    device()
    note(2000)
"""


@pytest.mark.timed
def test_a_program_that_waits_for_its_device_is_told_so(tmp_path: Path) -> None:
    """The issue's example: nothing is worth optimising, all time is in time.sleep."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    svg = tmp_path / "unit.svg"

    def fits(ranked: ranking.Ranked) -> bool:
        return ranked.result["advice"].startswith("Nothing here is worth optimising")

    ranked = ranking.Ranked(
        tmp_path,
        ranking.python("__main__:device", "__main__:note"),
        [sys.executable, str(path)],
        *("--progress", "__main__:note", "--flamegraph", str(svg)),
        fits=fits,
    )
    advice, found = ranked.result["advice"], ranked.result["account"]
    assert re.search(
        r"(9\d|100)% of a unit is waiting \(sleep\), in time\.sleep, called from "
        r"__main__:device, and faster code gains at most",
        advice,
    ), advice
    assert found["rows"][0]["what"] == "sleep"
    assert found["functions"]["__main__:device"]["asleep"] > 0.8
    assert found["threads"] == 1
    others = [(o["function"], o["awake"] < 0.1) for o in found["other_threads"]]
    assert others == [("threading:Event.wait", True)]
    assert sum(row["share"] for row in found["rows"]) == pytest.approx(1)
    assert "samples of the stacks while" in " ".join(ranked.done.stdout.split())
    assert b"asleep: sleep" in svg.read_bytes()
    # The same, later, from the file.
    for name in ("again.svg", "again.json", "again.pb.gz"):
        done = ranking.speed_bump(
            "report", str(ranked.output), "--flamegraph", str(tmp_path / name)
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "again.svg").read_bytes() == svg.read_bytes()
    done = ranking.speed_bump("compare", str(ranked.output), str(ranked.output))
    assert done.returncode == 0, done.stderr
    protoc = subprocess.run(
        ["sh", "-c", "command -v protoc"], capture_output=True, check=False
    )
    if protoc.returncode == 0:
        data = gzip.decompress((tmp_path / "again.pb.gz").read_bytes())
        subprocess.run(["protoc", "--decode_raw"], input=data, check=True)
