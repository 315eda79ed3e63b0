/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_CGROUP_H
#define BUMP_CGROUP_H

#include <linux/sched.h>

#include "scope.h"

#ifdef CONFIG_CGROUPS
extern const struct bump_scope_ops bump_cgroup_ops;

bool bump_cgroup_fork(struct task_struct *parent, struct task_struct *child);
bool bump_cgroup_attach(struct cgroup *cgroup);
#else
static inline bool bump_cgroup_fork(struct task_struct *parent, struct task_struct *child)
{
	return false;
}
#endif

#endif /* BUMP_CGROUP_H */
