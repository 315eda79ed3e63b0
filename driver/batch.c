// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Checks of batches.
 */
#include <linux/errno.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>

#include "batch.h"

/**
 * bump_entries_check() - is an array of entries one that can be read?
 * @entries:	its address
 * @count:	how many
 * @entry_size:	the caller's size of each
 * @min_size:	that of the first version of the structure
 */
int bump_entries_check(u64 entries, u32 count, u32 entry_size, size_t min_size)
{
	if (count > SPEED_BUMP_MAX_BATCH)
		return -EINVAL;
	if (!count)
		return 0;
	if (entry_size < min_size)
		return -EINVAL;
	if (entry_size > PAGE_SIZE)
		return -E2BIG;
	if (!entries)
		return -EFAULT;
	return 0;
}

/**
 * bump_batch_check() - is the argument of an ioctl valid?
 * @b:		the argument; @failed is set for a failure before the first entry
 * @flags:	which flags the ioctl has
 * @min_size:	of an entry
 */
int bump_batch_check(struct speed_bump_batch *b, u32 flags, size_t min_size)
{
	b->failed = bump_batch_is_best_effort(b) ? 0 : b->count;
	if (b->reserved || (b->flags & ~flags))
		return -EINVAL;
	return bump_entries_check(b->entries, b->count, b->entry_size, min_size);
}

/* Between two entries: reschedules, and returns -EINTR if the task is being killed. */
int bump_batch_pause(void)
{
	cond_resched();
	return fatal_signal_pending(current) ? -EINTR : 0;
}
