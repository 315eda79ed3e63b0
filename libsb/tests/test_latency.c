// SPDX-License-Identifier: MIT
/* Durations in the memory of a site table: histograms, and rings of events. */
#include "unit.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "site/latency.h"
#include "site/hit.h"
#include "site/table.h"
#include "spin.h"

static const char *const names[] = { "app:work", "mark" };
static const bool marks[] = { false, true };

static struct sb_site_table *table_with(uint32_t rings)
{
	const struct sb_site_table_options opts = { .sz = sizeof(opts), .capacity = 8 };
	const struct latency_options latencies = { names, marks, COUNT_OF(names), rings };
	struct sb_site_table *table = sb_site_table_create_with(&opts, &latencies, NULL);

	assert_non_null(table);
	return table;
}

static uint64_t counted(const struct sb_site_table *table, uint32_t index, uint32_t bucket)
{
	uint64_t sum = 0;

	for (uint32_t s = 0; s < LATENCY_STRIPES; s++)
		sum += load(&table->latency.counts[index * LATENCY_STRIPES + s]
				     .buckets[bucket]);
	return sum;
}

static uint64_t all_counted(const struct sb_site_table *table, uint32_t index)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < LATENCY_BUCKETS; i++)
		sum += counted(table, index, i);
	return sum;
}

static void buckets_follow_each_other(void **state)
{
	uint32_t last = 0;

	(void)state;
	for (uint64_t ns = 0; ns < 128; ns++)
		assert_int_equal(latency_bucket(ns), ns);
	/* Each power of two has 64 buckets of the same width, without gaps. */
	last = 127;
	for (unsigned int e = 7; e < 40; e++) {
		uint64_t width = UINT64_C(1) << (e - LATENCY_SHIFT);

		for (uint64_t low = UINT64_C(1) << e; low < UINT64_C(2) << e;
		     low += width) {
			assert_int_equal(latency_bucket(low), last + 1);
			assert_int_equal(latency_bucket(low + width - 1), last + 1);
			last++;
		}
	}
	assert_int_equal(last + 1, LATENCY_BUCKETS - 1);
	assert_int_equal(latency_bucket(LATENCY_MAX_NS - 1), LATENCY_BUCKETS - 2);
	assert_int_equal(latency_bucket(LATENCY_MAX_NS), LATENCY_BUCKETS - 1);
	assert_int_equal(latency_bucket(UINT64_MAX), LATENCY_BUCKETS - 1);
}

static void durations_are_recorded(void **state)
{
	struct sb_site_table *table = table_with(1);
	uint64_t begin = sb_clock_stamp(), ticks = sb_clock_to_ticks(1000000), at = 0,
		 lost = 0;
	uint64_t ns = sb_clock_to_ns(ticks), now;
	struct latency_seen seen[4];

	(void)state;
	sb_latency_add(table, 1, begin - ticks, begin);
	now = sb_clock_gettime();
	sb_latency_add(table, 0, begin, begin);
	/* An unknown name, and a counter that was set back by seconds. */
	sb_latency_add(table, 2, begin - ticks, begin);
	sb_latency_add(table, 0, begin, begin - 1000 * ticks);
	assert_int_equal(counted(table, 1, latency_bucket(ns)), 1);
	assert_int_equal(counted(table, 0, 0), 1);
	assert_int_equal(all_counted(table, 0) + all_counted(table, 1), 2);
	assert_int_equal(sb_latency_read(table, 0, &at, false, seen, 4, &lost), 2);
	assert_int_equal(seen[0].duration_ns, ns);
	assert_int_equal(seen[0].name, 1);
	assert_int_equal(seen[0].pid, getpid());
	assert_true(seen[0].begin_ns + ns <= now + 1000000);
	assert_int_equal(seen[1].name, 0);
	assert_int_equal(sb_latency_read(table, 0, &at, false, seen, 4, &lost), 0);
	assert_int_equal(lost, 0);
	sb_site_table_close(table);
}

