/* SPDX-License-Identifier: MIT */
/*
 * Calls that are timed, by thread and frame. A frame is identified by its address: during
 * a call or a generator's resumption, no other frame has the same one. This is not a
 * stack, because greenlets leave frames and return to them.
 *
 * If the end of a call is not reported, as when patterns change, its entry stays until
 * another call uses the same address, or there is no room.
 */
#ifndef CORE_CALLS_H
#define CORE_CALLS_H

#include "hot.h"
#include "suspended.h"

struct timed_call {
	const void *frame; /* NULL: free */
	const void *code;
	uint32_t generation; /* of the patterns in which it was found */
	bool at_end; /* @call is valid: it is delayed at its end */
	struct site_call call;
	struct recorded_call recorded;
};

/* Open addressing, at most half full. */
struct calls {
	struct timed_call *entries;
	size_t mask, used;
};

extern _Thread_local struct calls calls_here
	__attribute__((visibility("hidden"), tls_model("initial-exec")));

static inline size_t calls_place(const void *frame)
{
	return (size_t)(((uintptr_t)frame >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 32);
}

/* NULL: no call with this frame is timed. */
static inline struct timed_call *calls_find(const void *frame)
{
	const struct calls *calls = &calls_here;
	size_t i = calls_place(frame) & calls->mask;

	while (calls->entries[i].frame != frame) {
		if (!calls->entries[i].frame)
			return NULL;
		i = (i + 1) & calls->mask;
	}
	return &calls->entries[i];
}

/*
 * Make room for more. Entries of other patterns than those of @generation, whose ends are
 * not reported, are dropped, except recorded calls that are still live beside @newest.
 * False: no memory.
 */
bool calls_grow(uint32_t generation, const struct recorded_call *newest)
	__attribute__((visibility("hidden"), noinline, cold));

/* The entry of @frame, possibly an old one at the same address. NULL: no memory. */
static inline struct timed_call *calls_add(const void *frame, const void *code,
					   uint32_t generation,
					   const struct recorded_call *newest)
{
	struct calls *calls = &calls_here;
	struct timed_call *entry;
	size_t i;

	if (__builtin_expect(calls->used >= (calls->mask + 1) / 2, 0) &&
	    !calls_grow(generation, newest))
		return NULL;
	i = calls_place(frame) & calls->mask;
	while (calls->entries[i].frame && calls->entries[i].frame != frame)
		i = (i + 1) & calls->mask;
	entry = &calls->entries[i];
	calls->used += !entry->frame;
	entry->frame = frame;
	entry->code = code;
	entry->generation = generation;
	entry->at_end = false;
	entry->recorded.latency = 0;
	return entry;
}

/* Remove the entry that calls_find() returned; entries found earlier may have moved. */
void calls_remove(struct timed_call *entry);

#endif
