/* SPDX-License-Identifier: MIT */
/*
 * What is known of a code object, kept as long as the code object lives: it goes when
 * that goes, so no address is ever mistaken for another function's.
 *
 * Under the GIL a mark hangs on its code object (co_extra). In free-threaded CPython
 * co_extra is not safe against another thread that makes room on the same code object;
 * there the marks are in a table of ours that is read without a lock, and a weak
 * reference tells when a code object goes.
 */
#ifndef CORE_MARK_H
#define CORE_MARK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "compat.h"
#include "libsb.h"

/*
 * Written under the engine's lock, read without: @generation is 0 while the rest
 * changes, and a number is never used twice.
 */
struct mark {
	_Atomic uint32_t generation; /* of the patterns that it was looked up in */
	_Atomic bool resume;	     /* delay resumptions too */
	/*
	 * NULL: no pattern matches. Hit with the stamp 0: a hook that reads the clock
	 * first costs a call without a delay twice as much (bench/python/hooks.py),
	 * and what comes before the stamp is in the measured overhead all the same.
	 */
	struct sb_site *_Atomic site;
};

#ifdef Py_GIL_DISABLED

struct mark_table;

/* The marks of one interpreter. Zero at first. */
struct marks {
	struct mark_table *_Atomic table;
	core_mutex lock;
};

/* Once an interpreter, before the others. -1 with an exception. */
static inline int marks_prepare(struct marks *Py_UNUSED(marks))
{
	return 0;
}

/* NULL: none. The caller holds @code. */
struct mark *mark_find(struct marks *marks, PyObject *code);

#else

struct marks {
	Py_ssize_t index; /* of co_extra, and 1; 0: not asked for yet */
	bool known;	  /* co_extra leads to a struct code_extra */
};

/*
 * What co_extra leads to, as Objects/codeobject.c has it from 3.6 to 3.15 at least. It
 * is no part of the API: marks_prepare() tries whether it is so. To call the API instead
 * takes a fifth of the whole hook's time.
 */
struct code_extra {
	Py_ssize_t size;
	void *extras[];
};

int marks_prepare(struct marks *marks);

static inline struct mark *mark_find(struct marks *marks, PyObject *code)
{
	const struct code_extra *all = ((PyCodeObject *)code)->co_extra;
	void *extra = NULL;

	if (__builtin_expect(marks->known, 1))
		return all && marks->index <= all->size ? all->extras[marks->index - 1] :
							  NULL;
	PyUnstable_Code_GetExtra(code, marks->index - 1, &extra);
	return extra;
}

#endif

/* That of @code, a new one if it has none. NULL: no memory; no exception is left. */
struct mark *mark_make(struct marks *marks, PyObject *code);
/* In a forked child. */
void marks_after_fork(struct marks *marks);
/* The interpreter ends. */
void marks_free(struct marks *marks);

#endif
