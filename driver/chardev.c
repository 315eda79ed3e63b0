// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * /dev/speed_bump: from the ioctls of uapi/linux/speed_bump.h to the objects.
 *
 * User memory is read and written here and nowhere else, and with no lock held.  Each
 * ioctl is a small function of the same helpers for batches and entries: hence the length.
 */
#include <linux/err.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/kdev_t.h>
#include <linux/ktime.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include <linux/speed_bump.h>

#include "budget.h"
#include "chardev.h"
#include "compat.h"
#include "guard.h"
#include "main.h"
#include "plan.h"
#include "scope.h"
#include "session.h"
#include "stats.h"
#include "target.h"

/*
 * From the range for local use.  With a fixed minor, opening the device node loads the
 * module.
 */
#define BUMP_MINOR	248

/*
 * A request for more memory than is available fails with ENOMEM, without a warning in the
 * log.
 */
#define USER_SIZED	(GFP_KERNEL_ACCOUNT | __GFP_NOWARN)

static_assert(sizeof(struct speed_bump_query) == SPEED_BUMP_QUERY_SIZE_VER0);
static_assert(sizeof(struct speed_bump_batch) == SPEED_BUMP_BATCH_SIZE_VER0);
static_assert(sizeof(struct speed_bump_target) == SPEED_BUMP_TARGET_SIZE_VER1);
static_assert(sizeof(struct speed_bump_update) == SPEED_BUMP_UPDATE_SIZE_VER0);
static_assert(sizeof(struct speed_bump_remove) == SPEED_BUMP_REMOVE_SIZE_VER0);
static_assert(sizeof(struct speed_bump_list) == SPEED_BUMP_LIST_SIZE_VER0);
static_assert(sizeof(struct speed_bump_info) == SPEED_BUMP_INFO_SIZE_VER0);
static_assert(sizeof(struct speed_bump_stats) == SPEED_BUMP_STATS_SIZE_VER1);
static_assert(sizeof(struct speed_bump_session) == SPEED_BUMP_SESSION_SIZE_VER0);
static_assert(sizeof(struct speed_bump_global) == SPEED_BUMP_GLOBAL_SIZE_VER0);
static_assert(sizeof(struct speed_bump_plan_request) == SPEED_BUMP_PLAN_REQUEST_SIZE_VER0);

#define KNOWN_TARGET_FLAGS	(SPEED_BUMP_TARGET_PERSISTENT | SPEED_BUMP_TARGET_DISABLED | \
				 SPEED_BUMP_TARGET_DEFAULT_DELAY | SPEED_BUMP_TARGET_SLEEP | \
				 SPEED_BUMP_TARGET_MEM)
#define KNOWN_UPDATE_MASK	(SPEED_BUMP_UPDATE_DELAY | SPEED_BUMP_UPDATE_EVERY | \
				 SPEED_BUMP_UPDATE_WINDOW | SPEED_BUMP_UPDATE_ENABLED)
#define LIST_OWNERS		(SPEED_BUMP_LIST_SESSION | SPEED_BUMP_LIST_PERSISTENT | \
				 SPEED_BUMP_LIST_OTHERS)

/* --- arrays of entries --- */

static void __user *entry_ptr(u64 entries, u32 entry_size, u32 i)
{
	return u64_to_user_ptr(entries) + (size_t)i * entry_size;
}

static void __user *batch_entry(const struct speed_bump_batch *b, u32 i)
{
	return entry_ptr(b->entries, b->entry_size, i);
}

static bool batch_is_best_effort(const struct speed_bump_batch *b)
{
	return b->flags & SPEED_BUMP_BATCH_BEST_EFFORT;
}

static int entries_check(u64 entries, u32 count, u32 entry_size, size_t min_size)
{
	if (count > SPEED_BUMP_MAX_BATCH)
		return -EINVAL;
	if (!count)
		return 0;
	if (entry_size < min_size)
		return -EINVAL;
	if (entry_size > PAGE_SIZE)
		return -E2BIG;
	if (!entries)
		return -EFAULT;
	return 0;
}

static int batch_check(struct speed_bump_batch *b, u32 flags, size_t min_size)
{
	b->failed = batch_is_best_effort(b) ? 0 : b->count;
	if (b->reserved || (b->flags & ~flags))
		return -EINVAL;
	return entries_check(b->entries, b->count, b->entry_size, min_size);
}

