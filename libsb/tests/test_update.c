// SPDX-License-Identifier: MIT
/*
 * sb_session_update(), best effort and resets of statistics, with the backend that is
 * there: the driver in guests, BPF on the host.
 */
#include "unit.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "served.h"

#define MS   UINT64_C(1000000)
#define HOUR (3600 * 1000 * MS)

static struct sb_error *err;
static struct sb_elf *elf;
static bool is_bpf;
static unsigned long (*plain)(unsigned long);

/* How often libsb can enlarge an array before memory ends. */
static unsigned int enlargements = UINT_MAX;

void *__real_reallocarray(void *array, size_t count, size_t size);
void *__wrap_reallocarray(void *array, size_t count, size_t size);

void *__wrap_reallocarray(void *array, size_t count, size_t size)
{
	if (enlargements) {
		enlargements -= enlargements < UINT_MAX;
		return __real_reallocarray(array, count, size);
	}
	errno = ENOMEM;
	return NULL;
}

static struct sb_batch *batch_of(const char *symbol, uint64_t delay_ns, uint32_t flags)
{
	struct sb_target_options opts = { .sz = sizeof(opts),
					  .delay_ns = delay_ns,
					  .scope = SB_SCOPE_TREE,
					  .scope_id = getpid(),
					  .flags = flags };
	struct sb_batch *batch = sb_batch_new();

	if (sb_batch_add(batch, elf, symbol, &opts, err) <= 0)
		fail_msg("%s", sb_error_message(err));
	return batch;
}

static uint64_t add_with(struct sb_session *session, uint64_t delay_ns, uint32_t flags)
{
	struct sb_batch *batch = batch_of("fixture_plain", delay_ns, flags);
	uint64_t id;

	if (sb_session_add(session, batch, NULL, err))
		fail_msg("%s", sb_error_message(err));
	id = sb_batch_id(batch, 0);
	sb_batch_free(batch);
	return id;
}

static uint64_t add(struct sb_session *session, uint64_t delay_ns)
{
	return add_with(session, delay_ns, 0);
}

static void change(struct sb_session *session, uint64_t id, struct sb_target_update update)
{
	update.sz = sizeof(update);
	if (sb_session_update(session, &id, 1, &update, NULL, err))
		fail_msg("%s", sb_error_message(err));
}

#define CHANGE(session, id, ...) \
	change(session, id, (struct sb_target_update){ __VA_ARGS__ })

static void call(int times)
{
	for (int i = 0; i < times; i++)
		plain((unsigned long)i);
}

static struct sb_target_list *list_of(struct sb_session *session, unsigned int which)
{
	struct sb_target_list *list = sb_session_list(session, which, NULL, err);

	if (!list)
		fail_msg("%s", sb_error_message(err));
	return list;
}

static void settings_change_one_by_one(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t id = add(session, 5);
	struct sb_target_list *list;
	uint64_t before;

	(void)state;
	CHANGE(session, id, .mask = SB_UPDATE_EVERY, .every = 3);
	call(7);
	assert_int_equal(counter(session, SB_COUNTER_DELAYED), 2);
	CHANGE(session, id, .mask = SB_UPDATE_DELAY, .delay_ns = 2 * MS);
	/* Counting goes on: the second of these is the ninth. */
	call(2);
	assert_int_equal(counter(session, SB_COUNTER_DELAYED), 3);
	assert_int_equal(counter(session, SB_COUNTER_REQUESTED_NS), 2 * MS + 2 * 5);
	CHANGE(session, id, .mask = SB_UPDATE_EVERY | SB_UPDATE_ENABLED);
	call(4);
	assert_int_equal(counter(session, SB_COUNTER_SKIPPED_DISABLED), 4);
	before = now();
	CHANGE(session, id, .mask = SB_UPDATE_WINDOW | SB_UPDATE_ENABLED, .enabled = 1,
	       .start_ns = HOUR, .duration_ns = 5 * MS);
	list = list_of(session, SB_LIST_SESSION);
	assert_int_equal(sb_target_list_delay_ns(list, 0), 2 * MS);
	assert_int_equal(sb_target_list_every(list, 0), 1);
	assert_true(sb_target_list_enabled(list, 0));
	assert_in_range(sb_target_list_start_ns(list, 0), before + HOUR, now() + HOUR);
	assert_int_equal(sb_target_list_end_ns(list, 0) - sb_target_list_start_ns(list, 0),
			 5 * MS);
	sb_target_list_free(list);
	call(3);
	assert_int_equal(counter(session, SB_COUNTER_SKIPPED_WINDOW), 3);
	CHANGE(session, id, .mask = SB_UPDATE_WINDOW);
	call(1);
	assert_int_equal(counter(session, SB_COUNTER_SKIPPED_WINDOW), 3);
	assert_int_equal(counter(session, SB_COUNTER_DELAYED), 4);
	list = list_of(session, SB_LIST_SESSION);
	assert_int_equal(sb_target_list_start_ns(list, 0), 0);
	assert_int_equal(sb_target_list_end_ns(list, 0), 0);
	sb_target_list_free(list);
	sb_session_close(session);
}

