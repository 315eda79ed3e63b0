// SPDX-License-Identifier: MIT
/*
 * Batches: what is put into them, and that a session keeps its all-or-nothing promise where
 * a batch is larger than one call of the backend. The backend is a table in memory, so that
 * this runs without the module; test_session.c does the same on the real one.
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

#include "libsb.h"
#include "memory_backend.h"

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

/* Globs overlap and places have several names: equal targets are one. */
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
	opts.every = 1; /* the same as 0 */
	assert_int_equal(sb_batch_add(batch, elf, "fixture_plai?", &opts, err), 0);
	all = sb_batch_add(batch, elf, "fixture_*", &opts, err);
	assert_true(all > 4);
	assert_int_equal(sb_batch_count(batch), all + 1);
	assert_int_equal(sb_batch_add(batch, elf, "fixture_*", &opts, err), 0);
	/* Another scope is another target. */
	opts.scope = SB_SCOPE_TREE;
	opts.scope_id = 1;
	assert_int_equal(sb_batch_add(batch, elf, "fixture_plain", &opts, err), 1);
	/* The same place with other settings is an error. */
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
	assert_non_null(
		strstr(sb_error_message(err), "/tmp is not a cgroup of version 2"));
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

static void failure_of_all_is_of_no_target(void **state)
{
	struct sb_session session;
	struct memory m;
	struct sb_batch *batch = batch_of(2);
	size_t failed = 99;

	(void)state;
	memory_init(&m, &session);
	m.refuse_any = true;
	m.refuse_with = EINVAL;
	assert_int_equal(sb_session_add(&session, batch, &failed, NULL), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(failed, 99);
	sb_batch_free(batch);
}

/* Messages about the backend come from the backend itself. */
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
	assert_string_equal(sb_error_message(err), "/lib/x.so:f1: no room: memory for 64");
	batch->targets[1].options.flags = SB_TARGET_SLEEP;
	assert_int_equal(sb_session_add(&session, batch, NULL, err), -1);
	assert_int_equal(errno, EOPNOTSUPP);
	assert_string_equal(
		sb_error_message(err),
		"/lib/x.so:f1: memory can't sleep in a delay (mode=sleep): wake up");
	batch->targets[1].options.flags = 0;
	batch->targets[1].options.delay_ppm = 25000;
	assert_int_equal(sb_session_add(&session, batch, NULL, err), -1);
	assert_int_equal(errno, EOPNOTSUPP);
	assert_string_equal(sb_error_message(err),
			    "/lib/x.so:f1: memory can't delay by a part of a call's duration "
			    "(delay=2.5%): give a time");
	sb_error_free(err);
	sb_batch_free(batch);
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
	struct sb_places *places;
	char label[8192];

	(void)state;
	assert_int_equal(sb_batch_add(batch, elf, "fixture_second", &opts, NULL), 1);
	snprintf(label, sizeof(label), "%s:fixture_second", sb_elf_path(elf));
	places = sb_elf_find(elf, "fixture_second", NULL);
	assert_true(sb_places_offset(places, 0) > 0);
	assert_int_equal(sb_batch_offset(batch, 0), sb_places_offset(places, 0));
	sb_places_free(places);
	sb_elf_close(elf);
	assert_string_equal(sb_batch_label(batch, 0), label);
	assert_int_equal(batch->targets[0].options.delay_ns, 500);
	assert_int_equal(batch->targets[0].options.scope, SB_SCOPE_ALL);
	/* The batch has a descriptor of its own, which is not inherited by children. */
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
	assert_int_equal(sb_batch_add(batch, elf, "fixture_plain", &opts.known, NULL), -1);
	assert_int_equal(errno, E2BIG);
	opts.known.sz = 0;
	assert_int_equal(sb_batch_add(batch, elf, "fixture_plain", &opts.known, NULL), -1);
	assert_int_equal(errno, EINVAL);
	/* SPEED_BUMP_TARGET_MEM is a flag of the driver, not of libsb. */
	for (uint32_t flag = 1U << 4; flag < 1U << 30; flag <<= 1) {
		opts.known = (struct sb_target_options){ .sz = sizeof(opts.known),
							 .flags = flag };
		errno = 0;
		assert_int_equal(sb_batch_add(batch, elf, "fixture_second", &opts.known,
					      NULL),
				 -1);
		assert_int_equal(errno, EINVAL);
	}
	opts.known = (struct sb_target_options){ .sz = sizeof(opts.known), .scope = 5 };
	errno = 0;
	assert_int_equal(sb_batch_add(batch, elf, "fixture_second", &opts.known, NULL),
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

static void assert_refused(const char *path, const char *symbol, const char *says)
{
	struct sb_target_options opts = { .sz = sizeof(opts), .delay_ppm = 50000 };
	struct sb_error *err = sb_error_new();
	struct sb_batch *batch = sb_batch_new();
	struct sb_elf *elf = sb_elf_open(path, err);

	assert_non_null(elf);
	errno = 0;
	if (sb_batch_add(batch, elf, symbol, &opts, err) != -1)
		fail_msg("%s:%s is not refused", path, symbol);
	assert_int_equal(errno, EINVAL);
	if (!strstr(sb_error_message(err), says) || strchr(sb_error_message(err), '\n'))
		fail_msg("\"%s\" does not say \"%s\"", sb_error_message(err), says);
	assert_int_equal(sb_batch_count(batch), 0);
	sb_batch_free(batch);
	sb_elf_close(elf);
	sb_error_free(err);
}

static void what_has_no_duration_is_refused(void **state)
{
	const char *parts = getenv("SB_PARTS");

	(void)state;
	assert_refused(parts, "part_work+0x0", "'part_work+0x0' has no duration: name a");
	assert_refused("libc.so.6", "abort", "'abort' does not return to its caller");
	assert_refused("libc.so.6", "_setjmp", "'_setjmp' stores its return address");
	assert_refused("libc.so.6", "exi[t]", "and none of these does");
	assert_refused("libstdc++.so.6", "*find*", "works with C++ exceptions");
	assert_refused("libstdc++.so.6", "*find*", "--unsafe");
}

/* --unsafe accepts files that throw; a glob leaves out functions without a duration. */
static void what_has_one_is_taken(void **state)
{
	struct sb_target_options opts = { .sz = sizeof(opts),
					  .delay_ppm = 50000,
					  .flags = SB_TARGET_DEFAULT_DELAY };
	struct sb_error *err = sb_error_new();
	struct sb_elf *elf = sb_elf_open("libc.so.6", err);
	struct sb_batch *batch = sb_batch_new();
	struct sb_spec *spec;
	char text[4200];
	size_t count;

	(void)state;
	assert_true(sb_batch_add(batch, elf, "a[bt]o*", &opts, err) > 0);
	count = sb_batch_count(batch);
	for (size_t i = 0; i < count; i++)
		assert_null(strstr(sb_batch_label(batch, i), ":abort"));
	assert_int_equal(batch->targets[0].options.flags, 0);
	sb_elf_close(elf);
	elf = sb_elf_open("libstdc++.so.6", err);
	opts.flags = SB_TARGET_UNSAFE;
	assert_true(sb_batch_add(batch, elf, "*find*", &opts, err) > 0);
	sb_elf_close(elf);
	snprintf(text, sizeof(text), "native:%s:part_work delay=0.25%%",
		 getenv("SB_PARTS"));
	spec = sb_spec_parse(text, SB_SPEC_FILE, err);
	assert_non_null(spec);
	opts = (struct sb_target_options){ .sz = sizeof(opts), .delay_ns = 7 };
	count = sb_batch_count(batch);
	assert_int_equal(sb_batch_add_spec(batch, spec, &opts, err), 1);
	assert_int_equal(batch->targets[count].options.delay_ppm, 2500);
	assert_int_equal(batch->targets[count].options.delay_ns, 0);
	sb_spec_free(spec);
	sb_batch_free(batch);
	sb_error_free(err);
}

/* Where the breakpoint is, the stack pointer is that of the call. */
static void a_call_begins_before_its_stack_frame(void **state)
{
	struct sb_target_options part = { .sz = sizeof(part), .delay_ppm = 50000 };
	struct sb_batch *batch = sb_batch_new();
	struct sb_elf *elf = sb_elf_open(getenv("SB_ENTRIES"), NULL);

	(void)state;
	assert_non_null(elf);
	for (size_t i = 0; i < sb_elf_symbol_count(elf); i++) {
		const struct sb_symbol *symbol = sb_elf_symbol(elf, i);
		size_t count = sb_batch_count(batch);
		unsigned char bytes[4] = { 0 };
		uint64_t entry = sb_symbol_offset(symbol), at;

		if (sb_batch_add(batch, elf, sb_symbol_name(symbol), &part, NULL) != 1)
			continue;
		at = sb_batch_offset(batch, count);
		assert_int_equal(pread(sb_elf_fd(elf), bytes, 4, (off_t)entry), 4);
		if (at != entry) {
			assert_int_equal(at, entry + 4);
			assert_memory_equal(bytes, "\xf3\x0f\x1e\xfa", 4);
		}
	}
	assert_true(sb_batch_count(batch));
	sb_elf_close(elf);
	sb_batch_free(batch);
}

static void a_part_excludes_a_time(void **state)
{
	static const struct {
		struct sb_target_options opts;
		int code;
	} bad[] = {
		{ { .delay_ppm = 1, .delay_ns = 1 }, EINVAL },
		{ { .delay_ppm = 1, .flags = SB_TARGET_SLEEP }, EINVAL },
		{ { .delay_ppm = SB_MAX_DELAY_PERCENT * 10000 + 1 }, ERANGE },
		{ { .record = 3 }, EINVAL },
		{ { .record = 1, .delay_ns = 1 }, EINVAL },
		{ { .record = 2, .delay_ns = 1 }, EINVAL },
		{ { .record = 1, .delay_ppm = 1 }, EINVAL },
		{ { .record = 1, .flags = SB_TARGET_PERSISTENT }, EINVAL },
	};
	struct sb_batch *batch = sb_batch_new();
	struct sb_elf *elf = fixture();

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct sb_target_options opts = bad[i].opts;

		opts.sz = sizeof(opts);
		errno = 0;
		assert_int_equal(sb_batch_add(batch, elf, "fixture_plain", &opts, NULL),
				 -1);
		assert_int_equal(errno, bad[i].code);
	}
	sb_elf_close(elf);
	sb_batch_free(batch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(large_batch_is_split),
		cmocka_unit_test(failure_takes_all_back),
		cmocka_unit_test(failure_of_all_is_of_no_target),
		cmocka_unit_test(messages_name_the_backend),
		cmocka_unit_test(named_twice_is_one_target),
		cmocka_unit_test(a_cgroup_must_be_one),
		cmocka_unit_test(symbols_become_targets),
		cmocka_unit_test(glob_adds_each_place),
		cmocka_unit_test(missing_symbol_adds_nothing),
		cmocka_unit_test(spec_overrides_options),
		cmocka_unit_test(python_pattern_is_refused),
		cmocka_unit_test(unknown_options_are_refused),
		cmocka_unit_test(delay_of_a_target_over_the_limit),
		cmocka_unit_test(what_has_no_duration_is_refused),
		cmocka_unit_test(what_has_one_is_taken),
		cmocka_unit_test(a_call_begins_before_its_stack_frame),
		cmocka_unit_test(a_part_excludes_a_time),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
