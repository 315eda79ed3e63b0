// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Breakpoints: the only file that calls uprobes.
 *
 * The targets on one instruction share a site; those that catch the ends of its calls
 * share another one, with another consumer.  The handler of the site's consumer goes
 * through them, so that for each target the cost of the hit so far is known.  The filter
 * of that consumer stands for one of the targets, the founder; each other target has a
 * consumer of its own, which requests the breakpoint and does nothing at a hit.  So a
 * target is added and removed like any consumer of a uprobe, under the kernel's locks,
 * and waits for running filters, and before 6.12 for running handlers.
 */
#include <linux/err.h>
#include <linux/hashtable.h>
#include <linux/mutex.h>
#include <linux/rculist.h>
#include <linux/refcount.h>
#include <linux/slab.h>

#include "budget.h"
#include "call.h"
#include "compat.h"
#include "delay.h"
#include "probe.h"
#include "scope.h"
#include "session.h"
#include "stats.h"
#include "target.h"

/**
 * struct bump_site - an instruction that has a breakpoint
 * @consumer:	what the uprobe calls
 * @probes:	the targets' parts, the newest first; written under @lock, read under RCU
 * @only:	of @probes, if it is the only one; otherwise NULL.  As @probes
 * @founder:	the probe that @consumer's filter stands for; written under @lock
 * @uprobe:	what @consumer is registered with, or NULL; under @lock
 * @inode:	the file
 * @offset:	of the instruction in @inode
 * @ref_ctr_offset: of the counter in @inode that says that there is a probe, or 0
 * @lock:	adding and removing of probes.  Outside of the kernel's locks of uprobes
 * @node:	in the table of sites; under the table's lock
 * @closed:	its last probe has been removed; under @lock
 * @has_ends:	its probes are those of targets that catch the ends of calls
 * @ref:	one of each probe that is or was in it
 * @rcu:	for freeing
 */
struct bump_site {
	struct uprobe_consumer consumer;
	struct list_head probes;
	struct bump_probe *only;
	struct bump_probe *founder;
	struct uprobe *uprobe;
	struct inode *inode;
	loff_t offset;
	loff_t ref_ctr_offset;
	struct mutex lock;	/* adding and removing of probes */
	struct hlist_node node;
	bool closed;
	bool has_ends;
	refcount_t ref;
	struct rcu_head rcu;
};

/* Protects the table of sites.  Innermost. */
static DEFINE_MUTEX(sites_lock);
static DEFINE_HASHTABLE(sites, 12);

static struct bump_target *probe_target(struct bump_probe *probe)
{
	return container_of(probe, struct bump_target, probe);
}

/* --- what the kernel calls ------------------------------------------------ */

static noinline bool target_wants(struct bump_target *target, struct mm_struct *mm)
{
	bool refused = false, wants;

	wants = bump_scope_wants(target->scope, target->session->opener, mm, &refused);
	if (refused)
		bump_stats_count_event(&target->stats, BUMP_UNARMED);
	return wants;
}

/* Returns whether the target needs the breakpoint in the memory of this task. */
static __always_inline bool target_hit(struct bump_target *target, struct bump_budget *budget)
{
	/* pairs with bump_target_publish() */
	if (smp_load_acquire(&target->state) != BUMP_TARGET_LIVE)
		return true;

	if (!bump_scope_has(target->scope, target->session->opener, current))
		return target_wants(target, current->mm);

	bump_delay_hit(target, budget);
	return true;
}

static noinline int take_out(struct bump_site *site)
{
	struct bump_probe *probe;

	list_for_each_entry_rcu(probe, &site->probes, node, true)
		bump_stats_count_event(&probe_target(probe)->stats, BUMP_TAKEN_OUT);
	return UPROBE_HANDLER_REMOVE;
}

/* hit() for a site with no probe or with several. */
static noinline int hit_all(struct bump_site *site)
{
	struct bump_budget budget = {};
	struct bump_probe *probe;
	/* Without a probe, not yet or no longer, the breakpoint stays. */
	bool stays = list_empty(&site->probes);

	list_for_each_entry_rcu(probe, &site->probes, node, true)
		stays |= target_hit(probe_target(probe), &budget);
	return stays ? 0 : take_out(site);
}

