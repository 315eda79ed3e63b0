/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_USER_H
#define SB_USER_H

#include <linux/list.h>
#include <linux/types.h>
#include <linux/uidgid.h>

struct inode;

/**
 * struct sb_user - a user without capabilities, over all of their sessions
 * @uid:	in the initial user namespace
 * @ref:	one of each session
 * @live:	targets in the table
 * @made:	those, and those that are dying
 * @node:	in the list of users
 *
 * All but @uid is under the lock of user.c.
 */
struct sb_user {
	kuid_t uid;
	u32 ref;
	u32 live;
	u32 made;
	struct hlist_node node;
};

struct sb_user *sb_user_get(kuid_t uid);
void sb_user_put(struct sb_user *user);

int sb_user_charge(struct sb_user *user);
void sb_user_uncharge(struct sb_user *user);

int sb_user_enter(struct sb_user *user, const struct inode *inode);
void sb_user_leave(struct sb_user *user, const struct inode *inode);

#endif /* SB_USER_H */
