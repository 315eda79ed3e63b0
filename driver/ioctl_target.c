// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * ADD, UPDATE and REMOVE: from batches of entries to targets.
 */
#include <linux/err.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include <linux/speed_bump.h>

#include "batch.h"
#include "budget.h"
#include "call.h"
#include "guard.h"
#include "ioctl.h"
#include "main.h"
#include "session.h"
#include "target.h"

static_assert(sizeof(struct speed_bump_target) == SPEED_BUMP_TARGET_SIZE_VER2);
static_assert(sizeof(struct speed_bump_update) == SPEED_BUMP_UPDATE_SIZE_VER1);
static_assert(sizeof(struct speed_bump_remove) == SPEED_BUMP_REMOVE_SIZE_VER0);

#define KNOWN_TARGET_FLAGS	(SPEED_BUMP_TARGET_PERSISTENT | SPEED_BUMP_TARGET_DISABLED | \
				 SPEED_BUMP_TARGET_DEFAULT_DELAY | SPEED_BUMP_TARGET_SLEEP | \
				 SPEED_BUMP_TARGET_MEM | SPEED_BUMP_TARGET_RECORD)

#define KNOWN_UPDATE_MASK	(SPEED_BUMP_UPDATE_DELAY | SPEED_BUMP_UPDATE_EVERY | \
				 SPEED_BUMP_UPDATE_WINDOW | SPEED_BUMP_UPDATE_ENABLED)

/* --- ADD --- */

static bool has_ends(const struct speed_bump_target *e)
{
	return e->delay_ppm || (e->flags & SPEED_BUMP_TARGET_RECORD);
}

static int ends_check(const struct speed_bump_target *e)
{
	if (!has_ends(e))
		return e->group || e->timed_ns || e->cost_ns || e->net_ns || e->over_ns ?
		       -EINVAL : 0;
	if (e->delay_ns || (e->flags & SPEED_BUMP_TARGET_DEFAULT_DELAY))
		return -EINVAL;
	if ((e->flags & SPEED_BUMP_TARGET_RECORD) &&
	    (e->delay_ppm || (e->flags & SPEED_BUMP_TARGET_PERSISTENT)))
		return -EINVAL;
	/* What is counted as a delay must be one. */
	if (e->net_ns > e->cost_ns || ((e->flags & SPEED_BUMP_TARGET_RECORD) && e->net_ns))
		return -EINVAL;
	if (e->delay_ppm > SPEED_BUMP_MAX_DELAY_PPM)
		return -ERANGE;
	if (max(max(e->timed_ns, e->cost_ns), max(e->net_ns, e->over_ns)) >
	    SPEED_BUMP_MAX_DELAY_NS || e->net_ns + e->over_ns > SPEED_BUMP_MAX_DELAY_NS)
		return -ERANGE;
	return bump_scope_can_trace_exits() ? 0 : -EOPNOTSUPP;
}

static int target_check(const struct bump_session *session, const struct speed_bump_target *e)
{
	if (e->reserved || e->reserved_end || (e->flags & ~KNOWN_TARGET_FLAGS))
		return -EINVAL;
	if (!(e->flags & SPEED_BUMP_TARGET_MEM) && e->mem_fd)
		return -EINVAL;
	if (e->scope < SPEED_BUMP_SCOPE_SYSTEM || e->scope > SPEED_BUMP_SCOPE_CGROUP)
		return -EINVAL;
	if ((e->flags & SPEED_BUMP_TARGET_DEFAULT_DELAY) && e->delay_ns)
		return -EINVAL;
	if (e->delay_ns > bump_budget_limit(session))
		return -ERANGE;
	if (!e->label_len && e->label)
		return -EINVAL;
	if (e->label_len > SPEED_BUMP_MAX_LABEL)
		return -ENAMETOOLONG;
	return ends_check(e);
}

static int file_check(const struct bump_session *session, struct file *file,
		      const struct speed_bump_target *e)
{
	struct inode *inode = bump_target_inode(&file->f_path);

	if (!(file->f_mode & FMODE_READ))
		return -EACCES;
	if (!S_ISREG(inode->i_mode) || e->offset >= i_size_read(inode))
		return -EINVAL;
	/* The counter is two bytes. */
	if ((e->ref_ctr_offset & 1) || e->ref_ctr_offset >= i_size_read(inode))
		return -EINVAL;
	return session->user ? bump_guard_check_file(inode) : 0;
}

