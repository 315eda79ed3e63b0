// SPDX-License-Identifier: MIT
/*
 * Batches: what is put into them, and that a session keeps its all-or-nothing
 * promise where a batch is larger than one call of the backend. The backend here is
 * a table in memory, so that this runs without the module; test_session.c does the
 * same on the real one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "native/batch.h"
#include "libsb.h"
#include "native/session.h"
#include "native/target_list.h"

#define PLACES 64

/* A backend that keeps targets in an array and refuses those that it must. */
struct memory {
	struct sb_backend backend;
	struct {
		uint64_t id, offset, delay_ns;
		bool enabled;
	} targets[PLACES];
	size_t count;
	uint64_t next_id;
	unsigned int calls;
	uint64_t refuse_offset; /* add fails there */
	int refuse_with;	/* this errno; 0: EEXIST */
	uint64_t refuse_id;	/* update fails there */
};

static long memory_find(struct memory *m, uint64_t id)
{
	for (size_t i = 0; i < m->count; i++)
		if (m->targets[i].id == id)
			return i;
	return -1;
}

static int memory_add(struct sb_backend *backend, struct sb_target *targets, size_t count,
		      size_t *failed)
{
	struct memory *m = (struct memory *)backend;

	m->calls++;
	assert_true(count && count <= backend->limits.max_batch);
	for (*failed = 0; *failed < count; ++*failed) {
		if (targets[*failed].offset != m->refuse_offset)
			continue;
		errno = m->refuse_with ? m->refuse_with : EEXIST;
		return -1;
	}
	for (size_t i = 0; i < count; i++) {
		targets[i].id = ++m->next_id;
		m->targets[m->count].id = targets[i].id;
		m->targets[m->count].delay_ns = targets[i].options.delay_ns;
		m->targets[m->count].enabled = true;
		m->targets[m->count++].offset = targets[i].offset;
	}
	return 0;
}

static int memory_update(struct sb_backend *backend, const struct sb_change *changes,
			 size_t count, size_t *failed)
{
	struct memory *m = (struct memory *)backend;

	m->calls++;
	assert_true(count && count <= backend->limits.max_batch);
	for (*failed = 0; *failed < count; ++*failed) {
		if (memory_find(m, changes[*failed].id) >= 0 &&
		    changes[*failed].id != m->refuse_id)
			continue;
		errno = ENOENT;
		return -1;
	}
	for (size_t i = 0; i < count; i++) {
		long at = memory_find(m, changes[i].id);

		if (changes[i].mask & SB_CHANGE_DELAY)
			m->targets[at].delay_ns = changes[i].delay_ns;
		if (changes[i].mask & SB_CHANGE_ENABLED)
			m->targets[at].enabled = changes[i].enabled;
	}
	return 0;
}

static int memory_remove(struct sb_backend *backend, const uint64_t *ids, size_t count,
			 size_t *failed)
{
	struct memory *m = (struct memory *)backend;

	m->calls++;
	assert_true(count && count <= backend->limits.max_batch);
	for (*failed = 0; *failed < count; ++*failed) {
		if (memory_find(m, ids[*failed]) >= 0)
			continue;
		errno = ENOENT;
		return -1;
	}
	for (size_t i = 0; i < count; i++) {
		long at = memory_find(m, ids[i]);

		m->targets[at] = m->targets[--m->count];
	}
	return 0;
}

static int compare(const void *a, const void *b)
{
	return *(const uint64_t *)a < *(const uint64_t *)b ? -1 : 1;
}

static int memory_list(struct sb_backend *backend, unsigned int which, int fd,
		       struct sb_target_list *list)
{
	struct memory *m = (struct memory *)backend;

	(void)which;
	(void)fd;
	qsort(m->targets, m->count, sizeof(m->targets[0]), compare);
	for (size_t i = 0; i < m->count; i++) {
		struct sb_target_info info = { .id = m->targets[i].id,
					       .delay_ns = m->targets[i].delay_ns,
					       .enabled = m->targets[i].enabled };

		assert_int_equal(sb_target_list_append(list, &info, "x:y", 3), 0);
	}
	return 0;
}

static void memory_explain_room(const struct sb_backend *backend, char *buf, size_t size)
{
	snprintf(buf, size, "memory for %u", backend->limits.max_targets);
}

