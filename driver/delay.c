// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The delay, in the context of the task that hit the breakpoint: a spin, or a
 * sleep if the target requests that.
 *
 * A spinning task can be preempted, and reschedules on every turn where the preemption
 * model requires that: on no preemption model does a delay hold up the scheduler or RCU,
 * RCU Tasks included.
 *
 * A delay ends early when the task is to exit, when it is to stop (SIGSTOP, Ctrl-Z, a
 * debugger that attaches, either freezer of cgroups, the freezer of suspend), and when
 * its target is removed, as unloading does with all of them.  Each of these requires the
 * task to leave the handler before the delay is over.  Most fatal signals are SIGKILL by
 * the time they are pending here; signals that dump core, and signals of a traced task,
 * are not.  A signal with a handler waits until the delay is over: a delay can't be
 * resumed after the handler.
 */
#include <linux/freezer.h>
#include <linux/hrtimer.h>
#include <linux/ktime.h>
#include <linux/processor.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/jobctl.h>
#include <linux/sched/signal.h>
#include <linux/signal.h>
#include <linux/wait.h>

#include "budget.h"
#include "call.h"
#include "compat.h"
#include "delay.h"
#include "plan.h"
#include "policy.h"
#include "session.h"
#include "stats.h"
#include "target.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

/* Interval of the checks for signals in a sleep that only a fatal signal ends. */
#define NAP_NS	(10 * NSEC_PER_MSEC)

/* siglock is not held: the result can be out of date. */
static bool is_to_stop(void)
{
	return READ_ONCE(current->jobctl) & (JOBCTL_PENDING_MASK | JOBCTL_TRAP_FREEZE) ||
	       freezing(current);
}

/* Is a signal pending that ends or stops the task?  siglock is not held here, either. */
static bool has_default_signal(void)
{
	const struct k_sigaction *actions = rcu_dereference_raw(current->sighand)->action;
	sigset_t pending;
	int sig;

	sigorsets(&pending, &current->pending.signal, &current->signal->shared_pending.signal);
	sigandnsets(&pending, &pending, &current->blocked);
	for (sig = 1; sig <= _NSIG; sig++)
		if (sigismember(&pending, sig) && !siginmask(sig, SIG_KERNEL_IGNORE_MASK) &&
		    READ_ONCE(actions[sig - 1].sa.sa_handler) == SIG_DFL)
			return true;
	return false;
}

/* Not inlined, to keep the turns of a spin short. */
static noinline bool signal_cuts(void)
{
	return fatal_signal_pending(current) || is_to_stop() || has_default_signal();
}

static bool delay_is_cut(const struct bump_target *target)
{
	if (READ_ONCE(target->state) == BUMP_TARGET_DYING)
		return true;
	return signal_pending(current) && signal_cuts();
}

/* A point in time, and how long the task has waited for a CPU until then. */
struct moment {
	u64 ns;
	u64 waited_ns;
};

/* The task was not preempted between the two reads. */
static struct moment moment_now(void)
{
	struct moment now;

	do {
		now.waited_ns = task_wait_ns(current);
		now.ns = ktime_get_ns();
	} while (unlikely(now.waited_ns != task_wait_ns(current)));
	return now;
}

/*
 * Spins for @ns from @start on.  Returns true if the spin was cut short.
 *
 * @ns is CPU time: a turn in which the task waited for a CPU is not counted.  The waiting
 * time itself is not subtracted, because the scheduler's clock runs at a different rate.
 */
static __always_inline bool spin(const struct bump_target *target, u64 start, u64 ns,
				 u64 *measured)
{
	struct moment now, last = { .ns = start, .waited_ns = task_wait_ns(current) };
	bool cut = false;

	*measured = 0;
	for (;;) {
		now = moment_now();
		if (likely(now.waited_ns == last.waited_ns))
			*measured += now.ns - last.ns;
		if (*measured >= ns)
			break;
		cut = delay_is_cut(target);
		if (cut)
			break;
		last = now;
		spin_rest();
		cpu_relax();
	}
	return cut;
}

/*
 * The same as a sleep.  A signal wakes an interruptible sleep, and while it waits for its
 * handler, it would prevent any further sleep: from then on only a fatal signal wakes the
 * task, and other signals are checked for every NAP_NS.
 */
