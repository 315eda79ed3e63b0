// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Sessions.  A session is closed by the release of its file, which the kernel
 * does for a killed process too; the object itself lives until the last of its
 * targets is out of use.
 */
#include <linux/atomic.h>
#include <linux/cred.h>
#include <linux/slab.h>

#include "plan.h"
#include "session.h"
#include "target.h"

static atomic_t open_sessions = ATOMIC_INIT(0);

struct sb_session sb_persistent = {
	.ref = KREF_INIT(1),
	.targets = LIST_HEAD_INIT(sb_persistent.targets),
};

/* Of the calling task, who may do everything or has to be watched. */
struct sb_session *sb_session_create(bool privileged)
{
	struct sb_session *session;

	session = kzalloc(sizeof(*session), GFP_KERNEL_ACCOUNT);
	if (!session)
		return NULL;
	kref_init(&session->ref);
	INIT_LIST_HEAD(&session->targets);
	session->enabled = true;
	session->opener = privileged ? NULL : get_current_cred();
	atomic_inc(&open_sessions);
	return session;
}

static void session_free(struct kref *ref)
{
	struct sb_session *session = container_of(ref, struct sb_session, ref);

	sb_plan_put(session->plan);
	put_cred(session->opener);
	kfree(session);
}

void sb_session_get(struct sb_session *session)
{
	kref_get(&session->ref);
}

void sb_session_put(struct sb_session *session)
{
	kref_put(&session->ref, session_free);
}

/* Nobody else can add to the session any more: its file is gone. */
void sb_session_close(struct sb_session *session)
{
	sb_target_remove_all(session);
	atomic_dec(&open_sessions);
	sb_session_put(session);
}

u32 sb_session_count(void)
{
	return atomic_read(&open_sessions);
}
