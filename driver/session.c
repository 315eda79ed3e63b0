// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Sessions.  A session is closed by the release of its file, which the kernel
 * does for a killed process too; the object itself lives until the last of its
 * targets is out of use.
 */
#include <linux/atomic.h>
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/err.h>
#include <linux/slab.h>

#include "compat.h"
#include "main.h"
#include "plan.h"
#include "session.h"
#include "target.h"
#include "user.h"

static atomic_t open_sessions = ATOMIC_INIT(0);

struct bump_session bump_persistent = {
	.ref = KREF_INIT(1),
	.targets = LIST_HEAD_INIT(bump_persistent.targets),
	.retire = __WORK_INITIALIZER(bump_persistent.retire, bump_target_retire_work),
	.retiring = LIST_HEAD_INIT(bump_persistent.retiring),
};

/* A missing capability is not an offence here: it is not reported to audit. */
static bool can(int capability)
{
	return ns_capable_noaudit(&init_user_ns, capability);
}

static int session_set_opener(struct bump_session *session)
{
	bool is_admin = can(CAP_SYS_ADMIN);

	if (is_admin)
		return 0;
	if (!can(CAP_PERFMON)) {
		if (!BUMP_DELAYS_HOLD_NO_LOCK)
			return -EOPNOTSUPP;
		if (!READ_ONCE(bump_unprivileged))
			return -EPERM;
		session->user = bump_user_get(current_uid());
		if (!session->user)
			return -ENOMEM;
	}
	session->opener = get_current_cred();
	return 0;
}

/* The session belongs to the calling task. */
struct bump_session *bump_session_create(void)
{
	struct bump_session *session;
	int err;

	session = kzalloc(sizeof(*session), GFP_KERNEL_ACCOUNT);
	if (!session)
		return ERR_PTR(-ENOMEM);
	err = session_set_opener(session);
	if (err) {
		kfree(session);
		return ERR_PTR(err);
	}
	kref_init(&session->ref);
	INIT_LIST_HEAD(&session->targets);
	session->enabled = true;
	INIT_WORK(&session->retire, bump_target_retire_work);
	INIT_LIST_HEAD(&session->retiring);
	atomic_inc(&open_sessions);
	return session;
}

static void session_free_rcu(struct rcu_head *rcu)
{
	struct bump_session *session = container_of(rcu, struct bump_session, rcu);

	put_cred(session->opener);
	kfree(session);
}

static void session_free(struct kref *ref)
{
	struct bump_session *session = container_of(ref, struct bump_session, ref);

	bump_plan_put(session->plan);
	bump_user_put(session->user);
	call_rcu(&session->rcu, session_free_rcu);	/* filters */
}

void bump_session_get(struct bump_session *session)
{
	kref_get(&session->ref);
}

void bump_session_put(struct bump_session *session)
{
	kref_put(&session->ref, session_free);
}

/* Its file is released: no target can be added any more. */
void bump_session_close(struct bump_session *session)
{
	bump_target_remove_all(session);
	atomic_dec(&open_sessions);
	bump_session_put(session);
}

u32 bump_session_count(void)
{
	return atomic_read(&open_sessions);
}
