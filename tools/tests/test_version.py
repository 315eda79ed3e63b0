# SPDX-License-Identifier: MIT
"""meson.build has the version; what names it elsewhere agrees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def found(path: str, pattern: str) -> list[str]:
    """What the pattern's group matches in a file."""
    return re.findall(pattern, (ROOT / path).read_text("utf-8"), re.M)


(VERSION,) = found("meson.build", r"^  version: '(.*)',")
# Debian sorts what begins with "~" before what ends there.
DEBIAN_VERSION = re.sub(r"(?=rc\d+$)", "~", VERSION)


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("dkms.conf", r'^PACKAGE_VERSION="(.*)"'),
        ("driver/main.c", r'^MODULE_VERSION\("(.*)"\);'),
        ("pyext/speed_bump/__init__.py", r'^__version__ = "(.*)"'),
        ("CITATION.cff", r"^version: (.*)"),
    ],
)
def test_named_once(path: str, pattern: str) -> None:
    assert found(path, pattern) == [VERSION]


def test_newest_in_changelog() -> None:
    versions = found("docs/changelog.md", r"^## \[(\d.*)\] - ")
    assert versions[0] == VERSION
    dates = found("docs/changelog.md", r"^## \[\d.*\] - (.*)")
    assert found("CITATION.cff", r'^date-released: "(.*)"') == dates[:1]


def test_debian() -> None:
    versions = found("debian/changelog", r"^speed-bump \((.*)\) ")
    assert versions[0] == DEBIAN_VERSION
    symbols = found("debian/libsb1.symbols", r"^ \S+@\S+ (.*)")
    assert len(symbols) > 100
    assert set(symbols) <= set(versions), "a symbol of a version that never was"


def test_documents() -> None:
    """The directories and names that DKMS has."""
    pattern = r"\bspeed-bump[-/](\d[\w.~+]*)"
    named = {
        str(path.relative_to(ROOT)): set(versions)
        for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        if (versions := found(str(path.relative_to(ROOT)), pattern))
    }
    assert named.keys() >= {"docs/how-to/install.md", "docs/how-to/secure-boot.md"}
    assert all(versions == {VERSION} for versions in named.values()), named
