/* SPDX-License-Identifier: MIT */
/*
 * Delays that are drawn around a mean. Each thread draws from numbers of its own, without a
 * lock; a forked child has none of its parent's.
 */
#ifndef SB_DRAW_H
#define SB_DRAW_H

#include <stdint.h>

#include "libsb.h"

/* A delay around @mean, ns, at most SB_MAX_DELAY_NS. Async-signal-safe. */
uint64_t sb_draw(uint64_t mean, enum sb_delay_dist dist, double sigma)
	__attribute__((visibility("hidden"), noinline));
/* Around each fork, one at a time; sb_draw_after_fork() in the child. */
void sb_draw_before_fork(void) __attribute__((visibility("hidden")));
void sb_draw_after_fork(void) __attribute__((visibility("hidden")));

#endif
