// SPDX-License-Identifier: MIT
/*
 * Option structures of programs that were built with another version of the library. The test
 * "headers" checks that they have no space between their members.
 */
#include "unit.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "options.h"

/* The structure as the library has it, in this test. */
struct ours {
	size_t sz;
	uint64_t first, second;
};

static struct sb_error *err;

static void an_older_one_is_filled_with_zero(void **state)
{
	const struct {
		size_t sz;
		uint64_t first;
	} older = { sizeof(older), 5 };
	struct ours to;

	(void)state;
	memset(&to, 0xff, sizeof(to));
	assert_int_equal(sb_options_copy(&to, sizeof(to), &older, err), 0);
	assert_int_equal(to.sz, sizeof(to));
	assert_int_equal(to.first, 5);
	assert_int_equal(to.second, 0);
	memset(&to, 0xff, sizeof(to));
	assert_int_equal(sb_options_copy(&to, sizeof(to), NULL, err), 0);
	assert_int_equal(to.sz, sizeof(to));
	assert_int_equal(to.first, 0);
	assert_int_equal(to.second, 0);
}

static void a_newer_one_must_be_zero_behind(void **state)
{
	struct {
		struct ours known;
		uint64_t unknown[3];
	} newer = { .known = { sizeof(newer), 5, 6 } };
	struct ours to;

	(void)state;
	assert_int_equal(sb_options_copy(&to, sizeof(to), &newer, err), 0);
	assert_int_equal(to.sz, sizeof(to));
	assert_int_equal(to.first, 5);
	assert_int_equal(to.second, 6);
	for (size_t at = 0; at < sizeof(newer.unknown); at++) {
		((unsigned char *)newer.unknown)[at] = 1;
		assert_fails(sb_options_copy(&to, sizeof(to), &newer, err), E2BIG);
		assert_says(err, "an option that libsb");
		((unsigned char *)newer.unknown)[at] = 0;
	}
}

static void a_size_that_is_none(void **state)
{
	static const size_t none[] = { 0, 1, 7, 9, 12, 23 };
	struct ours first = { 0, 5, 6 }, to;
	/* Volatile: the compiler must not know the size behind the pointer. */
	struct ours *volatile given = &first;

	(void)state;
	for (size_t i = 0; i < COUNT_OF(none); i++) {
		given->sz = none[i];
		assert_fails(sb_options_copy(&to, sizeof(to), given, err), EINVAL);
		assert_says(err, "sz is not set");
	}
}

/* With an impossible size, nothing behind the structure is read. */
static void sizes_are_capped(void **state)
{
	static const size_t large[] = { 4104, 1U << 20, SIZE_MAX / 2 + 1, SIZE_MAX - 7 };
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ours *volatile hidden = (struct ours *)(pages + page) - 1;
	struct ours *given = hidden, to;

	(void)state;
	assert_true(pages != MAP_FAILED);
	assert_int_equal(mprotect(pages + page, page, PROT_NONE), 0);
	given->sz = sizeof(*given);
	assert_int_equal(sb_options_copy(&to, sizeof(to), given, err), 0);
	for (size_t i = 0; i < COUNT_OF(large); i++) {
		given->sz = large[i];
		assert_fails(sb_options_copy(&to, sizeof(to), given, err), E2BIG);
		assert_says(err, "no option structure is that large");
	}
	munmap(pages, 2 * page);
}

/* Each function that takes such a structure checks its size. */
static void all_functions_look(void **state)
{
	struct {
		struct sb_session_options known;
		uint64_t unknown;
	} session = { .known.sz = sizeof(session), .unknown = 1 };
	struct {
		struct sb_site_table_options known;
		uint64_t unknown;
	} opts = { .known = { .sz = sizeof(opts), .capacity = 8 } };
	struct {
		struct sb_site_policy known;
		uint64_t unknown;
	} policy = { .known.sz = sizeof(policy), .unknown = 1 };
	struct sb_site_table *table = sb_site_table_create(&opts.known, err);

	(void)state;
	assert_non_null(table);
	assert_null_with(sb_site_get(table, "m:f", &policy.known, err), E2BIG);
	sb_site_table_close(table);
	opts.unknown = 1;
	assert_null_with(sb_site_table_create(&opts.known, err), E2BIG);
	assert_null_with(sb_session_open(&session.known, err), E2BIG);
}

static void what_is_reserved_must_be_0(void **state)
{
	struct sb_session_options session = { .sz = sizeof(session), .reserved = 1 };
	const struct sb_site_table_options tables[] = { { .reserved = 1 },
							{ .enabled = 2 },
							{ .planned = 2 } };

	(void)state;
	assert_null_with(sb_session_open(&session, err), EINVAL);
	session = (struct sb_session_options){ .sz = sizeof(session), .backend = 7 };
	assert_null_with(sb_session_open(&session, err), EINVAL);
	session.backend = UINT32_MAX;
	assert_null_with(sb_session_open(&session, err), EINVAL);
	for (size_t i = 0; i < COUNT_OF(tables); i++) {
		struct sb_site_table_options opts = tables[i];

		opts.sz = sizeof(opts);
		assert_null_with(sb_site_table_create(&opts, err), EINVAL);
	}
}

static void features_are_those_of_the_build(void **state)
{
	uint64_t expected = 0;

	(void)state;
#ifdef HAVE_LIBELF
	expected |= SB_FEATURE_SYMBOLS;
#endif
#ifdef HAVE_LIBDW
	expected |= SB_FEATURE_LINES;
#endif
#ifdef HAVE_LIBKMOD
	expected |= SB_FEATURE_MODULE;
#endif
#ifdef HAVE_BPF
	expected |= SB_FEATURE_BPF;
#endif
	assert_int_equal(sb_features(), expected);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_older_one_is_filled_with_zero),
		cmocka_unit_test(a_newer_one_must_be_zero_behind),
		cmocka_unit_test(a_size_that_is_none),
		cmocka_unit_test(sizes_are_capped),
		cmocka_unit_test(all_functions_look),
		cmocka_unit_test(what_is_reserved_must_be_0),
		cmocka_unit_test(features_are_those_of_the_build),
	};

	return run_with_error(tests, err, NULL, NULL);
}
