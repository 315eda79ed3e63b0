// SPDX-License-Identifier: MIT
/*
 * Delays of native functions that are a part of each call's duration. The backend is that
 * in SPEED_BUMP_BACKEND. Times are compared within one run. All tests call functions of one
 * library (parts.c) and read the same counters: hence the length.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "libsb-provisional.h"
#include "parts.h"
#include "served.h"

#define US	UINT64_C(1000)
#define MS	(1000 * US)
#define SECOND	(1000 * MS)
#define PERCENT 10000U
#define ALL	(100 * PERCENT)

static struct sb_error *err;
static struct sb_elf *elf;
static bool is_bpf;

/* ------------------------------------------------------------------- targets */

static struct sb_target_options of_this(uint32_t ppm)
{
	return (struct sb_target_options){ .sz = sizeof(struct sb_target_options),
					   .delay_ppm = ppm,
					   .scope = SB_SCOPE_TREE,
					   .scope_id = getpid() };
}

/* The id of the first. */
static uint64_t add_with(struct sb_session *session, const char *name,
			 const struct sb_target_options *opts)
{
	struct sb_batch *batch = sb_batch_new();
	uint64_t id;

	if (sb_batch_add(batch, elf, name, opts, err) < 1 ||
	    sb_session_add(session, batch, NULL, err))
		fail_msg("%s: %s", name, sb_error_message(err));
	id = sb_batch_id(batch, 0);
	sb_batch_free(batch);
	return id;
}

static uint64_t add(struct sb_session *session, const char *name, uint32_t ppm)
{
	struct sb_target_options opts = of_this(ppm);

	return add_with(session, name, &opts);
}

static uint64_t read_counter(struct sb_session *session, uint64_t id,
			     enum sb_counter which)
{
	struct sb_target_list *list =
		sb_session_list(session, SB_LIST_SESSION, NULL, NULL);
	uint64_t value = 0, found = 0;

	assert_non_null(list);
	for (size_t i = 0; i < sb_target_list_count(list); i++) {
		if (id && sb_target_list_id(list, i) != id)
			continue;
		value += sb_target_list_counter(list, i, which);
		found++;
	}
	sb_target_list_free(list);
	assert_true(found);
	return value;
}

struct counts {
	uint64_t calls, delayed, unreturned, missed;
};

/* What ends with a thread or process is counted when the kernel has ended it. */
static void assert_counts(struct sb_session *session, uint64_t id, struct counts expected)
{
	struct counts found = { 0 };

	for (int i = 0; i < 100; i++) {
		found = (struct counts){
			read_counter(session, id, SB_COUNTER_CALLS),
			read_counter(session, id, SB_COUNTER_DELAYED),
			read_counter(session, id, SB_COUNTER_UNRETURNED),
			read_counter(session, id, SB_COUNTER_MISSED),
		};
		if (!memcmp(&found, &expected, sizeof(found)))
			return;
		usleep(20000);
	}
	fail_msg("%" PRIu64 " calls, %" PRIu64 " delayed, %" PRIu64 " unreturned, %" PRIu64
		 " missed instead of %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64,
		 found.calls, found.delayed, found.unreturned, found.missed,
		 expected.calls, expected.delayed, expected.unreturned, expected.missed);
}

/* -------------------------------------------------------------------- counts */

#define THREADS 4
#define CALLS	5000

static void *call_often(void *arg)
{
	for (int i = 0; i < CALLS; i++)
		part_empty();
	return arg;
}

static void in_threads(unsigned int count, void *(*start)(void *))
{
	pthread_t threads[64];

	for (unsigned int i = 0; i < count; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, start, NULL), 0);
	for (unsigned int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
}

static void no_call_is_lost(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t id = add(session, "part_empty", 5 * PERCENT);

	(void)state;
	in_threads(THREADS, call_often);
	assert_counts(session, id,
		      (struct counts){ .calls = THREADS * CALLS,
				       .delayed = THREADS * CALLS });
	sb_session_close(session);
}

