/* SPDX-License-Identifier: MIT */
/*
 * For tests of sessions: which backend is available, if any. Include it after cmocka.h.
 */
#ifndef SERVED_H
#define SERVED_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libsb.h"
#include "spin.h"

#define DEVICE "/dev/speed_bump"

/*
 * The reason why no session can be opened here, or NULL. Without SPEED_BUMP_BACKEND the
 * module is used.
 */
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

/*
 * Whether the tests can run here. If not, prints the reason as TAP; if so, prepares for
 * them.
 */
static inline bool is_served(struct sb_error *err, bool *is_bpf)
{
	const char *reason = why_not(err, is_bpf);

	if (reason) {
		/* cmocka 1.1 prints a skipped test as "not ok". */
		printf("1..0 # SKIP %s; guests have it (selftests/guest/run)\n", reason);
		return false;
	}
	cmocka_set_message_output(CM_OUTPUT_TAP);
	return true;
}

/* A session. The test fails if there is none. */
static inline struct sb_session *session_opened(struct sb_error *err)
{
	struct sb_session *session = sb_session_open(NULL, err);

	if (!session)
		fail_msg("%s", sb_error_message(err));
	return session;
}

/* Remove what tests by BPF left in the store besides persistent targets. */
static inline void remove_store(void)
{
	static const char *const names[] = { "switch-3", "threads-3" };
	const char *store = getenv("SPEED_BUMP_BPF_STORE");
	char path[4200];

	for (size_t i = 0; store && i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", store, names[i]);
		unlink(path);
	}
	if (store)
		assert_int_equal(rmdir(store), 0);
}

static inline uint64_t now(void)
{
	return sb_clock_gettime();
}

/* A counter of the session's only target. */
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
