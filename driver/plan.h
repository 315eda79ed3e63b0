/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_PLAN_H
#define BUMP_PLAN_H

#include <linux/types.h>

struct bump_plan;
struct bump_session;
struct bump_settings;
struct bump_target;

/**
 * struct bump_plan_targets - the targets of a plan
 * @targets:	targets of the session; the caller's references are not taken over
 * @count:	how many
 * @units:	targets of which each hit is a unit of work
 * @unit_count:	how many
 */
struct bump_plan_targets {
	struct bump_target **targets;
	u32 count;
	struct bump_target **units;
	u32 unit_count;
};

int bump_plan_make(struct bump_session *session, const struct bump_plan_targets *of,
		   u64 *size);
void bump_plan_put(struct bump_plan *plan);

u64 bump_plan_begin(struct bump_target *target, struct bump_settings *settings);
void bump_plan_end(struct bump_target *target, u64 number, u64 delivered_ns);

#endif /* BUMP_PLAN_H */
