/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_PLAN_H
#define SB_PLAN_H

#include <linux/types.h>

struct sb_plan;
struct sb_session;
struct sb_settings;
struct sb_target;

/**
 * struct sb_plan_targets - what a plan rules
 * @targets:	targets of the session; the caller's references are not taken over
 * @count:	how many
 * @units:	those each hit of which is a unit of work
 * @unit_count:	how many
 */
struct sb_plan_targets {
	struct sb_target **targets;
	u32 count;
	struct sb_target **units;
	u32 unit_count;
};

int sb_plan_make(struct sb_session *session, const struct sb_plan_targets *of, u64 *size);
void sb_plan_put(struct sb_plan *plan);

u64 sb_plan_begin(struct sb_target *target, struct sb_settings *settings);
void sb_plan_end(struct sb_target *target, u64 number, u64 delivered_ns);

#endif /* SB_PLAN_H */
