/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * kselftest's harness, with more patience: under a kernel that looks for its own faults,
 * in a guest, on a busy machine, a test can take minutes.
 */
#ifndef SPEED_BUMP_HARNESS_H
#define SPEED_BUMP_HARNESS_H

#include "kselftest_harness.h"

/*
 * Seconds that a test may take, unless it says otherwise. What hangs is ended by the runner
 * (settings), which has more patience with a kernel that checks itself.
 */
#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT	1200

#endif
