// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Scopes: everything, a process tree, one thread, or a cgroup subtree.
 *
 * Targets with the same scope share one object, whose address identifies the scope in the
 * table.
 */
#include <linux/err.h>
#include <linux/mm_types.h>
#include <linux/mutex.h>
#include <linux/pid_namespace.h>
#include <linux/rculist.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/tracepoint.h>
#include <trace/events/sched.h>
#ifdef CONFIG_CGROUPS
#include <trace/events/cgroup.h>
#endif

#include "cgroup.h"
#include "compat.h"
#include "guard.h"
#include "scope.h"
#include "session.h"
#include "target.h"
#include "thread.h"
#include "tree.h"

static struct bump_scope scope_system = { .type = SPEED_BUMP_SCOPE_SYSTEM };

/* Serialises getting and dropping scopes, and the tracepoints.  Outermost. */
static DEFINE_MUTEX(scopes_mutex);

/* --- tracepoints ---------------------------------------------------------- */

static struct tracepoint *tp_fork;
static struct tracepoint *tp_exit;
static struct tracepoint *tp_attach;
static bool tracing_processes;
static bool tracing_cgroups;

static void trace_fork(void *data, struct task_struct *parent, struct task_struct *child)
{
	if (child->tgid == parent->tgid)
		return;
	bump_tree_fork(parent, child);
	bump_cgroup_fork(parent, child);
}

static void thread_exits(struct task_struct *task)
{
	bump_tree_exit(task);
}

DEFINE_SCHED_PROCESS_EXIT(thread_exits)

/*
 * The probes are registered with the first tree or cgroup and stay registered: each
 * change patches the kernel's text on every CPU, and without a scope they find an empty
 * list.
 */
static int trace_processes(void)
{
	int err;

	lockdep_assert_held(&scopes_mutex);

	if (tracing_processes)
		return 0;
	if (!tp_fork || !tp_exit)
		return -EOPNOTSUPP;

	check_trace_callback_type_sched_process_fork(trace_fork);
	check_trace_callback_type_sched_process_exit(trace_thread_exits);

	err = tracepoint_probe_register(tp_fork, trace_fork, NULL);
	if (err)
		return err;
	err = tracepoint_probe_register(tp_exit, trace_thread_exits, NULL);
	if (err) {
		tracepoint_probe_unregister(tp_fork, trace_fork, NULL);
		tracepoint_synchronize_unregister();
		return err;
	}
	tracing_processes = true;
	return 0;
}

#ifdef CONFIG_CGROUPS
static void trace_attach(void *data, struct cgroup *cgroup, const char *path,
			 struct task_struct *task, bool threadgroup)
{
	bump_cgroup_attach(cgroup);
}

static int trace_cgroups(void)
{
	int err;

	lockdep_assert_held(&scopes_mutex);

	if (tracing_cgroups)
		return 0;
	if (!tp_attach)
		return -EOPNOTSUPP;
	err = trace_processes();
	if (err)
		return err;

	check_trace_callback_type_cgroup_attach_task(trace_attach);
	err = tracepoint_probe_register(tp_attach, trace_attach, NULL);
	if (!err)
		tracing_cgroups = true;
	return err;
}

static void untrace_cgroups(void)
{
	tracepoint_probe_unregister(tp_attach, trace_attach, NULL);
}
#else
static int trace_cgroups(void)
{
	return -EOPNOTSUPP;
}

static void untrace_cgroups(void)
{
}
#endif

static void find_tracepoint(struct tracepoint *tp, void *data)
{
	if (!strcmp(tp->name, "sched_process_fork"))
		tp_fork = tp;
	else if (!strcmp(tp->name, "sched_process_exit"))
		tp_exit = tp;
	else if (IS_ENABLED(CONFIG_CGROUPS) && !strcmp(tp->name, "cgroup_attach_task"))
		tp_attach = tp;
}

/* --- any ------------------------------------------------------------------ */

/* The kernel applied its own rules, too, when the caller opened @mem. */
static bool may_delay(const struct bump_session *session, struct task_struct *task,
		      const struct file *mem)
{
	if (!session->opener)
		return true;
	return bump_guard_allows_process(session->opener, task) &&
	       (!session->user || bump_guard_is_memory_of(mem, task));
}

