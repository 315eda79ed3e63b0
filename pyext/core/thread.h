/* SPDX-License-Identifier: MIT */
/*
 * Names of threads, as threading.Thread has them: for targets that are of some threads alone.
 */
#ifndef CORE_THREAD_H
#define CORE_THREAD_H

/* Once a process; more often does no harm. */
void thread_prepare(void);

#endif
