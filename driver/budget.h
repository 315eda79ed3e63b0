/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The limit on the delays of a hit, however many targets share the instruction.
 * Unrelated parts of the kernel wait for hits to end: RCU, and the removal of any uprobe.
 */
#ifndef BUMP_BUDGET_H
#define BUMP_BUDGET_H

#include <linux/types.h>

#include <linux/speed_bump.h>

#include "main.h"
#include "session.h"

/**
 * struct bump_budget - the delays of a hit so far
 * @spent_ns:	of all targets
 * @users_ns:	of the targets of unprivileged sessions
 */
struct bump_budget {
	u64 spent_ns;
	u64 users_ns;
};

/**
 * bump_budget_limit() - the limit on the sum of a hit's delays
 * @session:	the owner of the targets
 *
 * Return: nanoseconds.
 */
static inline u64 bump_budget_limit(const struct bump_session *session)
{
	u64 limit = SPEED_BUMP_MAX_DELAY_NS;

	if (session->user)
		limit = min(limit,
			    (u64)READ_ONCE(bump_unprivileged_budget_ms) * NSEC_PER_MSEC);
	return limit;
}

/*
 * Returns false and spends nothing if a delay of @ns no longer fits.  @budget is NULL if
 * there is no other target on the instruction.
 */
static inline bool bump_budget_take(struct bump_budget *budget,
				    const struct bump_session *session, u64 ns)
{
	if (!budget)
		return ns <= bump_budget_limit(session);
	if (budget->spent_ns + ns > SPEED_BUMP_MAX_DELAY_NS)
		return false;
	if (session->user) {
		if (budget->users_ns + ns > bump_budget_limit(session))
			return false;
		budget->users_ns += ns;
	}
	budget->spent_ns += ns;
	return true;
}

#endif /* BUMP_BUDGET_H */
