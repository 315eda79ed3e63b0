// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The table of targets.
 *
 * Life of a target: it is put into the table as ADDING, so that the same target is not
 * added twice, gets its breakpoint, and becomes LIVE when the whole batch has its
 * breakpoints.  From then on readers see it.  A removal claims it under the lock, takes
 * it out of the table, and removes its breakpoint without a lock; a work item drops it
 * when no handler can run any more.
 *
 * All of these steps change one table under one lock: hence the length.
 */
#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/dcache.h>
#include <linux/hashtable.h>
#include <linux/jhash.h>
#include <linux/ktime.h>
#include <linux/mutex.h>
#include <linux/printk.h>
#include <linux/refcount.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "call.h"
#include "delay.h"
#include "main.h"
#include "scope.h"
#include "session.h"
#include "target.h"
#include "user.h"

/*
 * Protects what is in the table: @by_id against other writers (readers go under RCU),
 * @by_key, the counts, each session's list, and the step from one state to the next.
 * Never held while uprobes or user memory are accessed.  Only locks of allocations and
 * innermost locks are taken inside.
 */
static DEFINE_MUTEX(table_lock);
static DEFINE_XARRAY_FLAGS(by_id, XA_FLAGS_ACCOUNT);
static DEFINE_HASHTABLE(by_key, 12);
static u64 last_id;
static u32 target_count;

/* Targets of privileged sessions that are not freed yet: in the table, and dying. */
static atomic_t allocated = ATOMIC_INIT(0);

/*
 * Protects @unused and @unused_put, the number of times that targets were put there; the
 * targets of the first @unused_freed times have been dropped.  Innermost.
 */
static DEFINE_SPINLOCK(unused_lock);
static LIST_HEAD(unused);
static u64 unused_put;
static u64 unused_freed;
static DECLARE_WAIT_QUEUE_HEAD(unused_wait);
static struct workqueue_struct *unused_wq;

/*
 * In a task that is being killed the kernel neither puts breakpoints into the memory of
 * other processes nor removes them: it logs "leaking uprobe" and they stay.  So work
 * items do it, which cannot be killed.  Each can block for as long as the kernel does;
 * unprivileged sessions have queues of their own, so that they can fill up only those.
 */
static struct workqueue_struct *register_wq;
static struct workqueue_struct *retire_wq;
static struct workqueue_struct *users_register_wq;
static struct workqueue_struct *users_retire_wq;

/* Protects the lists of retiring targets, and their counts.  Innermost. */
static DEFINE_SPINLOCK(retire_lock);
static DECLARE_WAIT_QUEUE_HEAD(retire_wait);

/* The inode of the file's mappings, which is the one below an overlay. */
struct inode *bump_target_inode(const struct path *path)
{
	return d_real_inode(path->dentry);
}

static u32 target_hash(const struct bump_target *t)
{
	u32 h;

	h = jhash(&t->inode, sizeof(t->inode), 0);
	h = jhash(&t->offset, sizeof(t->offset), h);
	h = jhash(&t->scope, sizeof(t->scope), h);
	return jhash(&t->session, sizeof(t->session), h);
}

static bool target_is_same(const struct bump_target *a, const struct bump_target *b)
{
	return a->inode == b->inode && a->offset == b->offset &&
	       a->scope == b->scope && a->session == b->session;
}

static void target_unreserve(struct bump_session *session)
{
	if (session->user)
		bump_user_uncharge(session->user);
	else
		atomic_dec(&allocated);
}

/* The statistics are used by bump_target_count_skipped() until here. */
static void target_free_rcu(struct rcu_head *rcu)
{
	struct bump_target *t = container_of(rcu, struct bump_target, rcu);

	bump_stats_destroy(&t->stats);
	kfree(t);
}

static void target_free(struct kref *ref)
{
	struct bump_target *t = container_of(ref, struct bump_target, ref);

	bump_probe_destroy(&t->probe);
	bump_ends_free(t->ends);
	target_unreserve(t->session);
	bump_scope_put(t->scope);
	bump_session_put(t->session);
	path_put(&t->path);
	kfree(t->label);
	call_rcu(&t->rcu, target_free_rcu);
}

void bump_target_put(struct bump_target *target)
{
	kref_put(&target->ref, target_free);
}

