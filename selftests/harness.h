/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * kselftest's harness with longer timeouts, because under a debug kernel in a guest on a busy
 * machine a test can take minutes, and with a SKIP() that can be used in every set-up.
 */
#ifndef SPEED_BUMP_HARNESS_H
#define SPEED_BUMP_HARNESS_H

#include "kselftest_harness.h"

/*
 * The timeout of a test in seconds, unless the test sets another. The runner ends tests
 * that hang (settings); its timeout is longer on a debug kernel.
 */
#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT	1200

/*
 * After a SKIP() in the set-up, the harnesses of 5.10 and 6.1 run the test with nothing set
 * up, because their SKIP() sets "passed", and only a set-up without it ends the test. All
 * harnesses that have "passed" (the Makefile looks) report a test with "skip" as skipped,
 * passed or not.
 */
#ifdef SB_HARNESS_HAS_PASSED
#undef SKIP
#define SKIP(statement, fmt, ...) do {							\
	snprintf(_metadata->results->reason, sizeof(_metadata->results->reason),	\
		 fmt, ##__VA_ARGS__);							\
	_metadata->skip = 1;								\
	_metadata->passed = 0;								\
	statement;									\
} while (0)
#endif

#endif
