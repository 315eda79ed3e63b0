// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Breakpoints: the only file that calls uprobes.
 *
 * The targets on one instruction share one consumer, their site.  Its handler goes
 * through them, so that it knows what a hit has cost when it comes to the next.
 *
 * A probe that comes to a site, or leaves it, has the filters asked again.  The kernel
 * has uprobe_apply() for that and does not export it.  A second consumer that comes and
 * goes does the same: when it comes every memory that it wants gets the breakpoint, when
 * it goes those lose it that no consumer wants.  The kernel's locks make it wait for
 * filters that are running, and before 6.12 for handlers.
 */
#include <linux/err.h>
#include <linux/hashtable.h>
#include <linux/mutex.h>
#include <linux/rculist.h>
#include <linux/refcount.h>
#include <linux/slab.h>

#include "budget.h"
#include "compat.h"
#include "delay.h"
#include "probe.h"
#include "scope.h"
#include "session.h"
#include "stats.h"
#include "target.h"

/**
 * struct sb_site - an instruction that has a breakpoint
 * @consumer:	what the uprobe calls
 * @probes:	the targets' parts; written under @lock, read under RCU
 * @uprobe:	what @consumer is registered with, or NULL; under @lock
 * @inode:	the file
 * @offset:	of the instruction in @inode
 * @ref_ctr_offset: of the counter in @inode that says that there is a probe, or 0
 * @lock:	who comes and goes.  Outside of the kernel's locks of uprobes
 * @node:	in the table of sites; under the table's lock
 * @closed:	the last probe has left it; under @lock
 * @ref:	one of each probe that is or was in it
 * @rcu:	for freeing
 */
struct sb_site {
	struct uprobe_consumer consumer;
	struct list_head probes;
	struct uprobe *uprobe;
	struct inode *inode;
	loff_t offset;
	loff_t ref_ctr_offset;
	struct mutex lock;	/* who comes and goes */
	struct hlist_node node;
	bool closed;
	refcount_t ref;
	struct rcu_head rcu;
};

/* Protects the table of sites.  Innermost. */
static DEFINE_MUTEX(sites_lock);
static DEFINE_HASHTABLE(sites, 12);

static struct sb_target *probe_target(struct sb_probe *probe)
{
	return container_of(probe, struct sb_target, probe);
}

/* --- what the kernel calls ------------------------------------------------ */

/* Is the breakpoint to stay, for what the target knows of this task and its memory? */
static bool target_hit(struct sb_target *target, struct sb_budget *budget)
{
	const struct cred *opener = target->session->opener;

	/* pairs with sb_target_publish() */
	if (smp_load_acquire(&target->state) != SB_TARGET_LIVE)
		return true;

	if (!sb_scope_has(target->scope, opener, current)) {
		bool refused = false, wants;

		wants = sb_scope_wants(target->scope, opener, current->mm, &refused);
		if (refused)
			sb_stats_count_event(&target->stats, SB_UNARMED);
		return wants;
	}

	sb_delay_hit(target, budget);
	return true;
}

static noinline int take_out(struct sb_site *site)
{
	struct sb_probe *probe;

	list_for_each_entry_rcu(probe, &site->probes, node, true)
		sb_stats_count_event(&probe_target(probe)->stats, SB_TAKEN_OUT);
	return UPROBE_HANDLER_REMOVE;
}

/*
 * Runs in the task that hit the breakpoint, may sleep.  What keeps the probes in being
 * is what keeps the consumer: see sb_probe_sync().  A child inherits the breakpoints of
 * its parent without the filter being asked; where it turns out that no user of its
 * memory is in a scope they are taken out of it at the first hit.
 */
static int hit(struct uprobe_consumer *uc)
{
	struct sb_site *site = container_of(uc, struct sb_site, consumer);
	struct sb_budget budget = {};
	struct sb_probe *probe;
	bool stays = false;

	list_for_each_entry_rcu(probe, &site->probes, node, true)
		stays |= target_hit(probe_target(probe), &budget);
	return stays ? 0 : take_out(site);
}

DEFINE_UPROBE_HANDLER(hit)

