# SPDX-License-Identifier: MIT
"""sbctl without the module."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import schemas
from conftest import DEVICE, Sbctl, line_of, lines_program

COMMANDS = [
    "add",
    "remove",
    "update",
    "list",
    "clear",
    "enable",
    "disable",
    "delay",
    "status",
    "run",
    "watch",
    "symbols",
    "load",
    "unload",
    "doctor",
    "help",
]
TOOLS = Path(__file__).parent.parent

needs_no_device = pytest.mark.skipif(DEVICE.exists(), reason="the module is loaded")


def options_of(text: str) -> set[str]:
    """The long options that a help text lists."""
    section = text.partition("\nOptions:\n")[2].partition("\n\n")[0]
    return set(
        re.findall(r"(--[a-z]+)", "\n".join(line[:28] for line in section.splitlines()))
    )


# ------------------------------------------------------------------ help, usage


def test_help(sbctl: Sbctl) -> None:
    text = sbctl("--help").stdout
    assert re.findall(r"^  ([a-z]+) ", text, re.M) == COMMANDS
    assert sbctl("-h").stdout == text


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_command(sbctl: Sbctl, command: str) -> None:
    done = sbctl(command, "--help")
    assert done.stdout.startswith(f"Usage: sbctl {command}")
    assert "--help" in options_of(done.stdout)
    assert done.stderr == ""
    assert sbctl(command, "-h").stdout == done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 90


def test_version(sbctl: Sbctl) -> None:
    assert re.fullmatch(r"sbctl \d+\.\d+\.\d+(rc\d+)?\n", sbctl("--version").stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_option(sbctl: Sbctl, command: str) -> None:
    line = sbctl.misused(command, "--nonsense")
    assert line == f"unknown option '--nonsense' (try 'sbctl {command} --help')"
    assert "'-Z'" in sbctl.misused(command, "-Z")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "no command"),
        (["frobnicate"], "'frobnicate'"),
        (["--nonsense"], "'--nonsense'"),
        (["add"], "no target"),
        (["add", "10us"], "no target"),
        (["add", "malloc", "10us"], "'malloc' is not PATH:SYMBOL"),
        (["add", "a:b", "ten"], "'ten' is not a duration"),
        (["add", "a:b", "10parsec"], "'10parsec' is not a duration"),
        (["add", "a:b", "--pid"], "'--pid' needs a value"),
        (["add", "a:b", "-p"], "'-p' needs a value"),
        (["add", "a:b", "--json=1"], "takes no value"),
        (["add", "a:b", "--pid=x"], "'x' is not a process id"),
        (["add", "a:b", "--pid=0"], "'0' is not a process id"),
        (["add", "a:b", "--pid=-5"], "'-5' is not a process id"),
        (["add", "a:b", "--pid=99999999999"], "'99999999999' is not a process id"),
        (["add", "a:b", "--pid=1", "--tid=1"], "only one of --pid, --tid and --cgroup"),
        (["add", "a:b", "--every=0"], "'0' is not a number"),
        (["add", "a:b", "--start=soon"], "'soon' is not a duration"),
        (["remove"], "no target"),
        (["remove", "malloc"], "'malloc' is not PATH:SYMBOL"),
        (["update"], "no target"),
        (["update", "10us"], "no target"),
        (["update", "a:b"], "delay is missing"),
        (["update", "a:b", "x"], "'x' is not a duration"),
        (["list", "x"], "unexpected argument 'x'"),
        (["clear", "x"], "unexpected argument 'x'"),
        (["enable", "x"], "unexpected argument 'x'"),
        (["status", "x"], "unexpected argument 'x'"),
        (["delay", "1us", "2us"], "unexpected argument '2us'"),
        (["delay", "x"], "'x' is not a duration"),
        (["symbols"], "no file"),
        (["symbols", "a", "b", "c"], "unexpected argument 'c'"),
        (["watch", "--interval=1us"], "too short"),
        (["load", "fast"], "'fast' is not PARAMETER=VALUE"),
        (["run", "--", "true"], "no target"),
        (["run", "a:b"], "no command"),
        (["run", "a:b", "--"], "no command"),
        (["run", "true"], "'true' is not PATH:SYMBOL"),
        (["run", "a:b", "--pid=0"], "'0' is not a process id"),
        (["run", "a:b", "--pid=1,x"], "'x' is not a process id"),
        (
            ["run", "a:b", "--pid=1", "--", "true"],
            "give a command or processes, not both",
        ),
        (["run", "a:b", "--for=1s", "--", "true"], "--for needs --pid"),
        (["run", "a:b", "--pid=1", "--for=x"], "'x' is not a duration"),
        (["run", "--pid=1"], "no target"),
        (["run", "--pid=1,2", "--targets=-"], "can't be read twice"),
        (["run", "a:b", "-d", "x", "--", "true"], "'x' is not a duration"),
    ],
)
def test_usage_errors(sbctl: Sbctl, args: list[str], said: str) -> None:
    line = sbctl.misused(*args)
    assert said in line
    command = f" {args[0]}" if args and args[0] in COMMANDS else ""
    assert line.endswith(f"(try 'sbctl{command} --help')")


@pytest.mark.parametrize(
    "args", [["add", "a:b", "11s"], ["delay", "11s"], ["update", "a:b", "11s"]]
)
def test_delay_over_the_limit(sbctl: Sbctl, args: list[str]) -> None:
    assert "11s is over the limit of 10s" in sbctl.fails(*args)


def test_full_disk(sbctl: Sbctl) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sbctl.program, "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "sbctl: can't write the output: No space left on device\n"


# --------------------------------------------------------------------- bad input


@pytest.mark.parametrize("command", ["add", "run"])
def test_targets_that_are_wrong(
    sbctl: Sbctl, library: str, tmp_path: Path, command: str
) -> None:
    def line(*targets: str) -> str:
        rest = ["--", "true"] if command == "run" else []
        if command == "run" and sbctl.fails_with("auto"):
            pytest.skip("opens the device first")
        return sbctl.fails(command, *targets, *rest)

    assert "/nowhere/lib.so" in line("/nowhere/lib.so:f")
    near = line(f"{library}:fixture_plian")
    assert "fixture_plian" in near
    assert "fixture_plain" in near
    assert "delay" in line(f"{library}:fixture_plain delay=11s")
    text = tmp_path / "text"
    text.write_text("no ELF")
    assert str(text) in line(f"{text}:f")


def test_target_file_errors_name_the_line(
    sbctl: Sbctl, library: str, tmp_path: Path
) -> None:
    targets = tmp_path / "targets.txt"
    targets.write_text(
        f"# comment\n\n{library}:fixture_plain\n{library}:no_such_function\n"
    )
    line = sbctl.fails("add", "--file", targets)
    assert line.startswith(f"{targets}:4: ")
    assert "no_such_function" in line
    targets.write_text("nonsense\n")
    assert sbctl.fails("add", "--file", targets).startswith(f"{targets}:1: ")
    targets.write_text("# nothing\n")
    assert sbctl.fails("add", "--file", targets) == f"{targets}: the file names no target"
    assert "No such file" in sbctl.fails("add", "--file", tmp_path / "missing")
    assert "standard input:1: " in sbctl.fails("add", "--file=-", stdin="nonsense\n")


def test_mixed_target_file(sbctl: Sbctl, library: str, tmp_path: Path) -> None:
    """If there are native: lines, only they are used, with the file's line numbers."""
    targets = tmp_path / "targets.txt"
    targets.write_text(f"*/app/*:Model.*\nnative:{library}:no_such_function\n")
    assert sbctl.fails("add", "--file", targets).startswith(f"{targets}:2: ")


