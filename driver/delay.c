// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The delay, in the context of the task that hit the breakpoint: a spin, or a
 * sleep where the target asks for that.
 *
 * A spinning task may be preempted and is, where the kernel leaves that to the
 * task, asked on every turn: on no preemption model does a delay hold up the
 * scheduler or RCU, that of tasks included.
 *
 * A delay ends early when the task is to end, when it is to stop (SIGSTOP, Ctrl-Z, a
 * debugger that attaches, either freezer of cgroups, the freezer of suspend), and when
 * its target is removed, as unloading does with all of them.  Each of these wants
 * something of the task that can't be had in here and does not go together with
 * finishing on time.  Most deadly signals are SIGKILL by the time they are pending here;
 * not so those that dump core, nor those of a task that a debugger watches.  A signal
 * with a handler waits until the delay is over: there is no way back into it.
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
#include "compat.h"
#include "delay.h"
#include "plan.h"
#include "policy.h"
#include "session.h"
#include "stats.h"
#include "target.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

/* How long a sleep goes on without looking while it can't be woken by a signal. */
#define NAP_NS	(10 * NSEC_PER_MSEC)

/* The lock of the signals is not held: at worst this is old news. */
static bool is_to_stop(void)
{
	return READ_ONCE(current->jobctl) & (JOBCTL_PENDING_MASK | JOBCTL_TRAP_FREEZE) ||
	       freezing(current);
}

/* Is a signal pending that ends or stops the task?  Likewise. */
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

/* Apart from the turns of a spin, which are to be short. */
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

/* A moment of a task: when, and how long it has waited for a CPU by then. */
struct moment {
	u64 ns;
	u64 waited_ns;
};

/* Between the two parts the task was not preempted. */
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
 * Returns when @ns have been spun since @start, or true when cut short before.
 *
 * What is spun is CPU time: a turn in which the task waited for a CPU does not count.  How
 * long it waited is not taken off: the clock of the scheduler goes at a pace of its own.
 */
static bool spin(const struct bump_target *target, u64 start, u64 ns, u64 *measured)
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
 * The same without the CPU.  A signal wakes an interruptible sleep.  One that
 * waits for its handler would keep it awake: from then on only a deadly one does,
 * and the others are looked for now and then.
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

/* Apart from the rest of a hit, which is to have a small stack frame. */
static noinline u64 delay(struct bump_target *target, u64 start, u64 ns, bool sleep)
{
	u64 measured;
	bool cut;

	cut = sleep ? nap(target, start, ns, &measured) : spin(target, start, ns, &measured);
	bump_stats_count_delayed(&target->stats, ns, measured, cut);
	trace_delay(target->id, ns, measured, cut);
	return measured;
}

/* Does what @settings say.  Returns how long the delay was. */
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

/* With a copy of its own: that of other hits stays in registers. */
static noinline void planned_hit(struct bump_target *target, struct bump_budget *budget)
{
	struct bump_settings settings;
	u64 number;

	bump_policy_read(&target->policy, &settings);
	number = bump_plan_begin(target, &settings);
	bump_plan_end(target, number, obey(target, &settings, budget));
}

/* A hit inside the scope.  @budget is the hit's, or NULL where no other target shares it. */
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

/* Has tasks that sleep for @target look at its state. */
void bump_delay_wake(struct bump_target *target)
{
	wake_up_all(&target->sleepers);
}
