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
struct file;
struct bump_scope;
struct bump_session;

/* Tracepoints that a type of scope needs. */
#define BUMP_SCOPE_PROCESSES	BIT(0)	/* fork and exit */
#define BUMP_SCOPE_MOVES	BIT(1)	/* moves to other cgroups */

/**
 * struct bump_scope_ops - what a type of scope does
 * @feature:	SPEED_BUMP_FEATURE_SCOPE_*
 * @name:	in targets_list
 * @id_name:	of its id there, or NULL if it has none
 * @names_task:	its id is the number of a task.  Sessions without CAP_SYS_ADMIN have only
 *		such scopes
 * @needs:	BUMP_SCOPE_PROCESSES, BUMP_SCOPE_MOVES
 * @get:	the scope that @id names, with a reference, or an ERR_PTR; @task is the task
 *		that it names, if it names one.  Under the scopes' mutex
 * @drop:	frees a scope that nothing uses any more.  Under the scopes' mutex
 * @id:		its id as the caller sees it; 0: dead, or not visible to the caller
 * @has:	is @task, which is running, to be delayed?
 * @wants:	does @task, a user of @mm that may not be running yet, need the breakpoint?
 *		Under RCU
 */
struct bump_scope_ops {
	u64 feature;
	const char *name;
	const char *id_name;
	bool names_task;
	unsigned int needs;
	struct bump_scope *(*get)(s32 id, struct task_struct *task, bool privileged);
	void (*drop)(struct bump_scope *scope);
	s32 (*id)(const struct bump_scope *scope);
	bool (*has)(const struct bump_scope *scope, struct task_struct *task);
	bool (*wants)(const struct bump_scope *scope, const struct mm_struct *mm,
		      struct task_struct *task);
};

/**
 * struct bump_scope - which tasks a target delays
 * @type:	SPEED_BUMP_SCOPE_*, for the tests that every hit makes
 * @ref:	one for each target
 * @ops:	of that type
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
	const struct bump_scope_ops *ops;
	struct pid *pid;
	unsigned long *members;
	raw_spinlock_t lock;
	bool scanning;
	struct cgroup *cgroup;
	atomic_t moves;
	struct list_head node;
	struct rcu_head rcu;
};

/**
 * struct bump_scope_name - how a caller names a scope
 * @type:	any number
 * @id:		its meaning depends on @type
 * @mem:	/proc/PID/mem of the process, which an unprivileged caller could open; or NULL
 */
struct bump_scope_name {
	u32 type;
	s32 id;
	const struct file *mem;
};

void bump_scope_init(void (*moved)(void));
void bump_scope_exit(void);
u64 bump_scope_features(void);
int bump_scope_trace_exits(void);
bool bump_scope_can_trace_exits(void);

struct bump_scope *bump_scope_get(const struct bump_session *session,
				  const struct bump_scope_name *name);
void bump_scope_put(struct bump_scope *scope);
bool bump_scope_has_slow(const struct bump_scope *scope, const struct cred *opener,
			 struct task_struct *task);
bool bump_scope_wants(const struct bump_scope *scope, const struct cred *opener,
		      struct mm_struct *mm, bool *refused);

/* For LIST: 0 where there is none, or where it is dead or not visible to the caller. */
static inline s32 bump_scope_id(const struct bump_scope *scope)
{
	return scope->ops->id(scope);
}

/* Can a task move into it whose memory has no breakpoint? */
static inline bool bump_scope_has_moves(const struct bump_scope *scope)
{
	return scope->ops->needs & BUMP_SCOPE_MOVES;
}

/* Is a look at the scope not enough to know? */
static inline bool bump_scope_is_slow(const struct bump_scope *scope, const struct cred *opener)
{
	return opener || scope->type == SPEED_BUMP_SCOPE_CGROUP;
}

/* bump_scope_has() where a look at the scope is enough; otherwise false. */
static inline bool bump_scope_has_plainly(const struct bump_scope *scope,
					  const struct cred *opener, struct task_struct *task)
{
	if (unlikely(opener))
		return false;
	if (scope->type == SPEED_BUMP_SCOPE_TREE)
		return test_bit(task->tgid, scope->members);
	if (scope->type == SPEED_BUMP_SCOPE_THREAD)
		return task_pid(task) == scope->pid;
	return scope->type == SPEED_BUMP_SCOPE_SYSTEM;
}

/**
 * bump_scope_has() - is a task to be delayed?
 * @scope:	the target's
 * @opener:	of the target's session
 * @task:	the running task
 */
static inline bool bump_scope_has(const struct bump_scope *scope, const struct cred *opener,
				  struct task_struct *task)
{
	if (likely(bump_scope_has_plainly(scope, opener, task)))
		return true;
	return bump_scope_is_slow(scope, opener) && bump_scope_has_slow(scope, opener, task);
}

#endif /* BUMP_SCOPE_H */
