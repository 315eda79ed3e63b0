# SPDX-License-Identifier: MIT
"""Loads numpy with one thread for its algebra; import it before numpy.

The tool runs beside the program that it measures: threads of BLAS that spin while they
wait for each other would take its CPUs. The libraries read the variables when they are
loaded. The environment is restored afterwards, because the program under test inherits
it.
"""

from __future__ import annotations

import os

_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def _load() -> None:
    before = {name: os.environ.get(name) for name in _VARIABLES}
    os.environ.update(dict.fromkeys(_VARIABLES, "1"))
    try:
        import numpy  # noqa: F401
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_load()