static const struct sb_backend_ops memory_ops = {
	.name = "memory",
	.explain_room = memory_explain_room,
	.without_sleep = "memory",
	.instead_of_sleep = "wake up",
	.to_see_others = "",
	.add = memory_add,
	.update = memory_update,
	.remove = memory_remove,
	.list = memory_list,
};

static void memory_init(struct memory *m, struct sb_session *session)
{
	*m = (struct memory){ .backend.ops = &memory_ops,
			      .refuse_offset = UINT64_MAX };
	m->backend.limits.max_batch = 3;
	m->backend.limits.max_targets = PLACES;
	m->backend.limits.max_delay_ns = SB_MAX_DELAY_NS;
	*session = (struct sb_session){ .backend = &m->backend };
}

/* Put @count targets at offsets 0, 1, ... of a file into a batch. */
static struct sb_batch *batch_of(size_t count)
{
	struct sb_batch *batch = sb_batch_new();

	batch->targets = calloc(count, sizeof(*batch->targets));
	batch->count = batch->room = count;
	for (size_t i = 0; i < count; i++) {
		batch->targets[i].fd = -1;
		batch->targets[i].offset = i;
		batch->targets[i].options.scope = SB_SCOPE_SYSTEM;
		batch->targets[i].options.delay_ns = 100 + i;
		assert_true(asprintf(&batch->targets[i].label, "/lib/x.so:f%zu", i) > 0);
	}
	return batch;
}

static void large_batch_is_split(void **state)
{
	struct sb_session session;
	struct memory m;
	struct sb_batch *batch = batch_of(8);

	(void)state;
	memory_init(&m, &session);
	assert_int_equal(sb_session_add(&session, batch, NULL, NULL), 0);
	assert_int_equal(m.calls, 3);
	assert_int_equal(m.count, 8);
	for (size_t i = 0; i < 8; i++)
		assert_true(sb_batch_id(batch, i));
	sb_batch_free(batch);
}

/* Globs overlap and places have several names: what is the same is one target. */
static void named_twice_is_one_target(void **state)
{
	struct sb_target_options opts = { .sz = sizeof(opts), .delay_ns = 5 };
	struct sb_error *err = sb_error_new();
	struct sb_batch *batch = sb_batch_new();
	char path[4096];
	struct sb_elf *elf;
	int all;

	(void)state;
	snprintf(path, sizeof(path), "%s/libsbfixture.so", getenv("FIXTURE_DIR"));
	elf = sb_elf_open(path, err);
	assert_non_null(elf);
	assert_int_equal(sb_batch_add(batch, elf, "fixture_plain", &opts, err), 1);
	assert_int_equal(sb_batch_add(batch, elf, "fixture_alias", &opts, err), 0);
	opts.every = 1; /* which 0 is, too */
	assert_int_equal(sb_batch_add(batch, elf, "fixture_plai?", &opts, err), 0);
	all = sb_batch_add(batch, elf, "fixture_*", &opts, err);
	assert_true(all > 4);
	assert_int_equal(sb_batch_count(batch), all + 1);
	assert_int_equal(sb_batch_add(batch, elf, "fixture_*", &opts, err), 0);
	/* Another scope is another target. */
	opts.scope = SB_SCOPE_TREE;
	opts.scope_id = 1;
	assert_int_equal(sb_batch_add(batch, elf, "fixture_plain", &opts, err), 1);
	/* With other settings it can't be meant. */
	opts.delay_ns = 6;
	errno = 0;
	assert_int_equal(sb_batch_add(batch, elf, "fixture_plain", &opts, err), -1);
	assert_int_equal(errno, EEXIST);
	assert_non_null(strstr(sb_error_message(err),
			       "fixture_plain is named twice, with different settings"));
	assert_int_equal(sb_batch_add(batch, elf, "fixture_*", &opts, err), -1);
	assert_int_equal(sb_batch_count(batch), all + 2);
	sb_batch_free(batch);
	sb_elf_close(elf);
	sb_error_free(err);
}