@needs_no_device
@pytest.mark.parametrize(
    "args",
    [
        ["list"],
        ["status"],
        ["clear"],
        ["enable"],
        ["disable"],
        ["delay"],
        ["watch"],
        ["remove", "a:b"],
        ["update", "a:b", "1us"],
    ],
)
def test_without_the_module(sbctl: Sbctl, args: list[str]) -> None:
    line = sbctl.fails("--backend=driver", *args)
    assert "/dev/speed_bump" in line
    assert "sbctl load" in line
    assert "sbctl doctor" in line


@needs_no_device
def test_add_without_the_module(sbctl: Sbctl, library: str) -> None:
    assert "sbctl load" in sbctl.fails(
        "add", "--backend", "driver", f"{library}:fixture_plain", "10us"
    )


@needs_no_device
def test_run_without_the_module_runs_nothing(
    sbctl: Sbctl, library: str, tmp_path: Path
) -> None:
    mark, output = tmp_path / "mark", tmp_path / "output"
    line = sbctl.fails(
        "run",
        "--backend=driver",
        f"{library}:fixture_plain",
        "-o",
        output,
        "--",
        "touch",
        mark,
    )
    assert "sbctl load" in line
    assert not mark.exists()
    assert not output.exists()


@pytest.mark.skipif(Path("/proc/modules").exists(), reason="this kernel loads modules")
def test_load_on_a_kernel_without_modules(sbctl: Sbctl) -> None:
    line = sbctl.fails("load")
    assert "without support for modules" in line
    assert "CONFIG_MODULES=y" in line


