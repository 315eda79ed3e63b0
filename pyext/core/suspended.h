/* SPDX-License-Identifier: MIT */
/*
 * Calls of generators and coroutines whose durations are recorded, from their first entry to
 * their end: whichever threads run them. A call is known by its frame, which is the same from
 * its start to its end, and by its code: another generator may be at the address of one that
 * went without being run to its end. What that one was is forgotten then.
 */
#ifndef CORE_SUSPENDED_H
#define CORE_SUSPENDED_H

#include <stdbool.h>
#include <stdint.h>

/* A call whose duration is recorded. */
struct recorded_call {
	uint64_t begin; /* a stamp */
	uint64_t epoch; /* of engine_epoch(): the end counts in the same one alone */
	const void *engine; /* its interpreter's; others are in the same process, or thread */
	uint32_t latency; /* the index of its name, and 1; 0: it is not recorded */
};

/*
 * Whether the end of @call may still count, as @newest is begun: not in a child of the process
 * that began it, nor where its own interpreter records anew.
 */
static inline bool recorded_is_live(const struct recorded_call *call,
				    const struct recorded_call *newest)
{
	return call->epoch >> 32 == newest->epoch >> 32 &&
	       (call->engine != newest->engine || call->epoch >= newest->epoch);
}

/* Where there is no memory it is not recorded, and that is all. */
void suspended_add(const void *frame, const void *code, const struct recorded_call *call);
/* Take it out. False: there is none. */
bool suspended_take(const void *frame, const void *code, struct recorded_call *call);

#endif
