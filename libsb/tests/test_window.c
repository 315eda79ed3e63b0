// SPDX-License-Identifier: MIT
#include "unit.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "site_table.h"

#define MS 1000000ULL

/*
 * A workload: processes that work for 200 us, call "a" and "b" and say that a unit is
 * done, until they are ended.
 */
struct workload {
	struct sb_site_table *table;
	struct sb_windows *windows;
	pid_t pids[2];
};

static void work(struct sb_site_table *table)
{
	struct sb_site_policy policy = { .sz = sizeof(policy) };
	struct sb_site *a = sb_site_get(table, "m:a", &policy, NULL);
	struct sb_site *b = sb_site_get(table, "m:b", &policy, NULL);
	struct sb_site *unit = sb_site_get(table, "m:unit", &policy, NULL);

	for (;;) {
		sb_spin_delay(200000);
		sb_site_hit(a, 0);
		sb_site_hit(b, 0);
		sb_site_hit(unit, 0);
		sb_progress_add(table, "point", 1);
	}
}

static int start(void **state)
{
	struct workload *load = calloc(1, sizeof(*load));
	struct sb_site_table_options opts = { .sz = sizeof(opts),
					      .capacity = 64,
					      .enabled = true };

	load->table = sb_site_table_create(&opts, NULL);
	assert_non_null(load->table);
	load->windows = sb_windows_new(load->table, NULL);
	assert_non_null(load->windows);
	*state = load;
	return 0;
}

static void run_workers(struct workload *load, int count)
{
	for (int i = 0; i < count; i++) {
		load->pids[i] = fork();
		assert_true(load->pids[i] >= 0);
		if (!load->pids[i])
			work(load->table);
	}
}

static int end(void **state)
{
	struct workload *load = *state;

	for (int i = 0; i < 2; i++) {
		if (!load->pids[i])
			continue;
		kill(load->pids[i], SIGKILL);
		waitpid(load->pids[i], NULL, 0);
	}
	sb_windows_free(load->windows);
	sb_site_table_close(load->table);
	free(load);
	return 0;
}

static uint64_t value(struct workload *load, size_t i, enum sb_window_value which)
{
	return sb_windows_value(load->windows, i, which);
}

static void plan(struct workload *load, uint64_t length, unsigned int units)
{
	assert_int_equal(sb_windows_plan(load->windows, MS, 1, length, units), 0);
}

static void set(struct workload *load, int number, enum sb_window_mode mode,
		uint64_t delay_ns)
{
	assert_int_equal(sb_windows_set(load->windows, number, mode, delay_ns, 0), 0);
}

static void run(struct workload *load)
{
	assert_int_equal(sb_windows_run(load->windows, NULL), 0);
}

/* Delays of two processes come and go with the windows, and both are counted. */
static void delays_come_and_go_with_windows(void **state)
{
	struct workload *load = *state;
	int a = sb_windows_add_function(load->windows, "m:a");

	assert_int_equal(sb_windows_add_function(load->windows, "m:a"), a);
	assert_int_equal(sb_windows_count_point(load->windows, "point"), 0);
	run_workers(load, 2);
	for (int i = 0; i < 10; i++) {
		plan(load, 5 * MS, 5);
		set(load, a, i % 2 ? SB_WINDOW_SPIN : SB_WINDOW_OFF, 100000);
	}
	run(load);
	assert_int_equal(sb_windows_done(load->windows), 10);
	for (size_t i = 0; i < 10; i++) {
		assert_true(value(load, i, SB_WINDOW_UNITS) >= 5);
		assert_true(value(load, i, SB_WINDOW_HITS) > 0);
		assert_true(value(load, i, SB_WINDOW_TIME_NS) > 0);
		assert_true(value(load, i, SB_WINDOW_CLOCK_NS) >= 5 * MS);
		if (i % 2) {
			uint64_t n = value(load, i, SB_WINDOW_DELAYED);

			assert_true(n > 0);
			assert_int_equal(value(load, i, SB_WINDOW_REQUESTED_NS),
					 n * 100000);
			assert_true(value(load, i, SB_WINDOW_MEASURED_NS) >= n * 100000);
		} else {
			assert_int_equal(value(load, i, SB_WINDOW_DELAYED), 0);
			assert_int_equal(value(load, i, SB_WINDOW_MEASURED_NS), 0);
		}
	}
}

/* A switch rules its own function, and is off when the run is over. */
static void a_switch_rules_its_own_function(void **state)
{
	struct workload *load = *state;
	struct sb_site_list *list;
	int a = sb_windows_add_function(load->windows, "m:a");
	int b = sb_windows_add_function(load->windows, "m:b");
	uint64_t delayed[2] = { 0 }, again[2] = { 0 };

	assert_int_not_equal(a, b);
	sb_windows_count_point(load->windows, "point");
	run_workers(load, 1);
	plan(load, 5 * MS, 5);
	set(load, a, SB_WINDOW_SPIN, 50000);
	run(load);
	for (int round = 0; round < 2; round++) {
		list = sb_site_table_read(load->table);
		for (size_t i = 0; i < sb_site_list_count(list); i++) {
			const char *name = sb_site_list_name(list, i);

			if (name[2] == 'a' || name[2] == 'b')
				(round ? again : delayed)[name[2] - 'a'] =
					sb_site_list_delayed(list, i);
		}
		sb_site_list_free(list);
		/* Time for calls, should one of them still be delayed. */
		for (uint64_t units = sb_windows_units(load->windows);
		     sb_windows_units(load->windows) < units + 5;)
			usleep(1000);
	}
	assert_true(delayed[0] > 0);
	assert_int_equal(delayed[1], 0);
	/* One may have been under way when it was switched off. */
	assert_true(again[0] <= delayed[0] + 1);
}

