// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The calls of a task that have not returned.
 *
 * The kernel replaces the return address of a call at its entry, and calls the return
 * handler when the function returns.  It does not say to which entry the return belongs,
 * so the calls of each task are kept here as a stack of frames, and a frame is found by the
 * stack pointer at its entry:
 *
 *   entry   Frames below the stack pointer are over: their functions were left by longjmp()
 *           or the like.  A frame at the same stack pointer is that of a function which
 *           ended with a jump to this one, if the address to return to is still the
 *           kernel's; otherwise it is over as well.
 *   return  Frames below that of the function are over.  Functions that ended with a jump to
 *           another return together, the innermost first.
 *   exec    The stack is another one.
 *   exit    None of them returns.
 *
 * A fork, also vfork(), makes the child return from the calls of its parent.  The child is
 * another task and has no frames, so these returns are not counted.
 *
 * Only the task itself uses its frames, in the handlers of uprobes and on its way out, so
 * they need no lock.  A frame names its target by its id, because the target can be removed
 * before the call returns; the kernel itself keeps what it needs to undo the return address.
 */
#include <linux/err.h>
#include <linux/hashtable.h>
#include <linux/ktime.h>
#include <linux/limits.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/overflow.h>
#include <linux/ptrace.h>
#include <linux/rculist.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/uprobes.h>

#include "call.h"
#include "compat.h"
#include "durations.h"
#include "scope.h"
#include "session.h"
#include "stats.h"
#include "target.h"

/*
 * Frames of a task: more than the kernel catches returns, because each target on a function
 * has its own.
 */
#define MIN_FRAMES	7
#define MAX_FRAMES	80

/**
 * struct frame - a call under way
 * @sp:		the stack pointer at its entry
 * @ip:		the address of the function
 * @start_ns:	of the call, CLOCK_MONOTONIC
 * @delayed_ns:	of the task, at the entry
 * @covered_ns:	time in nested calls of the same group
 * @id:		of the target; 0: the call has returned
 * @group:	of the target
 */
struct frame {
	unsigned long sp;
	unsigned long ip;
	u64 start_ns;
	u64 delayed_ns;
	u64 covered_ns;
	u64 id;
	u64 group;
};

/**
 * struct bump_calls - the calls of a task
 * @node:	in the table of tasks; written under its lock, read under RCU
 * @task:	the task
 * @delayed_ns:	its delays since this was made, and the cost of breakpoints at the ends of
 *		calls: neither is a part of a duration
 * @image:	number of the program that the task has executed
 * @settled_sp:	nothing up to this stack pointer is under way; 0: unknown
 * @count:	frames in use
 * @room:	frames allocated
 * @rcu:	for freeing
 * @frames:	the innermost last
 */
struct bump_calls {
	struct hlist_node node;
	const struct task_struct *task;
	u64 delayed_ns;
	u64 image;
	unsigned long settled_sp;
	u32 count;
	u32 room;
	struct rcu_head rcu;
	struct frame frames[];
};

/* Protects the table of tasks.  Innermost. */
static DEFINE_RAW_SPINLOCK(tasks_lock);
static DEFINE_HASHTABLE(tasks, 10);

/* Serialises changes of bump_calls_users.  Outside of tasks_lock. */
static DEFINE_MUTEX(users_mutex);
unsigned int bump_calls_users;

/* --- the table of tasks --------------------------------------------------- */

/* Under RCU. */
static struct bump_calls *calls_find(const struct task_struct *task)
{
	struct bump_calls *calls;

	hash_for_each_possible_rcu(tasks, calls, node, (unsigned long)task)
		if (calls->task == task)
			return calls;
	return NULL;
}

/* For handlers of targets that catch ends: as long as one runs, only the task frees them. */
static struct bump_calls *calls_of_current(void)
{
	struct bump_calls *calls;

	rcu_read_lock();
	calls = calls_find(current);
	rcu_read_unlock();
	return calls;
}

/* Replaces @old, which is full, or NULL, by calls with more room. */
static struct bump_calls *calls_grow(struct bump_calls *old)
{
	u32 room = old ? min_t(u32, 3 * old->room, MAX_FRAMES) : MIN_FRAMES;
	struct bump_calls *calls;

	calls = kzalloc(struct_size(calls, frames, room), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!calls)
		return NULL;
	if (old)
		memcpy(calls, old, struct_size(old, frames, old->count));
	calls->task = current;
	calls->room = room;

	raw_spin_lock(&tasks_lock);
	if (old)
		hlist_replace_rcu(&old->node, &calls->node);
	else
		hash_add_rcu(tasks, &calls->node, (unsigned long)current);
	raw_spin_unlock(&tasks_lock);
	if (old)
		kfree_rcu(old, rcu);
	return calls;
}

/* --- frames --------------------------------------------------------------- */

static struct frame *innermost(struct bump_calls *calls)
{
	return calls->count ? &calls->frames[calls->count - 1] : NULL;
}