static void other_options_hold(void **state)
{
	struct sb_target_options third = of_this(ALL), late = of_this(ALL),
				 off = of_this(ALL);
	struct sb_session *session = session_opened(err);
	uint64_t every, window, disabled;

	(void)state;
	third.every = 3;
	late.start_ns = 1000 * SECOND;
	off.flags = SB_TARGET_DISABLED;
	every = add_with(session, "part_work", &third);
	window = add_with(session, "part_around", &late);
	disabled = add_with(session, "part_empty", &off);
	for (int i = 0; i < 9; i++) {
		part_work(10 * US);
		part_around();
	}
	assert_counts(session, every, (struct counts){ .calls = 9, .delayed = 3 });
	assert_int_equal(read_counter(session, every, SB_COUNTER_SKIPPED_EVERY), 6);
	assert_counts(session, window, (struct counts){ .calls = 9 });
	assert_int_equal(read_counter(session, window, SB_COUNTER_SKIPPED_WINDOW), 9);
	assert_counts(session, disabled, (struct counts){ .calls = 9 });
	assert_int_equal(read_counter(session, disabled, SB_COUNTER_SKIPPED_DISABLED), 9);
	sb_session_set_enabled(session, false);
	part_work(10 * US);
	assert_int_equal(read_counter(session, every, SB_COUNTER_SKIPPED_DISABLED), 1);
	sb_session_close(session);
}

/* ----------------------------------------------------------------- durations */

#define ROUNDS 31
/* A busy machine makes calls and delays longer: in one of some runs it is not. */
#define TRIES 40
/* Between two readings of the clock, where nothing comes in between but interrupts. */
#define LEAP_NS (300 * US)

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, size_t count)
{
	qsort(values, count, sizeof(*values), by_value);
	return values[count / 2];
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/*
 * Times of calls are not judged where other programs take more than a twentieth of the CPU.
 * An emulated machine does not know that the host's programs do: its clock leaps.
 */
static void fail_unless_crowded(const char *what, double found)
{
	uint64_t begin = clock_ns(CLOCK_MONOTONIC),
		 ran = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	uint64_t now = begin, last, leaps = 0;

	do {
		last = now;
		now = clock_ns(CLOCK_MONOTONIC);
		if (now - last > LEAP_NS)
			leaps += now - last;
	} while (now - begin < 1000 * MS);
	ran = clock_ns(CLOCK_THREAD_CPUTIME_ID) - ran;
	if (ran < (now - begin) / 20 * 19 || leaps > (now - begin) / 20) {
		printf("# skipped: other programs use this CPU; %s: %.3f\n", what, found);
		skip();
	}
	fail_msg("%s: %.3f", what, found);
}

static void set_part(struct sb_session *session, uint64_t id, uint32_t ppm)
{
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_DELAY,
					   .delay_ppm = ppm };

	if (sb_session_update(session, &id, 1, &update, NULL, err))
		fail_msg("%s", sb_error_message(err));
	part_work(0);
}

/* Time outside a call that is not inside; *@own is the time inside. */
static double around(uint64_t ns, double *own)
{
	uint64_t begin = now();
	uint64_t inside = part_work(ns);

	*own = (double)inside;
	return (double)(now() - begin) - (double)inside;
}

/* How much slower calls of that duration become, for each part that was asked for. */
static double slope(struct sb_session *session, uint64_t id, uint64_t ns)
{
	size_t rounds = ns > MS ? 7 : ROUNDS;
	double found[ROUNDS], bare[9], own, more;

	for (size_t i = 0; i < rounds; i++) {
		size_t calls = ns > MS ? 1 : 9;

		set_part(session, id, 1);
		for (size_t k = 0; k < calls; k++)
			bare[k] = around(ns, &own);
		set_part(session, id, ALL / 2);
		more = around(ns, &own) - median(bare, calls);
		found[i] = more / own * 2;
	}
	return median(found, rounds);
}

