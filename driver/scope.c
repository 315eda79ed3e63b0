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

#include "call.h"
#include "cgroup.h"
#include "compat.h"
#include "guard.h"
#include "scope.h"
#include "session.h"
#include "thread.h"
#include "tree.h"

/* Serialises getting and dropping scopes, and the tracepoints.  Outermost. */
static DEFINE_MUTEX(scopes_mutex);

/* --- everything ----------------------------------------------------------- */

static const struct bump_scope_ops system_ops;

static struct bump_scope scope_system = {
	.type = SPEED_BUMP_SCOPE_SYSTEM,
	.ops = &system_ops,
	.ref = REFCOUNT_INIT(1),	/* never dropped */
};

static struct bump_scope *system_get(s32 id, struct task_struct *task, bool privileged)
{
	if (id)
		return ERR_PTR(-EINVAL);
	refcount_inc(&scope_system.ref);
	return &scope_system;
}

static s32 system_id(const struct bump_scope *scope)
{
	return 0;
}

static bool system_has(const struct bump_scope *scope, struct task_struct *task)
{
	return true;
}

static bool system_wants(const struct bump_scope *scope, const struct mm_struct *mm,
			 struct task_struct *task)
{
	return true;
}

static const struct bump_scope_ops system_ops = {
	.feature = SPEED_BUMP_FEATURE_SCOPE_SYSTEM,
	.name = "system",
	.get = system_get,
	.id = system_id,
	.has = system_has,
	.wants = system_wants,
};

/* By SPEED_BUMP_SCOPE_*; NULL: not with this kernel. */
static const struct bump_scope_ops *const types[] = {
	[SPEED_BUMP_SCOPE_SYSTEM] = &system_ops,
	[SPEED_BUMP_SCOPE_TREE] = &bump_tree_ops,
	[SPEED_BUMP_SCOPE_THREAD] = &bump_thread_ops,
#ifdef CONFIG_CGROUPS
	[SPEED_BUMP_SCOPE_CGROUP] = &bump_cgroup_ops,
#else
	[SPEED_BUMP_SCOPE_CGROUP] = NULL,
#endif
};

/* --- tracepoints ---------------------------------------------------------- */

static struct tracepoint *tp_fork;
static struct tracepoint *tp_exit;
static struct tracepoint *tp_attach;
static bool tracing_processes;
static bool tracing_moves;

/* Called when a task has moved into a scope; does not sleep. */
static void (*on_move)(void);

static void trace_fork(void *data, struct task_struct *parent, struct task_struct *child)
{
	if (child->tgid == parent->tgid)
		return;
	bump_tree_fork(parent, child);
	/* The RCU section is what bump_targets_exit() waits for. */
	rcu_read_lock();
	if (bump_cgroup_fork(parent, child))
		on_move();
	rcu_read_unlock();
}

static void thread_exits(struct task_struct *task)
{
	bump_calls_end(task);
	bump_tree_exit(task);
}

DEFINE_SCHED_PROCESS_EXIT(thread_exits)

/*
 * The probes are registered with the first scope that needs them and stay registered:
 * each change patches the kernel's text on every CPU, and without a scope they find an
 * empty list.
 */
static int trace_processes(void)
{
	int err;

	if (tracing_processes)
		return 0;

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
	/* as in trace_fork() */
	rcu_read_lock();
	if (bump_cgroup_attach(cgroup))
		on_move();
	rcu_read_unlock();
}

static int trace_moves(void)
{
	int err;

	if (tracing_moves)
		return 0;

	check_trace_callback_type_cgroup_attach_task(trace_attach);
	err = tracepoint_probe_register(tp_attach, trace_attach, NULL);
	if (!err)
		tracing_moves = true;
	return err;
}

static void untrace_moves(void)
{
	tracepoint_probe_unregister(tp_attach, trace_attach, NULL);
}
#else
static int trace_moves(void)
{
	return -EOPNOTSUPP;
}

static void untrace_moves(void)
{
}
#endif

static bool can_trace(unsigned int what)
{
	return (!(what & BUMP_SCOPE_PROCESSES) || (tp_fork && tp_exit)) &&
	       (!(what & BUMP_SCOPE_MOVES) || tp_attach);
}

