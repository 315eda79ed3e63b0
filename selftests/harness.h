/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * kselftest's harness with longer timeouts: under a debug kernel in a guest on a busy
 * machine, a test can take minutes.
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

#endif
