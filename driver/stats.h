/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_STATS_H
#define SB_STATS_H

#include <linux/percpu.h>
#include <linux/seqlock.h>
#include <linux/spinlock.h>
#include <linux/types.h>

#include <linux/speed_bump.h>

/* What is summed up.  A hit is in one of the first five, once. */
enum sb_sum {
	SB_DELAYED,
	SB_SKIPPED_FREQUENCY,
	SB_SKIPPED_WINDOW,
	SB_SKIPPED_DISABLED,
	SB_SKIPPED_BUDGET,
	SB_UNARMED,
	SB_TAKEN_OUT,
	SB_CUT,
	SB_REQUESTED_NS,
	SB_MEASURED_NS,
	SB_OVERSHOOT,
	SB_SUMS = SB_OVERSHOOT + SPEED_BUMP_OVERSHOOT_BUCKETS,
};

/**
 * struct sb_counters - what a target did on one CPU
 * @seq:	odd while a hit is being counted
 * @max_overshoot_ns: the largest since the last reset
 * @sums:	since the target was made, by enum sb_sum
 *
 * Written only by tasks on that CPU with preemption off, so that plain
 * additions do.  288 bytes for each CPU that there can be: that is what a
 * target costs beside its own object, which is below a kilobyte.
 */
struct sb_counters {
	seqcount_t seq;
	u64 max_overshoot_ns;
	u64 sums[SB_SUMS];
};

/**
 * struct sb_stats - the statistics of a target
 * @counters:	what they are made of
 * @lock:	resets.  Innermost
 * @generation:	how many there were; under @lock
 * @base:	the sums as they were at the last one; under @lock
 */
struct sb_stats {
	struct sb_counters __percpu *counters;
	spinlock_t lock;	/* resets */
	u64 generation;
	u64 base[SB_SUMS];
};

int sb_stats_init(struct sb_stats *stats);
void sb_stats_destroy(struct sb_stats *stats);

void sb_stats_count_skipped(struct sb_stats *stats, enum sb_sum why);
void sb_stats_count_event(struct sb_stats *stats, enum sb_sum what);
void sb_stats_count_delayed(struct sb_stats *stats, u64 requested_ns, u64 measured_ns, bool cut);

void sb_stats_read(struct sb_stats *stats, struct speed_bump_stats *out, bool reset);
void sb_stats_totals(u64 *hits, u64 *delay_ns);

#endif /* SB_STATS_H */
