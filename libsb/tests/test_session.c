// SPDX-License-Identifier: MIT
/*
 * Sessions as root, with the backend in SPEED_BUMP_BACKEND or, without it, the module:
 * both must give the same results. Without the backend the tests are skipped;
 * selftests/guest runs them in kernels that have it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "libsb.h"
#include "served.h"
#include "native/session.h"

#define MS UINT64_C(1000000)

static char library[4096];
static bool is_bpf;
static unsigned long (*plain)(unsigned long);
static struct sb_error *err;
static struct sb_elf *elf;

/* Options of a target whose scope is this process. */
static struct sb_target_options own(uint64_t delay_ns)
{
	return (struct sb_target_options){ .sz = sizeof(struct sb_target_options),
					   .delay_ns = delay_ns,
					   .scope = SB_SCOPE_TREE,
					   .scope_id = getpid() };
}

static int set_delay(struct sb_session *session, const uint64_t *ids, size_t count,
		     uint64_t delay_ns)
{
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_DELAY,
					   .delay_ns = delay_ns };

	return sb_session_update(session, ids, count, &update, NULL, err);
}

static int set_enabled(struct sb_session *session, uint64_t id, bool enabled)
{
	struct sb_target_update update = { .sz = sizeof(update),
					   .mask = SB_UPDATE_ENABLED,
					   .enabled = enabled };

	return sb_session_update(session, &id, 1, &update, NULL, err);
}

static uint64_t add(struct sb_session *session, const char *symbol,
		    struct sb_target_options opts)
{
	struct sb_batch *batch = sb_batch_new();
	uint64_t id;

	assert_true(sb_batch_add(batch, elf, symbol, &opts, err) > 0);
	if (sb_session_add(session, batch, NULL, err))
		fail_msg("%s", sb_error_message(err));
	id = sb_batch_id(batch, 0);
	assert_true(id);
	sb_batch_free(batch);
	return id;
}

static int add_fails(struct sb_session *session, const char *symbol,
		     struct sb_target_options opts)
{
	struct sb_batch *batch = sb_batch_new();
	int code;

	assert_true(sb_batch_add(batch, elf, symbol, &opts, err) > 0);
	assert_int_equal(sb_session_add(session, batch, NULL, err), -1);
	code = errno;
	assert_int_equal(sb_error_code(err), code);
	assert_non_null(strstr(sb_error_message(err), library));
	for (size_t i = 0; i < sb_batch_count(batch); i++)
		assert_int_equal(sb_batch_id(batch, i), 0);
	sb_batch_free(batch);
	return code;
}

static size_t count(struct sb_session *session, unsigned int which)
{
	struct sb_target_list *list = sb_session_list(session, which, elf, err);
	size_t n;

	if (!list)
		fail_msg("%s", sb_error_message(err));
	n = sb_target_list_count(list);
	sb_target_list_free(list);
	return n;
}

/* ---------------------------------------------------------------- opening */

static void not_allowed(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	sb_session_close(session_opened(err));
	pid = fork();
	if (!pid) {
		if (setgid(65534) || setuid(65534) || sb_session_open(NULL, err))
			_exit(1);
		_exit(errno != (is_bpf ? EPERM : EACCES) ||
		      !strstr(sb_error_message(err), "run as root"));
	}
	waitpid(pid, &status, 0);
	assert_int_equal(status, 0);
}

/* The number of descriptors of the backend, all of which must be close-on-exec. */
static int count_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	int found = 0;

	while ((entry = readdir(dir))) {
		char path[300], name[64] = "";

		snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
		if (readlink(path, name, sizeof(name) - 1) < 0 ||
		    (strcmp(name, DEVICE) && !strstr(name, "bpf")))
			continue;
		found++;
		assert_true(fcntl(atoi(entry->d_name), F_GETFD) & FD_CLOEXEC);
	}
	closedir(dir);
	return found;
}

static void descriptor_is_close_on_exec(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t features;

	(void)state;
	add(session, "fixture_plain", own(0));
	assert_true(count_descriptors() > 0);
	assert_string_equal(sb_session_backend(session), is_bpf ? "bpf" : "driver");
	assert_true(!sb_session_caveat(session, 0) == !is_bpf);
	features = sb_session_features(session);
	assert_true(features & SB_FEATURE_SCOPE_TREE);
	assert_true(features & SB_FEATURE_WINDOW);
	assert_true(!(features & SB_FEATURE_SLEEP) == is_bpf);
	assert_true(!(features & SB_FEATURE_HISTOGRAM) == is_bpf);
	assert_true(sb_session_max_targets(session) > 0);
	sb_session_close(session);
	assert_int_equal(count_descriptors(), 0);
}

/* ---------------------------------------------------------------- targets */

