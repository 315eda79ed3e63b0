# SPDX-License-Identifier: MIT
"""The page of an experiment in a real browser."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import browser
import experiments
import numpy as np
import pytest
import test_member
from speed_bump.experiment.account import Frame, Looks, Thread
from speed_bump.experiment.cluster import join
from speed_bump.experiment.fit.verdict import verdict
from speed_bump.experiment.record import Record
from speed_bump.experiment.show import export, html, job_page

pytestmark = pytest.mark.one_python

needs_browser = pytest.mark.skipif(
    browser.path() is None,
    reason="no Chromium is installed (build-aux/setup browser installs Debian's)",
)

LONG = "a_package.of.many.modules.and_a_very_long_name.indeed:Outer.<locals>.Inner.method"

# Elements that are wider than their container, outside the window, or empty.
CUT_OFF = """
(() => {
  const wide = %d, wrong = [];
  if (document.documentElement.scrollWidth > wide)
    wrong.push('the page scrolls sideways');
  for (const e of document.querySelectorAll('main *')) {
    const head = e.closest('thead');
    if (head && getComputedStyle(head).position === 'absolute') continue;
    const detail = e.closest('.detail');
    if (detail && !detail.offsetHeight) continue; // not shown yet
    const box = e.getBoundingClientRect();
    const what = `${e.tagName} ${e.textContent.trim().slice(0, 60)}`;
    if (box.width && (box.right > wide + 1 || box.left < -1))
      wrong.push(`${what}: from ${box.left} to ${box.right} of ${wide}`);
    if (!(e instanceof SVGElement) && e.clientWidth && e.scrollWidth > e.clientWidth + 1)
      wrong.push(`${what}: ${e.scrollWidth} in ${e.clientWidth}`);
    const svg = e instanceof SVGElement && e.tagName === 'text' && e.ownerSVGElement;
    if (svg) {
      const edge = svg.getBoundingClientRect();
      if (box.left < edge.left - 1 || box.right > edge.right + 1 ||
          box.bottom > edge.bottom + 2 || box.top < edge.top - 2)
        wrong.push(`${what}: cut by its picture`);
      if (box.height < 8) wrong.push(`${what}: ${box.height} px high`);
    }
  }
  return wrong;
})()
"""

# The contrast of text with its background, as WCAG 2 defines it.
FAINT = """
(() => {
  const light = text => {
    const parts = text.match(/[\\d.]+/g).map(Number);
    const linear = parts.slice(0, 3).map(v => v / 255).map(
      v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const behind = e => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!/rgba\\(.*, 0\\)/.test(colour)) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const wrong = [];
  const all = 'h1, h2, h3, p, li, th, td, span, text, code, a';
  for (const e of document.querySelectorAll(all)) {
    if (!e.textContent.trim()) continue;
    const style = getComputedStyle(e);
    const one = light(e.tagName === 'text' ? style.fill : style.color);
    const two = light(behind(e));
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    if (ratio < 4.5) wrong.push(`${e.tagName} ${e.textContent.slice(0, 40)}: ${ratio}`);
  }
  return wrong;
})()
"""


def with_looks(record: Record) -> Record:
    """The same with stacks, deep ones and narrow ones."""
    main = Frame("python", "__main__:main", "/a/long/path/to/a/program.py", 3)
    asleep = [Frame("c", "time.sleep"), Frame("wait", "sleep")]
    names = [Frame("python", name, "/app.py", 9) for name in NAMES[:3]]
    record.looks = Looks(
        threads=[Thread(7, 7, 1000, 10**9, 10**8, True), Thread(7, 8, 1000, 0, 0)],
        ticks=1000,
        cpu_ns=10**7,
        clock_ns=10**9,
    )
    deep = [Frame("python", f"app:level_{k}") for k in range(40)]
    for at, frames, n in (
        (0, [main, names[0], *asleep], 500),
        (0, [main, names[1]], 300),
        (0, [main, names[2], Frame("c", "json.loads")], 100),
        (0, [main, *deep], 70),
        *((0, [main, Frame("python", f"app:small_{k}")], 3) for k in range(10)),
        (1, [Frame("python", "app:pool"), Frame("wait", "lock")], 1000),
    ):
        known = record.looks.frames
        known += [f for f in frames if f not in known]
        record.looks.stacks[at, tuple(known.index(f) for f in frames)] = n
    return record


NAMES = ("app.train:step", LONG, "app.data:load", "/usr/lib/libz.so.1:deflate")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of programs of several kinds."""
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name in ("stages", "starved", "amplified", "tick"):
        record = experiments.renamed(experiments.run(name), NAMES)
        record.header["command"] = ["python3", "<script>alert(1)</script>", "&amp;" * 30]
        if name == "tick":
            # Sometimes everything takes ten times as long, for hours.
            record.slots.time_ns[::7] *= 11
            record.slots.end_ns = (np.cumsum(record.slots.time_ns) * 300).astype(np.int64)
        if name == "amplified":
            with_looks(record)
        found[name] = folder / f"{name}.html"
        found[name].write_text(html.page(record, verdict(record)), encoding="utf-8")
    # Jobs with many ranks: one with a rank that limits, confirmed, and one with too many
    # to show.
    for name, groups in (("job", ()), ("confirmed", ("2", "0-1"))):
        run = folder / name
        run.mkdir()
        test_member.job_of_four(run, late=2, groups=groups, names=("m:f0", LONG))
        found[name] = folder / f"{name}.html"
        found[name].write_text(job_page.page(join.load(str(run))), encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    with browser.running(tmp_path_factory.mktemp("profile")) as found:
        yield found


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_cut_off_and_nothing_complained_of(
    pages: dict[str, Path], window: browser.Browser, width: int, scheme: str
) -> None:
    for name, page in pages.items():
        window.open(page, width, 800, scheme)
        assert window.evaluate(CUT_OFF % width) == [], name
        assert window.evaluate("innerWidth") == width
        assert window.evaluate(FAINT) == [], name
        assert window.complaints() == [], name
        background = window.evaluate("getComputedStyle(document.body).backgroundColor")
        is_dark = max(map(int, re.findall(r"\d+", background)[:3])) < 128
        assert is_dark == (scheme == "dark")


@needs_browser
def test_the_page_says_what_the_verdict_says(
    pages: dict[str, Path], window: browser.Browser
) -> None:
    record = experiments.renamed(experiments.run("stages"), NAMES)
    found = verdict(record)
    window.open(pages["stages"], 1280, 800, "light")
    rows = window.evaluate(
        "[...document.querySelectorAll('table.cards')][0].innerText.split('\\n')"
    )
    text = "\n".join(rows)
    for finding in found.findings:
        assert finding.name.rpartition("/")[2] in text
        if finding.criticality:
            assert f"{finding.criticality.value:.2f} ± " in text
        if finding.verdict == "inconclusive":
            assert finding.reason in text
            assert finding.help in text
    # A picture of each response, of the slots and of the noise, each with a name.
    labels = window.evaluate(
        "[...document.querySelectorAll('svg[role=img]')].map(e => e.ariaLabel)"
    )
    assert len(labels) == len(found.findings) + 2
    assert all(labels)
    assert window.evaluate("document.querySelectorAll('script').length") == 0
    heads = window.evaluate(
        "[...document.querySelectorAll('table')].every(t => "
        "[...t.querySelectorAll('tbody tr')].every(r => r.cells[0].scope === 'row'))"
    )
    assert heads


@needs_browser
def test_the_page_of_a_job_says_who_waits_for_whom(
    pages: dict[str, Path], window: browser.Browser
) -> None:
    window.open(pages["confirmed"], 1280, 800, "light")
    text = " ".join(window.evaluate("document.body.innerText").split())
    assert "Rank 2 limits" in text
    assert "rank 2: of each millisecond that m:f0 is made faster there alone" in text
    (bars,) = window.evaluate(
        "[...document.querySelectorAll('svg[role=img]')].map(e => e.ariaLabel)"
    )
    waits = [float(ms) for ms in re.findall(r"waits ([\d.]+) ms", bars)]
    assert len(waits) == 3
    assert min(waits) > 5
    assert re.search(r"rank 2 works 30[\d.]* ms and waits \d+ us", bars)
    # As long as the numbers, one bar after the other.
    widths = window.evaluate(
        "[...document.querySelectorAll('figure rect')].map(e => "
        "e.getBoundingClientRect().width)"
    )
    assert widths[4] > 1.3 * widths[0]
    assert widths[1] > 10 * widths[5]
    assert window.evaluate("document.querySelectorAll('script').length") == 0


@needs_browser
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("how", ["mouse", "keys"])
def test_a_frame_shows_its_interval_and_response(
    pages: dict[str, Path], window: browser.Browser, how: str, width: int
) -> None:
    record = with_looks(experiments.renamed(experiments.run("amplified"), NAMES))
    found = {f.name: f for f in verdict(record).findings}
    window.open(pages["amplified"], width, 800, "light")
    shown = "[...document.querySelectorAll('.detail')].filter(e => e.offsetHeight)"
    assert window.evaluate(f"{shown}.length") == 0
    finding = found[NAMES[0]]
    frame = "[...document.querySelectorAll('.flame a')].find(a => a.ariaLabel."
    frame += f"startsWith('{NAMES[0]}: 50.0% of the time'))"
    assert window.evaluate(f"{frame}.classList.contains('{finding.verdict}')")
    if how == "mouse":
        x, y = window.evaluate(
            f"(() => {{ {frame}.scrollIntoView({{block: 'center'}}); const b = {frame}."
            "getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2] })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            window.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=x,
                y=y,
                button="left",
                clickCount=1,
            )
    else:
        # As the Tab key does.
        window.evaluate(f"{frame}.focus()")
        assert window.evaluate(f"document.activeElement === {frame}")
        for kind in ("keyDown", "keyUp"):
            window.call(
                "Input.dispatchKeyEvent",
                type=kind, key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13,
            )  # fmt: skip
    end = time.monotonic() + browser.PATIENCE_S
    while window.evaluate(f"{shown}.length") != 1 and time.monotonic() < end:
        time.sleep(0.05)
    assert window.evaluate(f"{shown}.length") == 1
    text = window.evaluate(f"{shown}[0].innerText")
    assert NAMES[0] in text
    assert f"{finding.verdict}: criticality" in text
    assert f"{finding.criticality.value:.2f} ± {finding.criticality.half:.2f}" in text
    assert window.evaluate(f"{shown}[0].querySelectorAll('svg.response').length") == 1
    assert window.evaluate(CUT_OFF % width) == []


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_picture_alone_can_be_looked_at(
    tmp_path: Path, window: browser.Browser, scheme: str
) -> None:
    record = with_looks(experiments.renamed(experiments.run("amplified"), NAMES))
    file = tmp_path / "unit.svg"
    file.write_bytes(export.flamegraph(record, verdict(record), str(file)))
    window.open(file, 1280, 800, scheme)
    assert window.complaints() == []
    fill = window.evaluate("getComputedStyle(document.querySelector('.paper')).fill")
    is_dark = max(map(int, re.findall(r"\d+", fill)[:3])) < 128
    assert is_dark == (scheme == "dark")
    texts = window.evaluate(
        "[...document.querySelectorAll('a')].map(a => { const r = a.querySelector("
        "'rect').getBoundingClientRect(), t = a.querySelector('text'); return t ? "
        "t.getBoundingClientRect().right - r.right : 0 })"
    )
    assert len(texts) > 40
    assert max(texts) <= 1
    window.evaluate("location.hash = document.querySelectorAll('a')[2].href.baseVal")
    shown = "[...document.querySelectorAll('.detail')].filter(e => e.getBBox().height)"
    assert window.evaluate(f"{shown}.length") == 1


def test_the_page_needs_nothing_else(pages: dict[str, Path]) -> None:
    for page in pages.values():
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"(?:src|href)=['\"](?!data:|#)", text)
        assert "url(" not in text
        assert "@import" not in text
        assert "<script>" not in text


def test_a_record_of_which_nothing_is_known_has_a_page_too() -> None:
    record = experiments.run("serial", budget_s=5.0)
    record.blocks = []
    record.slots.block[:] = -1
    record.slots.mask[:] = 0
    text = html.page(record, verdict(record))
    assert "inconclusive" in text