static void a_cgroup_must_be_one(void **state)
{
	struct sb_target_options opts = { .sz = sizeof(opts), .scope = SB_SCOPE_CGROUP };
	struct sb_error *err = sb_error_new();
	struct sb_batch *batch = sb_batch_new();
	char path[4096];
	struct sb_elf *elf;

	(void)state;
	snprintf(path, sizeof(path), "%s/libsbfixture.so", getenv("FIXTURE_DIR"));
	elf = sb_elf_open(path, err);
	opts.scope_id = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(opts.scope_id >= 0);
	errno = 0;
	assert_int_equal(sb_batch_add(batch, elf, "fixture_plain", &opts, err), -1);
	assert_int_equal(errno, EINVAL);
	assert_non_null(strstr(sb_error_message(err), "/tmp is not a cgroup of version 2"));
	assert_null(strstr(sb_error_message(err), "fixture"));
	close(opts.scope_id);
	sb_batch_free(batch);
	sb_elf_close(elf);
	sb_error_free(err);
}

static void failure_takes_all_back(void **state)
{
	struct sb_error *err = sb_error_new();
	struct sb_session session;
	struct memory m;
	struct sb_batch *batch = batch_of(8);
	size_t failed = 99;

	(void)state;
	memory_init(&m, &session);
	m.refuse_offset = 7;
	assert_int_equal(sb_session_add(&session, batch, &failed, err), -1);
	assert_int_equal(errno, EEXIST);
	assert_int_equal(failed, 7);
	assert_int_equal(m.count, 0);
	for (size_t i = 0; i < 8; i++)
		assert_int_equal(sb_batch_id(batch, i), 0);
	assert_string_equal(sb_error_message(err),
			    "/lib/x.so:f7 is already a target of this session");
	sb_error_free(err);
	sb_batch_free(batch);
}

/* What a session says of its backend is the backend's own. */
static void messages_name_the_backend(void **state)
{
	struct sb_error *err = sb_error_new();
	struct sb_session session;
	struct memory m;
	struct sb_batch *batch = batch_of(2);

	(void)state;
	memory_init(&m, &session);
	m.refuse_offset = 1;
	m.refuse_with = ENOSPC;
	assert_int_equal(sb_session_add(&session, batch, NULL, err), -1);
	assert_string_equal(sb_error_message(err),
			    "/lib/x.so:f1: no room: memory for 64");
	batch->targets[1].options.flags = SB_TARGET_SLEEP;
	assert_int_equal(sb_session_add(&session, batch, NULL, err), -1);
	assert_int_equal(errno, EOPNOTSUPP);
	assert_string_equal(
		sb_error_message(err),
		"/lib/x.so:f1: memory can't sleep in a delay (mode=sleep): wake up");
	sb_error_free(err);
	sb_batch_free(batch);
}

static void large_remove_checks_first(void **state)
{
	struct sb_error *err = sb_error_new();
	struct sb_session session;
	struct memory m;
	struct sb_batch *batch = batch_of(8);
	uint64_t ids[8];
	size_t failed = 99;

	(void)state;
	memory_init(&m, &session);
	assert_int_equal(sb_session_add(&session, batch, NULL, NULL), 0);
	for (size_t i = 0; i < 8; i++)
		ids[i] = sb_batch_id(batch, i);
	ids[6] = 4242;
	assert_int_equal(sb_session_remove(&session, ids, 8, &failed, err), -1);
	assert_int_equal(errno, ENOENT);
	assert_int_equal(failed, 6);
	assert_string_equal(sb_error_message(err), "there is no target 4242");
	assert_int_equal(m.count, 8);
	ids[6] = sb_batch_id(batch, 6);
	assert_int_equal(sb_session_remove(&session, ids, 8, &failed, err), 0);
	assert_int_equal(m.count, 0);
	sb_error_free(err);
	sb_batch_free(batch);
}

