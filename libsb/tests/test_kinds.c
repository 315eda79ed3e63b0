// SPDX-License-Identifier: MIT
/*
 * Delays that sleep, random delays, delays of some threads only, and delays that are a
 * part of a duration.
 */
#include "unit.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "site/draw.h"
#include "site/hit.h"

#define DRAWS 100000
#define MEAN  10000

static uint64_t drawn[DRAWS];

static int compare(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* The mean of all random delays, which are sorted afterwards. */
static double draw_all(enum sb_delay_dist dist, double sigma)
{
	double sum = 0;

	sb_site_seed(1);
	for (int i = 0; i < DRAWS; i++) {
		drawn[i] = sb_draw(MEAN, dist, sigma);
		sum += (double)drawn[i];
	}
	qsort(drawn, DRAWS, sizeof(drawn[0]), compare);
	return sum / DRAWS;
}

static void assert_near(double value, double expected)
{
	if (fabs(value - expected) > 0.02 * expected)
		fail_msg("%f is not %f", value, expected);
}

static void draws_have_the_mean_and_the_quantiles(void **state)
{
	(void)state;
	assert_near(draw_all(SB_DELAY_EXP, 0), MEAN);
	assert_near((double)drawn[DRAWS / 10], MEAN * -log(0.9));
	assert_near((double)drawn[DRAWS * 9 / 10], MEAN * log(10));
	assert_near((double)drawn[DRAWS * 99 / 100], MEAN * log(100));

	assert_near(draw_all(SB_DELAY_UNIFORM, 0), MEAN);
	assert_near((double)drawn[DRAWS / 10], MEAN * 0.2);
	assert_near((double)drawn[DRAWS * 9 / 10], MEAN * 1.8);
	assert_true(drawn[DRAWS - 1] <= 2 * MEAN);

	assert_near(draw_all(SB_DELAY_LOGNORMAL, 0.5), MEAN);
	assert_near((double)drawn[DRAWS / 2], MEAN * exp(-0.125));
	assert_near((double)drawn[DRAWS * 9 / 10], MEAN * exp(0.5 * 1.28155 - 0.125));
}

static void no_draw_is_over_the_limit(void **state)
{
	bool met = false;

	(void)state;
	for (int i = 0; i < 1000; i++) {
		uint64_t ns = sb_draw(SB_MAX_DELAY_NS, SB_DELAY_EXP, 0);

		assert_true(ns <= SB_MAX_DELAY_NS);
		met |= ns == SB_MAX_DELAY_NS;
	}
	assert_true(met);
}

/* ---------------------------------------------------------------- streams */

#define SOME 4

static void draw_some(uint64_t *to)
{
	for (int i = 0; i < SOME; i++)
		to[i] = sb_draw(1000000000, SB_DELAY_UNIFORM, 0);
}

static void *draw_in_thread(void *to)
{
	draw_some(to);
	return NULL;
}

static void draw_in_child(uint64_t *to)
{
	int ends[2];
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (!pid) {
		draw_some(to);
		_exit(write(ends[1], to, sizeof(*to) * SOME) < 0);
	}
	assert_int_equal(read(ends[0], to, sizeof(*to) * SOME), sizeof(*to) * SOME);
	waitpid(pid, NULL, 0);
	close(ends[0]);
	close(ends[1]);
}

/* In this thread, another thread, and two children. */
static void draw_everywhere(uint64_t seed, uint64_t streams[4][SOME])
{
	pthread_t thread;

	sb_site_seed(seed);
	draw_some(streams[0]);
	assert_int_equal(pthread_create(&thread, NULL, draw_in_thread, streams[1]), 0);
	pthread_join(thread, NULL);
	draw_in_child(streams[2]);
	draw_in_child(streams[3]);
}

static void streams_differ_and_follow_from_the_seed(void **state)
{
	struct sb_site_table_options opts = { .sz = sizeof(opts), .capacity = 1 };
	struct sb_site_table *table = sb_site_table_create(&opts, NULL);
	uint64_t first[4][SOME], again[4][SOME], other[4][SOME];

	(void)state;
	/* Forks are observed from the first site on. */
	assert_non_null(sb_site_get(table, "m:f", NULL, NULL));
	draw_everywhere(7, first);
	draw_everywhere(7, again);
	draw_everywhere(8, other);
	assert_memory_equal(first, again, sizeof(first));
	for (int i = 0; i < 4; i++) {
		assert_true(memcmp(first[i], other[i], sizeof(first[i])) != 0);
		for (int j = 0; j < i; j++)
			assert_true(memcmp(first[i], first[j], sizeof(first[i])) != 0);
	}
	sb_site_table_close(table);
}

/* ------------------------------------------------------------------ sites */

struct counts {
	uint64_t calls, delayed, requested, delivered;
};

static struct counts counts_of(struct sb_site_table *table)
{
	struct sb_site_list *list = sb_site_table_read(table);
	struct counts counts;

	assert_int_equal(sb_site_list_count(list), 1);
	counts = (struct counts){ sb_site_list_calls(list, 0),
				  sb_site_list_delayed(list, 0),
				  sb_site_list_requested_ns(list, 0),
				  sb_site_list_delivered_ns(list, 0) };
	sb_site_list_free(list);
	return counts;
}

static struct sb_site_table *table_with(const struct sb_site_policy *policy,
					struct sb_site **site)
{
	struct sb_site_table_options opts = { .sz = sizeof(opts),
					      .capacity = 1,
					      .enabled = true };
	struct sb_site_table *table = sb_site_table_create(&opts, NULL);

	assert_non_null(table);
	*site = sb_site_get(table, "m:f", policy, NULL);
	assert_non_null(*site);
	return table;
}

static uint64_t cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Two delays of @mode; checks how much of the delivered time was CPU time. */
static void sleep_twice(enum sb_delay_mode mode)
{
	const struct sb_site_policy policy = { .sz = sizeof(policy),
					       .delay_ns = 30000000,
					       .mode = mode };
	struct sb_site *site;
	struct sb_site_table *table = table_with(&policy, &site);
	uint64_t begin, used;
	struct counts counts;

	sb_site_hit(site, 0);
	begin = cpu_ns();
	sb_site_hit(site, 0);
	used = cpu_ns() - begin;
	counts = counts_of(table);
	assert_int_equal(counts.delayed, 2);
	assert_int_equal(counts.requested, 60000000);
	assert_true(counts.delivered >= counts.requested);
	assert_true(used < 15000000);
	sb_site_table_close(table);
}

static int left, returned;
static bool stays;

static void *leave(struct sb_site_table *table, void **kept)
{
	(void)table;
	(void)kept;
	left++;
	return stays ? NULL : &left;
}

static void come_back(void *from)
{
	assert_ptr_equal(from, &left);
	returned++;
}

static void a_sleep_is_no_cpu_time(void **state)
{
	(void)state;
	left = returned = 0;
	sb_site_leave = leave;
	sb_site_return = come_back;
	sleep_twice(SB_DELAY_SLEEP);
	assert_int_equal(left, 0);
	sleep_twice(SB_DELAY_WAIT);
	assert_int_equal(left, 2);
	assert_int_equal(returned, 2);
	stays = true;
	sleep_twice(SB_DELAY_WAIT);
	assert_int_equal(returned, 2);
	sb_site_leave = NULL;
	sleep_twice(SB_DELAY_WAIT);
}

static void requested_adds_up_what_was_drawn(void **state)
{
	const struct sb_site_policy policy = { .sz = sizeof(policy),
					       .delay_ns = 200,
					       .dist = SB_DELAY_EXP };
	struct sb_site *site;
	struct sb_site_table *table = table_with(&policy, &site);
	uint64_t sum = 0;

	(void)state;
	sb_site_seed(3);
	for (int i = 0; i < DRAWS; i++)
		sb_site_hit(site, 0);
	sb_site_seed(3);
	for (int i = 0; i < DRAWS; i++)
		sum += sb_draw(200, SB_DELAY_EXP, 0);
	assert_near((double)sum, 200. * DRAWS);
	assert_int_equal(counts_of(table).requested, sum);
	sb_site_table_close(table);
}

static void *hit_as(void *site)
{
	for (int i = 0; i < 3; i++) {
		prctl(PR_SET_NAME, "someone");
		sb_site_hit(site, 0);
		prctl(PR_SET_NAME, "worker-7");
		sb_site_hit(site, 0);
		sb_site_hit(site, 0);
	}
	return NULL;
}

static void a_thread_is_a_scope(void **state)
{
	char glob[] = "worker-*";
	struct sb_site_policy policy = {
		.sz = sizeof(policy), .delay_ns = 1000, .thread = glob, .every = 2
	};
	struct sb_site *site;
	struct sb_site_table *table = table_with(&policy, &site);
	pthread_t thread;

	(void)state;
	/* The site has a copy of the pattern. */
	glob[0] = 'x';
	sb_site_hit(site, 0);
	assert_int_equal(counts_of(table).calls, 0);
	assert_int_equal(pthread_create(&thread, NULL, hit_as, site), 0);
	pthread_join(thread, NULL);
	assert_int_equal(counts_of(table).calls, 6);
	assert_int_equal(counts_of(table).delayed, 3);
	/* Also while no delay is in force. */
	sb_site_table_set_enabled(table, false);
	assert_int_equal(pthread_create(&thread, NULL, hit_as, site), 0);
	pthread_join(thread, NULL);
	sb_site_hit(site, 0);
	assert_int_equal(counts_of(table).calls, 12);
	assert_int_equal(counts_of(table).delayed, 3);
	sb_site_table_set_enabled(table, true);
	policy.thread = NULL;
	policy.every = 1;
	sb_site_get(table, "m:f", &policy, NULL);
	sb_site_hit(site, 0);
	assert_int_equal(counts_of(table).calls, 13);
	assert_int_equal(counts_of(table).delayed, 4);
	sb_site_table_close(table);
}

/* ------------------------------------------------------- parts of durations */

#define PPM 500000 /* half */

static uint64_t now_ns(void)
{
	return sb_spin_ticks_to_ns(sb_spin_ticks());
}

static enum site_outcome hit(struct sb_site *site)
{
	struct site_counters *counters = &site_slot_of(site)->counters[0];

	return sb_site_hit_rest(site, counters, 0,
				site_count(site, site_slot_of(site), &counters));
}

static uint64_t requested(struct sb_site *site)
{
	return load(&site_slot_of(site)->counters[0].requested_ns);
}

/* The time in calls, without nested calls. */
static uint64_t spent;

/* @depth nested calls, each with a millisecond of its own. */
static void call(struct sb_site *site, int depth)
{
	struct site_call timed;
	uint64_t begin;

	assert_int_equal(hit(site), SITE_OPEN);
	sb_site_begin(site, &timed);
	begin = now_ns();
	sb_spin_delay(1000000);
	spent += now_ns() - begin;
	if (depth > 1)
		call(site, depth - 1);
	assert_false(sb_site_end(site, &timed, false));
}

static void a_part_of_each_duration(void **state)
{
	const struct sb_site_policy policy = { .sz = sizeof(policy), .delay_ppm = PPM };
	struct sb_site *site;
	struct sb_site_table *table = table_with(&policy, &site);
	struct counts counts;

	(void)state;
	spent = 0;
	for (int i = 0; i < 3; i++)
		call(site, 1);
	call(site, 10);
	counts = counts_of(table);
	assert_int_equal(counts.calls, 13);
	assert_int_equal(counts.delayed, 13);
	/*
	 * A part is never taken of another delay; in ten nested calls the sum would be
	 * 5.5 times as large.
	 */
	assert_in_range(counts.requested, spent / 2 - 1000, spent);
	/* A hit without an end is not delayed. */
	sb_site_hit(site, 0);
	assert_int_equal(counts_of(table).delayed, 13);
	/* The tool can set a fixed delay instead. */
	assert_int_equal(sb_site_table_set_target_delay(table, 0, 5000), 0);
	assert_int_equal(hit(site), SITE_DONE);
	assert_int_equal(counts_of(table).requested, counts.requested + 5000);
	assert_int_equal(sb_site_table_set_target_delay(table, 0, 0), 0);
	assert_int_equal(hit(site), SITE_DONE);
	assert_int_equal(counts_of(table).requested, counts.requested + 5000);
	sb_site_table_close(table);
}

static void *hit_it(void *site)
{
	sb_site_hit(site, 0);
	return NULL;
}

static void delays_are_no_duration(void **state)
{
	const struct sb_site_policy part = { .sz = sizeof(part), .delay_ppm = PPM };
	struct sb_site_policy other = { .sz = sizeof(other),
					.delay_ns = 40000000,
					.target = 1 };
	struct sb_site_table_options opts = { .sz = sizeof(opts),
					      .capacity = 8,
					      .enabled = true };
	struct sb_site_table *table = sb_site_table_create(&opts, NULL);
	struct sb_site *site = sb_site_get(table, "m:f", &part, NULL);
	uint64_t before, begin, asked;
	struct site_call timed;
	pthread_t thread;
	int locks = 0;

	(void)state;
	sb_site_locks = &locks;
	for (int i = 0; i < 12; i++) {
		bool elsewhere = i / 6;
		enum sb_delay_mode mode = (enum sb_delay_mode)(i % 3);

		other.mode = mode;
		sb_site_get(table, "m:g", &other, NULL);
		locks = i / 3 % 2;
		before = requested(site);
		begin = now_ns();
		assert_int_equal(hit(site), SITE_OPEN);
		sb_site_begin(site, &timed);
		if (elsewhere) {
			assert_int_equal(pthread_create(&thread, NULL, hit_it,
							sb_site_get(table, "m:g", &other,
								    NULL)),
					 0);
			pthread_join(thread, NULL);
		} else {
			sb_site_hit(sb_site_get(table, "m:g", &other, NULL), 0);
		}
		begin = now_ns() - begin;
		sb_site_end(site, &timed, false);
		asked = requested(site) - before;
		/*
		 * In another thread the duration includes waiting, except for the lock.
		 */
		if (elsewhere && (!locks || mode == SB_DELAY_WAIT))
			assert_in_range(asked, 20000000, begin);
		else
			assert_in_range(asked, 0, (begin - 39000000) / 2);
	}
	sb_site_locks = NULL;
	sb_site_table_close(table);
}

static void refuses_what_is_no_kind(void **state)
{
	const struct sb_site_policy cases[] = {
		{ .delay_ppm = 1, .delay_ns = 1 },
		{ .delay_ppm = SB_MAX_DELAY_PERCENT * 10000 + 1 },
		{ .disabled = 2 },
		{ .mode = SB_DELAY_WAIT + 1 },
		{ .mode = UINT32_MAX },
		{ .dist = SB_DELAY_LOGNORMAL + 1 },
		{ .dist = SB_DELAY_LOGNORMAL },
		{ .dist = SB_DELAY_LOGNORMAL, .sigma = -1 },
		{ .dist = SB_DELAY_LOGNORMAL, .sigma = 5 },
	};
	const struct sb_site_policy fixed = { .sz = sizeof(fixed) };
	struct sb_site *site;
	struct sb_site_table *table = table_with(&fixed, &site);

	(void)state;
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		struct sb_site_policy policy = cases[i];

		policy.sz = sizeof(policy);
		assert_null_with(sb_site_get(table, "m:f", &policy, NULL), EINVAL);
	}
	sb_site_table_close(table);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(draws_have_the_mean_and_the_quantiles),
		cmocka_unit_test(no_draw_is_over_the_limit),
		cmocka_unit_test(streams_differ_and_follow_from_the_seed),
		cmocka_unit_test(a_sleep_is_no_cpu_time),
		cmocka_unit_test(requested_adds_up_what_was_drawn),
		cmocka_unit_test(a_thread_is_a_scope),
		cmocka_unit_test(a_part_of_each_duration),
		cmocka_unit_test(delays_are_no_duration),
		cmocka_unit_test(refuses_what_is_no_kind),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