static int batch_read(const struct speed_bump_batch *b, u32 i, void *entry, size_t size)
{
	return copy_struct_from_user(entry, size, batch_entry(b, i), b->entry_size);
}

/* Between two entries: reschedules, and returns -EINTR if the task is being killed. */
static int batch_pause(void)
{
	cond_resched();
	return fatal_signal_pending(current) ? -EINTR : 0;
}

/* --- QUERY --- */

static int ioctl_query(struct bump_session *session, void *arg)
{
	struct speed_bump_query *q = arg;

	if (q->reserved)
		return -EINVAL;
	q->features = bump_scope_features() | SPEED_BUMP_FEATURE_FREQUENCY |
		      SPEED_BUMP_FEATURE_WINDOW | SPEED_BUMP_FEATURE_SLEEP |
		      SPEED_BUMP_FEATURE_HISTOGRAM | SPEED_BUMP_FEATURE_RESET |
		      SPEED_BUMP_FEATURE_PLAN | SPEED_BUMP_FEATURE_REF_CTR;
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

/* --- ADD --- */

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
	return 0;
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

static struct bump_target *add_from_file(struct bump_session *session,
					 const struct speed_bump_target *e, struct file *file,
					 struct file *mem)
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

	config.label = label_read(e);
	if (IS_ERR(config.label))
		return ERR_CAST(config.label);
	t = bump_target_add(session, &config);
	if (IS_ERR(t))
		kfree(config.label);
	return t;
}

static struct bump_target *add_entry(struct bump_session *session,
				     const struct speed_bump_batch *b, u32 i)
{
	struct file *file, *mem = NULL;
	struct speed_bump_target e;
	struct bump_target *t;
	int err;

	err = batch_read(b, i, &e, sizeof(e));
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
	t = add_from_file(session, &e, file, mem);
	if (mem)
		fput(mem);
out:
	fput(file);
	return t;
}

