// SPDX-License-Identifier: MIT
/*
 * Calls of native functions as events. The backend is that in SPEED_BUMP_BACKEND. What an
 * event says is compared with the histogram of the same calls.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "libsb-provisional.h"
#include "parts.h"
#include "served.h"

#define US UINT64_C(1000)
#define MS (1000 * US)
/* How many events are kept (libsb-provisional.h). */
#define KEPT 32767

static struct sb_error *err;
static struct sb_elf *elf;
static struct sb_call_event events[2 * KEPT];

/* The id of the target. */
static uint64_t record(struct sb_session *session, const char *name, uint32_t how)
{
	struct sb_target_options opts = { .sz = sizeof(opts),
					  .scope = SB_SCOPE_TREE,
					  .scope_id = getpid(),
					  .record = how };
	struct sb_batch *batch = sb_batch_new();
	uint64_t id;

	if (sb_batch_add(batch, elf, name, &opts, err) != 1 ||
	    sb_session_add(session, batch, NULL, err))
		fail_msg("%s: %s", name, sb_error_message(err));
	id = sb_batch_id(batch, 0);
	sb_batch_free(batch);
	return id;
}

/* How many there were; the first @room of them are in @events. */
static size_t take(struct sb_session *session, size_t room, uint64_t *lost)
{
	size_t count;

	if (sb_session_events(session, events, room, &count, lost, err))
		fail_msg("%s", sb_error_message(err));
	assert_true(count <= room);
	return count;
}

struct histogram {
	uint64_t count, sum_ns, max_ns;
};

static struct histogram histogram_of(struct sb_session *session, uint64_t id)
{
	static uint64_t buckets[SB_DURATION_BUCKETS];
	struct histogram found = { 0 };

	assert_int_equal(sb_session_durations(session, id, buckets, &found.sum_ns,
					      &found.max_ns, err),
			 0);
	for (size_t i = 0; i < SB_DURATION_BUCKETS; i++)
		found.count += buckets[i];
	return found;
}

/* That of the first @count events of a target. */
static struct histogram histogram_from(size_t count, uint64_t id)
{
	struct histogram found = { 0 };

	for (size_t i = 0; i < count; i++) {
		if (events[i].id != id)
			continue;
		found.count++;
		found.sum_ns += events[i].duration_ns;
		if (events[i].duration_ns > found.max_ns)
			found.max_ns = events[i].duration_ns;
	}
	return found;
}

static void assert_same(struct histogram a, struct histogram b)
{
	assert_int_equal(a.count, b.count);
	assert_int_equal(a.sum_ns, b.sum_ns);
	assert_int_equal(a.max_ns, b.max_ns);
}

static void each_call_is_an_event(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t id = record(session, "part_work", SB_RECORD_EVENTS), lost;
	uint64_t asked[30], before[30], after[30];

	(void)state;
	for (int i = 0; i < 30; i++) {
		asked[i] = i % 6 ? 100 * US : 2 * MS;
		before[i] = now();
		part_work(asked[i]);
		after[i] = now();
	}
	assert_int_equal(take(session, KEPT, &lost), 30);
	assert_int_equal(lost, 0);
	for (int i = 0; i < 30; i++) {
		assert_int_equal(events[i].id, id);
		assert_int_equal(events[i].reserved, 0);
		/* What the breakpoints take is subtracted, as it was measured before. */
		assert_true(events[i].duration_ns >= asked[i] - asked[i] / 50);
		assert_true(events[i].begin_ns >= before[i]);
		assert_true(events[i].begin_ns + events[i].duration_ns <= after[i]);
	}
	assert_same(histogram_from(30, id), histogram_of(session, id));
	/* Each once. */
	assert_int_equal(take(session, KEPT, &lost), 0);
	sb_session_close(session);
}

/* Whether numbers of processes are those of the initial namespace. */
static bool is_initial_namespace(void)
{
	struct stat st;

	/* PROC_PID_INIT_INO of the kernel. */
	return !stat("/proc/self/ns/pid", &st) && st.st_ino == 0xEFFFFFFCU;
}

