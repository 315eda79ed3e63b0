// SPDX-License-Identifier: MIT
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "message.h"
#include "sbctl.h"

static void say(const char *kind, const char *fmt, va_list args, const char *command)
{
	/* What went to stdout before belongs before it. */
	fflush(stdout);
	fprintf(stderr, "sbctl: %s", kind);
	vfprintf(stderr, fmt, args);
	if (command)
		fprintf(stderr, " (try 'sbctl%s%s --help')", *command ? " " : "",
			command);
	fputc('\n', stderr);
}

int fail(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	say("", fmt, args, NULL);
	va_end(args);
	return EXIT_FAILURE;
}

int fail_with(const struct sb_error *err)
{
	return fail("%s", sb_error_message(err));
}

void note(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	say("note: ", fmt, args, NULL);
	va_end(args);
}

int usage_error(const char *command, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	say("", fmt, args, command);
	va_end(args);
	return EXIT_USAGE;
}

int bad_option(const char *command, char **argv, int c)
{
	const char *word = argv[optind - 1];
	bool is_long = !strncmp(word, "--", 2);

	if (c == ':' && is_long)
		return usage_error(command, "option '%s' needs a value", word);
	if (c == ':')
		return usage_error(command, "option '-%c' needs a value", optopt);
	if (!optopt)
		return usage_error(command, "unknown option '%s'", word);
	if (is_long && strchr(word, '='))
		return usage_error(command, "option '%s' takes no value", word);
	return usage_error(command, "unknown option '-%c'", optopt);
}

int too_many_arguments(const char *command, const char *argument)
{
	return usage_error(command, "'%s' is one argument too many", argument);
}

struct sb_error *new_error(void)
{
	struct sb_error *err = sb_error_new();

	if (!err)
		exit(fail("out of memory"));
	return err;
}
