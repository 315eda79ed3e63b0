/* SPDX-License-Identifier: MIT */
#ifndef SB_OPTIONS_H
#define SB_OPTIONS_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "error.h"

/* No version has a larger structure: the size was never set. */
#define SB_OPTIONS_MAX 4096

/*
 * Copy an option structure of a caller that was compiled against another version of the
 * library, as copy_struct_from_user() of the kernel does: members that the caller lacks become
 * zero, and members that the library lacks must be zero. @size is the size here, @from begins
 * with the caller's; NULL is all zero.
 */
static inline int sb_options_copy(void *to, size_t size, const void *from,
				  struct sb_error *err)
{
	const unsigned char *bytes = from;
	size_t theirs = 0;

	memset(to, 0, size);
	if (from) {
		memcpy(&theirs, from, sizeof(theirs));
		/* None ends within a member: all are of 8 bytes (SB_FILL), or two of 4. */
		if (!theirs || theirs % sizeof(uint64_t))
			return sb_error_set(err, EINVAL,
					    "the option structure's sz is not set");
		if (theirs > SB_OPTIONS_MAX)
			return sb_error_set(err, E2BIG,
					    "the option structure's sz is %zu: no option "
					    "structure is that large",
					    theirs);
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