static void free_unused(struct work_struct *work)
{
	struct bump_target *t, *next;
	LIST_HEAD(list);
	u64 put;

	spin_lock(&unused_lock);
	list_splice_init(&unused, &list);
	put = unused_put;
	spin_unlock(&unused_lock);
	if (list_empty(&list))
		return;

	bump_probe_sync();
	list_for_each_entry_safe(t, next, &list, node) {
		bump_target_put(t);
		cond_resched();
	}
	WRITE_ONCE(unused_freed, put);
	wake_up_all(&unused_wait);
}

static DECLARE_WORK(unused_work, free_unused);

/* Removes the breakpoints of the targets in a session's list of retiring targets. */
void bump_target_retire_work(struct work_struct *work)
{
	struct bump_session *session = container_of(work, struct bump_session, retire);
	struct bump_target *t;
	LIST_HEAD(list);
	u64 put;

	spin_lock(&retire_lock);
	list_splice_init(&session->retiring, &list);
	put = session->retire_put;
	spin_unlock(&retire_lock);

	list_for_each_entry(t, &list, node) {
		bump_probe_unregister(&t->probe);
		cond_resched();
	}

	spin_lock(&unused_lock);
	list_splice_init(&list, &unused);
	unused_put++;
	spin_unlock(&unused_lock);
	queue_work(unused_wq, &unused_work);

	WRITE_ONCE(session->retire_done, put);
	wake_up_all(&retire_wait);
	bump_session_put(session);
}

enum wait {
	WAIT_FOR_CERTAIN,
	WAIT_IF_NOT_KILLED,
};

/*
 * Ends the delays of targets that are out of the table, then removes their breakpoints.
 * Another work item waits for their handlers, which can take as long as the delay of
 * another session's target.
 */
static void targets_retire(struct list_head *list, enum wait wait)
{
	struct bump_session *session;
	struct bump_target *t;
	u64 put;

	if (list_empty(list))
		return;

	/* Any of their owners will do. */
	session = list_first_entry(list, struct bump_target, node)->session;
	list_for_each_entry(t, list, node) {
		WRITE_ONCE(t->state, BUMP_TARGET_DYING);
		bump_delay_wake(t);
	}

	bump_session_get(session);	/* for the wait below */
	spin_lock(&retire_lock);
	list_splice_tail_init(list, &session->retiring);
	put = ++session->retire_put;
	spin_unlock(&retire_lock);
	bump_session_get(session);	/* the work item's */
	if (!queue_work(session->user ? users_retire_wq : retire_wq, &session->retire))
		bump_session_put(session);

	/* Idle: tens of thousands of breakpoints take longer than the hung-task limit. */
	if (wait == WAIT_FOR_CERTAIN)
		wait_event_idle(retire_wait, READ_ONCE(session->retire_done) >= put);
	else
		(void)wait_event_killable(retire_wait, READ_ONCE(session->retire_done) >= put);
	bump_session_put(session);
}

/*
 * Waits for as long as the work takes when no task is in a long delay, so that the file
 * system of a removed target can be unmounted next.  There is no guarantee: the end of a
 * long delay is not waited for.
 */
static void targets_settle(void)
{
	u64 put = READ_ONCE(unused_put);

	(void)wait_event_killable_timeout(unused_wait, READ_ONCE(unused_freed) >= put, HZ / 10);
}

/*
 * Puts breakpoints into processes that have moved into a scope.  A target that is just
 * being added or removed is not found here: publishing it queues this work again.
 */
static void renew_moved(struct work_struct *work)
{
	struct bump_target *t, *next;
	LIST_HEAD(list);
	int moves, err;
	u64 after = 0;

	while ((t = bump_target_next(after))) {
		after = t->id;
		moves = atomic_read(&t->scope->moves);
		if (t->moves == moves) {
			bump_target_put(t);
			continue;
		}
		t->moves = moves;
		err = bump_probe_renew(&t->probe);
		if (err)
			bump_stats_count_event(&t->stats, BUMP_UNARMED);
		if (err)
			pr_warn_ratelimited("speed_bump: no breakpoint in tasks that moved: %d\n",
					    err);
		list_add(&t->renewed, &list);
		cond_resched();
	}
	if (list_empty(&list))
		return;

	bump_probe_sync();
	list_for_each_entry_safe(t, next, &list, renewed)
		bump_target_put(t);
}

