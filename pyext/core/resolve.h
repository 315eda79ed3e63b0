/* SPDX-License-Identifier: MIT */
/*
 * Names of C callables: the objects that the patterns in force select, also in modules
 * that are imported later.
 *
 * No Python code runs in a search: the attributes of a module are those in its
 * dictionary, those of a type are in its bases.
 *
 * A pattern without a glob selects every object with that name. One with a glob selects
 * objects that belong to the module: not those that were only imported there, and with a
 * glob on the left side not those of modules that the interpreter itself uses.
 */
#ifndef CORE_RESOLVE_H
#define CORE_RESOLVE_H

#include "engine.h"

struct callables;

/* @engine must outlive it. NULL with an exception. */
struct callables *callables_new(struct engine *engine);
/* The interpreter ends. */
void callables_free(struct callables *callables);

/*
 * A change consists of these four calls, in this order. The two in the middle run no
 * Python code.
 *
 * callables_prepare() looks up the objects of @patterns, which are to be in force with
 * @table; NULL: nothing is to be in force. -1 with an exception: nothing has changed, and
 * the others need not be called. If they are, nothing is slowed until callables_finish()
 * tries again.
 */
int callables_prepare(struct callables *callables, PyObject *table,
		      const struct engine_patterns *patterns);
/*
 * Slow these objects and no others. Called before engine_set() or similar, which release
 * the table.
 */
void callables_swap(struct callables *callables);
/* The engine has the new patterns. */
void callables_set(struct callables *callables);
/* Called whether or not there was a change. No exception is set. */
void callables_finish(struct callables *callables);
/* A function of @module is seen for the first time. No exception is set. */
void callables_seen(struct callables *callables, const char *module);
/* In a forked child. */
void callables_after_fork(struct callables *callables);
/* [(pattern, reason)]: what was found and can't be slowed. NULL with an exception. */
PyObject *callables_refused(struct callables *callables);

#endif
