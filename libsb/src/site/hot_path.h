/* SPDX-License-Identifier: MIT */
/*
 * The hot path: what each call of a matched function runs through, inlined, as a call here
 * that is not costs as much as the rest. For sb_site_hit(), and for hooks that carry libsb
 * inside themselves: of libsb's insides this is the one header that they include.
 */
#ifndef SB_SITE_HOT_PATH_H
#define SB_SITE_HOT_PATH_H

#include <stddef.h>

#include "site/table.h"

/*
 * A site as its process holds it. The policy is here and not in shared memory,
 * since no other process needs it; from outside a site is ruled by the controls of
 * its function and of its target.
 *
 * @where says which slot the site counts in: the generation of processes in the
 * upper half and the index in the lower. A fork makes a new generation, and the
 * first hit in it gets a slot of its own for the child. One word, so that a hit
 * needs one comparison and threads that come first together settle it by one
 * compare-and-swap.
 */
struct sb_site {
	_Alignas(SITE_LINE) _Atomic uint64_t where;
	struct sb_site_table *table;
	struct site_control *function;
	struct site_control *target;
	_Atomic uint64_t delay_ns;
	_Atomic uint64_t due; /* the next hit to be delayed where every > 1 */
	_Atomic uint32_t every;
	_Atomic uint32_t state; /* never SITE_OWN */

	_Atomic uint64_t start_ns;
	_Atomic uint64_t end_ns;
	uint32_t function_index;
	uint32_t target_number;
	uint32_t hash;
	enum sb_site_kind kind;
	plan_word *changes; /* of the table */
	_Atomic uint64_t quiet; /* of @changes when there was nothing to do but to count */
	/* What is rare. 0: its delays spin, are all of one length, in whatever thread. */
	_Atomic uint32_t kinds;

	/* NULL: the table has no plan. The ring is that of @ring_where, a value of @where. */
	struct plan_function *plan;
	struct plan_ring *ring;
	_Atomic uint64_t ring_where;
	_Atomic uint64_t ring_taking;
	bool direct; /* its hits come by no hook: no overhead is taken off its delays */

	_Atomic uint32_t ppm; /* not 0: the delay is a part of the call's duration */

	_Atomic uint64_t scoped; /* hits of threads that match @thread */
	const char *_Atomic thread; /* the table's */
	_Atomic double sigma;
};

/* In sb_site.kinds: enum sb_delay_mode and enum sb_delay_dist, and whether @thread is set. */
#define SITE_MODE	0x3U
#define SITE_DIST	0xf0U
#define SITE_DIST_SHIFT 4
#define SITE_THREAD	0x100U

/* What a hit has come to. */
enum site_outcome {
	SITE_DONE = 0,
	SITE_ENDED, /* sb_site_look() has ended a delay */
	SITE_OPEN,  /* no delay so far: sb_site_begin() and sb_site_end() are to be called */
};

/* The line of a thread that has none of its own: line 0, of all of those. */
#define SITE_LINE_SHARED UINT32_MAX

#define site_load(object)	  atomic_load_explicit(object, memory_order_relaxed)
#define site_load_acquire(object) atomic_load_explicit(object, memory_order_acquire)
#define site_store(object, with)  atomic_store_explicit(object, with, memory_order_relaxed)

/* Of processes: how many forks ago the first one was. */
extern _Atomic uint32_t sb_site_generation __attribute__((visibility("hidden")));
/* The line that this thread counts in; 0: not asked for yet. */
extern _Thread_local uint32_t sb_site_line
	__attribute__((visibility("hidden"), tls_model("initial-exec")));
/* Where in a slot it is, if it has one of its own; else 0. */
extern _Thread_local size_t sb_site_line_offset
	__attribute__((visibility("hidden"), tls_model("initial-exec")));

uint64_t sb_site_adopt(struct sb_site *site, uint64_t where)
	__attribute__((visibility("hidden"), noinline, cold));
uint32_t sb_site_take_line(void) __attribute__((visibility("hidden"), noinline, cold));
/* Count it where other threads may be at the same site; says which hit it was. */
uint64_t sb_site_count_atomic(struct sb_site *site, struct site_slot *slot,
			   struct site_counters **counters)
	__attribute__((visibility("hidden"), noinline));
/*
 * What a runtime does in a delay of more than SITE_SLICE_NS, each time that so much of it
 * is over. NULL, as at first: nothing. Whether the delay is to end at once. It may let
 * @table go, but for the delay itself: what keeps it goes into *@kept, NULL in the first
 * call of a delay, and to sb_site_unkeep() at the end if it is not NULL.
 */
extern bool (*sb_site_look)(struct sb_site_table *table, void **kept)
	__attribute__((visibility("hidden")));