@needs_no_device
def test_load_of_a_missing_file(sbctl: Sbctl) -> None:
    assert sbctl.fails("load", "--file=/nowhere/x.ko") == (
        "/nowhere/x.ko: No such file or directory"
    )


@needs_no_device
def test_unload_of_nothing_is_success(sbctl: Sbctl) -> None:
    assert sbctl("unload").stderr == ""


# ----------------------------------------------------------------------- backend


def test_backend_is_one_there_is(sbctl: Sbctl) -> None:
    line = sbctl.misused("--backend=no", "list")
    assert "'no' is not a backend: driver, bpf or auto" in line
    assert "needs a value" in sbctl.misused("list", "--backend")
    env = os.environ | {"SPEED_BUMP_BACKEND": "no"}
    assert sbctl.fails("list", env=env) == (
        "SPEED_BUMP_BACKEND=no: the backends are driver, bpf and auto"
    )


def test_backend_of_the_command_that_is_run_is_its_own(sbctl: Sbctl) -> None:
    done = sbctl("run", "-q", "a:b", "--", "echo", "--backend=no", code=1)
    assert "not a backend" not in done.stderr


@needs_no_device
def test_option_comes_before_the_variable(sbctl: Sbctl) -> None:
    env = os.environ | {"SPEED_BUMP_BACKEND": "bpf"}
    assert "/dev/speed_bump" in sbctl.fails("list", "--backend=driver", env=env)


# ------------------------------------------------------------------------ doctor


@pytest.mark.parametrize("backend", ["driver", "bpf", "auto"])
def test_doctor(sbctl: Sbctl, backend: str) -> None:
    by_module = backend != "bpf" and os.access(DEVICE, os.W_OK)
    by_bpf = backend != "driver" and not by_module and not sbctl.fails_with("bpf")
    done = sbctl("doctor", f"--backend={backend}", code=0 if by_module or by_bpf else 1)
    checks, _, verdict = done.stdout.partition("\n\n")
    for line in checks.splitlines():
        assert re.match(r"(ok  |FAIL)  \S", line)
    assert ("FAIL" in checks) == (not by_module)
    # The problem in one sentence, and the remedy.
    assert verdict.splitlines()[0]
    assert ("\n  -> " in verdict) == (not by_module)
    assert ("by BPF" in verdict) == by_bpf
    assert ("\n  - " in verdict) == by_bpf
    assert done.stderr == ""


@pytest.mark.skipif(Path("/proc/modules").exists(), reason="this kernel loads modules")
def test_doctor_on_a_kernel_without_modules(sbctl: Sbctl) -> None:
    text = sbctl("doctor", "--backend=driver", code=1).stdout
    assert re.search(r"^FAIL  kernel modules +no /proc/modules", text, re.M)
    assert "was built without support for modules" in text
    assert "-> boot a kernel with CONFIG_MODULES=y" in text


# ----------------------------------------------------------------------- symbols


def test_symbols(sbctl: Sbctl, library: str) -> None:
    names = sbctl("symbols", library, "fixture_*").stdout.splitlines()
    plain = {name.partition("@")[0] for name in names}
    assert {"fixture_plain", "fixture_alias", "fixture_static", "fixture_ifunc"} <= plain
    assert "fixture_variable" not in plain
    assert "fixture_versioned" in names
    assert "fixture_versioned@SBFIX_1" in names
    assert sbctl("symbols", library, "fixture_second").stdout.startswith("fixture_second")


def test_symbols_verbose(sbctl: Sbctl, library: str) -> None:
    lines = sbctl("symbols", "-v", library, "fixture_*").stdout.splitlines()
    assert lines[0].split() == [
        "OFFSET",
        "PROBE",
        "HIT",
        "SIZE",
        "KIND",
        "VERSION",
        "FILE",
        "NAME",
        "DEMANGLED",
    ]
    # Each column begins at the same position in all lines.
    for heading in ("KIND", "VERSION", "NAME", "DEMANGLED"):
        start = lines[0].index(heading)
        for line in lines[1:]:
            assert line[start - 1] == " ", line
            assert line[start] != " ", line
    assert any(" ifunc " in line for line in lines)


