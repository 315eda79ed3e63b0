// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * LIST: targets as the caller may see them, from an id on.
 */
#include <linux/err.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/kdev_t.h>
#include <linux/uaccess.h>

#include <linux/speed_bump.h>

#include "batch.h"
#include "call.h"
#include "compat.h"
#include "ioctl.h"
#include "scope.h"
#include "session.h"
#include "target.h"

static_assert(sizeof(struct speed_bump_list) == SPEED_BUMP_LIST_SIZE_VER0);
static_assert(sizeof(struct speed_bump_info) == SPEED_BUMP_INFO_SIZE_VER0);

#define LIST_OWNERS		(SPEED_BUMP_LIST_SESSION | SPEED_BUMP_LIST_PERSISTENT | \
				 SPEED_BUMP_LIST_OTHERS)

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
		.delay_ns = t->ends ? 0 : settings.delay_ns,
		.delay_ppm = t->ends ? settings.delay_ppm : 0,
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
	if (t->ends && t->ends->durations)
		info->flags |= SPEED_BUMP_TARGET_RECORD;
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
	if (copy_struct_to_user(bump_entry_ptr(list->entries, list->entry_size, l->count),
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
		err = bump_batch_pause();
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

int bump_ioctl_list(struct bump_session *session, void *arg)
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
	err = bump_entries_check(list->entries, list->count, list->entry_size,
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