/* A window that begins now ends by itself. */
static void a_window_ends(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t id = add(session, 1000), begin;

	(void)state;
	CHANGE(session, id, .mask = SB_UPDATE_WINDOW, .duration_ns = 200 * MS);
	begin = now();
	while (now() - begin < 300 * MS)
		call(1);
	assert_true(counter(session, SB_COUNTER_DELAYED) > 0);
	assert_true(counter(session, SB_COUNTER_SKIPPED_WINDOW) > 0);
	sb_session_close(session);
}

static void statistics_begin_anew(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t id = add(session, MS);
	struct sb_target_list *list;

	(void)state;
	call(3);
	assert_int_equal(counter(session, SB_COUNTER_GENERATION), 0);
	CHANGE(session, id, .mask = SB_UPDATE_RESET);
	list = list_of(session, SB_LIST_SESSION);
	for (int c = SB_COUNTER_CALLS; c <= SB_COUNTER_TAKEN_OUT; c++)
		assert_int_equal(sb_target_list_counter(list, 0, (enum sb_counter)c),
				 c == SB_COUNTER_GENERATION);
	assert_int_equal(sb_target_list_delay_ns(list, 0), MS);
	sb_target_list_free(list);
	call(2);
	list = list_of(session, SB_LIST_SESSION | SB_LIST_RESET);
	assert_int_equal(sb_target_list_counter(list, 0, SB_COUNTER_DELAYED), 2);
	assert_int_equal(sb_target_list_counter(list, 0, SB_COUNTER_REQUESTED_NS), 2 * MS);
	assert_true(sb_target_list_counter(list, 0, SB_COUNTER_DELIVERED_NS) >= 2 * MS);
	sb_target_list_free(list);
	assert_int_equal(counter(session, SB_COUNTER_CALLS), 0);
	assert_int_equal(counter(session, SB_COUNTER_GENERATION), 2);
	sb_session_close(session);
}

#define THREADS 3
#define CALLS	20000

static void *call_often(void *running)
{
	call(CALLS);
	atomic_fetch_sub((atomic_int *)running, 1);
	return NULL;
}

/* Each hit is in exactly one list, while statistics are reset all the time. */
static void no_hit_is_lost_by_that(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t calls = 0, delayed = 0, lists = 0;
	pthread_t threads[THREADS];
	atomic_int running = THREADS;
	bool last = false;

	(void)state;
	add(session, 1);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, call_often, &running),
				 0);
	while (!last) {
		struct sb_target_list *list;

		last = !atomic_load(&running);
		list = list_of(session, SB_LIST_SESSION | SB_LIST_RESET);
		calls += sb_target_list_counter(list, 0, SB_COUNTER_CALLS);
		delayed += sb_target_list_counter(list, 0, SB_COUNTER_DELAYED);
		assert_int_equal(sb_target_list_counter(list, 0, SB_COUNTER_GENERATION),
				 lists++);
		sb_target_list_free(list);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_true(lists > 2);
	assert_int_equal(calls, THREADS * CALLS);
	assert_int_equal(delayed, THREADS * CALLS);
	sb_session_close(session);
}

