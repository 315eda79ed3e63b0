/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_SESSION_H
#define SB_SESSION_H

#include <linux/kref.h>
#include <linux/list.h>
#include <linux/rcupdate.h>
#include <linux/types.h>
#include <linux/workqueue.h>

struct cred;
struct sb_plan;
struct sb_user;

/**
 * struct sb_session - an owner of targets: an open file, or the module itself
 * @ref:	the open file's and one of each target
 * @enabled:	the switch of its targets
 * @opener:	the credentials that it was opened with, which may delay processes of their
 *		own only; or NULL, with CAP_SYS_ADMIN
 * @user:	the user that it counts for, where the opener has no CAP_PERFMON; or NULL
 * @count:	targets in @targets; under the table's lock
 * @targets:	its targets; under the table's lock
 * @plan:	the plan of its experiment, held, or NULL
 * @retire:	takes the breakpoints of @retiring away
 * @retiring:	targets that are out of the table; this and the next two under the lock
 *		of what retires
 * @retire_put:	how often something was put there
 * @retire_done: the last of these times of which nothing is left
 * @rcu:	for freeing
 */
struct sb_session {
	struct kref ref;
	bool enabled;
	const struct cred *opener;
	struct sb_user *user;
	u32 count;
	struct list_head targets;
	struct sb_plan *plan;
	struct work_struct retire;
	struct list_head retiring;
	u64 retire_put;
	u64 retire_done;
	struct rcu_head rcu;
};

/* Owns the persistent targets.  Its switch is the global one. */
extern struct sb_session sb_persistent;

struct sb_session *sb_session_create(void);
void sb_session_close(struct sb_session *session);
u32 sb_session_count(void);

void sb_session_get(struct sb_session *session);
void sb_session_put(struct sb_session *session);

#endif /* SB_SESSION_H */
