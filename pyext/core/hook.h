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
/* Tell of the calls of @function alone, in this thread, and their @ends, or no more. */
int hook_watch_one(struct hook *hook, PyObject *function, int on, int ends);
/*
 * Tell of every call in every thread, and of resumptions if @resumes; with @ends, of the ends
 * of those whose delays are there.
 */
int hook_watch_all(struct hook *hook, int resumes, int ends);
/* The marks on code objects went stale: tell again of what was found not to match. */
int hook_forget(struct hook *hook);
/* In a forked child. */
void hook_after_fork(struct hook *hook);
/* While @on what is found not to match is told of all the same: patterns are changing. */
void hook_keep(struct hook *hook, int on);
/* Lines are targets: look at the functions that are being run, in all threads. */
void hook_see_running(struct hook *hook);
/*
 * When it returns no thread uses what it found in the engine before. One that gave the
 * interpreter away in a delay (leave.h, signals.h) is still in the hook: it keeps its table,
 * and looks all else up anew. No exception is left.
 */
void hook_settle(struct hook *hook);
/*
 * Tell of nothing more, leave no trace. It is settled then, as hook_settle() says. -1 with
 * an exception: all but what that says is done.
 */
int hook_close(struct hook *hook);

#endif
