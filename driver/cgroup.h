/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_CGROUP_H
#define BUMP_CGROUP_H

#include <linux/err.h>
#include <linux/sched.h>

#include "scope.h"

#ifdef CONFIG_CGROUPS
struct bump_scope *bump_cgroup_get(int fd);
void bump_cgroup_drop(struct bump_scope *scope);
bool bump_cgroup_has(const struct bump_scope *scope, struct task_struct *task);
bool bump_cgroup_wants(const struct bump_scope *scope, struct task_struct *task);

void bump_cgroup_fork(struct task_struct *parent, struct task_struct *child);
void bump_cgroup_attach(struct cgroup *cgroup);
#else
static inline struct bump_scope *bump_cgroup_get(int fd)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static inline void bump_cgroup_drop(struct bump_scope *scope)
{
}

static inline bool bump_cgroup_has(const struct bump_scope *scope, struct task_struct *task)
{
	return false;
}

static inline bool bump_cgroup_wants(const struct bump_scope *scope, struct task_struct *task)
{
	return false;
}

static inline void bump_cgroup_fork(struct task_struct *parent, struct task_struct *child)
{
}
#endif

#endif /* BUMP_CGROUP_H */