static void delay_arrives_and_is_counted(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t start, took;

	(void)state;
	add(session, "fixture_plain", own(2 * MS));
	start = now();
	for (int i = 0; i < 10; i++)
		assert_int_equal(plain(i), i + 1);
	took = now() - start;
	assert_true(took >= 20 * MS);
	assert_int_equal(counter(session, SB_COUNTER_CALLS), 10);
	assert_int_equal(counter(session, SB_COUNTER_DELAYED), 10);
	assert_int_equal(counter(session, SB_COUNTER_REQUESTED_NS), 20 * MS);
	assert_true(counter(session, SB_COUNTER_DELIVERED_NS) >= 20 * MS);
	assert_true(counter(session, SB_COUNTER_DELIVERED_NS) <= took);
	assert_int_equal(counter(session, (enum sb_counter)99), 0);
	sb_session_close(session);
}

static void close_takes_targets_along(void **state)
{
	struct sb_session *session = session_opened(err), *other = session_opened(err);

	(void)state;
	add(session, "fixture_plain", own(0));
	assert_int_equal(count(other, SB_LIST_SESSION), 0);
	assert_int_equal(count(other, SB_LIST_OTHERS), 1);
	sb_session_close(session);
	assert_int_equal(count(other, SB_LIST_OTHERS), 0);
	sb_session_close(other);
}

static void session_switch(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t start;

	(void)state;
	add(session, "fixture_plain", own(200 * MS));
	assert_int_equal(sb_session_set_enabled(session, false), 0);
	start = now();
	for (int i = 0; i < 5; i++)
		plain(i);
	assert_true(now() - start < 1000 * MS);
	assert_int_equal(counter(session, SB_COUNTER_CALLS), 5);
	assert_int_equal(counter(session, SB_COUNTER_DELAYED), 0);
	assert_int_equal(counter(session, SB_COUNTER_SKIPPED_DISABLED), 5);
	assert_int_equal(sb_session_set_enabled(session, true), 0);
	plain(0);
	assert_int_equal(counter(session, SB_COUNTER_DELAYED), 1);
	sb_session_close(session);
}

static void target_is_changed_in_place(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t id = add(session, "fixture_plain", own(0)), missing[] = { id, 1 << 30 };
	struct sb_target_list *list;

	(void)state;
	assert_int_equal(set_delay(session, &id, 1, 3 * MS), 0);
	assert_int_equal(set_enabled(session, id, false), 0);
	plain(0);
	assert_int_equal(counter(session, SB_COUNTER_SKIPPED_DISABLED), 1);
	assert_int_equal(set_enabled(session, id, true), 0);
	plain(0);
	assert_int_equal(counter(session, SB_COUNTER_REQUESTED_NS), 3 * MS);
	/* All or nothing, with names. */
	assert_int_equal(set_delay(session, missing, 2, MS), -1);
	assert_int_equal(errno, ENOENT);
	assert_string_equal(sb_error_message(err), "there is no target 1073741824");
	list = sb_session_list(session, SB_LIST_SESSION, elf, err);
	assert_int_equal(sb_target_list_delay_ns(list, 0), 3 * MS);
	assert_int_equal(sb_target_list_id(list, 0), id);
	assert_true(sb_target_list_enabled(list, 0));
	assert_int_equal(sb_target_list_owner(list, 0), SB_LIST_SESSION);
	assert_int_equal(sb_target_list_scope(list, 0), SB_SCOPE_TREE);
	assert_int_equal(sb_target_list_scope_id(list, 0), getpid());
	assert_int_equal(sb_target_list_every(list, 0), 1);
	assert_non_null(
		strstr(sb_target_list_label(list, 0), "/libsbfixture.so:fixture_"));
	sb_target_list_free(list);
	sb_session_close(session);
}

static void removal(void **state)
{
	struct sb_session *session = session_opened(err);
	uint64_t ids[2] = { add(session, "fixture_plain", own(0)), 1 << 30 };
	size_t failed = 99;

	(void)state;
	assert_int_equal(sb_session_remove(session, ids, 2, &failed, err), -1);
	assert_int_equal(errno, ENOENT);
	assert_int_equal(failed, 1);
	assert_int_equal(count(session, SB_LIST_SESSION), 1);
	assert_int_equal(sb_session_remove(session, ids, 1, &failed, err), 0);
	assert_int_equal(count(session, SB_LIST_SESSION), 0);
	add(session, "fixture_plain", own(0));
	add(session, "fixture_second", own(0));
	assert_int_equal(sb_session_clear(session, false, err), 0);
	assert_int_equal(count(session, SB_LIST_SESSION), 0);
	sb_session_close(session);
}

