# SPDX-License-Identifier: MIT
"""The output during an experiment, on a terminal and without one."""

from __future__ import annotations

import fcntl
import io
import itertools
import os
import re
import struct
import sys
import termios
import threading
from collections.abc import Iterator

import experiments
import model
import numpy as np
import pytest
from speed_bump.experiment.fit.interval import Interval
from speed_bump.experiment.record import Record
from speed_bump.experiment.show import live
from speed_bump.experiment.slots.stages import Options, Stages

pytestmark = pytest.mark.one_python

COLUMNS, LINES = 80, 24


class Clock:
    """A clock that advances only when a test sets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(live.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Terminal:
    """A terminal of 80 columns; ``text()`` is everything that was written to it."""

    def __init__(self) -> None:
        self._master, slave = os.openpty()
        size = struct.pack("HHHH", LINES, COLUMNS, 0, 0)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
        self.stream = os.fdopen(slave, "w", encoding="utf-8")
        self._data = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                return
            if not data:
                return
            self._data += data

    def text(self) -> str:
        """After the end."""
        self.stream.close()
        self._reader.join()
        os.close(self._master)
        return self._data.decode()


def growing(budget_s: float) -> Iterator[tuple[Record, float]]:
    """A record after each block of an experiment."""
    draw = np.random.default_rng(1)
    run = model.Run(model.PROGRAMS["sham"](draw), "heavy", draw)
    run.undelayed(80)
    stages = Stages(Options(budget_s=budget_s), 1)
    while run.time_ns < budget_s * 1e9:
        block = stages.next_block(run.record)
        if block is None:
            return
        run.run(block, budget_s * 1e9)
        yield run.record, budget_s - run.time_ns / 1e9


def frames(shown: str) -> list[list[str]]:
    """Each state of the table, without colours."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", shown)
    return [
        part.splitlines() for part in re.split(r"(?=function +criticality)", plain)[1:]
    ]


def test_on_a_terminal_intervals_shrink_until_all_is_decided(clock: Clock) -> None:
    pytest.importorskip("rich")
    terminal = Terminal()
    watcher = live.Live(terminal.stream)
    watcher.now("waiting for the first units of work")
    watcher.event("[bold]not a colour[/bold]")
    for record, left in growing(60.0):
        clock.now += 7.0
        watcher.known(record, left)
    watcher.close()
    shown = terminal.text()
    assert "waiting for the first units of work" in shown
    assert "speed-bump: [bold]not a colour[/bold]" in shown
    found = frames(shown)
    assert len(found) > 4
    widths = []
    for lines in found:
        assert all(len(line) <= COLUMNS for line in lines), lines
        half = re.search(r"m:f2 .* ± (\d\.\d+)", "\n".join(lines))
        if half:
            widths.append(float(half[1]))
            bar = re.search(r"m:f2.*", "\n".join(lines))[0]
            assert "●" in bar
    assert widths[-1] < 0.6 * widths[0]
    assert "6 of 6 functions decided (hidden: 1, matters: 5)" in "\n".join(found[-1])
    assert re.search(r"\d+ (s|min) left", "\n".join(found[0]))
    # The cursor is shown again.
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")


def test_more_functions_than_lines_are_counted(clock: Clock) -> None:
    pytest.importorskip("rich")
    draw = np.random.default_rng(1)
    record = experiments.run_of(model.Weighted(draw, [0.0] * 40), draw, budget_s=20.0)
    terminal = Terminal()
    watcher = live.Live(terminal.stream)
    clock.now += 7.0
    watcher.known(record, 10.0)
    watcher.close()
    last = frames(terminal.text())[-1]
    assert sum(line.startswith("m:f") for line in last) < LINES
    assert any(re.match(r"\.\.\. and \d+ more", line) for line in last)


def test_without_a_terminal_there_is_a_line_every_ten_seconds(clock: Clock) -> None:
    stream = io.StringIO()
    watcher = live.Live(stream)
    begin = clock.now
    watcher.event("run 2 begins")
    for record, left in growing(60.0):
        for _ in range(6):
            clock.now += 1.0
            watcher.now("block")
        watcher.known(record, left)
    spent = clock.now - begin
    watcher.close()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "speed-bump: run 2 begins"
    assert spent / 20 <= len(lines) - 1 <= spent / 10
    assert "\x1b" not in stream.getvalue()
    assert any(re.search(r"\d of 6 functions decided", line) for line in lines)
    assert all(len(line) < 200 for line in lines)


def test_without_rich_there_are_lines(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    terminal = Terminal()
    watcher = live.Live(terminal.stream)
    for record, left in growing(20.0):
        clock.now += 11.0
        watcher.known(record, left)
    watcher.close()
    assert "functions decided" in terminal.text()


def test_beside_the_output_of_the_program_there_are_lines(clock: Clock) -> None:
    pytest.importorskip("rich")
    terminal = Terminal()
    watcher = live.Live(terminal.stream, is_plain=True)
    for record, left in growing(20.0):
        clock.now += 11.0
        watcher.known(record, left)
    watcher.close()
    shown = terminal.text()
    assert "functions decided" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(("cost_s", "span_s"), [(0.001, 100), (0.1, 100), (3.0, 600)])
def test_looking_takes_little_of_the_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, cost_s: float, span_s: float
) -> None:
    record = experiments.run("serial", budget_s=10.0)
    real, looks = live.verdict, []
    found = real(record, final=False)

    def slow(record: Record, final: bool) -> object:
        assert not final
        looks.append(clock.now)
        clock.now += cost_s
        return found

    monkeypatch.setattr(live, "verdict", slow)
    pytest.importorskip("rich")
    terminal = Terminal()
    watcher = live.Live(terminal.stream)
    begin = clock.now
    while clock.now < begin + span_s:
        clock.now += 0.9
        watcher.known(record, span_s - (clock.now - begin))
    watcher.close()
    terminal.text()
    assert len(looks) * cost_s < 0.05 * span_s
    assert all(b - a >= live.LOOK_S for a, b in itertools.pairwise(looks))
    assert len(looks) > 3


def test_the_bar_is_as_wide_as_the_interval() -> None:
    wide = live.bar(Interval(0.5, 0.0, 1.0))
    narrow = live.bar(Interval(0.5, 0.4, 0.6))
    assert len(wide) == len(narrow) == len(live.bar(None))
    assert wide.count("━") > 3 * narrow.count("━") > 0
    assert live.bar(Interval(1.0, 0.99, 1.01), True).isascii()
    # Values outside the range are drawn at its ends.
    assert len(live.bar(Interval(7.0, 5.0, 9.0))) == len(wide)
