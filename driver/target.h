/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_TARGET_H
#define BUMP_TARGET_H

#include <linux/atomic.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/path.h>
#include <linux/rcupdate.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "policy.h"
#include "probe.h"
#include "scope.h"
#include "stats.h"

struct bump_ends;
struct bump_session;

enum bump_target_state {
	BUMP_TARGET_ADDING,	/* hits are possible, and not delayed */
	BUMP_TARGET_LIVE,
	BUMP_TARGET_DYING,	/* delays end early, hits are not delayed */
};

/**
 * struct bump_target - a function to delay
 * @probe:	its breakpoint
 * @state:	enum bump_target_state
 * @policy:	its settings
 * @session:	the owner; held
 * @scope:	which tasks it delays; held
 * @stats:	statistics
 * @id:		never 0, never used again
 * @inode:	the file that really holds the code, below an overlay
 * @offset:	in @inode
 * @ref_ctr_offset: of the counter of its probes in @inode, or 0
 * @path:	the file as it was given; holds @inode and its mount
 * @label:	text for people, or NULL
 * @label_len:	its bytes
 * @claimed:	it is about to be removed; under the table's lock
 * @key:	in the table by identity; under the table's lock
 * @node:	in its owner's list under the table's lock, later in a removal's
 * @sleepers:	tasks that sleep for it
 * @turns:	hits that were counted for the frequency
 * @plan_place:	of a plan: its index among the targets + 1; 0: not among them
 * @is_unit:	of a plan: each hit is a unit of work
 * @moves:	of the scope, when the filter was last called; for the renewing work
 * @renewed:	in the renewing work's list
 * @ends:	of a target that catches the ends of its calls, or NULL
 * @ref:	the table's, and one of each reader
 * @rcu:	for freeing after readers of the table
 *
 * The members that every hit reads come first and are written only by an update.
 */
struct bump_target {
	struct bump_probe probe;
	enum bump_target_state state;
	struct bump_policy policy;
	struct bump_session *session;
	struct bump_scope *scope;
	struct bump_stats stats;

	u64 id;
	struct inode *inode;
	loff_t offset;
	loff_t ref_ctr_offset;
	struct path path;
	char *label;
	u32 label_len;
	bool claimed;
	struct hlist_node key;
	struct list_head node;
	wait_queue_head_t sleepers;
	atomic64_t turns;
	u32 plan_place;
	bool is_unit;
	int moves;
	struct list_head renewed;
	struct bump_ends *ends;
	struct kref ref;
	struct rcu_head rcu;
};

/**
 * struct bump_target_config - the arguments of bump_target_add()
 * @path:	the file; the caller's reference is not taken over
 * @offset:	in the file
 * @ref_ctr_offset: in the file, or 0
 * @settings:	what it does; the window counts from bump_target_publish(): when it
 *		is to start, and in place of the end how long it is
 * @scope:	which tasks it delays
 * @ends:	which a new target takes over, if it catches the ends of its calls; or NULL
 * @label:	text, which a new target takes over, or NULL
 * @label_len:	its bytes
 */
struct bump_target_config {
	const struct path *path;
	u64 offset;
	u64 ref_ctr_offset;
	struct bump_settings settings;
	struct bump_scope_name scope;
	struct bump_ends *ends;
	char *label;
	u32 label_len;
};

int bump_targets_init(void);
void bump_targets_exit(void);

struct bump_target *bump_target_add(struct bump_session *session,
				    const struct bump_target_config *config);
int bump_target_register(struct bump_target **targets, u32 count, bool best_effort);
void bump_target_publish(struct bump_target **targets, u32 count);
void bump_target_discard(struct bump_target **targets, u32 count);

int bump_target_remove(struct bump_session *session, const u64 *ids, u32 *errors, u32 count,
		       bool best_effort, u32 *failed);
u32 bump_target_remove_if(struct bump_session *session,
			  bool (*wanted)(const struct bump_target *target, const void *arg),
			  const void *arg);
void bump_target_remove_all(struct bump_session *session);

struct bump_target *bump_target_find(u64 id);
struct bump_target *bump_target_next(u64 after);
u64 bump_target_last_id(void);
void bump_target_put(struct bump_target *target);
void bump_target_count_skipped(u64 id, enum bump_sum why);
bool bump_target_is_mutable(const struct bump_target *target,
			    const struct bump_session *session);
bool bump_target_takes(const struct bump_target *target,
		       const struct speed_bump_update *update);
bool bump_target_is_visible(const struct bump_target *target,
			    const struct bump_session *session);

void bump_targets_renew(void);
void bump_target_retire_work(struct work_struct *work);

u32 bump_target_count(void);
u32 bump_target_count_of(const struct bump_session *session);

struct inode *bump_target_inode(const struct path *path);

#endif /* BUMP_TARGET_H */