static char *label_read(const struct speed_bump_target *e)
{
	char *label;

	if (!e->label_len)
		return NULL;
	label = kmalloc(e->label_len, GFP_KERNEL_ACCOUNT);
	if (!label)
		return ERR_PTR(-ENOMEM);
	if (copy_from_user(label, u64_to_user_ptr(e->label), e->label_len)) {
		kfree(label);
		return ERR_PTR(-EFAULT);
	}
	return label;
}

/* NULL if no ends are caught.  @batch is the number of the ADD, in which groups are unique. */
static struct bump_ends *ends_read(const struct speed_bump_target *e, u32 batch)
{
	struct bump_ends *ends;

	if (!has_ends(e))
		return NULL;
	ends = bump_ends_alloc(e->flags & SPEED_BUMP_TARGET_RECORD);
	if (IS_ERR(ends))
		return ends;
	ends->group = e->group ? (u64)batch << 32 | e->group : 0;
	ends->timed_ns = e->timed_ns;
	ends->cost_ns = e->cost_ns;
	ends->net_ns = e->net_ns;
	ends->over_ns = e->over_ns;
	return ends;
}

static struct bump_target *add_from_file(struct bump_session *session,
					 const struct speed_bump_target *e, u32 batch,
					 struct file *file, struct file *mem)
{
	struct bump_target_config config = {
		.path = &file->f_path,
		.offset = e->offset,
		.ref_ctr_offset = e->ref_ctr_offset,
		.settings = {
			.delay_ns = e->delay_ns,
			.start_ns = e->start_ns,
			.end_ns = e->duration_ns,
			.every = max(e->every, 1U),
			.enabled = !(e->flags & SPEED_BUMP_TARGET_DISABLED),
			.sleep = e->flags & SPEED_BUMP_TARGET_SLEEP,
		},
		.scope = { .type = e->scope, .id = e->scope_id, .mem = mem },
		.label_len = e->label_len,
	};
	struct bump_target *t;
	int err;

	err = file_check(session, file, e);
	if (err)
		return ERR_PTR(err);
	if (e->flags & SPEED_BUMP_TARGET_DEFAULT_DELAY)
		config.settings.delay_ns = min(READ_ONCE(bump_default_delay_ns),
					       bump_budget_limit(session));
	if (e->flags & SPEED_BUMP_TARGET_PERSISTENT) {
		if (session->opener)
			return ERR_PTR(-EPERM);
		session = &bump_persistent;
	}

	if (e->delay_ppm)
		config.settings.delay_ppm = e->delay_ppm;

	config.label = label_read(e);
	if (IS_ERR(config.label))
		return ERR_CAST(config.label);
	config.ends = ends_read(e, batch);
	t = IS_ERR(config.ends) ? ERR_CAST(config.ends) : bump_target_add(session, &config);
	if (!IS_ERR(t))
		return t;
	kfree(config.label);
	if (!IS_ERR(config.ends))
		bump_ends_free(config.ends);
	return t;
}

static struct bump_target *add_entry(struct bump_session *session,
				     const struct speed_bump_batch *b, u32 i, u32 batch)
{
	struct file *file, *mem = NULL;
	struct speed_bump_target e;
	struct bump_target *t;
	int err;

	err = bump_batch_read(b, i, &e, sizeof(e));
	if (err)
		return ERR_PTR(err);
	err = target_check(session, &e);
	if (err)
		return ERR_PTR(err);
	file = fget(e.fd);
	if (!file)
		return ERR_PTR(-EBADF);
	if (e.flags & SPEED_BUMP_TARGET_MEM) {
		mem = fget(e.mem_fd);
		t = ERR_PTR(-EBADF);
		if (!mem)
			goto out;
	}
	t = add_from_file(session, &e, batch, file, mem);
	if (mem)
		fput(mem);
out:
	fput(file);
	return t;
}

static int add_answer(const struct speed_bump_batch *b, u32 i, const struct bump_target *t)
{
	struct speed_bump_target __user *e = bump_batch_entry(b, i);
	u64 id = IS_ERR(t) ? 0 : t->id;
	u32 error = IS_ERR(t) ? -PTR_ERR(t) : 0;

	if (copy_to_user(&e->id, &id, sizeof(id)) || put_user(error, &e->error))
		return -EFAULT;
	return 0;
}

