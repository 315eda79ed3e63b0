// SPDX-License-Identifier: MIT
/* A libsb that was built without libdw reports that. */
#include "unit.h"

static void says_what_is_missing(void **state)
{
	struct sb_error *err = sb_error_new();

	(void)state;
	assert_null_with(sb_sampler_new(err), ENOSYS);
	assert_says(err, "libdw-dev");
	assert_null_with(sb_sampler_new(NULL), ENOSYS);
	sb_sampler_free(NULL);
	sb_error_free(err);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(says_what_is_missing),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
