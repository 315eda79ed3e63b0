// SPDX-License-Identifier: MIT
/* Messages about sessions that can't be opened. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <string.h>
#include <cmocka.h>

#include "libsb.h"

static void no_device(void **state)
{
	struct sb_session_options opts = { .sz = sizeof(opts), .device = "/dev/nowhere" };
	struct sb_error *err = sb_error_new();

	(void)state;
	assert_null(sb_session_open(&opts, err));
	assert_int_equal(errno, ENOENT);
	assert_int_equal(sb_error_code(err), ENOENT);
	assert_non_null(strstr(sb_error_message(err), "/dev/nowhere"));
	assert_non_null(strstr(sb_error_message(err), "sbctl load"));
	sb_error_free(err);
}

static void another_device(void **state)
{
	struct sb_session_options opts = { .sz = sizeof(opts), .device = "/dev/null" };
	struct sb_error *err = sb_error_new();

	(void)state;
	assert_null(sb_session_open(&opts, err));
	assert_int_equal(errno, EPROTO);
	assert_non_null(strstr(sb_error_message(err), "/dev/null"));
	sb_error_free(err);
}

static void error_is_optional(void **state)
{
	struct sb_session_options opts = { .sz = sizeof(opts), .device = "/dev/nowhere" };

	(void)state;
	assert_null(sb_session_open(&opts, NULL));
	assert_int_equal(errno, ENOENT);
	sb_session_close(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_device),
		cmocka_unit_test(another_device),
		cmocka_unit_test(error_is_optional),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
