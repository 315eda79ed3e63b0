/* SPDX-License-Identifier: MIT */
#ifndef CORE_OVERHEAD_H
#define CORE_OVERHEAD_H

#include "engine.h"
#include "hook.h"

/* The cost of the hook for a delayed call, apart from its spin. */
struct overhead {
	uint64_t ns;
	uint64_t timed_ns; /* what of it is in the duration, where that is measured */
};

/*
 * Measure it, which takes about two milliseconds: for a call that is delayed at its
 * start, or at its @ends. @concurrent: as for the table, which then counts with slower
 * operations. Call hook_open() before. -1 with an exception.
 */
int overhead_measure(struct engine *engine, struct hook *hook, bool concurrent, bool ends,
		     struct overhead *found);

#endif
