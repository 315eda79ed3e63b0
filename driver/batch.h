/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Arrays of entries in user memory, as the ioctls of batches have them.
 */
#ifndef BUMP_BATCH_H
#define BUMP_BATCH_H

#include <linux/gfp.h>
#include <linux/kernel.h>
#include <linux/types.h>
#include <linux/uaccess.h>

#include <linux/speed_bump.h>

/*
 * For memory whose size the caller chooses: a request for more than is available fails
 * with ENOMEM, without a warning in the log.
 */
#define BUMP_USER_SIZED	(GFP_KERNEL_ACCOUNT | __GFP_NOWARN)

int bump_entries_check(u64 entries, u32 count, u32 entry_size, size_t min_size);
int bump_batch_check(struct speed_bump_batch *b, u32 flags, size_t min_size);
int bump_batch_pause(void);

static inline void __user *bump_entry_ptr(u64 entries, u32 entry_size, u32 i)
{
	return u64_to_user_ptr(entries) + (size_t)i * entry_size;
}

static inline void __user *bump_batch_entry(const struct speed_bump_batch *b, u32 i)
{
	return bump_entry_ptr(b->entries, b->entry_size, i);
}

static inline bool bump_batch_is_best_effort(const struct speed_bump_batch *b)
{
	return b->flags & SPEED_BUMP_BATCH_BEST_EFFORT;
}

/* Reads an entry of any version of its structure into the newest, of @size bytes. */
static inline int bump_batch_read(const struct speed_bump_batch *b, u32 i, void *entry,
				  size_t size)
{
	return copy_struct_from_user(entry, size, bump_batch_entry(b, i), b->entry_size);
}

#endif /* BUMP_BATCH_H */
