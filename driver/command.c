// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The commands of /sys/kernel/speed_bump/targets: from text to a structure.
 *
 * Compiles in user space too, where it is fuzzed (fuzz/).
 */
#include <linux/errno.h>
#include <linux/limits.h>
#include <linux/string.h>
#include <linux/types.h>

#include <linux/speed_bump.h>

#include "command.h"

/* The rest of the text. */
struct rest {
	const char *at;
	const char *end;
};

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static size_t rest_length(const struct rest *rest)
{
	return rest->end - rest->at;
}

/* Takes the next word, up to a blank; @word is empty at the end of the text. */
static void take_word(struct rest *rest, struct rest *word)
{
	while (rest->at < rest->end && is_blank(*rest->at))
		rest->at++;
	word->at = rest->at;
	while (rest->at < rest->end && !is_blank(*rest->at))
		rest->at++;
	word->end = rest->at;
}

/* Decimal digits, nothing else.  ERANGE above @max. */
static int parse_number(const struct rest *word, u64 max, u64 *number)
{
	const char *p;
	u64 n = 0;

	if (word->at == word->end)
		return -EINVAL;
	for (p = word->at; p < word->end; p++)
		if (!is_digit(*p))
			return -EINVAL;
	for (p = word->at; p < word->end; p++) {
		/* Cannot overflow: @max is far below the maximum of the type. */
		n = n * 10 + (*p - '0');
		if (n > max)
			return -ERANGE;
	}
	*number = n;
	return 0;
}

/* PATH:SYMBOL, split at the last colon.  The symbol ends at a blank. */
static int parse_place(struct bump_command *command, struct rest *rest)
{
	struct rest symbol;
	const char *colon;
	size_t path_len;

	for (colon = rest->end - 1; colon >= rest->at && *colon != ':'; colon--)
		;
	if (colon < rest->at || *rest->at != '/')
		return -EINVAL;

	path_len = colon - rest->at;
	symbol.at = colon + 1;
	for (symbol.end = symbol.at; symbol.end < rest->end; symbol.end++)
		if (is_blank(*symbol.end))
			break;
	if (symbol.at == symbol.end)
		return -EINVAL;
	if (path_len > BUMP_COMMAND_MAX_PATH || rest_length(&symbol) > BUMP_COMMAND_MAX_SYMBOL)
		return -ENAMETOOLONG;

	memcpy(command->path, rest->at, path_len);
	command->path[path_len] = '\0';
	memcpy(command->symbol, symbol.at, rest_length(&symbol));
	command->symbol[rest_length(&symbol)] = '\0';
	rest->at = symbol.end;
	return 0;
}

#define DECIMALS	4	/* of a percentage: it is in millionths */

/* A percentage without its sign, such as "5" or "0.25". */
static int parse_percentage(const struct rest *word, u32 *ppm)
{
	struct rest whole = *word, decimals;
	u64 units, rest = 0;
	int err, i;

	whole.end = memchr(word->at, '.', rest_length(word)) ?: word->end;
	err = parse_number(&whole, SPEED_BUMP_MAX_DELAY_PPM, &units);
	if (err)
		return err;
	if (whole.end < word->end) {
		decimals = (struct rest) { whole.end + 1, word->end };
		if (rest_length(&decimals) > DECIMALS)
			return -EINVAL;
		err = parse_number(&decimals, U32_MAX, &rest);
		if (err)
			return err;
		for (i = rest_length(&decimals); i < DECIMALS; i++)
			rest *= 10;
	}
	units = units * 10000 + rest;
	if (units > SPEED_BUMP_MAX_DELAY_PPM)
		return -ERANGE;
	*ppm = units;
	return units ? 0 : -EINVAL;
}

static int parse_delay(struct bump_command *command, const struct rest *word)
{
	struct rest number = { word->at, word->end - 1 };

	command->has_delay = true;
	if (*number.end == '%')
		return parse_percentage(&number, &command->delay_ppm);
	return parse_number(word, SPEED_BUMP_MAX_DELAY_NS, &command->delay_ns);
}

static int parse_pid(struct bump_command *command, const struct rest *word)
{
	static const char key[] = "pid=";
	struct rest value = *word;
	u64 pid;

	if (rest_length(word) < strlen(key) || memcmp(word->at, key, strlen(key)))
		return -EINVAL;
	value.at += strlen(key);
	if (parse_number(&value, S32_MAX, &pid) || !pid)
		return -EINVAL;
	command->pid = pid;
	return 0;
}

static int parse_options(struct bump_command *command, struct rest *rest)
{
	struct rest word;
	int err;

	take_word(rest, &word);
	if (command->verb != BUMP_COMMAND_REMOVE && word.at < word.end && *word.at != 'p') {
		err = parse_delay(command, &word);
		if (err)
			return err;
		take_word(rest, &word);
	}
	if (word.at < word.end) {
		err = parse_pid(command, &word);
		if (err)
			return err;
		take_word(rest, &word);
	}
	if (word.at < word.end)
		return -EINVAL;
	if (command->verb == BUMP_COMMAND_UPDATE && !command->has_delay)
		return -EINVAL;
	return 0;
}

/**
 * bump_command_parse() - parse a command
 * @command:	[out] the parsed command; undefined on failure
 * @text:	the command, with or without a newline at its end
 * @len:	its bytes
 *
 * Return: 0, EINVAL (malformed), ENAMETOOLONG (path or symbol) or ERANGE (delay).
 */
int bump_command_parse(struct bump_command *command, const char *text, size_t len)
{
	struct rest rest = { text, text + len };
	int err;

	memset(command, 0, sizeof(*command));
	if (len && text[len - 1] == '\n')
		rest.end--;
	/* One command for each write, and no NUL, which a path can't contain. */
	if (rest.at == rest.end || memchr(rest.at, '\n', rest_length(&rest)) ||
	    memchr(rest.at, '\0', rest_length(&rest)))
		return -EINVAL;

	switch (*rest.at++) {
	case '+':
		command->verb = BUMP_COMMAND_ADD;
		break;
	case '=':
		command->verb = BUMP_COMMAND_UPDATE;
		break;
	case '-':
		command->verb = BUMP_COMMAND_REMOVE;
		if (rest_length(&rest) == 1 && *rest.at == '*') {
			command->verb = BUMP_COMMAND_REMOVE_ALL;
			return 0;
		}
		break;
	default:
		return -EINVAL;
	}

	err = parse_place(command, &rest);
	return err ?: parse_options(command, &rest);
}
