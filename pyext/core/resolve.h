/* SPDX-License-Identifier: MIT */
/*
 * Names of C callables: which objects the patterns in force mean, also those that are
 * imported later.
 *
 * No Python code runs in a search: a module's attributes are those in its dictionary, a
 * type's those of its bases.
 *
 * A pattern without a glob means what is reached by that name. One with a glob means what
 * belongs to the module: an object that was only imported there is not meant, and with a
 * glob on the left side neither are the modules that the interpreter itself works with.
 */
#ifndef CORE_RESOLVE_H
#define CORE_RESOLVE_H

#include "engine.h"

struct callables;

/* @engine lives longer. NULL with an exception. */
struct callables *callables_new(struct engine *engine);
/* The interpreter ends. */
void callables_free(struct callables *callables);

/*
 * A change is these four, in this order. The two in the middle run no Python code.
 *
 * callables_prepare() looks up what @patterns mean, which are to be in force with @table;
 * NULL: nothing is. -1 with an exception; nothing has changed then, and the others need not
 * follow. If they do nothing is slowed until callables_finish() tries anew.
 */
int callables_prepare(struct callables *callables, PyObject *table,
		      const struct engine_patterns *patterns);
/* Slow that and nothing else. Before engine_set() or its like, which let the table go. */
void callables_swap(struct callables *callables);
/* The engine has the patterns. */
void callables_set(struct callables *callables);
/* Whether or not there was a change. No exception is left. */
void callables_finish(struct callables *callables);
/* A function of @module is seen for the first time. No exception is left. */
void callables_seen(struct callables *callables, const char *module);
/* In a forked child. */
void callables_after_fork(struct callables *callables);
/* [(pattern, reason)]: what was found and can't be slowed. NULL with an exception. */
PyObject *callables_refused(struct callables *callables);

#endif
