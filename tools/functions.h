/* SPDX-License-Identifier: MIT */
/* Functions of language runtimes that are slowed: "python:MODULE:FUNCTION". */
#ifndef FUNCTIONS_H
#define FUNCTIONS_H

#include <stddef.h>
#include <sys/types.h>

#include "json.h"
#include "libsb-provisional.h"

struct functions {
	struct sb_control *control;
	size_t *which;
	size_t count, room; /* of @which */
};

/*
 * Remove the globs that begin with "python:" from @targets, and select the functions that
 * they match, only those of process @pid if it is not 0. Returns 0, or the exit status
 * after a message if a glob matches none.
 */
int functions_select(struct functions *functions, char **targets, int *count, pid_t pid,
		     struct sb_error *err);
void functions_free(struct functions *functions);

/* Change the selected functions and print them. 0, or the exit status after a message. */
int functions_enable(struct functions *functions, bool on, struct sb_error *err);
int functions_delay(struct functions *functions, uint64_t delay_ns, struct sb_error *err);
int functions_remove(struct functions *functions, struct sb_error *err);

/*
 * Print a note with the number of slowed functions and of their processes, if there are
 * any. 0, or the exit status after a message.
 */
int functions_note(struct sb_error *err);
/* "functions": [...], and the number of processes of which some are left out. */
void functions_json(struct json *json, const struct sb_control *control);

#endif
