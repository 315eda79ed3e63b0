// SPDX-License-Identifier: MIT
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "decimal.h"
#include "libsb.h"

static const struct {
	const char *name;
	int digits; /* nanoseconds are 10^digits of it */
} units[] = {
	{ "", 0 },	    { "ns", 0 }, { "us", 3 }, { "\302\265s", 3 }, /* MICRO SIGN */
	{ "\316\274s", 3 }, /* GREEK SMALL LETTER MU */
	{ "ms", 6 },	    { "s", 9 },
};

static int unit_digits(const char *name)
{
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (!strcmp(units[i].name, name))
			return units[i].digits;
	return -1;
}

static int fail(int code)
{
	errno = code;
	return -1;
}

/* Append @count decimal digits to @value; false on overflow. */
static bool append(uint64_t *value, const char *digits, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (__builtin_mul_overflow(*value, 10, value) ||
		    __builtin_add_overflow(*value, (uint64_t)(digits[i] - '0'), value))
			return false;
	return true;
}

int sb_duration_parse(const char *text, uint64_t *ns)
{
	static const char zeros[] = "000000000", digits[] = "0123456789";
	size_t whole = strspn(text, digits), decimals = 0;
	const char *fraction = text + whole, *unit = fraction;
	uint64_t value = 0;
	int wanted;

	if (*fraction == '.') {
		decimals = strspn(++fraction, digits);
		if (!decimals)
			return fail(EINVAL);
		unit = fraction + decimals;
	}
	wanted = unit_digits(unit);
	if (!whole || wanted < 0)
		return fail(EINVAL);
	while (decimals && fraction[decimals - 1] == '0')
		decimals--;
	if (decimals > (size_t)wanted)
		return fail(EINVAL);
	if (!append(&value, text, whole) || !append(&value, fraction, decimals) ||
	    !append(&value, zeros, (size_t)wanted - decimals))
		return fail(ERANGE);
	*ns = value;
	return 0;
}

int sb_duration_format(uint64_t ns, char *buf, size_t size)
{
	static const struct {
		const char *name;
		uint64_t ns;
		int digits;
	} scale[] = { { "s", 1000000000, 9 }, { "ms", 1000000, 6 }, { "us", 1000, 3 } };

	for (size_t i = 0; i < sizeof(scale) / sizeof(scale[0]); i++) {
		uint64_t whole = ns / scale[i].ns, rest = ns % scale[i].ns;
		int digits = scale[i].digits;

		if (!whole)
			continue;
		if (!rest)
			return snprintf(buf, size, "%" PRIu64 "%s", whole, scale[i].name);
		for (; rest % 10 == 0; digits--)
			rest /= 10;
		return snprintf(buf, size, "%" PRIu64 ".%0*" PRIu64 "%s", whole, digits,
				rest, scale[i].name);
	}
	return snprintf(buf, size, "%" PRIu64 "ns", ns);
}

/* millionths in 1% */
#define PERCENT 10000

int sb_percentage_parse(const char *text, uint32_t *ppm)
{
	const char *end;
	int64_t n = sb_decimal(text, SB_MAX_DELAY_PERCENT, PERCENT, &end);

	if (n < 0 || strcmp(end, "%") != 0)
		return fail(EINVAL);
	*ppm = (uint32_t)n;
	return 0;
}

int sb_percentage_format(uint32_t ppm, char *buf, size_t size)
{
	uint32_t whole = ppm / PERCENT, rest = ppm % PERCENT;
	int digits = 4;

	if (!rest)
		return snprintf(buf, size, "%" PRIu32 "%%", whole);
	for (; rest % 10 == 0; digits--)
		rest /= 10;
	return snprintf(buf, size, "%" PRIu32 ".%0*" PRIu32 "%%", whole, digits, rest);
}
