# SPDX-License-Identifier: MIT
"""What bash, zsh and fish complete for sbctl and speed-bump."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Sbctl, line_of, lines_program

ROOT = Path(__file__).parent.parent.parent
FILES = {
    ("sbctl", "bash"): ROOT / "tools/completion/sbctl.bash",
    ("sbctl", "zsh"): ROOT / "tools/completion/_sbctl",
    ("sbctl", "fish"): ROOT / "tools/completion/sbctl.fish",
    ("speed-bump", "bash"): ROOT / "pyext/completion/speed-bump.bash",
    ("speed-bump", "zsh"): ROOT / "pyext/completion/_speed-bump",
    ("speed-bump", "fish"): ROOT / "pyext/completion/speed-bump.fish",
}
BASH = """
    . "$1"
    compopt() { :; }
    COMP_LINE=$2 COMP_POINT=${#2} COMP_WORDBREAKS=$' \\t\\n:='
    read -ra COMP_WORDS <<<"$2"
    [[ $2 == *' ' ]] && COMP_WORDS+=('')
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    $3
    printf '%s\\n' "${COMPREPLY[@]}"
"""
# The functions of zsh that show completions are replaced by ones that print here.
ZSH = """
    emulate -R zsh
    setopt extendedglob
    words=(${(z)2})
    [[ $2 == *' ' ]] && words+=('')
    CURRENT=$#words PREFIX=${words[-1]}
    _describe() { local name=$argv[-1]; print -rl -- ${${(P)name}%%:*} }
    compadd() {
        local prefix=''
        while [[ $1 == -* && $1 != -- ]]; do
            [[ $1 == -p ]] && prefix=$2
            shift 2
        done
        shift
        (( $# )) && print -rl -- $prefix${^@}
    }
    _files() { : }
    _pids() { : }
    fpath=(${1:h} $fpath)
    autoload -Uz ${1:t}
    ${1:t} | grep -- "^$PREFIX"
"""

Complete = Callable[[str], list[str]]


@pytest.fixture(params=["bash", "zsh", "fish"])
def complete(request: pytest.FixtureRequest, sbctl: Sbctl, tmp_path: Path) -> Complete:
    """The completions of a shell for a line, without their descriptions."""
    shell = request.param
    (tmp_path / "speed-bump").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m speed_bump "$@"\n'
    )
    (tmp_path / "speed-bump").chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{sbctl.program.parent}:{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "COLUMNS": "80",
    }

    def run(line: str) -> list[str]:
        program = line.split(maxsplit=1)[0]
        file = FILES[program, shell]
        if shell == "bash":
            function = "_" + program.replace("-", "_")
            command = ["bash", "--norc", "-c", BASH, "bash", file, line, function]
        elif shell == "zsh":
            command = ["zsh", "-f", "-c", ZSH, "zsh", file, line]
        else:
            # Installed files are all in one directory, as fish needs them.
            places = {str(f.parent) for f in FILES.values() if f.suffix == ".fish"}
            path = f"set -p fish_complete_path {' '.join(places)}"
            script = f'{path}; source {file}; complete -C "{line}"'
            command = ["fish", "--no-config", "-c", script]
        done = subprocess.run(
            command, capture_output=True, text=True, env=env, check=False, timeout=120
        )
        assert done.stderr == ""
        words = [word.split("\t")[0] for word in done.stdout.splitlines() if word]
        # bash splits a word at ':' and expects the part after it.
        last = line.rsplit(" ", maxsplit=1)[-1]
        if shell == "bash" and ":" in last:
            words = [last.rpartition(":")[0] + ":" + word for word in words]
        return words

    assert shutil.which(shell), f"no {shell}: build-aux/setup test"
    return run


def speed_bump(*args: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "speed_bump", *args, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "80"},
    ).stdout


def commands_of(text: str) -> set[str]:
    """The commands that a help text of either program lists."""
    return set(re.findall(r"^(?:  |    )([a-z]+)(?:  |$)", text, re.M))


def options_of(text: str) -> set[str]:
    """The options that a help text of either program lists."""
    lines = [line for line in text.splitlines() if re.match(r"  +-", line)]
    heads = [re.split(r"(?<=\S) {2,}(?=[^- ])", line, maxsplit=1)[0] for line in lines]
    return {o for head in heads for o in re.findall(r"(?:^| )(--?[A-Za-z][a-z-]*)", head)}


def test_commands_of_sbctl(complete: Complete, sbctl: Sbctl) -> None:
    assert set(complete("sbctl ")) >= commands_of(sbctl("--help").stdout) > {"add", "run"}
    assert complete("sbctl re") == ["remove"]


def test_options_of_sbctl(complete: Complete, sbctl: Sbctl) -> None:
    for command in commands_of(sbctl("--help").stdout):
        offered = {word.rstrip("=") for word in complete(f"sbctl {command} -")}
        assert offered == options_of(sbctl(command, "--help").stdout), command


def test_libraries(complete: Complete) -> None:
    assert any(word.rstrip(":") == "libc.so.6" for word in complete("sbctl add libc.so"))


def test_symbols(complete: Complete, library: str) -> None:
    assert complete(f"sbctl add {library}:fixture_pl") == [f"{library}:fixture_plain"]
    assert "libc.so.6:malloc" in complete("sbctl run libc.so.6:mallo")


def test_lines(complete: Complete) -> None:
    """After the name of a source file, its lines, if the name is unambiguous."""
    program = lines_program()
    line = line_of("lines.c", "end")
    for command in ("sbctl add", "speed-bump run --native"):
        offered = complete(f"{command} {program}:lines.c:{line // 10}")
        assert f"{program}:lines.c:{line}" in offered
        assert all(word.startswith(f"{program}:lines.c:{line // 10}") for word in offered)
        one = complete(f"{command} {program}:lines_one/unit.c:")
        assert f"{program}:lines_one/unit.c:{line_of('lines_one/unit.c', 'one')}" in one
        assert complete(f"{command} {program}:unit.c:") == []


def test_commands_of_speed_bump(complete: Complete) -> None:
    commands = commands_of(speed_bump())
    assert "run" in commands
    assert set(complete("speed-bump ")) == commands


def test_options_of_speed_bump(complete: Complete) -> None:
    for command in commands_of(speed_bump()):
        offered = set(complete(f"speed-bump {command} -"))
        assert offered == options_of(speed_bump(command)), command


def test_native_libraries_of_speed_bump(complete: Complete) -> None:
    offered = complete("speed-bump run --native libc.so")
    assert any(word.rstrip(":") == "libc.so.6" for word in offered)


def test_native_symbols_of_speed_bump(complete: Complete, library: str) -> None:
    line = f"speed-bump run --native {library}:fixture_pl"
    assert complete(line) == [f"{library}:fixture_plain"]


@pytest.mark.any_backend
def test_current_targets(
    complete: Complete, library: str, request: pytest.FixtureRequest
) -> None:
    """Targets that can be removed and changed."""
    sbctl = request.getfixturevalue("sbctl")
    request.getfixturevalue("device")
    sbctl("add", f"{library}:fixture_plain", "1us")
    sbctl("add", f"{library}:fixture_step", "1us")
    both = [f"{library}:fixture_plain", f"{library}:fixture_step"]
    assert sorted(complete("sbctl remove ")) == both
    assert complete(f"sbctl update {library}:fixture_s") == both[1:]
