/* SPDX-License-Identifier: MIT */
#ifndef CORE_TYPES_H
#define CORE_TYPES_H

#include "compat.h"

struct records;

/*
 * Whether an object is a Table, or a Session, of the module that @type belongs to: by the
 * types that the module created, because its attributes may be rebound. -1 with an
 * exception.
 */
int is_table(PyTypeObject *type, PyObject *object);
int is_session(PyTypeObject *type, PyObject *object);

/*
 * The types of records where @object is: the module, or an object of one of its types. NULL
 * with an exception.
 */
struct records *records_of(PyObject *object);

#endif
