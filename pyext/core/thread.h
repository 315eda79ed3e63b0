/* SPDX-License-Identifier: MIT */
/*
 * Names of threads, as in threading.Thread, for targets that apply to some threads only.
 */
#ifndef CORE_THREAD_H
#define CORE_THREAD_H

/* Called once per process; further calls do no harm. */
void thread_prepare(void);

#endif
