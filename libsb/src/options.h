/* SPDX-License-Identifier: MIT */
#ifndef SB_OPTIONS_H
#define SB_OPTIONS_H

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "error.h"

/*
 * That nothing is behind the last member of an option structure: a new one would lie in what
 * was padding, where callers that don't know of it have garbage within their size.
 */
#define SB_OPTIONS_END_WITH(type, member)                          \
	_Static_assert(offsetof(type, member) +                    \
				       sizeof(((type *)0)->member) \
			       == sizeof(type),                    \
		       "padding at the end of " #type)

/*
 * Copy an option structure of a caller that was compiled against another version
 * of the library: what it does not know is zero, what we do not know must be zero.
 * @size is ours, @from begins with the caller's size; NULL is all zero.
 */
static inline int sb_options_copy(void *to, size_t size, const void *from,
				  struct sb_error *err)
{
	const unsigned char *bytes = from;
	size_t theirs = 0;

	memset(to, 0, size);
	if (from) {
		memcpy(&theirs, from, sizeof(theirs));
		if (theirs < sizeof(theirs))
			return sb_error_set(err, EINVAL,
					    "the option structure's sz is not set");
		for (size_t i = size; i < theirs; i++)
			if (bytes[i])
				return sb_error_set(err, E2BIG,
						    "the program uses an option that "
						    "libsb " SB_VERSION
						    " does not know: update libsb");
		memcpy(to, from, theirs < size ? theirs : size);
	}
	memcpy(to, &size, sizeof(size));
	return 0;
}

#endif
