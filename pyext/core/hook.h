/* SPDX-License-Identifier: MIT */
/*
 * The hook into the interpreter's calls: monitor.c (PEP 669) from CPython 3.12 on,
 * evaluate.c (the evaluation of frames, PEP 523) before.
 */
#ifndef CORE_HOOK_H
#define CORE_HOOK_H

#include "engine.h"

/* "monitoring" or "evaluate". */
extern const char hook_name[];

/* The hook of one interpreter. */
struct hook;

/* @engine must outlive it. NULL with an exception. */
struct hook *hook_new(struct engine *engine);
/* The interpreter ends: report nothing more. */
void hook_free(struct hook *hook);

/*
 * Prepare the hook without reporting calls yet; does nothing if that is done. -1 with an
 * exception.
 */
int hook_open(struct hook *hook);
/* Report only calls of @function, in this thread, and their @ends; or no more. */
int hook_watch_one(struct hook *hook, PyObject *function, int on, int ends);
/*
 * Report every call in every thread, and resumptions if @resumes; with @ends, also the
 * ends of calls that are delayed there.
 */
int hook_watch_all(struct hook *hook, int resumes, int ends);
/* Marks on code objects are stale: report again functions that did not match. */
int hook_forget(struct hook *hook);
/* In a forked child. */
void hook_after_fork(struct hook *hook);
/* While @on, also report functions that do not match: patterns are changing. */
void hook_keep(struct hook *hook, int on);
/* Lines are targets: search the functions that are running, in all threads. */
void hook_see_running(struct hook *hook);
/*
 * When it returns, no thread uses results of the engine from before. A thread that
 * released the interpreter in a delay (leave.h, signals.h) is still in the hook: it holds
 * its table, and looks everything else up again. No exception is set.
 */
void hook_settle(struct hook *hook);
/*
 * Report nothing more and restore the interpreter. Threads are settled then, as
 * hook_settle() says. -1 with an exception: everything except what it names is done.
 */
int hook_close(struct hook *hook);

#endif
