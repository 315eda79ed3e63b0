/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_GUARD_H
#define SB_GUARD_H

#include <linux/types.h>

struct cred;
struct mm_struct;
struct task_struct;

bool sb_guard_allows(const struct cred *opener, struct task_struct *task, struct mm_struct *mm);
bool sb_guard_allows_process(const struct cred *opener, struct task_struct *task);

#endif /* SB_GUARD_H */
