# SPDX-License-Identifier: MIT
"""The manual pages agree with the header, the help texts and the interface."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Sbctl
from test_completion import commands_of, options_of, speed_bump

ROOT = Path(__file__).parent.parent.parent
HEADERS = [ROOT / "libsb/include" / f"libsb{kind}.h" for kind in ("", "-provisional")]
HEADER = "".join(header.read_text("utf-8") for header in HEADERS)
UAPI = (ROOT / "uapi/linux/speed_bump.h").read_text("utf-8")
BY_HAND = ["tools/sbctl.1", "pyext/speed-bump.1", "uapi/speed_bump.4"]


def public_functions() -> set[str]:
    return {
        name
        for declaration in re.findall(r"^SB_API [^;]*;", HEADER, re.M)
        for name in re.findall(r"\b(sb_\w+)\(", declaration)
    }


def plain(page: Path | str) -> str:
    """A page without its markup."""
    text = Path(page).read_text("utf-8") if isinstance(page, Path) else page
    text = re.sub(r"\\f[BIRP]|\\&", "", text).replace("\\-", "-")
    return re.sub(r'^\.(?:[BI]R?|RB|RI|SS|TP) |" ?| "', "", text, flags=re.M)


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of libsb, as the build generates them."""
    where = tmp_path_factory.mktemp("man3")
    subprocess.run(
        [
            *(sys.executable, ROOT / "libsb/man/pages"),
            *(*HEADERS, "1", "2026-01-01", where),
        ],
        check=True,
    )
    return where


def lint(page: Path) -> None:
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", page],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout + done.stderr == ""
    assert done.returncode == 0
    done = subprocess.run(
        ["man", "--warnings", "--local-file", page],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100", "LC_ALL": "C.UTF-8"},
    )
    assert done.stderr == ""
    assert done.returncode == 0
    subprocess.run(["lexgrog", page], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("page", BY_HAND)
def test_page_by_hand_is_well_formed(page: str) -> None:
    lint(ROOT / page)


def test_pages_of_libsb_are_well_formed(pages: Path) -> None:
    families = [p for p in pages.iterdir() if not p.read_text().startswith(".so ")]
    assert len(families) > 10
    for page in families:
        lint(page)


def test_every_function_is_in_a_page(pages: Path) -> None:
    functions = public_functions()
    assert len(functions) > 100
    seen = set()
    for name in functions:
        text = (pages / f"{name}.3").read_text()
        if text.startswith(".so "):
            text = (pages / text.split("/")[1].strip()).read_text()
        sections = dict(re.findall(r"^\.SH (.*)\n((?:(?!\.SH ).*\n)*)", text, re.M))
        assert sections.keys() >= {"NAME", "SYNOPSIS", "RETURN VALUE", "ERRORS"}, name
        for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "RETURN VALUE"):
            assert re.search(rf"\b{name}\b", sections[section]), (name, section)
        seen |= set(re.findall(r"\b(sb_\w+)\(", plain(sections["SYNOPSIS"])))
    assert seen == functions


def test_every_errno_of_the_header_is_in_errors(pages: Path) -> None:
    text = "".join(page.read_text() for page in pages.iterdir())
    documented = set(re.findall(r"^\.B (E[A-Z0-9]+)$", text, re.M))
    comments = "".join(re.findall(r"/\*\*.*?\*/\n(?=SB_API)", HEADER, re.S))
    assert set(re.findall(r"\b(E[A-Z]{3,})\b", comments)) - {"ELF"} <= documented


def test_symbol_lists_agree_with_the_header() -> None:
    exported = re.findall(r"^\t(sb_\w+);$", (ROOT / "libsb/libsb.map").read_text(), re.M)
    packaged = re.findall(
        r"^ (sb_\w+)@", (ROOT / "debian/libsb1.symbols").read_text(), re.M
    )
    assert set(exported) == public_functions(), "libsb/libsb.map"
    assert set(packaged) == public_functions(), (
        "debian/libsb1.symbols: a line ' NAME@NODE VERSION' for each"
    )


