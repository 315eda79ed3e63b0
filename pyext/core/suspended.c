// SPDX-License-Identifier: MIT
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "suspended.h"

#define SHARDS	   64
#define FIRST_SIZE 16

struct entry {
	const void *frame; /* NULL: free */
	const void *code;
	struct recorded_call call;
};

/*
 * Open addressing, at most half full. The lock is held for a few instructions, possibly
 * by a thread that is preempted; a mutex would take as long as everything else.
 */
static struct shard {
	_Alignas(64) atomic_flag lock;
	struct entry *entries;
	size_t mask, used;
} shards[SHARDS];

static void lock(struct shard *shard)
{
	while (atomic_flag_test_and_set_explicit(&shard->lock, memory_order_acquire))
		sched_yield();
}

static void unlock(struct shard *shard)
{
	atomic_flag_clear_explicit(&shard->lock, memory_order_release);
}

static void lock_all(void)
{
	for (int i = 0; i < SHARDS; i++)
		lock(&shards[i]);
}

static void unlock_all(void)
{
	for (int i = 0; i < SHARDS; i++)
		unlock(&shards[i]);
}

/* A child must not find one held by a thread that does not exist there. */
static void watch_forks(void)
{
	pthread_atfork(lock_all, unlock_all, unlock_all);
}

static uint64_t mixed(const void *frame)
{
	return ((uintptr_t)frame >> 4) * UINT64_C(0x9e3779b97f4a7c15);
}

static struct shard *shard_of(const void *frame)
{
	return &shards[mixed(frame) >> 58];
}

_Static_assert(SHARDS == 1 << (64 - 58), "the upper bits of mixed()");

static size_t home_of(const struct shard *shard, const void *frame)
{
	return (size_t)(mixed(frame) >> 20) & shard->mask;
}

/* The entry of @frame, or the free one where it belongs. */
static struct entry *place_of(const struct shard *shard, const void *frame)
{
	size_t i = home_of(shard, frame);

	while (shard->entries[i].frame && shard->entries[i].frame != frame)
		i = (i + 1) & shard->mask;
	return &shard->entries[i];
}

/* Make room for @newest by dropping calls whose ends do not count any more. */
static __attribute__((noinline, cold)) bool grow(struct shard *shard,
						 const struct recorded_call *newest)
{
	struct shard old = { .entries = shard->entries, .mask = shard->mask };
	size_t count = old.entries ? old.mask + 1 : 0, live = 0, size = FIRST_SIZE;
	struct entry *fresh;

	for (size_t i = 0; i < count; i++)
		live += old.entries[i].frame &&
			recorded_is_live(&old.entries[i].call, newest);
	while (size < live * 4)
		size *= 2;
	fresh = calloc(size, sizeof(*fresh));
	if (!fresh)
		return false;
	shard->entries = fresh;
	shard->mask = size - 1;
	shard->used = 0;
	for (size_t i = 0; i < count; i++) {
		if (!old.entries[i].frame ||
		    !recorded_is_live(&old.entries[i].call, newest))
			continue;
		*place_of(shard, old.entries[i].frame) = old.entries[i];
		shard->used++;
	}
	free(old.entries);
	return true;
}

/* Before a shard is locked: a fork must not leave a locked one to the child. */
static void prepare_forks(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch_forks);
}

void suspended_add(const void *frame, const void *code, const struct recorded_call *call)
{
	struct shard *shard = shard_of(frame);
	struct entry *entry;

	prepare_forks();
	lock(shard);
	entry = shard->entries ? place_of(shard, frame) : NULL;
	/* An entry of the same frame is overwritten, and needs no room. */
	if (!entry || (!entry->frame && shard->used >= (shard->mask + 1) / 2))
		entry = grow(shard, call) ? place_of(shard, frame) : NULL;
	if (entry) {
		shard->used += !entry->frame;
		*entry = (struct entry){ .frame = frame, .code = code, .call = *call };
	}
	unlock(shard);
}

/*
 * Later entries of its chain must be found without it: each that may moves into the gap.
 */
static void remove_entry(struct shard *shard, struct entry *entry)
{
	size_t gap = (size_t)(entry - shard->entries), i = gap;

	shard->used--;
	for (;;) {
		shard->entries[gap].frame = NULL;
		do {
			i = (i + 1) & shard->mask;
			if (!shard->entries[i].frame)
				return;
		} while (((i - home_of(shard, shard->entries[i].frame)) & shard->mask) <
			 ((i - gap) & shard->mask));
		shard->entries[gap] = shard->entries[i];
		gap = i;
	}
}

bool suspended_take(const void *frame, const void *code, struct recorded_call *call)
{
	struct shard *shard = shard_of(frame);
	struct entry *entry;
	bool found = false;

	prepare_forks();
	lock(shard);
	entry = shard->used ? place_of(shard, frame) : NULL;
	if (entry && entry->frame) {
		found = entry->code == code;
		*call = entry->call;
		remove_entry(shard, entry);
	}
	unlock(shard);
	return found;
}

void suspended_drop(const void *frame)
{
	struct recorded_call call;

	suspended_take(frame, NULL, &call);
}