/*
 * Runs in the task that hit the breakpoint, may sleep.  The probes live as long as the
 * consumer: see bump_probe_sync().  A child inherits the breakpoints of its parent
 * without a call of the filter; if no user of its memory is in a scope, they are removed
 * from it at the first hit.
 */
static int hit(struct uprobe_consumer *uc)
{
	struct bump_site *site = container_of(uc, struct bump_site, consumer);
	struct bump_probe *only = READ_ONCE(site->only);

	/* Usually there is one probe and no shared budget, which needs few registers. */
	if (unlikely(!only))
		return hit_all(site);
	return target_hit(probe_target(only), NULL) ? 0 : take_out(site);
}

DEFINE_UPROBE_HANDLER(hit)

/*
 * target_hit() for a target that catches the ends of its calls.  If it catches the end of
 * this call, replaces @calls, those of the task, and sets @catch.
 */
static bool target_enter(struct bump_target *target, struct pt_regs *regs,
			 struct bump_calls **calls, bool *catch)
{
	struct bump_calls *begun;

	/* pairs with bump_target_publish() */
	if (smp_load_acquire(&target->state) != BUMP_TARGET_LIVE)
		return true;

	if (!bump_scope_has(target->scope, target->session->opener, current))
		return target_wants(target, current->mm);

	begun = bump_call_begin(target, regs, *calls);
	if (begun) {
		*calls = begun;
		*catch = true;
	}
	return true;
}

/*
 * enter() for a site with no probe or with several, and for what is to be done at few calls.
 * Frames of earlier calls must not be taken for one of this, so they are dropped for targets
 * that need no frame, too.
 */
static noinline int enter_any(struct bump_site *site, struct pt_regs *regs,
			      struct bump_calls *calls)
{
	bool stays = list_empty(&site->probes), catch = false;
	struct bump_probe *probe;

	if (calls && !bump_calls_are_tidy(calls, user_stack_pointer(regs)))
		bump_calls_tidy(calls, regs);
	list_for_each_entry_rcu(probe, &site->probes, node, true)
		stays |= target_enter(probe_target(probe), regs, &calls, &catch);
	if (!stays)
		return take_out(site);
	return catch ? 0 : UPROBE_HANDLER_IGNORE;
}

/* Is the task plainly to be delayed by @target when the function returns? */
static __always_inline bool target_catches(struct bump_target *target)
{
	/* pairs with bump_target_publish() */
	return smp_load_acquire(&target->state) == BUMP_TARGET_LIVE &&
	       bump_scope_has_plainly(target->scope, target->session->opener, current) &&
	       bump_call_is_wanted(target);
}

/*
 * hit() for a site that has ends.  It calls no function except the clock's, so that few
 * registers are saved.
 */
static int enter(struct uprobe_consumer *uc, struct pt_regs *regs)
{
	struct bump_site *site = container_of(uc, struct bump_site, consumer);
	struct bump_calls *calls = bump_calls_of_current();
	struct bump_probe *only = READ_ONCE(site->only);

	if (unlikely(!only || !bump_call_is_plain(calls, regs) ||
		     !target_catches(probe_target(only))))
		return enter_any(site, regs, calls);
	bump_call_record(calls, probe_target(only), regs);
	return 0;
}

DEFINE_UPROBE_ENTRY(enter)

/* The task may have left the scope in its call, or changed to another user. */
static void target_leave(struct bump_target *target, struct bump_return *ret,
			 struct bump_budget *budget)
{
	struct bump_frame *frame = bump_calls_seek(ret->calls, ret->sp, target->id);
	struct bump_lasted lasted;

	if (!frame)
		return;
	lasted = bump_return_take(ret, frame, target->ends);
	/* pairs with bump_target_publish() */
	if (smp_load_acquire(&target->state) != BUMP_TARGET_LIVE)
		return;
	if (!bump_scope_has(target->scope, target->session->opener, current)) {
		target_wants(target, current->mm);
		return;
	}
	if (target->ends->durations)
		bump_durations_count(target->ends->durations, lasted.whole_ns);
	/* Targets before this one may have delayed the return. */
	bump_delay_return(target, ktime_get_ns(), lasted.own_ns, budget);
}