static bool probe_wants(struct sb_probe *probe, struct mm_struct *mm)
{
	struct sb_target *target = probe_target(probe);
	bool refused = false, wants;

	wants = sb_scope_wants(target->scope, target->session->opener, mm, &refused);
	if (refused)
		sb_stats_count_event(&target->stats, SB_UNARMED);
	return wants;
}

/* Runs under the mmap_lock of @mm: no lock of ours may be taken. */
static bool wants(struct uprobe_consumer *uc, struct mm_struct *mm)
{
	struct sb_site *site = container_of(uc, struct sb_site, consumer);
	struct sb_probe *probe;
	bool wanted = false;

	rcu_read_lock();
	list_for_each_entry_rcu(probe, &site->probes, node) {
		wanted = probe_wants(probe, mm);
		if (wanted)
			break;
	}
	rcu_read_unlock();
	return wanted;
}

DEFINE_UPROBE_FILTER(wants)

/* Hits are the site's; "stays" is all that can be said here. */
static int hit_question(struct uprobe_consumer *uc)
{
	return 0;
}

DEFINE_UPROBE_HANDLER(hit_question)

static bool question_wants(struct uprobe_consumer *uc, struct mm_struct *mm)
{
	struct sb_question *question = container_of(uc, struct sb_question, consumer);

	return question->probe && probe_wants(question->probe, mm);
}

DEFINE_UPROBE_FILTER(question_wants)

/* --- sites ---------------------------------------------------------------- */

static unsigned long site_key(const struct inode *inode, loff_t offset)
{
	return (unsigned long)inode / L1_CACHE_BYTES + offset;
}

static struct sb_site *site_alloc(struct inode *inode, loff_t offset, loff_t ref_ctr_offset)
{
	struct sb_site *site = kzalloc(sizeof(*site), GFP_KERNEL_ACCOUNT);

	if (!site)
		return NULL;
	site->consumer.handler = uprobe_hit;
	site->consumer.filter = uprobe_wants;
	INIT_LIST_HEAD(&site->probes);
	site->inode = inode;
	site->offset = offset;
	site->ref_ctr_offset = ref_ctr_offset;
	mutex_init(&site->lock);
	refcount_set(&site->ref, 1);
	return site;
}

static struct sb_site *site_get(struct inode *inode, loff_t offset, loff_t ref_ctr_offset)
{
	unsigned long key = site_key(inode, offset);
	struct sb_site *site;

	mutex_lock(&sites_lock);
	hash_for_each_possible(sites, site, node, key) {
		if (site->inode == inode && site->offset == offset) {
			refcount_inc(&site->ref);
			goto out;
		}
	}
	site = site_alloc(inode, offset, ref_ctr_offset);
	if (site)
		hash_add(sites, &site->node, key);
out:
	mutex_unlock(&sites_lock);
	return site;
}

/* Under the site's lock.  What comes later makes a new one. */
static void site_close(struct sb_site *site)
{
	site->closed = true;
	mutex_lock(&sites_lock);
	hash_del(&site->node);
	mutex_unlock(&sites_lock);
}

static void site_put(struct sb_site *site)
{
	if (refcount_dec_and_test(&site->ref))
		kfree_rcu(site, rcu);
}

static int site_register(struct sb_site *site)
{
	struct uprobe *uprobe;

	uprobe = uprobe_register(site->inode, site->offset, site->ref_ctr_offset,
				 &site->consumer);
	if (IS_ERR(uprobe))
		return PTR_ERR(uprobe);
	site->uprobe = uprobe;
	return 0;
}

/* Under the site's lock.  @question must not be in use since the last sb_probe_sync(). */
static int site_ask(struct sb_site *site, struct sb_question *question, struct sb_probe *probe)
{
	struct uprobe *uprobe;

	question->consumer.handler = uprobe_hit_question;
	question->consumer.filter = uprobe_question_wants;
	question->probe = probe;
	uprobe = uprobe_register(site->inode, site->offset, site->ref_ctr_offset,
				 &question->consumer);
	if (IS_ERR(uprobe))
		return PTR_ERR(uprobe);
	uprobe_unregister_nosync(uprobe, &question->consumer);
	return 0;
}

static void site_count_unarmed(struct sb_site *site)
{
	struct sb_probe *probe;

	list_for_each_entry(probe, &site->probes, node)
		sb_stats_count_event(&probe_target(probe)->stats, SB_UNARMED);
}

