/* SPDX-License-Identifier: MIT */
/*
 * Delays of mode=wait: the thread gives the interpreter away, as time.sleep() does.
 *
 * That may be done wherever a hook is called. CPython takes a callback of sys.monitoring for
 * Python code, which may give it away at any instruction; a C function that is called by a
 * pointer may do so as well, and the arguments are its caller's. What a frame that is to be
 * evaluated lacks for that in 3.10 evaluate.c sees to.
 */
#ifndef CORE_LEAVE_H
#define CORE_LEAVE_H

/* Once a process; more often does no harm. */
void leave_prepare(void);

#endif