static struct bump_scope *get_by_nr(const struct bump_session *session,
				    const struct bump_target_config *config)
{
	struct bump_scope *scope = ERR_PTR(-ESRCH);
	pid_t nr = config->scope_id;
	struct task_struct *task;
	struct pid *pid;
	int err;

	if (nr <= 0)
		return scope;
	pid = find_get_pid(nr);
	task = get_pid_task(pid, PIDTYPE_PID);
	put_pid(pid);
	if (!task)
		return scope;
	if (!may_delay(session, task, config->mem)) {
		scope = ERR_PTR(-EPERM);
		goto out;
	}

	mutex_lock(&scopes_mutex);
	if (config->scope == SPEED_BUMP_SCOPE_THREAD) {
		scope = bump_thread_get(task);
	} else {
		err = trace_processes();
		scope = err ? ERR_PTR(err) : bump_tree_get(task, !session->user);
	}
	mutex_unlock(&scopes_mutex);
out:
	put_task_struct(task);
	return scope;
}

static struct bump_scope *get_by_fd(int fd)
{
	struct bump_scope *scope;
	int err;

	mutex_lock(&scopes_mutex);
	err = trace_cgroups();
	scope = err ? ERR_PTR(err) : bump_cgroup_get(fd);
	mutex_unlock(&scopes_mutex);
	return scope;
}

/**
 * bump_scope_get() - a scope for a target
 * @session:	the target's
 * @config:	the target's configuration
 *
 * Return: the scope, to be given back with bump_scope_put(), or an ERR_PTR.
 */
struct bump_scope *bump_scope_get(const struct bump_session *session,
				  const struct bump_target_config *config)
{
	u32 type = config->scope;
	s32 id = config->scope_id;

	if (session->opener && type != SPEED_BUMP_SCOPE_TREE && type != SPEED_BUMP_SCOPE_THREAD)
		return ERR_PTR(-EPERM);

	switch (type) {
	case SPEED_BUMP_SCOPE_SYSTEM:
		return id ? ERR_PTR(-EINVAL) : &scope_system;
	case SPEED_BUMP_SCOPE_TREE:
	case SPEED_BUMP_SCOPE_THREAD:
		return get_by_nr(session, config);
	case SPEED_BUMP_SCOPE_CGROUP:
		return get_by_fd(id);
	default:
		return ERR_PTR(-EINVAL);
	}
}

void bump_scope_put(struct bump_scope *scope)
{
	if (scope->type == SPEED_BUMP_SCOPE_SYSTEM)
		return;
	if (!refcount_dec_and_mutex_lock(&scope->ref, &scopes_mutex))
		return;
	if (scope->type == SPEED_BUMP_SCOPE_TREE)
		bump_tree_drop(scope);
	else if (scope->type == SPEED_BUMP_SCOPE_THREAD)
		bump_thread_drop(scope);
	else
		bump_cgroup_drop(scope);
	mutex_unlock(&scopes_mutex);
}

/* For LIST. */
s32 bump_scope_id(const struct bump_scope *scope)
{
	if (scope->type == SPEED_BUMP_SCOPE_TREE)
		return bump_tree_id(scope);
	if (scope->type == SPEED_BUMP_SCOPE_THREAD)
		return bump_thread_id(scope);
	return 0;
}

static bool has_task(const struct bump_scope *scope, struct task_struct *task)
{
	switch (scope->type) {
	case SPEED_BUMP_SCOPE_SYSTEM:
		return true;
	case SPEED_BUMP_SCOPE_TREE:
		return test_bit(task->tgid, scope->members);
	case SPEED_BUMP_SCOPE_THREAD:
		return bump_thread_has(scope, task);
	default:
		return bump_cgroup_has(scope, task);
	}
}

/* bump_scope_has() where a single test is not enough. */
bool bump_scope_has_slow(const struct bump_scope *scope, const struct cred *opener,
			 struct task_struct *task)
{
	bool has = has_task(scope, task);

	if (has && opener) {
		rcu_read_lock();
		has = bump_guard_allows(opener, task, task->mm);
		rcu_read_unlock();
	}
	return has;
}

/* The arguments of a filter, and its second result. */
struct question {
	const struct bump_scope *scope;
	const struct cred *opener;
	struct mm_struct *mm;
	bool refused;
};

