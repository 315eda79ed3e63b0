// SPDX-License-Identifier: MIT
/*
 * Targets that are changed and removed, all or none and each by itself, where they are more
 * than the backend takes at once. The backend is a table in memory; test_update.c does the
 * same with the real ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <string.h>
#include <cmocka.h>

#include "libsb.h"
#include "memory_backend.h"

/* A session with @count targets. */
static void session_with(struct memory *m, struct sb_session *session, uint64_t *ids,
			 size_t count)
{
	struct sb_batch *batch = batch_of(count);

	memory_init(m, session);
	assert_int_equal(sb_session_add(session, batch, NULL, NULL), 0);
	for (size_t i = 0; i < count; i++)
		ids[i] = sb_batch_id(batch, i);
	sb_batch_free(batch);
}

static void large_remove_checks_first(void **state)
{
	struct sb_error *err = sb_error_new();
	struct sb_session session;
	struct memory m;
	uint64_t ids[8], seventh;
	size_t failed = 99;

	(void)state;
	session_with(&m, &session, ids, 8);
	seventh = ids[6];
	ids[6] = 4242;
	assert_int_equal(sb_session_remove(&session, ids, 8, &failed, err), -1);
	assert_int_equal(errno, ENOENT);
	assert_int_equal(failed, 6);
	assert_string_equal(sb_error_message(err), "there is no target 4242");
	assert_int_equal(m.count, 8);
	ids[6] = seventh;
	assert_int_equal(sb_session_remove(&session, ids, 8, &failed, err), 0);
	assert_int_equal(m.count, 0);
	sb_error_free(err);
}

static void large_update_is_put_back(void **state)
{
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_DELAY | SB_UPDATE_EVERY |
						   SB_UPDATE_WINDOW | SB_UPDATE_ENABLED |
						   SB_UPDATE_RESET,
					   .delay_ns = 5000,
					   .every = 7,
					   .duration_ns = 1000000000 };
	struct sb_session session;
	struct memory m;
	uint64_t ids[8], start, end;
	size_t failed = 99;

	(void)state;
	session_with(&m, &session, ids, 8);
	start = m.targets[1].start_ns = sb_clock_gettime() + UINT64_C(100000000000);
	end = m.targets[1].end_ns = start + 1000;
	m.targets[2].start_ns = 1; /* long over */
	m.targets[2].end_ns = 2;
	m.refuse_id = ids[7];
	assert_int_equal(sb_session_update(&session, ids, 8, &update, &failed, NULL), -1);
	assert_int_equal(errno, ENOENT);
	assert_int_equal(failed, 7);
	for (size_t i = 0; i < 8; i++) {
		long at = memory_find(&m, ids[i]);

		assert_int_equal(m.targets[at].delay_ns, 100 + i);
		assert_int_equal(m.targets[at].every, 1);
		assert_true(m.targets[at].enabled);
		assert_int_equal(m.targets[at].resets, 0);
		if (i != 1 && i != 2)
			assert_int_equal(m.targets[at].end_ns, 0);
	}
	assert_in_range(m.targets[1].start_ns, start, start + 1000000000);
	assert_int_equal(m.targets[1].end_ns - m.targets[1].start_ns, end - start);
	assert_in_range(m.targets[2].end_ns, 1, sb_clock_gettime());
	m.refuse_id = 0;
	assert_int_equal(sb_session_update(&session, ids, 8, &update, &failed, NULL), 0);
	for (size_t i = 0; i < 8; i++) {
		assert_int_equal(m.targets[i].delay_ns, 5000);
		assert_int_equal(m.targets[i].every, 7);
		assert_false(m.targets[i].enabled);
		assert_int_equal(m.targets[i].end_ns - m.targets[i].start_ns, 1000000000);
		assert_int_equal(m.targets[i].resets, 1);
	}
}