static DECLARE_WORK(renew_work, renew_moved);

/* A task has moved into a scope.  Any context. */
void bump_targets_renew(void)
{
	queue_work(unused_wq, &renew_work);
}

static void table_unlink(struct bump_target *t)
{
	lockdep_assert_held(&table_lock);

	xa_erase(&by_id, t->id);
	hash_del(&t->key);
	list_del(&t->node);
	t->session->count--;
	target_count--;
	if (t->session->user)
		bump_user_leave(t->session->user, t->inode);
}

static int table_insert(struct bump_target *t)
{
	struct bump_target *other;
	u32 hash = target_hash(t);
	int err = 0;

	mutex_lock(&table_lock);
	hash_for_each_possible(by_key, other, key, hash) {
		if (target_is_same(t, other)) {
			err = -EEXIST;
			goto out;
		}
	}
	if (target_count >= READ_ONCE(bump_max_targets)) {
		err = -ENOSPC;
		goto out;
	}
	if (t->session->user) {
		err = bump_user_enter(t->session->user, t->inode);
		if (err)
			goto out;
	}
	t->id = last_id + 1;
	err = xa_insert(&by_id, t->id, t, GFP_KERNEL_ACCOUNT);
	if (err) {
		if (t->session->user)
			bump_user_leave(t->session->user, t->inode);
		goto out;
	}
	WRITE_ONCE(last_id, t->id);
	hash_add(by_key, &t->key, hash);
	list_add_tail(&t->node, &t->session->targets);
	t->session->count++;
	target_count++;
out:
	mutex_unlock(&table_lock);
	return err;
}

/*
 * Targets that are dying do not count against the limit of the table, but there can't be
 * more of them than that limit.  Those of unprivileged users are charged to their owner,
 * so that other users do not wait.
 */
static int target_try_reserve(struct bump_session *session)
{
	unsigned int max = READ_ONCE(bump_max_targets);

	if (session->user)
		return bump_user_charge(session->user);
	if (atomic_inc_return(&allocated) <= 2 * (u64)max)
		return 0;
	atomic_dec(&allocated);
	return -EAGAIN;
}

static int target_reserve(struct bump_session *session)
{
	u64 put, freed;
	int err;

	for (;;) {
		freed = READ_ONCE(unused_freed);
		put = READ_ONCE(unused_put);
		err = target_try_reserve(session);
		if (err != -EAGAIN)
			return err;
		if (freed == put)
			return -ENOSPC;
		err = wait_event_killable(unused_wait, READ_ONCE(unused_freed) != freed);
		if (err)
			return -EINTR;
	}
}

static struct bump_target *target_alloc(struct bump_session *session,
					const struct bump_target_config *config)
{
	struct bump_target *t;
	int err;

	err = target_reserve(session);
	if (err)
		return ERR_PTR(err);
	t = kzalloc(sizeof(*t), GFP_KERNEL_ACCOUNT);
	if (!t) {
		err = -ENOMEM;
		goto err_alloc;
	}
	err = bump_stats_init(&t->stats);
	if (err)
		goto err_stats;
	t->scope = bump_scope_get(session, &config->scope);
	if (IS_ERR(t->scope)) {
		err = PTR_ERR(t->scope);
		goto err_scope;
	}

	kref_init(&t->ref);
	t->state = BUMP_TARGET_ADDING;
	bump_policy_init(&t->policy, &config->settings);
	init_waitqueue_head(&t->sleepers);
	t->path = *config->path;
	path_get(&t->path);
	t->inode = bump_target_inode(&t->path);
	t->offset = config->offset;
	t->ref_ctr_offset = config->ref_ctr_offset;
	t->moves = atomic_read(&t->scope->moves);
	bump_session_get(session);
	t->session = session;
	return t;

err_scope:
	bump_stats_destroy(&t->stats);
err_stats:
	kfree(t);
err_alloc:
	target_unreserve(session);
	return ERR_PTR(err);
}

/**
 * bump_target_add() - make a target that is not seen yet, without a breakpoint
 * @session:	its owner
 * @config:	its configuration
 *
 * Return: the target, to be passed to bump_target_register() and then to
 * bump_target_publish(), or to bump_target_discard(); or an ERR_PTR.
 */
