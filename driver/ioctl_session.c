// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * QUERY, SESSION and GLOBAL: what there is, and the switches.
 */
#include <linux/errno.h>
#include <linux/kernel.h>

#include <linux/speed_bump.h>

#include "budget.h"
#include "compat.h"
#include "ioctl.h"
#include "main.h"
#include "scope.h"
#include "session.h"
#include "stats.h"
#include "target.h"

static_assert(sizeof(struct speed_bump_query) == SPEED_BUMP_QUERY_SIZE_VER0);
static_assert(sizeof(struct speed_bump_session) == SPEED_BUMP_SESSION_SIZE_VER0);
static_assert(sizeof(struct speed_bump_global) == SPEED_BUMP_GLOBAL_SIZE_VER0);

int bump_ioctl_query(struct bump_session *session, void *arg)
{
	struct speed_bump_query *q = arg;

	if (q->reserved)
		return -EINVAL;
	q->features = bump_scope_features() | SPEED_BUMP_FEATURE_FREQUENCY |
		      SPEED_BUMP_FEATURE_WINDOW | SPEED_BUMP_FEATURE_SLEEP |
		      SPEED_BUMP_FEATURE_HISTOGRAM | SPEED_BUMP_FEATURE_RESET |
		      SPEED_BUMP_FEATURE_PLAN | SPEED_BUMP_FEATURE_REF_CTR;
	if (bump_scope_can_trace_exits())
		q->features |= SPEED_BUMP_FEATURE_PART | SPEED_BUMP_FEATURE_DURATIONS;
	if (BUMP_DELAYS_HOLD_NO_LOCK && READ_ONCE(bump_unprivileged))
		q->features |= SPEED_BUMP_FEATURE_UNPRIVILEGED;
	q->max_delay_ns = bump_budget_limit(session);
	q->max_targets = READ_ONCE(bump_max_targets);
	if (session->user)
		q->max_targets = min(q->max_targets, READ_ONCE(bump_max_unprivileged_targets));
	q->max_batch = SPEED_BUMP_MAX_BATCH;
	q->max_label = SPEED_BUMP_MAX_LABEL;
	return 0;
}

int bump_ioctl_session(struct bump_session *session, void *arg)
{
	struct speed_bump_session *s = arg;

	if (s->reserved || (s->set & ~SPEED_BUMP_SESSION_SET_ENABLED))
		return -EINVAL;
	if (s->set & SPEED_BUMP_SESSION_SET_ENABLED) {
		if (s->enabled > 1)
			return -EINVAL;
		WRITE_ONCE(session->enabled, s->enabled);
	}
	s->enabled = READ_ONCE(session->enabled);
	s->targets = bump_target_count_of(session);
	return 0;
}

/* For a session that must not see anything of other sessions. */
static int global_of_session(struct bump_session *session, struct speed_bump_global *g)
{
	if (g->set)
		return -EPERM;
	*g = (struct speed_bump_global) {
		.default_delay_ns = READ_ONCE(bump_default_delay_ns),
		.targets = bump_target_count_of(session),
		.sessions = 1,
	};
	return 0;
}

int bump_ioctl_global(struct bump_session *session, void *arg)
{
	struct speed_bump_global *g = arg;

	if (g->reserved ||
	    (g->set & ~(SPEED_BUMP_GLOBAL_SET_ENABLED | SPEED_BUMP_GLOBAL_SET_DEFAULT_DELAY)))
		return -EINVAL;
	if (g->enabled > !!(g->set & SPEED_BUMP_GLOBAL_SET_ENABLED))
		return -EINVAL;
	if (!(g->set & SPEED_BUMP_GLOBAL_SET_DEFAULT_DELAY) && g->default_delay_ns)
		return -EINVAL;
	if (g->default_delay_ns > SPEED_BUMP_MAX_DELAY_NS)
		return -ERANGE;

	if (session->opener)
		return global_of_session(session, g);

	if (g->set & SPEED_BUMP_GLOBAL_SET_ENABLED)
		WRITE_ONCE(bump_persistent.enabled, g->enabled);
	if (g->set & SPEED_BUMP_GLOBAL_SET_DEFAULT_DELAY)
		WRITE_ONCE(bump_default_delay_ns, g->default_delay_ns);

	g->enabled = READ_ONCE(bump_persistent.enabled);
	g->default_delay_ns = READ_ONCE(bump_default_delay_ns);
	bump_stats_totals(&g->total_hits, &g->total_delay_ns);
	g->targets = bump_target_count();
	g->persistent = bump_target_count_of(&bump_persistent);
	g->sessions = bump_session_count();
	return 0;
}
