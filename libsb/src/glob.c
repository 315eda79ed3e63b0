// SPDX-License-Identifier: MIT
#include <string.h>

#include "glob_match.h"

/*
 * Read the character at *@at and advance. A byte that is not UTF-8 counts as one
 * character, because file names are not always text.
 */
static uint32_t next_char(const char **at)
{
	const unsigned char *p = (const unsigned char *)*at;
	size_t more = p[0] >= 0xf0 ? 3 : p[0] >= 0xe0 ? 2 : p[0] >= 0xc2 ? 1 : 0;
	uint32_t code = p[0];

	if (more && p[0] <= 0xf4) {
		code &= 0x3fU >> more;
		for (size_t i = 1; i <= more; i++) {
			if ((p[i] & 0xc0) != 0x80) {
				*at += 1;
				return 0x110000U + p[0];
			}
			code = code << 6 | (p[i] & 0x3fU);
		}
		*at += more + 1;
		return code;
	}
	*at += 1;
	return p[0] < 0x80 ? code : 0x110000U + p[0];
}

/* The ']' that ends the set at @set, which follows its '['; NULL: it is not a set. */
static const char *set_end(const char *set)
{
	if (*set == '!')
		set++;
	if (*set == ']')
		set++;
	return strchr(set, ']');
}

static bool set_has(const char *set, const char *end, uint32_t c)
{
	bool wanted = true;

	if (*set == '!') {
		wanted = false;
		set++;
	}
	while (set < end) {
		uint32_t low = next_char(&set), high = low;

		if (*set == '-' && set + 1 < end) {
			set++;
			high = next_char(&set);
		}
		if (low <= c && c <= high)
			return wanted;
	}
	return !wanted;
}

/*
 * Match the element at *@glob, which is not '*', with the character @c; advance *@glob.
 */
static bool takes(const char **glob, uint32_t c)
{
	const char *end;

	if (**glob == '?') {
		++*glob;
		return true;
	}
	if (**glob == '[') {
		end = set_end(*glob + 1);
		if (end) {
			const char *set = *glob + 1;

			*glob = end + 1;
			return set_has(set, end, c);
		}
	}
	return next_char(glob) == c;
}

/*
 * Only the last '*' is retried: any text that an earlier one could match in addition, the
 * last can match too. So the time is at most the product of the lengths.
 */
bool sb_glob_match(const char *glob, const char *text)
{
	const char *star = NULL, *from = NULL;

	while (*text) {
		const char *rest = text;

		if (*glob == '*') {
			star = ++glob;
			from = text;
			if (!*star)
				return true;
			continue;
		}
		if (*glob && takes(&glob, next_char(&rest))) {
			text = rest;
			continue;
		}
		if (!star)
			return false;
		next_char(&from);
		text = from;
		glob = star;
	}
	while (*glob == '*')
		glob++;
	return !*glob;
}

bool sb_glob_is_literal(const char *glob)
{
	return !glob[strcspn(glob, "*?[")];
}
