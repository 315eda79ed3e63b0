/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_SESSION_H
#define BUMP_SESSION_H

#include <linux/kref.h>
#include <linux/list.h>
#include <linux/rcupdate.h>
#include <linux/types.h>
#include <linux/workqueue.h>

struct cred;
struct bump_plan;
struct bump_user;

/**
 * struct bump_session - an owner of targets: an open file, or the module itself
 * @ref:	the open file's and one of each target
 * @enabled:	the switch of its targets
 * @opener:	the credentials that it was opened with, for which it may delay their own
 *		processes only; or NULL, with CAP_SYS_ADMIN
 * @user:	the user that its targets are charged to, if the opener has no
 *		CAP_PERFMON; or NULL
 * @count:	targets in @targets; under the table's lock
 * @targets:	its targets; under the table's lock
 * @plan:	the plan of its experiment, held, or NULL
 * @retire:	removes the breakpoints of @retiring
 * @retiring:	targets that are out of the table; this and the next two under retire_lock
 * @retire_put:	number of times that targets were put there
 * @retire_done: the last of these times whose targets are all done
 * @rcu:	for freeing
 */
struct bump_session {
	struct kref ref;
	bool enabled;
	const struct cred *opener;
	struct bump_user *user;
	u32 count;
	struct list_head targets;
	struct bump_plan *plan;
	struct work_struct retire;
	struct list_head retiring;
	u64 retire_put;
	u64 retire_done;
	struct rcu_head rcu;
};

/* Owns the persistent targets.  Its switch is the global one. */
extern struct bump_session bump_persistent;

struct bump_session *bump_session_create(void);
void bump_session_close(struct bump_session *session);
u32 bump_session_count(void);

void bump_session_get(struct bump_session *session);
void bump_session_put(struct bump_session *session);

#endif /* BUMP_SESSION_H */
