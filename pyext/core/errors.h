/* SPDX-License-Identifier: MIT */
#ifndef CORE_ERRORS_H
#define CORE_ERRORS_H

#include "compat.h"
#include "libsb.h"

/*
 * Raise @err and free it: ValueError for an invalid text (EINVAL, ERANGE), MemoryError,
 * or OSError with its errno for everything else. @err may be NULL, then @code is raised.
 * Returns NULL.
 */
PyObject *raise_error(struct sb_error *err, int code);

/* The same, but always as OSError with errno: an error of the kernel or of a file. */
PyObject *raise_os_error(struct sb_error *err, int code);

/* The same; its attribute "target" is @index, the target that failed; -1: no single one. */
PyObject *raise_os_error_of(struct sb_error *err, int code, Py_ssize_t index);

#endif
