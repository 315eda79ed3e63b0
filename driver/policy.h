/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What is done about a hit: its settings, and the decision by them.  What every hit
 * runs is in line.
 *
 * A hit that a switch or the window keeps from being delayed does not take a
 * turn: of those that are left the Nth, the 2Nth and so on are delayed, exactly,
 * on whatever CPUs they come.  The turns are counted in one place for that
 * reason, and only where there is something to count (every > 1).
 */
#ifndef SB_POLICY_H
#define SB_POLICY_H

#include <linux/atomic.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/seqlock.h>
#include <linux/types.h>

#include <linux/speed_bump.h>

#include "stats.h"

/**
 * struct sb_settings - what is to be done about a hit
 * @delay_ns:	delay of each delayed hit
 * @start_ns:	when delays begin, CLOCK_MONOTONIC; 0: no window
 * @end_ns:	when they end, CLOCK_MONOTONIC; 0: never
 * @every:	delay every Nth hit; at least 1
 * @enabled:	the target's own switch
 * @sleep:	give the CPU away
 * @planned:	a plan says what is to be done: sb_plan_begin()
 */
struct sb_settings {
	u64 delay_ns;
	u64 start_ns;
	u64 end_ns;
	u32 every;
	bool enabled;
	bool sleep;
	bool planned;
};

/**
 * struct sb_policy - settings that change while they are used
 * @lock:	writers; a reader takes a copy and looks whether it is one piece.
 *		Innermost
 * @settings:	those in force
 *
 * A hit decides by one copy: it sees all of an update or nothing of it.
 */
struct sb_policy {
	seqlock_t lock;
	struct sb_settings settings;
};

void sb_policy_init(struct sb_policy *policy, const struct sb_settings *settings);
void sb_policy_start(struct sb_policy *policy, u64 now);
u64 sb_settings_show_time(u64 ns);
void sb_policy_plan(struct sb_policy *policy);
void sb_policy_update(struct sb_policy *policy, atomic64_t *turns,
		      const struct speed_bump_update *update, u64 now);

static inline void sb_policy_read(struct sb_policy *policy, struct sb_settings *settings)
{
	unsigned int seq;

	do {
		seq = read_seqbegin(&policy->lock);
		*settings = policy->settings;
	} while (read_seqretry(&policy->lock, seq));
}

/**
 * sb_settings_clock() - when a hit happens, where that is asked
 * @settings:	of its target
 *
 * To read the clock is the dearest part of a hit.
 *
 * Return: CLOCK_MONOTONIC, or 0 where neither a window nor a delay needs it.
 */
static inline u64 sb_settings_clock(const struct sb_settings *settings)
{
	return settings->delay_ns || settings->start_ns ? ktime_get_ns() : 0;
}

static inline bool sb_settings_in_window(const struct sb_settings *settings, u64 now)
{
	if (!settings->start_ns)
		return true;
	return now >= settings->start_ns && (!settings->end_ns || now < settings->end_ns);
}

static inline bool sb_settings_take_turn(const struct sb_settings *settings, atomic64_t *turns)
{
	u32 rest;

	if (settings->every == 1)
		return true;
	div_u64_rem(atomic64_inc_return(turns), settings->every, &rest);
	return !rest;
}

/**
 * sb_settings_decide() - what becomes of a hit
 * @settings:	of its target
 * @turns:	hits that were let through to be counted for the frequency
 * @now:	sb_settings_clock()
 *
 * Return: SB_DELAYED or one of the SB_SKIPPED_*.
 */
static inline enum sb_sum sb_settings_decide(const struct sb_settings *settings,
					     atomic64_t *turns, u64 now)
{
	if (!settings->enabled)
		return SB_SKIPPED_DISABLED;
	if (!sb_settings_in_window(settings, now))
		return SB_SKIPPED_WINDOW;
	if (!sb_settings_take_turn(settings, turns))
		return SB_SKIPPED_FREQUENCY;
	return SB_DELAYED;
}

#endif /* SB_POLICY_H */
