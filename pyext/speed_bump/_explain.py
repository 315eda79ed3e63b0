# SPDX-License-Identifier: MIT
"""Find out why names were never called; run by the interpreter of the program.

Reads JSON, {"path": [directories], "main": what __main__ is, "names": [[module,
qualname]]}, and writes a list with an answer for each name:

    {"module": what it is, "is": what the name is, "reason": why it can't be slowed,
     "near": the nearest names, module:qualname, "seen": whether a run shows that the
     module is imported, "same": equal for names of the same object, "in_c":
     whether it is a callable with no Python code}

With "only_kinds" an answer is {"is", "near"} alone, where "is" may be "C", and no module
is imported for it. The program's own files are read and not run; modules of libraries may
be imported.
"""

from __future__ import annotations

import sys

# No program imports the modules that exist before its first import.
PRELOADED = frozenset(sys.modules)

# ruff: noqa: E402
import ast
import difflib
import importlib
import importlib.util
import json
import os
import pkgutil

TYPE_CHECKING = False  # not from typing, which is slow to import
if TYPE_CHECKING:
    from typing import Any

    # The kind of a name: "function", "type", "other", or "=module:name" of another name.
    Names = dict[str, str]

COMPILERS = ("jit", "njit", "vectorize", "compile", "cuda")
MAX_NEAR = 3


def names_in(source: str) -> tuple[Names, set[str]]:
    """All functions and classes of a module's source, and those that are compiled."""
    found: Names = {}
    compiled: set[str] = set()

    def visit(nodes: list[ast.stmt], prefix: str) -> None:
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                name = prefix + node.name
                found[name] = "function"
                if any(_last(d) in COMPILERS for d in node.decorator_list):
                    compiled.add(name)
                visit(node.body, f"{name}.<locals>.")
            elif isinstance(node, ast.ClassDef):
                found[prefix + node.name] = "type"
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    name = alias.asname or alias.name
                    found[prefix + name] = f"={node.module}:{alias.name}"
            else:
                for field in ("body", "orelse", "finalbody", "handlers"):
                    inner = getattr(node, field, [])
                    visit([n for n in inner if isinstance(n, ast.stmt)], prefix)
                    for handler in inner:
                        if isinstance(handler, ast.ExceptHandler):
                            visit(handler.body, prefix)

    visit(ast.parse(source).body, "")
    return found, compiled


def _last(decorator: ast.expr) -> str:
    """The last part of the decorator's name."""
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    if isinstance(decorator, ast.Attribute):
        return decorator.attr
    return decorator.id if isinstance(decorator, ast.Name) else ""


def names_of(module: object) -> Names:
    """The names of an imported module."""
    found: Names = {}
    for name, value in list(vars(module).items()):
        found[name] = _kind(value)
        if isinstance(value, type):
            for inner, its in list(vars(value).items()):
                found[f"{name}.{inner}"] = _kind(its)
    return found


def _kind(value: object) -> str:
    if isinstance(value, type):
        return "type"
    return "function" if callable(value) or hasattr(value, "__get__") else "other"


class Module:
    """A module, as far as it is known without running the program."""

    def __init__(self, name: str, main: dict[str, Any], own: list[str]) -> None:
        """``main`` is what __main__ is; modules in ``own`` are not imported."""
        self.names: Names = {}
        self.compiled: set[str] = set()
        self.exists = True
        self.is_python = False
        self.module: object = None
        try:
            self._find(name, main, own)
        except (ImportError, AttributeError, ValueError, OSError, SyntaxError):
            self.exists = False

    def _find(self, name: str, main: dict[str, Any], own: list[str]) -> None:
        if name == "__main__" and "source" in main:
            self.names, self.compiled = names_in(main["source"])
            return
        path = main.get("path") if name == "__main__" else None
        if path is None:
            spec = importlib.util.find_spec(main.get("module") or name)
            if spec is None:
                self.exists = False
                return
            path = spec.origin
        self.is_python = bool(path and path.endswith(".py"))
        if path and self.is_python:
            with open(path, "rb") as file:
                self.names, self.compiled = names_in(file.read().decode("utf-8"))
            if name == "__main__" or os.path.dirname(os.path.abspath(path)) in own:
                return
        self.module = importlib.import_module(name)
        # Names that an import creates are included.
        self.names = {**names_of(self.module), **self.names}

    def value(self, qualname: str) -> object:
        """The object that a name refers to; None if it is unknown."""
        found = self.module
        for part in qualname.split("."):
            found = getattr(found, part, None)
        return found

    def identity(self, qualname: str) -> int:
        """Which object a name stands for; 0 where that is not known."""
        found = self.value(qualname)
        return id(found) if found is not None else 0

    def is_in_c(self, qualname: str) -> bool:
        """Whether it is called and has no Python code."""
        found = self.value(qualname)
        while hasattr(found, "__wrapped__"):
            found = found.__wrapped__
        found = getattr(found, "__func__", found)
        return (
            callable(found)
            and not isinstance(found, type)
            and not hasattr(found, "__code__")
        )


