/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_POLICY_H
#define SB_POLICY_H

#include <linux/atomic.h>
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
 */
struct sb_settings {
	u64 delay_ns;
	u64 start_ns;
	u64 end_ns;
	u32 every;
	bool enabled;
	bool sleep;
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
void sb_policy_update(struct sb_policy *policy, atomic64_t *turns,
		      const struct speed_bump_update *update, u64 now);
void sb_policy_read(struct sb_policy *policy, struct sb_settings *settings);

enum sb_sum sb_settings_decide(const struct sb_settings *settings, atomic64_t *turns, u64 now);

#endif /* SB_POLICY_H */