static void drop_last(struct bump_calls *calls)
{
	u64 id = innermost(calls)->id;

	if (id)
		bump_target_count_skipped(id, BUMP_UNRETURNED);
	calls->count--;
}

static void drop_all(struct bump_calls *calls)
{
	while (calls->count)
		drop_last(calls);
}

static void drop_below(struct bump_calls *calls, unsigned long sp)
{
	while (calls->count && innermost(calls)->sp < sp)
		drop_last(calls);
}

/* Several frames have the same stack pointer after a tail call, or for several targets. */
static struct frame *seek(struct bump_calls *calls, unsigned long sp, u64 id)
{
	struct frame *frame;
	u32 i = calls->count;

	while (i-- > 0) {
		frame = &calls->frames[i];
		if (frame->sp != sp)
			break;
		if (frame->id == id)
			return frame;
	}
	return NULL;
}

/* --- entry ---------------------------------------------------------------- */

/* The address to which the function that is being entered will return; 0: unknown. */
static unsigned long return_address(struct pt_regs *regs)
{
	unsigned long to = 0;
#ifdef CONFIG_X86
	void __user *at = (void __user *)user_stack_pointer(regs);

	if (copy_from_user(&to, at, user_64bit_mode(regs) ? 8 : 4))
		return 0;
#else
	to = procedure_link_pointer(regs);
#endif
	return to;
}

/*
 * Was the function entered by a jump at the end of one whose return is caught?  Then the
 * address to return to is that of the kernel's trampoline, which begins the mapping named
 * "[uprobes]".
 */
static noinline bool is_tail_call(struct pt_regs *regs)
{
	unsigned long to = return_address(regs);
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;
	bool is = false;

	if (!to || mmap_read_lock_killable(mm))
		return false;
	vma = find_vma(mm, to);
	if (vma && vma->vm_start == to && vma->vm_ops && vma->vm_ops->name)
		is = !strcmp(vma->vm_ops->name(vma), "[uprobes]");
	mmap_read_unlock(mm);
	return is;
}

/*
 * Is the innermost call, which has the stack pointer of the one that begins, over?  It is
 * not if it is the same call, for another target.
 */
static bool is_over(struct bump_calls *calls, const struct bump_target *target,
		    struct pt_regs *regs)
{
	if (innermost(calls)->ip == instruction_pointer(regs) &&
	    !seek(calls, user_stack_pointer(regs), target->id))
		return false;
	return !is_tail_call(regs);
}

/* Drops the frames that are over when a function is entered. */
static void tidy(struct bump_calls *calls, const struct bump_target *target,
		 struct pt_regs *regs)
{
	unsigned long sp = user_stack_pointer(regs), settled_sp = calls->settled_sp;

	if (unlikely(calls->image != current->self_exec_id)) {
		drop_all(calls);
		calls->image = current->self_exec_id;
	}
	calls->settled_sp = 0;
	drop_below(calls, settled_sp < sp ? sp : settled_sp + 1);
	if (calls->count && innermost(calls)->sp == sp && is_over(calls, target, regs))
		drop_below(calls, sp + 1);
}

static bool push(struct bump_target *target, struct pt_regs *regs)
{
	struct bump_calls *calls = calls_of_current();
	struct frame *frame;

	if (calls)
		tidy(calls, target, regs);
	if (current->utask->depth >= MAX_URETPROBE_DEPTH ||
	    (calls && calls->count == MAX_FRAMES))
		return false;
	if (!calls || calls->count == calls->room) {
		calls = calls_grow(calls);
		if (!calls)
			return false;
		calls->image = current->self_exec_id;
	}
	frame = &calls->frames[calls->count++];
	*frame = (struct frame) {
		.sp = user_stack_pointer(regs),
		.ip = instruction_pointer(regs),
		.delayed_ns = calls->delayed_ns,
		.id = target->id,
		.group = target->ends->group,
	};
	frame->start_ns = ktime_get_ns();
	return true;
}

/**
 * bump_call_begin() - a function is entered
 * @target:	catches the ends of its calls
 * @regs:	of the task
 *
 * Return: whether the return is needed.
 */
bool bump_call_begin(struct bump_target *target, struct pt_regs *regs)
{
	if (!READ_ONCE(target->session->enabled) ||
	    !READ_ONCE(target->policy.settings.enabled)) {
		bump_stats_count_skipped(&target->stats, BUMP_SKIPPED_DISABLED);
		return false;
	}
	if (push(target, regs))
		return true;
	bump_stats_count_skipped(&target->stats, BUMP_MISSED);
	return false;
}

/* --- return --------------------------------------------------------------- */

static u64 minus(u64 a, u64 b)
{
	return (s64)(a - b) > 0 ? a - b : 0;
}

/* The stack pointer at the entry of the function that has just returned. */
static unsigned long entry_sp(struct pt_regs *regs)
{
#ifdef CONFIG_X86
	return user_stack_pointer(regs) - (user_64bit_mode(regs) ? 8 : 4);
#else
	return user_stack_pointer(regs);
#endif
}

