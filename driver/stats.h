/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_STATS_H
#define BUMP_STATS_H

#include <linux/percpu.h>
#include <linux/seqlock.h>
#include <linux/spinlock.h>
#include <linux/types.h>

#include <linux/speed_bump.h>

/* The sums.  A hit is counted in exactly one of the first seven. */
enum bump_sum {
	BUMP_DELAYED,
	BUMP_SKIPPED_FREQUENCY,
	BUMP_SKIPPED_WINDOW,
	BUMP_SKIPPED_DISABLED,
	BUMP_SKIPPED_BUDGET,
	BUMP_UNRETURNED,
	BUMP_MISSED,
	BUMP_UNARMED,
	BUMP_TAKEN_OUT,
	BUMP_CUT,
	BUMP_REQUESTED_NS,
	BUMP_MEASURED_NS,
	BUMP_OVERSHOOT,
	BUMP_SUMS = BUMP_OVERSHOOT + SPEED_BUMP_OVERSHOOT_BUCKETS,
};

/**
 * struct bump_counters - the counters of a target on one CPU
 * @seq:	odd while a hit is being counted
 * @max_overshoot_ns: the largest since the last reset
 * @sums:	since the target was made, by enum bump_sum
 *
 * Written only by tasks on that CPU with preemption off, so plain additions are enough.
 * They take 304 bytes for each possible CPU, beside the target's own object, which is
 * below a kilobyte.
 */
struct bump_counters {
	seqcount_t seq;
	u64 max_overshoot_ns;
	u64 sums[BUMP_SUMS];
};

/**
 * struct bump_stats - the statistics of a target
 * @counters:	the counters of each CPU
 * @lock:	resets.  Innermost
 * @generation:	number of resets; under @lock
 * @base:	the sums as they were at the last one; under @lock
 */
struct bump_stats {
	struct bump_counters __percpu *counters;
	spinlock_t lock;	/* resets */
	u64 generation;
	u64 base[BUMP_SUMS];
};

int bump_stats_init(struct bump_stats *stats);
void bump_stats_destroy(struct bump_stats *stats);

void bump_stats_count_skipped(struct bump_stats *stats, enum bump_sum why);
void bump_stats_count_event(struct bump_stats *stats, enum bump_sum what);
void bump_stats_count_delayed(struct bump_stats *stats, u64 requested_ns, u64 measured_ns,
			      bool cut);
void bump_stats_count_part(struct bump_stats *stats, u64 requested_ns, u64 measured_ns);

void bump_stats_read(struct bump_stats *stats, struct speed_bump_stats *out, bool reset);
void bump_stats_totals(u64 *hits, u64 *delay_ns);

#endif /* BUMP_STATS_H */