extern void (*sb_site_unkeep)(void *kept) __attribute__((visibility("hidden")));

/*
 * What a runtime does around a delay of SB_DELAY_WAIT: give its lock away, and take it
 * again. NULL, as at first: it has none. The first keeps @table as sb_site_look() does; NULL
 * of it says that the lock stays where it is, and the second is not called then.
 */
extern void *(*sb_site_leave)(struct sb_site_table *table, void **kept)
	__attribute__((visibility("hidden")));
extern void (*sb_site_return)(void *left) __attribute__((visibility("hidden")));
/*
 * Whether the name of this thread, as the runtime has it, matches a glob. It may keep @table
 * as sb_site_look() does. NULL, as at first: the name is that of the kernel.
 */
extern bool (*sb_site_is_thread)(struct sb_site_table *table, const char *glob, void **kept)
	__attribute__((visibility("hidden")));

#define SITE_SLICE_NS 10000000U

/*
 * What a hit may do once it is counted. @site may be gone then, where sb_site_look or
 * sb_site_is_thread is not NULL.
 */
enum site_outcome sb_site_hit_rest(struct sb_site *site, struct site_counters *counters, uint64_t entry,
		   uint64_t hit) __attribute__((visibility("hidden"), noinline));

/*
 * Whether threads wait for each other's delays, but for those of SB_DELAY_WAIT, as they do
 * where a runtime has one lock. False, as at first: they don't.
 */
extern bool sb_site_locks __attribute__((visibility("hidden")));

/* A call that is timed, of the thread that runs it. */
struct site_call {
	uint64_t begin;	    /* a stamp */
	uint64_t delayed;   /* site_delayed() then */
	uint64_t covered;   /* see sb_site_end() */
};

/* From here on @call is timed: what its hook does comes before this. */
void sb_site_begin(struct sb_site *site, struct site_call *call)
	__attribute__((visibility("hidden")));
/*
 * The end of a call, in its thread: delay it by the site's part of its duration. That is the
 * time since sb_site_begin(), less site_delayed() since. Where calls of the same target are
 * inside each other each part of that time is delayed for once, at the end of the innermost.
 * @patient: no sb_site_look(), nor sb_site_leave(). Whether sb_site_look() has ended it.
 */
bool sb_site_end(struct sb_site *site, const struct site_call *call, bool patient)
	__attribute__((visibility("hidden")));
/* What timing costs a call, for this process; @timed_ns of @ns are between its two stamps. */
void sb_site_table_set_call_overhead(struct sb_site_table *table, uint64_t ns,
				     uint64_t timed_ns) __attribute__((visibility("hidden")));

static inline struct site_slot *site_slot_of(struct sb_site *site)
{
	uint64_t where = atomic_load_explicit(&site->where, memory_order_acquire);

	if (__builtin_expect(where >> 32 != site_load(&sb_site_generation), 0))
		where = sb_site_adopt(site, where);
	return &site->table->slots[(uint32_t)where];
}

#ifdef SITE_HIT_OWN_LINES
/*
 * Where many threads run at once: a thread's own line is written by a load and a store.
 * Not for signal handlers, nor beside sb_site_hit() in one process.
 */
static inline __attribute__((always_inline)) uint64_t
site_count(struct sb_site *site, struct site_slot *slot, struct site_counters **counters)
{
	uint32_t line = sb_site_line;
	uint64_t hit;

	if (__builtin_expect(!line, 0))
		line = sb_site_take_line();
	/* Only one counter can tell which hit is the Nth. */
	if (__builtin_expect(line != SITE_LINE_SHARED && site_load(&site->every) <= 1, 1)) {
		*counters = &slot->counters[line];
		hit = site_load(&(*counters)->hits) + 1;
		site_store(&(*counters)->hits, hit);
		return hit;
	}
	return atomic_fetch_add_explicit(&(*counters)->hits, 1, memory_order_relaxed) + 1;
}
#else
static inline __attribute__((always_inline)) uint64_t
site_count(struct sb_site *site, struct site_slot *slot, struct site_counters **counters)
{
	uint64_t hit;

	if (__builtin_expect(site_load(&site->table->concurrent), 0))
		return sb_site_count_atomic(site, slot, counters);
	hit = site_load(&(*counters)->hits) + 1;
	site_store(&(*counters)->hits, hit);
	return hit;
}
#endif

/* Whether a hit, once it is counted, is known to be no more than that. */
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
 * For site_count_quick(), until the table's count of changes is another than it was before
 * this was called. NULL: it won't do for @site.
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
 * Count a hit of a site whose slot this is: where, and which it was in *@hit. NULL: this
 * thread can't. What else site_hit() does is the caller's.
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
	*hit = site_load(&counters->hits) + 1;
	site_store(&counters->hits, *hit);
	return counters;
}

#endif