static void processes_are_told_apart(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t id = record(session, "part_empty", SB_RECORD_EVENTS), lost;
	pid_t child = fork();

	(void)state;
	if (!child) {
		part_empty();
		_exit(0);
	}
	assert_int_equal(waitpid(child, NULL, 0), child);
	part_empty();
	assert_int_equal(take(session, KEPT, &lost), 2);
	assert_int_not_equal(events[0].pid, events[1].pid);
	if (is_initial_namespace()) {
		assert_int_equal(events[0].pid, child);
		assert_int_equal(events[1].pid, getpid());
	}
	assert_same(histogram_from(2, id), histogram_of(session, id));
	sb_session_close(session);
}

static void only_where_it_was_asked_for(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t plain = record(session, "part_empty", 1), nest, around, lost;

	(void)state;
	part_empty();
	assert_int_equal(take(session, KEPT, &lost), 0);
	/* Others of the same session, added at different times. */
	nest = record(session, "part_nest", SB_RECORD_EVENTS);
	around = record(session, "part_around", SB_RECORD_EVENTS);
	assert_int_not_equal(nest, around);
	part_nest(3, 10 * US);
	part_around();
	part_empty();
	assert_int_equal(take(session, KEPT, &lost), 5);
	assert_int_equal(lost, 0);
	assert_int_equal(histogram_of(session, plain).count, 3);
	assert_same(histogram_from(5, nest), histogram_of(session, nest));
	assert_same(histogram_from(5, around), histogram_of(session, around));
	/* The innermost one ends first. */
	assert_true(events[0].begin_ns > events[1].begin_ns);
	assert_true(events[0].duration_ns < events[1].duration_ns);
	sb_session_close(session);
}

static void what_finds_no_room_is_counted(void **state)
{
	const size_t calls = KEPT + 5000;
	struct sb_session *session = session_opened(err);
	uint64_t id = record(session, "part_empty", SB_RECORD_EVENTS), lost, before;

	(void)state;
	for (size_t i = 0; i < calls; i++)
		part_empty();
	/* A part of them makes room for as many. */
	assert_int_equal(take(session, 1000, &before), 1000);
	assert_int_equal(before, 5000);
	for (size_t i = 0; i < 1000; i++)
		part_empty();
	assert_int_equal(take(session, 2 * KEPT, &lost), KEPT);
	assert_int_equal(lost, before);
	assert_int_equal(take(session, 2 * KEPT, &lost), 0);
	assert_int_equal(histogram_of(session, id).count, calls + 1000);
	sb_session_close(session);
}

#define THREADS 4
#define CALLS	20000

static void *call_often(void *arg)
{
	for (int i = 0; i < CALLS; i++)
		part_empty();
	return arg;
}

/* As an experiment does it: read in pieces while threads make calls. */
static void read_meanwhile(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t id = record(session, "part_empty", SB_RECORD_EVENTS), lost = 0;
	struct histogram sums = { 0 };
	pthread_t threads[THREADS];
	size_t count;

	(void)state;
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, call_often, NULL), 0);
	while (sums.count + lost < (uint64_t)THREADS * CALLS) {
		struct histogram part;

		count = take(session, 100, &lost);
		part = histogram_from(count, id);
		assert_int_equal(part.count, count);
		sums.count += part.count;
		sums.sum_ns += part.sum_ns;
		if (part.max_ns > sums.max_ns)
			sums.max_ns = part.max_ns;
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(take(session, 100, &lost), 0);
	assert_int_equal(sums.count + lost, THREADS * CALLS);
	/* If this thread had no CPU for a while, some are lost. */
	if (!lost)
		assert_same(sums, histogram_of(session, id));
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
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_call_is_an_event),
		cmocka_unit_test(processes_are_told_apart),
		cmocka_unit_test(only_where_it_was_asked_for),
		cmocka_unit_test(what_finds_no_room_is_counted),
		cmocka_unit_test(read_meanwhile),
	};
	bool is_bpf = false;

	err = sb_error_new();
	if (!is_served(err, &is_bpf))
		return 0;
	if (!is_bpf) {
		printf("1..0 # SKIP the module does not see the ends of calls\n");
		return 0;
	}
	return cmocka_run_group_tests(tests, setup, teardown);
}
