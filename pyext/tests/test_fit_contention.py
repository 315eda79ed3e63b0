# SPDX-License-Identifier: MIT
# ruff: noqa: E402
"""Verdicts on a machine that others use: what would a CPU of its own change?"""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")

import model
from speed_bump.experiment.fit.verdict import verdict
from speed_bump.experiment.record import Machine
from speed_bump.experiment.show import text
from test_fit_effects import recorded
from test_fit_verdict import sound

pytestmark = pytest.mark.one_python


def test_own_shares_tell_where_the_mean_one_is_that_of_others():
    """A program that mostly sleeps waits for a CPU, but its delays do not."""
    run = recorded(model.sham, "heavy", 2)
    record, slots = run.record, run.record.slots
    record.machine = Machine(share=0.2, threads=0.4, cpus=2)
    slots.cpu_ns, slots.wait_ns = 0.1 * slots.time_ns, 0.01 * slots.time_ns
    record.shares = dict.fromkeys(run.names, 0.98)
    labels = [finding.verdict for finding in sound(verdict(record)).findings]
    assert labels[0] == "matters" and labels[1] == "hidden"


class Late(model.Shared):
    """0 is in the thread that reports, 0.4 of a unit; 1 is a device that takes all of it.

    With a fifth of a CPU, the thread is later than the device.
    """

    def __init__(self, draw, share):
        super().__init__(draw, 0)
        self.functions, self.share = 2, share
        self.c = [0.0, 1.0]

    def slot(self, d, b):
        main, device = 0.4 * b + float(d[0]), b + float(d[1])
        took = max(main / self.share, device)
        self.cpu.append(main)
        self.wait.append(main / self.share - main)
        self.shares.append(self.share)
        return took


def test_a_thread_that_others_made_late_is_no_bottleneck():
    for seed in range(3):
        run, found = model.experiment(lambda draw: Late(draw, 0.2), "quiet", seed)
        run.record.shares = dict.fromkeys(run.names, 0.2)
        found = sound(verdict(run.record))
        assert "matters" not in {finding.verdict for finding in found.findings}
        assert "late" in found.findings[0].reason
        # As long as it is late, it is the bottleneck.
        assert [f.while_busy for f in found.findings] == ["matters", ""]
        shown = " ".join(text.text(run.record, found).split())
        assert "matters while busy" in shown
        assert "As long as the machine is this busy, look first at m:f0" in shown
        told = text.as_json(run.record, found)["findings"]
        assert {f["verdict"] for f in told} <= {"inconclusive", "hidden"}
        assert told[0]["verdict_while_busy"] == "matters"


class Hurried(model.Shared):
    """0 is in the thread that reports, half a unit. In most slots others use its CPU.

    It waits for a device that takes a unit and works meanwhile, or it sleeps after 0.
    """

    def __init__(self, draw, hides):
        super().__init__(draw, 0)
        self.functions, self.hides = 2, hides
        self.c = [0.0, 1.0] if hides else [1.0, 0.0]

    def slot(self, d, b):
        share = 0.35 if self.draw.random() < 0.7 else 1.0
        main = 0.5 * b + float(d[0])
        self.cpu.append(main)
        self.wait.append(main / share - main)
        self.shares.append(share)
        if self.hides:
            return max(main / share, 1.0 + float(d[1]))
        return main / share + 0.5 * b


def test_a_thread_that_is_late_now_and_then_is_no_bottleneck():
    """It has 40% of a CPU; with a whole CPU it would wait for something else."""
    for seed in range(3):
        run = recorded(lambda draw: Hurried(draw, True), "quiet", seed)
        run.record.shares = {"m:f0": 0.4, "m:f1": 1.0}
        found = sound(verdict(run.record))
        assert found.findings[0].verdict not in ("matters", "partly")


def test_a_thread_that_is_blocked_as_long_is_not_late():
    """40% of a CPU alone proves nothing: with a whole CPU it sleeps as long."""
    for seed in range(3):
        run = recorded(lambda draw: Hurried(draw, False), "quiet", seed)
        run.record.shares = dict.fromkeys(run.names, 0.4)
        labels = [f.verdict for f in sound(verdict(run.record)).findings]
        assert labels[0] == "matters"


class Displaced(model.Shared):
    """0 is in the thread that reports, 0.4 of a unit; 1 is what it waits for, 1.2.

    In a delay it gets 0.4 of a CPU, and it waits less for a CPU elsewhere.
    """

    def __init__(self, draw):
        super().__init__(draw, 0)
        self.functions = 2
        self.c = [0.0, 1.0]

    def slot(self, d, b):
        main, wait = 0.4 * b + float(d[0]), 0.3 + 0.3 * float(d[0])
        self.cpu.append(main)
        self.wait.append(wait)
        self.shares.append(0.6)
        return max(main + wait, 1.2 * b + float(d[1]))


def test_a_delay_that_displaces_waits_for_a_cpu_is_not_partly_hidden():
    """As of two processes with a lock: hidden by a CPU of its own."""
    for seed in range(3):
        run = recorded(Displaced, "quiet", seed)
        run.record.shares = {"m:f0": 0.4, "m:f1": 1.0}
        first, second = sound(verdict(run.record)).findings
        assert first.verdict in ("inconclusive", "hidden")
        assert first.criticality.low < 0.1
        assert "if it waited for a CPU in its delays only" in first.reason
        assert second.verdict == "matters"


def test_slack_that_a_small_share_of_a_cpu_uses_up():
    """A delay of 0.3 takes 1.5 of wall time; beyond the slack that says little."""
    for seed in range(3):
        run = recorded(model.sham, "heavy", seed)
        record, slots = run.record, run.record.slots
        record.machine = Machine(share=0.2, threads=1.5, cpus=2)
        slots.time_ns = slots.time_ns + 4 * slots.delivered_ns[:, 0]
        slots.cpu_ns = np.full(len(slots), 0.1 * run.unit_ns)
        slots.wait_ns = np.zeros(len(slots))
        record.shares = dict.fromkeys(run.names, 0.2)
        first = sound(verdict(record)).findings[0]
        assert first.verdict == "inconclusive" and "CPU that it had" in first.reason
        assert first.criticality.low == 0 and first.criticality.high >= 1