/* Instead of the number of targets: the caller was killed and no longer owns them. */
#define TAKEN_AWAY	U32_MAX

static int add_all(struct bump_session *session, struct speed_bump_batch *b,
		   struct bump_target **targets, u32 *made)
{
	static atomic_t batches;
	u32 batch = atomic_inc_return(&batches), i;
	int err;

	for (i = 0; i < b->count; i++) {
		err = bump_batch_pause();
		if (err)
			return err;
		targets[i] = add_entry(session, b, i, batch);
		*made = i + 1;
		if (IS_ERR(targets[i]) && !bump_batch_is_best_effort(b))
			break;
	}
	err = bump_target_register(targets, *made, bump_batch_is_best_effort(b));
	if (err == -EINTR)
		*made = TAKEN_AWAY;
	if (err)
		return err;
	for (i = 0; i < *made; i++) {
		if (!IS_ERR(targets[i]))
			continue;
		if (!bump_batch_is_best_effort(b)) {
			b->failed = i;
			err = PTR_ERR(targets[i]);
			return add_answer(b, i, targets[i]) ?: err;
		}
		b->failed++;
	}
	for (i = 0; i < b->count; i++) {
		err = add_answer(b, i, targets[i]);
		if (err)
			return err;
	}
	return 0;
}

int bump_ioctl_add(struct bump_session *session, void *arg)
{
	struct speed_bump_batch *b = arg;
	struct bump_target **targets;
	u32 made = 0;
	int err;

	err = bump_batch_check(b, SPEED_BUMP_BATCH_BEST_EFFORT, SPEED_BUMP_TARGET_SIZE_VER0);
	if (err || !b->count)
		return err;
	targets = kvmalloc_array(b->count, sizeof(*targets), BUMP_USER_SIZED);
	if (!targets)
		return -ENOMEM;

	err = add_all(session, b, targets, &made);
	if (made == TAKEN_AWAY)
		return err;
	if (err)
		bump_target_discard(targets, made);
	else
		bump_target_publish(targets, made);
	kvfree(targets);
	return err;
}

/* --- UPDATE --- */

struct change {
	struct bump_target *target;
	struct speed_bump_update to;
};

static int update_check(const struct bump_session *session, const struct speed_bump_update *e)
{
	if (!e->mask || (e->mask & ~KNOWN_UPDATE_MASK))
		return -EINVAL;
	if (e->reserved)
		return -EINVAL;
	if (!(e->mask & SPEED_BUMP_UPDATE_DELAY) && (e->delay_ns || e->delay_ppm))
		return -EINVAL;
	if (e->delay_ns && e->delay_ppm)
		return -EINVAL;
	if (!(e->mask & SPEED_BUMP_UPDATE_WINDOW) && (e->start_ns || e->duration_ns))
		return -EINVAL;
	if (!(e->mask & SPEED_BUMP_UPDATE_EVERY) && e->every)
		return -EINVAL;
	if (e->enabled > !!(e->mask & SPEED_BUMP_UPDATE_ENABLED))
		return -EINVAL;
	if (e->delay_ns > bump_budget_limit(session) || e->delay_ppm > SPEED_BUMP_MAX_DELAY_PPM)
		return -ERANGE;
	return 0;
}

static int update_prepare(struct bump_session *session, const struct speed_bump_batch *b,
			  u32 i, struct change *change)
{
	struct bump_target *t;
	int err;

	err = bump_batch_read(b, i, &change->to, sizeof(change->to));
	if (err)
		return err;
	err = update_check(session, &change->to);
	if (err)
		return err;
	t = bump_target_find(change->to.id);
	if (!t)
		return -ENOENT;
	err = bump_target_is_mutable(t, session) ? 0 : -ENOENT;
	if (!err && !bump_target_takes(t, &change->to))
		err = -EOPNOTSUPP;
	if (err)
		bump_target_put(t);
	else
		change->target = t;
	return err;
}

static int update_answer(const struct speed_bump_batch *b, u32 i, int err)
{
	struct speed_bump_update __user *e = bump_batch_entry(b, i);

	return put_user((u32)-err, &e->error);
}

