/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_TREE_H
#define SB_TREE_H

#include <linux/sched.h>

#include "scope.h"

struct sb_scope *sb_tree_get(struct task_struct *task, bool privileged);
void sb_tree_drop(struct sb_scope *tree);
s32 sb_tree_id(const struct sb_scope *tree);
bool sb_tree_wants(const struct sb_scope *tree, const struct task_struct *task);

void sb_tree_fork(const struct task_struct *parent, const struct task_struct *child);
void sb_tree_exit(const struct task_struct *task);

#endif /* SB_TREE_H */
