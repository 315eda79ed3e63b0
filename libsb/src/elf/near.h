/* SPDX-License-Identifier: MIT */
#ifndef SB_NEAR_H
#define SB_NEAR_H

#include <stddef.h>

#define NEAR 3 /* names in a message */

struct near {
	char *name;
	unsigned int distance;
};

/* The maximal distance of a name that may have been meant, for a name of this length. */
unsigned int sb_near_limit(size_t length);
/*
 * The number of characters to change, ignoring case; @limit + 1 if it exceeds @limit.
 */
unsigned int sb_near_distance(const char *a, size_t a_length, const char *b,
			      size_t b_length, unsigned int limit);
/* Keep a name if it is one of the nearest so far; @near is zero at first. */
void sb_near_keep(struct near near[NEAR], const char *name, size_t length, unsigned int d);
/* Write "; did you mean A or B?", or nothing, and free the names. */
void sb_near_write(struct near near[NEAR], char *buf, size_t size);

#endif