/*
 * The first that is far from what was asked, or 1. Where other programs run in between, long
 * ones last longer; where the machine is emulated, the shortest are nothing beside the
 * breakpoints.
 */
static double odd_one(const double *slopes, const uint64_t *durations, size_t count)
{
	for (size_t k = 1; k < count && durations[k] < MS; k++)
		if (slopes[k] < 0.5 || slopes[k] > 2)
			return slopes[k];
	return 1;
}

static void functions_become_slower_by_their_part(void **state)
{
	static const uint64_t durations[] = { US,      3 * US,	 10 * US,
					      30 * US, 100 * US, 300 * US,
					      MS,      3 * MS,	 10 * MS };
	enum { COUNT = sizeof(durations) / sizeof(durations[0]) };
	struct sb_session *session = session_opened(err);
	uint64_t id = add(session, "part_work", 1);
	double slopes[COUNT], sorted[COUNT], middle = 0, odd = 0;

	(void)state;
	for (int i = 0; i < TRIES && (middle < 0.98 || middle > 1.02 || odd != 1); i++) {
		for (size_t k = 0; k < COUNT; k++)
			sorted[k] = slopes[k] = slope(session, id, durations[k]);
		middle = median(sorted, COUNT);
		odd = odd_one(slopes, durations, COUNT);
	}
	for (size_t k = 0; k < COUNT; k++)
		printf("# %9" PRIu64 " ns: %.3f\n", durations[k], slopes[k]);
	if (middle < 0.98 || middle > 1.02)
		fail_unless_crowded("what was asked, in the median", middle);
	if (odd != 1)
		fail_unless_crowded("times what was asked", odd);
	sb_session_close(session);
}

/* The sum of the delays in relation to the time that all calls took. */
static double asked_of(uint64_t (*call)(unsigned int, uint64_t), const char *const *names)
{
	struct sb_session *session = session_opened(err);
	double found[ROUNDS];
	uint64_t before = 0, after;

	for (; *names; names++)
		add(session, *names, ALL);
	for (size_t i = 0; i < ROUNDS; i++) {
		uint64_t spent = call(9, 100 * US);

		after = read_counter(session, 0, SB_COUNTER_REQUESTED_NS);
		found[i] = (double)(after - before) / (double)spent;
		before = after;
	}
	sb_session_close(session);
	return median(found, ROUNDS);
}

static void assert_asked(const char *what, uint64_t (*call)(unsigned int, uint64_t),
			 const char *const *names, double least, double most)
{
	double found = 0;

	for (int i = 0; i < TRIES && (found < least || found > most); i++)
		found = asked_of(call, names);
	if (found < least || found > most)
		fail_unless_crowded(what, found);
}

/* Ten nested calls: 1 + 9/10 + ... would be 5.5 times as much. */
static void recursion_does_not_pile_up(void **state)
{
	static const char *const one[] = { "part_nest", NULL };
	static const char *const two[] = { "part_[oe]*", NULL };
	static const char *const own[] = { "part_odd", "part_even", NULL };

	(void)state;
	assert_asked("one function", part_nest, one, 0.9, 1.2);
	assert_asked("two by one name", part_odd, two, 0.9, 1.2);
	/* All of the outermost one, and nine tenths of it for the other. */
	assert_asked("two by their own names", part_odd, own, 1.7, 2.2);
}

static void delays_inside_are_no_duration(void **state)
{
	struct sb_target_options inner = of_this(0);
	struct sb_session *session = session_opened(err);
	uint64_t id = add(session, "part_around", ALL);

	(void)state;
	inner.delay_ns = 200 * MS;
	add_with(session, "part_empty", &inner);
	part_around();
	assert_in_range(read_counter(session, id, SB_COUNTER_REQUESTED_NS), 0, 100 * MS);
	assert_counts(session, id, (struct counts){ .calls = 1, .delayed = 1 });
	sb_session_close(session);
}

