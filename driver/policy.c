// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What is done about a hit: its settings, and the decision by them.
 *
 * A hit that a switch or the window keeps from being delayed does not take a
 * turn: of those that are left the Nth, the 2Nth and so on are delayed, exactly,
 * on whatever CPUs they come.  The turns are counted in one place for that
 * reason, and only where there is something to count (every > 1).
 */
#include <linux/math64.h>
#include <linux/overflow.h>

#include "policy.h"

static u64 add_times(u64 a, u64 b)
{
	u64 sum;

	return check_add_overflow(a, b, &sum) ? U64_MAX : sum;
}

static void set_window(struct sb_settings *settings, u64 now, u64 start_ns, u64 duration_ns)
{
	settings->start_ns = 0;
	settings->end_ns = 0;
	if (!start_ns && !duration_ns)
		return;
	settings->start_ns = add_times(now, start_ns);
	if (duration_ns)
		settings->end_ns = add_times(settings->start_ns, duration_ns);
}

/* The window in @settings counts from sb_policy_start(): start, then duration. */
void sb_policy_init(struct sb_policy *policy, const struct sb_settings *settings)
{
	seqlock_init(&policy->lock);
	policy->settings = *settings;
}

void sb_policy_start(struct sb_policy *policy, u64 now)
{
	struct sb_settings *s = &policy->settings;

	write_seqlock(&policy->lock);
	set_window(s, now, s->start_ns, s->end_ns);
	write_sequnlock(&policy->lock);
}

void sb_policy_update(struct sb_policy *policy, atomic64_t *turns,
		      const struct speed_bump_update *update, u64 now)
{
	struct sb_settings *s = &policy->settings;

	write_seqlock(&policy->lock);
	if (update->mask & SPEED_BUMP_UPDATE_DELAY)
		s->delay_ns = update->delay_ns;
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

void sb_policy_read(struct sb_policy *policy, struct sb_settings *settings)
{
	unsigned int seq;

	do {
		seq = read_seqbegin(&policy->lock);
		*settings = policy->settings;
	} while (read_seqretry(&policy->lock, seq));
}

static bool is_in_window(const struct sb_settings *settings, u64 now)
{
	if (!settings->start_ns)
		return true;
	return now >= settings->start_ns && (!settings->end_ns || now < settings->end_ns);
}

static bool takes_its_turn(const struct sb_settings *settings, atomic64_t *turns)
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
 * @now:	the time, CLOCK_MONOTONIC
 *
 * Return: SB_DELAYED or one of the SB_SKIPPED_*.
 */
enum sb_sum sb_settings_decide(const struct sb_settings *settings, atomic64_t *turns, u64 now)
{
	if (!settings->enabled)
		return SB_SKIPPED_DISABLED;
	if (!is_in_window(settings, now))
		return SB_SKIPPED_WINDOW;
	if (!takes_its_turn(settings, turns))
		return SB_SKIPPED_FREQUENCY;
	return SB_DELAYED;
}
