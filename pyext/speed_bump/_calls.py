# SPDX-License-Identifier: MIT
"""Recording which C function is called where, for an experiment that reads stacks.

An instruction that calls has its function noted when it is first executed, and costs
nothing from then on. This needs CPython 3.12 or later, with a GIL: without one, switching
off the event of an instruction stops all threads.
"""

from __future__ import annotations

import os
import sys
import types

TYPE_CHECKING = False  # not from typing, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Types of C callables, apart from the interpreter's own, that have a name.
OTHER_TYPES = (
    "_lru_cache_wrapper",
    "cython_function_or_method",
    "fused_cython_function",
    "nb_func",
    "nb_method",
    "ufunc",
)
# Types of the objects that the name of a C function may refer to.
CALLED = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    staticmethod,
    classmethod,
)
FREE_TOOLS = (4, 3)


def start(table_path: str) -> bool:
    """Begin, in all threads; returns whether it was possible.

    Lines of ``TABLE.calls.PID`` have the address of a code object, the offset of the
    instruction, and the name of the function as in a pattern. With an offset of -1 the
    code object itself belongs to the function of that name.
    """
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    if sys.version_info < (3, 12) or not has_gil:
        return False
    monitoring: Any = vars(sys)["monitoring"]
    for tool in FREE_TOOLS:
        if monitoring.get_tool(tool) is None:
            monitoring.use_tool_id(tool, "speed_bump calls")
            monitoring.register_callback(
                tool, monitoring.events.CALL, _recorder(table_path)
            )
            monitoring.set_events(tool, monitoring.events.CALL)
            return True
    return False


def _recorder(table_path: str) -> Callable[..., object]:
    disable: object = vars(sys)["monitoring"].DISABLE
    files: dict[int, int] = {}
    python = (types.FunctionType, type)

    def called(
        code: types.CodeType, offset: int, function: object, _argument: object
    ) -> object:
        if type(function) in python:
            return disable
        name, at = name_of(function), (id(code), offset)
        if not name and type(function).__name__ == "_ArrayFunctionDispatcher":
            # numpy's own wrapper of a function with the same name.
            inner = getattr(function, "__wrapped__", None)
            if type(inner) is types.FunctionType:
                name = f"{inner.__globals__['__name__']}:{inner.__qualname__}"
                at = id(inner.__code__), -1
        if name:
            pid = os.getpid()
            try:
                if pid not in files:
                    files[pid] = os.open(
                        f"{table_path}.calls.{pid}",
                        os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
                        0o600,
                    )
                os.write(files[pid], f"{at[0]} {at[1]} {name}\n".encode())
            except (OSError, UnicodeError):
                pass  # the experiment has ended
        return disable

    return called


def name_of(function: object) -> str:
    """``module:qualname`` under which a C function is found; "" if there is none."""
    kind = type(function)
    if kind is types.BuiltinFunctionType:
        return _of_builtin(function)
    if kind in (types.MethodDescriptorType, types.ClassMethodDescriptorType):
        owner = function.__objclass__  # type: ignore[attr-defined]
        return _of_type(owner, function.__name__)  # type: ignore[attr-defined]
    if kind.__name__ in OTHER_TYPES:
        name = getattr(function, "__qualname__", None) or getattr(
            function, "__name__", None
        )
        module = getattr(function, "__module__", None)
        if kind.__name__ == "ufunc":
            module = module or "numpy"
        return _found(module, name)
    return ""


def _of_builtin(function: object) -> str:
    name = function.__name__  # type: ignore[attr-defined]
    owner = function.__self__  # type: ignore[attr-defined]
    if owner is None or isinstance(owner, types.ModuleType):
        module = function.__module__ or getattr(owner, "__name__", None)
        return _found(module, name)
    kind = owner if isinstance(owner, type) else type(owner)
    for base in type.mro(kind) if kind is not type else (kind,):
        if name in base.__dict__:
            return _of_type(base, name)
    return ""


def _of_type(owner: type, name: str) -> str:
    return _found(owner.__module__, f"{owner.__qualname__}.{name}")


def _found(module: object, qualname: object) -> str:
    """The name, if an object has it."""
    if not isinstance(module, str) or not isinstance(qualname, str):
        return ""
    if module.partition(".")[0] == "speed_bump" or "\n" in qualname or " " in qualname:
        return ""
    found: object = sys.modules.get(module)
    for part in qualname.split("."):
        try:
            found = vars(found)[part]
        except (KeyError, TypeError):
            # The method may be inherited from a base class.
            mro = type.mro(found) if isinstance(found, type) and found is not type else ()
            found = next((vars(b)[part] for b in mro if part in vars(b)), None)
        if found is None:
            return ""
    # The name may be that of another object: numpy:fft is no ufunc.
    is_callable = isinstance(found, CALLED) or type(found).__name__ in OTHER_TYPES
    return f"{module}:{qualname}" if is_callable else ""
