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

/* Protects the table of tasks.  Innermost. */
static DEFINE_RAW_SPINLOCK(tasks_lock);
DEFINE_HASHTABLE(bump_tasks, 10);

/* Serialises changes of bump_calls_users.  Outside of tasks_lock. */
static DEFINE_MUTEX(users_mutex);
unsigned int bump_calls_users;

/* --- the table of tasks --------------------------------------------------- */

/* Replaces @old, which is full, or NULL, by calls with more room. */
static struct bump_calls *calls_grow(struct bump_calls *old)
{
	size_t count = old ? old->top - old->frames : 0;
	size_t room = old ? min_t(size_t, 3 * count, MAX_FRAMES) : MIN_FRAMES;
	struct bump_calls *calls;

	calls = kzalloc(struct_size(calls, frames, room), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!calls)
		return NULL;
	if (old)
		memcpy(calls, old, struct_size(old, frames, count));
	calls->task = current;
	calls->top = calls->frames + count;
	calls->end = calls->frames + room;

	raw_spin_lock(&tasks_lock);
	if (old)
		hlist_replace_rcu(&old->node, &calls->node);
	else
		hash_add_rcu(bump_tasks, &calls->node, (unsigned long)current);
	raw_spin_unlock(&tasks_lock);
	if (old)
		kfree_rcu(old, rcu);
	return calls;
}

/* --- frames --------------------------------------------------------------- */

static void drop_last(struct bump_calls *calls)
{
	u64 id = bump_calls_innermost(calls)->id;

	if (id)
		bump_target_count_skipped(id, BUMP_UNRETURNED);
	calls->top--;
}

static void drop_all(struct bump_calls *calls)
{
	while (!bump_calls_are_none(calls))
		drop_last(calls);
}

void bump_calls_drop_below(struct bump_calls *calls, unsigned long sp)
{
	while (!bump_calls_are_none(calls) && bump_calls_innermost(calls)->sp < sp)
		drop_last(calls);
}

/* Several frames have the same stack pointer after a tail call, or for several targets. */
struct bump_frame *bump_calls_seek(struct bump_calls *calls, unsigned long sp, u64 id)
{
	struct bump_frame *frame = calls->top;

	while (frame > calls->frames) {
		frame--;
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
	const char *name = NULL;

	if (!to || mmap_read_lock_killable(mm))
		return false;
	vma = find_vma(mm, to);
	if (vma && vma->vm_start == to && vma->vm_ops && vma->vm_ops->name)
		name = vma->vm_ops->name(vma);
	mmap_read_unlock(mm);
	return name && !strcmp(name, "[uprobes]");
}

/* Drops the frames that are over when a function is entered. */
void bump_calls_tidy(struct bump_calls *calls, struct pt_regs *regs)
{
	unsigned long sp = user_stack_pointer(regs), settled_sp = calls->settled_sp;

	if (unlikely(calls->image != current->self_exec_id)) {
		drop_all(calls);
		calls->image = current->self_exec_id;
	}
	calls->settled_sp = 0;
	bump_calls_drop_below(calls, settled_sp < sp ? sp : settled_sp + 1);
	if (!bump_calls_are_none(calls) && bump_calls_innermost(calls)->sp == sp &&
	    !is_tail_call(regs))
		bump_calls_drop_below(calls, sp + 1);
}

/**
 * bump_call_begin() - a function is entered
 * @target:	catches the ends of its calls
 * @regs:	of the task
 * @calls:	those of the task, which are tidy, or NULL
 *
 * Return: those of the task, with the frame of this call, if its return is needed; otherwise
 * NULL.
 */
struct bump_calls *bump_call_begin(struct bump_target *target, struct pt_regs *regs,
				   struct bump_calls *calls)
{
	enum bump_sum why = BUMP_MISSED;

	if (!bump_call_is_wanted(target)) {
		why = BUMP_SKIPPED_DISABLED;
		goto skipped;
	}
	if (!bump_return_is_caught(regs) ||
	    (calls && calls->top == calls->frames + MAX_FRAMES))
		goto skipped;
	if (!calls || calls->top == calls->end) {
		calls = calls_grow(calls);
		if (!calls)
			goto skipped;
		calls->image = current->self_exec_id;
	}
	bump_call_record(calls, target, regs);
	return calls;

skipped:
	bump_stats_count_skipped(&target->stats, why);
	return NULL;
}

/* --- tasks and targets ---------------------------------------------------- */

/* The running task was delayed for @ns, for any target. */
void bump_calls_delayed(u64 ns)
{
	struct bump_calls *calls;

	rcu_read_lock();
	calls = bump_calls_find(current);
	if (calls)
		calls->delayed_ns += ns;
	rcu_read_unlock();
}

/* The running task exits: it returns from none of its calls. */
void bump_calls_end(const struct task_struct *task)
{
	struct bump_calls *calls;
	bool is_there = false;

	if (!bump_calls_exist())
		return;
	/* In Linux 7.2, the probe of a tracepoint can be preempted, and is no reader of RCU. */
	rcu_read_lock();
	calls = bump_calls_find(task);
	if (calls) {
		raw_spin_lock(&tasks_lock);
		is_there = hash_hashed(&calls->node);
		hash_del_rcu(&calls->node);
		raw_spin_unlock(&tasks_lock);
	}
	rcu_read_unlock();
	/* Otherwise calls_unuse() frees them. */
	if (!is_there)
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
		hash_for_each_safe(bump_tasks, i, next, calls, node) {
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
