# SPDX-License-Identifier: MIT
"""Programs that do not use speed_bump, slowed through the environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipapp
from collections.abc import Callable
from pathlib import Path

import pytest
import speed_bump
from conftest import Run
from speed_bump.duration import human

PROGRAM = """
import sys
def work(): pass
for _ in range(30): work()
print("done", "speed_bump" in sys.modules)
"""


@pytest.mark.skipif(sys.version_info < (3, 15), reason="PEP 829 is new in 3.15")
@pytest.mark.parametrize("is_set", [False, True])
def test_an_entry_point_of_the_start_of_python(
    python: Run, targets: Callable[[str], str], tmp_path: Path, is_set: bool
) -> None:
    """For versions that ignore import lines of .pth files; installed from 3.18 on."""
    sources = Path(__file__).parents[1]
    place = tmp_path / "packages"
    place.mkdir()
    for name in ("speed_bump.pth", "speed_bump.start", "_speed_bump_start.py"):
        (place / name).write_bytes((sources / name).read_bytes())
    program = f"import site, sys; site.addsitedir({str(place)!r}); " + (
        "print('_speed_bump_start' in sys.modules, 'speed_bump._activate' in sys.modules)"
    )
    path = targets("a:b\n")
    # The .pth file of this environment is not used.
    program = (
        f"import os; os.environ['SPEED_BUMP_TARGETS'] = {path!r}\n" * is_set + program
    )
    done = python(program, SPEED_BUMP_QUIET="1")
    assert (done.returncode, done.stdout) == (0, f"True {is_set}\n")


def test_unset_does_nothing(python: Run) -> None:
    done = python(PROGRAM)
    assert (done.stdout, done.stderr, done.returncode) == ("done False\n", "", 0)


def test_a_program_is_slowed_without_an_edit(
    python: Run, targets: Callable[[str], str]
) -> None:
    path = targets("__main__:work\n")
    done = python(PROGRAM, SPEED_BUMP_TARGETS=path, SPEED_BUMP_DELAY_NS="20us")
    assert done.returncode == 0
    assert done.stdout == "done True\n"
    first, last = done.stderr.splitlines()
    start = f"speed_bump: slowing 1 target of {path}, 20.0 us each call (process "
    assert first.startswith(start)
    pattern = r"speed_bump: 30 calls, 30 of them delayed, by .* in all \(process \d+\)"
    assert re.fullmatch(pattern, last)


def test_the_start_line_says_the_delay_in_force(
    python: Run, targets: Callable[[str], str]
) -> None:
    """The printed delay is that of a target, not one that was raised to the minimum."""
    done = python(
        PROGRAM, SPEED_BUMP_TARGETS=targets("__main__:work\n"), SPEED_BUMP_DELAY_NS="1"
    )
    lines = done.stderr.splitlines()
    (warning,) = [line for line in lines if "the shortest is" in line]
    (start,) = [line for line in lines if "slowing" in line]
    raised = int(warning.partition("the shortest is ")[2].split()[0])
    assert raised > 1
    assert f", {human(raised)} each call" in start
    path = targets("__main__:work delay=7us every=5\n__main__:main delay=9us every=5\n")
    done = python(PROGRAM, SPEED_BUMP_TARGETS=path, SPEED_BUMP_DELAY_NS="20us")
    assert ", 7.00 us to 9.00 us every 5th call" in done.stderr.splitlines()[0]


def test_quiet(python: Run, targets: Callable[[str], str]) -> None:
    path = targets("__main__:work\n")
    done = python(PROGRAM, SPEED_BUMP_TARGETS=path, SPEED_BUMP_QUIET="1")
    assert (done.stdout, done.stderr) == ("done True\n", "")


def test_a_subinterpreter_is_left_alone(
    python: Run, targets: Callable[[str], str]
) -> None:
    program = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
def work(): pass
work()
other = interpreters.create()
interpreters.run_string(
    other, "import speed_bump\\nspeed_bump.progress()\\nprint('there')"
)
interpreters.destroy(other)
work()
"""
    done = python(program, SPEED_BUMP_TARGETS=targets("__main__:work"))
    assert done.stdout == "there\n"
    first, last = done.stderr.splitlines()
    assert "slowing 1 target" in first
    assert "2 calls, 2 of them delayed" in last


def test_no_match_is_said(python: Run, targets: Callable[[str], str]) -> None:
    done = python(PROGRAM, SPEED_BUMP_TARGETS=targets("__main__:Work\n"))
    assert "no call matched a target" in done.stderr.splitlines()[-1]