def explain(module: str, qualname: str, main: dict[str, Any], own: list[str]) -> Any:
    """The answer for one name."""
    seen = Module(module, main, own)
    answer: dict[str, Any] = {
        "module": "there" if seen.exists else "absent",
        "is": seen.names.get(qualname, "absent"),
        "compiled": qualname in seen.compiled,
        "reason": "",
        "near": [],
        "seen": seen.is_python and module not in PRELOADED,
        "same": seen.identity(qualname),
        "in_c": seen.is_in_c(qualname),
    }
    if answer["is"] == "type":
        answer["near"] = _methods(module, qualname, seen.names)
    elif answer["is"] == "absent":
        answer["near"] = _near(module, qualname, seen, main, own)
    elif seen.module is not None:
        answer["reason"] = _refused(module, qualname)
    return answer


def _methods(module: str, qualname: str, names: Names) -> list[str]:
    """Methods of a type that may be meant by its name."""
    prefix = f"{qualname}."
    methods = [n for n, kind in names.items() if n.startswith(prefix)]
    methods = [n for n in methods if names[n] == "function"]
    first = [f"{prefix}__init__", f"{prefix}__call__", f"{prefix}forward"]
    ordered = [n for n in first if n in methods]
    ordered += [n for n in methods if not n.endswith("__")]
    return [f"{module}:{n}" for n in ordered[:MAX_NEAR]]


def kind(module: str, qualname: str, main: dict[str, Any]) -> Any:
    """The answer for one name without an import: "" where that is not known."""
    names: Names = {}
    try:
        if module == "__main__" and "source" in main:
            names = names_in(main["source"])[0]
        else:
            its = main.get("module", module) if module == "__main__" else module
            path = main.get("path") if module == "__main__" else None
            path = path or _file_of(its)
            if path == "":
                return {"is": "C", "near": []}
            if path and path.endswith(".py"):
                with open(path, "rb") as file:
                    names = names_in(file.read().decode("utf-8"))[0]
    except (ImportError, AttributeError, ValueError, OSError, SyntaxError):
        pass
    found = names.get(qualname, "")
    near = _methods(module, qualname, names) if found == "type" else []
    return {"is": found, "near": near}


def _file_of(module: str) -> str | None:
    """Where a module's source is; "": it is written in C; None: not known."""
    from importlib.machinery import EXTENSION_SUFFIXES, PathFinder

    if module in sys.builtin_module_names:
        return ""
    paths, name, origin = None, "", None
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, paths)
        if spec is None:
            return None
        paths = list(spec.submodule_search_locations or [])
        origin = spec.origin
    return "" if origin and origin.endswith(tuple(EXTENSION_SUFFIXES)) else origin


def _near(
    module: str, qualname: str, seen: Module, main: dict[str, Any], own: list[str]
) -> list[str]:
    if seen.exists:
        last = qualname.rpartition(".")[2]
        functions = [n for n, kind in seen.names.items() if kind != "type"]
        near = [n for n in functions if n.rpartition(".")[2] == last]
        near += _nearest(qualname, functions) or _nearest(qualname, list(seen.names))
        return [f"{module}:{n}" for n in dict.fromkeys(near)][:MAX_NEAR]
    found = []
    for other in _near_modules(module):
        names = Module(other, main, own).names
        if qualname in names:
            return [f"{other}:{qualname}"]
        near = difflib.get_close_matches(qualname, names, 1, 0.6)
        found += [f"{other}:{n}" for n in near]
    return found[:MAX_NEAR]


def _nearest(name: str, names: list[str]) -> list[str]:
    """The names that are spelt most alike, without those far behind the best."""
    found = difflib.get_close_matches(name, names, MAX_NEAR, 0.6)
    ratios = [difflib.SequenceMatcher(None, name, other).ratio() for other in found]
    return [n for n, r in zip(found, ratios, strict=True) if r > max(ratios) - 0.15]


def _near_modules(module: str) -> list[str]:
    """Modules with a similar name."""
    parent, _, last = module.rpartition(".")
    if parent:
        try:
            spec = importlib.util.find_spec(parent)
        except (ImportError, AttributeError, ValueError):
            spec = None
        if spec is None:
            return [f"{n}.{last}" for n in _near_modules(parent)]
        paths = list(spec.submodule_search_locations or [])
        names = [m.name for m in pkgutil.iter_modules(paths)]
    else:
        names = [*sys.stdlib_module_names, *(m.name for m in pkgutil.iter_modules())]
    near = difflib.get_close_matches(last, names, MAX_NEAR, 0.6)
    return [f"{parent}.{n}" if parent else n for n in near]


def _refused(module: str, qualname: str) -> str:
    """Why an existing C function can't be slowed; "" if it can."""
    import glob

    from speed_bump import _core, control
    from speed_bump.config import Config

    pattern = f"{glob.escape(module)}:{glob.escape(qualname)}"
    os.environ["SPEED_BUMP_QUIET"] = "1"
    try:
        control.install(Config([pattern], delay_ns=0))
        return next((str(reason) for _, reason in _core.refused()), "")
    except Exception:
        return ""
    finally:
        control.uninstall()


def main() -> None:
    """Answer the question on standard input."""
    asked = json.load(sys.stdin)
    sys.path[:0] = asked["path"]
    # Keep what a module prints when it is imported out of the answer.
    out, sys.stdout = sys.stdout, sys.stderr
    if asked.get("only_kinds"):
        answers = [kind(module, name, asked["main"]) for module, name in asked["names"]]
    else:
        answers = [
            explain(module, name, asked["main"], asked["path"])
            for module, name in asked["names"]
        ]
    json.dump(answers, out)


if __name__ == "__main__":
    main()