/* Statistics can't be put back, but settings can. */
static void settings_stay_where_statistics_do(void **state)
{
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_DELAY | SB_UPDATE_EVERY |
						   SB_UPDATE_WINDOW | SB_UPDATE_ENABLED |
						   SB_UPDATE_RESET,
					   .delay_ns = 5000,
					   .every = 7,
					   .duration_ns = 1000000000 };
	struct sb_error *err = sb_error_new();
	struct sb_session session;
	struct memory m;
	uint64_t ids[8];
	/* In one call of the backend, and in three. */
	static const size_t counts[] = { 2, 8 };

	(void)state;
	session_with(&m, &session, ids, 8);
	for (size_t k = 0; k < 2; k++) {
		size_t count = counts[k], failed = 99;

		m.refuse_reset = ids[count - 1];
		assert_int_equal(sb_session_update(&session, ids, count, &update, &failed,
						   err),
				 -1);
		assert_int_equal(errno, ENOENT);
		assert_int_equal(failed, count - 1);
		assert_non_null(strstr(sb_error_message(err), "there is no target"));
		for (size_t i = 0; i < 8; i++) {
			long at = memory_find(&m, ids[i]);

			assert_int_equal(m.targets[at].delay_ns, 100 + i);
			assert_int_equal(m.targets[at].every, 1);
			assert_int_equal(m.targets[at].end_ns, 0);
			assert_true(m.targets[at].enabled);
			assert_int_equal(m.targets[at].resets, count == 8 && i < 6);
		}
	}
	m.refuse_reset = 0;
	assert_int_equal(sb_session_update(&session, ids, 8, &update, NULL, err), 0);
	for (size_t i = 0; i < 8; i++) {
		assert_int_equal(m.targets[i].delay_ns, 5000);
		assert_int_equal(m.targets[i].every, 7);
		assert_false(m.targets[i].enabled);
	}
	sb_error_free(err);
}

/* The correction of the counters belongs to the delay that is in force. */
static void net_delays_are_put_back(void **state)
{
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_DELAY | SB_UPDATE_RESET,
					   .delay_ns = 5 };
	struct sb_session session;
	struct memory m;
	uint64_t id;
	struct sb_net net = { .cost_ns = 40, .taken_ns = 40, .counted_ns = 40 };
	int code;

	(void)state;
	session_with(&m, &session, &id, 1);
	net.id = m.refuse_reset = id;
	m.targets[0].delay_ns = 60;
	m.targets[0].delayed = 10;
	session.net = &net;
	session.net_count = 1;
	assert_int_equal(sb_session_update(&session, &id, 1, &update, NULL, NULL), -1);
	assert_int_equal(m.targets[0].delay_ns, 60);
	assert_int_equal(net.taken_ns, 40);
	assert_int_equal(net.past_taken_ns | net.past_counted_ns, 0);
	assert_int_equal(sb_session_update_each(&session, &id, 1, &update, &code, NULL),
			 1);
	assert_int_equal(m.targets[0].delay_ns, 60);
	assert_int_equal(net.taken_ns, 40);
	assert_int_equal(net.past_taken_ns | net.past_counted_ns, 0);
	m.refuse_reset = 0;
	assert_int_equal(sb_session_update(&session, &id, 1, &update, NULL, NULL), 0);
	assert_int_equal(m.targets[0].delay_ns, 0);
	assert_int_equal(net.taken_ns, 5);
	assert_int_equal(net.past_taken_ns | net.past_counted_ns, 0);
}

