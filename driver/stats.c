// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Statistics: per-CPU counters that nobody stops to read.
 *
 * A reader sees each counter as it was at some moment of the call, not all of
 * them at the same moment.
 */
#include <linux/cpumask.h>
#include <linux/gfp.h>
#include <linux/preempt.h>

#include "stats.h"

struct totals {
	u64 hits;
	u64 delay_ns;
};

/* Since the module was loaded: a target that goes takes nothing along. */
static DEFINE_PER_CPU(struct totals, totals);

struct sb_counters __percpu *sb_stats_alloc(void)
{
	return alloc_percpu_gfp(struct sb_counters, GFP_KERNEL_ACCOUNT);
}

void sb_stats_free(struct sb_counters __percpu *counters)
{
	free_percpu(counters);
}

void sb_stats_count_skipped(struct sb_counters __percpu *counters)
{
	preempt_disable();
	this_cpu_ptr(counters)->skipped_disabled++;
	this_cpu_ptr(&totals)->hits++;
	preempt_enable();
}

void sb_stats_count_delayed(struct sb_counters __percpu *counters, u64 requested_ns,
			    u64 measured_ns, bool cut)
{
	struct sb_counters *c;
	struct totals *sum;

	preempt_disable();
	c = this_cpu_ptr(counters);
	c->delayed++;
	c->cut += cut;
	c->requested_ns += requested_ns;
	c->measured_ns += measured_ns;
	if (measured_ns > requested_ns && measured_ns - requested_ns > c->max_overshoot_ns)
		c->max_overshoot_ns = measured_ns - requested_ns;
	sum = this_cpu_ptr(&totals);
	sum->hits++;
	sum->delay_ns += measured_ns;
	preempt_enable();
}

/* Fills in the counters of @stats, the rest is the caller's. */
void sb_stats_read(const struct sb_counters __percpu *counters, struct speed_bump_stats *stats)
{
	int cpu;

	for_each_possible_cpu(cpu) {
		const struct sb_counters *c = per_cpu_ptr(counters, cpu);

		stats->delayed += READ_ONCE(c->delayed);
		stats->skipped_disabled += READ_ONCE(c->skipped_disabled);
		stats->cut += READ_ONCE(c->cut);
		stats->requested_ns += READ_ONCE(c->requested_ns);
		stats->measured_ns += READ_ONCE(c->measured_ns);
		stats->max_overshoot_ns = max_t(u64, stats->max_overshoot_ns,
						READ_ONCE(c->max_overshoot_ns));
	}
	stats->hits = stats->delayed + stats->skipped_disabled;
}

void sb_stats_totals(u64 *hits, u64 *delay_ns)
{
	int cpu;

	*hits = 0;
	*delay_ns = 0;
	for_each_possible_cpu(cpu) {
		const struct totals *sum = per_cpu_ptr(&totals, cpu);

		*hits += READ_ONCE(sum->hits);
		*delay_ns += READ_ONCE(sum->delay_ns);
	}
}
