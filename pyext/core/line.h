/* SPDX-License-Identifier: MIT */
/*
 * Lines as targets, by LINE events of only the code objects that contain such lines
 * (sys.monitoring, from CPython 3.12 on).
 */
#ifndef CORE_LINE_H
#define CORE_LINE_H

#include "engine.h"

/* The known lines. Zero: none. */
struct lines {
	struct line_table *_Atomic table; /* including tables that were replaced */
};

/*
 * Check whether lines of @code, which is run with @globals, are targets, and record their
 * sites: 1 if there are any, so that LINE events are needed. 0 if there are none, or this
 * can't be determined; no exception is set.
 */
int lines_see(struct lines *lines, struct engine *engine, PyObject *code,
	      PyObject *globals);
/*
 * The site of a line that begins; NULL: it is not a target. *@stale: the patterns have
 * changed since it was found, and the result is NULL.
 */
struct sb_site *lines_site(struct lines *lines, struct engine *engine, PyObject *code,
			   PyObject *line, bool *stale);
/* Drop all lines; lines_free() frees them when no thread is in the hook any more. */
struct line_table *lines_take(struct lines *lines);
void lines_free(struct line_table *table);

#endif
