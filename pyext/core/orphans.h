/* SPDX-License-Identifier: MIT */
#ifndef CORE_ORPHANS_H
#define CORE_ORPHANS_H

#include "compat.h"

/* adopt_orphans(on): descendants whose parents end become our children (or no more). */
PyObject *adopt_orphans(PyObject *module, PyObject *on);

#endif
