/* SPDX-License-Identifier: MIT */
#ifndef SB_RANGE_H
#define SB_RANGE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

/*
 * Whether @index is below @count. Else errno is ERANGE, as libsb.h says of every index that is
 * out of range, and what the function returns is up to it.
 */
static inline bool sb_is_below(size_t index, size_t count)
{
	if (index < count)
		return true;
	errno = ERANGE;
	return false;
}

#endif