static void an_event_that_was_never_written_is_lost_when_told(void **state)
{
	struct sb_site_table *table = table_with(1);
	struct latency_ring *ring = &table->latency.rings[0];
	uint64_t stamp = sb_clock_stamp(), at = 0, lost = 0;
	struct latency_seen seen[4];

	(void)state;
	sb_latency_add(table, 0, stamp, stamp);
	/* Like a process that is killed between the two writes. */
	atomic_fetch_add(&ring->head, 1);
	sb_latency_add(table, 1, stamp, stamp);
	assert_int_equal(sb_latency_read(table, 0, &at, false, seen, 4, &lost), 1);
	assert_int_equal(sb_latency_read(table, 0, &at, false, seen, 4, &lost), 0);
	assert_int_equal(at, 1);
	assert_int_equal(lost, 0);
	assert_int_equal(sb_latency_read(table, 0, &at, true, seen, 4, &lost), 1);
	assert_int_equal(seen[0].name, 1);
	assert_int_equal(lost, 1);
	/*
	 * An event that a slow writer of the previous round leaves there is not counted
	 * in this round.
	 */
	for (uint32_t i = 0; i < LATENCY_RING_EVENTS; i++)
		sb_latency_add(table, 0, stamp, stamp);
	ring->events[at % LATENCY_RING_EVENTS].duration_ns++;
	assert_int_equal(sb_latency_read(table, 0, &at, false, seen, 4, &lost), 0);
	assert_int_equal(sb_latency_read(table, 0, &at, true, seen, 4, &lost), 4);
	assert_int_equal(lost, 2);
	/* An invalid position in the ring is not used. */
	at = UINT64_MAX - 5;
	assert_int_equal(sb_latency_read(table, 0, &at, true, seen, 4, &lost), 0);
	assert_int_equal(sb_latency_read(table, 1, &at, true, seen, 4, &lost), 0);
	sb_site_table_close(table);
}

/* Takes many time slices of a CPU. */
#define TIMES 1000000

static void *add_many(void *table)
{
	uint64_t stamp = sb_clock_stamp(), ticks = sb_clock_to_ticks(1000);

	for (int i = 0; i < TIMES; i++)
		sb_latency_add(table, 0, stamp - ticks, stamp);
	return NULL;
}

static void threads_and_processes_add_up(void **state)
{
	struct sb_site_table *table = table_with(0);
	uint64_t sum = 0;
	pthread_t threads[4];
	pid_t pids[6];
	int status;

	(void)state;
	sb_site_table_set_concurrent(table, true);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, add_many, table), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	sb_site_table_set_concurrent(table, false);
	/* The first processes have stripes of their own, the others share some. */
	for (int i = 0; i < 6; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			add_many(table);
			_exit(0);
		}
	}
	for (int i = 0; i < 6; i++)
		waitpid(pids[i], &status, 0);
	assert_int_equal(all_counted(table, 0), UINT64_C(10) * TIMES);
	for (uint32_t s = 0; s < LATENCY_STRIPES; s++)
		sum += load(&table->latency.counts[s].sum_ns);
	assert_int_equal(sum,
			 UINT64_C(10) * TIMES * sb_clock_to_ns(sb_clock_to_ticks(1000)));
	sb_site_table_close(table);
}

static void marks_have_names(void **state)
{
	struct sb_site_table *table = table_with(0);
	char text[16];

	(void)state;
	assert_string_equal(sb_latency_name(table, 0), "app:work");
	assert_int_equal(sb_latency_marks(table, "mark"), 1);
	assert_int_equal(sb_latency_marks(table, "other"), 2);
	assert_int_equal(sb_latency_marks(table, "other"), 2);
	/* The name of a function is not the name of a mark. */
	assert_int_equal(sb_latency_marks(table, "app:work"), 3);
	for (uint32_t i = 4; i < LATENCY_NAMES; i++) {
		snprintf(text, sizeof(text), "more %u", i);
		assert_int_equal(sb_latency_marks(table, text), i);
	}
	assert_int_equal(sb_latency_marks(table, "too many"), -1);
	assert_null(sb_latency_name(table, LATENCY_NAMES));
	sb_site_table_close(table);
}

static void a_table_of_another_layout_is_refused(void **state)
{
	char path[] = "/tmp/sb-latency-XXXXXX";
	struct sb_site_table_options opts = { .sz = sizeof(opts), .path = path };
	const struct latency_options latencies = { names, marks, COUNT_OF(names), 2 };
	struct sb_error *err = sb_error_new();
	struct sb_site_table *table, *again;

	(void)state;
	close(mkstemp(path));
	unlink(path);
	table = sb_site_table_create_with(&opts, &latencies, err);
	assert_non_null(table);
	again = sb_site_table_open(path, err);
	assert_non_null(again);
	assert_string_equal(sb_latency_name(again, 1), "mark");
	sb_latency_add(again, 1, 0, 0);
	assert_int_equal(all_counted(table, 1), 1);
	sb_site_table_close(again);
	table->header->latency_rings = 3;
	assert_null(sb_site_table_open(path, err));
	assert_says(err, "another layout");
	table->header->latency_rings = LATENCY_MAX_RINGS + 1;
	assert_null(sb_site_table_open(path, err));
	sb_site_table_close(table);
	unlink(path);
	sb_error_free(err);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(buckets_follow_each_other),
		cmocka_unit_test(durations_are_recorded),
		cmocka_unit_test(an_event_that_was_never_written_is_lost_when_told),
		cmocka_unit_test(threads_and_processes_add_up),
		cmocka_unit_test(marks_have_names),
		cmocka_unit_test(a_table_of_another_layout_is_refused),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
