/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Calls that are delayed when they return.
 */
#ifndef BUMP_CALL_H
#define BUMP_CALL_H

#include <linux/hashtable.h>
#include <linux/ktime.h>
#include <linux/ptrace.h>
#include <linux/rculist.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/types.h>
#include <linux/uprobes.h>

#include "durations.h"
#include "session.h"
#include "stats.h"
#include "target.h"

/**
 * struct bump_ends - of a target that catches the ends of its calls
 * @group:	targets with the same group are one where their calls are nested; 0 until the
 *		target is made: a group of its own
 * @timed_ns:	what the breakpoints add to each measured duration
 * @cost_ns:	what they add to each call
 * @net_ns:	what of @cost_ns is a part of the delay that was asked for
 * @over_ns:	what a delay adds to a call beyond its own length
 * @durations:	of the calls, if they are recorded; else NULL, and each call is delayed
 */
struct bump_ends {
	u64 group;
	u64 timed_ns;
	u64 cost_ns;
	u64 net_ns;
	u64 over_ns;
	struct bump_durations *durations;
};

/**
 * struct bump_frame - a call under way
 * @sp:		the stack pointer at its entry
 * @start_ns:	of the call, CLOCK_MONOTONIC
 * @delayed_ns:	of the task, at the entry
 * @covered_ns:	time in nested calls of the same group
 * @id:		of the target; 0: the call has returned
 * @group:	of the target
 */
struct bump_frame {
	unsigned long sp;
	u64 start_ns;
	u64 delayed_ns;
	u64 covered_ns;
	u64 id;
	u64 group;
};

/**
 * struct bump_calls - the calls of a task that have not returned
 * @node:	in the table of tasks; written under its lock, read under RCU
 * @task:	the task
 * @delayed_ns:	its delays since this was made, and the cost of breakpoints at the ends of
 *		calls: neither is a part of a duration
 * @image:	number of the program that the task has executed
 * @settled_sp:	nothing up to this stack pointer is under way; 0: unknown
 * @top:	behind the innermost frame
 * @end:	behind the last frame for which there is room
 * @rcu:	for freeing
 * @frames:	the innermost last
 */
struct bump_calls {
	struct hlist_node node;
	const struct task_struct *task;
	u64 delayed_ns;
	u64 image;
	unsigned long settled_sp;
	struct bump_frame *top;
	struct bump_frame *end;
	struct rcu_head rcu;
	struct bump_frame frames[];
};

/**
 * struct bump_return - the return of a function
 * @calls:	those of the task
 * @sp:		the stack pointer at its entry
 * @now:	CLOCK_MONOTONIC
 * @delayed_ns:	how long the task has been delayed until then: what targets delay this
 *		return for is not a part of it
 * @cost_ns:	of its breakpoints
 */
struct bump_return {
	struct bump_calls *calls;
	unsigned long sp;
	u64 now;
	u64 delayed_ns;
	u64 cost_ns;
};

/* Targets that catch the ends of their calls. */
extern unsigned int bump_calls_users;

/* Written under a lock of call.c, read under RCU. */
extern DECLARE_HASHTABLE(bump_tasks, 10);

struct bump_ends *bump_ends_alloc(bool records);
void bump_ends_free(struct bump_ends *ends);

void bump_calls_end(const struct task_struct *task);
void bump_calls_delayed(u64 ns);

/* The parts of the functions below that few calls need. */
void bump_calls_tidy(struct bump_calls *calls, struct pt_regs *regs);
bool bump_call_push(struct bump_target *target, struct pt_regs *regs,
		    struct bump_calls **calls);
void bump_calls_drop_below(struct bump_calls *calls, unsigned long sp);
struct bump_frame *bump_calls_seek(struct bump_calls *calls, unsigned long sp, u64 id);
void bump_calls_cover(struct bump_calls *calls, const struct bump_frame *ended, u64 ns);

/* Is there a call of any task to which the length of a delay matters? */
static inline bool bump_calls_exist(void)
{
	return READ_ONCE(bump_calls_users);
}

/* Under RCU, of which switching preemption off is the cheapest kind. */
static inline struct bump_calls *bump_calls_find(const struct task_struct *task)
{
	struct bump_calls *calls;

	hash_for_each_possible_rcu(bump_tasks, calls, node, (unsigned long)task)
		if (calls->task == task)
			return calls;
	return NULL;
}

/* For handlers of targets that catch ends: as long as one runs, only the task frees them. */
static inline struct bump_calls *bump_calls_of_current(void)
{
	struct bump_calls *calls;

	rcu_read_lock_sched();
	calls = bump_calls_find(current);
	rcu_read_unlock_sched();
	return calls;
}

static inline bool bump_calls_are_none(const struct bump_calls *calls)
{
	return calls->top == calls->frames;
}

/* If there are any. */
static inline struct bump_frame *bump_calls_innermost(struct bump_calls *calls)
{
	return calls->top - 1;
}

/* No frame is to be dropped when a function is entered. */
static inline bool bump_calls_are_tidy(struct bump_calls *calls, unsigned long sp)
{
	return calls->image == current->self_exec_id &&
	       (bump_calls_are_none(calls) ||
		bump_calls_innermost(calls)->sp > max(sp, calls->settled_sp));
}