static void only_what_is_named_changes(void **state)
{
	struct sb_target_update update = { .sz = sizeof(update) };
	struct sb_session session;
	struct memory m;
	uint64_t ids[2];

	(void)state;
	session_with(&m, &session, ids, 2);
	update.mask = SB_UPDATE_EVERY; /* 0: each call */
	m.targets[0].every = 9;
	assert_int_equal(sb_session_update(&session, ids, 1, &update, NULL, NULL), 0);
	assert_int_equal(m.targets[0].every, 1);
	assert_int_equal(m.targets[0].delay_ns, 100);
	assert_true(m.targets[0].enabled);
	update.mask = SB_UPDATE_DELAY;
	assert_int_equal(sb_session_update(&session, ids, 1, &update, NULL, NULL), 0);
	assert_int_equal(m.targets[0].delay_ns, 0);
	assert_true(m.targets[0].enabled);
	update.mask = SB_UPDATE_ENABLED;
	assert_int_equal(sb_session_update(&session, ids, 1, &update, NULL, NULL), 0);
	assert_false(m.targets[0].enabled);
	assert_int_equal(m.targets[0].resets, 0);
	update.mask = SB_UPDATE_RESET;
	assert_int_equal(sb_session_update(&session, ids, 1, &update, NULL, NULL), 0);
	assert_int_equal(m.targets[0].resets, 1);
	assert_int_equal(m.targets[1].resets, 0);
	assert_int_equal(m.targets[1].delay_ns, 101);
	assert_true(m.targets[1].enabled);
	/* No ids, no change. */
	assert_int_equal(sb_session_update(&session, NULL, 0, &update, NULL, NULL), 0);
}

static void updates_that_make_no_sense(void **state)
{
	const struct {
		struct sb_target_update update;
		int code;
	} cases[] = {
		{ { .mask = 0 }, EINVAL },
		{ { .mask = 1U << 6 }, EINVAL },
		{ { .mask = 1U << 31 | SB_UPDATE_DELAY }, EINVAL },
		{ { .mask = SB_UPDATE_EVERY, .delay_ns = 1 }, EINVAL },
		{ { .mask = SB_UPDATE_DELAY, .every = 1 }, EINVAL },
		{ { .mask = SB_UPDATE_DELAY, .start_ns = 1 }, EINVAL },
		{ { .mask = SB_UPDATE_DELAY, .duration_ns = 1 }, EINVAL },
		{ { .mask = SB_UPDATE_DELAY, .enabled = 1 }, EINVAL },
		{ { .mask = SB_UPDATE_DELAY, .mode = SB_DELAY_SLEEP }, EINVAL },
		{ { .mask = SB_UPDATE_ENABLED, .enabled = 2 }, EINVAL },
		{ { .mask = SB_UPDATE_MODE, .mode = SB_DELAY_WAIT }, EINVAL },
		{ { .mask = SB_UPDATE_MODE, .mode = UINT32_MAX }, EINVAL },
		{ { .mask = SB_UPDATE_DELAY, .delay_ns = SB_MAX_DELAY_NS + 1 }, ERANGE },
		/* The backend of memory can't sleep. */
		{ { .mask = SB_UPDATE_MODE, .mode = SB_DELAY_SLEEP }, EOPNOTSUPP },
	};
	struct sb_error *err = sb_error_new();
	struct sb_session session;
	struct memory m;
	uint64_t id;

	(void)state;
	session_with(&m, &session, &id, 1);
	m.calls = 0;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct sb_target_update update = cases[i].update;
		int code;

		update.sz = sizeof(update);
		errno = 0;
		assert_int_equal(sb_session_update(&session, &id, 1, &update, NULL, err),
				 -1);
		assert_int_equal(errno, cases[i].code);
		assert_int_equal(sb_error_code(err), cases[i].code);
		errno = 0;
		assert_int_equal(sb_session_update_each(&session, &id, 1, &update, &code,
							err),
				 -1);
		assert_int_equal(errno, cases[i].code);
		if (cases[i].code == ERANGE)
			assert_non_null(strstr(sb_error_message(err), "10s"));
	}
	assert_int_equal(m.calls, 0);
	/* A feature that the backend lacks is refused before any call. */
	m.backend.limits.features = 0;
	for (uint32_t mask = SB_UPDATE_EVERY; mask <= SB_UPDATE_RESET; mask <<= 1) {
		struct sb_target_update update = {
			.sz = sizeof(update),
			.mask = mask,
			.every = mask == SB_UPDATE_EVERY ? 2 : 0,
			.start_ns = mask == SB_UPDATE_WINDOW,
			.enabled = mask == SB_UPDATE_ENABLED,
			.mode = mask == SB_UPDATE_MODE ? SB_DELAY_SLEEP : SB_DELAY_SPIN,
		};

		if (mask == SB_UPDATE_ENABLED)
			continue;
		errno = 0;
		assert_int_equal(sb_session_update(&session, &id, 1, &update, NULL, err),
				 -1);
		assert_int_equal(errno, EOPNOTSUPP);
		assert_non_null(strstr(sb_error_message(err), "(memory) can't"));
	}
	assert_null(sb_session_list(&session, SB_LIST_SESSION | SB_LIST_RESET, NULL, err));
	assert_int_equal(errno, EOPNOTSUPP);
	assert_null(sb_session_list(&session, SB_LIST_OTHERS | SB_LIST_RESET, NULL, err));
	assert_int_equal(errno, EINVAL);
	assert_int_equal(m.calls, 0);
	sb_error_free(err);
}

