/* SPDX-License-Identifier: MIT */
/*
 * Random delays. Each thread has random numbers of its own, without a lock; a forked
 * child has none of its parent's.
 */
#ifndef SB_DRAW_H
#define SB_DRAW_H

#include <stdint.h>

#include "libsb-provisional.h"

/* A delay around @mean, ns, at most SB_MAX_DELAY_NS. Async-signal-safe. */
uint64_t sb_draw(uint64_t mean, enum sb_delay_dist dist, double sigma)
	__attribute__((visibility("hidden"), noinline));
/* Called before and after each fork, one at a time; sb_draw_after_fork() in the child. */
void sb_draw_before_fork(void) __attribute__((visibility("hidden")));
void sb_draw_after_fork(void) __attribute__((visibility("hidden")));

#endif
