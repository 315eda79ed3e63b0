/* SPDX-License-Identifier: MIT */
/* Headers that have to precede cmocka.h, and common assertions. */
#ifndef UNIT_H
#define UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <string.h>
#include <cmocka.h>

#include "libsb-provisional.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* That @call fails with @code. Its message, if any, is in @err. */
#define assert_fails(call, code)               \
	do {                                   \
		errno = 0;                     \
		assert_true((call) == -1);     \
		assert_int_equal(errno, code); \
	} while (0)

#define assert_null_with(call, code)           \
	do {                                   \
		errno = 0;                     \
		assert_null(call);             \
		assert_int_equal(errno, code); \
	} while (0)

/* Check that a message contains @part. */
static inline void assert_says(const struct sb_error *err, const char *part)
{
	if (!strstr(sb_error_message(err), part))
		fail_msg("\"%s\" does not say \"%s\"", sb_error_message(err), part);
}

static inline struct sb_elf *elf_opened(const char *path, struct sb_error *err)
{
	struct sb_elf *elf = sb_elf_open(path, err);

	if (!elf)
		fail_msg("%s", sb_error_message(err));
	return elf;
}

/* Check that @text is refused with @code, and that the message contains @says. */
static inline void assert_not_found(struct sb_elf *elf, const char *text, int code,
				    const char *says, struct sb_error *err)
{
	errno = 0;
	if (sb_elf_find(elf, text, err))
		fail_msg("'%s' is found", text);
	assert_int_equal(errno, code);
	assert_says(err, says);
}

/* The result of the group @tests, as TAP. The variable @err has an error meanwhile. */
#define run_with_error(tests, err, setup, teardown)                      \
	({                                                               \
		int failed;                                              \
                                                                         \
		cmocka_set_message_output(CM_OUTPUT_TAP);                \
		(err) = sb_error_new();                                  \
		failed = cmocka_run_group_tests(tests, setup, teardown); \
		sb_error_free(err);                                      \
		failed;                                                  \
	})

#endif
