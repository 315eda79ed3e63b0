/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_THREAD_H
#define BUMP_THREAD_H

#include <linux/pid.h>
#include <linux/sched.h>

#include "scope.h"

void bump_thread_init(void);

struct bump_scope *bump_thread_get(struct task_struct *task);
void bump_thread_drop(struct bump_scope *scope);
s32 bump_thread_id(const struct bump_scope *scope);
bool bump_thread_wants(const struct bump_scope *scope, const struct mm_struct *mm);

/* Is @task, which is running, to be delayed? */
static inline bool bump_thread_has(const struct bump_scope *scope, struct task_struct *task)
{
	return task_pid(task) == scope->pid;
}

#endif /* BUMP_THREAD_H */
