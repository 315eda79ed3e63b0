// SPDX-License-Identifier: MIT
/* Calls whose delay is a part of their duration: they are timed from begin to end. */
#include <stdlib.h>

#include "free.h"
#include "site/hit.h"
#include "spin.h"
#include "thread_end.h"

/*
 * By the number of a target: the time of this thread in calls of the target that have
 * ended, without time that is also in an enclosing call. So a call for which the value
 * was b at its begin and e at its end spent e - b of its time in nested calls of its
 * target.
 */
static _Thread_local struct {
	uint64_t *ticks;
	uint32_t count;
} covered __attribute__((tls_model("initial-exec")));

static void at_thread_end(void *ticks)
{
	(void)ticks;
	sb_free(covered.ticks);
	covered.ticks = NULL;
	covered.count = 0;
}

/* The entry of @target; NULL: no memory. */
static __attribute__((noinline, cold)) uint64_t *make_room(uint32_t target)
{
	uint32_t count = target + 16;
	uint64_t *ticks = realloc(covered.ticks, count * sizeof(*ticks));

	if (!ticks)
		return NULL;
	memset(ticks + covered.count, 0, (count - covered.count) * sizeof(*ticks));
	covered.ticks = ticks;
	covered.count = count;
	if (!set_thread_end(ticks)) {
		at_thread_end(ticks);
		return NULL;
	}
	return &ticks[target];
}

static uint64_t *covered_of(uint32_t target)
{
	return target < covered.count ? &covered.ticks[target] : make_room(target);
}

void sb_site_table_set_call_overhead(struct sb_site_table *table, uint64_t ns,
				     uint64_t timed_ns)
{
	store(&table->call_overhead_ticks, sb_clock_to_ticks(ns));
	store(&table->call_timed_ticks, sb_clock_to_ticks(timed_ns));
}

void sb_site_begin(struct sb_site *site, struct site_call *call)
{
	const uint64_t *ticks = covered_of(site->target_number);

	call->covered = ticks ? *ticks : 0;
	call->delayed = site_delayed();
	call->begin = sb_clock_poll();
}

/* A counter that was set back meanwhile gives a duration of 0. */
static uint64_t minus(uint64_t a, uint64_t b)
{
	return (int64_t)(a - b) > 0 ? a - b : 0;
}

bool sb_site_end(struct sb_site *site, const struct site_call *call, bool patient)
{
	uint64_t now = sb_clock_stamp();
	uint64_t *ticks = covered_of(site->target_number);
	uint64_t lasted, part;
	unsigned __int128 delay;

	lasted = minus(now - call->begin, site_delayed() - call->delayed);
	lasted = minus(lasted, load(&site->table->call_timed_ticks));
	part = lasted;
	if (ticks) {
		part = minus(lasted, *ticks - call->covered);
		*ticks = call->covered + lasted;
	}
	/*
	 * The policy may have been switched off, or changed to a time, since the call
	 * began.
	 */
	if (!sb_site_is_at_end(site))
		return false;
	delay = (unsigned __int128)sb_clock_to_ns(part) * load(&site->ppm) / 1000000;
	return sb_site_deliver(site, now,
			       delay < SB_MAX_DELAY_NS ? (uint64_t)delay : SB_MAX_DELAY_NS,
			       load(&site->table->call_overhead_ticks), patient);
}
