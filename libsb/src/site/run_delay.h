/* SPDX-License-Identifier: MIT */
/*
 * How long a thread was runnable but off the CPU, by the kernel's schedstat file of the thread.
 * In a thread that slept, to open it takes 43 us and to read it 2 (Linux 6.18, x86-64): up to
 * RUN_DELAY_FILES threads keep theirs open.
 */
#ifndef SB_SITE_RUN_DELAY_H
#define SB_SITE_RUN_DELAY_H

#include <stdint.h>

#define RUN_DELAY_FILES 64

/* Before the first thread reads its time, which may be in a signal handler. */
void sb_run_delay_prepare(void);

/*
 * Of the calling thread, ns since it began; 0: unknown. @cpu_ns is its CPU time, read just
 * before. May change errno.
 */
uint64_t sb_run_delay_ns(uint64_t cpu_ns);

/* Close all files that are still open. Other threads may read theirs meanwhile. */
void sb_run_delay_close(void);

#endif
