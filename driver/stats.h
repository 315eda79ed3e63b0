/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_STATS_H
#define SB_STATS_H

#include <linux/percpu.h>
#include <linux/types.h>

#include <linux/speed_bump.h>

/**
 * struct sb_counters - what a target did on one CPU
 *
 * Written only by tasks on that CPU with preemption off, so that plain
 * additions do.  A hit is either delayed or skipped; nobody counts it twice,
 * and their sum is the number of hits.
 */
struct sb_counters {
	u64 delayed;
	u64 skipped_disabled;
	u64 cut;
	u64 requested_ns;
	u64 measured_ns;
	u64 max_overshoot_ns;
};

struct sb_counters __percpu *sb_stats_alloc(void);
void sb_stats_free(struct sb_counters __percpu *counters);

void sb_stats_count_skipped(struct sb_counters __percpu *counters);
void sb_stats_count_delayed(struct sb_counters __percpu *counters, u64 requested_ns,
			    u64 measured_ns, bool cut);

void sb_stats_read(const struct sb_counters __percpu *counters, struct speed_bump_stats *stats);
void sb_stats_totals(u64 *hits, u64 *delay_ns);

#endif /* SB_STATS_H */