static void the_cost_of_breakpoints_is_subtracted(void **state)
{
	struct sb_target_options opts = of_this(1);
	struct sb_session *session = session_opened(err);
	uint64_t id;

	(void)state;
	opts.flags = SB_TARGET_NET;
	id = add_with(session, "part_empty", &opts);
	for (int i = 0; i < 100; i++)
		part_empty();
	/* Hardly anything was asked for, and all that there is are the breakpoints. */
	assert_in_range(read_counter(session, id, SB_COUNTER_REQUESTED_NS), 0, 10000);
	assert_true(read_counter(session, id, SB_COUNTER_DELIVERED_NS) >= 100 * 100);
	assert_counts(session, id, (struct counts){ .calls = 100, .delayed = 100 });
	sb_session_close(session);
}

/* ------------------------------------------------------------------ recorded */

static uint64_t record(struct sb_session *session, const char *name)
{
	struct sb_target_options opts = of_this(0);

	opts.record = 1;
	return add_with(session, name, &opts);
}

/* The shortest duration in a bucket. */
static uint64_t lowest(size_t bucket)
{
	size_t shift = bucket / 64;

	return bucket < 128 ? bucket : (bucket - (shift - 1) * 64) << (shift - 1);
}

static void durations_are_recorded(void **state)
{
	static uint64_t buckets[SB_DURATION_BUCKETS];
	struct sb_session *session = session_opened(err);
	uint64_t id = record(session, "part_work"), nest = record(session, "part_nest");
	uint64_t count = 0, least = 0, sum_ns, max_ns, own = 0, long_ones = 0;

	(void)state;
	for (int i = 0; i < 60; i++)
		own += part_work(i % 6 ? 100 * US : 2 * MS);
	assert_int_equal(sb_session_durations(session, id, buckets, &sum_ns, &max_ns, err),
			 0);
	for (size_t i = SB_DURATION_BUCKETS; i-- > 0;) {
		count += buckets[i];
		least = buckets[i] ? lowest(i) : least;
		long_ones += lowest(i) >= 1900 * US ? buckets[i] : 0;
	}
	assert_int_equal(count, 60);
	/*
	 * The breakpoints' cost, measured at another moment, is subtracted: it varies by
	 * microseconds where the machine is emulated.
	 */
	assert_in_range(least, 90 * US, 200 * US);
	assert_true(long_ones >= 10);
	assert_true(max_ns >= 2 * MS);
	/* What is outside what the function itself sees is little. */
	assert_in_range(sum_ns, own, own * 3 / 2);
	assert_counts(session, id, (struct counts){ .calls = 60, .delayed = 60 });
	/* Each call of a recursion has its own. */
	part_nest(3, MS);
	assert_int_equal(sb_session_durations(session, nest, buckets, &sum_ns, &max_ns,
					      err),
			 0);
	assert_true(max_ns >= 4 * MS);
	assert_in_range(sum_ns, max_ns + 6 * MS, 4 * max_ns);
	sb_session_close(session);
}

