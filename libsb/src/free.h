/* SPDX-License-Identifier: MIT */
#ifndef SB_FREE_H
#define SB_FREE_H

#include <errno.h>
#include <stdlib.h>

/*
 * free(3) that keeps errno, which that of the C library may change (glibc before 2.33). A call
 * that fails has set errno before it releases what it used.
 */
static inline void sb_free(void *memory)
{
	int code = errno;

	free(memory);
	/* Some GCC take it that free() keeps errno, and leave the next line out (PR98396). */
	__asm__ volatile("" ::: "memory");
	errno = code;
}

#endif
