/* SPDX-License-Identifier: MIT */
/*
 * Durations, recorded in the memory of a site table if requested.
 *
 * Each *latency* has a name: a pattern of functions, or the name of marks that a program
 * sets. Its durations are counted in a histogram, and are stored as *events* in a ring,
 * if the table has rings.
 *
 * Histograms: a duration below 128 ns has its own bucket; from there on each power of two
 * is divided into 64 buckets of the same width, so that the width of a bucket is at most
 * 1/64 of its values. Processes add to the same histograms, in stripes: the first few
 * processes have one each, in which a load and a store is sufficient for threads that run
 * one at a time; all others share the rest, with atomic addition. Stripes are never
 * released: the counts of a killed process stay, and stripes are added up.
 *
 * Rings: each process has one, which it may share with others if there are more processes
 * than rings. A writer allocates a place by one atomic addition and writes there; the
 * last word is computed from the others and from the number of the place. So a reader
 * recognises complete events in their places, whatever happened to writers, and counts
 * the others as lost: allocated places minus events read.
 */
#ifndef SB_LATENCY_H
#define SB_LATENCY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libsb-provisional.h"
#include "spin.h"

#define LATENCY_NAMES	32U /* including those of marks that were not requested */
#define LATENCY_OWN	4U /* stripes that belong to one process each */
#define LATENCY_STRIPES 8U
#define LATENCY_SHIFT	6U /* 2^6 buckets for each power of two */
#define LATENCY_MAX_NS	(UINT64_C(1) << 40) /* the last bucket has all longer durations */
#define LATENCY_BUCKETS ((40U - LATENCY_SHIFT + 1) * (1U << LATENCY_SHIFT) + 1)

#define LATENCY_MAX_RINGS   64U
#define LATENCY_RING_EVENTS 32768U

enum latency_kind {
	LATENCY_FREE = 0,
	LATENCY_TAKEN, /* its name is being written */
	LATENCY_FUNCTIONS, /* calls of functions that match a pattern */
	LATENCY_MARKS, /* time from one mark to another */
	LATENCY_NOT_ASKED, /* marks that a program sets and that are not recorded */
};

struct latency_name {
	_Atomic uint32_t kind; /* enum latency_kind */
	uint32_t name; /* offset in the table's names */
	_Atomic uint32_t begun; /* whether any of it has begun */
	uint32_t reserved;
	_Atomic uint64_t begins; /* of marks: how many have begun */
	_Atomic uint64_t unbegun; /* of marks: ends without a beginning */
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
	_Alignas(64) _Atomic uint64_t head; /* number of places allocated so far */
	struct latency_event events[LATENCY_RING_EVENTS];
};

_Static_assert(sizeof(struct latency_name) == 32, "part of the file format");
_Static_assert(sizeof(struct latency_counts) == 18048, "part of the file format");
_Static_assert(sizeof(struct latency_event) == 32, "part of the file format");

/* What a process caches of them. */
struct latency_view {
	struct latency_name *names; /* NULL: the table has none */
	struct latency_counts *counts; /* LATENCY_STRIPES of each of the first @count names */
	struct latency_ring *rings;
	uint32_t count; /* requested names */
	uint32_t ring_count;
	/*
	 * The generation of processes in the upper half; in the lower half the number of
	 * this process, which determines its stripe and ring.
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
 * The latency of marks with that name, which is created if necessary. -1: there is no
 * room.
 */
int sb_latency_marks(struct sb_site_table *table, const char *name);
/*
 * A call or a pair of marks of latency @index lasted from @begin to @end, readings of the
 * clock.
 */
void sb_latency_add(struct sb_site_table *table, uint32_t index, uint64_t begin,
		    uint64_t end) __attribute__((visibility("hidden")));
/*
 * Read events of ring @index from place *@at on, at most @room; returns their number, and
 * in *@at the next place. Overwritten events are added to *@lost. Stops before an event
 * that is being written; with @skip that one is skipped, and lost.
 */
size_t sb_latency_read(const struct sb_site_table *table, uint32_t index, uint64_t *at,
		       bool skip, struct latency_seen *events, size_t room,
		       uint64_t *lost);
/* This process is the child of a fork, or the first process. */
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

/* Each factor is odd, so that a change of any word changes the result. */
static inline uint64_t latency_check(uint64_t begin_ns, uint64_t duration_ns,
				     uint64_t whose, uint64_t place)
{
	return (begin_ns * UINT64_C(0x9e3779b97f4a7c15)) ^
	       (duration_ns * UINT64_C(0xc2b2ae3d27d4eb4f)) ^
	       (whose * UINT64_C(0x165667b19e3779f9)) ^
	       ((place + 1) * UINT64_C(0xd6e8feb86659fd93));
}

#endif
