// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spin.h"

#ifndef SB_CLOCKSOURCE_FILE
#define SB_CLOCKSOURCE_FILE \
	"/sys/devices/system/clocksource/clocksource0/current_clocksource"
#endif

#define BASE_NS 3000000U /* duration of a calibration */
#define ROUNDS	16 /* how often it is made longer at most */
#define POLL_NS 400U
/*
 * Two readings with a pause instruction between them are closer; a context switch takes
 * longer.
 */
#define GAP_NS 3000U
/* Shorter than most preemptions, longer than most interrupts. */
#define AWAY_NS 20000U
/* Asking the kernel for the CPU time takes up to a microsecond, twice. */
#define LONG_NS 50000U
/* Without any more CPU time by the kernel's clock. */
#define MAX_IDLE_TURNS 64
#define ANCHOR_NS      1000000000U
#define MAX_TICKS      ((uint64_t)INT64_MAX)

struct sb_clock sb_clock;

/*
 * The kernel checks the counter that it uses itself: it is the same on all CPUs and
 * continues through idle and frequency changes. If it uses another clocksource, it may
 * have rejected this one.
 */
enum sb_clock_kind sb_clock_for(const char *clocksource)
{
#if defined(__x86_64__)
	if (!strcmp(clocksource, "tsc"))
		return SB_CLOCK_TSC;
#elif defined(__aarch64__)
	if (!strcmp(clocksource, "arch_sys_counter"))
		return SB_CLOCK_CNTVCT;
#else
	(void)clocksource;
#endif
	return SB_CLOCK_GETTIME;
}

static enum sb_clock_kind choose(void)
{
	char name[64] = "";
	ssize_t n;
	int fd;

	fd = open(SB_CLOCKSOURCE_FILE, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return SB_CLOCK_GETTIME;
	n = read(fd, name, sizeof(name) - 1);
	close(fd);
	if (n <= 0)
		return SB_CLOCK_GETTIME;
	name[strcspn(name, "\n")] = '\0';
	return sb_clock_for(name);
}

/* Both clocks at one moment, and the length of that moment. */
struct pair {
	uint64_t ticks, ns, width;
};

/* Of several readings the shortest: it was not interrupted. */
static struct pair read_both(unsigned int tries)
{
	struct pair best = { .width = UINT64_MAX };

