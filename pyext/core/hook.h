/* SPDX-License-Identifier: MIT */
/*
 * How the interpreter tells of the calls it makes: monitor.c (PEP 669) from CPython
 * 3.12 on, setprofile.c (a profile function on every thread) before.
 */
#ifndef CORE_HOOK_H
#define CORE_HOOK_H

#include "compat.h"

/* "monitoring" or "setprofile". */
extern const char hook_name[];

/* Make ready, without any call being told of yet. -1 with an exception. */
int hook_open(PyObject *module);
/* Tell of the calls of @function alone, in this thread, or no more. */
int hook_watch_one(PyObject *function, int on);
/* Tell of every call in every thread, and of resumptions if @resumes. */
int hook_watch_all(int resumes);
/* The marks on code objects went stale: tell again of what was found not to match. */
int hook_forget(void);
/* Tell of nothing more, leave no trace. -1 with an exception. */
int hook_close(void);

#endif