/**
 * bump_return_begin() - a function returns
 * @ret:	[out] for the other functions
 * @regs:	of the task
 *
 * Return: whether any call is known; also of tasks outside of all scopes the kernel catches
 * returns.
 */
bool bump_return_begin(struct bump_return *ret, struct pt_regs *regs)
{
	u64 now = ktime_get_ns();
	struct bump_calls *calls = calls_of_current();

	if (!calls || !calls->count)
		return false;
	*ret = (struct bump_return) {
		.calls = calls,
		.sp = entry_sp(regs),
		.now = now,
		.delayed_ns = calls->delayed_ns,
	};
	drop_below(calls, ret->sp);
	calls->settled_sp = ret->sp;
	return true;
}

/* The time of @ended is no duration of the call of the same group in which it is nested. */
static void cover(struct bump_calls *calls, const struct frame *ended, u64 ns)
{
	u32 i = ended - calls->frames;

	while (i-- > 0) {
		if (!calls->frames[i].id || calls->frames[i].group != ended->group)
			continue;
		calls->frames[i].covered_ns += ns;
		break;
	}
}

/**
 * bump_return_take() - the call of a target is over
 * @ret:	its return
 * @target:	the target
 * @lasted_ns:	[out] how long the call lasted, without what counts for nested calls
 *
 * Return: false if no such call is known.
 */
bool bump_return_take(struct bump_return *ret, struct bump_target *target, u64 *lasted_ns)
{
	const struct bump_ends *ends = target->ends;
	struct bump_calls *calls = ret->calls;
	struct frame *frame = seek(calls, ret->sp, target->id);
	u64 ns;

	if (!frame)
		return false;
	ns = minus(ret->now - frame->start_ns, ends->timed_ns);
	/* Delays are a part of what is recorded. */
	if (ends->durations)
		bump_durations_count(ends->durations, ns);
	ns = minus(ns, ret->delayed_ns - frame->delayed_ns);
	cover(calls, frame, ns);
	*lasted_ns = minus(ns, frame->covered_ns);
	ret->cost_ns = max(ret->cost_ns, ends->cost_ns);

	frame->id = 0;
	while (calls->count && !innermost(calls)->id)
		calls->count--;
	return true;
}

/* The breakpoints of the call do not belong to the calls around it either. */
void bump_return_end(struct bump_return *ret)
{
	ret->calls->delayed_ns += ret->cost_ns;
}

/* --- tasks and targets ---------------------------------------------------- */

/* The running task was delayed for @ns, for any target. */
void bump_calls_delayed(u64 ns)
{
	struct bump_calls *calls;

	rcu_read_lock();
	calls = calls_find(current);
	if (calls)
		calls->delayed_ns += ns;
	rcu_read_unlock();
}

/* The running task exits: it returns from none of its calls.  Preemption is off. */
void bump_calls_end(const struct task_struct *task)
{
	struct bump_calls *calls;

	if (!bump_calls_exist())
		return;
	raw_spin_lock(&tasks_lock);
	calls = calls_find(task);
	if (calls)
		hash_del_rcu(&calls->node);
	raw_spin_unlock(&tasks_lock);
	if (!calls)
		return;
	drop_all(calls);
	kfree_rcu(calls, rcu);
}

static void calls_use(void)
{
	mutex_lock(&users_mutex);
	WRITE_ONCE(bump_calls_users, bump_calls_users + 1);
	mutex_unlock(&users_mutex);
}

/* With the last target the calls of all tasks are forgotten. */
static void calls_unuse(void)
{
	struct bump_calls *calls;
	struct hlist_node *next;
	unsigned int i;

	mutex_lock(&users_mutex);
	if (bump_calls_users == 1) {
		raw_spin_lock(&tasks_lock);
		hash_for_each_safe(tasks, i, next, calls, node) {
			hash_del_rcu(&calls->node);
			kfree_rcu(calls, rcu);
		}
		raw_spin_unlock(&tasks_lock);
	}
	WRITE_ONCE(bump_calls_users, bump_calls_users - 1);
	mutex_unlock(&users_mutex);
}

/**
 * bump_ends_alloc() - for a target that will catch the ends of its calls
 * @records:	whether it records their durations
 *
 * Return: the ends, for bump_ends_free() when no handler of the target can run any more, or
 * an ERR_PTR.
 */
struct bump_ends *bump_ends_alloc(bool records)
{
	struct bump_ends *ends;
	int err;

	err = bump_scope_trace_exits();
	if (err)
		return ERR_PTR(err);
	ends = kzalloc(sizeof(*ends), GFP_KERNEL_ACCOUNT);
	if (!ends)
		return ERR_PTR(-ENOMEM);
	if (records) {
		ends->durations = bump_durations_alloc();
		if (!ends->durations) {
			kfree(ends);
			return ERR_PTR(-ENOMEM);
		}
	}
	calls_use();
	return ends;
}

void bump_ends_free(struct bump_ends *ends)
{
	if (!ends)
		return;
	calls_unuse();
	bump_durations_free(ends->durations);
	kfree(ends);
}
