# SPDX-License-Identifier: MIT
"""Why targets were not called: the likely reason, and the nearest names that exist."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from speed_bump import _core
from speed_bump.config import Target
from speed_bump.experiment.program.elsewhere import interpreter

# Time limit for the search; a large library is imported for it.
LOOK_S = 30.0
# If these are imported, functions may be compiled and no longer called in Python.
COMPILING = ("torch._inductor.compile_fx", "torch._dynamo.convert_frame")
MAX_SAID = 20
# For a function whose duration is recorded.
IN_C = "it is written in C, and its end is not seen; name a Python function that calls it"
# Reasons that begin with this are of refused C functions and classes.
REFUSED = "it can't be a target: "
# At most this many called names are compared with a target.
MAX_OTHERS = 200


def refused(names: Sequence[str], command: Sequence[str]) -> list[tuple[str, str]]:
    """Names of latencies that are seen to be none before the program runs, and why.

    No module is imported for it.
    """
    python = [name for name in names if not name.startswith("native:")]
    literal = [
        name.rpartition(":")[::2]
        for name in python
        if ":" in name and not set("*?[") & set(name)
    ]
    found = []
    asked = _ask([(left, right) for left, right in literal], command, only_kinds=True)
    for (left, right), answer in zip(literal, asked, strict=False):
        if answer and answer["is"] == "type":
            near = answer["near"]
            such = f" of it, such as {near[0]}" if near else " of it"
            found.append((f"{left}:{right}", f"it is a type; name a method{such}"))
        elif answer and answer["is"] == "C":
            found.append((f"{left}:{right}", IN_C))
    return found


def of_latency(name: str) -> Target:
    """The functions that a name of ``--latency`` means."""
    from speed_bump.config import parse_targets

    return parse_targets(name, "--latency")[0]


def reasons(
    targets: Sequence[Target],
    command: Sequence[str],
    imported: Collection[str],
    refused: Iterable[tuple[str, str]] = (),
    called: Collection[str] = (),
    *,
    ends: bool = False,
) -> dict[str, str]:
    """By pattern, a sentence that says why each target was not called.

    Targets that are other names of called functions are left out.

    Args:
        called: functions that were called, and are counted for other targets
        imported: the Python modules that processes of the program have run
        refused: C functions that could not be targets, and why, as the program says
        ends: their ends are wanted, which functions in C do not have
    """
    said = dict(refused)
    found: dict[str, str] = {}
    named = [t for t in targets if not t.native and not t.source_line]
    literal = [t for t in named if not _is_glob(t)]
    open_ = [t for t in literal if t.pattern not in said]
    names = [(t.left, t.right) for t in open_]
    others = [(left, right) for left, _, right in (n.rpartition(":") for n in called)]
    given = _ask([*names, *others[:MAX_OTHERS]], command) if open_ else []
    answers = {t.pattern: answer for t, answer in zip(open_, given, strict=False)}
    same = {a["same"] for a in given[len(open_) :] if a} - {0}
    for target in targets:
        pattern = target.pattern
        answer = answers.get(pattern)
        if (answer and answer["same"] in same) or any(is_of(target, n) for n in called):
            continue
        if pattern in said:
            found[pattern] = f"{REFUSED}{said[pattern]}"
        elif target.native:
            found[pattern] = "the program never called it (or runs another file)"
        elif target.source_line:
            found[pattern] = "no such line began: the program did not reach it, or its "
            found[pattern] += "file or module has another name"
        elif _is_glob(target):
            found[pattern] = _of_glob(target, imported)
        else:
            found[pattern] = _of_name(target, answer, imported, ends)
    return found


def lines(found: Mapping[str, str]) -> list[str]:
    said = [
        f"{pattern} can't be a target: {text.removeprefix(REFUSED)}"
        if text.startswith(REFUSED)
        else f"{pattern} was never called: {text}"
        for pattern, text in found.items()
    ]
    if len(said) > MAX_SAID:
        more = len(said) - MAX_SAID
        said[MAX_SAID:] = [f"{more} more targets were never called"]
    return said


def of_latencies(
    names: Sequence[str],
    command: Sequence[str],
    imported: Collection[str],
    others: Sequence[str],
    *,
    running: bool = False,
) -> list[str]:
    """The text about names of ``--latency`` that never began.

    Args:
        others: marks that the program has begun and that were not requested
        running: the program goes on, and may be in its first call
    """
    targets = [of_latency(name) for name in names if ":" in name]
    under_way = [t for t in targets if t.native and running]
    targets = [t for t in targets if t not in under_way]
    said = lines(reasons(targets, command, imported, ends=True))
    said += [
        f"{t.pattern}: no call has ended so far: the program did not call it (or runs "
        "another file), or its first call is under way"
        for t in under_way
    ]
    for name in names:
        if ":" not in name:
            text = f"{name}: the program never called speed_bump.begin({name!r}, key)"
            if others:
                text += f"; it has begun {', '.join(map(repr, others))}"
            said.append(f"{text} (a function is named MODULE:FUNCTION)")
    return said


def unended(name: str, until: str) -> str:
    """The text about a name of ``--latency`` that began, and did not end ``until``."""
    if name.startswith("native:"):
        return (
            f"{name}: its calls were left without a return that is seen: by longjmp(), "
            "by the end of their thread, or inside 64 others"
        )
    ended = "has ended" if until == "yet" else "ended"
    return f"{name}: a request began, and none {ended} {until}"


def is_of(target: Target, name: str) -> bool:
    """Whether the target also matches a function, ``module:qualname``.

    A target that names a file by its path may match: the name does not have the path.
    """
    left, _, right = name.rpartition(":")
    return (
        not target.native
        and (_is_by_path(target) or _core.glob_match(target.left, left))
        and _core.glob_match(target.right, right)
    )


def _is_by_path(target: Target) -> bool:
    is_file = target.source_line > 0 and target.left.endswith(".py")
    return "/" in target.left or is_file


def _is_glob(target: Target) -> bool:
    """Whether it is not the name of one function; paths are globs too."""
    return bool(set("*?[/") & set(target.left + target.right))


def _of_glob(target: Target, imported: Collection[str]) -> str:
    modules = {*imported, "__main__"}
    if "/" not in target.left and not any(
        _core.glob_match(target.left, name) for name in modules
    ):
        return (
            "no Python module that matches was imported (a C function of a module is "
            "matched by a glob on its name, 'zlib:*')"
        )
    return "no function that matches was called"


def _of_name(
    target: Target,
    answer: Mapping[str, Any] | None,
    imported: Collection[str],
    ends: bool,
) -> str:
    left = target.left
    ran = left in imported or left == "__main__"
    if answer is None:
        return (
            "it was imported and never called, or the name does not exist"
            if ran
            else "it was never imported, or the name does not exist"
        )
    near = answer["near"]
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    if answer["module"] == "absent" and not ran:
        return f"there is no module {left!r}{hint}"
    if answer["is"] == "absent":
        return f"{left} has no {target.right!r}{hint}"
    if answer["is"] == "type":
        what = f": name a method of it, such as {near[0]}" if near else ": name a method"
        return f"it is a type{what}"
    if answer["is"].startswith("="):
        return f"it is imported from elsewhere; name it {answer['is'][1:]}"
    if ends and answer["in_c"]:
        return f"{REFUSED}{IN_C}"
    if answer["reason"]:
        return f"{REFUSED}{answer['reason']}"
    if answer["compiled"]:
        return "it is compiled, and a compiled function is no longer called in Python"
    if not ran and answer["seen"] and imported:
        return f"{left} was never imported by the program"
    compiling = [name for name in COMPILING[:1] if name in imported]
    if compiling:
        return "it may have been compiled away by torch.compile"
    return "it exists, and the program never called it"


def _ask(
    names: Sequence[tuple[str, str]], command: Sequence[str], only_kinds: bool = False
) -> list[Mapping[str, Any] | None]:
    """The interpreter's findings about the names; None if it does not answer."""
    python = interpreter(command)
    if not names or python is None:
        return [None] * len(names)
    main, path = main_of(command)
    asked = {
        "path": path,
        "main": main,
        "names": list(names),
        "only_kinds": only_kinds,
    }
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SPEED_BUMP_")}
    try:
        done = subprocess.run(
            [python, "-m", "speed_bump._explain"],
            input=json.dumps(asked).encode(),
            capture_output=True,
            check=False,
            timeout=LOOK_S,
            env=environ,
        )
        answers = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return [None] * len(names)
    return list(answers)


def main_of(command: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """What ``__main__`` is, and the directories of the program's own modules."""
    words = list(command[1:])
    here = os.getcwd()
    while words:
        word = words.pop(0)
        if word == "-c" and words:
            return {"source": words[0]}, [here]
        if word == "-m" and words:
            return {"module": words[0]}, [here]
        if word in ("-W", "-X"):
            words[:1] = []
        elif not word.startswith("-"):
            path = os.path.abspath(word)
            if os.path.isfile(path):
                return {"path": path}, [os.path.dirname(path)]
            break
    return {}, [here]
