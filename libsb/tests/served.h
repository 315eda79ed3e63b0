/* SPDX-License-Identifier: MIT */
/* For tests of sessions: by what they are served, if at all. Include it after cmocka.h. */
#ifndef SERVED_H
#define SERVED_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libsb.h"

#define DEVICE "/dev/speed_bump"

/* Why no session can be had here, or NULL. Who does not say by what means the module. */
static inline const char *why_not(struct sb_error *err, bool *is_bpf)
{
	struct sb_session *session;

	if (!err)
		return "no memory";
	if (!getenv("SPEED_BUMP_BACKEND"))
		return access(DEVICE, F_OK) ? "no " DEVICE : NULL;
	session = sb_session_open(NULL, err);
	if (session && is_bpf)
		*is_bpf = !strcmp(sb_session_backend(session), "bpf");
	sb_session_close(session);
	return session ? NULL : sb_error_message(err);
}

/* Whether the tests can run here; says why not, in TAP, or prepares for them. */
static inline bool is_served(struct sb_error *err, bool *is_bpf)
{
	const char *reason = why_not(err, is_bpf);

	if (reason) {
		/* cmocka 1.1 writes a skipped test as "not ok". */
		printf("1..0 # SKIP %s; guests have it (selftests/guest/run)\n", reason);
		return false;
	}
	cmocka_set_message_output(CM_OUTPUT_TAP);
	return true;
}

static inline uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000U + (uint64_t)ts.tv_nsec;
}

/* Of the one target that the session has. */
static inline uint64_t counter(struct sb_session *session, enum sb_counter which)
{
	struct sb_target_list *list =
		sb_session_list(session, SB_LIST_SESSION, NULL, NULL);
	uint64_t value;

	assert_non_null(list);
	assert_int_equal(sb_target_list_count(list), 1);
	value = sb_target_list_counter(list, 0, which);
	sb_target_list_free(list);
	return value;
}

#endif
