/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Calls that are delayed when they return.
 */
#ifndef BUMP_CALL_H
#define BUMP_CALL_H

#include <linux/compiler.h>
#include <linux/types.h>

struct bump_calls;
struct bump_durations;
struct bump_target;
struct pt_regs;
struct task_struct;

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

struct bump_ends *bump_ends_alloc(bool records);
void bump_ends_free(struct bump_ends *ends);

void bump_calls_end(const struct task_struct *task);
void bump_calls_delayed(u64 ns);

bool bump_call_begin(struct bump_target *target, struct pt_regs *regs);

bool bump_return_begin(struct bump_return *ret, struct pt_regs *regs);
bool bump_return_take(struct bump_return *ret, struct bump_target *target, u64 *lasted_ns);
void bump_return_end(struct bump_return *ret);

/* Is there a call of any task to which the length of a delay matters? */
static inline bool bump_calls_exist(void)
{
	return READ_ONCE(bump_calls_users);
}

#endif /* BUMP_CALL_H */
