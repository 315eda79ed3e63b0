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

# To look for names takes no longer; a large library is imported for it.
LOOK_S = 30.0
# These are imported where functions are compiled that are then called no more.
COMPILING = ("torch._inductor.compile_fx", "torch._dynamo.convert_frame")
MAX_SAID = 20
# Of a function whose duration is wanted.
IN_C = "it is written in C, and its end is not seen; name a Python function that calls it"
# A reason that begins so is that of a C function, or of a class, that was refused.
REFUSED = "it can't be had: "
# Names that were called, of which it is seen whether a target is one of them.
MAX_OTHERS = 200


def refused(names: Sequence[str], command: Sequence[str]) -> list[tuple[str, str]]:
    """Names of latencies that are seen to be none before the program runs, and why.

    No module is imported for it.
    """
    literal = [
        name.rpartition(":")[::2]
        for name in names
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
    """Of each target that was not called a sentence on why, by its pattern.

    Those that are other names of what was called are not in it.

    Args:
        called: functions that were called, and are counted for other targets
        imported: the Python modules that processes of the program have run
        refused: C functions that could not be had, and why, as the program says
        ends: their ends are wanted, which functions in C have not
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
            found[pattern] = "no such line began: the program did not come there, or its "
            found[pattern] += "file or module is called otherwise"
        elif _is_glob(target):
            found[pattern] = _of_glob(target, imported)
        else:
            found[pattern] = _of_name(target, answer, imported, ends)
    return found


def lines(found: Mapping[str, str]) -> list[str]:
    """For people."""
    said = [
        f"{pattern} can't be had: {text.removeprefix(REFUSED)}"
        if text.startswith(REFUSED)
        else f"{pattern} was never called: {text}"
        for pattern, text in found.items()
    ]
    if len(said) > MAX_SAID:
        more = len(said) - MAX_SAID
        said[MAX_SAID:] = [f"{more} more targets were never called"]
    return said


def is_of(target: Target, name: str) -> bool:
    """Whether the target means a function, ``module:qualname``, too."""
    left, _, right = name.rpartition(":")
    if target.source_line and ("/" in target.left or target.left.endswith(".py")):
        # By a path; the name has the module.
        return target.right == right
    return (
        not target.native
        and _core.glob_match(target.left, left)
        and _core.glob_match(target.right, right)
    )


def _is_glob(target: Target) -> bool:
    return bool(set("*?[") & set(target.left + target.right))


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
            "it was imported and never called, or there is none of that name"
            if ran
            else "it was never imported, or there is no such name"
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
        return "it is compiled, and what is compiled is called no more in Python"
    if not ran and answer["seen"] and imported:
        return f"{left} was never imported by the program"
    compiling = [name for name in COMPILING[:1] if name in imported]
    if compiling:
        return "it may have been compiled away by torch.compile"
    return "it exists, and the program never called it"


def _ask(
    names: Sequence[tuple[str, str]], command: Sequence[str], only_kinds: bool = False
) -> list[Mapping[str, Any] | None]:
    """What the program's interpreter knows of the names; None: it can't be asked."""
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
    """What ``__main__`` is, and where the program's own modules are."""
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