static void delays_are_a_part_of_what_is_recorded(void **state)
{
	static uint64_t buckets[SB_DURATION_BUCKETS];
	struct sb_target_options inner = of_this(0);
	struct sb_session *session = session_opened(err);
	uint64_t id = record(session, "part_around"), other, sum_ns, max_ns;

	(void)state;
	inner.delay_ns = 20 * MS;
	other = add_with(session, "part_empty", &inner);
	part_around();
	assert_int_equal(sb_session_durations(session, id, buckets, &sum_ns, &max_ns, err),
			 0);
	assert_true(max_ns >= 20 * MS);
	assert_int_equal(sum_ns, max_ns);
	errno = 0;
	assert_int_equal(sb_session_durations(session, other, buckets, &sum_ns, &max_ns,
					      err),
			 -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(sb_session_remove(session, &id, 1, NULL, err), 0);
	assert_int_equal(sb_session_durations(session, id, buckets, &sum_ns, &max_ns, err),
			 -1);
	assert_int_equal(errno, ENOENT);
	sb_session_close(session);
}

/* ------------------------------------------------------------- ways to end */

static void calls_left_by_longjmp(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t id = add(session, "part_jump", ALL),
		 caller = add(session, "part_caller", ALL);
	jmp_buf env;

	(void)state;
	for (volatile int i = 0; i < 1000; i++)
		if (!setjmp(env))
			part_jump(1, &env);
	for (volatile int i = 0; i < 10; i++)
		if (!setjmp(env))
			part_jump(30, &env);
	/* Those around it return. The last calls are known to be over by then. */
	for (int i = 0; i < 7; i++)
		part_caller(3);
	assert_counts(session, id,
		      (struct counts){ .calls = 1000 + 300 + 21,
				       .unreturned = 1000 + 300 + 21 });
	assert_counts(session, caller, (struct counts){ .calls = 7, .delayed = 7 });
	sb_session_close(session);
}

static void switch_on(void *session)
{
	assert_int_equal(sb_session_set_enabled(session, true), 0);
}

/* A call that began while nothing was measured is not taken for one that was left before. */
static void a_call_is_not_an_earlier_one(void **state)
{
	static uint64_t buckets[SB_DURATION_BUCKETS];
	struct sb_session *session = session_opened(err);
	uint64_t id = record(session, "part_jump_or_call"), sum_ns, max_ns;
	jmp_buf env;

	(void)state;
	/* Both have the same stack pointer. */
	for (volatile int i = 0; i < 2; i++) {
		if (!i && setjmp(env))
			continue;
		if (i) {
			assert_int_equal(sb_session_set_enabled(session, false), 0);
			usleep(200000);
		}
		part_jump_or_call(i ? NULL : &env, switch_on, session);
	}
	assert_int_equal(sb_session_durations(session, id, buckets, &sum_ns, &max_ns, err),
			 0);
	assert_in_range(max_ns, 0, 200 * MS - 1);
	sb_session_close(session);
}

/* Before Linux 6.2 a thread may find its own storage in use by another one. */
static bool has_shared_storage(void)
{
	struct utsname name;
	int major = 0, minor = 0;

	return is_bpf && !uname(&name) &&
	       sscanf(name.release, "%d.%d", &major, &minor) == 2 && major == 6 &&
	       minor < 2;
}

static void *end_inside(void *arg)
{
	part_end_thread();
	return arg;
}

static void threads_that_end_inside(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t id = add(session, "part_end_thread", ALL);
	uint64_t work = add(session, "part_work", ALL);
	pid_t child;

	(void)state;
	for (int i = 0; i < 10; i++)
		in_threads(20, end_inside);
	if (has_shared_storage())
		assert_in_range(read_counter(session, id, SB_COUNTER_UNRETURNED), 150,
				200);
	else
		assert_counts(session, id,
			      (struct counts){ .calls = 200, .unreturned = 200 });
	child = fork();
	if (!child) {
		part_work(1000 * SECOND);
		_exit(0);
	}
	usleep(200000);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	assert_counts(session, work, (struct counts){ .calls = 1, .unreturned = 1 });
	sb_session_close(session);
}

/* The kernel catches 64 returns of a thread at a time. */
static void a_hundred_nested_calls(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t id = add(session, "part_deep", PERCENT);

	(void)state;
	for (uint64_t i = 1; i <= 3; i++) {
		part_deep(100);
		assert_counts(session, id,
			      (struct counts){ .calls = 100 * i,
					       .delayed = 64 * i,
					       .missed = 36 * i });
	}
	part_deep(64);
	assert_counts(session, id,
		      (struct counts){ .calls = 364, .delayed = 256, .missed = 108 });
	sb_session_close(session);
}

static void calls_that_end_with_a_jump(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t tail = add(session, "part_tail", ALL);
	uint64_t landing = add(session, "part_landing", ALL);
	uint64_t outer, inner;

	(void)state;
	/* So long that what is subtracted for the breakpoints is little of it. */
	for (int i = 0; i < 50; i++)
		part_tail(500 * US);
	assert_counts(session, tail, (struct counts){ .calls = 50, .delayed = 50 });
	assert_counts(session, landing, (struct counts){ .calls = 50, .delayed = 50 });
	outer = read_counter(session, tail, SB_COUNTER_REQUESTED_NS);
	inner = read_counter(session, landing, SB_COUNTER_REQUESTED_NS);
	assert_true(inner >= 50 * 450 * US);
	assert_true(outer >= inner * 9 / 10);
	sb_session_close(session);
}

static void forks_inside(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t id = add(session, "part_fork", ALL),
		 twice = add(session, "part_twice", ALL);
	pid_t child;

	(void)state;
	part_fork();
	/* The child returns from a call that its parent made. */
	child = part_twice();
	if (!child)
		_exit(7);
	waitpid(child, NULL, 0);
	assert_counts(session, id, (struct counts){ .calls = 1, .delayed = 1 });
	assert_counts(session, twice, (struct counts){ .calls = 1, .delayed = 1 });
	sb_session_close(session);
}

static void two_targets_on_a_function(void **state)
{
	struct sb_target_options thread = of_this(ALL);
	struct sb_session *session = session_opened(err);
	uint64_t tree = add(session, "part_nest", ALL), own;

	(void)state;
	thread.scope = SB_SCOPE_THREAD;
	thread.scope_id = gettid();
	own = add_with(session, "part_nest", &thread);
	for (int i = 0; i < 10; i++)
		part_nest(3, US);
	assert_counts(session, tree, (struct counts){ .calls = 40, .delayed = 40 });
	assert_counts(session, own, (struct counts){ .calls = 40, .delayed = 40 });
	sb_session_close(session);
}

/* Calls under way when a target comes or goes are not delayed. */
static void *work_long(void *arg)
{
	part_work(300 * MS);
	return arg;
}

static void calls_under_way(void **state)
{
	struct sb_session *session = session_opened(err);
	pthread_t thread;
	uint64_t id;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, work_long, NULL), 0);
	usleep(100000);
	id = add(session, "part_work", ALL);
	pthread_join(thread, NULL);
	assert_counts(session, id, (struct counts){ 0 });
	assert_int_equal(pthread_create(&thread, NULL, work_long, NULL), 0);
	usleep(100000);
	assert_int_equal(sb_session_remove(session, &id, 1, NULL, err), 0);
	/* Another one in its place has nothing of it. */
	id = add(session, "part_empty", ALL);
	pthread_join(thread, NULL);
	part_empty();
	assert_counts(session, id, (struct counts){ .calls = 1, .delayed = 1 });
	sb_session_close(session);
}

