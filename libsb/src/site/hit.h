/* SPDX-License-Identifier: MIT */
/* What libsb itself needs of a hit beside the hot path. */
#ifndef SB_SITE_HIT_H
#define SB_SITE_HIT_H

#include "site/hot_path.h"

#define load(object)	     site_load(object)
#define load_acquire(object) site_load_acquire(object)
#define store(object, with)  site_store(object, with)

/* A delay that is due: of every @every th hit, from @start_ns to @end_ns. */
struct site_order {
	uint64_t delay_ns;
	bool at_end; /* the delay is a part of the call's duration */
	uint64_t start_ns, end_ns; /* CLOCK_MONOTONIC; 0: no limit */
	uint32_t every;
};

/* Until the table's count of changes is not @changes any more a hit is no more than a count. */
void sb_site_be_quiet(struct sb_site *site, uint64_t changes)
	__attribute__((visibility("hidden")));

/* What was counted in a slot so far, by all lines together. */
static inline void site_counted(const struct site_slot *slot, struct plan_account *account)
{
	account->calls = account->delivered_ns = 0;
	for (int i = 0; i < SITE_STRIPES; i++) {
		account->calls += load(&slot->counters[i].hits);
		account->delivered_ns += load(&slot->counters[i].measured_ns);
	}
}

/* Delay it, if it is its turn. As sb_site_hit_rest(). */
enum site_outcome sb_site_delay(struct sb_site *site, struct site_counters *counters,
				uint64_t entry, uint64_t hit,
				const struct site_order *order)
	__attribute__((visibility("hidden"), noinline));

/* As sb_site_hit_rest(), of a function that a plan rules or whose calls are its units. */
enum site_outcome sb_plan_hit(struct sb_site *site, struct site_counters *counters,
			      uint64_t entry, uint64_t hit)
	__attribute__((visibility("hidden")));

/*
 * In ticks, with their hooks, what all delays took that others waited for, and what those of
 * this thread took besides, modulo 2^64. By as much as the sum of both grows in a call of this
 * thread, the call took longer for delays: those inside it, and those of other threads, of
 * which each may well have been waited for. (Where a thread does something else meanwhile, as
 * in a read of a file, that is too much, by at most the part of all time that goes into
 * delays; else delays that are parts of durations would feed on each other without end.)
 */
extern _Atomic uint64_t sb_site_held __attribute__((visibility("hidden")));
extern _Thread_local uint64_t sb_site_apart
	__attribute__((visibility("hidden"), tls_model("initial-exec")));

static inline uint64_t site_delayed(void)
{
	return load(&sb_site_held) + sb_site_apart;
}

/* Whether it is on, and its delay a part of the duration. */
bool sb_site_is_at_end(const struct sb_site *site) __attribute__((visibility("hidden")));
/* Delay it from @entry on by @delay; the rest as in sb_site_end(). */
bool sb_site_deliver(struct sb_site *site, uint64_t entry, uint64_t delay,
		     uint64_t overhead, bool patient)
	__attribute__((visibility("hidden")));

#endif