static void refusals_name_the_target(void **state)
{
	struct sb_session *session = session_opened(err);
	struct sb_target_options dead = own(0);
	struct sb_batch *batch;
	pid_t pid = fork();

	(void)state;
	if (!pid)
		_exit(0);
	waitpid(pid, NULL, 0);
	add(session, "fixture_plain", own(0));
	assert_int_equal(add_fails(session, "fixture_plain", own(5)), EEXIST);
	assert_non_null(
		strstr(sb_error_message(err), "is already a target of this session"));
	/* No target of a batch remains if one of them is refused. */
	assert_int_equal(add_fails(session, "fixture_*", own(5)), EEXIST);
	assert_int_equal(count(session, SB_LIST_SESSION), 1);
	dead.scope_id = pid;
	assert_int_equal(add_fails(session, "fixture_second", dead), ESRCH);
	assert_non_null(strstr(sb_error_message(err), "there is no process"));
	batch = sb_batch_new();
	/* The same target twice counts once. */
	for (int i = 0; i < 2; i++)
		assert_int_equal(sb_batch_add(batch, elf, "fixture_second", NULL, err),
				 !i);
	assert_int_equal(sb_session_add(session, batch, NULL, err), 0);
	sb_batch_free(batch);
	sb_session_close(session);
}

static void batch_larger_than_a_call(void **state)
{
	struct sb_session *session = session_opened(err);
	struct sb_target_options opts = own(0);
	struct sb_batch *batch = sb_batch_new(), *again = sb_batch_new();
	uint64_t ids[64];
	size_t failed = 0;
	int n;

	(void)state;
	session->backend->limits.max_batch = 3;
	n = sb_batch_add(batch, elf, "fixture_*", &opts, err);
	assert_true(n > 6 && n < 64);
	assert_int_equal(sb_session_add(session, batch, NULL, err), 0);
	assert_int_equal(count(session, SB_LIST_SESSION), n);
	for (int i = 0; i < n; i++)
		ids[i] = sb_batch_id(batch, i);
	assert_int_equal(set_delay(session, ids, n, 7), 0);
	/*
	 * The last target stays in place, so that the last part of the same batch is
	 * refused.
	 */
	assert_int_equal(sb_session_remove(session, ids, n - 1, &failed, err), 0);
	assert_int_equal(count(session, SB_LIST_SESSION), 1);
	assert_int_equal(sb_batch_add(again, elf, "fixture_*", &opts, err), n);
	assert_int_equal(sb_session_add(session, again, &failed, err), -1);
	assert_int_equal(errno, EEXIST);
	assert_int_equal(failed, n - 1);
	assert_int_equal(count(session, SB_LIST_SESSION), 1);
	sb_batch_free(batch);
	sb_batch_free(again);
	sb_session_close(session);
}

/* If the limit is too low, the batch is refused with a message, and no target remains. */
static void refused_above_the_limit(struct sb_session *session, struct sb_batch *batch)
{
	struct sb_elf *large = sb_elf_open("libstdc++.so.6", err);
	struct sb_target_options opts = own(0);
	size_t failed = 0;

	assert_true(sb_batch_add(batch, large, "*", &opts, err) > 0);
	assert_int_equal(sb_session_add(session, batch, &failed, err), -1);
	assert_int_equal(errno, ENOSPC);
	assert_int_equal(failed, sb_session_max_targets(session));
	assert_non_null(strstr(sb_error_message(err), "no room"));
	assert_int_equal(count(session, SB_LIST_SESSION), 0);
	sb_elf_close(large);
}

/* More targets than fit in a page of LIST, in a file that the process has not mapped. */
static void long_list(void **state)
{
	struct sb_session *session = session_opened(err);
	struct sb_batch *batch = sb_batch_new();
	struct sb_elf *large = sb_elf_open("libstdc++.so.6", err);
	struct sb_target_options opts = own(0);
	struct sb_target_list *list;
	size_t n;

	(void)state;
	if (sb_session_max_targets(session) < 2048) {
		print_message("# long_list: this kernel takes %u targets\n",
			      sb_session_max_targets(session));
		refused_above_the_limit(session, batch);
		sb_batch_free(batch);
		sb_elf_close(large);
		sb_session_close(session);
		return;
	}
	opts.scope_id = fork();
	if (!opts.scope_id) {
		execlp("sleep", "sleep", "1000", NULL);
		_exit(127);
	}
	assert_non_null(large);
	assert_true(sb_batch_add(batch, large, "*", &opts, err) > 0);
	n = sb_batch_count(batch);
	assert_true(n > 2048);
	if (sb_session_add(session, batch, NULL, err))
		fail_msg("%s", sb_error_message(err));
	add(session, "fixture_plain", own(0));
	list = sb_session_list(session, SB_LIST_SESSION, NULL, err);
	assert_int_equal(sb_target_list_count(list), n + 1);
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(sb_target_list_id(list, i), sb_batch_id(batch, i));
		assert_string_equal(sb_target_list_label(list, i),
				    sb_batch_label(batch, i));
	}
	assert_null(strstr(sb_target_list_label(list, n), "libstdc++"));
	sb_target_list_free(list);
	assert_int_equal(count(session, SB_LIST_SESSION), 1); /* in the fixture */
	kill(opts.scope_id, SIGKILL);
	waitpid(opts.scope_id, NULL, 0);
	sb_batch_free(batch);
	sb_elf_close(large);
	sb_session_close(session);
}

