/* SPDX-License-Identifier: MIT */
/* What a command line asks to add: targets as arguments and in files. */
#ifndef REQUEST_H
#define REQUEST_H

#include "libsb.h"

struct request {
	struct sb_batch *batch;
	struct sb_target_options options; /* of targets that say nothing else */
	bool no_pid;			  /* a target may not name a process */
	size_t passed_over;		  /* Python patterns in files */
};

/*
 * Put the target that an argument names into the batch. 0, or the exit status after a
 * message.
 */
int request_text(struct request *request, const char *text, struct sb_error *err);
/*
 * Put the targets of a file into it, "-" being standard input. If it has lines that
 * begin with "native:", only those count, so that one file can serve Python too; else
 * every line is a native target.
 */
int request_file(struct request *request, const char *path, struct sb_error *err);

/* Once it has been added: what a person might not expect of it. */
void request_notes(const struct request *request);

/*
 * Whether an argument is a target and not a delay: it has the ':' that no delay has.
 */
bool is_target(const char *argument);
/* Read a delay. 0, or the exit status after a message. */
int parse_delay(const char *command, const char *text, uint64_t *ns);
/* Read a duration of any length. 0, or the exit status after a message. */
int parse_duration(const char *command, const char *text, uint64_t *ns);
/* Read a whole number from 1 on. 0, or the exit status after a message. */
int parse_number(const char *command, const char *what, const char *text,
		 unsigned long max, unsigned long *number);

#endif