static int update_prepare_all(struct bump_session *session, struct speed_bump_batch *b,
			      struct change *changes)
{
	int err;
	u32 i;

	for (i = 0; i < b->count; i++) {
		err = bump_batch_pause();
		if (err)
			return err;
		err = update_prepare(session, b, i, &changes[i]);
		if (update_answer(b, i, err))
			return -EFAULT;
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

int bump_ioctl_update(struct bump_session *session, void *arg)
{
	struct speed_bump_batch *b = arg;
	struct change *changes;
	struct bump_target *t;
	u64 now;
	int err;
	u32 i;

	err = bump_batch_check(b, SPEED_BUMP_BATCH_BEST_EFFORT, SPEED_BUMP_UPDATE_SIZE_VER0);
	if (err || !b->count)
		return err;
	changes = kvcalloc(b->count, sizeof(*changes), BUMP_USER_SIZED);
	if (!changes)
		return -ENOMEM;

	err = update_prepare_all(session, b, changes);
	now = ktime_get_ns();
	for (i = 0; i < b->count; i++) {
		t = changes[i].target;
		if (!t)
			continue;
		if (!err)
			bump_policy_update(&t->policy, &t->turns, &changes[i].to, now);
		bump_target_put(t);
	}
	kvfree(changes);
	return err;
}

/* --- REMOVE --- */

static int remove_read(const struct speed_bump_batch *b, u64 *ids, u32 *index)
{
	struct speed_bump_remove __user *to;
	struct speed_bump_remove e;
	int err;
	u32 i;

	for (i = 0; i < b->count; i++) {
		*index = i;
		err = bump_batch_pause();
		if (err)
			return err;
		err = bump_batch_read(b, i, &e, sizeof(e));
		if (err)
			return err;
		if (e.reserved)
			return -EINVAL;
		to = bump_batch_entry(b, i);
		/* Written first, while nothing is removed yet. */
		if (put_user(0, &to->error))
			return -EFAULT;
		ids[i] = e.id;
	}
	return 0;
}

static int remove_answer(const struct speed_bump_batch *b, const u32 *errors)
{
	struct speed_bump_remove __user *e;
	u32 i;

	for (i = 0; i < b->count; i++) {
		e = bump_batch_entry(b, i);
		if (errors[i] && put_user(errors[i], &e->error))
			return -EFAULT;
	}
	return 0;
}

static int remove_some(struct bump_session *session, struct speed_bump_batch *b, u64 *ids,
		       u32 *errors)
{
	u32 index = 0;
	int err;

	err = remove_read(b, ids, &index);
	if (err) {
		b->failed = index;
		return err;
	}
	err = bump_target_remove(session, ids, errors, b->count, bump_batch_is_best_effort(b),
				 &b->failed);
	return remove_answer(b, errors) ?: err;
}

int bump_ioctl_remove(struct bump_session *session, void *arg)
{
	struct speed_bump_batch *b = arg;
	u32 *errors;
	u64 *ids;
	int err;

	err = bump_batch_check(b, SPEED_BUMP_BATCH_BEST_EFFORT | SPEED_BUMP_BATCH_ALL |
			  SPEED_BUMP_BATCH_PERSISTENT, SPEED_BUMP_REMOVE_SIZE_VER0);
	if (err)
		return err;
	if (b->flags & SPEED_BUMP_BATCH_ALL) {
		if (b->count || b->entries)
			return -EINVAL;
		if ((b->flags & SPEED_BUMP_BATCH_PERSISTENT) && session->opener)
			return -EPERM;
		bump_target_remove_all(b->flags & SPEED_BUMP_BATCH_PERSISTENT ?
				       &bump_persistent : session);
		return 0;
	}
	if (b->flags & SPEED_BUMP_BATCH_PERSISTENT)
		return -EINVAL;
	if (!b->count)
		return 0;

	ids = kvmalloc_array(b->count, sizeof(*ids), BUMP_USER_SIZED);
	errors = kvcalloc(b->count, sizeof(*errors), BUMP_USER_SIZED);
	err = -ENOMEM;
	if (ids && errors)
		err = remove_some(session, b, ids, errors);
	kvfree(errors);
	kvfree(ids);
	return err;
}