	while (tries--) {
		uint64_t before = sb_clock_stamp();
		uint64_t ns = sb_clock_gettime();
		uint64_t width = sb_clock_stamp() - before;

		if (width < best.width)
			best = (struct pair){ before + width / 2, ns, width };
	}
	return best;
}

static void rest(void)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += BASE_NS;
	if (until.tv_nsec >= 1000000000) {
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
}

static uint64_t ratio(uint64_t a, uint64_t b)
{
	return (uint64_t)(((unsigned __int128)a << SB_CLOCK_SHIFT) / b);
}

static bool measure_rate(void)
{
	struct pair first = read_both(32), last;
	uint64_t ticks, ns;

	for (int round = 0; round < ROUNDS; round++) {
		rest();
		last = read_both(32);
		ticks = last.ticks - first.ticks;
		ns = last.ns - first.ns;
		/* Each end is known to half a width: 25 ppm is sufficient. */
		if ((first.width + last.width) / 2 < ticks / 40000)
			break;
	}
	/* 1 kHz to 16 GHz; otherwise it is not a valid counter. */
	if (!ticks || ticks > ns * 16 || ticks < ns / 1000000)
		return false;
	sb_clock.ns_per_tick = ratio(ns, ticks);
	sb_clock.ticks_per_ns = ratio(ticks, ns);
	return true;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

#define BATCHES 64
#define BATCH	16

static void measure_overhead(void)
{
	uint64_t took[BATCHES];

	for (int i = 0; i < BATCHES; i++) {
		uint64_t start = sb_clock_stamp();

		for (int j = 0; j < BATCH; j++)
			(void)sb_clock_stamp();
		took[i] = sb_clock_stamp() - start;
	}
	/* Interruptions only increase the time, so the minimum is the cost. */
	qsort(took, BATCHES, sizeof(took[0]), by_value);
	sb_clock.overhead_ns =
		(sb_clock_to_ns(took[BATCHES / 10]) + (BATCH + 1) / 2) / (BATCH + 1);
	if (!sb_clock.overhead_ns)
		sb_clock.overhead_ns = 1;
}

/* Spin until @deadline, or until the first gap; returns the last reading. */
static uint64_t spin_to_gap(uint64_t now, uint64_t deadline)
{
	while ((int64_t)(deadline - now) > 0) {
		uint64_t last = now;

		if ((int64_t)(deadline - now) > (int64_t)sb_clock.poll_ticks)
			sb_clock_relax();
		now = sb_clock_poll();
		/* A counter that was set back jumps too. */
		if (__builtin_expect(now - last > sb_clock.gap_ticks, 0))
			return (int64_t)(deadline - now) > 0 ? now : deadline - 1;
	}
	return now;
}

uint64_t sb_clock_spin_cpu(uint64_t entry, uint64_t deadline, uint64_t *away)
{
	uint64_t wanted = deadline - entry, gone = 0, back = 0, used = 0, lead, cpu_ns,
		 now;
	unsigned int idle_turns = 0;

	*away = 0;
	if ((int64_t)wanted < (int64_t)sb_clock.long_ticks)
		return sb_clock_spin_past(entry, deadline, sb_clock_to_ticks(AWAY_NS),
					  away);
	now = sb_clock_poll();
	if (sb_clock_is_back(entry, now)) {
		back = entry - now;
		entry = now;
		deadline -= back;
	}
	lead = now - entry;
	cpu_ns = sb_clock_thread_cpu();
	now = sb_clock_poll();
	/*
	 * If the measurement was preempted, the result is unknown. What it took counts as CPU
	 * time in part: a delay is rather too long by that than too short.
	 */
	if (now - entry - lead > sb_clock.gap_ticks)
		deadline += gone = now - entry - lead;
	if (!cpu_ns) {
		now = sb_clock_spin_past(now, deadline, sb_clock.gap_ticks, &gone);
		*away = gone - back;
		return now;
	}
	now = spin_to_gap(now, deadline);
	/* Not interrupted: the counter is exact. */
	if (!gone && (int64_t)(deadline - now) <= 0) {
		*away = -back;
		return now;
	}
	/*
	 * Whether a gap was a preemption or an interrupt, which counts as time of the thread,
	 * only the kernel can tell.
	 */
	for (;;) {
		uint64_t before = used;

		used = lead + sb_clock_to_ticks(sb_clock_thread_cpu() - cpu_ns);
		now = sb_clock_poll();
		/* The kernel's clock may be faster by some millionths. */
		if (used > now - entry)
			used = now - entry;
		idle_turns = used > before ? 0 : idle_turns + 1;
		if (used >= wanted || idle_turns > MAX_IDLE_TURNS)
			break;
		deadline = now + wanted - used;
		now = spin_to_gap(now, deadline);
		if ((int64_t)(deadline - now) <= 0) {
			used = wanted + (now - deadline);
			break;
		}
	}
	now = sb_clock_poll();
	/* If the counter was set back meanwhile, this is a large number. */
	*away = (now - entry > used ? now - entry - used : 0) - back;
	return now;
}

static __attribute__((noinline)) uint64_t delay(uint64_t ticks)
{
	uint64_t start = sb_clock_stamp(), away = 0, now;

	if (ticks <= sb_clock.exit_ticks)
		return sb_clock.exit_ticks;
	now = sb_clock_spin_cpu(start, start + ticks - sb_clock.exit_ticks, &away);
	return now - start - away + sb_clock.exit_ticks;
}

/*
 * A spin ends somewhat late: the counter is read some nanoseconds after the deadline, the
 * branch out of the loop is mispredicted, and the return takes time. This is the same for
 * every delay and is subtracted from each.
 */
static void measure_exit(void)
{
	const uint64_t ticks = sb_clock_to_ticks(250);
	uint64_t took[BATCHES];

	for (int i = 0; i < BATCHES; i++) {
		uint64_t start = sb_clock_stamp();

		for (int j = 0; j < BATCH; j++)
			delay(ticks);
		took[i] = sb_clock_stamp() - start;
	}
	qsort(took, BATCHES, sizeof(took[0]), by_value);
	if (took[BATCHES / 4] > ticks * BATCH)
		sb_clock.exit_ticks = (took[BATCHES / 4] - ticks * BATCH) / BATCH;
	/* A larger value means that the machine is never quiet. */
	if (sb_clock.exit_ticks > ticks / 2)
		sb_clock.exit_ticks = ticks / 2;
}

void sb_clock_set_anchor(void)
{
	struct pair now = read_both(3);

	atomic_store_explicit(&sb_clock.anchor, now.ns - sb_clock_to_ns(now.ticks),
			      memory_order_relaxed);
	atomic_store_explicit(&sb_clock.anchor_due, now.ticks + sb_clock.anchor_ticks,
			      memory_order_relaxed);
}

static void calibrate(void)
{
	int saved = errno;

	sb_clock.kind = choose();
	if (sb_clock.kind == SB_CLOCK_GETTIME || !measure_rate()) {
		sb_clock.kind = SB_CLOCK_GETTIME;
		sb_clock.ns_per_tick = sb_clock.ticks_per_ns = UINT64_C(1)
							       << SB_CLOCK_SHIFT;
	}
	sb_clock.poll_ticks = sb_clock_to_ticks(POLL_NS);
	sb_clock.gap_ticks = sb_clock_to_ticks(GAP_NS);
	sb_clock.long_ticks = sb_clock_to_ticks(LONG_NS);
	sb_clock.anchor_ticks = sb_clock_to_ticks(ANCHOR_NS);
	measure_overhead();
	measure_exit();
	sb_clock_set_anchor();
	atomic_store_explicit(&sb_clock.ready, true, memory_order_release);
	errno = saved;
}

void sb_clock_prepare(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (__builtin_expect(!atomic_load_explicit(&sb_clock.ready, memory_order_acquire),
			     0))
		pthread_once(&once, calibrate);
}

uint64_t sb_spin_ticks(void)
{
	sb_clock_prepare();
	return sb_clock_stamp();
}

uint64_t sb_spin_ticks_to_ns(uint64_t ticks)
{
	sb_clock_prepare();
	return sb_clock_to_ns(ticks);
}

uint64_t sb_spin_ns_to_ticks(uint64_t ns)
{
	sb_clock_prepare();
	return sb_clock_to_ticks(ns);
}

uint64_t sb_spin_delay(uint64_t ns)
{
	uint64_t ticks;

	if (!ns)
		return 0;
	sb_clock_prepare();
	ticks = sb_clock_to_ticks(ns);
	return sb_clock_to_ns(delay(ticks < MAX_TICKS ? ticks : MAX_TICKS));
}

uint64_t sb_spin_until(uint64_t deadline)
{
	sb_clock_prepare();
	return sb_clock_spin(deadline);
}

uint64_t sb_spin_clock_overhead_ns(void)
{
	sb_clock_prepare();
	return sb_clock.overhead_ns;
}

uint64_t sb_spin_min_delay_ns(void)
{
	return 2 * sb_spin_clock_overhead_ns();
}

const char *sb_spin_clock_name(void)
{
	sb_clock_prepare();
	switch (sb_clock.kind) {
	case SB_CLOCK_TSC:
		return "tsc";
	case SB_CLOCK_CNTVCT:
		return "cntvct";
	case SB_CLOCK_GETTIME:
		break;
	}
	return "clock_gettime";
}