/* ------------------------------------------------------------------ settings */

static void a_part_is_listed_and_changed(void **state)
{
	struct sb_target_update part = { .sz = sizeof(part),
					 .mask = SB_UPDATE_DELAY,
					 .delay_ppm = 25000 };
	struct sb_target_update time = { .sz = sizeof(time),
					 .mask = SB_UPDATE_DELAY,
					 .delay_ns = US };
	struct sb_target_options plain = of_this(0);
	struct sb_session *session = session_opened(err);
	uint64_t ids[2] = { add(session, "part_empty", 5 * PERCENT) };
	struct sb_target_list *list;

	(void)state;
	assert_true(sb_session_features(session) & SB_FEATURE_PART);
	ids[1] = add_with(session, "part_work", &plain);
	assert_int_equal(sb_session_update(session, ids, 1, &part, NULL, err), 0);
	list = sb_session_list(session, SB_LIST_SESSION, NULL, err);
	assert_int_equal(sb_target_list_delay_ppm(list, 0), 25000);
	assert_int_equal(sb_target_list_delay_ns(list, 0), 0);
	assert_int_equal(sb_target_list_delay_ppm(list, 1), 0);
	sb_target_list_free(list);
	errno = 0;
	assert_int_equal(sb_session_update(session, ids, 1, &time, NULL, err), -1);
	assert_int_equal(errno, EOPNOTSUPP);
	assert_non_null(strstr(sb_error_message(err), "can't become a percentage"));
	errno = 0;
	assert_int_equal(sb_session_update(session, ids + 1, 1, &part, NULL, err), -1);
	assert_int_equal(errno, EOPNOTSUPP);
	/* Plans give times. */
	errno = 0;
	assert_int_equal(sb_session_plan(session, ids, 1, NULL, 0, err), -1);
	assert_int_equal(errno, EINVAL);
	sb_session_close(session);
}

