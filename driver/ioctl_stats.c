// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * STATS: the counters of targets, and their reset; DURATIONS.
 */
#include <linux/errno.h>
#include <linux/uaccess.h>

#include <linux/speed_bump.h>

#include "batch.h"
#include "call.h"
#include "compat.h"
#include "durations.h"
#include "ioctl.h"
#include "session.h"
#include "stats.h"
#include "target.h"

static_assert(sizeof(struct speed_bump_stats) == SPEED_BUMP_STATS_SIZE_VER2);
static_assert(sizeof(struct speed_bump_durations) == SPEED_BUMP_DURATIONS_SIZE_VER0);

static struct bump_target *stats_target(struct bump_session *session, u64 id, bool reset)
{
	struct bump_target *t = bump_target_find(id);

	if (t && !(reset ? bump_target_is_mutable(t, session) :
			   bump_target_is_visible(t, session))) {
		bump_target_put(t);
		t = NULL;
	}
	return t;
}

/* With @only_check everything that can fail is tried, but nothing is read or reset. */
static int stats_entry(struct bump_session *session, const struct speed_bump_batch *b, u32 i,
		       bool only_check)
{
	bool reset = b->flags & SPEED_BUMP_BATCH_RESET;
	struct speed_bump_stats out = {};
	struct speed_bump_stats e;
	struct bump_target *t;
	int err;

	err = bump_batch_read(b, i, &e, sizeof(e));
	if (err)
		return err;
	out.id = e.id;
	t = e.reserved ? NULL : stats_target(session, e.id, reset);
	if (!t)
		err = e.reserved ? -EINVAL : -ENOENT;
	out.error = -err;
	if (t && !only_check)
		bump_stats_read(&t->stats, &out, reset);
	if (t)
		bump_target_put(t);
	if (copy_struct_to_user(bump_batch_entry(b, i), b->entry_size, &out, sizeof(out), NULL))
		return -EFAULT;
	return err;
}

static int stats_all(struct bump_session *session, struct speed_bump_batch *b, bool only_check)
{
	int err;
	u32 i;

	for (i = 0; i < b->count; i++) {
		err = bump_batch_pause();
		if (err)
			return err;
		err = stats_entry(session, b, i, only_check);
		if (!err)
			continue;
		if (!bump_batch_is_best_effort(b)) {
			b->failed = i;
			return err;
		}
		b->failed++;
	}
	return 0;
}

int bump_ioctl_stats(struct bump_session *session, void *arg)
{
	struct speed_bump_batch *b = arg;
	int err;

	err = bump_batch_check(b, SPEED_BUMP_BATCH_BEST_EFFORT | SPEED_BUMP_BATCH_RESET,
			       SPEED_BUMP_STATS_SIZE_VER0);
	if (err)
		return err;
	/* All or nothing: if an entry fails, none is reset. */
	if ((b->flags & SPEED_BUMP_BATCH_RESET) && !bump_batch_is_best_effort(b)) {
		err = stats_all(session, b, true);
		if (err)
			return err;
	}
	return stats_all(session, b, false);
}

int bump_ioctl_durations(struct bump_session *session, void *arg)
{
	struct speed_bump_durations *durations = arg;
	struct bump_target *t;
	int err = -EINVAL;

	if (durations->reserved || durations->count < SPEED_BUMP_DURATION_BUCKETS)
		return -EINVAL;
	t = stats_target(session, durations->id, false);
	if (!t)
		return -ENOENT;
	if (t->session != session)
		err = -ENOENT;
	else if (t->ends && t->ends->durations)
		err = bump_durations_read(t->ends->durations, durations);
	bump_target_put(t);
	return err;
}
