/* SPDX-License-Identifier: MIT */
/*
 * Durations, kept in the memory of a site table where some were asked for.
 *
 * Each *latency* has a name: a pattern of functions, or the name of marks that a program sets.
 * Its durations are counted in a histogram, and go as *events* into a ring, where the table
 * has rings.
 *
 * Histograms: a duration below 128 ns has a bucket of its own; from there on each power of
 * two is divided into 64 buckets of one width, so that a bucket is no wider than 1/64 of what
 * is in it. Processes add to the same ones, in stripes: the first few processes have one each,
 * where a load and a store is enough for threads that run one at a time; all others share the
 * rest, by atomic addition. Stripes are never given back: what a process that was killed has
 * counted stays, and they merge by adding.
 *
 * Rings: a process has one, which it may share with others where there are more processes
 * than rings. A writer takes a place by one atomic addition and writes there; the last word
 * is computed from the others and from the number of the place. So a reader knows an event
 * that is whole and in its place, whatever writers were doing or died of meanwhile, and all
 * that it doesn't get is counted: places that were given out, less events that were read.
 */
#ifndef SB_LATENCY_H
#define SB_LATENCY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libsb.h"
#include "spin.h"

#define LATENCY_NAMES	32U /* with those of marks that were not asked for */
#define LATENCY_OWN	4U /* stripes that are one process's each */
#define LATENCY_STRIPES 8U
#define LATENCY_SHIFT	6U /* 2^6 buckets for each power of two */
#define LATENCY_MAX_NS	(UINT64_C(1) << 40) /* the last bucket has all that is longer */
#define LATENCY_BUCKETS ((40U - LATENCY_SHIFT + 1) * (1U << LATENCY_SHIFT) + 1)

#define LATENCY_MAX_RINGS   64U
#define LATENCY_RING_EVENTS 32768U

enum latency_kind {
	LATENCY_FREE = 0,
	LATENCY_TAKEN,	   /* its name is being written */
	LATENCY_FUNCTIONS, /* calls of functions that match a pattern */
	LATENCY_MARKS,	   /* from one mark to another */
	LATENCY_NOT_ASKED, /* marks that a program sets, and that are not recorded */
};

struct latency_name {
	_Atomic uint32_t kind; /* enum latency_kind */
	uint32_t name; /* offset in the table's names */
	_Atomic uint32_t begun; /* whether anything of it has begun */
	uint32_t reserved;
	_Atomic uint64_t begins; /* of marks: how many have begun */
	_Atomic uint64_t unbegun; /* of marks: ends that have no beginning */
};

struct latency_counts {
	_Alignas(64) _Atomic uint64_t sum_ns;
	_Atomic uint64_t max_ns;
	uint64_t reserved[6];
	_Atomic uint64_t buckets[LATENCY_BUCKETS];
};

struct latency_event {
	_Atomic uint64_t begin_ns; /* CLOCK_MONOTONIC */
	_Atomic uint64_t duration_ns;
	_Atomic uint64_t whose; /* pid << 32 | index of the name */
	_Atomic uint64_t check;
};

struct latency_ring {
	_Alignas(64) _Atomic uint64_t head; /* places given out so far */
	struct latency_event events[LATENCY_RING_EVENTS];
};

_Static_assert(sizeof(struct latency_name) == 32, "part of the file format");
_Static_assert(sizeof(struct latency_counts) == 18048, "part of the file format");
_Static_assert(sizeof(struct latency_event) == 32, "part of the file format");

/* What a process knows of them. */
struct latency_view {
	struct latency_name *names; /* NULL: the table has none */
	struct latency_counts *counts; /* LATENCY_STRIPES of each of the first @count names */
	struct latency_ring *rings;
	uint32_t count; /* names that were asked for */
	uint32_t ring_count;
	/*
	 * The generation of processes in the upper half; in the lower half how many processes
	 * came before this one: which stripe and which ring it has.
	 */
	_Atomic uint64_t where;
};

/* Names to record; @rings may be 0. */
struct latency_options {
	const char *const *names;
	const bool *marks; /* which of them are names of marks */
	uint32_t count;
	uint32_t rings;
};

/* An event as it was read. */
struct latency_seen {
	uint64_t begin_ns, duration_ns;
	uint32_t name, pid;
};

struct sb_site_table;

/* As sb_site_table_create(), with durations. */
struct sb_site_table *sb_site_table_create_with(const struct sb_site_table_options *given,
						const struct latency_options *latencies,
						struct sb_error *err);
/* The name of latency @index of @table, or NULL. */
const char *sb_latency_name(const struct sb_site_table *table, uint32_t index);
/*
 * The latency of marks of that name, which is made if it wasn't asked for. -1: there is no
 * room for it.
 */
int sb_latency_marks(struct sb_site_table *table, const char *name);
/* A call or a pair of marks of latency @index was under way from @begin to @end, stamps. */
void sb_latency_add(struct sb_site_table *table, uint32_t index, uint64_t begin, uint64_t end)
	__attribute__((visibility("hidden")));
/*
 * What ring @index has from place *@at on, at most @room events; their number, and in *@at
 * where the next begins. What was overwritten is added to *@lost. It ends before an event
 * that is being written; with @skip that one is left out, and lost.
 */
size_t sb_latency_read(const struct sb_site_table *table, uint32_t index, uint64_t *at,
		       bool skip, struct latency_seen *events, size_t room, uint64_t *lost);
/* This process is the child of a fork, or the first one. */
void sb_latency_note_process(void);

static inline uint32_t latency_bucket(uint64_t ns)
{
	uint32_t shift;

	if (ns >= LATENCY_MAX_NS)
		return LATENCY_BUCKETS - 1;
	if (ns < 2U << LATENCY_SHIFT)
		return (uint32_t)ns;
	shift = 63U - (uint32_t)__builtin_clzll(ns) - LATENCY_SHIFT;
	return (shift << LATENCY_SHIFT) + (uint32_t)(ns >> shift);
}

/* Each factor is odd, so that no word may be another without being noticed. */
static inline uint64_t latency_check(uint64_t begin_ns, uint64_t duration_ns, uint64_t whose,
				     uint64_t place)
{
	return (begin_ns * UINT64_C(0x9e3779b97f4a7c15)) ^
	       (duration_ns * UINT64_C(0xc2b2ae3d27d4eb4f)) ^
	       (whose * UINT64_C(0x165667b19e3779f9)) ^
	       ((place + 1) * UINT64_C(0xd6e8feb86659fd93));
}

#endif
