/* SPDX-License-Identifier: MIT */
#ifndef CORE_OVERHEAD_H
#define CORE_OVERHEAD_H

#include "engine.h"
#include "hook.h"

/* What the hook costs a delayed call apart from its spin. */
struct overhead {
	uint64_t ns;
	uint64_t timed_ns; /* what of it is in the duration, where that is measured */
};

/*
 * Measure it here and now, in about two milliseconds: of a call that is delayed at its start,
 * or at its @ends. @concurrent: as the table that it is for, which then counts by
 * dearer means. hook_open() comes before. -1 with an exception.
 */
int overhead_measure(struct engine *engine, struct hook *hook, bool concurrent, bool ends,
		     struct overhead *found);

#endif