static int trace(unsigned int what)
{
	int err = 0;

	lockdep_assert_held(&scopes_mutex);

	if (!can_trace(what))
		return -EOPNOTSUPP;
	if (what & BUMP_SCOPE_PROCESSES)
		err = trace_processes();
	if (!err && (what & BUMP_SCOPE_MOVES))
		err = trace_moves();
	return err;
}

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

/* The task with the number @nr, held, if the session may delay it. */
static struct task_struct *get_task(const struct bump_session *session, pid_t nr,
				    const struct file *mem)
{
	struct task_struct *task;
	struct pid *pid;

	if (nr <= 0)
		return ERR_PTR(-ESRCH);
	pid = find_get_pid(nr);
	task = get_pid_task(pid, PIDTYPE_PID);
	put_pid(pid);
	if (!task)
		return ERR_PTR(-ESRCH);
	if (may_delay(session, task, mem))
		return task;
	put_task_struct(task);
	return ERR_PTR(-EPERM);
}

/**
 * bump_scope_get() - a scope for a target
 * @session:	the target's
 * @name:	which
 *
 * Return: the scope with a reference, to be dropped with bump_scope_put(), or an ERR_PTR.
 */
struct bump_scope *bump_scope_get(const struct bump_session *session,
				  const struct bump_scope_name *name)
{
	const struct bump_scope_ops *ops;
	struct task_struct *task = NULL;
	struct bump_scope *scope;
	int err;

	if (name->type < SPEED_BUMP_SCOPE_SYSTEM || name->type >= ARRAY_SIZE(types))
		return ERR_PTR(-EINVAL);
	ops = types[name->type];
	if (session->opener && !(ops && ops->names_task))
		return ERR_PTR(-EPERM);
	if (!ops)
		return ERR_PTR(-EOPNOTSUPP);
	if (ops->names_task) {
		task = get_task(session, name->id, name->mem);
		if (IS_ERR(task))
			return ERR_CAST(task);
	}

	mutex_lock(&scopes_mutex);
	err = trace(ops->needs);
	scope = err ? ERR_PTR(err) : ops->get(name->id, task, !session->user);
	mutex_unlock(&scopes_mutex);
	if (task)
		put_task_struct(task);
	return scope;
}

void bump_scope_put(struct bump_scope *scope)
{
	if (!refcount_dec_and_mutex_lock(&scope->ref, &scopes_mutex))
		return;
	scope->ops->drop(scope);
	mutex_unlock(&scopes_mutex);
}

/* From here on bump_calls_end() is called for each thread that exits. */
int bump_scope_trace_exits(void)
{
	int err;

	mutex_lock(&scopes_mutex);
	err = trace(BUMP_SCOPE_PROCESSES);
	mutex_unlock(&scopes_mutex);
	return err;
}

bool bump_scope_can_trace_exits(void)
{
	return can_trace(BUMP_SCOPE_PROCESSES);
}

/* bump_scope_has() where a single test is not enough. */
bool bump_scope_has_slow(const struct bump_scope *scope, const struct cred *opener,
			 struct task_struct *task)
{
	bool has = scope->ops->has(scope, task);

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

/* Does @task, a user of the memory that may not be running yet, need the breakpoint? */
static bool wants_task(struct question *q, struct task_struct *task)
{
	if (!q->scope->ops->wants(q->scope, q->mm, task))
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

/**
 * bump_scope_init() - before any other function
 * @moved:	called, in any context, when a task has moved into a scope of which
 *		bump_scope_has_moves() is true, after @moves of the scope has changed
 */
void bump_scope_init(void (*moved)(void))
{
	on_move = moved;
	bump_thread_init();
	for_each_kernel_tracepoint(find_tracepoint, NULL);
}

/* All scopes have been put. */
void bump_scope_exit(void)
{
	if (tracing_moves)
		untrace_moves();
	if (tracing_processes) {
		tracepoint_probe_unregister(tp_exit, trace_thread_exits, NULL);
		tracepoint_probe_unregister(tp_fork, trace_fork, NULL);
		tracepoint_synchronize_unregister();
	}
	rcu_barrier();	/* freeing of scopes */
}

u64 bump_scope_features(void)
{
	u64 features = 0;
	unsigned int i;

	for (i = SPEED_BUMP_SCOPE_SYSTEM; i < ARRAY_SIZE(types); i++)
		if (types[i] && can_trace(types[i]->needs))
			features |= types[i]->feature;
	return features;
}