static noinline void target_record(struct bump_target *target, u64 now, u64 whole_ns)
{
	bump_durations_count(target->ends->durations, whole_ns);
	bump_delay_return(target, now, 0, NULL);
}

/* leave() for a site with no probe or with several, and for what is to be done at few returns. */
static noinline void leave_any(struct bump_site *site, struct bump_calls *calls,
			       unsigned long sp, u64 now)
{
	struct bump_budget budget = {};
	struct bump_probe *probe;
	struct bump_return ret;

	bump_return_begin(&ret, calls, sp, now);
	bump_calls_drop_below(calls, sp);
	list_for_each_entry_rcu(probe, &site->probes, node, true)
		target_leave(probe_target(probe), &ret, &budget);
	bump_return_end(&ret);
}

/*
 * Is the return plainly that of the innermost call, and the task still in the scope?  The
 * target was live when the call was recorded.
 */
static __always_inline bool target_returns(const struct bump_target *target,
					   const struct bump_frame *frame, unsigned long sp)
{
	return frame->sp == sp && frame->id == target->id && target->ends->stays &&
	       READ_ONCE(target->state) == BUMP_TARGET_LIVE;
}

/*
 * Runs in the task that returns from the function, and may sleep.  Must be quick for a
 * task that is in no scope, because the kernel catches its returns too.  Calls can be under
 * way when their target, or the module, is removed: the kernel then returns from them
 * without this handler.  As in enter(), few registers are saved.
 */
static void leave(struct uprobe_consumer *uc, struct pt_regs *regs)
{
	struct bump_site *site = container_of(uc, struct bump_site, consumer);
	struct bump_calls *calls = bump_calls_of_current();
	unsigned long sp = bump_entry_sp(regs);
	struct bump_lasted lasted;
	struct bump_target *target;
	struct bump_frame *frame;
	struct bump_probe *only;
	struct bump_return ret;
	u64 now;

	if (!calls || bump_calls_are_none(calls))
		return;
	now = ktime_get_ns();
	only = READ_ONCE(site->only);
	target = probe_target(only);
	frame = bump_calls_innermost(calls);
	if (unlikely(!only || !target_returns(target, frame, sp))) {
		leave_any(site, calls, sp, now);
		return;
	}
	bump_return_begin(&ret, calls, sp, now);
	lasted = bump_return_take(&ret, frame, target->ends);
	bump_return_end(&ret);
	if (unlikely(target->ends->durations))
		target_record(target, now, lasted.whole_ns);
	else
		bump_delay_return(target, now, lasted.own_ns, NULL);
}

DEFINE_UPROBE_RETURN(leave)

static bool probe_wants(struct bump_probe *probe, struct mm_struct *mm)
{
	return target_wants(probe_target(probe), mm);
}

/* The filter runs under the mmap_lock of @mm: take no lock of the module here. */
static bool wants(struct uprobe_consumer *uc, struct mm_struct *mm)
{
	struct bump_site *site = container_of(uc, struct bump_site, consumer);

	return probe_wants(READ_ONCE(site->founder), mm);
}

DEFINE_UPROBE_FILTER(wants)

/*
 * Once the probe is in the site's list, the site's handler decides whether the breakpoint
 * stays.
 */
static int hit_own(struct uprobe_consumer *uc)
{
	struct bump_probe *probe = container_of(uc, struct bump_probe, own);

	return READ_ONCE(probe->is_in) ? UPROBE_HANDLER_REMOVE : 0;
}

DEFINE_UPROBE_HANDLER(hit_own)

static bool own_wants(struct uprobe_consumer *uc, struct mm_struct *mm)
{
	return probe_wants(container_of(uc, struct bump_probe, own), mm);
}

DEFINE_UPROBE_FILTER(own_wants)

static int hit_again(struct uprobe_consumer *uc)
{
	return 0;
}