static int add_answer(const struct speed_bump_batch *b, u32 i, const struct bump_target *t)
{
	struct speed_bump_target __user *e = batch_entry(b, i);
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
	u32 i;
	int err;

	for (i = 0; i < b->count; i++) {
		err = batch_pause();
		if (err)
			return err;
		targets[i] = add_entry(session, b, i);
		*made = i + 1;
		if (IS_ERR(targets[i]) && !batch_is_best_effort(b))
			break;
	}
	err = bump_target_register(targets, *made, batch_is_best_effort(b));
	if (err == -EINTR)
		*made = TAKEN_AWAY;
	if (err)
		return err;
	for (i = 0; i < *made; i++) {
		if (!IS_ERR(targets[i]))
			continue;
		if (!batch_is_best_effort(b)) {
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

static int ioctl_add(struct bump_session *session, void *arg)
{
	struct speed_bump_batch *b = arg;
	struct bump_target **targets;
	u32 made = 0;
	int err;

	err = batch_check(b, SPEED_BUMP_BATCH_BEST_EFFORT, SPEED_BUMP_TARGET_SIZE_VER0);
	if (err || !b->count)
		return err;
	targets = kvmalloc_array(b->count, sizeof(*targets), USER_SIZED);
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
	if (!(e->mask & SPEED_BUMP_UPDATE_DELAY) && e->delay_ns)
		return -EINVAL;
	if (!(e->mask & SPEED_BUMP_UPDATE_WINDOW) && (e->start_ns || e->duration_ns))
		return -EINVAL;
	if (!(e->mask & SPEED_BUMP_UPDATE_EVERY) && e->every)
		return -EINVAL;
	if (e->enabled > !!(e->mask & SPEED_BUMP_UPDATE_ENABLED))
		return -EINVAL;
	if (e->delay_ns > bump_budget_limit(session))
		return -ERANGE;
	return 0;
}

static int update_prepare(struct bump_session *session, const struct speed_bump_batch *b,
			  u32 i, struct change *change)
{
	struct bump_target *t;
	int err;

	err = batch_read(b, i, &change->to, sizeof(change->to));
	if (err)
		return err;
	err = update_check(session, &change->to);
	if (err)
		return err;
	t = bump_target_find(change->to.id);
	if (!t)
		return -ENOENT;
	if (!bump_target_is_mutable(t, session)) {
		bump_target_put(t);
		return -ENOENT;
	}
	change->target = t;
	return 0;
}

static int update_answer(const struct speed_bump_batch *b, u32 i, int err)
{
	struct speed_bump_update __user *e = batch_entry(b, i);

	return put_user((u32)-err, &e->error);
}

static int update_prepare_all(struct bump_session *session, struct speed_bump_batch *b,
			      struct change *changes)
{
	int err;
	u32 i;

	for (i = 0; i < b->count; i++) {
		err = batch_pause();
		if (err)
			return err;
		err = update_prepare(session, b, i, &changes[i]);
		if (update_answer(b, i, err))
			return -EFAULT;
		if (!err)
			continue;
		if (!batch_is_best_effort(b)) {
			b->failed = i;
			return err;
		}
		b->failed++;
	}
	return 0;
}

static int ioctl_update(struct bump_session *session, void *arg)
{
	struct speed_bump_batch *b = arg;
	struct change *changes;
	struct bump_target *t;
	u64 now;
	int err;
	u32 i;

	err = batch_check(b, SPEED_BUMP_BATCH_BEST_EFFORT, SPEED_BUMP_UPDATE_SIZE_VER0);
	if (err || !b->count)
		return err;
	changes = kvcalloc(b->count, sizeof(*changes), USER_SIZED);
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
		err = batch_pause();
		if (err)
			return err;
		err = batch_read(b, i, &e, sizeof(e));
		if (err)
			return err;
		if (e.reserved)
			return -EINVAL;
		to = batch_entry(b, i);
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
		e = batch_entry(b, i);
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
	err = bump_target_remove(session, ids, errors, b->count, batch_is_best_effort(b),
				 &b->failed);
	return remove_answer(b, errors) ?: err;
}

static int ioctl_remove(struct bump_session *session, void *arg)
{
	struct speed_bump_batch *b = arg;
	u32 *errors;
	u64 *ids;
	int err;

	err = batch_check(b, SPEED_BUMP_BATCH_BEST_EFFORT | SPEED_BUMP_BATCH_ALL |
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

	ids = kvmalloc_array(b->count, sizeof(*ids), USER_SIZED);
	errors = kvcalloc(b->count, sizeof(*errors), USER_SIZED);
	err = -ENOMEM;
	if (ids && errors)
		err = remove_some(session, b, ids, errors);
	kvfree(errors);
	kvfree(ids);
	return err;
}

/* --- LIST --- */

static u32 target_owner(const struct bump_target *t, const struct bump_session *session)
{
	if (t->session == session)
		return SPEED_BUMP_LIST_SESSION;
	if (t->session == &bump_persistent)
		return SPEED_BUMP_LIST_PERSISTENT;
	return SPEED_BUMP_LIST_OTHERS;
}

static void info_from_target(struct speed_bump_info *info, struct bump_target *t, u32 owner)
{
	struct bump_settings settings;

	bump_policy_read(&t->policy, &settings);
	*info = (struct speed_bump_info) {
		.id = t->id,
		.offset = t->offset,
		.delay_ns = settings.delay_ns,
		.start_ns = bump_settings_show_time(settings.start_ns),
		.end_ns = bump_settings_show_time(settings.end_ns),
		.ino = t->inode->i_ino,
		.dev = huge_encode_dev(t->inode->i_sb->s_dev),
		.every = settings.every,
		.scope = t->scope->type,
		.scope_id = bump_scope_id(t->scope),
		.owner = owner,
	};
	if (owner == SPEED_BUMP_LIST_PERSISTENT)
		info->flags |= SPEED_BUMP_TARGET_PERSISTENT;
	if (!settings.enabled)
		info->flags |= SPEED_BUMP_TARGET_DISABLED;
	if (settings.sleep)
		info->flags |= SPEED_BUMP_TARGET_SLEEP;
}

/* What a LIST call has written so far. */
struct listing {
	const struct speed_bump_list *list;
	u32 count;
	u32 text_used;
	u64 last;
};

static int list_write(struct listing *l, struct bump_target *t, u32 owner)
{
	const struct speed_bump_list *list = l->list;
	struct speed_bump_info info;

	info_from_target(&info, t, owner);
	if (list->text) {
		if (t->label_len > list->text_size - l->text_used)
			return -EMSGSIZE;
		info.label_off = l->text_used;
		info.label_len = t->label_len;
		if (t->label_len && copy_to_user(u64_to_user_ptr(list->text) + l->text_used,
						 t->label, t->label_len))
			return -EFAULT;
	}
	if (copy_struct_to_user(entry_ptr(list->entries, list->entry_size, l->count),
				list->entry_size, &info, sizeof(info), NULL))
		return -EFAULT;

	l->text_used += info.label_len;
	l->count++;
	l->last = t->id;
	return 0;
}

static int list_targets(struct bump_session *session, struct listing *l,
			const struct inode *inode)
{
	const struct speed_bump_list *list = l->list;
	u64 after = list->after;
	struct bump_target *t;
	u32 owner;
	int err = 0;

	while (!err && l->count < list->count) {
		err = batch_pause();
		if (err)
			break;
		t = bump_target_next(after);
		if (!t)
			break;
		after = t->id;
		owner = target_owner(t, session);
		if ((list->flags & owner) && (!inode || t->inode == inode))
			err = list_write(l, t, owner);
		bump_target_put(t);
	}
	if (err == -EMSGSIZE && l->count)
		err = 0;
	return err;
}

static int ioctl_list(struct bump_session *session, void *arg)
{
	struct speed_bump_list *list = arg;
	struct listing l = { .list = list, .last = list->after };
	struct file *file = NULL;
	int err;

	if (list->reserved || (list->flags & ~(LIST_OWNERS | SPEED_BUMP_LIST_FILE)))
		return -EINVAL;
	if (!(list->flags & LIST_OWNERS))
		return -EINVAL;
	if (!list->text && list->text_size)
		return -EINVAL;
	if ((list->flags & (SPEED_BUMP_LIST_PERSISTENT | SPEED_BUMP_LIST_OTHERS)) &&
	    session->opener)
		return -EPERM;
	err = entries_check(list->entries, list->count, list->entry_size,
			    SPEED_BUMP_INFO_SIZE_VER0);
	if (err)
		return err;
	if (list->flags & SPEED_BUMP_LIST_FILE) {
		file = fget(list->fd);
		if (!file)
			return -EBADF;
	} else if (list->fd) {
		return -EINVAL;
	}

	err = list_targets(session, &l, file ? bump_target_inode(&file->f_path) : NULL);
	if (file)
		fput(file);
	if (err)
		return err;

	list->after = l.last;
	list->count = l.count;
	list->text_size = l.text_used;
	return 0;
}

/* --- STATS --- */

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

	err = batch_read(b, i, &e, sizeof(e));
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
	if (copy_struct_to_user(batch_entry(b, i), b->entry_size, &out, sizeof(out), NULL))
		return -EFAULT;
	return err;
}

static int stats_all(struct bump_session *session, struct speed_bump_batch *b, bool only_check)
{
	int err;
	u32 i;

	for (i = 0; i < b->count; i++) {
		err = batch_pause();
		if (err)
			return err;
		err = stats_entry(session, b, i, only_check);
		if (!err)
			continue;
		if (!batch_is_best_effort(b)) {
			b->failed = i;
			return err;
		}
		b->failed++;
	}
	return 0;
}

static int ioctl_stats(struct bump_session *session, void *arg)
{
	struct speed_bump_batch *b = arg;
	int err;

	err = batch_check(b, SPEED_BUMP_BATCH_BEST_EFFORT | SPEED_BUMP_BATCH_RESET,
			  SPEED_BUMP_STATS_SIZE_VER0);
	if (err)
		return err;
	/* All or nothing: if an entry fails, none is reset. */
	if ((b->flags & SPEED_BUMP_BATCH_RESET) && !batch_is_best_effort(b)) {
		err = stats_all(session, b, true);
		if (err)
			return err;
	}
	return stats_all(session, b, false);
}

/* --- SESSION, GLOBAL --- */

static int ioctl_session(struct bump_session *session, void *arg)
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

static int ioctl_global(struct bump_session *session, void *arg)
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

/* --- PLAN --- */

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

	targets = kvcalloc(max(count, 1U), sizeof(*targets), USER_SIZED);
	if (!targets)
		return ERR_PTR(-ENOMEM);
	for (i = 0; i < count; i++) {
		err = batch_pause();
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
	}
	return targets;

fail:
	put_targets(targets, i);
	return ERR_PTR(err);
}

static int ioctl_plan(struct bump_session *session, void *arg)
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

/* --- the device --- */

union argument {
	struct speed_bump_query query;
	struct speed_bump_batch batch;
	struct speed_bump_list list;
	struct speed_bump_session session;
	struct speed_bump_global global;
	struct speed_bump_plan_request plan;
};

/*
 * The argument of each command.  A batch is copied back to the caller on failure, too,
 * because it says which entry failed.
 */
static const struct command {
	int (*run)(struct bump_session *session, void *arg);
	u32 size;
	u32 min_size;
	bool answers_failure;
} commands[] = {
#define COMMAND(name, fn, type, min, failure) \
	[_IOC_NR(SPEED_BUMP_IOC_##name)] = { fn, sizeof(struct type), min, failure }
	COMMAND(QUERY, ioctl_query, speed_bump_query, SPEED_BUMP_QUERY_SIZE_VER0, false),
	COMMAND(ADD, ioctl_add, speed_bump_batch, SPEED_BUMP_BATCH_SIZE_VER0, true),
	COMMAND(UPDATE, ioctl_update, speed_bump_batch, SPEED_BUMP_BATCH_SIZE_VER0, true),
	COMMAND(REMOVE, ioctl_remove, speed_bump_batch, SPEED_BUMP_BATCH_SIZE_VER0, true),
	COMMAND(LIST, ioctl_list, speed_bump_list, SPEED_BUMP_LIST_SIZE_VER0, false),
	COMMAND(STATS, ioctl_stats, speed_bump_batch, SPEED_BUMP_BATCH_SIZE_VER0, true),
	COMMAND(SESSION, ioctl_session, speed_bump_session, SPEED_BUMP_SESSION_SIZE_VER0, false),
	COMMAND(GLOBAL, ioctl_global, speed_bump_global, SPEED_BUMP_GLOBAL_SIZE_VER0, false),
	COMMAND(PLAN, ioctl_plan, speed_bump_plan_request,
		SPEED_BUMP_PLAN_REQUEST_SIZE_VER0, false),
#undef COMMAND
};

static long device_ioctl(struct file *file, unsigned int cmd, unsigned long ptr)
{
	const struct command *command;
	void __user *user = (void __user *)ptr;
	u32 size = _IOC_SIZE(cmd);
	union argument arg;
	int err;

	if (_IOC_TYPE(cmd) != SPEED_BUMP_IOC_MAGIC || _IOC_DIR(cmd) != (_IOC_READ | _IOC_WRITE) ||
	    _IOC_NR(cmd) >= ARRAY_SIZE(commands))
		return -ENOTTY;
	command = &commands[_IOC_NR(cmd)];
	if (size < command->min_size)
		return -EINVAL;
	if (size > PAGE_SIZE)
		return -E2BIG;

	err = copy_struct_from_user(&arg, command->size, user, size);
	if (err)
		return err;
	err = command->run(file->private_data, &arg);
	if (err && !command->answers_failure)
		return err;
	if (copy_struct_to_user(user, size, &arg, command->size, NULL))
		return -EFAULT;
	return err;
}

static int device_open(struct inode *inode, struct file *file)
{
	struct bump_session *session;

	session = bump_session_create();
	if (IS_ERR(session))
		return PTR_ERR(session);
	file->private_data = session;
	return 0;
}

static int device_release(struct inode *inode, struct file *file)
{
	bump_session_close(file->private_data);
	return 0;
}

static const struct file_operations device_fops = {
	.owner = THIS_MODULE,
	.open = device_open,
	.release = device_release,
	.unlocked_ioctl = device_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};

static struct miscdevice device = {
	.minor = BUMP_MINOR,
	.name = SPEED_BUMP_DEVICE_NAME,
	.fops = &device_fops,
	.mode = 0600,
};

int bump_chardev_init(void)
{
	int err;

	err = misc_register(&device);
	if (err == -EBUSY) {
		device.minor = MISC_DYNAMIC_MINOR;
		err = misc_register(&device);
	}
	return err;
}

void bump_chardev_exit(void)
{
	misc_deregister(&device);
}

MODULE_ALIAS_MISCDEV(BUMP_MINOR);
MODULE_ALIAS("devname:" SPEED_BUMP_DEVICE_NAME);
