/* SPDX-License-Identifier: MIT */
/* Parts of a call that libsb needs outside the hot path. */
#ifndef SB_SITE_HIT_H
#define SB_SITE_HIT_H

#include "site/hot_path.h"

#define load(object)	     site_load(object)
#define load_acquire(object) site_load_acquire(object)
#define store(object, with)  site_store(object, with)

/* Whether a delay is due: every @every th call, from @start_ns to @end_ns. */
struct site_order {
	uint64_t delay_ns;
	bool at_end; /* the delay is a part of the call's duration */
	uint64_t start_ns, end_ns; /* CLOCK_MONOTONIC; 0: no limit */
	uint32_t every;
};

/* While the table's count of changes is @changes, a call is only counted. */
void sb_site_be_quiet(struct sb_site *site, uint64_t changes)
	__attribute__((visibility("hidden")));

/* The counts of a slot so far, all lines together. */
static inline void site_counted(const struct site_slot *slot, struct plan_account *account)
{
	account->calls = account->delivered_ns = 0;
	for (int i = 0; i < SITE_STRIPES; i++) {
		account->calls += load(&slot->counters[i].calls);
		account->delivered_ns += load(&slot->counters[i].delivered_ns);
	}
}

/* Delay it if it is due. As sb_site_hit_rest(). */
enum site_outcome sb_site_delay(struct sb_site *site, struct site_counters *counters,
				uint64_t entry, uint64_t hit,
				const struct site_order *order)
	__attribute__((visibility("hidden"), noinline));

/*
 * Like sb_site_hit_rest(), for a function that a plan controls or whose calls are units.
 */
enum site_outcome sb_plan_hit(struct sb_site *site, struct site_counters *counters,
			      uint64_t entry, uint64_t hit)
	__attribute__((visibility("hidden")));

/*
 * In ticks, including hooks: the time of all delays that other threads waited for, and
 * that of other delays of this thread, modulo 2^64. By the growth of both sums during a
 * call of this thread, the call took longer because of delays: those inside it, and those
 * of other threads, each of which it may have waited for. (If the thread did something
 * else meanwhile, such as reading a file, that is too much, by at most the part of all
 * time that is delay; otherwise delays that are parts of durations would amplify each
 * other without limit.)
 */
extern _Atomic uint64_t sb_site_held __attribute__((visibility("hidden")));
extern _Thread_local uint64_t sb_site_apart
	__attribute__((visibility("hidden"), tls_model("initial-exec")));

static inline uint64_t site_delayed(void)
{
	return load(&sb_site_held) + sb_site_apart;
}

/* Whether it is on and its delay is a part of the duration. */
bool sb_site_is_at_end(const struct sb_site *site) __attribute__((visibility("hidden")));
/* Delay it by @delay from @entry on; otherwise as sb_site_end(). */
bool sb_site_deliver(struct sb_site *site, uint64_t entry, uint64_t delay,
		     uint64_t overhead, bool patient)
	__attribute__((visibility("hidden")));

#endif
