# SPDX-License-Identifier: MIT
"""A container without CAP_SYS_PTRACE, made of namespaces, and what attaching does there.

The program has a root, mounts, a /dev/shm, a /tmp and process numbers of its own. The
tool inside has one capability less than the program, so that the kernel does not let it
trace the program; the tool outside has all of them, and other files.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from program import Failure, Program
from speed_bump.experiment.program import ways

MAKE = """
root=$1 shared=$2
shift 2
mount -t tmpfs -o mode=755 tmpfs "$root"
for path in /*; do
	if [ -L "$path" ]; then
		cp -P "$path" "$root$path"
	elif [ -d "$path" ]; then
		mkdir "$root$path"
		case $path in
		/tmp | /run) mount -t tmpfs -o mode=1777 tmpfs "$root$path" ;;
		/proc) mount -t proc proc "$root$path" ;;
		*) mount --rbind "$path" "$root$path" ;;
		esac
	fi
done
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mkdir -p "$root$shared" "$root/run/inside"
mount --bind "$shared" "$root$shared"
exec chroot "$root" setpriv --bounding-set=-sys_ptrace --inh-caps=-sys_ptrace \
	env XDG_RUNTIME_DIR=/run/inside "$@"
"""
NAMESPACES = ("--mount", "--pid", "--fork", "--kill-child")
FEWER = ("--bounding-set=-sys_ptrace,-net_raw", "--inh-caps=-sys_ptrace,-net_raw")
# Tries each way, and prints what it said.
TRY = """
import json, sys, time
import speed_bump
found = {}
for way in ("socket", "remote", "debugger"):
    try:
        with speed_bump.attach(int(sys.argv[1]), ["__main__:work"], way=way) as attached:
            end = time.monotonic() + 30
            while not attached.stats().calls and time.monotonic() < end:
                time.sleep(0.01)
            found[way] = "calls" if attached.stats().calls else "no calls"
    except speed_bump.AttachError as error:
        found[way] = str(error)
print(json.dumps(found))
"""
TIMEOUT_S = 120


def prefix(root: str, shared: str) -> list[str]:
    """What runs a command in a container; it shares one directory with the host."""
    return ["unshare", *NAMESPACES, "sh", "-euc", MAKE, "sh", root, shared]


def run(*command: str) -> dict[str, str]:
    """What TRY says, run by a command."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    try:
        found: dict[str, str] = json.loads(done.stdout)
    except ValueError:
        raise Failure(f"a tool ended with {done.stderr.strip()[-300:]!r}") from None
    return found


def tries(pid: int) -> tuple[dict[str, str], dict[str, str]]:
    """What each way says inside the container, and outside."""
    inside = int(ways.status_of(pid)["NSpid"].split()[-1])
    tool = [sys.executable, "-c", TRY]
    enter = ["nsenter", "-t", str(pid), "--mount", "--pid", "--root", "--wd"]
    runtime = ["env", "XDG_RUNTIME_DIR=/run/inside"]
    fewer = ["setpriv", *FEWER]
    return run(*enter, *fewer, *runtime, *tool, str(inside)), run(*tool, str(pid))


def wrong(inside: dict[str, str], outside: dict[str, str]) -> list[str]:
    """What is not as it must be."""
    found = []
    for where, said in (("inside", inside), ("outside", outside)):
        if said["socket"] != "calls":
            found.append(f"{where}, socket: {said['socket']}")
        missing = "CAP_SYS_PTRACE" if where == "inside" else "in a container"
        for way in ("remote", "debugger"):
            words = (missing, "needs 3.14", "there is no debugger")
            if not any(word in said[way] for word in words):
                found.append(f"{where}, {way}: {said[way]}")
    return found


def check(program: Program) -> str:
    """Try each way from inside and outside; returns a remark.

    Raises:
        Failure: one does not do or say what it must
    """
    before = program.settled()
    found = wrong(*tries(program.pid))
    if found:
        raise Failure("; ".join(found))
    program.settled(before)
    table = Path(f"/proc/{program.pid}/maps").read_text()
    if ".table" in table:
        raise Failure("a table is still mapped")
    return "attached from inside and from outside; the other ways say what is missing"
