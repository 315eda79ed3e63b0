// SPDX-License-Identifier: MIT
/*
 * Built twice: normally, and with SB_CLOCKSOURCE_FILE set to a file that does not exist,
 * so that only clock_gettime(2) is used. Times are compared with times of the same run
 * only, and the least of many is taken: noise only increases a time.
 */
#include "unit.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "spin.h"

#define DELAYS "delays"

static void *first_call(void *arg)
{
	*(uint64_t *)arg = sb_spin_ticks_to_ns(sb_spin_ns_to_ticks(1000000));
	return NULL;
}

/* The first thread calibrates, and the others wait for it. */
static void all_threads_may_be_first(void **state)
{
	pthread_t threads[8];
	uint64_t ns[8] = { 0 };

	(void)state;
	for (int i = 0; i < 8; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, first_call, &ns[i]), 0);
	for (int i = 0; i < 8; i++) {
		pthread_join(threads[i], NULL);
		assert_in_range(ns[i], 999990, 1000010);
	}
}

static void trusts_the_kernels_choice(void **state)
{
	(void)state;
	assert_int_equal(sb_clock_for("kvm-clock"), SB_CLOCK_GETTIME);
	assert_int_equal(sb_clock_for("hpet"), SB_CLOCK_GETTIME);
	assert_int_equal(sb_clock_for("hyperv_clocksource_tsc_page"), SB_CLOCK_GETTIME);
	assert_int_equal(sb_clock_for(""), SB_CLOCK_GETTIME);
#if defined(__x86_64__)
	assert_int_equal(sb_clock_for("tsc"), SB_CLOCK_TSC);
	assert_int_equal(sb_clock_for("arch_sys_counter"), SB_CLOCK_GETTIME);
#elif defined(__aarch64__)
	assert_int_equal(sb_clock_for("arch_sys_counter"), SB_CLOCK_CNTVCT);
#endif
#ifdef SB_CLOCKSOURCE_FILE
	assert_string_equal(sb_spin_clock_name(), "clock_gettime");
#else
	assert_non_null(sb_spin_clock_name());
#endif
}

static void converts_without_overflow(void **state)
{
	static const uint64_t hour = UINT64_C(3600000000000);

	(void)state;
	for (uint64_t ns = 100; ns < 1000000 * hour; ns = ns * 3 + 1) {
		uint64_t back = sb_spin_ticks_to_ns(sb_spin_ns_to_ticks(ns));
		uint64_t off = back > ns ? back - ns : ns - back;

		/* A tick may be as long as a microsecond. */
		assert_true(off <= 1000 + ns / 1000000);
		/* A delay of this many ticks is at least as long as requested. */
		assert_true(back >= ns || ns > hour);
	}
	assert_true(sb_spin_ns_to_ticks(UINT64_MAX) >=
		    sb_spin_ns_to_ticks(1000000 * hour));
	assert_true(sb_spin_ticks_to_ns(UINT64_MAX) >=
		    sb_spin_ticks_to_ns(UINT64_MAX / 2));
	assert_int_equal(sb_spin_ticks_to_ns(0), 0);
}