/*
 * The question could not be asked: there is no memory, or the file is shorter now.  The
 * one who leaves may not be seen any more, so everybody leaves for a moment.
 */
static void site_register_anew(struct sb_site *site)
{
	site_count_unarmed(site);
	uprobe_unregister_nosync(site->uprobe, &site->consumer);
	site->uprobe = NULL;
	sb_probe_sync();
	site_register(site);
}

/* --- probes --------------------------------------------------------------- */

/* After sb_probe_unregister() and sb_probe_sync(). */
void sb_probe_destroy(struct sb_probe *probe)
{
	if (probe->site)
		site_put(probe->site);
}

/*
 * Does the architecture say that it can't do the instruction?  arm64 calls it
 * invalid, as the kernel does a place where no instruction can begin.
 */
static int translate(int err, loff_t offset)
{
	if (err == -ENOTSUPP || err == -ENOEXEC)
		return -EOPNOTSUPP;
	if (err != -EINVAL || !IS_ALIGNED(offset, UPROBE_SWBP_INSN_SIZE))
		return err;
	/* What else is wrong with the numbers has been found out before. */
	return IS_ENABLED(CONFIG_X86) ? -EBUSY : -EOPNOTSUPP;
}

/* Under the site's lock. */
static void site_leave(struct sb_site *site, struct sb_probe *probe)
{
	list_del_rcu(&probe->node);
	probe->is_in = false;
	if (list_empty(&site->probes)) {
		site_close(site);
		if (site->uprobe)
			uprobe_unregister_nosync(site->uprobe, &site->consumer);
		site->uprobe = NULL;
	} else if (site->uprobe && site_ask(site, &probe->going, NULL)) {
		site_register_anew(site);
	}
}

/* Under the site's lock. */
static int site_enter(struct sb_site *site, struct sb_probe *probe)
{
	int err;

	list_add_tail_rcu(&probe->node, &site->probes);
	probe->is_in = true;
	probe->site = site;
	err = site->uprobe ? site_ask(site, &probe->coming, probe) : site_register(site);
	if (err)
		site_leave(site, probe);
	return err;
}

/**
 * sb_probe_register() - put the breakpoint into every process in the scope
 * @probe:	part of a target that is set up otherwise
 * @inode:	the file
 * @offset:	of the instruction in it
 * @ref_ctr_offset: of the counter of its probes in @inode, or 0
 *
 * The caller keeps @inode in being until sb_probe_sync() after
 * sb_probe_unregister().
 */
int sb_probe_register(struct sb_probe *probe, struct inode *inode, loff_t offset,
		      loff_t ref_ctr_offset)
{
	struct sb_site *site;
	int err;

	for (;;) {
		site = site_get(inode, offset, ref_ctr_offset);
		if (!site)
			return -ENOMEM;
		mutex_lock(&site->lock);
		if (!site->closed)
			break;
		mutex_unlock(&site->lock);
		site_put(site);
	}

	if (site->ref_ctr_offset != ref_ctr_offset)
		err = -EBUSY;
	else
		err = translate(site_enter(site, probe), offset);
	mutex_unlock(&site->lock);
	if (!probe->site)
		site_put(site);
	return err;
}

/**
 * sb_probe_unregister() - take the breakpoint out of every process
 * @probe:	registered or not
 *
 * The handler may still be running on return: sb_probe_sync() waits.
 */
void sb_probe_unregister(struct sb_probe *probe)
{
	struct sb_site *site = probe->site;

	if (!site)
		return;
	mutex_lock(&site->lock);
	if (probe->is_in)
		site_leave(site, probe);
	mutex_unlock(&site->lock);
}

/**
 * sb_probe_renew() - ask again whose memory is to have the breakpoint
 * @probe:	of a target that may be gone by now; not to be renewed again before
 *		sb_probe_sync()
 */
int sb_probe_renew(struct sb_probe *probe)
{
	struct sb_site *site = probe->site;
	int err = 0;

	mutex_lock(&site->lock);
	if (probe->is_in && site->uprobe)
		err = site_ask(site, &probe->again, probe);
	mutex_unlock(&site->lock);
	return err;
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
