/* SPDX-License-Identifier: MIT */
#ifndef SB_DECIMAL_H
#define SB_DECIMAL_H

#include <stdbool.h>
#include <stdint.h>

/*
 * A decimal number over 0 and at most @max in units of 1 / @unit, at the beginning of a
 * text; digits after the last significant place are ignored. *@end is the rest. -1: it is
 * not one.
 */
static inline int64_t sb_decimal(const char *at, int64_t max, int64_t unit,
				 const char **end)
{
	bool digits = false;
	int64_t n = 0;

	for (; *at >= '0' && *at <= '9' && n <= max; at++, digits = true)
		n = n * 10 + (*at - '0');
	max *= unit;
	n *= unit;
	if (*at == '.')
		for (at++; *at >= '0' && *at <= '9' && unit > 1; at++, digits = true) {
			unit /= 10;
			n += (*at - '0') * unit;
		}
	*end = at;
	return digits && n && n <= max ? n : -1;
}

#endif