static void large_update_is_put_back(void **state)
{
	struct sb_session session;
	struct memory m;
	struct sb_batch *batch = batch_of(8);
	uint64_t ids[8];

	(void)state;
	memory_init(&m, &session);
	assert_int_equal(sb_session_add(&session, batch, NULL, NULL), 0);
	for (size_t i = 0; i < 8; i++)
		ids[i] = sb_batch_id(batch, i);
	m.refuse_id = ids[7];
	assert_int_equal(sb_session_set_delay(&session, ids, 8, 5000, NULL), -1);
	for (size_t i = 0; i < 8; i++)
		assert_int_equal(m.targets[memory_find(&m, ids[i])].delay_ns, 100 + i);
	m.refuse_id = 0;
	assert_int_equal(sb_session_set_delay(&session, ids, 8, 5000, NULL), 0);
	for (size_t i = 0; i < 8; i++)
		assert_int_equal(m.targets[i].delay_ns, 5000);
	assert_int_equal(sb_session_set_targets_enabled(&session, ids, 8, false, NULL),
			 0);
	for (size_t i = 0; i < 8; i++)
		assert_false(m.targets[i].enabled);
	sb_batch_free(batch);
}

static void delay_over_the_limit(void **state)
{
	struct sb_error *err = sb_error_new();
	struct sb_session session;
	struct memory m;
	uint64_t id = 1;

	(void)state;
	memory_init(&m, &session);
	assert_int_equal(sb_session_set_delay(&session, &id, 1, SB_MAX_DELAY_NS + 1, err),
			 -1);
	assert_int_equal(errno, ERANGE);
	assert_int_equal(m.calls, 0);
	assert_non_null(strstr(sb_error_message(err), "10s"));
	sb_error_free(err);
}

static struct sb_elf *fixture(void)
{
	const char *dir = getenv("FIXTURE_DIR");
	struct sb_elf *elf;
	char path[4096];

	snprintf(path, sizeof(path), "%s/libsbfixture.so", dir ? dir : ".");
	elf = sb_elf_open(path, NULL);
	assert_non_null(elf);
	return elf;
}

