/* SPDX-License-Identifier: MIT */
#ifndef SB_POINTER_H
#define SB_POINTER_H

#include <stdint.h>

#include <linux/types.h>

/* A pointer as structures of system calls have it. */
static inline __u64 sb_to_u64(const void *pointer)
{
	return (uintptr_t)pointer;
}

#endif