/* Statistics are reset when nothing can fail any more. */
static void no_hit_is_lost_without_memory(void **state)
{
	struct sb_session *session = session_opened(err);
	struct sb_batch *batch = batch_of("fixture_*", 5, 0);
	struct sb_target_list *list = NULL;
	unsigned int refused = 0;
	uint64_t calls = 0;

	(void)state;
	if (sb_session_add(session, batch, NULL, err))
		fail_msg("%s", sb_error_message(err));
	call(3);
	while (!list) {
		enlargements = refused;
		list = sb_session_list(session, SB_LIST_SESSION | SB_LIST_RESET, NULL,
				       err);
		enlargements = UINT_MAX;
		if (!list)
			assert_int_equal(sb_error_code(err), ENOMEM);
		refused += !list;
	}
	/* One at least for the array of targets, and one for that of names. */
	assert_in_range(refused, 2, 1000);
	for (size_t i = 0; i < sb_target_list_count(list); i++) {
		calls += sb_target_list_counter(list, i, SB_COUNTER_CALLS);
		assert_int_equal(sb_target_list_counter(list, i, SB_COUNTER_GENERATION),
				 0);
	}
	assert_int_equal(calls, 3);
	sb_target_list_free(list);
	sb_batch_free(batch);
	sb_session_close(session);
}

/* Counters are of the requested delay, not of the net one, also after a reset. */
static void net_delays_begin_anew(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t id = add_with(session, 2 * MS, SB_TARGET_NET);

	(void)state;
	call(3);
	CHANGE(session, id, .mask = SB_UPDATE_DELAY, .delay_ns = 3 * MS);
	call(1);
	assert_int_equal(counter(session, SB_COUNTER_REQUESTED_NS), 9 * MS);
	CHANGE(session, id, .mask = SB_UPDATE_DELAY | SB_UPDATE_RESET, .delay_ns = MS);
	assert_int_equal(counter(session, SB_COUNTER_REQUESTED_NS), 0);
	call(2);
	assert_int_equal(counter(session, SB_COUNTER_REQUESTED_NS), 2 * MS);
	sb_session_close(session);
}

static void overshoot_by_size(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t sum = 0, delayed;
	struct sb_target_list *list;

	(void)state;
	add(session, 10000);
	call(50);
	list = list_of(session, SB_LIST_SESSION);
	delayed = sb_target_list_counter(list, 0, SB_COUNTER_DELAYED) -
		  sb_target_list_counter(list, 0, SB_COUNTER_CUT);
	assert_int_equal(delayed, 50);
	for (size_t b = 0; b < SB_OVERSHOOT_BUCKETS; b++)
		sum += sb_target_list_overshoot(list, 0, b);
	if (sb_session_features(session) & SB_FEATURE_HISTOGRAM)
		assert_int_equal(sum, delayed);
	else
		assert_int_equal(sum, 0);
	sb_target_list_free(list);
	sb_session_close(session);
}

static void all_or_none(void **state)
{
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_DELAY | SB_UPDATE_RESET,
					   .delay_ns = 7 };
	struct sb_session *session = session_opened(err);
	uint64_t ids[] = { add(session, 5), 1U << 30 };
	struct sb_target_list *list;
	size_t failed = 99;

	(void)state;
	call(1);
	assert_fails(sb_session_update(session, ids, 2, &update, &failed, err), ENOENT);
	assert_int_equal(failed, 1);
	assert_string_equal(sb_error_message(err), "there is no target 1073741824");
	list = list_of(session, SB_LIST_SESSION);
	assert_int_equal(sb_target_list_delay_ns(list, 0), 5);
	assert_int_equal(sb_target_list_counter(list, 0, SB_COUNTER_CALLS), 1);
	sb_target_list_free(list);
	/* The target spins, and its mode stays. */
	update = (struct sb_target_update){ .sz = sizeof(update), .mask = SB_UPDATE_MODE };
	assert_int_equal(sb_session_update(session, ids, 1, &update, NULL, err), 0);
	update.mode = SB_DELAY_SLEEP;
	assert_fails(sb_session_update(session, ids, 1, &update, NULL, err), EOPNOTSUPP);
	sb_session_close(session);
}