/* The rate against CLOCK_MONOTONIC, over another time than that of the calibration. */
static void runs_at_the_right_rate(void **state)
{
	struct timespec nap = { .tv_nsec = 20000000 };
	double best = 1;

	(void)state;
	/* An interruption between the two readings affects one difference only. */
	for (int i = 0; i < 10; i++) {
		uint64_t ns = sb_clock_gettime(), ticks = sb_spin_ticks();
		double off;

		nanosleep(&nap, NULL);
		ticks = sb_spin_ticks() - ticks;
		ns = sb_clock_gettime() - ns;
		off = fabs((double)sb_spin_ticks_to_ns(ticks) / (double)ns - 1);
		if (off < best)
			best = off;
	}
	assert_true(best < 0.001);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The measured length of a delay, divided by the requested length. */
static double delivered(uint64_t ns)
{
	enum { ROUNDS = 200 };
	int n = ns < 100000 ? (int)(100000 / ns) : 1;
	double took[ROUNDS];

	for (int i = 0; i < ROUNDS; i++) {
		uint64_t start = sb_clock_gettime();

		for (int j = 0; j < n; j++)
			sb_spin_delay(ns);
		took[i] = (double)(sb_clock_gettime() - start) / n / (double)ns;
	}
	qsort(took, ROUNDS, sizeof(took[0]), by_value);
	return took[ROUNDS / 10];
}

static bool are_delays_as_asked(void)
{
	/* The time for reading the clock and returning is part of a short delay. */
	static const struct {
		uint64_t ns;
		double least, most;
	} delays[] = {
		{ 100, 0.89, 1.11 }, { 200, 0.9, 1.25 },   { 500, 0.9, 1.25 },
		{ 1000, 0.9, 1.25 }, { 10000, 0.9, 1.25 }, { 100000, 0.9, 1.25 },
	};
	bool right = true;

	for (size_t i = 0; i < COUNT_OF(delays); i++) {
		double ratio = delivered(delays[i].ns);

		fprintf(stderr, "%u ns: %.3f times\n", (unsigned int)delays[i].ns, ratio);
		right &= ratio > delays[i].least && ratio < delays[i].most;
	}
	return right;
}

/*
 * A process measures the cost of its clock once, maybe at a bad moment: repeat in other
 * processes.
 */
static void delays_as_asked(void **state)
{
	(void)state;
	for (int i = 0; i < 10; i++) {
		int status = 0;
		pid_t pid = fork();

		assert_int_not_equal(pid, -1);
		if (!pid) {
			execl("/proc/self/exe", "test_spin", DELAYS, NULL);
			_exit(127);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (!status)
			return;
	}
	fail_msg("in no process were all delays as asked");
}

static void tells_what_it_took(void **state)
{
	(void)state;
	assert_int_equal(sb_spin_delay(0), 0);
	for (uint64_t ns = 100; ns < 1000000; ns *= 3) {
		uint64_t start = sb_clock_gettime(), told = sb_spin_delay(ns);
		uint64_t took = sb_clock_gettime() - start;

		assert_true(told >= ns - ns / 5);
		/* Measured with another clock, read before and after. */
		assert_true(told <= took + took / 100 + 200);
	}
}

/* Sleeps and wakes on this CPU thousands of times a second. */
static pid_t start_napping(int cpu)
{
	const struct timespec nap = { .tv_nsec = 200000 };
	pid_t pid = fork();
	cpu_set_t one;

	assert_int_not_equal(pid, -1);
	if (pid)
		return pid;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	/* Not longer than the test, however it ends. */
	alarm(60);
	if (sched_setaffinity(0, sizeof(one), &one))
		_exit(1);
	for (;;) {
		nanosleep(&nap, NULL);
		for (volatile int i = 0; i < 20000; i++)
			;
	}
}

/*
 * Interrupts and preemptions look the same to a thread, and only the first are time of its
 * own. If both were left out of a delay that the kernel then measures, it would be longer
 * by all interrupts: 1.10 times here.
 */
static void takes_the_cpu_time_asked_beside_busy_timers(void **state)
{
	enum { DELAY = 715000, COUNT = 100, ATTEMPTS = 10 };
	pid_t napping[2];
	double least = INFINITY;
	cpu_set_t before, one;
	int cpu = sched_getcpu();

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	for (int i = 0; i < 2; i++)
		napping[i] = start_napping(cpu);
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	for (int attempt = 0; attempt < ATTEMPTS && least > 1.03; attempt++) {
		uint64_t cpu_ns = sb_clock_thread_cpu();
		double part;

		for (int i = 0; i < COUNT; i++)
			sb_spin_delay(DELAY);
		part = (double)(sb_clock_thread_cpu() - cpu_ns) / DELAY / COUNT;
		least = part < least ? part : least;
	}
	assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
	for (int i = 0; i < 2; i++) {
		kill(napping[i], SIGKILL);
		waitpid(napping[i], NULL, 0);
	}
	if (least > 1.03 || least < 0.99)
		fail_msg("delays took %.2f times the CPU time that was asked", least);
}

/* An entry of a list that is not cached; each entry has the address of the next. */
struct chain {
	size_t next;
	char line[64 - sizeof(size_t)];
};

static struct chain *make_chain(size_t length)
{
	struct chain *chain = malloc(length * sizeof(*chain));

	assert_non_null(chain);
	for (size_t i = 0; i < length; i++)
		chain[i].next = i;
	srandom(5);
	for (size_t i = length - 1; i > 0; i--) {
		size_t j = (size_t)random() % i, swap = chain[i].next;

		chain[i].next = chain[j].next;
		chain[j].next = swap;
	}
	return chain;
}

/*
 * A delay is added to a cache miss before it. If the counter were read while the load is
 * in progress, most of the delay would overlap with the load.
 */
static void delays_do_not_overlap(void **state)
{
	/* 64 to 100 ns are measured; 8 to 35 if the reading were not ordered. */
	enum { ATTEMPTS = 20, ROUNDS = 100, STEPS = 500, LEAST = 50 };
	struct chain *chain = make_chain(1 << 20);
	double more[ROUNDS], median = 0;
	size_t at = 0;

	(void)state;
	/* Other memory traffic makes both variants slower: repeat. */
	for (int attempt = 0; attempt < ATTEMPTS && median < LEAST; attempt++) {
		for (int i = 0; i < ROUNDS; i++) {
			uint64_t start = sb_clock_gettime(), alone;

			for (int j = 0; j < STEPS; j++)
				at = chain[at].next;
			alone = sb_clock_gettime() - start;
			start = sb_clock_gettime();
			for (int j = 0; j < STEPS; j++) {
				at = chain[at].next;
				sb_spin_delay(100);
			}
			more[i] = ((double)(sb_clock_gettime() - start) - (double)alone) /
				  STEPS;
		}
		qsort(more, ROUNDS, sizeof(more[0]), by_value);
		median = more[ROUNDS / 2];
	}
	assert_true(at < 1 << 20);
	free(chain);
	if (median < LEAST)
		fail_msg("a delay of 100 ns made %.0f ns", median);
}

static void spins_until(void **state)
{
	uint64_t deadline = sb_spin_ticks() + sb_spin_ns_to_ticks(50000);
	uint64_t last = sb_spin_until(deadline);

	(void)state;
	assert_true(last >= deadline);
	assert_true(sb_spin_ticks() >= last);
	/* A deadline in the past stays in the past, also after an overflow. */
	last = sb_spin_until(deadline);
	assert_true(sb_spin_ticks_to_ns(last - deadline) < UINT64_C(1000000000));
	sb_spin_until(sb_spin_ticks() - (UINT64_C(1) << 62));
}

static void knows_its_cost(void **state)
{
	uint64_t cost = sb_spin_clock_overhead_ns(), best = UINT64_MAX;

	(void)state;
	assert_true(cost > 0);
	assert_int_equal(sb_spin_min_delay_ns(), 2 * cost);
	for (int i = 0; i < 100; i++) {
		uint64_t start = sb_clock_gettime(), took;

		for (int j = 0; j < 100; j++)
			sb_spin_ticks();
		took = (sb_clock_gettime() - start) / 100;
		if (took < best)
			best = took;
	}
	assert_true(cost <= 3 * best + 3);
	assert_true(best <= 3 * cost + 3);
}

static void follows_the_monotonic_clock(void **state)
{
	(void)state;
	for (int i = 0; i < 1000; i++) {
		uint64_t before = sb_clock_gettime(),
			 here = sb_clock_monotonic(sb_clock_stamp());
		uint64_t after = sb_clock_gettime();

		/* Within the bracket, plus the error of the rate in one second. */
		assert_in_range(here, before - 100000, after + 100000);
		if (i % 100 == 0)
			sb_clock_set_anchor();
	}
}

#define JUMP_NS UINT64_C(30000000000)

/*
 * As if the counter had been set back between two readings, the first of which is @entry.
 */
static void outlives_a_counter_that_is_set_back(void **state)
{
	static const uint64_t delays_ns[] = { 1000, 1000000, 20000000 };

	(void)state;
	for (size_t i = 0; i < COUNT_OF(delays_ns); i++) {
		uint64_t ticks = sb_spin_ns_to_ticks(delays_ns[i]), away, end;
		uint64_t begin = sb_clock_gettime();
		uint64_t entry = sb_spin_ticks() + sb_spin_ns_to_ticks(JUMP_NS);

		end = sb_clock_spin_cpu(entry, entry + ticks, &away);
		assert_true(sb_clock_gettime() - begin >= delays_ns[i]);
		assert_true(sb_clock_gettime() - begin < JUMP_NS);
		/* The counted time is the real one. */
		assert_true(sb_spin_ticks_to_ns(end - entry - away) >= delays_ns[i]);
		assert_true(sb_spin_ticks_to_ns(end - entry - away) < JUMP_NS);
	}
}

/* The time of day is looked up again if the counter was ahead. */
static void finds_the_time_after_it_was_set_back(void **state)
{
	uint64_t ahead = sb_spin_ticks() + sb_spin_ns_to_ticks(JUMP_NS);
	uint64_t begin, found;

	(void)state;
	/* Nothing is looked up with this clock. */
	if (sb_clock.kind == SB_CLOCK_GETTIME)
		return;
	/* As if it had been looked up when the counter was far ahead. */
	atomic_store(&sb_clock.anchor, atomic_load(&sb_clock.anchor) - JUMP_NS);
	atomic_store(&sb_clock.anchor_due, ahead);
	begin = sb_clock_gettime();
	found = sb_clock_monotonic(sb_spin_ticks());
	assert_true(found + JUMP_NS / 2 > begin && found < begin + JUMP_NS / 2);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_threads_may_be_first),
		cmocka_unit_test(trusts_the_kernels_choice),
		cmocka_unit_test(converts_without_overflow),
		cmocka_unit_test(runs_at_the_right_rate),
		cmocka_unit_test(delays_as_asked),
		cmocka_unit_test(tells_what_it_took),
		cmocka_unit_test(takes_the_cpu_time_asked_beside_busy_timers),
		cmocka_unit_test(delays_do_not_overlap),
		cmocka_unit_test(spins_until),
		cmocka_unit_test(knows_its_cost),
		cmocka_unit_test(follows_the_monotonic_clock),
		cmocka_unit_test(outlives_a_counter_that_is_set_back),
		cmocka_unit_test(finds_the_time_after_it_was_set_back),
	};

	if (argc > 1 && !strcmp(argv[1], DELAYS))
		return are_delays_as_asked() ? EXIT_SUCCESS : EXIT_FAILURE;
	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
