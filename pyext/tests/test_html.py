# SPDX-License-Identifier: MIT
"""The page of an experiment, looked at by a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import browser
import experiments
import numpy as np
import pytest
from speed_bump.experiment.fit.verdict import verdict
from speed_bump.experiment.show import html

pytestmark = pytest.mark.one_python

needs_browser = pytest.mark.skipif(
    browser.path() is None,
    reason="no Chromium is installed (build-aux/setup browser installs Debian's)",
)

LONG = "a_package.of.many.modules.and_a_very_long_name.indeed:Outer.<locals>.Inner.method"

# What is wider than what holds it, outside of the window, or nothing at all.
CUT_OFF = """
(() => {
  const wide = %d, wrong = [];
  if (document.documentElement.scrollWidth > wide)
    wrong.push('the page scrolls sideways');
  for (const e of document.querySelectorAll('main *')) {
    const head = e.closest('thead');
    if (head && getComputedStyle(head).position === 'absolute') continue;
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

# The contrast of text with what is behind it, as WCAG 2 counts it.
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
  const all = 'h1, h2, h3, p, li, th, td, span, text, code';
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
            # Now and again all of it takes ten times as long, for hours.
            record.slots.time_ns[::7] *= 11
            record.slots.end_ns = (np.cumsum(record.slots.time_ns) * 300).astype(np.int64)
        found[name] = folder / f"{name}.html"
        found[name].write_text(html.page(record, verdict(record)), encoding="utf-8")
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
    # A picture of each response, of the slots and of the noise, and each has a name.
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


def test_the_page_needs_nothing_else(pages: dict[str, Path]) -> None:
    for page in pages.values():
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"(?:src|href)=['\"](?!data:)", text)
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
