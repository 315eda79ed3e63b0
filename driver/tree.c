// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Process trees.
 *
 * A tree is a set of processes, kept as a bitmap of their process numbers in the initial
 * namespace: a test is one bit, and an insertion allocates nothing, so it can't fail in
 * the middle of a fork.  Targets that name the same root while its tree lives share the
 * tree.
 *
 * How a tree stays right.  Call a process dead from when its last thread has
 * given up signal->live; a thread does so on its way to the sched_process_exit
 * probe below and runs no user code after.
 *
 *   fork   If the parent is a member the child becomes one.  The probe runs
 *          before the child does, but after it is on the list of tasks.
 *   exit   A dead process is dropped.  Its number is given back later than
 *          that, when all its threads are through with do_exit(), so a bit
 *          never stands for another process.
 *
 * How it is built: "the root, its descendants of this moment, and what they
 * fork".  The tree is put where the probes see it, then the root is inserted,
 * then the list of tasks is walked forward, inserting each process that has a
 * member among its ancestors.  None is lost meanwhile:
 *
 *   - A member forks.  Either the probe sees the parent's bit, or the child was
 *     on the list before that bit was set (a full barrier on both sides: child
 *     on the list, then bit read; bit set, then list read).  The list grows at
 *     its tail, so the walk, which is at the parent or before it, will get to
 *     the child and find its parent.  It is the same for a child whose probe
 *     came before the tree was there to be seen.
 *   - A process between the root and a descendant exits, and the descendant's way to the
 *     root is cut when its children are given to a reaper.  The exit probe runs before
 *     that.  While a tree is being built it inserts the children of every exiting
 *     thread's process that has a member above it.  Of every thread: the last two can
 *     exit at the same time, so that the children are given to the reaper before the
 *     process is seen to be dead.
 *   - A dead process is walked through, not inserted.  If it dies just then: the
 *     insertion sets the bit, then looks at signal->live again; the exit probe looks at
 *     the bit after signal->live has dropped.  One of them sees the other, and both clear
 *     the bit under the lock.  The lock was taken while the number was the process's own,
 *     so the bit of the next process with that number is set later.
 *
 * A thread that was past its exit probe before the tree could be seen, and has yet to
 * give its children away, may or may not count as an ancestor: the tree can be taken to
 * be created before its end or after it.
 *
 * Ancestors are read without a lock.  A task's real_parent is not freed before the task
 * has another one, and a task that was reached under RCU stays in memory with what it
 * pointed to when it was unhashed.
 */
#include <linux/err.h>
#include <linux/pid_namespace.h>
#include <linux/rculist.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/threads.h>
#include <linux/vmalloc.h>

#include "scope.h"
#include "tree.h"

/*
 * Every fork and exit on the machine goes through all trees, and each tree holds a bit
 * for every possible process number.
 */
#define MAX_TREES	1024

/* Written under the scopes' mutex, read under RCU. */
static LIST_HEAD(trees);
static unsigned int tree_count;

static bool process_is_dead(const struct task_struct *task)
{
	return atomic_read(&task->signal->live) == 0;
}

static bool is_member(const struct bump_scope *tree, const struct task_struct *task)
{
	return test_bit(task->tgid, tree->members);
}

/* False if the process of @task is dead. */
static bool tree_insert(struct bump_scope *tree, const struct task_struct *task)
{
	bool alive;

	raw_spin_lock(&tree->lock);
	alive = !process_is_dead(task);
	if (alive) {
		set_bit(task->tgid, tree->members);
		smp_mb__after_atomic();	/* pairs with signal->live dropping */
		alive = !process_is_dead(task);
		if (!alive)
			clear_bit(task->tgid, tree->members);
	}
	raw_spin_unlock(&tree->lock);
	return alive;
}

static void tree_remove(struct bump_scope *tree, const struct task_struct *task)
{
	raw_spin_lock(&tree->lock);
	clear_bit(task->tgid, tree->members);
	raw_spin_unlock(&tree->lock);
}

/* Is @task a member or below one?  Under RCU. */
static bool tree_is_above(const struct bump_scope *tree, const struct task_struct *task)
{
	while (task != &init_task) {
		if (is_member(tree, task))
			return true;
		task = rcu_dereference(task->real_parent);
	}
	return false;
}

/* Under RCU. */
static void tree_insert_children(struct bump_scope *tree, const struct task_struct *parent)
{
	struct task_struct *task;

	for_each_process(task)
		if (rcu_dereference(task->real_parent)->tgid == parent->tgid)
			tree_insert(tree, task);
}

static void tree_build(struct bump_scope *tree)
{
	struct task_struct *task;

	rcu_read_lock();
	for_each_process(task)
		if (tree_is_above(tree, task))
			tree_insert(tree, task);
	rcu_read_unlock();
}

/* A process was forked. */
void bump_tree_fork(const struct task_struct *parent, const struct task_struct *child)
{
	struct bump_scope *tree;

	/* The child is on the list of tasks; only now look for members. */
	smp_mb();

	rcu_read_lock();
	list_for_each_entry_rcu(tree, &trees, node)
		if (is_member(tree, parent))
			tree_insert(tree, child);
	rcu_read_unlock();
}

