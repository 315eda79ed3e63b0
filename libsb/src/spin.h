/* SPDX-License-Identifier: MIT */
/*
 * The clock of the delays for hot paths of this library: like the public sb_spin_*(), but
 * inlined, and without the check whether it is calibrated.
 */
#ifndef SB_SPIN_H
#define SB_SPIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "libsb.h"

enum sb_clock_kind {
	SB_CLOCK_GETTIME,
	SB_CLOCK_TSC,
	SB_CLOCK_CNTVCT,
};

/*
 * Factors are fixed-point numbers with this many binary places. A product has 128 bits,
 * so that no difference of ticks overflows.
 */
#define SB_CLOCK_SHIFT 48

struct sb_clock {
	enum sb_clock_kind kind;
	uint64_t ns_per_tick; /* fixed point */
	uint64_t ticks_per_ns; /* fixed point */
	uint64_t exit_ticks; /* from a deadline to the return of a spin, on average */
	uint64_t poll_ticks; /* this close to the deadline only the counter is read */
	uint64_t gap_ticks; /* two readings further apart were interrupted */
	uint64_t long_ticks; /* longer delays use the kernel's CPU time */
	uint64_t anchor_ticks; /* how long an anchor is valid */
	uint64_t overhead_ns;
	/*
	 * CLOCK_MONOTONIC minus the nanoseconds of the counter, and when to update it:
	 * NTP adjusts CLOCK_MONOTONIC but not the counter.
	 */
	_Atomic uint64_t anchor;
	_Atomic uint64_t anchor_due;
	atomic_bool ready;
};

extern struct sb_clock sb_clock __attribute__((visibility("hidden")));

/* Calibrate, unless that was done already. */
void sb_clock_prepare(void);
/* The clock for a clocksource as the kernel names it. */
enum sb_clock_kind sb_clock_for(const char *clocksource);
/* Read CLOCK_MONOTONIC beside the counter for sb_clock_monotonic(). */
void sb_clock_set_anchor(void);

static inline uint64_t sb_clock_gettime(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000U + (uint64_t)ts.tv_nsec;
}

/* CPU time of this thread, ns; 0: the kernel does not report it. */
static inline uint64_t sb_clock_thread_cpu(void)
{
	struct timespec ts;

	if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts))
		return 0;
	return (uint64_t)ts.tv_sec * 1000000000U + (uint64_t)ts.tv_nsec;
}

/* Read the counter without ordering. For loops that end at a value of it. */
static inline uint64_t sb_clock_poll(void)
{
#if defined(__x86_64__)
	if (__builtin_expect(sb_clock.kind == SB_CLOCK_TSC, 1))
		return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	if (__builtin_expect(sb_clock.kind == SB_CLOCK_CNTVCT, 1)) {
		uint64_t ticks;

		__asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
		return ticks;
	}
#endif
	return sb_clock_gettime();
}

/*
 * Read the counter after everything before is done. Without that order a delay begins
 * while earlier loads are in progress, and overlaps with them: after a cache miss of 130
 * ns, a delay of 100 ns cost 35 ns instead of 100 on a Xeon (130 with the order). lfence
 * and rdtsc take 14.5 ns there, rdtscp 13.9, rdtsc alone 8.4; rdtscp has no advantage
 * that would justify a CPU feature check.
 */
static inline uint64_t sb_clock_stamp(void)
{
#if defined(__x86_64__)
	__builtin_ia32_lfence();
#elif defined(__aarch64__)
	__asm__ volatile("isb" ::: "memory");
#endif
	return sb_clock_poll();
}

/* @value times @factor, and @more of a unit (in 1 / 2^SB_CLOCK_SHIFT). */
static inline uint64_t sb_clock_scale(uint64_t value, uint64_t factor, uint64_t more)
{
	unsigned __int128 product = (unsigned __int128)value * factor + more;

	if (__builtin_expect((uint64_t)(product >> (64 + SB_CLOCK_SHIFT)) != 0, 0))
		return UINT64_MAX;
	return (uint64_t)(product >> SB_CLOCK_SHIFT);
}

