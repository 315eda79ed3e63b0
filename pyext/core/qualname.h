/* SPDX-License-Identifier: MIT */
/*
 * The qualified name of a code object. From CPython 3.11 on, code objects have it;
 * before, qualname.c determines it.
 */
#ifndef CORE_QUALNAME_H
#define CORE_QUALNAME_H

#include <stdbool.h>

#include "compat.h"

#if PY_VERSION_HEX >= 0x030B0000

struct names {
	char unused;
};

static inline int names_prepare(struct names *Py_UNUSED(names))
{
	return 0;
}

static inline void names_forget(struct names *Py_UNUSED(names))
{
}

static inline PyObject *qualname_of(struct names *Py_UNUSED(names), PyObject *code)
{
	return Py_NewRef(((PyCodeObject *)code)->co_qualname);
}

#else

/* The state of one interpreter. Zero initially. */
struct names {
	Py_ssize_t index; /* index of co_extra plus 1; 0: not requested yet */
	bool searched; /* living functions and frames were examined */
};

/* Once an interpreter. -1 with an exception. */
int names_prepare(struct names *names);
/* Code may have been loaded without being seen. */
void names_forget(struct names *names);
/* A new reference. NULL: no memory; no exception is set. */
PyObject *qualname_of(struct names *names, PyObject *code);

#endif

#endif
