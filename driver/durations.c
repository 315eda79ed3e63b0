// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * How long the calls of a target lasted: a histogram.
 *
 * It is 18 kB, so all CPUs share one, and count by atomic operations.
 */
#include <linux/atomic.h>
#include <linux/errno.h>
#include <linux/gfp.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include <linux/speed_bump.h>

#include "durations.h"

#define SHIFT	SPEED_BUMP_DURATION_SHIFT
#define BUCKETS	SPEED_BUMP_DURATION_BUCKETS

struct bump_durations {
	atomic64_t sum_ns;
	atomic64_t max_ns;
	atomic64_t buckets[BUCKETS];
};

struct bump_durations *bump_durations_alloc(void)
{
	return kvzalloc(sizeof(struct bump_durations), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
}

void bump_durations_free(struct bump_durations *durations)
{
	kvfree(durations);
}

/* The highest SHIFT + 1 bits of @ns, and how many there are below them. */
static unsigned int bucket_of(u64 ns)
{
	unsigned int below = 0;

	if (ns >> SPEED_BUMP_DURATION_POWERS)
		return BUCKETS - 1;
	if (ns >> (SHIFT + 1))
		below = ilog2(ns) - SHIFT;
	return (below << SHIFT) + (ns >> below);
}

void bump_durations_count(struct bump_durations *durations, u64 ns)
{
	s64 longest = atomic64_read(&durations->max_ns);

	atomic64_inc(&durations->buckets[bucket_of(ns)]);
	atomic64_add(ns, &durations->sum_ns);
	while ((s64)ns > longest &&
	       !atomic64_try_cmpxchg(&durations->max_ns, &longest, ns))
		;
}

/* Fills in @to and what it points to. */
int bump_durations_read(struct bump_durations *durations, struct speed_bump_durations *to)
{
	u64 __user *buckets = u64_to_user_ptr(to->buckets);
	unsigned int i;

	to->sum_ns = atomic64_read(&durations->sum_ns);
	to->max_ns = atomic64_read(&durations->max_ns);
	for (i = 0; i < BUCKETS; i++)
		if (put_user((u64)atomic64_read(&durations->buckets[i]), buckets + i))
			return -EFAULT;
	return 0;
}
