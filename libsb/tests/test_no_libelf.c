// SPDX-License-Identifier: MIT
/* A libsb that was built without libelf reports that, and everything else works. */
#include "unit.h"

static void says_what_is_missing(void **state)
{
	struct sb_error *err = sb_error_new();

	(void)state;
	assert_null_with(sb_elf_open("libc.so.6", err), ENOSYS);
	assert_says(err, "libelf-dev");
	assert_null_with(sb_elf_open("/bin/sh", NULL), ENOSYS);
	assert_null_with(sb_elf_open_fd(0, err), ENOSYS);
	assert_says(err, "libelf-dev");
	assert_null_with(sb_elf_open_pid(1, NULL, err), ENOSYS);
	assert_says(err, "libelf-dev");
	sb_elf_close(NULL);
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