static bool nap(struct bump_target *target, u64 start, u64 ns, u64 *measured)
{
	bool cut = false, signalled;
	DEFINE_WAIT(wait);
	ktime_t until;

	for (;;) {
		*measured = ktime_get_ns() - start;
		if (*measured >= ns)
			break;
		signalled = signal_pending(current);
		prepare_to_wait(&target->sleepers, &wait,
				signalled ? TASK_KILLABLE : TASK_INTERRUPTIBLE);
		cut = delay_is_cut(target);
		if (cut)
			break;
		until = ns_to_ktime(ns - *measured);
		if (signalled)
			until = min_t(ktime_t, until, NAP_NS);
		schedule_hrtimeout_range(&until, 0, HRTIMER_MODE_REL);
	}
	finish_wait(&target->sleepers, &wait);
	return cut;
}

/*
 * Delays for @ns from @start on, in addition to @over_ns, a part of the delay that has been
 * delivered already.  Returns the length of both.
 */
static __always_inline u64 deliver(struct bump_target *target, u64 start, u64 ns, u64 over_ns,
				   bool sleep)
{
	u64 measured;
	bool cut;

	cut = sleep ? nap(target, start, ns, &measured) : spin(target, start, ns, &measured);
	if (unlikely(bump_calls_exist()))
		bump_calls_delayed(ktime_get_ns() - start);
	measured += over_ns;
	bump_stats_count_delayed(&target->stats, ns + over_ns, measured, cut);
	trace_delay(target->id, ns + over_ns, measured, cut);
	return measured;
}

/* Not inlined, to keep the stack frame of a hit small. */
static noinline u64 delay(struct bump_target *target, u64 start, u64 ns, bool sleep)
{
	return deliver(target, start, ns, 0, sleep);
}

/* Applies @settings to a hit.  Returns the length of the delay, ns. */
static __always_inline u64 obey(struct bump_target *target,
				const struct bump_settings *settings,
				struct bump_budget *budget)
{
	u64 now = bump_settings_clock(settings);
	enum bump_sum verdict = bump_settings_decide(settings, &target->turns, now);
	u64 delivered_ns = 0;

	if (verdict != BUMP_DELAYED)
		bump_stats_count_skipped(&target->stats, verdict);
	else if (!settings->delay_ns)
		bump_stats_count_delayed(&target->stats, 0, 0, false);
	else if (bump_budget_take(budget, target->session, settings->delay_ns))
		delivered_ns = delay(target, now, settings->delay_ns, settings->sleep);
	else
		bump_stats_count_skipped(&target->stats, BUMP_SKIPPED_BUDGET);
	return delivered_ns;
}

/* Has its own copy of the settings, so that the copy of other hits stays in registers. */
static noinline void planned_hit(struct bump_target *target, struct bump_budget *budget)
{
	struct bump_settings settings;
	u64 number;

	bump_policy_read(&target->policy, &settings);
	number = bump_plan_begin(target, &settings);
	bump_plan_end(target, number, obey(target, &settings, budget));
}

/*
 * Handles a hit in the scope.  @budget is the hit's, or NULL if no other target shares
 * it.
 */
void bump_delay_hit(struct bump_target *target, struct bump_budget *budget)
{
	struct bump_settings settings;

	if (!READ_ONCE(target->session->enabled)) {
		bump_stats_count_skipped(&target->stats, BUMP_SKIPPED_DISABLED);
		return;
	}

	bump_policy_read(&target->policy, &settings);
	if (unlikely(settings.planned))
		planned_hit(target, budget);
	else
		obey(target, &settings, budget);
}

/*
 * Delays a call that has returned for @ns, in addition to @over_ns, what its breakpoints and
 * the delay itself cost.
 */
void bump_delay_rest(struct bump_target *target, u64 ns, u64 over_ns, bool sleep)
{
	deliver(target, ktime_get_ns(), ns, over_ns, sleep);
}

/* Wakes the tasks that sleep for @target, so that they check its state. */
void bump_delay_wake(struct bump_target *target)
{
	wake_up_all(&target->sleepers);
}
