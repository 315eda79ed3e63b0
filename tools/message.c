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
	/* Keep the order of stdout and stderr. */
	fflush(stdout);
	fprintf(stderr, "sbctl: %s", kind);
	vfprintf(stderr, fmt, args);
	if (command)
		fprintf(stderr, " (try 'sbctl%s%s --help')", *command ? " " : "", command);
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

/* Length of the UTF-8 character at @at; 0 if it is invalid or a control character. */
static size_t shown_length(const unsigned char *at)
{
	size_t length = *at < 0x80 ? 1 :
			*at < 0xc2 ? 0 :
			*at < 0xe0 ? 2 :
			*at < 0xf0 ? 3 :
			*at < 0xf5 ? 4 :
				     0;

	/* U+0080 to U+009F are control characters too. */
	if (*at < ' ' || *at == 0x7f || (*at == 0xc2 && at[1] < 0xa0))
		return 0;
	for (size_t i = 1; i < length; i++)
		if ((at[i] & 0xc0) != 0x80)
			return 0;
	return length;
}

char *printable(char *text)
{
	for (char *at = text; *at;) {
		size_t length = shown_length((const unsigned char *)at);

		if (!length)
			*at = '?';
		at += length ? length : 1;
	}
	return text;
}

int fail_with(const struct sb_error *err)
{
	char *text = strdup(sb_error_message(err));
	int ret;

	if (!text)
		return fail("out of memory");
	/* printable() would replace the newlines. */
	for (char *line = text, *end; line; line = end) {
		end = strchr(line, '\n');
		if (end)
			*end = '\0';
		printable(line);
		if (end)
			*end++ = '\n';
	}
	ret = fail("%s", text);
	free(text);
	return ret;
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
	return usage_error(command, "unexpected argument '%s'", argument);
}

int parse_no_arguments(int argc, char **argv, void (*print_help)(void), bool *json)
{
	static const struct option options[] = {
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, json ? ":jh" : ":h", options + !json, NULL)) !=
	       -1) {
		if (c == 'h') {
			print_help();
			return 0;
		}
		if (c != 'j')
			return bad_option(argv[0], argv, c);
		*json = true;
	}
	if (optind < argc)
		return too_many_arguments(argv[0], argv[optind]);
	return GO_ON;
}

struct sb_error *new_error(void)
{
	struct sb_error *err = sb_error_new();

	if (!err)
		exit(fail("out of memory"));
	return err;
}
