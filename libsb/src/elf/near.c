// SPDX-License-Identifier: MIT
/* Names that the user may have meant. */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "elf/near.h"
#include "free.h"

#define LONGEST 128 /* names that are compared */

unsigned int sb_near_limit(size_t length)
{
	return length < 4 ? 1 : length < 12 ? 2 : (unsigned int)length / 4;
}

unsigned int sb_near_distance(const char *a, size_t a_length, const char *b,
			      size_t b_length, unsigned int limit)
{
	unsigned int rows[3][LONGEST + 1];
	unsigned int *before = rows[0], *last = rows[1], *row = rows[2], *swap;

	if (a_length > LONGEST || b_length > LONGEST ||
	    (a_length > b_length ? a_length - b_length : b_length - a_length) > limit)
		return limit + 1;
	for (unsigned int j = 0; j <= b_length; j++)
		last[j] = j;
	for (unsigned int i = 1; i <= a_length; i++) {
		unsigned int least = row[0] = i;

		for (unsigned int j = 1; j <= b_length; j++) {
			bool same = tolower((unsigned char)a[i - 1]) ==
				    tolower((unsigned char)b[j - 1]);

			row[j] = last[j - 1] + !same;
			/* Two exchanged characters are one error. */
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] &&
			    a[i - 2] == b[j - 1] && before[j - 2] + 1 < row[j])
				row[j] = before[j - 2] + 1;
			if (last[j] + 1 < row[j])
				row[j] = last[j] + 1;
			if (row[j - 1] + 1 < row[j])
				row[j] = row[j - 1] + 1;
			if (row[j] < least)
				least = row[j];
		}
		if (least > limit)
			return limit + 1;
		swap = before;
		before = last;
		last = row;
		row = swap;
	}
	return last[b_length];
}

void sb_near_keep(struct near near[NEAR], const char *name, size_t length, unsigned int d)
{
	for (int i = 0; i < NEAR; i++) {
		if (near[i].name && strlen(near[i].name) == length &&
		    !memcmp(near[i].name, name, length))
			return;
		if (near[i].name && near[i].distance <= d)
			continue;
		sb_free(near[NEAR - 1].name);
		memmove(&near[i + 1], &near[i], (size_t)(NEAR - 1 - i) * sizeof(near[0]));
		near[i] = (struct near){ strndup(name, length), d };
		return;
	}
}

void sb_near_write(struct near near[NEAR], char *buf, size_t size)
{
	size_t used = 0;

	buf[0] = '\0';
	for (int i = 0; i < NEAR && near[i].name; i++) {
		int n = snprintf(buf + used, size - used, "%s%.200s",
				 i ? " or " : "; did you mean ", near[i].name);

		sb_free(near[i].name);
		used += n > 0 && (size_t)n < size - used ? (size_t)n : 0;
	}
	if (used && used + 1 < size)
		memcpy(buf + used, "?", 2);
}
