/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_DELAY_H
#define BUMP_DELAY_H

#include <linux/compiler.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/minmax.h>
#include <linux/types.h>

#include "budget.h"
#include "call.h"
#include "policy.h"
#include "session.h"
#include "stats.h"
#include "target.h"

void bump_delay_hit(struct bump_target *target, struct bump_budget *budget);
void bump_delay_rest(struct bump_target *target, u64 ns, u64 over_ns, bool sleep);
void bump_delay_wake(struct bump_target *target);

/* The part of a duration, @ppm millionths of it; if it is over @max_ns, at least that. */
static inline u64 bump_part_of(u64 ns, u32 ppm, u64 max_ns)
{
	/* The product fits: SPEED_BUMP_MAX_DELAY_PPM has 27 bits. */
	if (unlikely(ns >> 37) && ppm && div_u64(ns, 1000000) > div_u64(max_ns, ppm))
		return max_ns;
	return div_u64(ns * ppm, 1000000);
}

/*
 * Delays a call that lasted @lasted_ns.  What the breakpoints of the call cost can be a part
 * of the delay; a delay that is not longer than this is none.
 */
static __always_inline void bump_delay_part(struct bump_target *target,
					    const struct bump_settings *settings,
					    u64 lasted_ns, struct bump_budget *budget)
{
	const struct bump_ends *ends = target->ends;
	u64 ns = bump_part_of(lasted_ns, settings->delay_ppm, SPEED_BUMP_MAX_DELAY_NS);
	u64 over_ns = ends->net_ns + ends->over_ns;

	if (ns > over_ns)
		ns = min(ns, bump_budget_limit(target->session));
	if (ns <= over_ns)
		bump_stats_count_part(&target->stats, ns, ends->net_ns);
	else if (bump_budget_take(budget, target->session, ns - over_ns))
		bump_delay_rest(target, ns - over_ns, over_ns, settings->sleep);
	else
		bump_stats_count_skipped(&target->stats, BUMP_SKIPPED_BUDGET);
}

/* Handles the return at @now of a call in the scope.  @budget is as in bump_delay_hit(). */
static __always_inline void bump_delay_return(struct bump_target *target, u64 now,
					      u64 lasted_ns, struct bump_budget *budget)
{
	enum bump_sum verdict = BUMP_SKIPPED_DISABLED;
	struct bump_settings settings;

	if (likely(READ_ONCE(target->session->enabled))) {
		bump_policy_read(&target->policy, &settings);
		verdict = bump_settings_decide(&settings, &target->turns, now);
	}
	if (likely(verdict == BUMP_DELAYED))
		bump_delay_part(target, &settings, lasted_ns, budget);
	else
		bump_stats_count_skipped(&target->stats, verdict);
}

#endif /* BUMP_DELAY_H */