def test_symbols_json(sbctl: Sbctl, library: str) -> None:
    found = sbctl.json("symbols", library, "fixture_plain")
    assert found["path"] == library
    (symbol,) = found["symbols"]
    assert symbol["name"] == "fixture_plain"
    assert symbol["kind"] == "function"
    assert symbol["offset"] > 0
    nm = subprocess.run(
        ["nm", library], capture_output=True, text=True, check=False
    ).stdout
    address = re.search(r"^([0-9a-f]+) T fixture_plain", nm, re.M)
    assert address
    assert int(address[1], 16) == symbol["offset"]


def test_symbols_of_nothing(sbctl: Sbctl, library: str) -> None:
    assert (
        sbctl.fails("symbols", library, "zzz*")
        == f"{library}: no function matches 'zzz*'"
    )
    assert "/nowhere" in sbctl.fails("symbols", "/nowhere")
    assert "/etc/passwd" in sbctl.fails("symbols", "/etc/passwd")


def test_symbols_by_library_name(sbctl: Sbctl) -> None:
    assert "malloc" in sbctl("symbols", "libc.so.6", "malloc").stdout


def test_symbols_json_escapes(sbctl: Sbctl, library: str, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b'/a"b\\c\n\xff.so'
    Path(os.fsdecode(name)).write_bytes(Path(library).read_bytes())
    done = subprocess.run(
        [sbctl.program, "symbols", "--json", name, b"fixture_plain"],
        capture_output=True,
        check=False,
    )
    assert json.loads(done.stdout)["path"].endswith('/a"b\\c\n\ufffd.so')


# -------------------------------------------------------------- files and messages


def test_help_is_a_command(sbctl: Sbctl) -> None:
    assert sbctl("help").stdout == sbctl("--help").stdout
    for command in COMMANDS:
        assert sbctl("help", command).stdout == sbctl(command, "--help").stdout
    assert "no command 'nonsense'" in sbctl.misused("help", "nonsense")


@pytest.fixture(scope="module")
def statics() -> str:
    return os.environ.get(
        "SB_STATICS",
        str(Path(os.environ["FIXTURE_DIR"]).parents[1] / "libsb/tests/libsbstatics.so"),
    )


def test_symbols_usdt(sbctl: Sbctl, library: str, statics: str) -> None:
    names = sbctl("symbols", "--usdt", statics).stdout.splitlines()
    assert names == ["statics:entry", "statics:exit", "statics:exit"]
    assert sbctl("symbols", "-u", statics, "*:en*").stdout == "statics:entry\n"
    found = sbctl.json("symbols", "--usdt", statics)["usdt"]
    assert [probe["semaphore"] > 0 for probe in found] == [True, False, False]
    assert all(probe["offset"] > 0 for probe in found)
    heading = sbctl("symbols", "-uv", statics).stdout.splitlines()[0]
    assert heading.split() == ["OFFSET", "SEMAPHORE", "NAME", "ARGUMENTS"]
    assert "no static probe matches 'x*'" in sbctl.fails("symbols", "-u", statics, "x*")
    assert "no static probes (USDT)" in sbctl.fails("symbols", "-u", library)


def test_symbols_file(sbctl: Sbctl, statics: str) -> None:
    found = sbctl.json("symbols", statics, "helper")["symbols"]
    assert {symbol["file"] for symbol in found} == {"statics.c", "statics_too.c"}


def test_symbols_lines(sbctl: Sbctl, library: str, tmp_path: Path) -> None:
    program, inlined = lines_program(), line_of("lines.c", "inlined")
    listed = sbctl("symbols", "--lines", program, "lines.c").stdout.splitlines()
    assert f"lines.c:{inlined}" in listed
    assert f"lines.c:{line_of('lines.c', 'none')}" not in listed
    assert len(listed) == len(set(listed))
    found = sbctl.json("symbols", "-l", program, f"lines.c:{inlined}")["lines"]
    assert {place["function"] for place in found} == {"lines_once", "lines_loop"}
    assert [place["inlined"] for place in found] == ["inlined", "inlined"]
    assert {place["line"] for place in found} == {f"lines.c:{inlined}"}
    said = sbctl("symbols", "-lv", program, f"lines.c:{inlined}").stdout.splitlines()
    assert said[0].split() == ["OFFSET", "HIT", "NAME", "FUNCTION"]
    assert said[1].endswith("inlined inlined into lines_once")
    assert "no line with code matches 'x.c'" in sbctl.fails(
        "symbols", "-l", program, "x.c"
    )
    assert "only one of" in sbctl.misused("symbols", "-l", "-u", program)
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", stripped, program], check=True)
    assert "compile it with -g" in sbctl.fails("symbols", "--lines", stripped)


def test_symbols_hit(sbctl: Sbctl, library: str) -> None:
    found = sbctl.json("symbols", library, "fixture_*")["symbols"]
    hits = {symbol["name"]: symbol["hit"] for symbol in found}
    assert set(hits.values()) <= {"emulated", "stepped"}
    assert hits["fixture_step"] == "stepped"
    if os.uname().machine == "x86_64":
        assert hits["fixture_push"] == hits["fixture_nop"] == "emulated"


def test_a_script_is_what_a_shell_would_run(sbctl: Sbctl, tmp_path: Path) -> None:
    """python3:... must be the same Python that the command runs."""
    script = tmp_path / "bash"
    script.write_text("#!/bin/sh\n")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert sbctl("symbols", "bash", env=environment).stdout  # it can't be run
    script.chmod(0o755)
    line = sbctl.fails("symbols", "bash", env=environment)
    assert line.startswith(f"{script}: a script, not an ELF file")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives itself another user")
def test_doctor_of_another_user(sbctl: Sbctl) -> None:
    """If sudo would be sufficient, no other kernel is recommended first."""
    if sbctl.fails_with("bpf"):
        pytest.skip("BPF can't serve here")
    done = subprocess.run(
        [sbctl.program, "doctor"],
        capture_output=True,
        text=True,
        check=False,
        user=65534,
        group=65534,
        extra_groups=[],
    )
    verdict = done.stdout.partition("\n\n")[2].splitlines()
    if done.returncode == 0 or not verdict:
        pytest.skip("the module serves")
    assert "can't be delayed by this user" in verdict[0]
    assert verdict[1] == "  -> sudo sbctl doctor"


def test_doctor_json(sbctl: Sbctl) -> None:
    done = subprocess.run(
        [sbctl.program, "doctor", "--json"], capture_output=True, text=True, check=False
    )
    found = schemas.read("sbctl-doctor", done.stdout)
    assert done.returncode == (0 if found["usable"] else 1)
    assert (found["backend"] is not None) == found["usable"]
    text = subprocess.run(
        [sbctl.program, "doctor"], capture_output=True, text=True, check=False
    ).stdout
    for check in found["module"]["checks"]:
        assert check["detail"] in text
    assert found["module"]["summary"] in text
    assert all(advice in text for advice in found["module"]["advice"])


# ------------------------------------------------------------- Python functions

PROGRAM = """
import time, speed_bump
def work():
    return 1
speed_bump.install(speed_bump.Config(["__main__:work"], 10_000))
while True:
    work()
    print(speed_bump.stats().functions[0].delayed, flush=True)
    time.sleep(0.01)
"""


def test_python_functions_are_steered(sbctl: Sbctl) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPEED_BUMP")}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as program:
        try:
            assert program.stdout
            assert program.stdout.readline()
            named = ("python:__main__:w*", f"--pid={program.pid}")
            of = f"python:__main__:work of process {program.pid}"
            assert sbctl("disable", *named).stdout == f"disabled {of}\n"
            # Data that was already sent, and nothing more.
            delayed = [int(program.stdout.readline()) for _ in range(400)]
            assert delayed[-1] == delayed[-2]
            assert sbctl("update", *named, "1ms").stdout == f"updated {of} 1ms\n"
            assert sbctl("enable", *named).stdout == f"enabled {of}\n"
            # Earlier output may still be in the buffer.
            end = time.monotonic() + 60
            while int(program.stdout.readline()) <= delayed[-1]:
                assert time.monotonic() < end
            assert sbctl("remove", *named).stdout == f"switched off {of}\n"
            line = sbctl.misused("update", "--every=3", *named)
            assert line.startswith("--every is for native targets")
            assert "is not slowed in process" in sbctl.fails(
                "disable", "python:a:b", f"--pid={program.pid}"
            )
        finally:
            program.kill()
    assert "is not slowed in process" in sbctl.fails("enable", *named)