static bool scope_wants(const struct bump_scope *scope, struct mm_struct *mm,
			struct task_struct *task)
{
	switch (scope->type) {
	case SPEED_BUMP_SCOPE_SYSTEM:
		return true;
	case SPEED_BUMP_SCOPE_TREE:
		return bump_tree_wants(scope, task);
	case SPEED_BUMP_SCOPE_THREAD:
		return bump_thread_wants(scope, mm);
	default:
		return bump_cgroup_wants(scope, task);
	}
}

/* Does @task, a user of the memory that may not be running yet, need the breakpoint? */
static bool wants_task(struct question *q, struct task_struct *task)
{
	if (!scope_wants(q->scope, q->mm, task))
		return false;
	if (!q->opener || bump_guard_allows(q->opener, task, q->mm))
		return true;
	q->refused = true;
	return false;
}

/* Does any user of the memory need the breakpoint? */
static bool wants_any(struct question *q)
{
	struct task_struct *process, *thread;
	bool found = false;

	for_each_process_thread(process, thread) {
		if (READ_ONCE(thread->mm) != q->mm || (thread->flags & PF_KTHREAD))
			continue;
		if (wants_task(q, thread))
			return true;
		found = true;
	}
	/* a child that is not on the list yet: a guess, as in bump_tree_wants() */
	return !found;
}

/*
 * Do other processes use the memory too, as after vfork()?  A task that reads it from
 * outside is counted, too, so the result can be true without such a process.
 */
static bool is_shared(const struct mm_struct *mm, struct task_struct *task, int others)
{
	return atomic_read(&mm->mm_users) > get_nr_threads(task) + others;
}

#ifdef CONFIG_MEMCG
static bool wants_mm(struct question *q)
{
	struct task_struct *owner = rcu_dereference(q->mm->owner);

	if (!owner)
		return false;
	/* One user is the kernel, for this call. */
	return wants_task(q, owner) || (is_shared(q->mm, owner, 1) && wants_any(q));
}
#else
static bool wants_mm(struct question *q)
{
	return wants_any(q);
}
#endif

/**
 * bump_scope_wants() - does the memory of a process need the breakpoint?
 * @scope:	the target's
 * @opener:	of the target's session
 * @mm:		the memory
 * @refused:	[out] set if it does and the opener may not delay the process
 *
 * Called under mmap_lock, or by a hit.  In an exec @mm is that of current, and has no
 * valid owner yet; in a registration it is that of another process.  Memory that several
 * processes share needs the breakpoint if one of them is in the scope.
 */
bool bump_scope_wants(const struct bump_scope *scope, const struct cred *opener,
		      struct mm_struct *mm, bool *refused)
{
	struct question q = { .scope = scope, .opener = opener, .mm = mm };
	bool wants;

	if (scope->type == SPEED_BUMP_SCOPE_SYSTEM && !opener)
		return true;

	rcu_read_lock();
	if (current->mm == mm)
		wants = wants_task(&q, current) || (is_shared(mm, current, 0) && wants_any(&q));
	else
		wants = wants_mm(&q);
	rcu_read_unlock();
	*refused = q.refused && !wants;
	return wants;
}

int bump_scope_init(void)
{
	bump_thread_init();
	for_each_kernel_tracepoint(find_tracepoint, NULL);
	return 0;
}

/* All scopes have been put. */
void bump_scope_exit(void)
{
	if (tracing_cgroups)
		untrace_cgroups();
	if (tracing_processes) {
		tracepoint_probe_unregister(tp_exit, trace_thread_exits, NULL);
		tracepoint_probe_unregister(tp_fork, trace_fork, NULL);
		tracepoint_synchronize_unregister();
	}
	rcu_barrier();	/* freeing of scopes */
}

u64 bump_scope_features(void)
{
	u64 features = SPEED_BUMP_FEATURE_SCOPE_SYSTEM | SPEED_BUMP_FEATURE_SCOPE_THREAD;

	if (tp_fork && tp_exit)
		features |= SPEED_BUMP_FEATURE_SCOPE_TREE;
	if (tp_fork && tp_exit && tp_attach)
		features |= SPEED_BUMP_FEATURE_SCOPE_CGROUP;
	return features;
}
