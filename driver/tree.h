/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_TREE_H
#define BUMP_TREE_H

#include <linux/sched.h>

#include "scope.h"

struct bump_scope *bump_tree_get(struct task_struct *task, bool privileged);
void bump_tree_drop(struct bump_scope *tree);
s32 bump_tree_id(const struct bump_scope *tree);
bool bump_tree_wants(const struct bump_scope *tree, const struct task_struct *task);

void bump_tree_fork(const struct task_struct *parent, const struct task_struct *child);
void bump_tree_exit(const struct task_struct *task);

#endif /* BUMP_TREE_H */
