/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The settings of a target, and the decision about a hit.  The code that every hit runs
 * is inline.
 *
 * A hit that is not delayed because of a switch or the window does not take a turn: of
 * the other hits exactly the Nth, the 2Nth and so on are delayed, on any CPUs.  The turns
 * are counted in one place for that reason, and only if needed (every > 1).
 */
#ifndef BUMP_POLICY_H
#define BUMP_POLICY_H

#include <linux/atomic.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/seqlock.h>
#include <linux/types.h>

#include <linux/speed_bump.h>

#include "stats.h"

/**
 * struct bump_settings - the settings of a target
 * @delay_ns:	delay of each delayed hit
 * @delay_ppm:	instead, of a target that catches the ends of its calls: the part of the
 *		duration, in millionths
 * @start_ns:	when delays begin, CLOCK_MONOTONIC; 0: no window
 * @end_ns:	when they end, CLOCK_MONOTONIC; 0: never
 * @every:	delay every Nth hit; at least 1
 * @enabled:	the target's own switch
 * @sleep:	sleep instead of spinning
 * @planned:	a plan decides: bump_plan_begin()
 */
struct bump_settings {
	union {
		u64 delay_ns;
		u64 delay_ppm;
	};
	u64 start_ns;
	u64 end_ns;
	u32 every;
	bool enabled;
	bool sleep;
	bool planned;
};

/**
 * struct bump_policy - settings that change while they are used
 * @lock:	writers; a reader takes a copy and checks that it is consistent.
 *		Innermost
 * @settings:	those in force
 *
 * A hit uses one copy: it sees all of an update or none of it.
 */
struct bump_policy {
	seqlock_t lock;
	struct bump_settings settings;
};

void bump_policy_init(struct bump_policy *policy, const struct bump_settings *settings);
void bump_policy_start(struct bump_policy *policy, u64 now);
u64 bump_settings_show_time(u64 ns);
void bump_policy_plan(struct bump_policy *policy);
void bump_policy_update(struct bump_policy *policy, atomic64_t *turns,
			const struct speed_bump_update *update, u64 now);

static inline void bump_policy_read(struct bump_policy *policy, struct bump_settings *settings)
{
	unsigned int seq;

	do {
		seq = read_seqbegin(&policy->lock);
		*settings = policy->settings;
	} while (read_seqretry(&policy->lock, seq));
}

/**
 * bump_settings_clock() - the time of a hit, if it is needed
 * @settings:	of its target
 *
 * Reading the clock is the most expensive part of a hit.
 *
 * Return: CLOCK_MONOTONIC, or 0 where neither a window nor a delay needs it.
 */
static inline u64 bump_settings_clock(const struct bump_settings *settings)
{
	return settings->delay_ns || settings->start_ns ? ktime_get_ns() : 0;
}

static inline bool bump_settings_in_window(const struct bump_settings *settings, u64 now)
{
	if (!settings->start_ns)
		return true;
	return now >= settings->start_ns && (!settings->end_ns || now < settings->end_ns);
}

static inline bool bump_settings_take_turn(const struct bump_settings *settings,
					   atomic64_t *turns)
{
	u32 rest;

	if (settings->every == 1)
		return true;
	div_u64_rem(atomic64_inc_return(turns), settings->every, &rest);
	return !rest;
}

/**
 * bump_settings_decide() - decide about a hit
 * @settings:	of its target
 * @turns:	number of hits that took a turn
 * @now:	bump_settings_clock(), or when the call returned
 *
 * Return: BUMP_DELAYED or one of the BUMP_SKIPPED_*.
 */
static inline enum bump_sum bump_settings_decide(const struct bump_settings *settings,
						 atomic64_t *turns, u64 now)
{
	if (!settings->enabled)
		return BUMP_SKIPPED_DISABLED;
	if (!bump_settings_in_window(settings, now))
		return BUMP_SKIPPED_WINDOW;
	if (!bump_settings_take_turn(settings, turns))
		return BUMP_SKIPPED_FREQUENCY;
	return BUMP_DELAYED;
}

#endif /* BUMP_POLICY_H */
