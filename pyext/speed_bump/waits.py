# SPDX-License-Identifier: MIT
"""How long a rank waits for others: timing the collectives of torch.distributed and MPI.

Waits of the host are reported by ``_core.waited()``: in blocking collectives and in
``Work.wait()``. A collective that is only started, with ``async_op=True``, returns at
once and counts for almost nothing until it is waited for. Waits in C++, such as those of
the reducer of DistributedDataParallel, and waits of a device, are not measured.

MPI is timed between the library and its callers, native or mpi4py, by a library that is
loaded before it (``preloaded()``, core/mpi_waits.c).
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time

from speed_bump import _core

TYPE_CHECKING = False  # not from typing, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

LIBRARY = "mpi_waits.so"
MODULE = "torch.distributed.distributed_c10d"
FUNCTIONS = (
    "_all_gather_base",
    "_reduce_scatter_base",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
)


class _Inside(threading.local):
    """Whether this thread is in a collective already: collectives may call others."""

    depth = 0


_inside = _Inside()


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, with its time counted as waiting."""

    @functools.wraps(function)
    def wait(*args: Any, **kwargs: Any) -> Any:
        if _inside.depth:
            return function(*args, **kwargs)
        _inside.depth = 1
        begin = time.perf_counter_ns()
        try:
            return function(*args, **kwargs)
        finally:
            _inside.depth = 0
            _core.waited(time.perf_counter_ns() - begin)

    return wait


def _time_all(module: ModuleType) -> None:
    for name in FUNCTIONS:
        function = getattr(module, name, None)
        if function is not None:
            setattr(module, name, timed(function))
    work = getattr(module, "Work", None)
    if work is not None:
        work.wait = timed(work.wait)


class _Finder:
    """Times the module when it is imported, before other modules copy its names."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The found spec, whose ``exec_module()`` is followed by the timing."""
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            try:
                _time_all(module)
            except Exception:  # the program must not fail because of it
                return

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def preloaded(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment that loads the library before MPI; empty if there is none."""
    library = os.path.join(os.path.dirname(_core.__file__), LIBRARY)
    if not os.path.exists(library):
        return {}
    before = environ.get("LD_PRELOAD", "")
    return {"LD_PRELOAD": f"{before}:{library}".lstrip(":")}


def watch() -> None:
    """Time the collectives of this process from now on."""
    _core.watch_mpi()
    module = sys.modules.get(MODULE)
    if module is not None:
        _time_all(module)
    else:
        sys.meta_path.insert(0, _Finder())
