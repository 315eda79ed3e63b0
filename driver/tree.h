/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_TREE_H
#define BUMP_TREE_H

#include <linux/sched.h>

#include "scope.h"

extern const struct bump_scope_ops bump_tree_ops;

void bump_tree_fork(const struct task_struct *parent, const struct task_struct *child);
void bump_tree_exit(const struct task_struct *task);

#endif /* BUMP_TREE_H */