static void persistent_parts(void **state)
{
	struct sb_target_options opts = of_this(ALL), inner = of_this(0);
	struct sb_session *session = session_opened(err);
	uint64_t id;

	(void)state;
	assert_int_equal(sb_session_clear(session, true, err), 0);
	assert_int_equal(sb_session_set_global_enabled(session, true, err), 0);
	opts.flags = inner.flags = SB_TARGET_PERSISTENT;
	inner.delay_ns = 200 * MS;
	id = add_with(session, "part_around", &opts);
	add_with(session, "part_empty", &inner);
	sb_session_close(session);
	/* They stay, and each knows of the delays of the other. */
	part_around();
	session = session_opened(err);
	{
		struct sb_target_list *list =
			sb_session_list(session, SB_LIST_PERSISTENT, NULL, err);

		assert_int_equal(sb_target_list_count(list), 2);
		assert_int_equal(sb_target_list_id(list, 0), id);
		assert_int_equal(sb_target_list_delay_ppm(list, 0), ALL);
		assert_int_equal(sb_target_list_counter(list, 0, SB_COUNTER_DELAYED), 1);
		assert_in_range(sb_target_list_counter(list, 0, SB_COUNTER_REQUESTED_NS),
				0, 100 * MS);
		sb_target_list_free(list);
	}
	assert_int_equal(sb_session_clear(session, true, err), 0);
	sb_session_close(session);
}

static int setup(void **state)
{
	(void)state;
	elf = sb_elf_open(getenv("SB_PARTS"), err);
	if (!elf)
		print_error("%s\n", sb_error_message(err));
	return elf ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	sb_elf_close(elf);
	sb_error_free(err);
	remove_store();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_call_is_lost),
		cmocka_unit_test(other_options_hold),
		cmocka_unit_test(functions_become_slower_by_their_part),
		cmocka_unit_test(recursion_does_not_pile_up),
		cmocka_unit_test(delays_inside_are_no_duration),
		cmocka_unit_test(the_cost_of_breakpoints_is_subtracted),
		cmocka_unit_test(durations_are_recorded),
		cmocka_unit_test(delays_are_a_part_of_what_is_recorded),
		cmocka_unit_test(calls_left_by_longjmp),
		cmocka_unit_test(a_call_is_not_an_earlier_one),
		cmocka_unit_test(threads_that_end_inside),
		cmocka_unit_test(a_hundred_nested_calls),
		cmocka_unit_test(calls_that_end_with_a_jump),
		cmocka_unit_test(forks_inside),
		cmocka_unit_test(two_targets_on_a_function),
		cmocka_unit_test(calls_under_way),
		cmocka_unit_test(a_part_is_listed_and_changed),
		cmocka_unit_test(persistent_parts),
	};

	err = sb_error_new();
	if (!is_served(err, &is_bpf))
		return 0;
	return cmocka_run_group_tests(tests, setup, teardown);
}