def sections_of_commands(page: Path, program: str) -> dict[str, str]:
    """The section of each command of a program, by its name."""
    parts = re.split(r"^\.S[SH] ", page.read_text("utf-8"), flags=re.M)
    found = {}
    for part in parts:
        heading = plain(part.partition("\n")[0])
        for name in re.findall(rf"\b{program} ([a-z]+)", heading):
            found[name] = part
    return found


def options_in(section: str) -> set[str]:
    """The options that are tags of a section."""
    heads = re.findall(r"^\.TP\n(\.B.*|-.*)$", section, re.M)
    return {
        o
        for head in heads
        for o in re.findall(r"(?:^| )(--?[A-Za-z][a-z-]*)", plain(head))
    }


def test_sbctl(sbctl: Sbctl) -> None:
    sections = sections_of_commands(ROOT / "tools/sbctl.1", "sbctl")
    assert set(sections) == commands_of(sbctl("--help").stdout)
    for command, section in sections.items():
        offered = options_of(sbctl(command, "--help").stdout) - {"-h", "--help"}
        assert options_in(section) == offered, command


def test_speed_bump() -> None:
    sections = sections_of_commands(ROOT / "pyext/speed-bump.1", "speed-bump")
    assert set(sections) == commands_of(speed_bump())
    for command, section in sections.items():
        offered = options_of(speed_bump(command)) - {"-h", "--help"}
        assert options_in(section) == offered, command


def test_device() -> None:
    page = plain(ROOT / "uapi/speed_bump.4")
    words = re.compile(
        r"\bSPEED_BUMP_(?:IOC|FEATURE|SCOPE|TARGET|UPDATE|BATCH|LIST|SESSION_SET|GLOBAL_SET"
        r"|MAX)_[A-Z_]+\b(?!\*)"
    )
    names = {
        name
        for name in re.findall(r"^#define (SPEED_BUMP_\w+)", UAPI, re.M)
        if words.fullmatch(name)
        and "_SIZE_VER" not in name
        and not name.endswith("_MAGIC")
    }
    assert len(names) > 40
    assert set(words.findall(page)) == names
    assert set(re.findall(r"\b(E[A-Z0-9]{3,})\b", UAPI)) <= set(
        re.findall(r"^(E[A-Z0-9]+)$", page, re.M)
    )
    parameters = re.findall(
        r"MODULE_PARM_DESC\((\w+)", (ROOT / "driver/main.c").read_text()
    )
    assert parameters
    assert all(re.search(rf"^{name}$", page, re.M) for name in parameters)
    files = re.findall(
        r"^\| `(\w+)` \| 0", (ROOT / "docs/reference/interface.md").read_text(), re.M
    )
    sysfs = (ROOT / "driver/sysfs.c").read_text() + (
        ROOT / "driver/listing.c"
    ).read_text()
    assert len(files) == 5
    for name in files:
        assert re.search(rf"^{name} \(0", page, re.M), name
        assert re.search(rf"\b{name}\b", sysfs), name


def test_the_register_is_described_as_a_whole() -> None:
    """docs/reference/interface.md describes all of it, with the limits of control.c."""
    text = (ROOT / "docs/reference/interface.md").read_text("utf-8")
    names = {name for name in public_functions() if name.startswith("sb_control_")}
    names |= {"sb_site_table_show", "sb_site_table_hide"}
    assert len(names) > 20
    assert set(re.findall(r"`(sb_control_\w+|sb_site_table_\w+)\(\)`", text)) == names
    control = (ROOT / "libsb/src/control/control.c").read_text("utf-8")
    bounds = {
        name: int(number)
        for name, number in re.findall(
            r"^#define (MAX_\w+)\s+(?:\(UINT64_C\()?(\d+)", control, re.M
        )
    }
    flat = re.sub(r"\s+", " ", text)
    assert (
        f"From one process it reads at most {bounds['MAX_SHOWN_BY_ONE']} tables, "
        f"{bounds['MAX_READ_OF_ONE']} MB of their memory and "
        f"{bounds['MAX_KEPT_OF_ONE']} MB of functions; "
        f"from all processes together at most {bounds['MAX_SHOWN']:,} "
        f"tables, {bounds['MAX_READ'] // 1024} GB and {bounds['MAX_KEPT']} MB"
    ) in flat