static void best_effort(void **state)
{
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_DELAY | SB_UPDATE_RESET,
					   .delay_ns = 7 };
	struct sb_session *session = session_opened(err);
	uint64_t one = add(session, 5), ids[64];
	struct sb_batch *batch = batch_of("fixture_*", 5, 0);
	size_t count = sb_batch_count(batch), there = count;
	struct sb_target_list *list;
	int codes[64];

	(void)state;
	assert_in_range(count, 3, 63);
	assert_int_equal(sb_session_add_each(session, batch, codes, err), 1);
	for (size_t i = 0; i < count; i++) {
		ids[i] = sb_batch_id(batch, i);
		assert_int_equal(codes[i], ids[i] ? 0 : EEXIST);
		if (!ids[i])
			there = i;
	}
	assert_true(there < count);
	ids[count] = one;
	assert_int_equal(sb_session_update_each(session, ids, count + 1, &update, codes,
						err),
			 1);
	for (size_t i = 0; i <= count; i++)
		assert_int_equal(codes[i], i == there ? ENOENT : 0);
	list = list_of(session, SB_LIST_SESSION);
	assert_int_equal(sb_target_list_count(list), count);
	for (size_t i = 0; i < count; i++) {
		assert_int_equal(sb_target_list_delay_ns(list, i), 7);
		assert_int_equal(sb_target_list_counter(list, i, SB_COUNTER_GENERATION),
				 1);
	}
	sb_target_list_free(list);
	assert_int_equal(sb_session_remove_each(session, ids, count + 1, codes, err), 1);
	assert_int_equal(codes[there], ENOENT);
	list = list_of(session, SB_LIST_SESSION);
	assert_int_equal(sb_target_list_count(list), 0);
	sb_target_list_free(list);
	sb_batch_free(batch);
	sb_session_close(session);
}

static uint64_t total_calls(struct sb_session *session)
{
	struct sb_status *status = sb_session_status(session, err);
	uint64_t calls;

	assert_non_null(status);
	calls = sb_status_total_calls(status);
	sb_status_free(status);
	return calls;
}

/* Totals count from the load of the module, or from the creation of the store. */
static void totals_go_on(void **state)
{
	struct sb_session *session = session_opened(err);
	struct sb_target_list *list;
	uint64_t id, before;

	(void)state;
	id = add_with(session, 5, SB_TARGET_PERSISTENT);
	before = total_calls(session);
	assert_int_equal(sb_session_set_global_enabled(session, true, err), 0);
	call(3);
	CHANGE(session, id, .mask = SB_UPDATE_RESET | SB_UPDATE_WINDOW, .start_ns = HOUR);
	call(2);
	list = list_of(session, SB_LIST_PERSISTENT | SB_LIST_RESET);
	assert_int_equal(sb_target_list_count(list), 1);
	assert_int_equal(sb_target_list_counter(list, 0, SB_COUNTER_SKIPPED_WINDOW), 2);
	assert_int_equal(sb_target_list_counter(list, 0, SB_COUNTER_CALLS), 2);
	sb_target_list_free(list);
	assert_int_equal(total_calls(session) - before, 5);
	assert_int_equal(sb_session_set_global_enabled(session, false, err), 0);
	assert_int_equal(sb_session_clear(session, true, err), 0);
	sb_session_close(session);
}

static int setup(void **state)
{
	const char *dir = getenv("FIXTURE_DIR");
	char library[4096];
	void *handle;

	(void)state;
	snprintf(library, sizeof(library), "%s/libsbfixture.so", dir ? dir : ".");
	handle = dlopen(library, RTLD_NOW);
	elf = sb_elf_open(library, err);
	if (!handle || !elf) {
		fprintf(stderr, "no fixture library: set FIXTURE_DIR\n");
		return -1;
	}
	*(void **)&plain = dlsym(handle, "fixture_plain");
	return plain ? 0 : -1;
}

/* Remove what the persistent targets of BPF leave in the store. */
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
		cmocka_unit_test(settings_change_one_by_one),
		cmocka_unit_test(a_window_ends),
		cmocka_unit_test(statistics_begin_anew),
		cmocka_unit_test(no_hit_is_lost_by_that),
		cmocka_unit_test(no_hit_is_lost_without_memory),
		cmocka_unit_test(net_delays_begin_anew),
		cmocka_unit_test(overshoot_by_size),
		cmocka_unit_test(all_or_none),
		cmocka_unit_test(best_effort),
		cmocka_unit_test(totals_go_on),
	};

	err = sb_error_new();
	if (!is_served(err, &is_bpf))
		return 0;
	return cmocka_run_group_tests(tests, setup, teardown);
}
