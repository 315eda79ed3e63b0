/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_SESSION_H
#define SB_SESSION_H

#include <linux/kref.h>
#include <linux/list.h>
#include <linux/types.h>

struct cred;
struct sb_plan;

/**
 * struct sb_session - an owner of targets: an open file, or the module itself
 * @ref:	the open file's and one of each target
 * @enabled:	the switch of its targets
 * @opener:	who opened it, if he may not do everything, or NULL
 * @count:	targets in @targets; under the table's lock
 * @targets:	its targets; under the table's lock
 * @plan:	the plan of its experiment, held, or NULL
 */
struct sb_session {
	struct kref ref;
	bool enabled;
	const struct cred *opener;
	u32 count;
	struct list_head targets;
	struct sb_plan *plan;
};

/* Owns the persistent targets.  Its switch is the global one. */
extern struct sb_session sb_persistent;

struct sb_session *sb_session_create(bool privileged);
void sb_session_close(struct sb_session *session);
u32 sb_session_count(void);

void sb_session_get(struct sb_session *session);
void sb_session_put(struct sb_session *session);

#endif /* SB_SESSION_H */
