// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Single threads.
 */
#include <linux/err.h>
#include <linux/hash.h>
#include <linux/list.h>
#include <linux/log2.h>
#include <linux/mm_types.h>
#include <linux/pid.h>
#include <linux/rcupdate.h>
#include <linux/refcount.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "scope.h"
#include "thread.h"

#define THREAD_LISTS	1024

/* Scopes, by the address of their struct pid.  Under the scopes' mutex. */
static struct list_head threads[THREAD_LISTS];

static struct list_head *thread_list(const struct pid *pid)
{
	return &threads[hash_ptr(pid, ilog2(THREAD_LISTS))];
}

/*
 * The struct pid is held: the number may be given to another task, the object
 * is not.  A thread that calls exec() takes over the leader's, and with that a
 * scope that names the leader.
 */
static struct bump_scope *thread_get(s32 id, struct task_struct *task, bool privileged)
{
	struct pid *pid = get_task_pid(task, PIDTYPE_PID);
	struct bump_scope *scope;

	if (!pid || (READ_ONCE(task->flags) & PF_EXITING)) {
		scope = ERR_PTR(-ESRCH);
		goto out;
	}
	list_for_each_entry(scope, thread_list(pid), node) {
		if (scope->pid == pid) {
			refcount_inc(&scope->ref);
			goto out;
		}
	}
	scope = kzalloc(sizeof(*scope), GFP_KERNEL_ACCOUNT);
	if (!scope) {
		scope = ERR_PTR(-ENOMEM);
		goto out;
	}
	scope->type = SPEED_BUMP_SCOPE_THREAD;
	scope->ops = &bump_thread_ops;
	refcount_set(&scope->ref, 1);
	scope->pid = get_pid(pid);
	list_add(&scope->node, thread_list(pid));
out:
	put_pid(pid);
	return scope;
}

static void thread_drop(struct bump_scope *scope)
{
	list_del(&scope->node);
	put_pid(scope->pid);
	kfree_rcu(scope, rcu);
}

static s32 thread_id(const struct bump_scope *scope)
{
	struct task_struct *task;
	s32 id = 0;

	rcu_read_lock();
	task = pid_task(scope->pid, PIDTYPE_PID);
	if (task && !(READ_ONCE(task->flags) & PF_EXITING))
		id = pid_vnr(scope->pid);
	rcu_read_unlock();
	return id;
}

static bool thread_has(const struct bump_scope *scope, struct task_struct *task)
{
	return task_pid(task) == scope->pid;
}

/* Whichever user of the memory @user is: only that of the thread matters. */
static bool thread_wants(const struct bump_scope *scope, const struct mm_struct *mm,
			 struct task_struct *user)
{
	struct task_struct *task = pid_task(scope->pid, PIDTYPE_PID);

	return task && READ_ONCE(task->mm) == mm;
}

const struct bump_scope_ops bump_thread_ops = {
	.feature = SPEED_BUMP_FEATURE_SCOPE_THREAD,
	.name = "thread",
	.id_name = "tid",
	.names_task = true,
	.get = thread_get,
	.drop = thread_drop,
	.id = thread_id,
	.has = thread_has,
	.wants = thread_wants,
};

void bump_thread_init(void)
{
	unsigned int i;

	for (i = 0; i < THREAD_LISTS; i++)
		INIT_LIST_HEAD(&threads[i]);
}
