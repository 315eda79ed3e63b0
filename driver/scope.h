/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_SCOPE_H
#define SB_SCOPE_H

#include <linux/bitops.h>
#include <linux/list.h>
#include <linux/pid.h>
#include <linux/rcupdate.h>
#include <linux/refcount.h>
#include <linux/sched.h>
#include <linux/spinlock.h>

#include <linux/speed_bump.h>

/**
 * struct sb_scope - whom a target delays
 * @type:	SPEED_BUMP_SCOPE_*
 * @ref:	one of each target
 * @root:	tree: the process it begins with; held
 * @members:	tree: a bit for each process in it, by its number in the initial
 *		namespace
 * @lock:	tree: writers of @members.  Innermost
 * @scanning:	tree: it is being built
 * @node:	tree: in the list of all; written under its mutex, read under RCU
 * @rcu:	tree: for freeing
 */
struct sb_scope {
	u32 type;
	refcount_t ref;
	struct pid *root;
	unsigned long *members;
	raw_spinlock_t lock;
	bool scanning;
	struct list_head node;
	struct rcu_head rcu;
};

int sb_scope_init(void);
void sb_scope_exit(void);
u64 sb_scope_features(void);

struct sb_scope *sb_scope_get(u32 type, s32 id);
void sb_scope_put(struct sb_scope *scope);
s32 sb_scope_id(const struct sb_scope *scope);
bool sb_scope_wants(const struct sb_scope *scope, struct mm_struct *mm);

/* Is @task, which is running, to be delayed? */
static inline bool sb_scope_has(const struct sb_scope *scope, const struct task_struct *task)
{
	return scope->type == SPEED_BUMP_SCOPE_SYSTEM || test_bit(task->tgid, scope->members);
}

#endif /* SB_SCOPE_H */
