// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Whom the session of somebody without CAP_PERFMON may touch: the processes that
 * he could attach a debugger to.
 *
 * ptrace_may_access() is not exported, so its rules stand here once more, for the
 * case that no capability helps: all user and group ids are the opener's, the
 * process is dumpable (not after a set-uid exec, not where it asked for that),
 * lives in the opener's user namespace and has no capability that the opener does
 * not have.  Security modules are not asked, for which nothing is exported
 * either: who may open the device is decided by the administrator.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/mm_types.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/uidgid.h>

#include "compat.h"
#include "guard.h"

static bool is_same_user(const struct cred *opener, const struct cred *cred)
{
	return uid_eq(cred->uid, opener->uid) && uid_eq(cred->euid, opener->uid) &&
	       uid_eq(cred->suid, opener->uid) && gid_eq(cred->gid, opener->gid) &&
	       gid_eq(cred->egid, opener->gid) && gid_eq(cred->sgid, opener->gid);
}

/**
 * sb_guard_allows() - may a task be delayed, or memory have a breakpoint?
 * @opener:	who opened the session
 * @task:	whom it is about
 * @mm:		its memory
 *
 * Asked at every hit and by every filter, so that it holds also for who changes
 * later what he is.  Under RCU.
 */
bool sb_guard_allows(const struct cred *opener, struct task_struct *task, struct mm_struct *mm)
{
	const struct cred *cred = __task_cred(task);

	return is_same_user(opener, cred) && cred->user_ns == opener->user_ns &&
	       cap_issubset(cred->cap_permitted, opener->cap_permitted) &&
	       task_is_dumpable(task, mm);
}

/* May all threads of the process of @task? */
bool sb_guard_allows_process(const struct cred *opener, struct task_struct *task)
{
	struct mm_struct *mm = get_task_mm(task);
	struct task_struct *thread;
	bool allows = true;

	if (!mm)
		return false;
	rcu_read_lock();
	allows = sb_guard_allows(opener, task, mm);
	for_each_thread(task, thread)
		allows = allows && sb_guard_allows(opener, thread, mm);
	rcu_read_unlock();
	mmput(mm);
	return allows;
}
