// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The delay: a spin in the context of the task that hit the breakpoint.
 *
 * The task may be preempted and is, where the kernel leaves that to the task,
 * asked on every turn: on no preemption model does a delay hold up the
 * scheduler or RCU.  It ends early for a fatal signal, which SIGKILL and every
 * other deadly signal is by the time it is pending here, and when its target is
 * removed, as unloading does with all of them.
 */
#include <linux/ktime.h>
#include <linux/processor.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>

#include "delay.h"
#include "session.h"
#include "stats.h"
#include "target.h"

static bool delay_is_cut(const struct sb_target *target)
{
	return fatal_signal_pending(current) ||
	       READ_ONCE(target->state) == SB_TARGET_DYING;
}

/* Returns when @ns have passed since @start, or true when cut short before. */
static bool spin(const struct sb_target *target, u64 start, u64 ns, u64 *measured)
{
	bool cut = false;

	for (;;) {
		*measured = ktime_get_ns() - start;
		if (*measured >= ns)
			break;
		cut = delay_is_cut(target);
		if (cut)
			break;
		cond_resched();
		cpu_relax();
	}
	return cut;
}

/* A hit inside the scope. */
void sb_delay_hit(struct sb_target *target)
{
	u64 ns, measured = 0;
	bool cut = false;

	if (!READ_ONCE(target->enabled) || !READ_ONCE(target->session->enabled)) {
		sb_stats_count_skipped(target->counters);
		return;
	}

	ns = READ_ONCE(target->delay_ns);
	if (ns)
		cut = spin(target, ktime_get_ns(), ns, &measured);
	sb_stats_count_delayed(target->counters, ns, measured, cut);
}
