/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_SCOPE_H
#define BUMP_SCOPE_H

#include <linux/atomic.h>
#include <linux/bitops.h>
#include <linux/cgroup.h>
#include <linux/list.h>
#include <linux/pid.h>
#include <linux/rcupdate.h>
#include <linux/refcount.h>
#include <linux/sched.h>
#include <linux/spinlock.h>

#include <linux/speed_bump.h>

struct cred;
struct bump_session;
struct bump_target_config;

/**
 * struct bump_scope - which tasks a target delays
 * @type:	SPEED_BUMP_SCOPE_*
 * @ref:	one for each target
 * @pid:	tree: the process it begins with; thread: the thread; held
 * @members:	tree: a bit for each process in it, by its number in the initial
 *		namespace
 * @lock:	tree: writers of @members.  Innermost
 * @scanning:	tree: it is being built
 * @cgroup:	cgroup: the top of the subtree; held
 * @moves:	cgroup: number of moves into it of tasks whose memory may have no
 *		breakpoint
 * @node:	in the list of those of its type; written under the scopes' mutex,
 *		read under RCU
 * @rcu:	for freeing
 */
struct bump_scope {
	u32 type;
	refcount_t ref;
	struct pid *pid;
	unsigned long *members;
	raw_spinlock_t lock;
	bool scanning;
	struct cgroup *cgroup;
	atomic_t moves;
	struct list_head node;
	struct rcu_head rcu;
};

int bump_scope_init(void);
void bump_scope_exit(void);
u64 bump_scope_features(void);

struct bump_scope *bump_scope_get(const struct bump_session *session,
				  const struct bump_target_config *config);
void bump_scope_put(struct bump_scope *scope);
s32 bump_scope_id(const struct bump_scope *scope);
bool bump_scope_has_slow(const struct bump_scope *scope, const struct cred *opener,
			 struct task_struct *task);
bool bump_scope_wants(const struct bump_scope *scope, const struct cred *opener,
		      struct mm_struct *mm, bool *refused);

/**
 * bump_scope_has() - is a task to be delayed?
 * @scope:	the target's
 * @opener:	of the target's session
 * @task:	the running task
 */
static inline bool bump_scope_has(const struct bump_scope *scope, const struct cred *opener,
				  struct task_struct *task)
{
	if (likely(!opener)) {
		if (scope->type == SPEED_BUMP_SCOPE_TREE)
			return test_bit(task->tgid, scope->members);
		if (scope->type == SPEED_BUMP_SCOPE_SYSTEM)
			return true;
	}
	return bump_scope_has_slow(scope, opener, task);
}

#endif /* BUMP_SCOPE_H */
