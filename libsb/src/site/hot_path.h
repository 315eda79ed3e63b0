/* SPDX-License-Identifier: MIT */
/*
 * The hot path: code that each call of a matched function executes. It is inlined,
 * because a function call would cost as much as the rest. It is used by sb_site_hit(),
 * and by hooks that are built together with libsb. Of libsb's internal headers these include
 * this one, site/latency.h, spin.h, array.h and thread_end.h.
 */
#ifndef SB_SITE_HOT_PATH_H
#define SB_SITE_HOT_PATH_H

#include <stddef.h>

#include "site/table.h"

/*
 * A site in its process. The policy is here and not in shared memory, because no other
 * process needs it; from outside a site is controlled through its function and its
 * target.
 *
 * @where is the slot in which the site counts: the generation of processes in the upper
 * half and the index in the lower. A fork makes a new generation, and the first call in it
 * allocates a slot for the child. It is one word, so that a call needs one comparison, and
 * threads that arrive at the same time are resolved by one compare-and-swap.
 */
struct sb_site {
	_Alignas(SITE_LINE) _Atomic uint64_t where;
	struct sb_site_table *table;
	struct site_control *function;
	struct site_control *target;
	_Atomic uint64_t delay_ns;
	_Atomic uint64_t due; /* the next call to be delayed if every > 1 */
	_Atomic uint32_t every;
	_Atomic uint32_t state; /* never SITE_OWN */

	_Atomic uint64_t start_ns;
	_Atomic uint64_t end_ns;
	uint32_t function_index;
	uint32_t target_number;
	uint32_t hash;
	enum sb_site_kind kind;
	plan_word *changes; /* of the table */
	_Atomic uint64_t quiet; /* value of @changes while a call is only counted */
	/* Rare options. 0: delays spin, have a fixed length, and apply to all threads. */
	_Atomic uint32_t kinds;

	/*
	 * NULL: the table has no plan. The ring is valid for @ring_where, a value of
	 * @where.
	 */
	struct plan_function *plan;
	struct plan_ring *ring;
	_Atomic uint64_t ring_where;
	_Atomic uint64_t ring_taking;
	bool direct; /* its calls are not reported by a hook: no overhead is subtracted
		      * from its delays */

	_Atomic uint32_t ppm; /* not 0: the delay is a part of the call's duration */

	_Atomic uint64_t scoped; /* calls of threads that match @thread */
	const char *_Atomic thread; /* the table's */
	_Atomic double sigma;
};

/*
 * Bits of sb_site.kinds: enum sb_delay_mode and enum sb_delay_dist, and whether @thread
 * is set.
 */
#define SITE_MODE	0x3U
#define SITE_DIST	0xf0U
#define SITE_DIST_SHIFT 4
#define SITE_THREAD	0x100U

/* The result of a call. */
enum site_outcome {
	SITE_DONE = 0,
	SITE_ENDED, /* sb_site_look() has ended a delay */
	SITE_OPEN, /* no delay so far: call sb_site_begin() and sb_site_end() */
};

/* The line of a thread without one of its own: line 0, shared by all of those. */
#define SITE_LINE_SHARED UINT32_MAX

#define site_load(object)	  atomic_load_explicit(object, memory_order_relaxed)
#define site_load_acquire(object) atomic_load_explicit(object, memory_order_acquire)
#define site_store(object, with)  atomic_store_explicit(object, with, memory_order_relaxed)

/* The generation of processes: how many forks ago the first one was. */
extern _Atomic uint32_t sb_site_generation __attribute__((visibility("hidden")));
/* The line in which this thread counts; 0: not assigned yet. */
extern _Thread_local uint32_t sb_site_line
	__attribute__((visibility("hidden"), tls_model("initial-exec")));
/* Its offset in a slot, if the thread has a line of its own; else 0. */
extern _Thread_local size_t sb_site_line_offset
	__attribute__((visibility("hidden"), tls_model("initial-exec")));

uint64_t sb_site_adopt(struct sb_site *site, uint64_t where)
	__attribute__((visibility("hidden"), noinline, cold));
uint32_t sb_site_take_line(void) __attribute__((visibility("hidden"), noinline, cold));
/* Count the call when other threads may be at the same site; returns its number. */
uint64_t sb_site_count_atomic(struct sb_site *site, struct site_slot *slot,
			      struct site_counters **counters)
	__attribute__((visibility("hidden"), noinline));
/*
 * Called by a delay of more than SITE_SLICE_NS after each slice. NULL (initially):
 * nothing. Returns whether the delay is to end at once. It may release @table, but not
 * during the delay: what keeps the table alive goes into *@kept, NULL in the first call
 * of a delay, and to sb_site_unkeep() at the end unless it is NULL.
 */
extern bool (*sb_site_look)(struct sb_site_table *table, void **kept)
	__attribute__((visibility("hidden")));
extern void (*sb_site_unkeep)(void *kept) __attribute__((visibility("hidden")));

/*
 * Called before and after a delay of SB_DELAY_WAIT: release the runtime's lock, and take
 * it again. NULL (initially): there is no lock. The first keeps @table alive as
 * sb_site_look() does; if it returns NULL, the lock was not released, and the second is
 * not called.
 */
extern void *(*sb_site_leave)(struct sb_site_table *table, void **kept)
	__attribute__((visibility("hidden")));
extern void (*sb_site_return)(void *left) __attribute__((visibility("hidden")));
/*
 * Whether the name of this thread, as the runtime has it, matches a glob. It may keep
 * @table alive as sb_site_look() does. NULL (initially): the kernel's name is used.
 */
