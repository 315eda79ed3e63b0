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
 * @stays:	a task that was in the scope when it made a call is in it when it returns
 * @durations:	of the calls, if they are recorded; else NULL, and each call is delayed
 */
struct bump_ends {
	u64 group;
	u64 timed_ns;
	u64 cost_ns;
	u64 net_ns;
	u64 over_ns;
	bool stays;
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

void bump_calls_tidy(struct bump_calls *calls, struct pt_regs *regs);
struct bump_calls *bump_call_begin(struct bump_target *target, struct pt_regs *regs,
				   struct bump_calls *calls);
void bump_calls_drop_below(struct bump_calls *calls, unsigned long sp);
struct bump_frame *bump_calls_seek(struct bump_calls *calls, unsigned long sp, u64 id);

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

/* Can the return be caught of a function that the running task enters? */
static inline bool bump_return_is_caught(struct pt_regs *regs)
{
	return !bump_is_32bit(regs) && current->utask->depth < MAX_URETPROBE_DEPTH;
}

/* Is there nothing to do at the entry of a function but to record a call? */
static inline bool bump_call_is_plain(struct bump_calls *calls, struct pt_regs *regs)
{
	return calls && bump_calls_are_tidy(calls, user_stack_pointer(regs)) &&
	       calls->top != calls->end && bump_return_is_caught(regs);
}

static inline bool bump_call_is_wanted(const struct bump_target *target)
{
	return READ_ONCE(target->session->enabled) &&
	       READ_ONCE(target->policy.settings.enabled);
}

/* There is room. */
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

/* The stack pointer at the entry of the function that has just returned. */
static inline unsigned long bump_entry_sp(struct pt_regs *regs)
{
	return user_stack_pointer(regs) - (IS_ENABLED(CONFIG_X86) ? 8 : 0);
}

/* A function returns at @now, at whose entry the stack pointer was @sp. */
static inline void bump_return_begin(struct bump_return *ret, struct bump_calls *calls,
				     unsigned long sp, u64 now)
{
	*ret = (struct bump_return) {
		.calls = calls,
		.sp = sp,
		.now = now,
		.delayed_ns = calls->delayed_ns,
	};
	calls->settled_sp = sp;
}

/* The time of @ended is no duration of the call of the same group in which it is nested. */
static inline void bump_calls_cover(struct bump_calls *calls, struct bump_frame *ended,
				    s64 ns)
{
	struct bump_frame *frame = ended;

	while (frame-- > calls->frames) {
		if (!frame->id || frame->group != ended->group)
			continue;
		frame->covered_ns += max_t(s64, ns, 0);
		break;
	}
}

/**
 * struct bump_lasted - how long a call lasted
 * @whole_ns:	with the delays in it
 * @own_ns:	without them and what counts for nested calls
 */
struct bump_lasted {
	u64 whole_ns;
	u64 own_ns;
};

/**
 * bump_return_take() - a call is over
 * @ret:	its return
 * @frame:	its frame
 * @ends:	of its target
 */
static inline struct bump_lasted bump_return_take(struct bump_return *ret,
						  struct bump_frame *frame,
						  const struct bump_ends *ends)
{
	struct bump_calls *calls = ret->calls;
	s64 whole_ns = ret->now - frame->start_ns - ends->timed_ns;
	s64 ns = whole_ns - (ret->delayed_ns - frame->delayed_ns);
	struct bump_lasted lasted = {
		.whole_ns = max_t(s64, whole_ns, 0),
		.own_ns = max_t(s64, ns - frame->covered_ns, 0),
	};

	ret->cost_ns = max(ret->cost_ns, ends->cost_ns);
	bump_calls_cover(calls, frame, ns);
	if (frame == bump_calls_innermost(calls)) {
		while (frame > calls->frames && !frame[-1].id)
			frame--;
		calls->top = frame;
	} else {
		frame->id = 0;
	}
	return lasted;
}

/* The breakpoints of the call do not belong to the calls around it either. */
static inline void bump_return_end(struct bump_return *ret)
{
	ret->calls->delayed_ns += ret->cost_ns;
}

#endif /* BUMP_CALL_H */
