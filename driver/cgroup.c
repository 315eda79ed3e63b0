// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Cgroup v2 subtrees.
 *
 * A hit checks which cgroup its task is in at that moment.  That requires the breakpoint:
 * a filter is called for a process when a target is registered, when the process maps the
 * file and when it calls exec().  No filter is called for a process that moves into the
 * cgroup with the file already mapped.  A tracepoint reports the move, the filters are
 * called again, and some ten milliseconds after the move the process has its breakpoint;
 * it takes longer only while a delay is in progress somewhere, by the length of that
 * delay at most.  A process that leaves keeps the breakpoint until its first hit, which
 * is not delayed and removes it.
 */
#include <linux/cgroup.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/rculist.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "cgroup.h"
#include "compat.h"

/* Every fork and every move on the machine goes through all cgroups that are scopes. */
#define MAX_CGROUPS	1024

/* Written under the scopes' mutex, read under RCU. */
static LIST_HEAD(cgroups);
static unsigned int cgroup_count;

static struct cgroup *cgroup_from_fd(int fd)
{
	struct cgroup *cgroup = cgroup_get_from_fd(fd);
	struct file *file;

	if (!IS_ERR(cgroup))
		return cgroup;
	/* EBADF is also returned for an open file that is not a cgroup directory. */
	file = fget_raw(fd);
	if (!file)
		return ERR_PTR(-EBADF);
	fput(file);
	return ERR_PTR(-EINVAL);
}

static struct bump_scope *scope_of(struct cgroup *cgroup)
{
	struct bump_scope *scope;

	list_for_each_entry(scope, &cgroups, node) {
		if (scope->cgroup == cgroup) {
			refcount_inc(&scope->ref);
			return scope;
		}
	}
	if (cgroup_count >= MAX_CGROUPS)
		return ERR_PTR(-ENOSPC);
	scope = kzalloc(sizeof(*scope), GFP_KERNEL_ACCOUNT);
	if (!scope)
		return ERR_PTR(-ENOMEM);
	scope->type = SPEED_BUMP_SCOPE_CGROUP;
	scope->ops = &bump_cgroup_ops;
	refcount_set(&scope->ref, 1);
	cgroup_get(cgroup);
	scope->cgroup = cgroup;
	cgroup_count++;
	list_add_rcu(&scope->node, &cgroups);
	return scope;
}

static struct bump_scope *cgroup_scope_get(s32 fd, struct task_struct *task, bool privileged)
{
	struct cgroup *cgroup = cgroup_from_fd(fd);
	struct bump_scope *scope;

	if (IS_ERR(cgroup))
		return ERR_CAST(cgroup);
	scope = scope_of(cgroup);
	cgroup_put(cgroup);
	return scope;
}

static void cgroup_scope_free(struct rcu_head *rcu)
{
	struct bump_scope *scope = container_of(rcu, struct bump_scope, rcu);

	cgroup_put(scope->cgroup);
	kfree(scope);
}

static void cgroup_scope_drop(struct bump_scope *scope)
{
	list_del_rcu(&scope->node);
	cgroup_count--;
	call_rcu(&scope->rcu, cgroup_scope_free);
}

/* A cgroup has no number that would mean anything to the caller. */
static s32 cgroup_scope_id(const struct bump_scope *scope)
{
	return 0;
}

/* Under RCU. */
static bool is_inside(const struct bump_scope *scope, struct task_struct *task)
{
	return cgroup_is_descendant(task_dfl_cgroup(task), scope->cgroup);
}

static bool cgroup_scope_has(const struct bump_scope *scope, struct task_struct *task)
{
	bool has;

	rcu_read_lock();
	has = is_inside(scope, task);
	rcu_read_unlock();
	return has;
}

/* In a threaded cgroup the threads of a process can be in different cgroups. */
static bool has_a_thread_of(const struct bump_scope *scope, struct task_struct *task)
{
	struct task_struct *thread;

	if (is_inside(scope, task))
		return true;
	if (READ_ONCE(scope->cgroup->dom_cgrp) == scope->cgroup)
		return false;
	for_each_thread(task, thread)
		if (is_inside(scope, thread))
			return true;
	return false;
}

/*
 * A child is at first a copy of its parent, with the parent's pid, and then in the root
 * cgroup until it is moved into its own.  Until then the result is a guess, which the
 * first hit corrects.
 */
static bool cgroup_scope_wants(const struct bump_scope *scope, const struct mm_struct *mm,
			       struct task_struct *task)
{
	struct pid *pid = READ_ONCE(task->thread_pid);

	if (pid && pid_task(pid, PIDTYPE_PID) != task)
		return true;
	if (has_a_thread_of(scope, task))
		return true;
	return !cgroup_parent(task_dfl_cgroup(task)) &&
	       is_inside(scope, rcu_dereference(task->real_parent));
}

const struct bump_scope_ops bump_cgroup_ops = {
	.feature = SPEED_BUMP_FEATURE_SCOPE_CGROUP,
	.name = "cgroup",
	.needs = BUMP_SCOPE_PROCESSES | BUMP_SCOPE_MOVES,
	.get = cgroup_scope_get,
	.drop = cgroup_scope_drop,
	.id = cgroup_scope_id,
	.has = cgroup_scope_has,
	.wants = cgroup_scope_wants,
};

/*
 * A process was forked, possibly into another cgroup than its parent's (clone3()).  Has
 * it moved into a scope?  Under RCU.
 */
bool bump_cgroup_fork(struct task_struct *parent, struct task_struct *child)
{
	struct bump_scope *scope;
	bool found = false;

	list_for_each_entry_rcu(scope, &cgroups, node) {
		if (is_inside(scope, child) && !is_inside(scope, parent)) {
			atomic_inc(&scope->moves);
			found = true;
		}
	}
	return found;
}

/* A task has been moved to @cgroup.  Is that in a scope?  Under RCU. */
bool bump_cgroup_attach(struct cgroup *cgroup)
{
	struct bump_scope *scope;
	bool found = false;

	list_for_each_entry_rcu(scope, &cgroups, node) {
		if (cgroup_is_descendant(cgroup, scope->cgroup)) {
			atomic_inc(&scope->moves);
			found = true;
		}
	}
	return found;
}
