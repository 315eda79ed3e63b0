# SPDX-License-Identifier: MIT
"""Programs of another environment, in which the package is not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.two_pythons

PROGRAM = """
import sys
def work(): return sum(range(2000))
for _ in range(300): work()
print(sys.prefix)
"""


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The interpreter of an empty environment."""
    venv.create(tmp_path / "other", with_pip=False, symlinks=True)
    return tmp_path / "other" / "bin" / "python"


def speed_bump(
    environ: dict[str, str], *arguments: object
) -> subprocess.CompletedProcess[str]:
    environ = dict(environ)
    # The packages of the tests are not part of the other environment.
    path = environ.pop("PYTHONPATH", None)
    start = "import sys; from speed_bump.command.main import main; sys.exit(main())"
    if path:
        start = f"import sys; sys.path[:0] = {path.split(os.pathsep)!r}; {start}"
    return subprocess.run(
        [sys.executable, "-c", start, *map(str, arguments)],
        env=environ,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("verb", ["run", "rank"])
def test_it_is_said_at_once(
    verb: str, environ: dict[str, str], other: Path, app: Path
) -> None:
    done = speed_bump(environ, verb, "-t", "__main__:work", "--", other, app)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"speed-bump: speed_bump is not installed in {other}; ")
    assert f"{other} -m pip install " in line
    assert "--inject" in line


def test_a_script_says_its_interpreter(
    environ: dict[str, str], other: Path, app: Path
) -> None:
    app.write_text(f"#!{other}\n{PROGRAM}")
    app.chmod(0o755)
    done = speed_bump(environ, "run", "-t", "__main__:work", "--", app)
    assert done.returncode == 1
    assert f"not installed in {other}" in done.stderr


def test_a_launcher_of_another_environment_needs_no_package(
    environ: dict[str, str], other: Path, app: Path, tmp_path: Path
) -> None:
    conda = tmp_path / "conda"
    conda.write_text(
        f"#!{other}\nimport subprocess, sys\nsys.exit(subprocess.call(sys.argv[2:]))\n"
    )
    conda.chmod(0o755)
    done = speed_bump(
        environ, "run", "-t", "__main__:work", "--", conda, "run", sys.executable, app
    )
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stderr.splitlines() if "__main__:work" in line)
    assert "300" in row


def test_it_is_lent(
    environ: dict[str, str], other: Path, app: Path, tmp_path: Path
) -> None:
    # Modules imported at the start of that Python are still imported.
    packages = next((tmp_path / "other" / "lib").glob("python*/site-packages"))
    # Debian's interpreter has one of its own, which comes first.
    (packages / "sitecustomize.py").write_text("print('theirs')\n")
    says = "import sys; print(sys.prefix)"
    theirs = subprocess.run(
        [other, "-c", says], env=environ, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert theirs[-1] == str(tmp_path / "other")
    done = speed_bump(
        environ, "run", "--inject", "-t", "__main__:work", "-d", "20us", "--", other, app
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[: len(theirs)] == theirs
    row = next(line for line in done.stderr.splitlines() if "__main__:work" in line)
    assert "300" in row
    assert not any(packages.glob("speed_bump*"))


def test_another_version_is_lent_nothing(environ: dict[str, str], app: Path) -> None:
    mine = f"python3.{sys.version_info.minor}"
    found = [shutil.which(f"python3.{minor}") for minor in range(6, 20)]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found += [str(path) for path in sorted(root.glob("*/bin/python3.*[0-9]"))]
    for python in found:
        if not python or os.path.basename(python) == mine:
            continue
        # A shim of pyenv may lead nowhere.
        command = [python, "-c", ""]
        if not subprocess.run(command, capture_output=True, check=False).returncode:
            break
    else:
        pytest.skip("no other version of Python is here")
    targets = ["-t", "__main__:work"]
    done = speed_bump(environ, "run", "--inject", *targets, "--", python, app)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"can't be lent to {python}, which is 3." in done.stderr
    assert f"{python} -m pip install " in done.stderr
    assert "--inject" not in done.stderr


def test_native_functions_need_no_package(
    environ: dict[str, str], other: Path, app: Path
) -> None:
    """Whether or not native functions work here, a missing package is not the reason."""
    done = speed_bump(environ, "run", "--native", "libc.so.6:getpid", "--", other, app)
    assert "not installed" not in done.stderr