DEFINE_UPROBE_HANDLER(hit_again)

static bool again_wants(struct uprobe_consumer *uc, struct mm_struct *mm)
{
	return probe_wants(container_of(uc, struct bump_probe, again), mm);
}

DEFINE_UPROBE_FILTER(again_wants)

/* --- sites ---------------------------------------------------------------- */

static unsigned long site_key(const struct inode *inode, loff_t offset)
{
	return (unsigned long)inode / L1_CACHE_BYTES + offset;
}

static struct bump_site *site_alloc(struct inode *inode, loff_t offset, loff_t ref_ctr_offset,
				    bool has_ends)
{
	struct bump_site *site = kzalloc(sizeof(*site), GFP_KERNEL_ACCOUNT);

	if (!site)
		return NULL;
	site->consumer.handler = has_ends ? uprobe_enter : uprobe_hit;
	site->consumer.ret_handler = has_ends ? uprobe_leave : NULL;
	site->has_ends = has_ends;
	site->consumer.filter = uprobe_wants;
	INIT_LIST_HEAD(&site->probes);
	site->inode = inode;
	site->offset = offset;
	site->ref_ctr_offset = ref_ctr_offset;
	mutex_init(&site->lock);
	refcount_set(&site->ref, 1);
	return site;
}

static struct bump_site *site_get(struct inode *inode, loff_t offset, loff_t ref_ctr_offset,
				  bool has_ends)
{
	unsigned long key = site_key(inode, offset);
	struct bump_site *site;

	mutex_lock(&sites_lock);
	hash_for_each_possible(sites, site, node, key) {
		if (site->inode == inode && site->offset == offset &&
		    site->has_ends == has_ends) {
			refcount_inc(&site->ref);
			goto out;
		}
	}
	site = site_alloc(inode, offset, ref_ctr_offset, has_ends);
	if (site)
		hash_add(sites, &site->node, key);
out:
	mutex_unlock(&sites_lock);
	return site;
}

/* Under the site's lock.  A later registration makes a new site. */
static void site_close(struct bump_site *site)
{
	site->closed = true;
	mutex_lock(&sites_lock);
	hash_del(&site->node);
	mutex_unlock(&sites_lock);
}

static void site_put(struct bump_site *site)
{
	if (refcount_dec_and_test(&site->ref))
		kfree_rcu(site, rcu);
}

/* Under the site's lock. */
static int site_ask(struct bump_site *site, struct uprobe_consumer *uc, struct uprobe **uprobe)
{
	struct uprobe *made = uprobe_register(site->inode, site->offset, site->ref_ctr_offset, uc);

	if (IS_ERR(made))
		return PTR_ERR(made);
	*uprobe = made;
	return 0;
}

/* Under the site's lock.  Only before 6.12 does it wait for running handlers. */
static void site_ask_no_more(struct uprobe_consumer *uc, struct uprobe **uprobe)
{
	if (*uprobe)
		uprobe_unregister_nosync(*uprobe, uc);
	*uprobe = NULL;
}

/* Under the site's lock. */
static void site_count(struct bump_site *site)
{
	struct list_head *probes = &site->probes;

	/* The handlers' accesses depend on the pointer: they see a probe that is set up. */
	smp_store_release(&site->only, list_is_singular(probes) ?
			  list_first_entry(probes, struct bump_probe, node) : NULL);
}

/* Under the site's lock. */
static int site_enter(struct bump_site *site, struct bump_probe *probe)
{
	int err;

	if (site->uprobe) {
		probe->own.handler = uprobe_hit_own;
		probe->own.filter = uprobe_own_wants;
		err = site_ask(site, &probe->own, &probe->uprobe);
	} else {
		site->founder = probe;
		err = site_ask(site, &site->consumer, &site->uprobe);
	}
	if (err)
		return err;
	list_add_rcu(&probe->node, &site->probes);
	site_count(site);
	WRITE_ONCE(probe->is_in, true);
	return 0;
}

