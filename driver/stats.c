// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Statistics: per-CPU counters, which go on while they are read.
 *
 * A reader sees a hit with all that is counted of it or does not see it at all,
 * though not all CPUs at the same moment.
 *
 * A reset leaves the counters alone, which only their CPU may write, and remembers their
 * sums.  Whatever runs meanwhile, each hit is reported by exactly one reset, or by the
 * statistics after the last one: the results of the resets add up to what was counted.
 * The one exception is the largest overshoot, in which a hit that ends in the moment of
 * the reset can be missing; the histogram has it.
 */
#include <linux/atomic.h>
#include <linux/cpumask.h>
#include <linux/gfp.h>
#include <linux/log2.h>
#include <linux/preempt.h>

#include "stats.h"

struct totals {
	u64 hits;
	u64 delay_ns;
};

/* Since the module was loaded: removing a target subtracts nothing. */
static DEFINE_PER_CPU(struct totals, totals);

int bump_stats_init(struct bump_stats *stats)
{
	int cpu;

	stats->counters = alloc_percpu_gfp(struct bump_counters,
					   GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!stats->counters)
		return -ENOMEM;
	for_each_possible_cpu(cpu)
		seqcount_init(&per_cpu_ptr(stats->counters, cpu)->seq);
	spin_lock_init(&stats->lock);
	return 0;
}

void bump_stats_destroy(struct bump_stats *stats)
{
	free_percpu(stats->counters);
}

static unsigned int bucket_of(u64 ns)
{
	return ns ? min_t(unsigned int, ilog2(ns), SPEED_BUMP_OVERSHOOT_BUCKETS - 1) : 0;
}

static void count_total(u64 delay_ns)
{
	struct totals *sum = this_cpu_ptr(&totals);

	sum->hits++;
	sum->delay_ns += delay_ns;
}

void bump_stats_count_skipped(struct bump_stats *stats, enum bump_sum why)
{
	struct bump_counters *c;

	preempt_disable();
	c = this_cpu_ptr(stats->counters);
	write_seqcount_begin(&c->seq);
	c->sums[why]++;
	write_seqcount_end(&c->seq);
	count_total(0);
	preempt_enable();
}

/* Counts an event that is not a hit.  In any context but that of an interrupt. */
void bump_stats_count_event(struct bump_stats *stats, enum bump_sum what)
{
	struct bump_counters *c;

	preempt_disable();
	c = this_cpu_ptr(stats->counters);
	write_seqcount_begin(&c->seq);
	c->sums[what]++;
	write_seqcount_end(&c->seq);
	preempt_enable();
}

void bump_stats_count_delayed(struct bump_stats *stats, u64 requested_ns, u64 measured_ns,
			      bool cut)
{
	u64 overshoot_ns = measured_ns > requested_ns ? measured_ns - requested_ns : 0;
	struct bump_counters *c;

	preempt_disable();
	c = this_cpu_ptr(stats->counters);
	write_seqcount_begin(&c->seq);
	c->sums[BUMP_DELAYED]++;
	c->sums[BUMP_REQUESTED_NS] += requested_ns;
	c->sums[BUMP_MEASURED_NS] += measured_ns;
	if (cut)
		c->sums[BUMP_CUT]++;
	else
		c->sums[BUMP_OVERSHOOT + bucket_of(overshoot_ns)]++;
	if (overshoot_ns > READ_ONCE(c->max_overshoot_ns))
		WRITE_ONCE(c->max_overshoot_ns, overshoot_ns);
	write_seqcount_end(&c->seq);
	count_total(measured_ns);
	preempt_enable();
}

/* Counts a delay of which the breakpoints of the call took all: there was no overshoot. */
void bump_stats_count_part(struct bump_stats *stats, u64 requested_ns, u64 measured_ns)
{
	struct bump_counters *c;

	preempt_disable();
	c = this_cpu_ptr(stats->counters);
	write_seqcount_begin(&c->seq);
	c->sums[BUMP_DELAYED]++;
	c->sums[BUMP_REQUESTED_NS] += requested_ns;
	c->sums[BUMP_MEASURED_NS] += measured_ns;
	c->sums[BUMP_OVERSHOOT]++;
	write_seqcount_end(&c->seq);
	count_total(measured_ns);
	preempt_enable();
}

/* Returns the largest overshoot. */
static u64 add_up_cpu(struct bump_counters *c, u64 *sums)
{
	u64 copy[BUMP_SUMS], max_ns;
	unsigned int seq, i;

	do {
		seq = read_seqcount_begin(&c->seq);
		memcpy(copy, c->sums, sizeof(copy));
		max_ns = READ_ONCE(c->max_overshoot_ns);
	} while (read_seqcount_retry(&c->seq, seq));

	for (i = 0; i < BUMP_SUMS; i++)
		sums[i] += copy[i];
	return max_ns;
}

static void stats_from_sums(struct speed_bump_stats *out, const u64 *sums)
{
	out->delayed = sums[BUMP_DELAYED];
	out->skipped_frequency = sums[BUMP_SKIPPED_FREQUENCY];
	out->skipped_window = sums[BUMP_SKIPPED_WINDOW];
	out->skipped_disabled = sums[BUMP_SKIPPED_DISABLED];
	out->skipped_budget = sums[BUMP_SKIPPED_BUDGET];
	out->unreturned = sums[BUMP_UNRETURNED];
	out->missed = sums[BUMP_MISSED];
	out->hits = out->delayed + out->skipped_frequency + out->skipped_window +
		    out->skipped_disabled + out->skipped_budget + out->unreturned +
		    out->missed;
	out->unarmed = sums[BUMP_UNARMED];
	out->taken_out = sums[BUMP_TAKEN_OUT];
	out->cut = sums[BUMP_CUT];
	out->requested_ns = sums[BUMP_REQUESTED_NS];
	out->measured_ns = sums[BUMP_MEASURED_NS];
	memcpy(out->overshoot, sums + BUMP_OVERSHOOT, sizeof(out->overshoot));
}

/**
 * bump_stats_read() - statistics since the last reset
 * @stats:	of a target
 * @out:	zeroed; id and error are left to the caller
 * @reset:	begin the next generation with what comes after @out
 */
void bump_stats_read(struct bump_stats *stats, struct speed_bump_stats *out, bool reset)
{
	u64 sums[BUMP_SUMS] = {}, max_ns;
	unsigned int i;
	int cpu;

	spin_lock(&stats->lock);
	for_each_possible_cpu(cpu) {
		struct bump_counters *c = per_cpu_ptr(stats->counters, cpu);

		max_ns = add_up_cpu(c, sums);
		/* A larger one that was stored meanwhile stays. */
		if (reset)
			cmpxchg(&c->max_overshoot_ns, max_ns, 0);
		out->max_overshoot_ns = max(out->max_overshoot_ns, max_ns);
	}
	for (i = 0; i < BUMP_SUMS; i++) {
		sums[i] -= stats->base[i];
		if (reset)
			stats->base[i] += sums[i];
	}
	out->generation = stats->generation;
	stats->generation += reset;
	spin_unlock(&stats->lock);

	stats_from_sums(out, sums);
}

void bump_stats_totals(u64 *hits, u64 *delay_ns)
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
