/* SPDX-License-Identifier: MIT */
/*
 * Lines that are targets, by LINE events of the code objects that have them and of no
 * others (sys.monitoring, from CPython 3.12 on).
 */
#ifndef CORE_LINE_H
#define CORE_LINE_H

#include "engine.h"

/* What is known of lines. Zero: nothing. */
struct lines {
	struct line_table *_Atomic table; /* with those that it replaced */
};

/*
 * See whether lines of @code, which is run with @globals, are targets, and note their
 * sites: 1 if there are any, so that its LINE events are wanted. 0 where there are none, or
 * it can't be found out; no exception is left.
 */
int lines_see(struct lines *lines, struct engine *engine, PyObject *code,
	      PyObject *globals);
/*
 * The site of a line that begins; NULL: it is none. *@stale is whether the patterns have
 * changed since it was seen, in which case it is NULL too.
 */
struct sb_site *lines_site(struct lines *lines, struct engine *engine, PyObject *code,
			   PyObject *line, bool *stale);
/* Call @call for each code object that has some, once or more. */
void lines_each(struct lines *lines, void (*call)(PyObject *code, void *arg), void *arg);
/* Forget all, which is for lines_free() once no thread is in the hook any more. */
struct line_table *lines_take(struct lines *lines);
void lines_free(struct line_table *table);

#endif
