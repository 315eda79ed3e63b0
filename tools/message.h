/* SPDX-License-Identifier: MIT */
#ifndef MESSAGE_H
#define MESSAGE_H

#include "libsb.h"

/* "sbctl: ..." on stderr, one line. Returns EXIT_FAILURE. */
int fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same with the message of an error. */
int fail_with(const struct sb_error *err);
/* "sbctl: note: ...", for what is no error. */
void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same, with where to read how it is done. Returns EXIT_USAGE. */
int usage_error(const char *command, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* What getopt_long() refused by returning @c. Returns EXIT_USAGE. */
int bad_option(const char *command, char **argv, int c);
/* Where arguments are left over. Returns EXIT_USAGE. */
int too_many_arguments(const char *command, const char *argument);

/*
 * The arguments of a command that takes none, and no option but --help and, unless @json is
 * NULL, --json. GO_ON, or the exit status.
 */
int parse_no_arguments(int argc, char **argv, void (*print_help)(void), bool *json);

/* An sb_error_new() that ends the program where there is no memory. */
struct sb_error *new_error(void);
/*
 * Make @text fit to be shown: what would steer the terminal, and what is no UTF-8, is '?'.
 * Names and labels come from other processes. Returns @text.
 */
char *printable(char *text);

#endif