/* ----------------------------------------------------------------- module */

static void persistent_target(void **state)
{
	struct sb_session *session = session_opened(err);
	struct sb_target_options opts = own(MS);
	struct sb_status *status;
	struct sb_target_list *list;
	uint64_t id;

	(void)state;
	opts.flags = SB_TARGET_PERSISTENT;
	assert_int_equal(sb_session_set_global_enabled(session, false, err), 0);
	id = add(session, "fixture_plain", opts);
	assert_int_equal(add_fails(session, "fixture_plain", opts), EEXIST);
	assert_non_null(strstr(sb_error_message(err), "update or remove it"));
	sb_session_close(session);
	session = session_opened(err);
	assert_int_equal(count(session, SB_LIST_PERSISTENT), 1);
	plain(0);
	assert_int_equal(sb_session_set_global_enabled(session, true, err), 0);
	plain(0);
	status = sb_session_status(session, err);
	assert_true(sb_status_enabled(status));
	assert_int_equal(sb_status_persistent(status), 1);
	assert_int_equal(sb_status_targets(status), 1);
	assert_int_equal(sb_status_sessions(status), 1);
	assert_true(sb_status_total_calls(status) >= 2);
	assert_true(sb_status_total_delivered_ns(status) >= MS);
	sb_status_free(status);
	list = sb_session_list(session, SB_LIST_PERSISTENT, NULL, err);
	assert_int_equal(sb_target_list_id(list, 0), id);
	assert_int_equal(sb_target_list_owner(list, 0), SB_LIST_PERSISTENT);
	assert_int_equal(sb_target_list_counter(list, 0, SB_COUNTER_SKIPPED_DISABLED), 1);
	assert_int_equal(sb_target_list_counter(list, 0, SB_COUNTER_DELAYED), 1);
	sb_target_list_free(list);
	assert_int_equal(sb_session_clear(session, true, err), 0);
	assert_int_equal(count(session, SB_LIST_PERSISTENT), 0);
	assert_int_equal(sb_session_set_global_enabled(session, false, err), 0);
	sb_session_close(session);
}

static void default_delay(void **state)
{
	struct sb_session *session = session_opened(err);
	struct sb_status *status = sb_session_status(session, err);
	uint64_t before = sb_status_default_delay_ns(status);
	struct sb_target_options opts = own(99);
	struct sb_target_list *list;

	(void)state;
	sb_status_free(status);
	assert_int_equal(sb_session_set_default_delay(session, 12345, err), 0);
	opts.flags = SB_TARGET_DEFAULT_DELAY;
	add(session, "fixture_plain", opts);
	list = sb_session_list(session, SB_LIST_SESSION, NULL, err);
	assert_int_equal(sb_target_list_delay_ns(list, 0), 12345);
	sb_target_list_free(list);
	assert_int_equal(sb_session_set_default_delay(session, SB_MAX_DELAY_NS + 1, err),
			 -1);
	assert_int_equal(errno, ERANGE);
	assert_int_equal(sb_session_set_default_delay(session, before, err), 0);
	sb_session_close(session);
}

static int setup(void **state)
{
	const char *dir = getenv("FIXTURE_DIR");
	void *handle;

	(void)state;
	snprintf(library, sizeof(library), "%s/libsbfixture.so", dir ? dir : ".");
	handle = dlopen(library, RTLD_NOW);
	elf = sb_elf_open(library, err);
	if (!handle || !elf || !err) {
		fprintf(stderr, "no fixture library: set FIXTURE_DIR\n");
		return -1;
	}
	snprintf(library, sizeof(library), "%s", sb_elf_path(elf));
	plain = dlsym(handle, "fixture_plain");
	return plain ? 0 : -1;
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
		cmocka_unit_test(not_allowed),
		cmocka_unit_test(descriptor_is_close_on_exec),
		cmocka_unit_test(delay_arrives_and_is_counted),
		cmocka_unit_test(close_takes_targets_along),
		cmocka_unit_test(session_switch),
		cmocka_unit_test(target_is_changed_in_place),
		cmocka_unit_test(removal),
		cmocka_unit_test(refusals_name_the_target),
		cmocka_unit_test(batch_larger_than_a_call),
		cmocka_unit_test(long_list),
		cmocka_unit_test(persistent_target),
		cmocka_unit_test(default_delay),
	};

	err = sb_error_new();
	if (!is_served(err, &is_bpf))
		return 0;
	return cmocka_run_group_tests(tests, setup, teardown);
}