struct bump_target *bump_target_add(struct bump_session *session,
				    const struct bump_target_config *config)
{
	struct bump_target *t;
	int err;

	t = target_alloc(session, config);
	if (IS_ERR(t))
		return t;

	err = table_insert(t);
	if (err) {
		bump_target_put(t);
		return ERR_PTR(err);
	}
	t->label = config->label;
	t->label_len = config->label_len;
	t->ends = config->ends;
	if (t->ends) {
		t->ends->stays = !session->opener && !bump_scope_has_moves(t->scope);
		if (!t->ends->group)
			t->ends->group = t->id;
	}
	return t;
}

enum registration_state {
	REGISTRATION_RUNS,
	REGISTRATION_DONE,
	REGISTRATION_ABANDONED,	/* by a task that was killed */
};

/*
 * A batch whose breakpoints a work item inserts, while a task waits or no longer waits.
 */
struct registration {
	struct work_struct work;
	refcount_t ref;
	atomic_t state;
	struct completion done;
	struct bump_target **targets;
	u32 count;
	bool best_effort;
};

static void registration_put(struct registration *r)
{
	if (refcount_dec_and_test(&r->ref))
		kfree(r);
}

static bool registration_is_abandoned(const struct registration *r)
{
	return atomic_read(&r->state) == REGISTRATION_ABANDONED;
}

static void register_all(struct registration *r)
{
	LIST_HEAD(refused);
	struct bump_target *t;
	u32 i;
	int err;

	for (i = 0; i < r->count; i++) {
		t = r->targets[i];
		if (IS_ERR(t))
			continue;
		cond_resched();
		err = registration_is_abandoned(r) ? -EINTR :
		      bump_probe_register(&t->probe, t->inode, t->offset, t->ref_ctr_offset);
		if (!err)
			continue;
		r->targets[i] = ERR_PTR(err);
		mutex_lock(&table_lock);
		table_unlink(t);
		mutex_unlock(&table_lock);
		list_add_tail(&t->node, &refused);
		if (!r->best_effort)
			break;
	}
	targets_retire(&refused, WAIT_FOR_CERTAIN);
}

static void registration_work(struct work_struct *work)
{
	struct registration *r = container_of(work, struct registration, work);

	register_all(r);
	if (atomic_cmpxchg(&r->state, REGISTRATION_RUNS, REGISTRATION_DONE) ==
	    REGISTRATION_ABANDONED) {
		bump_target_discard(r->targets, r->count);
		kvfree(r->targets);
	}
	complete(&r->done);
	registration_put(r);
}

static struct bump_session *batch_session(struct bump_target **targets, u32 count)
{
	u32 i;

	for (i = 0; i < count; i++)
		if (!IS_ERR(targets[i]))
			return targets[i]->session;
	return NULL;
}

/**
 * bump_target_register() - put the breakpoints of a batch into every process in its scopes
 * @targets:	what bump_target_add() returned, in memory of kvmalloc(); ERR_PTRs are
 *		skipped, and one replaces a target whose breakpoint can't be inserted
 * @count:	how many
 * @best_effort: go on after the first that fails
 *
 * Return: 0, -ENOMEM, or -EINTR if the caller was killed: then the targets and the memory
 * of @targets no longer belong to the caller.
 */
int bump_target_register(struct bump_target **targets, u32 count, bool best_effort)
{
	struct bump_session *session = batch_session(targets, count);
	struct registration *r;

	if (!session)
		return 0;
	r = kzalloc(sizeof(*r), GFP_KERNEL_ACCOUNT);
	if (!r)
		return -ENOMEM;
	INIT_WORK(&r->work, registration_work);
	refcount_set(&r->ref, 2);
	atomic_set(&r->state, REGISTRATION_RUNS);
	init_completion(&r->done);
	r->targets = targets;
	r->count = count;
	r->best_effort = best_effort;

	queue_work(session->user ? users_register_wq : register_wq, &r->work);
	if (wait_for_completion_killable(&r->done) &&
	    atomic_cmpxchg(&r->state, REGISTRATION_RUNS, REGISTRATION_ABANDONED) ==
	    REGISTRATION_RUNS) {
		registration_put(r);
		return -EINTR;
	}
	registration_put(r);
	return 0;
}

/**
 * bump_target_publish() - make a batch LIVE
 * @targets:	the result of bump_target_register(); ERR_PTRs are skipped
 * @count:	how many
 */
