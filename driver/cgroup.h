/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_CGROUP_H
#define SB_CGROUP_H

#include <linux/err.h>
#include <linux/sched.h>

#include "scope.h"

#ifdef CONFIG_CGROUPS
struct sb_scope *sb_cgroup_get(int fd);
void sb_cgroup_drop(struct sb_scope *scope);
bool sb_cgroup_has(const struct sb_scope *scope, struct task_struct *task);
bool sb_cgroup_wants(const struct sb_scope *scope, struct task_struct *task);

void sb_cgroup_fork(struct task_struct *parent, struct task_struct *child);
void sb_cgroup_attach(struct cgroup *cgroup);
#else
static inline struct sb_scope *sb_cgroup_get(int fd)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static inline void sb_cgroup_drop(struct sb_scope *scope)
{
}

static inline bool sb_cgroup_has(const struct sb_scope *scope, struct task_struct *task)
{
	return false;
}

static inline bool sb_cgroup_wants(const struct sb_scope *scope, struct task_struct *task)
{
	return false;
}

static inline void sb_cgroup_fork(struct task_struct *parent, struct task_struct *child)
{
}
#endif

#endif /* SB_CGROUP_H */
