/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_USER_H
#define BUMP_USER_H

#include <linux/list.h>
#include <linux/types.h>
#include <linux/uidgid.h>

struct inode;

/**
 * struct bump_user - a user without capabilities, over all sessions
 * @uid:	in the initial user namespace
 * @ref:	one of each session
 * @live:	targets in the table
 * @made:	those, and those that are dying
 * @node:	in the list of users
 *
 * All but @uid is under the lock of user.c.
 */
struct bump_user {
	kuid_t uid;
	u32 ref;
	u32 live;
	u32 made;
	struct hlist_node node;
};

struct bump_user *bump_user_get(kuid_t uid);
void bump_user_put(struct bump_user *user);

int bump_user_charge(struct bump_user *user);
void bump_user_uncharge(struct bump_user *user);

int bump_user_enter(struct bump_user *user, const struct inode *inode);
void bump_user_leave(struct bump_user *user, const struct inode *inode);

#endif /* BUMP_USER_H */
