/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * As much of a kernel as driver/elf.c and driver/command.c ask for, in user space.
 * Included before everything else; a file is a piece of memory.
 */
#ifndef SB_FUZZ_KERNEL_H
#define SB_FUZZ_KERNEL_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <linux/types.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;

#define S32_MAX		INT32_MAX
#define U32_MAX		UINT32_MAX
#define ARRAY_SIZE(a)	(sizeof(a) / sizeof((a)[0]))
#define min_t(type, a, b) ((type)(a) < (type)(b) ? (type)(a) : (type)(b))

#define GFP_KERNEL	0
#define kzalloc(size, gfp) calloc(1, size)
#define kfree(p)	free(p)

#define cond_resched()	((void)0)
#define fatal_signal_pending(task) false

#define ELF_DATA	ELFDATA2LSB
#if defined(__x86_64__)
#define ELF_ARCH	EM_X86_64
#elif defined(__aarch64__)
#define ELF_ARCH	EM_AARCH64
#else
#error "x86_64 and aarch64 only"
#endif

struct file {
	const u8 *data;
	size_t size;
	unsigned long reads;
};

#define file_inode(file) (file)
#define i_size_read(file) ((file)->size)

static inline ssize_t kernel_read(struct file *file, void *to, size_t size, loff_t *pos)
{
	/* The callers check the size, and never read beyond the end. */
	if (*pos < 0 || *pos > file->size || size > file->size - *pos)
		abort();
	memcpy(to, file->data + *pos, size);
	*pos += size;
	file->reads++;
	return size;
}

#endif /* SB_FUZZ_KERNEL_H */
