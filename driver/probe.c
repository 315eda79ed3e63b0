// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Breakpoints: the only file that calls uprobes.
 */
#include "compat.h"
#include "delay.h"
#include "probe.h"
#include "scope.h"
#include "session.h"
#include "target.h"

static struct sb_target *consumer_target(struct uprobe_consumer *uc)
{
	return container_of(uc, struct sb_target, probe.consumer);
}

/*
 * Runs in the task that hit the breakpoint, may sleep.  A child inherits the
 * breakpoints of its parent without the filter being asked; where it turns out
 * not to be in the scope they are taken out of it at the first hit.
 */
static int hit(struct uprobe_consumer *uc)
{
	struct sb_target *target = consumer_target(uc);
	const struct cred *opener = target->session->opener;

	/* pairs with sb_target_publish() */
	if (smp_load_acquire(&target->state) != SB_TARGET_LIVE)
		return 0;

	if (!sb_scope_has(target->scope, opener, current))
		return sb_scope_wants(target->scope, opener, current->mm) ?
		       0 : UPROBE_HANDLER_REMOVE;

	sb_delay_hit(target);
	return 0;
}

DEFINE_UPROBE_HANDLER(hit)

/* Runs under the mmap_lock of @mm: no lock of ours may be taken. */
static bool wants(struct uprobe_consumer *uc, struct mm_struct *mm)
{
	struct sb_target *target = consumer_target(uc);

	return sb_scope_wants(target->scope, target->session->opener, mm);
}

DEFINE_UPROBE_FILTER(wants)

/* Hits are the target's own consumer's; "stays" is all that can be said here. */
static int hit_again(struct uprobe_consumer *uc)
{
	return 0;
}

DEFINE_UPROBE_HANDLER(hit_again)

static bool wants_again(struct uprobe_consumer *uc, struct mm_struct *mm)
{
	struct sb_target *target = container_of(uc, struct sb_target, probe.again);

	return sb_scope_wants(target->scope, target->session->opener, mm);
}

DEFINE_UPROBE_FILTER(wants_again)

/*
 * Does the architecture say that it can't do the instruction?  arm64 calls it
 * invalid, as the kernel does a place where no instruction can begin.
 */
static bool is_refusal(int err, loff_t offset)
{
	return err == -ENOTSUPP || err == -ENOEXEC ||
	       (err == -EINVAL && IS_ALIGNED(offset, UPROBE_SWBP_INSN_SIZE));
}

/**
 * sb_probe_register() - put the breakpoint into every process in the scope
 * @probe:	part of a target that is set up otherwise
 * @inode:	the file
 * @offset:	of the instruction in it
 *
 * The caller keeps @inode in being until sb_probe_sync() after
 * sb_probe_unregister().
 */
int sb_probe_register(struct sb_probe *probe, struct inode *inode, loff_t offset)
{
	struct uprobe *uprobe;

	probe->consumer.handler = uprobe_hit;
	probe->consumer.filter = uprobe_wants;

	uprobe = uprobe_register(inode, offset, 0, &probe->consumer);
	if (IS_ERR(uprobe))
		return is_refusal(PTR_ERR(uprobe), offset) ? -EOPNOTSUPP : PTR_ERR(uprobe);
	probe->uprobe = uprobe;
	return 0;
}

/**
 * sb_probe_unregister() - take the breakpoint out of every process
 * @probe:	registered or not
 *
 * The handler may still be running on return: sb_probe_sync() waits.
 */
void sb_probe_unregister(struct sb_probe *probe)
{
	if (probe->uprobe)
		uprobe_unregister_nosync(probe->uprobe, &probe->consumer);
	probe->uprobe = NULL;
}

/**
 * sb_probe_renew() - ask again whose memory is to have the breakpoint
 * @probe:	registered; not to be renewed again before sb_probe_sync()
 * @inode:	the file
 * @offset:	of the instruction in it
 *
 * The kernel has uprobe_apply() for that and keeps it to itself.  A second
 * consumer that comes and goes does the same: when it comes every memory that it
 * wants gets the breakpoint, when it goes those lose it that nobody wants.
 */
int sb_probe_renew(struct sb_probe *probe, struct inode *inode, loff_t offset)
{
	struct uprobe *uprobe;

	probe->again.handler = uprobe_hit_again;
	probe->again.filter = uprobe_wants_again;

	uprobe = uprobe_register(inode, offset, 0, &probe->again);
	if (IS_ERR(uprobe))
		return PTR_ERR(uprobe);
	uprobe_unregister_nosync(uprobe, &probe->again);
	return 0;
}

/**
 * sb_probe_sync() - wait until no handler of an unregistered probe runs
 *
 * One wait is enough for any number of probes.  It can take as long as the
 * longest delay of a target that is not even concerned.
 */
void sb_probe_sync(void)
{
	uprobe_unregister_sync();
}
