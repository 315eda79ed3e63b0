/* SPDX-License-Identifier: MIT */
/*
 * What is delayed: the patterns in force, and what they say about each code object.
 *
 * The answer for a code object is worked out at the first sight of it and hangs on it
 * (co_extra), so it goes when the code object goes and no address is ever mistaken for
 * another function's. It is good for one generation of the patterns.
 */
#ifndef CORE_ENGINE_H
#define CORE_ENGINE_H

#include "compat.h"
#include "libsb.h"

/* What is known of a code object. */
struct mark {
	uint32_t generation; /* of the patterns that it was looked up in */
	bool resume;	     /* delay resumptions too */
	/*
	 * NULL: no pattern matches. Hit with the stamp 0: a hook that reads the clock
	 * first costs a call without a delay twice as much (bench/python/hooks.py),
	 * and what comes before the stamp is in the measured overhead all the same.
	 */
	struct sb_site *site;
};

/*
 * The process's one engine. All under the GIL. A generation is never reused: it counts
 * up with each change of the patterns, and 0 is never one.
 */
struct engine {
	uint32_t generation;
	Py_ssize_t extra_index; /* of co_extra; -1: not asked for yet */
	PyObject *table;	/* Table; NULL: not installed */
	struct sb_specs *specs;
	struct sb_patterns *patterns;
	struct rule *rules; /* one for each of specs */
	bool resumes;	    /* some rule has resume */
};

extern struct engine engine;

/* Ask the interpreter for a place on code objects. Once a process. */
int engine_prepare(void);
/* Begin to look up in @text, an sb_specs text, with a policy tuple for each spec. */
int engine_set(PyObject *table, const char *text, Py_ssize_t length, PyObject *policies);
/* Forget the patterns; the marks on code objects go stale. */
void engine_clear(void);
/* Let every mark go stale. */
void engine_forget(void);

/* First sight of @code, called with @globals (may be NULL). NULL: no memory. */
struct mark *engine_look(PyObject *code, PyObject *globals);

/* The mark on @code if it is there and good. */
static inline struct mark *engine_mark(PyObject *code)
{
	void *extra = NULL;
	struct mark *mark;

	PyUnstable_Code_GetExtra(code, engine.extra_index, &extra);
	mark = extra;
	return mark && mark->generation == engine.generation ? mark : NULL;
}

#endif
