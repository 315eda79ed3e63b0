/* SPDX-License-Identifier: MIT */
#ifndef CORE_TYPES_H
#define CORE_TYPES_H

#include "compat.h"

/*
 * Whether an object is a Table, or a Session, of the module that @type is of. As the module
 * made these types: its attributes of those names may be rebound. -1 with an exception.
 */
int is_table(PyTypeObject *type, PyObject *object);
int is_session(PyTypeObject *type, PyObject *object);

#endif