/* The nearest nanosecond. */
static inline uint64_t sb_clock_to_ns(uint64_t ticks)
{
	return sb_clock_scale(ticks, sb_clock.ns_per_tick,
			      UINT64_C(1) << (SB_CLOCK_SHIFT - 1));
}

/* Rounded up: a delay is never shorter than requested. */
static inline uint64_t sb_clock_to_ticks(uint64_t ns)
{
	return sb_clock_scale(ns, sb_clock.ticks_per_ns,
			      (UINT64_C(1) << SB_CLOCK_SHIFT) - 1);
}

static inline void sb_clock_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield" ::: "memory");
#endif
}

/*
 * Whether the counter was set back between two readings, as by a suspend, a migration to
 * another machine or CRIU. Adjacent readings may be out of order.
 */
static inline bool sb_clock_is_back(uint64_t before, uint64_t now)
{
	return (int64_t)(before - now) > (int64_t)sb_clock.gap_ticks;
}

/*
 * Spin until the counter reaches @deadline; returns the last reading. Readings are
 * compared by their difference, so a deadline may be up to 2^63 ticks away, and one in
 * the past is recognised.
 */
static inline uint64_t sb_clock_spin(uint64_t deadline)
{
	uint64_t last = sb_clock_poll(), now = last;

	/*
	 * A pause instruction frees the core for its sibling and saves power, but takes
	 * between 13 and 60 ns: it is not used near the deadline.
	 */
	while ((int64_t)(deadline - now) > (int64_t)sb_clock.poll_ticks) {
		sb_clock_relax();
		now = sb_clock_poll();
		if (__builtin_expect(sb_clock_is_back(last, now), 0))
			deadline -= last - now;
		last = now;
	}
	while ((int64_t)(deadline - now) > 0)
		now = sb_clock_poll();
	return now;
}

/*
 * The same for CPU time: @deadline moves by each stretch in which the thread had no CPU,
 * and @away is their sum. A stretch is a jump of more than @gap between two readings of
 * the counter, the first of which was @entry.
 */
static inline uint64_t sb_clock_spin_past(uint64_t entry, uint64_t deadline, uint64_t gap,
					  uint64_t *away)
{
	uint64_t last = sb_clock_poll(), now = last;

	if (__builtin_expect(sb_clock_is_back(entry, now), 0)) {
		deadline += now - entry;
		*away += now - entry;
	}
	while ((int64_t)(deadline - now) > 0) {
		if ((int64_t)(deadline - now) > (int64_t)sb_clock.poll_ticks)
			sb_clock_relax();
		now = sb_clock_poll();
		/* A counter that was set back jumps too. */
		if (__builtin_expect(now - last > gap, 0)) {
			deadline += now - last;
			*away += now - last;
		}
		last = now;
	}
	return now;
}

/*
 * Spin for CPU time from @entry to @deadline, as the kernel accounts for it: preemption
 * is excluded, interrupts are included. Returns the last reading, and in @away the time
 * since @entry that was not CPU time.
 */
uint64_t sb_clock_spin_cpu(uint64_t entry, uint64_t deadline, uint64_t *away)
	__attribute__((visibility("hidden")));

/* CLOCK_MONOTONIC at a recent reading, without a system call. Async-signal-safe. */
static inline uint64_t sb_clock_monotonic(uint64_t ticks)
{
	uint64_t left;

	if (sb_clock.kind == SB_CLOCK_GETTIME)
		return ticks;
	left = atomic_load_explicit(&sb_clock.anchor_due, memory_order_relaxed) - ticks;
	/* An update is due, or the counter was set back since. */
	if (left - 1 >= sb_clock.anchor_ticks + sb_clock.gap_ticks)
		sb_clock_set_anchor();
	return sb_clock_to_ns(ticks) +
	       atomic_load_explicit(&sb_clock.anchor, memory_order_relaxed);
}

#endif