/* Units of a function are stamped like those of a point: a window has whole ones. */
static void calls_of_a_function_are_units(void **state)
{
	struct workload *load = *state;
	uint64_t time, clock, units;

	assert_int_equal(sb_windows_count_function(load->windows, "m:unit"), 0);
	run_workers(load, 1);
	for (int i = 0; i < 8; i++)
		plan(load, 4 * MS, 5);
	run(load);
	for (size_t i = 0; i < 8; i++) {
		units = value(load, i, SB_WINDOW_UNITS);
		time = value(load, i, SB_WINDOW_TIME_NS);
		clock = value(load, i, SB_WINDOW_CLOCK_NS);
		assert_true(units >= 5);
		/* Each takes 200 us and more. Without stamps it would be the clock's. */
		assert_true(time >= units * 200000);
		assert_int_not_equal(time, clock);
	}
}

/* Every third hit is delayed where a switch says so. */
static void every_third_hit(void **state)
{
	struct workload *load = *state;
	int a = sb_windows_add_function(load->windows, "m:a");
	uint64_t hits, delayed;

	sb_windows_count_point(load->windows, "point");
	run_workers(load, 1);
	plan(load, 20 * MS, 30);
	assert_int_equal(sb_windows_set(load->windows, a, SB_WINDOW_SPIN, 1000, 3), 0);
	run(load);
	hits = value(load, 0, SB_WINDOW_HITS);
	delayed = value(load, 0, SB_WINDOW_DELAYED);
	assert_in_range(delayed, hits / 3 - 1, hits / 3 + 1);
}

static uint64_t cpu_ns(pid_t pid)
{
	struct timespec ts;
	clockid_t clock;

	assert_int_equal(clock_getcpuclockid(pid, &clock), 0);
	clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* A delay that sleeps is counted like one that spins, and takes no CPU. */
static void a_delay_may_sleep(void **state)
{
	struct workload *load = *state;
	int a = sb_windows_add_function(load->windows, "m:a");
	uint64_t used, slept;

	sb_windows_count_point(load->windows, "point");
	run_workers(load, 1);
	plan(load, 5 * MS, 1);
	run(load);
	used = cpu_ns(load->pids[0]);
	plan(load, 100 * MS, 1);
	set(load, a, SB_WINDOW_SLEEP, 20 * MS);
	run(load);
	used = cpu_ns(load->pids[0]) - used;
	slept = value(load, 0, SB_WINDOW_MEASURED_NS);
	assert_true(value(load, 0, SB_WINDOW_DELAYED) > 0);
	assert_true(slept >= value(load, 0, SB_WINDOW_REQUESTED_NS));
	assert_true(used < slept / 2);
}

static void wrong_use_is_refused(void **state)
{
	struct workload *load = *state;
	int a = sb_windows_add_function(load->windows, "m:a");

	assert_int_equal(sb_windows_add_function(load->windows, ""), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(sb_windows_add_target(load->windows, 1), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(sb_windows_count_target(load->windows, 1), -1);
	assert_int_equal(errno, EINVAL);
	/* No window is planned yet. */
	assert_int_equal(sb_windows_set(load->windows, a, SB_WINDOW_OFF, 0, 0), -1);
	assert_int_equal(errno, EINVAL);
	plan(load, MS, 0);
	assert_int_equal(sb_windows_set(load->windows, a + 1, SB_WINDOW_OFF, 0, 0), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(sb_windows_set(load->windows, a, SB_WINDOW_SPIN,
					SB_MAX_DELAY_NS + 1, 0),
			 -1);
	assert_int_equal(errno, ERANGE);
	sb_windows_clear(load->windows);
	run(load);
	assert_int_equal(sb_windows_done(load->windows), 0);
	assert_int_equal(sb_windows_value(load->windows, 0, SB_WINDOW_UNITS), 0);
}

/* A program that makes no progress does not hold a window up for ever. */
static void no_progress_does_not_hang(void **state)
{
	struct workload *load = *state;

	sb_windows_count_point(load->windows, "point");
	plan(load, 2 * MS, 1000);
	run(load);
	assert_int_equal(sb_windows_done(load->windows), 1);
	assert_int_equal(value(load, 0, SB_WINDOW_UNITS), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(delays_come_and_go_with_windows, start, end),
		cmocka_unit_test_setup_teardown(a_switch_rules_its_own_function, start, end),
		cmocka_unit_test_setup_teardown(calls_of_a_function_are_units, start, end),
		cmocka_unit_test_setup_teardown(every_third_hit, start, end),
		cmocka_unit_test_setup_teardown(a_delay_may_sleep, start, end),
		cmocka_unit_test_setup_teardown(wrong_use_is_refused, start, end),
		cmocka_unit_test_setup_teardown(no_progress_does_not_hang, start, end),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
