// SPDX-License-Identifier: MIT
#include <stdlib.h>

#include "calls.h"
#include "thread_end.h"

#define FIRST_SIZE 64

static struct timed_call none;
_Thread_local struct calls calls_here = { .entries = &none };

static void at_thread_end(void *entries)
{
	(void)entries;
	if (calls_here.entries != &none)
		free(calls_here.entries);
	calls_here = (struct calls){ .entries = &none };
}

/* The entry of @frame, or the free one where it belongs. */
static struct timed_call *place_of(const struct calls *calls, const void *frame)
{
	size_t i = calls_place(frame) & calls->mask;

	while (calls->entries[i].frame && calls->entries[i].frame != frame)
		i = (i + 1) & calls->mask;
	return &calls->entries[i];
}

static bool is_live(const struct timed_call *entry, uint32_t generation,
		    const struct recorded_call *newest)
{
	return entry->frame &&
	       (entry->generation == generation ||
		(entry->recorded.latency && recorded_is_live(&entry->recorded, newest)));
}

bool calls_grow(uint32_t generation, const struct recorded_call *newest)
{
	const struct calls old = calls_here;
	size_t live = 0, size = FIRST_SIZE;
	struct calls fresh = { 0 };

	for (size_t i = 0; i <= old.mask; i++)
		live += is_live(&old.entries[i], generation, newest);
	while (size < live * 4)
		size *= 2;
	fresh.entries = calloc(size, sizeof(*fresh.entries));
	if (!fresh.entries)
		return false;
	fresh.mask = size - 1;
	for (size_t i = 0; i <= old.mask; i++) {
		const struct timed_call *entry = &old.entries[i];

		if (!is_live(entry, generation, newest))
			continue;
		*place_of(&fresh, entry->frame) = *entry;
		fresh.used++;
	}
	if (!set_thread_end(fresh.entries)) {
		free(fresh.entries);
		return false;
	}
	calls_here = fresh;
	if (old.entries != &none)
		free(old.entries);
	return true;
}

/*
 * Later entries of its chain must be found without it: each that may moves into the gap.
 */
void calls_remove(struct timed_call *entry)
{
	struct timed_call *entries = calls_here.entries;
	size_t mask = calls_here.mask, gap = (size_t)(entry - entries), i = gap;

	calls_here.used--;
	for (;;) {
		entries[gap].frame = NULL;
		do {
			i = (i + 1) & mask;
			if (!entries[i].frame)
				return;
		} while (((i - calls_place(entries[i].frame)) & mask) <
			 ((i - gap) & mask));
		entries[gap] = entries[i];
		gap = i;
	}
}
