/* SPDX-License-Identifier: MIT */
/*
 * Recorded calls of generators and coroutines. The duration of such a call is the time from its
 * first entry to its end, in whatever threads it runs. A call is identified by its frame,
 * whose address stays the same until the call ends, and by its code.
 *
 * If a generator is freed before its end, CPython reports no event, so its entry stays in this
 * table, and a later generator can have the same address. Therefore the entry of an address is
 * removed when a generator at that address runs for the first time, recorded or not, and also
 * when its first event is an exception that is thrown into it. One case is not covered: a
 * generator that starts where CPython reports no events, such as in a trace function, and
 * continues outside it is taken for the previous generator at its address.
 */
#ifndef CORE_SUSPENDED_H
#define CORE_SUSPENDED_H

#include <stdbool.h>
#include <stdint.h>

/* A recorded call. */
struct recorded_call {
	uint64_t begin; /* a stamp */
	uint64_t epoch; /* of engine_epoch(): the end counts only in the same one */
	const void *engine; /* its interpreter; others may be in the same process, or thread */
	uint32_t latency; /* the index of its name plus 1; 0: it is not recorded */
};

/*
 * Whether the end of @call may still count when @newest begins: not in a child of the
 * process in which it began, nor if its interpreter has started recording again.
 */
static inline bool recorded_is_live(const struct recorded_call *call,
				    const struct recorded_call *newest)
{
	return call->epoch >> 32 == newest->epoch >> 32 &&
	       (call->engine != newest->engine || call->epoch >= newest->epoch);
}

/* Without memory it is not recorded. */
void suspended_add(const void *frame, const void *code, const struct recorded_call *call);
/* Drop the entry at @frame: its frame was freed. */
void suspended_drop(const void *frame);
/* Remove it. False: there is none. */
bool suspended_take(const void *frame, const void *code, struct recorded_call *call);

#endif
