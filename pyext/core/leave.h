/* SPDX-License-Identifier: MIT */
/*
 * Delays of mode=wait: the thread releases the interpreter, as time.sleep() does.
 *
 * This is possible wherever a hook is called. For CPython a callback of sys.monitoring is
 * Python code, which may release it at any instruction; a C function that is called
 * through a pointer may do so too, and its caller holds the arguments. In 3.10 a frame to
 * be evaluated needs additional care, which evaluate.c takes.
 */
#ifndef CORE_LEAVE_H
#define CORE_LEAVE_H

/* Called once per process; further calls do no harm. */
void leave_prepare(void);
#endif
