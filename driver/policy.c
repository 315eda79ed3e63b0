// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The settings of a target: how they are changed.
 */
#include <linux/ktime.h>
#include <linux/overflow.h>
#include <linux/time_namespace.h>

#include "policy.h"

static u64 add_times(u64 a, u64 b)
{
	u64 sum;

	return check_add_overflow(a, b, &sum) ? U64_MAX : sum;
}

static void set_window(struct bump_settings *settings, u64 now, u64 start_ns, u64 duration_ns)
{
	settings->start_ns = 0;
	settings->end_ns = 0;
	if (!start_ns && !duration_ns)
		return;
	settings->start_ns = add_times(now, start_ns);
	if (duration_ns)
		settings->end_ns = add_times(settings->start_ns, duration_ns);
}

/*
 * Converts a point in time to the caller's time namespace; 0 and "never" are unchanged.
 */
u64 bump_settings_show_time(u64 ns)
{
	struct timespec64 ts;

	if (!ns || ns > KTIME_MAX)
		return ns;
	ts = ns_to_timespec64(ns);
	timens_add_monotonic(&ts);
	return timespec64_to_ns(&ts);
}

/* The window in @settings is relative to bump_policy_start(): start, then duration. */
void bump_policy_init(struct bump_policy *policy, const struct bump_settings *settings)
{
	seqlock_init(&policy->lock);
	policy->settings = *settings;
}

void bump_policy_start(struct bump_policy *policy, u64 now)
{
	struct bump_settings *s = &policy->settings;

	write_seqlock(&policy->lock);
	set_window(s, now, s->start_ns, s->end_ns);
	write_sequnlock(&policy->lock);
}

/* From here on the plan decides: its hits see everything that the caller wrote before. */
void bump_policy_plan(struct bump_policy *policy)
{
	write_seqlock(&policy->lock);
	policy->settings.planned = true;
	write_sequnlock(&policy->lock);
}

void bump_policy_update(struct bump_policy *policy, atomic64_t *turns,
			const struct speed_bump_update *update, u64 now)
{
	struct bump_settings *s = &policy->settings;

	write_seqlock(&policy->lock);
	/* One of the two is 0. */
	if (update->mask & SPEED_BUMP_UPDATE_DELAY)
		s->delay_ns = update->delay_ns ?: update->delay_ppm;
	if (update->mask & SPEED_BUMP_UPDATE_ENABLED)
		s->enabled = update->enabled;
	if (update->mask & SPEED_BUMP_UPDATE_WINDOW)
		set_window(s, now, update->start_ns, update->duration_ns);
	if (update->mask & SPEED_BUMP_UPDATE_EVERY) {
		s->every = max(update->every, 1U);
		atomic64_set(turns, 0);
	}
	write_sequnlock(&policy->lock);
}