static void symbols_become_targets(void **state)
{
	struct sb_target_options opts = { .sz = sizeof(opts), .delay_ns = 500 };
	struct sb_batch *batch = sb_batch_new();
	struct sb_elf *elf = fixture();
	char label[8192];

	(void)state;
	assert_int_equal(sb_batch_add(batch, elf, "fixture_second", &opts, NULL), 1);
	snprintf(label, sizeof(label), "%s:fixture_second", sb_elf_path(elf));
	sb_elf_close(elf);
	assert_string_equal(sb_batch_label(batch, 0), label);
	assert_int_equal(batch->targets[0].options.delay_ns, 500);
	assert_int_equal(batch->targets[0].options.scope, SB_SCOPE_SYSTEM);
	/* The descriptor is the batch's own and does not leak into children. */
	assert_true(fcntl(batch->targets[0].fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(sb_batch_id(batch, 0), 0);
	assert_int_equal(sb_batch_kind(batch, 0), SB_SYMBOL_FUNCTION);
	assert_string_equal(sb_batch_label(batch, 1), "");
	sb_batch_free(batch);
}

static void glob_adds_each_place(void **state)
{
	struct sb_batch *batch = sb_batch_new();
	struct sb_elf *elf = fixture();
	int count = sb_batch_add(batch, elf, "fixture_*", NULL, NULL), choosers = 0;

	(void)state;
	assert_true(count >= 8);
	assert_int_equal(sb_batch_count(batch), count);
	for (int i = 0; i < count; i++)
		choosers += sb_batch_kind(batch, i) == SB_SYMBOL_IFUNC;
	assert_int_equal(choosers, 1);
	for (int i = 0; i < count; i++) {
		assert_int_equal(batch->targets[i].fd, batch->targets[0].fd);
		for (int k = 0; k < i; k++)
			assert_int_not_equal(batch->targets[i].offset,
					     batch->targets[k].offset);
	}
	sb_elf_close(elf);
	sb_batch_free(batch);
}

static void missing_symbol_adds_nothing(void **state)
{
	struct sb_error *err = sb_error_new();
	struct sb_batch *batch = sb_batch_new();
	struct sb_elf *elf = fixture();

	(void)state;
	assert_int_equal(sb_batch_add(batch, elf, "fixture_secnod", NULL, err), -1);
	assert_int_equal(errno, ENOENT);
	assert_non_null(strstr(sb_error_message(err), "fixture_secnod"));
	assert_int_equal(sb_batch_count(batch), 0);
	sb_elf_close(elf);
	sb_error_free(err);
	sb_batch_free(batch);
}

static void spec_overrides_options(void **state)
{
	struct sb_target_options opts = { .sz = sizeof(opts),
					  .delay_ns = 1,
					  .every = 7,
					  .flags = SB_TARGET_DEFAULT_DELAY };
	struct sb_batch *batch = sb_batch_new();
	const struct sb_target_options *got;
	struct sb_spec *spec;
	char text[8192];

	(void)state;
	snprintf(text, sizeof(text),
		 "%s/libsbfixture.so:fixture_plain delay=10us start=1ms duration=2s "
		 "pid=%d",
		 getenv("FIXTURE_DIR") ? getenv("FIXTURE_DIR") : ".", getpid());
	spec = sb_spec_parse(text, SB_SPEC_NATIVE, NULL);
	assert_non_null(spec);
	assert_int_equal(sb_batch_add_spec(batch, spec, &opts, NULL), 1);
	got = &batch->targets[0].options;
	assert_int_equal(got->delay_ns, 10000);
	assert_int_equal(got->flags, 0);
	assert_int_equal(got->every, 7);
	assert_int_equal(got->start_ns, 1000000);
	assert_int_equal(got->duration_ns, 2000000000);
	assert_int_equal(got->scope, SB_SCOPE_TREE);
	assert_int_equal(got->scope_id, getpid());
	sb_spec_free(spec);
	sb_batch_free(batch);
}

static void python_pattern_is_refused(void **state)
{
	struct sb_spec *spec = sb_spec_parse("mod:func", SB_SPEC_FILE, NULL);
	struct sb_error *err = sb_error_new();
	struct sb_batch *batch = sb_batch_new();

	(void)state;
	assert_non_null(spec);
	assert_int_equal(sb_batch_add_spec(batch, spec, NULL, err), -1);
	assert_int_equal(errno, EINVAL);
	assert_non_null(strstr(sb_error_message(err), "mod:func"));
	sb_spec_free(spec);
	sb_error_free(err);
	sb_batch_free(batch);
}

static void unknown_options_are_refused(void **state)
{
	struct {
		struct sb_target_options known;
		uint64_t future;
	} opts = { .known.sz = sizeof(opts) };
	struct sb_batch *batch = sb_batch_new();
	struct sb_elf *elf = fixture();

	(void)state;
	assert_int_equal(sb_batch_add(batch, elf, "fixture_plain", &opts.known, NULL), 1);
	opts.future = 1;
	assert_int_equal(sb_batch_add(batch, elf, "fixture_plain", &opts.known, NULL),
			 -1);
	assert_int_equal(errno, E2BIG);
	opts.known.sz = 0;
	assert_int_equal(sb_batch_add(batch, elf, "fixture_plain", &opts.known, NULL),
			 -1);
	assert_int_equal(errno, EINVAL);
	sb_elf_close(elf);
	sb_batch_free(batch);
}

static void delay_of_a_target_over_the_limit(void **state)
{
	struct sb_target_options opts = { .sz = sizeof(opts),
					  .delay_ns = SB_MAX_DELAY_NS + 1 };
	struct sb_batch *batch = sb_batch_new();
	struct sb_elf *elf = fixture();

	(void)state;
	assert_int_equal(sb_batch_add(batch, elf, "fixture_plain", &opts, NULL), -1);
	assert_int_equal(errno, ERANGE);
	assert_int_equal(sb_batch_count(batch), 0);
	sb_elf_close(elf);
	sb_batch_free(batch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(large_batch_is_split),
		cmocka_unit_test(failure_takes_all_back),
		cmocka_unit_test(messages_name_the_backend),
		cmocka_unit_test(named_twice_is_one_target),
		cmocka_unit_test(a_cgroup_must_be_one),
		cmocka_unit_test(large_remove_checks_first),
		cmocka_unit_test(large_update_is_put_back),
		cmocka_unit_test(delay_over_the_limit),
		cmocka_unit_test(symbols_become_targets),
		cmocka_unit_test(glob_adds_each_place),
		cmocka_unit_test(missing_symbol_adds_nothing),
		cmocka_unit_test(spec_overrides_options),
		cmocka_unit_test(python_pattern_is_refused),
		cmocka_unit_test(unknown_options_are_refused),
		cmocka_unit_test(delay_of_a_target_over_the_limit),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
