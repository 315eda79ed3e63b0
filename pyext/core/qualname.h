/* SPDX-License-Identifier: MIT */
/*
 * The qualified name of a code object. From CPython 3.11 on the code object has it;
 * before, qualname.c works it out.
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

/* Of one interpreter. Zero at first. */
struct names {
	Py_ssize_t index; /* of co_extra, and 1; 0: not asked for yet */
	bool searched;	  /* what runs and lives was looked through */
};

/* Once an interpreter. -1 with an exception. */
int names_prepare(struct names *names);
/* Code may have come that nobody showed us. */
void names_forget(struct names *names);
/* A new reference. NULL: no memory; no exception is left. */
PyObject *qualname_of(struct names *names, PyObject *code);

#endif

#endif
