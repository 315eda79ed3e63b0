/* SPDX-License-Identifier: MIT */
#ifndef MESSAGE_H
#define MESSAGE_H

#include "libsb.h"

/* "sbctl: ..." on stderr, one line. Returns EXIT_FAILURE. */
int fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* fail() with the message of an error. */
int fail_with(const struct sb_error *err);
/* "sbctl: note: ..." on stderr; not an error. */
void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* fail() with a hint to the command's --help. Returns EXIT_USAGE. */
int usage_error(const char *command, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Report the option for which getopt_long() returned @c. Returns EXIT_USAGE. */
int bad_option(const char *command, char **argv, int c);
/* Report a superfluous argument. Returns EXIT_USAGE. */
int too_many_arguments(const char *command, const char *argument);

/*
 * Parse the command line of a command that takes no arguments, and no options except
 * --help and, unless @json is NULL, --json. Returns GO_ON, or the exit status.
 */
int parse_no_arguments(int argc, char **argv, void (*print_help)(void), bool *json);

/* sb_error_new(), but ends the program if there is no memory. */
struct sb_error *new_error(void);
/*
 * Replace control characters and invalid UTF-8 in @text by '?': names and labels come
 * from other processes, and must not control the terminal. Returns @text.
 */
char *printable(char *text);

#endif