static void the_mode_stays(void **state)
{
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_MODE | SB_UPDATE_DELAY,
					   .delay_ns = 5 };
	struct sb_error *err = sb_error_new();
	struct sb_session session;
	struct memory m;
	uint64_t ids[3];
	size_t failed = 99;
	int codes[3];

	(void)state;
	session_with(&m, &session, ids, 3);
	m.backend.limits.features |= SB_FEATURE_SLEEP;
	assert_int_equal(sb_session_update(&session, ids, 3, &update, &failed, err), 0);
	assert_int_equal(m.targets[2].delay_ns, 5);
	m.targets[1].sleeps = true;
	update.delay_ns = 6;
	assert_int_equal(sb_session_update(&session, ids, 3, &update, &failed, err), -1);
	assert_int_equal(errno, EOPNOTSUPP);
	assert_int_equal(failed, 1);
	assert_non_null(strstr(sb_error_message(err), "sleeps in its delays"));
	assert_int_equal(m.targets[0].delay_ns, 5);
	assert_int_equal(sb_session_update_each(&session, ids, 3, &update, codes, err), 1);
	assert_int_equal(codes[1], EOPNOTSUPP);
	assert_int_equal(codes[0] | codes[2], 0);
	assert_int_equal(m.targets[0].delay_ns, 6);
	assert_int_equal(m.targets[1].delay_ns, 5);
	assert_int_equal(m.targets[2].delay_ns, 6);
	sb_error_free(err);
}

/* Best effort by a backend that has only all or nothing, for three targets at a time. */
static void each_by_itself(void **state)
{
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_DELAY | SB_UPDATE_RESET,
					   .delay_ns = 5 };
	struct sb_batch *batch = batch_of(8);
	struct sb_session session;
	struct memory m;
	uint64_t ids[8];
	int codes[8];

	(void)state;
	memory_init(&m, &session);
	m.refuse_offset = 4;
	batch->targets[6].options.flags = SB_TARGET_SLEEP;
	memset(codes, 0xff, sizeof(codes));
	assert_int_equal(sb_session_add_each(&session, batch, codes, NULL), 2);
	assert_int_equal(m.count, 6);
	for (size_t i = 0; i < 8; i++) {
		assert_int_equal(codes[i], i == 4 ? EEXIST : i == 6 ? EOPNOTSUPP : 0);
		ids[i] = sb_batch_id(batch, i);
		assert_int_equal(!ids[i], i == 4 || i == 6);
	}
	m.refuse_id = ids[7];
	assert_int_equal(sb_session_update_each(&session, ids, 8, &update, codes, NULL),
			 3);
	for (size_t i = 0; i < 8; i++) {
		bool bad = i == 4 || i == 6 || i == 7;

		assert_int_equal(codes[i], bad ? ENOENT : 0);
		if (i == 4 || i == 6)
			continue;
		assert_int_equal(m.targets[memory_find(&m, ids[i])].delay_ns,
				 bad ? 100 + i : 5);
		assert_int_equal(m.targets[memory_find(&m, ids[i])].resets, !bad);
	}
	/* The codes may be left out. */
	assert_int_equal(sb_session_update_each(&session, ids, 8, &update, NULL, NULL), 3);
	ids[0] = 4242;
	assert_int_equal(sb_session_remove_each(&session, ids, 8, codes, NULL), 3);
	for (size_t i = 0; i < 8; i++)
		assert_int_equal(codes[i], i == 0 || i == 4 || i == 6 ? ENOENT : 0);
	assert_int_equal(m.count, 1);
	assert_int_equal(sb_session_remove_each(&session, ids, 0, codes, NULL), 0);
	sb_batch_free(batch);
}

