/* SPDX-License-Identifier: MIT */
#ifndef CORE_ORPHANS_H
#define CORE_ORPHANS_H

#include "compat.h"

/*
 * adopt_orphans(on): descendants whose parents exit become children of this process (or
 * no longer do).
 */
PyObject *adopt_orphans(PyObject *module, PyObject *on);

#endif
