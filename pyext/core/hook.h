/* SPDX-License-Identifier: MIT */
/*
 * How the interpreter tells of the calls it makes: monitor.c (PEP 669) from CPython
 * 3.12 on, evaluate.c (the evaluation of frames, PEP 523) before.
 */
#ifndef CORE_HOOK_H
#define CORE_HOOK_H

#include "engine.h"

/* "monitoring" or "evaluate". */
extern const char hook_name[];

/* That of one interpreter. */
struct hook;

/* @engine lives longer. NULL with an exception. */
struct hook *hook_new(struct engine *engine);
/* The interpreter ends: tell of nothing more. */
void hook_free(struct hook *hook);

/*
 * Make ready, without any call being told of yet; nothing is done where it is. -1 with an
 * exception.
 */
int hook_open(struct hook *hook);
/* Tell of the calls of @function alone, in this thread, or no more. */
int hook_watch_one(struct hook *hook, PyObject *function, int on);
/* Tell of every call in every thread, and of resumptions if @resumes. */
int hook_watch_all(struct hook *hook, int resumes);
/* The marks on code objects went stale: tell again of what was found not to match. */
int hook_forget(struct hook *hook);
/* While @on what is found not to match is told of all the same: patterns are changing. */
void hook_keep(struct hook *hook, int on);
/*
 * Tell of nothing more, leave no trace. When it returns no thread is in the hook any
 * more, nor in a delay. -1 with an exception: all but what that says is done.
 */
int hook_close(struct hook *hook);

#endif