extern bool (*sb_site_is_thread)(struct sb_site_table *table, const char *glob,
				 void **kept) __attribute__((visibility("hidden")));

#define SITE_SLICE_NS 10000000U

/*
 * The rest of a call once it is counted. @site may be freed then, if sb_site_look or
 * sb_site_is_thread is not NULL.
 */
enum site_outcome sb_site_hit_rest(struct sb_site *site, struct site_counters *counters,
				   uint64_t entry, uint64_t hit)
	__attribute__((visibility("hidden"), noinline));

/*
 * Points to what is not 0 while threads wait for each other's delays, except those of
 * SB_DELAY_WAIT, as in a runtime with one lock. NULL (initially): they never do. It is read
 * at the end of each delay, because a runtime may change it at any time.
 */
extern const int *_Atomic sb_site_locks __attribute__((visibility("hidden")));

/* A timed call, used by the thread that runs it. */
struct site_call {
	uint64_t begin; /* a stamp */
	uint64_t delayed; /* site_delayed() at that time */
	uint64_t covered; /* see sb_site_end() */
};

/* From here on @call is timed: the hook does its other work before this. */
void sb_site_begin(struct sb_site *site, struct site_call *call)
	__attribute__((visibility("hidden")));
/*
 * The end of a call, in its thread: delay it by the site's part of its duration, which is
 * the time since sb_site_begin() minus the increase of site_delayed(). In nested calls of
 * the same target each part of the time is delayed for once, at the end of the innermost.
 * @patient: do not call sb_site_look() or sb_site_leave(). Returns whether sb_site_look()
 * has ended the delay.
 */
bool sb_site_end(struct sb_site *site, const struct site_call *call, bool patient)
	__attribute__((visibility("hidden")));
/*
 * Set the cost of timing a call, for this process; @timed_ns of @ns are between its two
 * readings.
 */
void sb_site_table_set_call_overhead(struct sb_site_table *table, uint64_t ns,
				     uint64_t timed_ns)
	__attribute__((visibility("hidden")));

static inline struct site_slot *site_slot_of(struct sb_site *site)
{
	uint64_t where = atomic_load_explicit(&site->where, memory_order_acquire);

	if (__builtin_expect(where >> 32 != site_load(&sb_site_generation), 0))
		where = sb_site_adopt(site, where);
	return &site->table->slots[(uint32_t)where];
}

#ifdef SITE_HIT_OWN_LINES
/*
 * With many concurrent threads, a thread's own line is incremented by a load and a store.
 * Not for signal handlers, and not together with sb_site_hit() in one process.
 */
static inline __attribute__((always_inline)) uint64_t
site_count(struct sb_site *site, struct site_slot *slot, struct site_counters **counters)
{
	uint32_t line = sb_site_line;
	uint64_t hit;

	if (__builtin_expect(!line, 0))
		line = sb_site_take_line();
	/* Only a single counter can tell which call is the Nth. */
	if (__builtin_expect(line != SITE_LINE_SHARED && site_load(&site->every) <= 1, 1)) {
		*counters = &slot->counters[line];
		hit = site_load(&(*counters)->calls) + 1;
		site_store(&(*counters)->calls, hit);
		return hit;
	}
	return atomic_fetch_add_explicit(&(*counters)->calls, 1, memory_order_relaxed) + 1;
}
#else
static inline __attribute__((always_inline)) uint64_t
site_count(struct sb_site *site, struct site_slot *slot, struct site_counters **counters)
{
	uint64_t hit;

	if (__builtin_expect(site_load(&site->table->concurrent), 0))
		return sb_site_count_atomic(site, slot, counters);
	hit = site_load(&(*counters)->calls) + 1;
	site_store(&(*counters)->calls, hit);
	return hit;
}
#endif

/* Whether a call, once counted, is known to need nothing else. */
static inline __attribute__((always_inline)) bool site_is_quiet(const struct sb_site *site)
{
	return __builtin_expect(site_load(site->changes) == site_load(&site->quiet), 1);
}

/* As sb_site_hit_rest(). */
static inline __attribute__((always_inline)) enum site_outcome
site_hit(struct sb_site *site, uint64_t entry)
{
	struct site_slot *slot = site_slot_of(site);
	struct site_counters *counters = &slot->counters[0];
	uint64_t hit = site_count(site, slot, &counters);

	return site_is_quiet(site) ? SITE_DONE :
				     sb_site_hit_rest(site, counters, entry, hit);
}

/*
 * For site_count_quick(), until the table's count of changes differs from its value
 * before this call. NULL: not possible for @site.
 */
static inline struct site_slot *site_slot_quick(struct sb_site *site)
{
#ifdef SITE_HIT_OWN_LINES
	if (site_load(&site->every) > 1)
		return NULL;
#else
	if (site_load(&site->table->concurrent))
		return NULL;
#endif
	return site_slot_of(site);
}

/*
 * Count a call at the site whose slot this is. Returns the counters in which it was counted,
 * and its number in *@hit. NULL: this thread can't. The caller does the rest of site_hit().
 */
static inline __attribute__((always_inline)) struct site_counters *
site_count_quick(struct site_slot *slot, uint64_t *hit)
{
	size_t offset = offsetof(struct site_slot, counters);
	struct site_counters *counters;

#ifdef SITE_HIT_OWN_LINES
	offset = sb_site_line_offset;
	if (__builtin_expect(!offset, 0))
		return NULL;
#endif
	counters = (struct site_counters *)((char *)slot + offset);
	*hit = site_load(&counters->calls) + 1;
	site_store(&counters->calls, *hit);
	return counters;
}

#endif
