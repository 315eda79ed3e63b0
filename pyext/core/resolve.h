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
int callables_traverse(struct callables *callables, visitproc visit, void *arg);
/*
 * Slow what the patterns of the engine mean and nothing else, from now on. Before the hook
 * watches: a compiled trace may have the C function of a method in it, and changed events
 * throw it away. -1 with an exception.
 */
int callables_apply(struct callables *callables);
/* All as it was. Before the hook is closed, which waits for threads that are in a delay. */
void callables_clear(struct callables *callables);
/* A function of @module is seen for the first time. No exception is left. */
void callables_seen(struct callables *callables, const char *module);
/* In a forked child. */
void callables_after_fork(struct callables *callables);
/* [(pattern, reason)]: what was found and can't be slowed. NULL with an exception. */
PyObject *callables_refused(struct callables *callables);

#endif