/* A thread exits. */
void bump_tree_exit(const struct task_struct *task)
{
	bool dead = process_is_dead(task);
	struct bump_scope *tree;

	rcu_read_lock();
	list_for_each_entry_rcu(tree, &trees, node) {
		if (READ_ONCE(tree->scanning) && tree_is_above(tree, task))
			tree_insert_children(tree, task);
		if (dead && is_member(tree, task))
			tree_remove(tree, task);
	}
	rcu_read_unlock();
}

static void tree_free(struct rcu_head *rcu)
{
	struct bump_scope *tree = container_of(rcu, struct bump_scope, rcu);

	put_pid(tree->pid);
	vfree(tree->members);
	kfree(tree);
}

static struct bump_scope *tree_alloc(struct pid *root)
{
	struct bump_scope *tree;

	tree = kzalloc(sizeof(*tree), GFP_KERNEL_ACCOUNT);
	if (!tree)
		return NULL;
	tree->members = __vmalloc(BITS_TO_LONGS(PID_MAX_LIMIT) * sizeof(long),
				  GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN);
	if (!tree->members) {
		kfree(tree);
		return NULL;
	}
	tree->type = SPEED_BUMP_SCOPE_TREE;
	tree->ops = &bump_tree_ops;
	tree->pid = get_pid(root);
	refcount_set(&tree->ref, 1);
	raw_spin_lock_init(&tree->lock);
	return tree;
}

static void tree_drop(struct bump_scope *tree)
{
	list_del_rcu(&tree->node);
	tree_count--;
	call_rcu(&tree->rcu, tree_free);
}

static struct bump_scope *tree_create(struct pid *root, const struct task_struct *task,
				      unsigned int max)
{
	struct bump_scope *tree;

	if (tree_count >= max)
		return ERR_PTR(-ENOSPC);
	tree = tree_alloc(root);
	if (!tree)
		return ERR_PTR(-ENOMEM);

	tree->scanning = true;
	tree_count++;
	list_add_rcu(&tree->node, &trees);
	smp_mb();	/* pairs with the one in bump_tree_fork() and with signal->live */

	if (!tree_insert(tree, task)) {
		tree_drop(tree);
		return ERR_PTR(-ESRCH);
	}
	tree_build(tree);
	WRITE_ONCE(tree->scanning, false);
	return tree;
}

static struct bump_scope *tree_of(struct pid *root, const struct task_struct *task,
				  unsigned int max)
{
	struct bump_scope *tree;

	list_for_each_entry(tree, &trees, node) {
		if (tree->pid != root)
			continue;
		if (process_is_dead(task))
			return ERR_PTR(-ESRCH);
		refcount_inc(&tree->ref);
		return tree;
	}
	return tree_create(root, task, max);
}

/*
 * The tree of the process of @task, itself or one of its threads.  Half of MAX_TREES are
 * reserved for privileged sessions.
 */
static struct bump_scope *tree_get(s32 id, struct task_struct *task, bool privileged)
{
	struct bump_scope *tree = ERR_PTR(-ESRCH);
	struct pid *root = get_task_pid(task, PIDTYPE_TGID);

	if (root)
		tree = tree_of(root, task, privileged ? MAX_TREES : MAX_TREES / 2);
	put_pid(root);
	return tree;
}

static s32 tree_id(const struct bump_scope *tree)
{
	struct task_struct *task;
	s32 id = 0;

	rcu_read_lock();
	task = pid_task(tree->pid, PIDTYPE_TGID);
	if (task && !process_is_dead(task))
		id = pid_vnr(tree->pid);
	rcu_read_unlock();
	return id;
}

static bool tree_has(const struct bump_scope *tree, struct task_struct *task)
{
	return is_member(tree, task);
}

/*
 * The filter can be called for a child at any point of its creation.  At first the child
 * is a copy of its parent's task_struct: its pid leads to the parent, and real_parent is
 * not valid.  The result is then a guess, true, which the first hit corrects.  As soon as
 * its own pid leads to it, real_parent is valid, and is enough until the fork probe runs.
 */
static bool tree_wants(const struct bump_scope *tree, const struct mm_struct *mm,
		       struct task_struct *task)
{
	struct pid *pid = READ_ONCE(task->thread_pid);

	if (is_member(tree, task))
		return true;
	if (pid && pid_task(pid, PIDTYPE_PID) != task)
		return true;
	return is_member(tree, rcu_dereference(task->real_parent));
}

const struct bump_scope_ops bump_tree_ops = {
	.feature = SPEED_BUMP_FEATURE_SCOPE_TREE,
	.name = "tree",
	.id_name = "pid",
	.names_task = true,
	.needs = BUMP_SCOPE_PROCESSES,
	.get = tree_get,
	.drop = tree_drop,
	.id = tree_id,
	.has = tree_has,
	.wants = tree_wants,
};
