/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_GUARD_H
#define BUMP_GUARD_H

#include <linux/types.h>

struct cred;
struct file;
struct inode;
struct mm_struct;
struct task_struct;

bool bump_guard_allows(const struct cred *opener, struct task_struct *task,
		       struct mm_struct *mm);
bool bump_guard_allows_process(const struct cred *opener, struct task_struct *task);
bool bump_guard_is_memory_of(const struct file *mem, struct task_struct *task);
int bump_guard_check_file(struct inode *inode);

#endif /* BUMP_GUARD_H */
