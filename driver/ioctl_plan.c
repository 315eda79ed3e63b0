// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * PLAN: the plan of a session's experiment, for its own targets.
 */
#include <linux/err.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include <linux/speed_bump.h>

#include "batch.h"
#include "ioctl.h"
#include "plan.h"
#include "session.h"
#include "target.h"

static_assert(sizeof(struct speed_bump_plan_request) == SPEED_BUMP_PLAN_REQUEST_SIZE_VER0);

static void put_targets(struct bump_target **targets, u32 count)
{
	u32 i;

	for (i = 0; i < count; i++)
		bump_target_put(targets[i]);
	kvfree(targets);
}

static struct bump_target *own_target(struct bump_session *session, u64 id)
{
	struct bump_target *t = bump_target_find(id);

	if (t && t->session != session) {
		bump_target_put(t);
		t = NULL;
	}
	return t;
}

/* The session's targets with the @count ids at @ids: an array for put_targets(). */
static struct bump_target **find_targets(struct bump_session *session, u64 ids, u32 count)
{
	u64 __user *from = u64_to_user_ptr(ids);
	struct bump_target **targets;
	u64 id;
	u32 i, k;
	int err;

	targets = kvcalloc(max(count, 1U), sizeof(*targets), BUMP_USER_SIZED);
	if (!targets)
		return ERR_PTR(-ENOMEM);
	for (i = 0; i < count; i++) {
		err = bump_batch_pause();
		if (err)
			goto fail;
		err = -EFAULT;
		if (get_user(id, from + i))
			goto fail;
		err = -EINVAL;
		for (k = 0; k < i; k++)
			if (targets[k]->id == id)
				goto fail;
		err = -ENOENT;
		targets[i] = own_target(session, id);
		if (!targets[i])
			goto fail;
		if (targets[i]->ends) {
			err = -EINVAL;
			bump_target_put(targets[i]);
			goto fail;
		}
	}
	return targets;

fail:
	put_targets(targets, i);
	return ERR_PTR(err);
}

int bump_ioctl_plan(struct bump_session *session, void *arg)
{
	struct speed_bump_plan_request *plan = arg;
	struct bump_plan_targets of = {
		.count = plan->count,
		.unit_count = plan->unit_count,
	};
	int ret;

	if (plan->reserved || plan->count > SPEED_BUMP_PLAN_TARGETS ||
	    plan->unit_count > SPEED_BUMP_PLAN_TARGETS)
		return -EINVAL;
	of.targets = find_targets(session, plan->ids, plan->count);
	if (IS_ERR(of.targets))
		return PTR_ERR(of.targets);
	of.units = find_targets(session, plan->units, plan->unit_count);
	if (IS_ERR(of.units)) {
		ret = PTR_ERR(of.units);
		goto out;
	}
	ret = bump_plan_make(session, &of, &plan->size);
	put_targets(of.units, of.unit_count);
out:
	put_targets(of.targets, of.count);
	if (ret < 0)
		return ret;
	plan->fd = ret;
	return 0;
}
