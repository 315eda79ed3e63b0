/* SPDX-License-Identifier: MIT */
/* The targets that a command line adds, from arguments and files. */
#ifndef REQUEST_H
#define REQUEST_H

#include "libsb.h"

struct request {
	struct sb_batch *batch;
	struct sb_target_options options; /* defaults of each target */
	bool no_pid; /* pid= is refused */
	size_t passed_over; /* Python patterns in files */
};

/* Add the target in an argument to the batch. 0, or the exit status after a message. */
int request_text(struct request *request, const char *text, struct sb_error *err);
/*
 * Add the targets of a file, or of standard input ("-"). If the file has lines that begin
 * with "native:", only those are used, so that one file can serve Python too; otherwise
 * every line is a native target. 0, or the exit status after a message.
 */
int request_file(struct request *request, const char *path, struct sb_error *err);

/* After the batch has been added: print what may be unexpected about it. */
void request_notes(const struct request *request);

/* Whether an argument is a target and not a delay: it contains a ':'. */
bool is_target(const char *argument);
/* All of these arguments are to be targets. 0, or the exit status after a message. */
int need_targets(const char *command, char *const *arguments, int count);
/* Read a delay that is a time. 0, or the exit status after a message. */
int parse_delay(const char *command, const char *text, uint64_t *ns);
/* The same, or a percentage: then *@ppm is not 0. */
int parse_delay_or_part(const char *command, const char *text, uint64_t *ns,
			uint32_t *ppm);
/* Read a duration of any length. 0, or the exit status after a message. */
int parse_duration(const char *command, const char *text, uint64_t *ns);
/* Read the number of a process or thread. 0, or the exit status after a message. */
int parse_pid(const char *command, const char *text, pid_t *pid);
/* Read a whole number from 1 to @max. 0, or the exit status after a message. */
int parse_number(const char *command, const char *what, const char *text,
		 unsigned long max, unsigned long *number);

#endif
