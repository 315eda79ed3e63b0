// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Limits on the targets of users without capabilities.
 *
 * A target takes memory until it is freed, which can be as long after its removal as the
 * delays in progress take: until then it is charged to its owner.  While it is in the
 * table its file costs more to map, for every process, so targets are counted for each
 * file, too.
 */
#include <linux/err.h>
#include <linux/hashtable.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

#include "main.h"
#include "user.h"

/* How many targets of users are in a file. */
struct users_file {
	const struct inode *inode;
	u32 count;
	struct hlist_node node;
};

/* Protects all data of this file.  Innermost. */
static DEFINE_SPINLOCK(users_lock);
static DEFINE_HASHTABLE(users, 6);
static DEFINE_HASHTABLE(files, 8);
static u32 users_made;

static struct bump_user *find_user(kuid_t uid)
{
	struct bump_user *user;

	hash_for_each_possible(users, user, node, __kuid_val(uid))
		if (uid_eq(user->uid, uid))
			return user;
	return NULL;
}

static struct users_file *find_file(const struct inode *inode)
{
	struct users_file *file;

	hash_for_each_possible(files, file, node, (unsigned long)inode)
		if (file->inode == inode)
			return file;
	return NULL;
}

/* Returns the user with a reference, to be dropped with bump_user_put(), or NULL. */
struct bump_user *bump_user_get(kuid_t uid)
{
	struct bump_user *fresh = kzalloc(sizeof(*fresh), GFP_KERNEL_ACCOUNT);
	struct bump_user *user;

	if (!fresh)
		return NULL;
	spin_lock(&users_lock);
	user = find_user(uid);
	if (!user) {
		user = fresh;
		fresh = NULL;
		user->uid = uid;
		hash_add(users, &user->node, __kuid_val(uid));
	}
	user->ref++;
	spin_unlock(&users_lock);
	kfree(fresh);
	return user;
}

void bump_user_put(struct bump_user *user)
{
	if (!user)
		return;
	spin_lock(&users_lock);
	if (--user->ref)
		user = NULL;
	else
		hash_del(&user->node);
	spin_unlock(&users_lock);
	kfree(user);
}

/**
 * bump_user_charge() - charge a target that is to be allocated
 * @user:	its owner
 *
 * Return: 0; -ENOSPC at the limit; -EAGAIN if the limit is reached only with targets that
 * are dying.
 */
int bump_user_charge(struct bump_user *user)
{
	u32 max = READ_ONCE(bump_max_unprivileged_targets),
	    all = READ_ONCE(bump_max_targets) / 2;
	int err = 0;

	spin_lock(&users_lock);
	if (user->live >= max)
		err = -ENOSPC;
	else if (user->made >= max)
		err = -EAGAIN;
	else if (users_made >= all)
		err = user->made > user->live ? -EAGAIN : -ENOSPC;
	if (!err) {
		user->made++;
		users_made++;
	}
	spin_unlock(&users_lock);
	return err;
}

/* A target has been freed. */
void bump_user_uncharge(struct bump_user *user)
{
	spin_lock(&users_lock);
	user->made--;
	users_made--;
	spin_unlock(&users_lock);
}

/**
 * bump_user_enter() - a target is put into the table
 * @user:	its owner
 * @inode:	its file, which is held until bump_user_leave()
 *
 * Return: 0, -ENOSPC or -ENOMEM.
 */
int bump_user_enter(struct bump_user *user, const struct inode *inode)
{
	struct users_file *fresh = kzalloc(sizeof(*fresh), GFP_KERNEL_ACCOUNT);
	struct users_file *file;
	int err = 0;

	if (!fresh)
		return -ENOMEM;
	spin_lock(&users_lock);
	file = find_file(inode);
	if (!file) {
		file = fresh;
		fresh = NULL;
		file->inode = inode;
		hash_add(files, &file->node, (unsigned long)inode);
	}
	if (user->live >= READ_ONCE(bump_max_unprivileged_targets) ||
	    file->count >= READ_ONCE(bump_max_unprivileged_targets_per_file)) {
		err = -ENOSPC;
	} else {
		user->live++;
		file->count++;
	}
	if (file->count)
		file = NULL;
	else
		hash_del(&file->node);
	spin_unlock(&users_lock);
	kfree(file);
	kfree(fresh);
	return err;
}

/* A target leaves the table. */
void bump_user_leave(struct bump_user *user, const struct inode *inode)
{
	struct users_file *file;

	spin_lock(&users_lock);
	user->live--;
	file = find_file(inode);
	if (--file->count)
		file = NULL;
	else
		hash_del(&file->node);
	spin_unlock(&users_lock);
	kfree(file);
}