void bump_target_publish(struct bump_target **targets, u32 count)
{
	bool moves = false;
	u64 now;
	u32 i;

	mutex_lock(&table_lock);
	now = ktime_get_ns();
	for (i = 0; i < count; i++) {
		if (IS_ERR(targets[i]))
			continue;
		bump_policy_start(&targets[i]->policy, now);
		/* pairs with target_get() and with hit() */
		smp_store_release(&targets[i]->state, BUMP_TARGET_LIVE);
		moves |= bump_scope_has_moves(targets[i]->scope);
	}
	mutex_unlock(&table_lock);
	if (moves)
		bump_targets_renew();
}

/**
 * bump_target_discard() - undo bump_target_add()
 * @targets:	its results; ERR_PTRs are skipped
 * @count:	how many
 */
void bump_target_discard(struct bump_target **targets, u32 count)
{
	LIST_HEAD(list);
	u32 i;

	mutex_lock(&table_lock);
	for (i = 0; i < count; i++) {
		if (IS_ERR(targets[i]))
			continue;
		table_unlink(targets[i]);
		list_add_tail(&targets[i]->node, &list);
	}
	mutex_unlock(&table_lock);
	targets_retire(&list, WAIT_IF_NOT_KILLED);
}

/* May @session change it? */
bool bump_target_is_mutable(const struct bump_target *target,
			    const struct bump_session *session)
{
	return target->session == session ||
	       (target->session == &bump_persistent && !session->opener);
}

/*
 * Is the delay in @update, if there is one, of the target's kind?  A delay that is a part of
 * the duration needs another breakpoint, and a target that records durations has no delay.
 */
bool bump_target_takes(const struct bump_target *target,
		       const struct speed_bump_update *update)
{
	bool has_part = target->ends && !target->ends->durations;

	if (!(update->mask & SPEED_BUMP_UPDATE_DELAY))
		return true;
	return !!update->delay_ppm == has_part && !(target->ends && update->delay_ns);
}

/* May @session see it? */
bool bump_target_is_visible(const struct bump_target *target,
			    const struct bump_session *session)
{
	return target->session == session || !session->opener;
}

static struct bump_target *target_claim(const struct bump_session *session, u64 id)
{
	struct bump_target *t;

	lockdep_assert_held(&table_lock);

	t = xa_load(&by_id, id);
	if (!t || t->state != BUMP_TARGET_LIVE || t->claimed ||
	    !bump_target_is_mutable(t, session))
		return NULL;
	t->claimed = true;
	return t;
}

/**
 * bump_target_remove() - remove a batch of targets
 * @session:	the session of the caller
 * @ids:	the targets
 * @errors:	[out] an errno for each
 * @count:	how many
 * @best_effort: remove what can be removed
 * @failed:	[out] as in struct speed_bump_batch
 *
 * No breakpoint is left on return, unless the caller was killed: then a moment later.
 */
int bump_target_remove(struct bump_session *session, const u64 *ids, u32 *errors, u32 count,
		       bool best_effort, u32 *failed)
{
	u32 i, missing = 0, first = count;
	struct bump_target *t;
	LIST_HEAD(list);

	mutex_lock(&table_lock);
	for (i = 0; i < count; i++) {
		errors[i] = target_claim(session, ids[i]) ? 0 : ENOENT;
		if (!errors[i])
			continue;
		missing++;
		if (!best_effort) {
			first = i;
			break;
		}
	}
	for (i = 0; i < first; i++) {
		if (errors[i])
			continue;
		t = xa_load(&by_id, ids[i]);
		if (first < count) {
			t->claimed = false;
			continue;
		}
		table_unlink(t);
		list_add_tail(&t->node, &list);
	}
	mutex_unlock(&table_lock);

	*failed = best_effort ? missing : first;
	targets_retire(&list, WAIT_IF_NOT_KILLED);
	targets_settle();
	return first < count ? -ENOENT : 0;
}

/**
 * bump_target_remove_if() - remove some of a session's targets
 * @session:	the owner
 * @wanted:	which; called under the table's lock
 * @arg:	for @wanted
 *
 * Return: how many.  No breakpoint of theirs is left.
 */
