/* SPDX-License-Identifier: MIT */
#ifndef CORE_ERRORS_H
#define CORE_ERRORS_H

#include "compat.h"
#include "libsb.h"

/*
 * Raise what @err says and free it: ValueError for a text that is wrong (EINVAL,
 * ERANGE), MemoryError, OSError with its errno for everything else. @err may be NULL,
 * then @code alone is raised. Returns NULL.
 */
PyObject *raise_error(struct sb_error *err, int code);

/* The same, always as OSError with errno: what the kernel or a file refused. */
PyObject *raise_os_error(struct sb_error *err, int code);

#endif