/* Under the site's lock. */
static void site_leave(struct bump_site *site, struct bump_probe *probe)
{
	struct bump_probe *heir;

	WRITE_ONCE(probe->is_in, false);
	list_del_rcu(&probe->node);
	site_count(site);
	if (list_empty(&site->probes)) {
		site_close(site);
		site_ask_no_more(&site->consumer, &site->uprobe);
	} else if (probe == site->founder) {
		/*
		 * The heir's own consumer is removed: the site's now requests its
		 * breakpoints.
		 */
		heir = list_first_entry(&site->probes, struct bump_probe, node);
		WRITE_ONCE(site->founder, heir);
		site_ask_no_more(&heir->own, &heir->uprobe);
	} else {
		site_ask_no_more(&probe->own, &probe->uprobe);
	}
}

/* --- probes --------------------------------------------------------------- */

/* After bump_probe_unregister() and bump_probe_sync(). */
void bump_probe_destroy(struct bump_probe *probe)
{
	if (probe->site)
		site_put(probe->site);
}

/*
 * Translates the errno for an instruction that the architecture can't probe.  arm64
 * returns EINVAL for it, as the kernel does for an offset at which no instruction can
 * begin.
 */
static int translate(int err, loff_t offset)
{
	if (err == -ENOTSUPP || err == -ENOEXEC)
		return -EOPNOTSUPP;
	if (err != -EINVAL || !IS_ALIGNED(offset, UPROBE_SWBP_INSN_SIZE))
		return err;
	/* Other reasons for EINVAL were ruled out before. */
	return IS_ENABLED(CONFIG_X86) ? -EBUSY : -EOPNOTSUPP;
}

/**
 * bump_probe_register() - put the breakpoint into every process in the scope
 * @probe:	part of a target whose other parts are set up
 * @inode:	the file
 * @offset:	of the instruction in it
 * @ref_ctr_offset: of the counter of its probes in @inode, or 0
 *
 * The caller holds @inode until bump_probe_sync() after bump_probe_unregister().
 */
int bump_probe_register(struct bump_probe *probe, struct inode *inode, loff_t offset,
			loff_t ref_ctr_offset)
{
	struct bump_site *site;
	int err;

	for (;;) {
		site = site_get(inode, offset, ref_ctr_offset, probe_target(probe)->ends);
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
	if (!err)
		probe->site = site;
	else if (list_empty(&site->probes))
		site_close(site);
	mutex_unlock(&site->lock);
	if (err)
		site_put(site);
	return err;
}

/**
 * bump_probe_unregister() - take the breakpoint out of every process
 * @probe:	registered or not
 *
 * The handler may still be running on return: bump_probe_sync() waits.
 */
void bump_probe_unregister(struct bump_probe *probe)
{
	struct bump_site *site = probe->site;

	if (!site)
		return;
	mutex_lock(&site->lock);
	if (probe->is_in)
		site_leave(site, probe);
	mutex_unlock(&site->lock);
}

/**
 * bump_probe_renew() - call the filter again for every process that maps the file
 * @probe:	of a target that may have been removed; not to be renewed again before
 *		bump_probe_sync()
 *
 * The kernel's uprobe_apply() does that and is not exported.  Registering and
 * unregistering a second consumer has the same effect: the first puts the breakpoint into
 * every mm that its filter accepts, the second removes it from those that no consumer's
 * filter accepts.
 */
int bump_probe_renew(struct bump_probe *probe)
{
	struct bump_site *site = probe->site;
	struct uprobe *uprobe = NULL;
	int err = 0;

	mutex_lock(&site->lock);
	if (probe->is_in) {
		probe->again.handler = uprobe_hit_again;
		probe->again.filter = uprobe_again_wants;
		err = site_ask(site, &probe->again, &uprobe);
		site_ask_no_more(&probe->again, &uprobe);
	}
	mutex_unlock(&site->lock);
	return err;
}

/**
 * bump_probe_sync() - wait until no handler of an unregistered probe runs
 *
 * One wait is enough for any number of probes.  It can take as long as the longest delay
 * of any target, related or not.
 */
void bump_probe_sync(void)
{
	uprobe_unregister_sync();
}