/*
 * A function is entered; before bump_call_begin() of its targets, also of those that need no
 * frame: a frame of an earlier call must not be taken for one of this.  Returns the calls
 * of the task, or NULL.
 */
static inline struct bump_calls *bump_calls_enter(struct pt_regs *regs)
{
	struct bump_calls *calls = bump_calls_of_current();

	if (calls && unlikely(!bump_calls_are_tidy(calls, user_stack_pointer(regs))))
		bump_calls_tidy(calls, regs);
	return calls;
}

/*
 * Functions of 32-bit programs may pop their arguments when they return, so the stack
 * pointer at the entry is not known then: their calls are missed.
 */
static inline bool bump_is_32bit(struct pt_regs *regs)
{
#ifdef CONFIG_X86
	return !user_64bit_mode(regs);
#else
	return false;
#endif
}

static inline void bump_call_record(struct bump_calls *calls, const struct bump_target *target,
				    struct pt_regs *regs)
{
	struct bump_frame *frame = calls->top++;

	calls->settled_sp = 0;
	/* An initializer would be cleared first. */
	frame->sp = user_stack_pointer(regs);
	frame->delayed_ns = calls->delayed_ns;
	frame->covered_ns = 0;
	frame->id = target->id;
	frame->group = target->ends->group;
	frame->start_ns = ktime_get_ns();
}

/**
 * bump_call_begin() - a function is entered
 * @target:	catches the ends of its calls
 * @regs:	of the task
 * @calls:	those of the task, or NULL; another one if there was no room
 *
 * Return: whether the return is needed.
 */
static inline bool bump_call_begin(struct bump_target *target, struct pt_regs *regs,
				   struct bump_calls **calls)
{
	if (!READ_ONCE(target->session->enabled) ||
	    !READ_ONCE(target->policy.settings.enabled)) {
		bump_stats_count_skipped(&target->stats, BUMP_SKIPPED_DISABLED);
		return false;
	}
	if (unlikely(!*calls || (*calls)->top == (*calls)->end || bump_is_32bit(regs) ||
		     current->utask->depth >= MAX_URETPROBE_DEPTH))
		return bump_call_push(target, regs, calls);
	bump_call_record(*calls, target, regs);
	return true;
}

/* The stack pointer at the entry of the function that has just returned. */
static inline unsigned long bump_entry_sp(struct pt_regs *regs)
{
	return user_stack_pointer(regs) - (IS_ENABLED(CONFIG_X86) ? 8 : 0);
}

/**
 * bump_return_begin() - a function returns
 * @ret:	[out] for the other functions
 * @regs:	of the task
 *
 * Return: whether any call is known; also of tasks outside of all scopes the kernel catches
 * returns.
 */
static inline bool bump_return_begin(struct bump_return *ret, struct pt_regs *regs)
{
	struct bump_calls *calls = bump_calls_of_current();

	if (!calls || bump_calls_are_none(calls))
		return false;
	*ret = (struct bump_return) {
		.calls = calls,
		.sp = bump_entry_sp(regs),
		.now = ktime_get_ns(),
		.delayed_ns = calls->delayed_ns,
	};
	if (unlikely(bump_calls_innermost(calls)->sp < ret->sp))
		bump_calls_drop_below(calls, ret->sp);
	calls->settled_sp = ret->sp;
	return true;
}

static inline u64 bump_minus(u64 a, u64 b)
{
	return (s64)(a - b) > 0 ? a - b : 0;
}

/**
 * bump_return_take() - the call of a target is over
 * @ret:	its return
 * @target:	the target
 * @whole_ns:	[out] how long the call lasted, with the delays in it
 * @lasted_ns:	[out] how long it lasted, without them and what counts for nested calls
 *
 * Return: false if no such call is known.
 */
static inline bool bump_return_take(struct bump_return *ret, struct bump_target *target,
				    u64 *whole_ns, u64 *lasted_ns)
{
	const struct bump_ends *ends = target->ends;
	struct bump_calls *calls = ret->calls;
	struct bump_frame *frame = bump_calls_innermost(calls);
	u64 ns;

	/* Nearly always it is the innermost one. */
	if (unlikely(bump_calls_are_none(calls) || frame->sp != ret->sp ||
		     frame->id != target->id)) {
		frame = bump_calls_seek(calls, ret->sp, target->id);
		if (!frame)
			return false;
	}
	ns = bump_minus(ret->now - frame->start_ns, ends->timed_ns);
	*whole_ns = ns;
	ns = bump_minus(ns, ret->delayed_ns - frame->delayed_ns);
	if (frame != calls->frames)
		bump_calls_cover(calls, frame, ns);
	*lasted_ns = bump_minus(ns, frame->covered_ns);
	ret->cost_ns = max(ret->cost_ns, ends->cost_ns);

	frame->id = 0;
	while (!bump_calls_are_none(calls) && !bump_calls_innermost(calls)->id)
		calls->top--;
	return true;
}

/* The breakpoints of the call do not belong to the calls around it either. */
static inline void bump_return_end(struct bump_return *ret)
{
	ret->calls->delayed_ns += ret->cost_ns;
}

#endif /* BUMP_CALL_H */
