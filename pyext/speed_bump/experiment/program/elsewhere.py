# SPDX-License-Identifier: MIT
"""Other interpreters: whether they have this package, and lending it to them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

import speed_bump

# Even the slowest machine starts Python within 60 s.
TIMEOUT_S = 60
# Programs in Python that start another Python, that of an environment.
LAUNCHERS = frozenset(
    ("conda", "hatch", "mamba", "nox", "pdm", "pipenv", "poetry", "tox")
)
# The interpreter prints a description of itself. It may be an old version.
QUESTION = """
import json, sys, sysconfig
sys.path[:] = [path for path in sys.path if path]
try:
    import importlib.util
    found = importlib.util.find_spec("speed_bump") is not None
except Exception:
    found = False
print(json.dumps([found, "%d.%d.%d" % sys.version_info[:3],
                  sysconfig.get_config_var("EXT_SUFFIX")]))
"""
# Python imports the first sitecustomize at start; there may be another one after it.
START = """\
# SPDX-License-Identifier: MIT
import os, sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
here = os.path.dirname(os.path.abspath(__file__))
spec = PathFinder.find_spec(
    "sitecustomize", [path for path in sys.path if os.path.abspath(path or ".") != here]
)
if spec and spec.loader:
    spec.loader.exec_module(module_from_spec(spec))
if os.environ.get("SPEED_BUMP_TARGETS"):
    import speed_bump._activate
"""


class NotInstalledError(Exception):
    """The interpreter of the command has no speed_bump; the text says what to do."""


def interpreter(command: Sequence[str]) -> str | None:
    """The Python that ``command`` starts, by name or first line; None if unknown."""
    path = shutil.which(command[0])
    if path is None or os.path.basename(path) in LAUNCHERS:
        return None
    if is_python(path):
        return path
    try:
        with open(path, "rb") as file:
            first = file.readline(512)
    except OSError:
        return None
    words = os.fsdecode(first[2:]).split() if first.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [w for w in words[1:] if not w.startswith("-") and "=" not in w]
    found = shutil.which(words[0]) if words else None
    return found if found and is_python(found) else None


def is_python(path: str) -> bool:
    """Whether a program has the name of an interpreter."""
    name = os.path.basename(path)
    return name.startswith(("python", "pypy"))


def install_command(python: str) -> str:
    """The command that installs the package in ``python``."""
    return f"{python} -m pip install {shlex.quote(_origin())}"


def _origin() -> str:
    """The directory or file that this package was installed from, if it still exists."""
    try:
        text = metadata.distribution("speed-bump").read_text("direct_url.json") or "{}"
        url = str(json.loads(text).get("url", ""))
    except (metadata.PackageNotFoundError, ValueError):
        url = ""
    path = unquote(urlsplit(url).path) if url.startswith("file:") else ""
    return path if path and os.path.exists(path) else "speed-bump"


def lend(command: Sequence[str], directory: str, inject: bool) -> dict[str, str]:
    """The environment that the interpreter of ``command`` needs to find the package.

    Args:
        command: the program; nothing is needed if it starts no known Python
        directory: for the lent package, while the program runs
        inject: lend the package if it is not installed

    Raises:
        NotInstalledError: the package is not installed there, and can't or may not be
            lent
    """
    python = interpreter(command)
    # Two environments may share an executable; the symbolic link distinguishes them.
    if python is None or os.path.abspath(python) == os.path.abspath(sys.executable):
        return {}
    found, version, suffix = _ask(python)
    if found:
        return {}
    install = f"install it there: {install_command(python)}"
    if not inject:
        if suffix == sysconfig.get_config_var("EXT_SUFFIX"):
            install += "; or lend it this one for this run: --inject"
        raise NotInstalledError(f"speed_bump is not installed in {python}; {install}")
    if suffix != sysconfig.get_config_var("EXT_SUFFIX"):
        mine = ".".join(map(str, sys.version_info[:3]))
        raise NotInstalledError(
            f"speed_bump of CPython {mine} ({sysconfig.get_config_var('EXT_SUFFIX')}) "
            f"can't be lent to {python}, which is {version} ({suffix}); {install}"
        )
    return {"PYTHONPATH": _path_with(_put_into(directory))}


def _ask(python: str) -> tuple[bool, str, str | None]:
    """(whether it has the package, its version, its suffix of extensions)"""
    try:
        done = subprocess.run(
            [python, "-c", QUESTION],
            capture_output=True,
            check=True,
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
        found, version, suffix = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        # A Python that fails here reports its own error.
        return True, "", None
    return found, version, suffix


def _put_into(directory: str) -> str:
    """Make a directory with the package and a sitecustomize that imports it."""
    place = Path(directory, "lent")
    place.mkdir(exist_ok=True)
    package = place / "speed_bump"
    if not package.exists():
        package.mkdir()
        # The package may be in several directories, as in an editable install.
        for origin in reversed(speed_bump.__path__):
            for item in Path(origin).iterdir():
                if not (package / item.name).exists():
                    (package / item.name).symlink_to(item)
        core = Path(sys.modules["speed_bump._core"].__file__ or "")
        if not (package / core.name).exists():
            (package / core.name).symlink_to(core)
        (place / "sitecustomize.py").write_text(START)
    return str(place)


def _path_with(place: str) -> str:
    rest = os.environ.get("PYTHONPATH")
    return f"{place}{os.pathsep}{rest}" if rest else place