def test_a_mistake_is_one_line_and_the_program_runs(
    python: Run, targets: Callable[[str], str]
) -> None:
    path = targets("a:b\noops\n")
    done = python(PROGRAM, SPEED_BUMP_TARGETS=path)
    assert (done.returncode, done.stdout) == (0, "done True\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"speed_bump: SPEED_BUMP_TARGETS: {path}:2: ")
    assert line.endswith(" (nothing is slowed)")


def test_strict_ends_the_program(python: Run, targets: Callable[[str], str]) -> None:
    done = python(
        PROGRAM,
        SPEED_BUMP_TARGETS=targets("a:b"),
        SPEED_BUMP_FREQUENCY="x",
        SPEED_BUMP_STRICT="1",
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "speed_bump: SPEED_BUMP_FREQUENCY: 'x' is not a whole number\n"


def test_start_is_counted_from_the_start_of_the_process(
    python: Run, targets: Callable[[str], str]
) -> None:
    program = """
import os, time
import speed_bump
from speed_bump.process import start_ns
start = start_ns() + int(os.environ["SPEED_BUMP_START_MS"]) * 1_000_000
end = start + int(os.environ["SPEED_BUMP_DURATION_MS"]) * 1_000_000
def work(): pass
work()
early = time.monotonic_ns() < start
while time.monotonic_ns() < start + 20_000_000: time.sleep(0.01)
work()
inside = time.monotonic_ns() < end
while time.monotonic_ns() < end + 20_000_000: time.sleep(0.01)
work()
(only,) = speed_bump.stats().functions
print(only.calls, only.delayed if early and inside else "late")
"""
    said = ""
    for start_ms in (400, 1_600, 6_400, 25_600):  # a busy machine starts slowly
        done = python(
            program,
            SPEED_BUMP_TARGETS=targets("__main__:work"),
            SPEED_BUMP_START_MS=str(start_ms),
            SPEED_BUMP_DURATION_MS=str(start_ms),
        )
        said = done.stdout
        if "late" not in said:
            break
    assert said == "3 1\n", done.stderr


SPAWNS = """
import multiprocessing, subprocess, sys
def work(n): return n
if __name__ == "__main__":
    if sys.argv[1:]:
        work(1)
        sys.exit()
    multiprocessing.set_start_method({method!r})
    with multiprocessing.Pool(2) as pool:
        pool.map(work, range(100))
        pool.close()
        pool.join()
    subprocess.run([sys.executable, sys.argv[0], "child"], check=True)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_are_slowed(method: str, tmp_path: Path) -> None:
    from speed_bump.config import parse_targets
    from speed_bump.experiment.program.runner import Runner, Slowed

    path = tmp_path / "program.py"
    path.write_text(SPAWNS.format(method=method))
    (target,) = parse_targets("__main__:work", "here")
    with Runner([sys.executable, str(path)], show_output=False) as runner:
        result = runner.run([Slowed(target, 1000)])
    assert result.status == 0, result.output
    assert result.calls(target) == 101


# 40 functions in each of 600 children, four at a time: more than the table has room for.
SERVER = """
import os, speed_bump
for i in range(40): exec(f"def f{i}(): pass")
functions = [globals()[f"f{i}"] for i in range(40)]
def serve():
    running = set()
    for _ in range(600):
        if len(running) == 4: running.remove(os.wait()[0])
        pid = os.fork()
        if not pid:
            for f in functions: f()
            os._exit(0)
        running.add(pid)
    while running: running.remove(os.wait()[0])
"""


def test_a_server_that_forks_for_each_request(
    python: Run, targets: Callable[[str], str]
) -> None:
    path = targets("__main__:f* delay=0\n")
    done = python(SERVER + "serve()", SPEED_BUMP_TARGETS=path)
    assert done.returncode == 0
    assert "speed_bump: 24,000 calls, 0 of them delayed" in done.stderr
    assert "no room" not in done.stderr


@pytest.mark.parametrize(
    ("short", "counted"), [(0, []), (1, ["3 calls, 0 of them delayed"])]
)
def test_functions_that_were_not_counted_are_said(
    python: Run, targets: Callable[[str], str], short: int, counted: list[str]
) -> None:
    """Names of over 32 KiB do not fit; each such function is counted once as lost."""
    done = python(
        f"names = ['f' * n for n in (33_000, 34_000)] + ['f'] * {short}\n"
        "exec(''.join(f'def {name}(): pass\\n' for name in names))\n"
        "for name in names * 3: globals()[name]()\n",
        SPEED_BUMP_TARGETS=targets("__main__:f* delay=0\n"),
    )
    assert done.returncode == 0, done.stderr
    said = [line.removeprefix("speed_bump: ") for line in done.stderr.splitlines()[1:]]
    *others, lost = said
    assert [line.partition(", by")[0] for line in others] == counted
    assert lost.startswith("2 functions found no room to be counted")


def test_reset_where_children_have_ended(
    python: Run, targets: Callable[[str], str]
) -> None:
    count = "sum(f.calls for f in speed_bump.stats(children=True).functions)"
    twice = f"serve(); speed_bump.reset(); print({count}); serve(); print({count})"
    path = targets("__main__:f* delay=0\n")
    done = python(SERVER + twice, SPEED_BUMP_TARGETS=path)
    assert (done.returncode, done.stdout) == (0, "0\n24000\n"), done.stderr


def test_native_lines_without_a_device(
    python: Run, targets: Callable[[str], str]
) -> None:
    if os.path.exists("/dev/speed_bump"):
        pytest.skip("there is a device")
    done = python(
        PROGRAM,
        SPEED_BUMP_TARGETS=targets("native:/lib/x.so:f\n"),
        SPEED_BUMP_BACKEND="driver",
    )
    assert done.stdout == "done True\n"
    (line,) = done.stderr.splitlines()
    assert "sbctl doctor" in line


# ------------------------------------------------------- ways to start Python

LINES = "def work(): pass\nfor _ in range(30): work()\nprint('done')\n"
SLOWED = "30 calls, 30 of them delayed"


def launch(
    command: list[str],
    environ: dict[str, str],
    targets: Callable[[str], str],
    text: str | None = None,
    pattern: str = "__main__:work",
) -> str:
    """The text on stderr."""
    done = subprocess.run(
        command,
        env=environ | {"SPEED_BUMP_TARGETS": targets(pattern + "\n")},
        capture_output=True,
        input=text,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    return done.stderr


@pytest.mark.parametrize("options", [["-I"], ["-E"], ["-s"], ["-O"], ["-B", "-u"]])
def test_options_that_change_nothing(
    options: list[str], environ: dict[str, str], targets: Callable[[str], str]
) -> None:
    command = [sys.executable, *options, "-c", LINES]
    assert SLOWED in launch(command, environ, targets)


@pytest.mark.parametrize("options", [["-S"], ["-IS"]])
def test_without_site_nothing_is_slowed(
    options: list[str], environ: dict[str, str], targets: Callable[[str], str]
) -> None:
    assert launch([sys.executable, *options, "-c", LINES], environ, targets) == ""


def test_standard_input(environ: dict[str, str], targets: Callable[[str], str]) -> None:
    assert SLOWED in launch([sys.executable, "-"], environ, targets, LINES)


def test_a_module_and_a_package(
    tmp_path: Path, environ: dict[str, str], targets: Callable[[str], str]
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(LINES)
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "part.py").write_text(LINES)
    environ["PYTHONPATH"] = str(tmp_path)
    for module in ("package", "package.part"):
        assert SLOWED in launch([sys.executable, "-m", module], environ, targets)
    by_file = f"{tmp_path}/package/part.py:work"
    command = [sys.executable, "-m", "package.part"]
    assert SLOWED in launch(command, environ, targets, pattern=by_file)
    assert SLOWED in launch([sys.executable, str(tmp_path / "package")], environ, targets)


def test_a_zipapp(
    tmp_path: Path, environ: dict[str, str], targets: Callable[[str], str]
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("import inner")
    (tmp_path / "app" / "inner.py").write_text(LINES)
    zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz")
    command = [sys.executable, str(tmp_path / "app.pyz")]
    assert SLOWED in launch(command, environ, targets, pattern="inner:work")
    inside = "*/app.pyz/inner.py:work"
    assert SLOWED in launch(command, environ, targets, pattern=inside)


def test_another_environment_is_left_alone(
    tmp_path: Path, environ: dict[str, str], targets: Callable[[str], str]
) -> None:
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "other")],
        check=True,
    )
    command = [str(tmp_path / "other" / "bin" / "python"), "-c", LINES]
    assert launch(command, environ, targets) == ""


EMBEDDED = r"""
#include <Python.h>

int main(int argc, char **argv)
{
	PyConfig config;
	int failed;

	PyConfig_InitPythonConfig(&config);
	config.site_import = argc > 3;
	PyConfig_SetBytesString(&config, &config.executable, argv[1]);
	PyConfig_SetBytesString(&config, &config.program_name, argv[1]);
	if (PyStatus_Exception(Py_InitializeFromConfig(&config)))
		return 3;
	PyConfig_Clear(&config);
	failed = PyRun_SimpleString(argv[2]);
	return Py_FinalizeEx() || failed;
}
"""


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program that embeds Python, as frozen programs do."""
    get = sysconfig.get_config_var
    where = tmp_path_factory.mktemp("embedding")
    (where / "main.c").write_text(EMBEDDED)
    directory = get("LIBDIR") if get("Py_ENABLE_SHARED") else get("LIBPL")
    command = [
        *("cc", str(where / "main.c"), "-o", str(where / "main"), "-rdynamic"),
        *(f"-I{sysconfig.get_path('include')}", f"-L{directory}", f"-L{get('LIBDIR')}"),
        *(f"-Wl,-rpath,{get('LIBDIR')}", f"-lpython{get('LDVERSION')}"),
        *(get("LIBS") or "").split(),
        *(get("SYSLIBS") or "").split(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no library to embed Python with: {done.stderr.splitlines()[-1]}")
    return str(where / "main")


def test_embedded_with_site(
    embedding: str, environ: dict[str, str], targets: Callable[[str], str]
) -> None:
    command = [embedding, sys.executable, LINES, "site"]
    assert SLOWED in launch(command, environ, targets)


def test_embedded_without_site(
    embedding: str, environ: dict[str, str], targets: Callable[[str], str]
) -> None:
    """As frozen executables do; their own imports work."""
    assert launch([embedding, sys.executable, LINES], environ, targets) == ""
    package = str(Path(speed_bump.__file__).parent.parent)
    activated = f"import sys; sys.path.append({package!r})\nimport speed_bump._activate\n"
    command = [embedding, sys.executable, activated + LINES]
    assert SLOWED in launch(command, environ, targets)
