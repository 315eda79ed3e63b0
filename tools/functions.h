/* SPDX-License-Identifier: MIT */
/* Functions of language runtimes that are slowed: "python:MODULE:FUNCTION". */
#ifndef FUNCTIONS_H
#define FUNCTIONS_H

#include <stddef.h>
#include <sys/types.h>

#include "json.h"
#include "libsb.h"

struct functions {
	struct sb_control *control;
	size_t *which;
	size_t count;
};

/*
 * Take what begins with "python:" out of @targets, and select the functions that it names:
 * globs, in process @pid where that is not 0. 0, or the exit status after a message where
 * one names none.
 */
int functions_select(struct functions *functions, char **targets, int *count, pid_t pid,
		     struct sb_error *err);
void functions_free(struct functions *functions);

/* Change those that are selected, and say so. 0, or the exit status after a message. */
int functions_enable(struct functions *functions, bool on, struct sb_error *err);
int functions_delay(struct functions *functions, uint64_t delay_ns, struct sb_error *err);
int functions_remove(struct functions *functions, struct sb_error *err);

/*
 * A note of how many there are, and in how many processes; nothing where there are none.
 * 0, or the exit status after a message.
 */
int functions_note(struct sb_error *err);
/* "functions": [...], and of how many processes some are left out. */
void functions_json(struct json *json, const struct sb_control *control);

#endif