/* A target with a code has its settings and statistics as they were. */
static void each_is_whole_or_left_out(void **state)
{
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_DELAY | SB_UPDATE_RESET,
					   .delay_ns = 5 };
	struct sb_session session;
	struct memory m;
	uint64_t ids[8];
	int codes[8];

	(void)state;
	session_with(&m, &session, ids, 8);
	m.refuse_id = ids[1];
	m.refuse_reset = ids[4];
	assert_int_equal(sb_session_update_each(&session, ids, 8, &update, codes, NULL),
			 2);
	for (size_t i = 0; i < 8; i++) {
		long at = memory_find(&m, ids[i]);
		bool bad = i == 1 || i == 4;

		assert_int_equal(codes[i], bad ? ENOENT : 0);
		assert_int_equal(m.targets[at].delay_ns, bad ? 100 + i : 5);
		assert_int_equal(m.targets[at].resets, !bad);
	}
}

/* errno and message of calls that tried no target. */
static void failures_say_why(void **state)
{
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_DELAY,
					   .delay_ns = 5 };
	struct sb_batch *batch = batch_of(2);
	struct sb_error *err = sb_error_new();
	struct sb_session session;
	struct memory m;
	uint64_t ids[2];

	(void)state;
	session_with(&m, &session, ids, 2);
	m.refuse_list = EIO;
	errno = 0;
	assert_int_equal(sb_session_update_each(&session, ids, 2, &update, NULL, err), -1);
	assert_int_equal(errno, EIO);
	assert_int_equal(sb_error_code(err), EIO);
	assert_string_equal(sb_error_message(err),
			    "can't read the targets: Input/output error");
	/* The cost of a hit can't be measured without room for a target. */
	m.is_full = true;
	batch->targets[1].options.flags = SB_TARGET_NET;
	errno = 0;
	assert_int_equal(sb_session_add_each(&session, batch, NULL, err), -1);
	assert_int_equal(errno, ENOSPC);
	assert_int_equal(sb_error_code(err), ENOSPC);
	sb_error_free(err);
	sb_batch_free(batch);
	free(session.net);
}

/* A session that may not see persistent targets changes its own. */
static void hidden_targets_are_not_there(void **state)
{
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_DELAY | SB_UPDATE_RESET,
					   .delay_ns = 5 };
	struct sb_error *err = sb_error_new();
	struct sb_session session;
	struct memory m;
	uint64_t ids[2];
	size_t failed = 99;
	int codes[2];

	(void)state;
	session_with(&m, &session, ids, 1);
	ids[1] = 4242;
	m.hides_persistent = true;
	assert_int_equal(sb_session_update_each(&session, ids, 2, &update, codes, err), 1);
	assert_int_equal(codes[0], 0);
	assert_int_equal(codes[1], ENOENT);
	assert_int_equal(sb_error_code(err), 0);
	assert_int_equal(sb_session_update(&session, ids, 2, &update, &failed, err), -1);
	assert_int_equal(errno, ENOENT);
	assert_int_equal(failed, 1);
	assert_string_equal(sb_error_message(err), "there is no target 4242");
	sb_error_free(err);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(large_remove_checks_first),
		cmocka_unit_test(large_update_is_put_back),
		cmocka_unit_test(settings_stay_where_statistics_do),
		cmocka_unit_test(net_delays_are_put_back),
		cmocka_unit_test(only_what_is_named_changes),
		cmocka_unit_test(updates_that_make_no_sense),
		cmocka_unit_test(the_mode_stays),
		cmocka_unit_test(each_by_itself),
		cmocka_unit_test(each_is_whole_or_left_out),
		cmocka_unit_test(failures_say_why),
		cmocka_unit_test(hidden_targets_are_not_there),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