u32 bump_target_remove_if(struct bump_session *session,
			  bool (*wanted)(const struct bump_target *target, const void *arg),
			  const void *arg)
{
	struct bump_target *t, *next;
	LIST_HEAD(list);
	u32 count = 0;

	mutex_lock(&table_lock);
	list_for_each_entry_safe(t, next, &session->targets, node) {
		/* A target that is not LIVE belongs to another thread's ADD. */
		if (t->state != BUMP_TARGET_LIVE || !wanted(t, arg))
			continue;
		table_unlink(t);
		list_add_tail(&t->node, &list);
		count++;
	}
	mutex_unlock(&table_lock);
	/*
	 * When the exit of a process closes the session, the breakpoints go before the
	 * process.
	 */
	targets_retire(&list, current->flags & PF_EXITING ? WAIT_FOR_CERTAIN :
							    WAIT_IF_NOT_KILLED);
	targets_settle();
	return count;
}

static bool any(const struct bump_target *target, const void *arg)
{
	return true;
}

/* Removes all targets of a session.  No breakpoint is left on return. */
void bump_target_remove_all(struct bump_session *session)
{
	bump_target_remove_if(session, any, NULL);
}

static bool target_get(struct bump_target *t)
{
	/* pairs with bump_target_publish() */
	return smp_load_acquire(&t->state) == BUMP_TARGET_LIVE &&
	       kref_get_unless_zero(&t->ref);
}

/**
 * bump_target_find() - the target with an id
 * @id:		any number
 *
 * Return: the target with a reference, to be dropped with bump_target_put(), or NULL.
 */
struct bump_target *bump_target_find(u64 id)
{
	struct bump_target *t;

	if (id > ULONG_MAX)
		return NULL;
	rcu_read_lock();
	t = xa_load(&by_id, id);
	if (t && !target_get(t))
		t = NULL;
	rcu_read_unlock();
	return t;
}

/**
 * bump_target_next() - the target with the next greater id
 * @after:	any number; 0 for the first target
 *
 * Return: the target with a reference, to be dropped with bump_target_put(), or NULL.
 */
struct bump_target *bump_target_next(u64 after)
{
	unsigned long id = after;
	struct bump_target *t;

	if (after >= ULONG_MAX)
		return NULL;
	rcu_read_lock();
	do
		t = xa_find_after(&by_id, &id, ULONG_MAX, XA_PRESENT);
	while (t && !target_get(t));
	rcu_read_unlock();
	return t;
}

/**
 * bump_target_count_skipped() - count a hit of a target that may have been removed
 * @id:		of the target
 * @why:	it is not delayed
 *
 * In any context but that of an interrupt.
 */
void bump_target_count_skipped(u64 id, enum bump_sum why)
{
	struct bump_target *t;

	rcu_read_lock();
	t = xa_load(&by_id, id);
	/* pairs with bump_target_publish() */
	if (t && smp_load_acquire(&t->state) == BUMP_TARGET_LIVE)
		bump_stats_count_skipped(&t->stats, why);
	rcu_read_unlock();
}

/* The greatest id so far, 0 if there was no target. */
u64 bump_target_last_id(void)
{
	return READ_ONCE(last_id);
}

u32 bump_target_count(void)
{
	return READ_ONCE(target_count);
}

u32 bump_target_count_of(const struct bump_session *session)
{
	return READ_ONCE(session->count);
}

static struct workqueue_struct **const queues[] = {
	&register_wq, &users_register_wq, &retire_wq, &users_retire_wq, &unused_wq,
};

/* A queue whose work queues work on another comes first. */
static void destroy_queues(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(queues); i++)
		if (*queues[i])
			destroy_workqueue(*queues[i]);
}

int bump_targets_init(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(queues); i++) {
		*queues[i] = alloc_workqueue("speed_bump", WQ_UNBOUND, 0);
		if (!*queues[i]) {
			destroy_queues();
			return -ENOMEM;
		}
	}
	return 0;
}

/*
 * No target is added any more; batches that were abandoned in the middle of an add may
 * remain.
 */
void bump_targets_exit(void)
{
	flush_workqueue(register_wq);
	flush_workqueue(users_register_wq);
	bump_target_remove_all(&bump_persistent);
	flush_workqueue(unused_wq);
	synchronize_rcu();	/* callers of bump_targets_renew() */
	destroy_queues();
	xa_destroy(&by_id);
}
